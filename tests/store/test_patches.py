"""Tiles of patches: every image is read as it was written, with its own dates, and damage is found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cropstar.errors import ArtifactError
from cropstar.geo.grid import Grid
from cropstar.geo.windows import Window
from cropstar.store.reader import Patch, TileReader
from cropstar.store.tile import is_whole, write_tile
from tests.examples import RECIPE, UTM, a_patch_tile, a_raster_tile, a_series_tile


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("patches")


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.sampled_from([2, 6, 50]), st.data())
@settings(max_examples=15)
def test_what_is_written_is_read(folder: Path, lengths: list[int], size: int, data: st.DataObject) -> None:
    path, tile = folder / "tile.h5", a_patch_tile(lengths, size)
    write_tile(path, tile)
    assert is_whole(path, RECIPE)
    top, left = (data.draw(st.integers(0, size - 1)) for _ in range(2))
    window = Window(top, left, data.draw(st.integers(1, size - top)), data.draw(st.integers(1, size - left)))
    reader = TileReader(path)
    assert reader.length == max(lengths)
    assert len(reader.images) == len(lengths)
    dates = {int(day) for row, length in zip(tile.days, lengths, strict=True) for day in row[:length]}
    assert reader.observed_days.tolist() == sorted(dates)
    for place, (image, length) in enumerate(zip(reader.images, lengths, strict=True)):
        rows, columns = window.slices
        assert np.array_equal(image.days, tile.days[place, :length])
        assert np.array_equal(image.values(window), tile.values[place, :length, :, rows, columns])
        assert np.array_equal(image.valid(window), tile.valid[place, :length, rows, columns])
        assert np.array_equal(image.labels(), tile.labels[place])
        assert np.array_equal(image.parcels(window), tile.parcels[place, rows, columns])
        assert image.table.numbers.tolist() == np.unique(tile.parcels[place]).tolist()
        assert image.table.groups == [str(place)] * 4
        assert isinstance(image, Patch)
        assert image.name == f"image {place}"
    reader.close()


def test_images_know_where_they_lie(tmp_path: Path) -> None:
    transforms = np.array([[10.0, 0, 500, 0, -10, 900], [10.0, 0, 740, 0, -10, 900]])
    write_tile(tmp_path / "tile.h5", replace(a_patch_tile([2, 3]), crs=UTM, transforms=transforms))
    reader = TileReader(tmp_path / "tile.h5")
    assert [image.grid for image in reader.images] == [
        Grid(UTM, (10.0, 0.0, 500.0, 0.0, -10.0, 900.0), 6, 6),
        Grid(UTM, (10.0, 0.0, 740.0, 0.0, -10.0, 900.0), 6, 6),
    ]
    reader.close()


def test_a_collection_that_lies_nowhere(tmp_path: Path) -> None:
    write_tile(tmp_path / "tile.h5", a_patch_tile([2]))
    reader = TileReader(tmp_path / "tile.h5")
    assert reader.images[0].grid.crs == ""
    reader.close()


def test_other_layouts_have_one_image_or_none(tmp_path: Path) -> None:
    write_tile(tmp_path / "raster.h5", a_raster_tile())
    write_tile(tmp_path / "series.h5", a_series_tile([2, 3]))
    raster, series = TileReader(tmp_path / "raster.h5"), TileReader(tmp_path / "series.h5")
    assert list(raster.images) == [raster]
    assert list(series.images) == []
    raster.close()
    series.close()


def test_an_image_is_a_chunk(tmp_path: Path) -> None:
    write_tile(tmp_path / "tile.h5", a_patch_tile([4, 4, 4]))
    with h5py.File(tmp_path / "tile.h5", "r") as handle:
        assert handle["values"].chunks == (1, 4, 2, 6, 6)


@pytest.mark.parametrize("name", ["lengths", "names", "transforms", "table/groups"])
def test_changed_tables_are_noticed(tmp_path: Path, name: str) -> None:
    path = tmp_path / "tile.h5"
    write_tile(path, a_patch_tile([2, 3]))
    with h5py.File(path, "r+") as handle:
        array = handle[name][()]
        array[0] = b"x" if array.dtype.kind == "S" else array[0] + 1
        handle[name][...] = array
    assert not is_whole(path, RECIPE)


def test_a_tile_without_its_names_is_unreadable_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "tile.h5"
    write_tile(path, a_patch_tile([2, 3]))
    with h5py.File(path, "r+") as handle:
        del handle["names"]
    assert not is_whole(path, RECIPE)
    with pytest.raises(ArtifactError, match="a tile cannot be read"):
        TileReader(path)


def test_labels_of_dates(tmp_path: Path) -> None:
    tile = a_series_tile([2, 3])
    dated = replace(tile, date_labels=np.array([0, 1, 1, 0, 1], dtype=np.int16))
    write_tile(tmp_path / "dated.h5", dated)
    write_tile(tmp_path / "plain.h5", tile)
    with_dates, without = TileReader(tmp_path / "dated.h5"), TileReader(tmp_path / "plain.h5")
    assert with_dates.date_labels is not None
    assert with_dates.date_labels.tolist() == [0, 1, 1, 0, 1]
    assert without.date_labels is None
    assert without.table.groups is None
    with_dates.close()
    without.close()
