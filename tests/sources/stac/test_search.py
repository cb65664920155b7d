"""Searching a STAC API: pages, bounds, failures; the command line."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from cropstar.errors import CropstarError, InputError, UsageError
from cropstar.sources.stac import StacOptions, open_stac, search
from cropstar.sources.stac.search import find_items
from cropstar.store.store import Store
from tests.sources.examples.stac_api import COLLECTION, Api
from tests.sources.examples.stac_catalogue import OPTIONS, add_granule


def refusal(url: str, kind: type[CropstarError] = InputError, **changes: Any) -> str:
    with pytest.raises(kind) as caught:
        open_stac(url, StacOptions(**{**OPTIONS, **changes}))
    assert "\n" not in str(caught.value)
    assert caught.value.remedy
    return str(caught.value)


@pytest.mark.parametrize("methods", [["GET", "POST"], ["GET"]])
def test_all_pages_are_read(api: Api, tmp_path: Path, methods: list[str]) -> None:
    api.methods, api.page = methods, 2
    for day in range(1, 8):
        add_granule(api, tmp_path, f"2023-05-{day:02d}")
    found = find_items(api.address, StacOptions(**OPTIONS))
    assert [item["id"] for item in found] == [item["id"] for item in api.items]
    assert api.asked.count(f"{methods[-1]} /search") == 4


def test_season_area_and_cloud_choose(api: Api, tmp_path: Path) -> None:
    add_granule(api, tmp_path, "2023-02-28")
    for day, cover in (("03-01", 10.0), ("10-31", 60.0), ("07-01", 61.0)):
        add_granule(api, tmp_path, f"2023-{day}", properties={"eo:cloud_cover": cover})
    add_granule(api, tmp_path, "2023-11-01")
    found = find_items(api.address, StacOptions(**{**OPTIONS, "max_cloud": 60}))
    assert [item["properties"]["datetime"][:10] for item in found] == ["2023-03-01", "2023-10-31"]
    assert "all 3 items have more than 5 % cloud" in refusal(api.address, max_cloud=5)
    assert "has none in the area" in refusal(api.address, bbox=(-60.0, -10.0, -59.0, -9.0))


def test_an_unknown_collection_is_named_with_those_that_exist(api: Api) -> None:
    api.collections.append("landsat-c2-l2")
    message = refusal(api.address, collection="sentinel-2-l2")
    assert "did you mean 'sentinel-2-l2a'? known: landsat-c2-l2, sentinel-2-l2a" in message


def test_a_host_that_is_not_there() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"
    assert refusal(address).startswith(f"the STAC API cannot be reached in {address}: the connection was refused")


def test_a_server_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "READ_SECONDS", 0.2)
    monkeypatch.setattr(search, "RETRIES", 0)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        assert "no answer in time" in refusal(f"http://127.0.0.1:{silent.getsockname()[1]}")


@pytest.mark.parametrize(
    ("place", "answer", "message"),
    [
        ("/", (200, b"<html>hello</html>"), "not a STAC API"),
        ("/", (200, b'{"hello": 1}'), "not a STAC API"),
        ("/", (200, b"[" * 100_000), "not a STAC API"),
        ("/", (404, b"nothing"), "HTTP status 404: nothing"),
        ("/", (401, b"first\nlog in"), "HTTP status 401: first log in"),
        ("/search", (500, b"broken"), "HTTP status 500: broken"),
        ("/search", (200, b"{}"), "has none in the area"),
        ("/search", (200, b'{"features": [7], "links": []}'), "not a STAC API"),
        ("/search", (200, b'{"features": [{"id": "x"}], "links": []}'), "not a STAC item"),
        ("/", (200, b"x" * 3000), "the answer is longer than"),
    ],
)
def test_answers_that_are_no_help(
    api: Api, place: str, answer: tuple[int, bytes], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if answer[1].startswith(b"xxx"):
        monkeypatch.setattr(search, "MAXIMUM_ANSWER_BYTES", 2000)
    api.answers[place] = answer
    assert message in refusal(api.address + "/")


def test_a_static_catalogue_has_no_search(api: Api) -> None:
    landing = api.landing()
    landing["links"] = [link for link in landing["links"] if link["rel"] != "search"]
    api.answers["/"] = (200, json.dumps({**landing, "conformsTo": []}).encode())
    assert "it offers no search" in refusal(api.address + "/")


def test_a_search_without_end(api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_granule(api, tmp_path)
    link = {"rel": "next", "href": f"{api.address}/search", "method": "POST", "body": {}}
    api.answers["/search"] = (200, json.dumps({"features": api.items, "links": [link]}).encode())
    monkeypatch.setattr(search, "MAXIMUM_PAGES", 5)
    assert "the search finds too much" in refusal(api.address)
    monkeypatch.setattr(search, "MAXIMUM_ITEMS", 3)
    assert "more than 3 items" in refusal(api.address)


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pystac_client", None)
    assert "pip install 'cropstar[stac]'" in refusal("http://127.0.0.1:1", UsageError)


@pytest.mark.parametrize("url", ["ftp://example.org", "catalogue.json", "/etc/passwd", "http://"])
def test_addresses_that_are_none(url: str) -> None:
    assert "not the address of a STAC API" in refusal(url, UsageError)


def test_passwords_are_not_repeated() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    assert "secret" not in refusal(f"http://user:secret@127.0.0.1:{port}/?token=secret")


@pytest.mark.parametrize(
    "changes",
    [
        {"bbox": (11.0, 48.0, 10.0, 49.0)},
        {"bbox": (10.0, 48.0, 10.5, float("nan"))},
        {"bbox": (500_000.0, 5_000_000.0, 500_100.0, 5_000_100.0)},
        {"start": date(2023, 9, 1), "end": date(2023, 8, 1)},
        {"max_cloud": 101.0},
        {"resolution": 0.0},
        {"crs": "EPSG:4326"},
        {"crs": "nowhere"},
        {"bands": ("B99",)},
        {"clear": (0,)},
        {"resampling": "magic"},
        {"collection": " "},
    ],
)
def test_options_that_make_no_sense(changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        StacOptions(**{**OPTIONS, **changes})
    assert caught.value.remedy


# --- The command line

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
        (["ingest", api.address], "no parcels given"),
        (["ingest", api.address, "--parcels", parcels], "no season given"),
        (["ingest", api.address, "--parcels", parcels, "--from", "spring"], "'spring' does not match the format"),
    ):
        answer = run_cli(*arguments, cwd=tmp_path)
        assert answer.returncode == 2, answer.stderr
        assert question in answer.stderr
