"""Every configuration that ships, run through the command line on data laid out as those that it is for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest

from cropstar.cli.main import cropstar
from cropstar.config import find_config, resolve_config
from cropstar.sources.base import Scene
from cropstar.sources.breizhcrops import BreizhCropsOptions, open_breizhcrops
from cropstar.sources.ingest import ingest
from cropstar.sources.table import TableOptions, open_table
from cropstar.sources.tum import TumOptions, open_tum
from cropstar.sources.ucr import open_ucr
from cropstar.sources.zuericrop import ZueriCropOptions, open_zuericrop
from tests.conftest import REPOSITORY
from tests.sources.examples.regions import L1C, a_series, write_region
from tests.sources.examples.tables import as_csv
from tests.sources.examples.tum_batches import a_batch, write_batch
from tests.sources.examples.tum_tiles import write_collection
from tests.sources.examples.ucr import a_pair
from tests.sources.examples.zuericrop import a_collection

SHIPPED = [path.stem for path in sorted((REPOSITORY / "configs").glob("*.yaml"))]


def tum_pixel(folder: Path) -> Sequence[Scene]:
    write_collection(folder / "240", years=(2016,))
    return open_tum(folder / "240", TumOptions(year=2016))


def tum_series(folder: Path) -> Sequence[Scene]:
    for number, part in enumerate(("train", "test", "eval")):
        write_batch(folder / "data" / part / "b0.pkl", a_batch(seed=number))
    return open_tum(folder / "data", TumOptions())


def breizhcrops(folder: Path) -> Sequence[Scene]:
    for place, region in enumerate(("frh01", "frh02", "frh03", "frh04")):
        keys = range(100 * place + 1, 100 * place + 25)
        codes = {key: ("BTH", "MIS", "PPH")[key % 3] for key in keys}
        series = {key: a_series(L1C, 4 + key % 5, key) for key in keys}
        write_region(folder / "dataset", region, series=series, codes=codes)
    return open_breizhcrops(folder / "dataset", BreizhCropsOptions(year=2017, level="L1C"))


def zuericrop(folder: Path) -> Sequence[Scene]:
    a_collection(images=30, dates=4, codes=4).write(folder)
    return open_zuericrop(folder / "ZueriCrop.hdf5", ZueriCropOptions(bands=("B02", "B03", "B04", "B08")))


def ucr(folder: Path) -> Sequence[Scene]:
    return open_ucr(a_pair(folder / "archive", train=60))


def bavaria(folder: Path) -> Sequence[Scene]:
    """Fields of two years, three crops, four dates each."""
    crops = ("maize", "wheat", "beet")
    rows = [
        (f"{year}-{field}", f"{year}-0{month}-01", crops[field % 3], year, *(100 + 50 * (field % 3 + month),) * 9)
        for year in (2016, 2017)
        for field in range(30)
        for month in range(3, 7)
    ]
    bands = [f"B0{number}" for number in range(1, 10)]
    frame = pd.DataFrame(rows, columns=["id", "date", "label", "year", *bands])
    return open_table(as_csv(frame, folder / "fields"), TableOptions())


# By the beginning of a configuration's name: what writes such data and opens them as its comment does.
DATA = {
    "tum-pixel": tum_pixel,
    "tum-series": tum_series,
    "breizhcrops": breizhcrops,
    "zuericrop": zuericrop,
    "ucr-crop": ucr,
    "bavaria": bavaria,
}


@pytest.mark.parametrize("name", SHIPPED)
def test_every_configuration_runs(
    name: str, small_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One epoch; widths are cut so that it takes a moment. Split, depth, optimiser and batch are the file's own."""
    writers = [writer for start, writer in DATA.items() if name.startswith(start)]
    store, more = small_store, ["--set", "split.validation=0.3"]
    if writers:
        store, more = tmp_path / "store", []
        ingest(writers[0](tmp_path), store)
    monkeypatch.chdir(tmp_path)
    # In this process: eleven starts of the program would take a minute.
    short = ["--config", name, "--store", str(store), "--epochs", "1", "--hidden", "4"]
    cropstar.main(["train", *short, *more], prog_name="cropstar", standalone_mode=False, obj={})
    said = capsys.readouterr().err
    assert "parcels that training never saw" in said
    split = resolve_config(find_config(name), {}).split
    assert split.name is None or f"the data set's own split '{split.name}'" in said


@pytest.mark.parametrize("name", SHIPPED)
def test_the_comment_says_how_to_run_it(name: str) -> None:
    text = find_config(name).read_text(encoding="utf-8")
    assert f"cropstar train --config {name}" in text
    assert "cropstar ingest" in text
    store = str(resolve_config(find_config(name), {}).store)
    assert name.startswith("demo") or f"-o {store}\n" in text


def test_the_counts_that_the_comments_state() -> None:
    from cropstar.models.contract import Shape
    from cropstar.models.description import describe

    model = resolve_config(find_config("tum-pixel-convstar"), {}).model
    assert describe(model, Shape(bands=4, classes=18, length=30)).parameters == 123_602
