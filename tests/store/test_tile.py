"""Tiles: what was written is what is read, equal content is equal bytes, and damage is found."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cropstar.errors import ArtifactError
from cropstar.geo.windows import Window, split
from cropstar.store.classes import ClassTable
from cropstar.store.reader import TileReader
from cropstar.store.tile import CHECKSUMS, PATCH, SENSORS_FORMAT, ParcelTable, RasterTile, Tile, is_whole, write_tile
from tests.examples import RECIPE, a_fingerprint, a_patch_tile, a_raster_tile, a_series_tile


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiles")


@pytest.fixture
def tile(tmp_path: Path) -> Path:
    path = tmp_path / "tile.h5"
    write_tile(path, a_raster_tile())
    return path


def same_table(one: ParcelTable, two: ParcelTable) -> bool:
    numbers, labels = np.array_equal(one.numbers, two.numbers), np.array_equal(one.labels, two.labels)
    return numbers and labels and one.keys == two.keys


def places_of(path: Path, name: str) -> list[tuple[int, int]]:
    """Where the chunks of an array lie in the file: offset and size."""
    with h5py.File(path, "r") as handle:
        data = handle[name].id
        chunks = [data.get_chunk_info(index) for index in range(data.get_num_chunks())]
        return [(chunk.byte_offset, chunk.size) for chunk in chunks]


def flip(path: Path, position: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << bit
    path.write_bytes(content)


# --- round trips


@given(st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 100), st.integers(1, 100)), st.data())
@settings(max_examples=15)
def test_raster_tiles_of_any_shape(folder: Path, shape: tuple[int, int, int, int], data: st.DataObject) -> None:
    path = folder / "raster.h5"
    check_raster(path, a_raster_tile(shape), data.draw(st.integers(20, 60)))
    assert is_whole(path, RECIPE)


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (1, 3, 48, 48), (2, 1, 49, 47), (3, 2, 1, 97)])
def test_raster_tiles_of_odd_shapes(tmp_path: Path, shape: tuple[int, int, int, int]) -> None:
    path = tmp_path / "raster.h5"
    check_raster(path, a_raster_tile(shape), 48)
    assert is_whole(path, RECIPE)


def check_raster(path: Path, tile: RasterTile, size: int) -> None:
    write_tile(path, tile)
    reader = TileReader(path)
    assert (reader.layout, reader.scene, reader.grid) == ("raster", tile.scene, tile.grid)
    assert (reader.fingerprint, reader.provenance) == (tile.fingerprint, tile.provenance)
    assert np.array_equal(reader.days, tile.days)
    assert np.array_equal(reader.whole_mask(), tile.valid)
    assert np.array_equal(reader.labels(), tile.labels)
    assert np.array_equal(reader.parcels(), tile.parcels)
    assert same_table(reader.table, tile.table)
    for window in split(tile.grid.shape, size):
        rows, columns = window.slices
        values, valid = reader.values(window), reader.valid(window)
        assert values.dtype == np.uint16
        assert valid.dtype == bool
        assert np.array_equal(values, tile.values[:, :, rows, columns])
        assert np.array_equal(valid, tile.valid[:, rows, columns])
        assert np.array_equal(reader.labels(window), tile.labels[rows, columns])
        assert np.array_equal(reader.parcels(window), tile.parcels[rows, columns])
    reader.close()


@given(st.lists(st.integers(1, 9), max_size=8), st.integers(1, 4))
@settings(max_examples=15)
def test_series_tiles_of_ragged_lengths(folder: Path, lengths: list[int], bands: int) -> None:
    path, tile = folder / "series.h5", a_series_tile(lengths, bands)
    write_tile(path, tile)
    assert is_whole(path, RECIPE)
    reader = TileReader(path)
    assert reader.layout == "series"
    assert len(reader.starts) == len(lengths) + 1
    assert same_table(reader.table, tile.table)
    for index, length in enumerate(lengths):
        values, valid, days = reader.sample(index)
        rows = slice(sum(lengths[:index]), sum(lengths[: index + 1]))
        assert (values.shape, valid.shape, days.shape) == ((length, bands), (length,), (length,))
        assert np.array_equal(values, tile.values[rows])
        assert np.array_equal(valid, tile.valid[rows])
        assert np.array_equal(days, tile.days[rows])
    reader.close()


def test_a_series_tile_without_samples(tmp_path: Path) -> None:
    path = tmp_path / "empty.h5"
    write_tile(path, a_series_tile([]))
    reader = TileReader(path)
    assert reader.starts.tolist() == [0]
    assert reader.table.keys == []
    reader.close()
    assert is_whole(path, RECIPE)


def test_a_tile_without_parcels(tmp_path: Path) -> None:
    path = tmp_path / "bare.h5"
    write_tile(path, a_raster_tile(parcels=np.zeros((20, 30), dtype=np.int32)))
    reader = TileReader(path)
    assert reader.table.numbers.size == 0
    assert (reader.labels() == -1).all()
    reader.close()


def test_names_may_be_long_and_foreign(tmp_path: Path) -> None:
    classes = ClassTable.from_names([f"Ñandú-ährige Nutzpflanze ({number})" * 4 for number in range(255)])
    keys = ["", "ö" * 300, "1"]
    table = ParcelTable(np.arange(1, 4, dtype=np.int32), keys, np.zeros(3, dtype=np.int16))
    path = tmp_path / "tile.h5"
    write_tile(path, replace(a_raster_tile(), fingerprint=a_fingerprint(classes=classes), table=table))
    reader = TileReader(path)
    assert reader.fingerprint.classes == classes
    assert reader.table.keys == keys
    reader.close()


@pytest.mark.parametrize("tile", [a_raster_tile(), a_series_tile([3, 1, 5])], ids=["raster", "series"])
def test_equal_tiles_are_equal_bytes(tmp_path: Path, tile: Tile) -> None:
    write_tile(tmp_path / "one.h5", tile)
    write_tile(tmp_path / "two.h5", tile)
    assert (tmp_path / "one.h5").read_bytes() == (tmp_path / "two.h5").read_bytes()


def test_a_patch_is_one_chunk(tmp_path: Path) -> None:
    path = tmp_path / "tile.h5"
    write_tile(path, a_raster_tile((3, 2, 100, 60)))
    assert len(places_of(path, "values")) == 3 * 2
    with h5py.File(path, "r") as handle:
        assert handle["values"].chunks == (3, 2, PATCH, PATCH)


def test_a_failed_write_keeps_the_tile(tile: Path) -> None:
    before = tile.read_bytes()
    with pytest.raises(TypeError):
        write_tile(tile, replace(a_raster_tile(), provenance={"file": object()}))
    assert tile.read_bytes() == before
    assert list(tile.parent.iterdir()) == [tile]


# --- damage


def test_a_whole_tile_is_told_by_its_recipe(tile: Path) -> None:
    assert is_whole(tile, RECIPE)
    assert not is_whole(tile, "another")
    assert not is_whole(tile.with_name("absent.h5"), RECIPE)


ARRAYS = ["values", "valid", "labels", "parcels", "days", "table/numbers", "table/labels", "table/keys"]


@pytest.mark.parametrize("name", ARRAYS)
def test_one_flipped_bit_in_an_array_is_found(tile: Path, name: str) -> None:
    whole = tile.read_bytes()
    for start, size in places_of(tile, name):
        for position in (start + size // 2, start + size - 1):
            tile.write_bytes(whole)
            flip(tile, position)
            assert not is_whole(tile, RECIPE)


def test_a_chunk_is_not_taken_for_whole_because_another_is(tmp_path: Path) -> None:
    path = tmp_path / "tile.h5"
    write_tile(path, a_raster_tile((2, 1, 2 * PATCH, PATCH)))
    (start, _), (other, size) = places_of(path, "values")
    assert start != other
    flip(path, other + size // 2)
    reader = TileReader(path)
    reader.values(Window(0, 0, PATCH, PATCH))
    with pytest.raises(ArtifactError, match="values do not match their checksum"):
        reader.values(Window(PATCH, 0, PATCH, PATCH))


def everything(reader: TileReader) -> list[object]:
    """All that a reader gives, as what can be compared."""
    arrays = [reader.days, reader.table.numbers, reader.table.labels]
    if reader.layout == "series":
        arrays += [reader.starts, *reader.series, *([] if reader.date_labels is None else [reader.date_labels])]
    elif reader.layout == "patches":
        arrays += [reader.lengths, reader.transforms, np.array(reader.names)]
    else:
        height, width = reader.shape
        window = Window(0, 0, height, width)
        arrays += [reader.values(window), reader.valid(window), reader.labels(), reader.parcels()]
    grid = reader.grid if reader.layout == "raster" else None
    return [
        reader.scene,
        reader.fingerprint,
        reader.provenance,
        grid,
        reader.table.keys,
        *(np.asarray(a).tobytes() for a in arrays),
    ]


@pytest.mark.parametrize("tile", [a_raster_tile((2, 1, 6, 5)), a_series_tile([3, 1, 4], 2)], ids=["raster", "series"])
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_flipped_bit_is_never_read_as_data(folder: Path, tile: Tile, data: st.DataObject) -> None:
    """And nothing hangs or fails in a way of its own: HDF5 would search a damaged heap for ever."""
    path = folder / "flipped.h5"
    write_tile(path, tile)
    reader = TileReader(path)
    before = everything(reader)
    reader.close()
    flip(path, data.draw(st.integers(0, path.stat().st_size - 1)), data.draw(st.integers(0, 7)))
    try:
        reader = TileReader(path)
        after = everything(reader)
        reader.close()
    except ArtifactError:
        assert not is_whole(path, RECIPE)
        return
    assert after == before


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_cut_tile_is_found(tile: Path, share: float) -> None:
    content = tile.read_bytes()
    tile.write_bytes(content[: int(len(content) * share)])
    assert not is_whole(tile, RECIPE)
    with pytest.raises(ArtifactError, match="a tile cannot be read") as caught:
        TileReader(tile).values(Window(0, 0, 20, 30))
    assert "run the ingest again" in str(caught.value)


def test_what_is_no_tile(tmp_path: Path) -> None:
    text, other = tmp_path / "text.h5", tmp_path / "other.h5"
    text.write_text("no tile")
    with h5py.File(other, "w") as handle:
        handle["values"] = [1, 2, 3]
    for path in (text, other, tmp_path / "absent.h5"):
        assert not is_whole(path, RECIPE)
        with pytest.raises(ArtifactError, match="a tile cannot be read"):
            TileReader(path)


def test_a_tile_of_a_newer_format(tile: Path) -> None:
    newer = shutil.copy(tile, tile.with_name("newer.h5"))
    with h5py.File(newer, "a") as handle:
        handle.attrs["format"] = SENSORS_FORMAT + 1
    with pytest.raises(ArtifactError, match="a tile is of a newer format") as caught:
        TileReader(Path(newer))
    assert "update cropstar" in str(caught.value)


def test_an_array_that_is_gone(tile: Path) -> None:
    with h5py.File(tile, "a") as handle:
        del handle["labels"]
    with pytest.raises(ArtifactError, match="labels"):
        TileReader(tile)
    assert not is_whole(tile, RECIPE)


def test_parcels_are_selected_with_their_names() -> None:
    whole = ParcelTable(np.array([1, 2, 3], dtype=np.int32), ["a", "b", "c"], np.array([5, 6, 7], dtype=np.int16))
    table = whole.select(np.array([0, 3, 1], dtype=np.int32))
    assert (table.numbers.tolist(), table.keys, table.labels.tolist()) == ([1, 3], ["a", "c"], [5, 7])
    assert (table.groups, table.fields) == (None, None)
    table = replace(whole, fields=["x", "x", "y"]).select(np.array([2, 3], dtype=np.int32))
    assert (table.keys, table.fields) == (["b", "c"], ["x", "y"])


# --- files that lead elsewhere


@pytest.mark.parametrize("way", ["external link", "soft link", "external storage", "virtual data set", "pipe"])
def test_a_tile_that_leads_elsewhere_is_refused(tile: Path, tmp_path: Path, way: str) -> None:
    """Each of them would read another file of the user, or wait for ever."""
    whole = shutil.copy(tile, tmp_path / "other.h5")
    if way == "pipe":
        tile.unlink()
        os.mkfifo(tile)
    else:
        with h5py.File(tile, "r+") as handle:
            shape, kind = handle["labels"].shape, handle["labels"].dtype
            del handle["labels"]
            if way == "external link":
                handle["labels"] = h5py.ExternalLink(str(whole), "labels")
            elif way == "soft link":
                handle["labels"] = h5py.SoftLink("/parcels")
            elif way == "external storage":
                raw = [(str(tmp_path / "raw"), 0, h5py.h5f.UNLIMITED)]
                handle.create_dataset("labels", shape, kind, external=raw)
            else:
                layout = h5py.VirtualLayout(shape, kind)
                layout[:] = h5py.VirtualSource(str(whole), "labels", shape)
                handle.create_virtual_dataset("labels", layout)
    assert not is_whole(tile, RECIPE)
    with pytest.raises(ArtifactError, match="a tile cannot be read"):
        TileReader(tile)


# --- arrays that make no sense: a stranger's tile has checksums that fit, or none


@pytest.mark.parametrize(
    ("tile", "name", "content"),
    [
        (a_series_tile([3, 1, 4]), "starts", np.array([0, 3, 4, 1000])),
        (a_series_tile([3, 1, 4]), "starts", np.array([-5, 3, 4, 8])),
        (a_series_tile([3, 1, 4]), "starts", np.array([0, 4, 3, 8])),
        (a_series_tile([3, 1, 4]), "starts", np.array([0, 8])),
        (a_series_tile([3, 1, 4]), "starts", np.zeros(0, dtype=np.int64)),
        (a_series_tile([3, 1, 4]), "days", np.full(8, -(2**31), dtype=np.int32)),
        (a_series_tile([3, 1, 4]), "valid", np.full(8, 7, dtype=np.uint8)),
        (a_series_tile([3, 1, 4]), "values", np.full((8, 2), np.nan)),
        (a_series_tile([3, 1, 4]), "values", np.full((8, 2), np.inf, dtype=np.float32)),
        (a_series_tile([3, 1, 4]), "date_labels", np.full(8, 500, dtype=np.int16)),
        (a_series_tile([3, 1, 4]), "date_labels", np.zeros(3, dtype=np.int16)),
        (a_series_tile([3, 1, 4]), "table/labels", np.full(3, 500, dtype=np.int16)),
        (a_series_tile([3, 1, 4]), "table/labels", np.full(3, -7, dtype=np.int16)),
        (a_series_tile([3, 1, 4]), "table/numbers", np.array([1, 1, 2], dtype=np.int32)),
        (a_series_tile([3, 1, 4]), "table/numbers", np.array([-1, 1, 2], dtype=np.int32)),
        (a_series_tile([3, 1, 4]), "table/keys", np.array([b"a", b"\xff", b"c"])),
        (a_series_tile([3, 1, 4]), "table/groups", np.arange(3)),
        (a_series_tile([3, 1, 4]), "table/fields", np.array([b"a"])),
        (a_patch_tile([2, 3]), "lengths", np.array([2, 1000], dtype=np.int32)),
        (a_patch_tile([2, 3]), "lengths", np.array([-1, 3], dtype=np.int32)),
        (a_patch_tile([2, 3]), "transforms", np.full((2, 6), np.nan)),
        (a_patch_tile([2, 3]), "names", np.array([b"a", b"\xff"])),
        (a_raster_tile((2, 1, 6, 5)), "labels", np.full((6, 5), 500, dtype=np.int16)),
        (a_raster_tile((2, 1, 6, 5)), "parcels", np.full((6, 5), -1, dtype=np.int32)),
    ],
)
def test_a_senseless_array_is_one_line(tmp_path: Path, tile: Tile, name: str, content: np.ndarray[Any, Any]) -> None:
    path = tmp_path / "tile.h5"
    write_tile(path, tile)
    with h5py.File(path, "r+") as handle:
        del handle[CHECKSUMS]
        if name in handle:
            del handle[name]
        handle[name] = content
    with pytest.raises(ArtifactError, match="a tile cannot be read") as caught:
        everything(TileReader(path))
    assert str(caught.value).count("cannot be read") == 1
