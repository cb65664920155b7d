"""A STAC catalogue through the command line: the address is all that is needed beside parcels and season."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from cropstar.store.store import Store
from tests.sources.examples.stac_api import COLLECTION, Api

Cli = Callable[..., "subprocess.CompletedProcess[str]"]
SEASON = ["--from", "2018-01-01", "--to", "2018-12-31"]


def test_from_an_address_to_a_store(run_cli: Cli, real_api: Api, real_data: Path, tmp_path: Path) -> None:
    parcels = real_data / "sentinel2-t31tej" / "parcels" / "france_data_2018.shp"
    command = ["--parcels", parcels, "--label-column", "EC_hcat_n", "--collection", COLLECTION, "--bands", "B04,B08"]
    answer = run_cli("ingest", real_api.address, *command, *SEASON, "-o", "store", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert "9 dates from 2018-01-23 to 2018-10-05" in answer.stderr
    store = Store.open(tmp_path / "store")
    assert store.fingerprint.bands == ("B04", "B08")
    assert sum(int((reader.labels() >= 0).sum()) for reader in store.tiles) == 16_017
    store.close()
    again = run_cli("ingest", real_api.address, *command, *SEASON, "-o", "store", cwd=tmp_path)
    assert "0 tiles written" in again.stderr


def test_what_is_missing_is_asked_for(run_cli: Cli, api: Api, tmp_path: Path) -> None:
    parcels = tmp_path / "p.gpkg"
    for arguments, question in (
        (["ingest", "stac"], "needs an address"),
        (["ingest", api.address], "which parcels?"),
        (["ingest", api.address, "--parcels", parcels], "which season?"),
        (["ingest", api.address, "--parcels", parcels, "--from", "spring"], "'spring' does not match the format"),
    ):
        answer = run_cli(*arguments, cwd=tmp_path)
        assert answer.returncode == 2, answer.stderr
        assert question in answer.stderr
