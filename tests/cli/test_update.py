"""`cropstar update` as a user starts it: a season that grows, and what is refused in one line."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import rasterio

from cropstar.prediction.job import predict
from cropstar.prediction.request import MapRequest
from tests.cli.test_bad_input import assert_refused
from tests.prediction.making import untrained
from tests.prediction.seasons import cut, pixels

Cli = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def images(small_scene: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder: the model, a tile of four dates, the two dates after them as a folder of dated files, and all six."""
    folder, tile = tmp_path_factory.mktemp("images"), small_scene / "tile.tif"
    untrained(folder / "model.safetensors", tile, seed=2)
    for name, dates in {"first": slice(0, 4), "late": slice(4, 6), "all": slice(0, 6)}.items():
        cut(tile, folder / f"{name}.tif", dates, height=40, width=33)
    (folder / "dated").mkdir()
    with rasterio.open(folder / "late.tif") as stack:
        for index in stack.indexes:
            tags = stack.tags(index)
            name = f"S2_32UPU_{tags['BAND']}_{tags['DATE'].replace('-', '')}.tif"
            with rasterio.open(folder / "dated" / name, "w", **{**stack.profile, "count": 1}) as single:
                single.write(stack.read(index), 1)
                single.scales, single.offsets = stack.scales[:1], stack.offsets[:1]
    return folder


def test_a_season_that_grows(run_cli: Cli, images: Path, tmp_path: Path) -> None:
    model = images / "model.safetensors"
    command = ["predict", images / "first.tif", "-o", "map.tif", "--state", "season.h5", "--model", model]
    first = run_cli(*command, "--every-date", "--stable-confidence", "0.3", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert len(list(tmp_path.glob("map-20*.tif"))) == 4
    assert pixels(tmp_path / "map-earliest.tif").any()
    assert 'type="singlebandpseudocolor"' in (tmp_path / "map-earliest.qml").read_text()
    listed = {
        line.split()[1] for line in first.stderr.splitlines() if line.startswith(("map ", "layer", "names", "style"))
    }
    assert {path.name for path in tmp_path.glob("map*") if path.suffix in (".tif", ".qml", ".xml")} <= listed
    second = run_cli("update", "season.h5", images / "dated", "--confidence", cwd=tmp_path)
    assert second.returncode == 0, second.stderr
    assert "state   season.h5" in second.stderr
    options = MapRequest(model=model, device="cpu", layers=("confidence",), picture=False)
    predict(images / "all.tif", tmp_path / "all.tif", options)
    assert (pixels(tmp_path / "map.tif") == pixels(tmp_path / "all.tif")).mean() > 0.999
    difference = pixels(tmp_path / "map-confidence.tif").astype(int) - pixels(tmp_path / "all-confidence.tif")
    assert abs(difference).max() <= 1  # percent, rounded

    again = run_cli("update", "season.h5", images / "dated", cwd=tmp_path)
    assert_refused(again, 5, "not a later date", "dated", "only later images")
    assert len(again.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["update", "nowhere.h5", "late.tif"], 3, "no such state: nowhere.h5"),
        (["predict", "first.tif", "late.tif", "--state", "s.h5"], 2, "one state for several inputs"),
    ],
)
def test_wrong_usage(arguments: list[str], code: int, expected: str, run_cli: Cli, images: Path) -> None:
    more = ["--model", "model.safetensors"] if arguments[0] == "predict" else []
    answer = run_cli(*arguments, *more, cwd=images)
    assert_refused(answer, code, expected)
    assert len(answer.stderr.splitlines()) == 1
