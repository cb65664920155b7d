"""What is asked for: inputs and the names of their maps, and shards."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import torch
from hypothesis import given
from hypothesis import strategies as some

import cropstar
from cropstar.errors import ArtifactError, InputError, PartialResult, UsageError
from cropstar.geo.windows import Window, split
from cropstar.prediction.job import predict_all
from cropstar.prediction.request import (
    MapFiles,
    MapInput,
    MapOptions,
    MapRequest,
    Shard,
    StoredSeries,
    find_inputs,
    find_outputs,
)
from cropstar.sources.stack import StackSeries
from cropstar.store.store import MANIFEST
from tests.examples import a_series_tile, store_of
from tests.prediction.making import untrained

CPU = torch.device("cpu")


def test_patterns_and_paths_each_once(tmp_path: Path) -> None:
    for name in ("b.tif", "a.tif", "c[1].tif"):
        (tmp_path / name).touch()
    found = find_inputs([str(tmp_path / "b.tif"), str(tmp_path / "*.tif"), str(tmp_path / "c[1].tif")])
    assert [each.path.name for each in found] == ["b.tif", "a.tif", "c[1].tif"]
    with pytest.raises(InputError, match="nothing matches the pattern"):
        find_inputs([str(tmp_path / "*.jp2")])


def test_where_maps_go(tmp_path: Path) -> None:
    one, two = MapInput(tmp_path / "x" / "one.tif"), MapInput(tmp_path / "two")
    assert find_outputs([one, two], None) == [tmp_path / "x" / "one-crops.tif", tmp_path / "two-crops.tif"]
    assert find_outputs([one], tmp_path / "map.tif") == [tmp_path / "map.tif"]
    assert find_outputs([one], tmp_path) == [tmp_path / "one-crops.tif"]
    maps = tmp_path / "maps"
    (tmp_path / "link.tif").symlink_to(tmp_path)
    with pytest.raises(UsageError, match="a link to a folder"):
        find_outputs([one], tmp_path / "link.tif")
    assert find_outputs([one, two], maps) == [maps / "one-crops.tif", maps / "two-crops.tif"]
    with pytest.raises(UsageError, match="one output for several inputs"):
        find_outputs([one, two], tmp_path / "map.tif")
    with pytest.raises(UsageError, match="two maps of one name"):
        find_outputs([one, MapInput(tmp_path / "y" / "one.tif")], maps)


def test_a_map_whose_name_is_not_utf8() -> None:
    files = MapFiles(Path(os.fsdecode(b"map\xff.tif")), MapOptions())
    with pytest.raises(InputError, match=r"a name that is not UTF-8 in map\\udcff\.tif"):
        files.require_apart([])


def test_a_store_reads_as_the_images_it_was_made_of(small_store: Path, small_scene: Path) -> None:
    (each,) = find_inputs([str(small_store)])
    assert each.scene is not None
    stored, images = StoredSeries(small_store, each.scene), StackSeries(small_scene / "tile.tif")
    assert (stored.grid, stored.dates, stored.bands) == (images.grid, images.dates, images.bands)
    assert (stored.scale, stored.offset) == (images.scale, images.offset)
    for window in (Window(0, 0, 96, 96), Window(40, 30, 20, 50), Window(95, 0, 1, 1)):
        one, other = stored.read(window), images.read(window)
        np.testing.assert_array_equal(one.values, other.values)
        np.testing.assert_array_equal(one.valid, other.valid)
    stored.close()
    images.close()


def enlarge(data: dict[str, Any]) -> None:
    next(iter(data["scenes"].values()))["grid"]["shape"] = [120_000, 120_000]


def move(data: dict[str, Any]) -> None:
    next(iter(data["scenes"].values()))["grid"]["transform"][2] += 480.0


@pytest.mark.parametrize("change", [enlarge, move, lambda data: data["tiles"].pop(0)], ids=["large", "moved", "tile"])
def test_a_scene_that_is_not_that_of_its_tiles(
    change: Callable[[dict[str, Any]], object], small_store: Path, small_scene: Path, tmp_path: Path
) -> None:
    """It was mapped: nothing was seen where no tile lies. The large one took gigabytes before it began."""
    shutil.copytree(small_store, tmp_path / "store")
    path = tmp_path / "store" / MANIFEST
    data = json.loads(path.read_text(encoding="utf-8"))
    del data["checksum"]  # as in older stores
    change(data)
    path.write_text(json.dumps(data), encoding="utf-8")
    model = untrained(tmp_path / "model.safetensors", small_scene / "tile.tif")
    with pytest.raises(ArtifactError, match="the grid of tile in the manifest cannot be used") as caught:
        cropstar.predict(tmp_path / "store", model=model, output=tmp_path / "map.tif")
    assert caught.value.remedy
    assert not (tmp_path / "map.tif").exists()


def test_an_empty_path_is_not_the_current_folder(
    small_scene: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = untrained(tmp_path / "model.safetensors", small_scene / "tile.tif")
    with pytest.raises(UsageError, match="an empty path"):
        cropstar.predict(small_scene / "tile.tif", model=model, output="")
    with pytest.raises(UsageError, match="an empty path"):
        cropstar.predict("", model=model)


def test_an_option_that_would_do_nothing(small_scene: Path, tmp_path: Path) -> None:
    model = untrained(tmp_path / "model.safetensors", small_scene / "tile.tif")
    with pytest.raises(UsageError, match="--smooth-window without --smooth"):
        cropstar.predict(small_scene / "tile.tif", model=model, output=tmp_path / "map.tif", smooth_window=7)
    with pytest.raises(UsageError, match="--background-classes without --background"):
        cropstar.ingest(small_scene / "tile.tif", output=tmp_path / "store", background_classes=(1,))


def test_a_mask_that_is_a_pipe(small_scene: Path, tmp_path: Path) -> None:
    """It was waited for without end."""
    model = untrained(tmp_path / "model.safetensors", small_scene / "tile.tif")
    os.mkfifo(tmp_path / "mask.tif")
    with pytest.raises(InputError, match="it is a pipe or device"):
        cropstar.predict(small_scene / "tile.tif", model=model, output=tmp_path / "m.tif", mask=tmp_path / "mask.tif")


def test_more_windows_than_files_in_a_folder(
    small_scene: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = untrained(tmp_path / "model.safetensors", small_scene / "tile.tif")
    monkeypatch.setattr("cropstar.prediction.job.MOST_WINDOWS", 35)
    with pytest.raises(UsageError, match=r"96 x 96 pixels are 36 windows of 16 pixels"):
        cropstar.predict(small_scene / "tile.tif", model=model, output=tmp_path / "map.tif", window=16)


def test_a_store_of_series_has_nothing_to_map(tmp_path: Path) -> None:
    store_of(tmp_path / "store", {"fields": a_series_tile([3, 4])})
    with pytest.raises(InputError, match="nothing to map"):
        find_inputs([str(tmp_path / "store")])


def test_one_bad_input_does_not_keep_the_others_from_their_maps(
    small_scene: Path, small_store: Path, tmp_path: Path
) -> None:
    tile = small_scene / "tile.tif"
    (tmp_path / "bad.tif").write_text("no picture")
    model = untrained(tmp_path / "model", tile, "star", layers=1)
    inputs = find_inputs([str(tile), str(tmp_path / "bad.tif"), str(small_store)])
    outputs = [tmp_path / "maps" / f"{name}.tif" for name in ("one", "bad", "store")]
    with pytest.raises(PartialResult, match=r"bad\.tif: 1 of 3 inputs"):
        predict_all(inputs, outputs, MapRequest(model=model, device="cpu"))
    assert [path.exists() for path in outputs] == [True, False, True]
    with rasterio.open(outputs[0]) as one, rasterio.open(outputs[2]) as other:
        np.testing.assert_array_equal(one.read(), other.read())


# --- shards


@given(height=some.integers(1, 300), width=some.integers(1, 300), count=some.integers(1, 40), turn=some.integers(0, 50))
def test_shards_cover_everything_once(height: int, width: int, count: int, turn: int) -> None:
    windows = list(split((height, width), 32))
    parts = [Shard(number, count).of(windows, turn) for number in range(count)]
    assert sorted(window for part in parts for window in part) == sorted(windows)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


def test_many_small_inputs_are_dealt_out() -> None:
    windows = list(split((10, 10), 32))
    owners = [number for turn in range(6) for number in range(3) if Shard(number, 3).of(windows, turn)]
    assert sorted(owners) == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"JOB_COMPLETION_INDEX": "2"}, 2),
        ({"AWS_BATCH_JOB_ARRAY_INDEX": "0"}, 0),
        ({"SLURM_ARRAY_TASK_ID": "3"}, 3),
        ({"SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_TASK_MIN": "1"}, 0),
    ],
)
def test_numbers_of_schedulers(environment: dict[str, str], expected: int) -> None:
    assert Shard.parse("auto/4", environment) == Shard(expected, 4)


@pytest.mark.parametrize("text", ["3/3", "7/3", "0/0", "-1/3", "1", "a/3", "1/3/5", "1.5/3", "", "²/3", "0/999999999"])
def test_what_is_no_shard(text: str) -> None:
    with pytest.raises(UsageError, match="--shard"):
        Shard.parse(text, {})


@pytest.mark.parametrize(
    "environment", [{}, {"JOB_COMPLETION_INDEX": "x"}, {"SLURM_ARRAY_TASK_ID": "4"}, {"JOB_COMPLETION_INDEX": ""}]
)
def test_no_number_from_the_scheduler(environment: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="--shard auto"):
        Shard.parse("auto/4", environment)
