"""What an update refuses, and that the state stays as it was whatever goes wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import rasterio
import torch

from cropstar.errors import ArtifactError, CropstarError, InputError, MismatchError, UsageError, from_os_error
from cropstar.prediction.job import predict
from cropstar.prediction.request import MapRequest
from cropstar.prediction.season import SeasonReader
from tests.prediction.making import untrained
from tests.prediction.seasons import cut, pixels, take_in, whole_state
from tests.prediction.test_raster_files import largest_file

CPU = torch.device("cpu")
PLAIN: dict[str, Any] = {"picture": False}


@pytest.fixture(scope="module")
def finished(small_scene: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder: tile.tif with four dates, its model, map and state."""
    folder = tmp_path_factory.mktemp("finished")
    tile = cut(small_scene / "tile.tif", folder / "tile.tif", slice(0, 4), height=50, width=40)
    model = untrained(folder / "model", small_scene / "tile.tif")
    predict(tile, folder / "map.tif", MapRequest(model=model, device="cpu", **PLAIN, state=folder / "season.h5"))
    return folder


@pytest.fixture
def season(finished: Path, tmp_path: Path) -> Path:
    """The state in a folder of its own; it still knows the map in the folder where it was made."""
    return Path(shutil.copy(finished / "season.h5", tmp_path / "season.h5"))


@pytest.fixture(scope="module")
def new(small_scene: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("new")
    return cut(small_scene / "tile.tif", folder / "new.tif", slice(4, 5), height=50, width=40)


def assert_untouched(season: Path, finished: Path) -> None:
    assert season.read_bytes() == (finished / "season.h5").read_bytes()
    assert not list(season.parent.glob(".*"))


@pytest.mark.parametrize(
    ("changes", "dates", "kind", "reason"),
    [
        ({"height": 48}, slice(4, 5), MismatchError, "not the grid of the state"),
        ({"crs": "EPSG:32633"}, slice(4, 5), MismatchError, "not the grid of the state"),
        ({"without": "B08"}, slice(4, 5), MismatchError, "B08"),
        ({}, slice(3, 4), MismatchError, "is not after"),
        ({}, slice(3, 5), MismatchError, "is not after"),
        ({}, slice(0, 1), MismatchError, "is not after"),
    ],
    ids=["shape", "crs", "bands", "same date", "one date too many", "older"],
)
def test_images_that_do_not_go_on(
    changes: dict[str, Any],
    dates: slice,
    kind: type[CropstarError],
    reason: str,
    season: Path,
    finished: Path,
    small_scene: Path,
    tmp_path: Path,
) -> None:
    (tmp_path / "in").mkdir()
    image = cut(small_scene / "tile.tif", tmp_path / "in" / "new.tif", dates, **{"height": 50, "width": 40, **changes})
    with pytest.raises(kind) as caught:
        take_in(season, image, output=tmp_path / "map.tif")
    assert reason in str(caught.value)
    assert "new.tif" in str(caught.value)
    assert_untouched(season, finished)
    assert not (tmp_path / "map.tif").exists()


def test_a_truncated_image(season: Path, finished: Path, new: Path, tmp_path: Path) -> None:
    whole = new.read_bytes()
    (tmp_path / "new.tif").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError):
        take_in(season, tmp_path / "new.tif", output=tmp_path / "map.tif", **PLAIN)
    assert_untouched(season, finished)
    assert not list(tmp_path.glob("map*"))


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_truncated_state(share: float, season: Path, new: Path) -> None:
    whole = season.read_bytes()
    season.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ArtifactError, match="cannot be used"):
        take_in(season, new, output=season.with_name("map.tif"))


@pytest.mark.parametrize("name", ["state/0/0", "state/1/0", "valid_dates", "checks"])
def test_a_changed_byte_is_noticed(season: Path, new: Path, name: str) -> None:
    with h5py.File(season) as handle:
        place = handle[name].id.get_offset() + handle[name].nbytes // 2
    damaged = bytearray(season.read_bytes())
    damaged[place] ^= 4
    season.write_bytes(damaged)
    with pytest.raises(ArtifactError, match="cannot be used"):
        take_in(season, new, output=season.with_name("map.tif"), **PLAIN)
    assert season.read_bytes() == damaged


def test_another_kind_of_file(tmp_path: Path, new: Path) -> None:
    with h5py.File(tmp_path / "season.h5", "w") as handle:
        handle["values"] = np.zeros(3)
    with pytest.raises(ArtifactError, match="cannot be used"):
        take_in(tmp_path / "season.h5", new)
    with pytest.raises(InputError, match="no such state"):
        take_in(tmp_path / "nowhere.h5", new)


@pytest.mark.parametrize("largest", [300, 5_000, 60_000])
def test_a_full_disk_keeps_the_old_state(largest: int, season: Path, finished: Path, new: Path) -> None:
    """HDF5 itself may crash there."""
    assert season.stat().st_size > largest
    with largest_file(largest), pytest.raises((CropstarError, OSError)) as caught:
        take_in(season, new, output=season.with_name("map.tif"), **PLAIN)
    failure = caught.value
    assert (from_os_error(failure) if isinstance(failure, OSError) else failure).exit_code == 6  # type: ignore[attr-defined]
    assert_untouched(season, finished)
    assert not season.with_name("map.tif").exists()
    take_in(season, new, output=season.with_name("map.tif"), **PLAIN)
    assert len(whole_state(season)[2]) == 5


def test_a_map_that_exists(season: Path, finished: Path, new: Path, tmp_path: Path) -> None:
    other = Path(shutil.copy(finished / "map.tif", tmp_path / "other.tif"))
    with pytest.raises(UsageError, match="the output exists"):
        take_in(season, new, output=other, **PLAIN)
    assert_untouched(season, finished)
    take_in(season, new, output=other, **PLAIN, overwrite=True)
    with rasterio.open(other) as dataset:
        assert len(dataset.tags()["CROPSTAR_DATES"].split()) == 5
    reader = SeasonReader(season)
    reader.close()
    assert reader.card.map == other


def test_nothing_is_written_over_what_is_read(season: Path, finished: Path, new: Path) -> None:
    before = new.read_bytes()
    with pytest.raises(UsageError, match="the output is the input"):
        take_in(season, new, output=new, overwrite=True)
    options = MapRequest(model=finished / "model", device="cpu", state=finished / "tile.tif", overwrite=True)
    with pytest.raises(UsageError, match="the output is the input"):
        predict(finished / "tile.tif", season.with_name("map.tif"), options)
    with pytest.raises(UsageError, match="map and state have one name"):
        predict(new, season.with_name("m.tif"), options.replace(state=season.with_name("m.tif")))
    assert new.read_bytes() == before
    assert_untouched(season, finished)


def test_a_card_that_lies(season: Path, new: Path) -> None:
    """Arrays of another shape than is said, dates in disorder."""
    with h5py.File(season) as handle:
        text = handle["card"][()].tobytes().decode()
    said = json.loads(text)
    lies: list[dict[str, Any]] = [{"layout": [[5], [7]]}, {"dates": said["dates"][::-1]}, {"dates": []}]
    for change in lies:
        with h5py.File(season, "r+") as handle:
            del handle["card"]
            handle["card"] = np.frombuffer(json.dumps({**said, **change}).encode(), dtype=np.uint8)
        with pytest.raises(ArtifactError, match="cannot be used"):
            take_in(season, new, output=season.with_name("map.tif"))


def test_the_map_of_the_season_is_replaced_without_asking_and_no_other(
    finished: Path, new: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "copy"
    folder.mkdir()
    options = MapRequest(model=finished / "model", device="cpu", **PLAIN, state=folder / "season.h5")
    predict(finished / "tile.tif", folder / "map.tif", options)
    old = (folder / "season.h5").read_bytes()
    take_in(folder / "season.h5", new, **PLAIN)
    made = pixels(folder / "map.tif")
    # As if the process had been killed before the state got its name: the same command makes the same map.
    (folder / "season.h5").write_bytes(old)
    take_in(folder / "season.h5", new, **PLAIN)
    assert np.array_equal(pixels(folder / "map.tif"), made)
    # Made of other dates: not ours.
    (folder / "season.h5").write_bytes(old)
    with rasterio.open(folder / "map.tif", "r+", IGNORE_COG_LAYOUT_BREAK="YES") as dataset:
        dataset.update_tags(CROPSTAR_DATES="2001-01-01")
    with pytest.raises(UsageError, match="the output exists"):
        take_in(folder / "season.h5", new, **PLAIN)


def test_another_model(season: Path, finished: Path, new: Path, small_scene: Path, tmp_path: Path) -> None:
    other = untrained(tmp_path / "other", small_scene / "tile.tif", seed=1)
    with pytest.raises(MismatchError, match="not the model of the state"):
        take_in(season, new, model=other, output=tmp_path / "map.tif")
    moved = Path(shutil.copy(finished / "model", tmp_path / "moved"))
    take_in(season, new, model=moved, output=tmp_path / "map.tif", **PLAIN)
    moved.unlink()
    with pytest.raises(ArtifactError, match="give --model"):
        take_in(season, new)
