"""The scratch file between the band files and the tiles: every pixel as the files hold it, cells of whole tiles."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cropstar.geo.windows import Window
from cropstar.sources.decoding import Scratch, around, cell_size, scratch_file
from cropstar.sources.sentinel2 import open_sentinel2
from tests.sources.examples.granules import SIDE, write_granule


@pytest.fixture(scope="module")
def granule(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_granule(tmp_path_factory.mktemp("decoding") / "granule")


def test_a_series_survives_pickling_without_its_files(granule: Path) -> None:
    (series,) = open_sentinel2(granule)
    expected = series.read(Window(7, 9, 30, 50))
    copy = pickle.loads(pickle.dumps(series))  # open files cannot be pickled
    series.close()
    found = copy.read(Window(7, 9, 30, 50))
    assert np.array_equal(found.values, expected.values)
    assert np.array_equal(found.valid, expected.valid)
    copy.close()


@given(st.data())
def test_what_is_read_from_scratch_is_what_the_files_hold(granule: Path, data: st.DataObject) -> None:
    def window(within: Window) -> Window:
        top = data.draw(st.integers(within.top, within.bottom - 1))
        left = data.draw(st.integers(within.left, within.right - 1))
        return Window(
            top,
            left,
            data.draw(st.integers(1, within.bottom - top)),
            data.draw(st.integers(1, within.right - left)),
        )

    (series,) = open_sentinel2(granule)
    outer = window(Window(0, 0, SIDE, SIDE))
    inner = window(outer)
    expected = series.read(inner)
    with scratch_file(granule.parent / "scratch", series, outer) as scratch:
        chains = series.decoding_chains()
        for chain in chains:
            if series.decode(chain[0], scratch):
                for layer in chain[1:]:
                    series.decode(layer, scratch)
        series.read_from(scratch)
        series.close()
        away = granule.rename(granule.with_name("away"))
        try:  # only the scratch file is left to read from
            found = series.read(inner)
        finally:
            away.rename(granule)
    series.close()
    assert np.array_equal(found.values, expected.values)
    assert np.array_equal(found.valid, expected.valid)
    assert not list((granule.parent / "scratch").iterdir())


def test_beyond_the_scratch_the_files_are_read(granule: Path, tmp_path: Path) -> None:
    (series,) = open_sentinel2(granule)
    whole = Window(0, 0, SIDE, SIDE)
    expected = series.read(whole)
    with scratch_file(tmp_path, series, Window(10, 10, 20, 20)) as scratch:
        series.read_from(scratch)  # nothing was decoded: it must not be asked
        assert np.array_equal(series.read(whole).values, expected.values)
    series.close()


@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(16, 300), st.integers(0, 10**9))
def test_cells_are_whole_tiles_within_the_limit(height: int, width: int, tile: int, limit: int) -> None:
    class Plain:
        def decoded_places(self, window: Window) -> tuple[Window, ...]:
            return (window, window)

    size = cell_size(Plain(), (height, width), tile, limit)  # type: ignore[arg-type]
    assert size % tile == 0
    assert size == tile or 4 * min(size, height) * min(size, width) <= limit


def test_all_around_windows() -> None:
    assert around([Window(5, 9, 2, 2), Window(1, 20, 3, 4)]) == Window(1, 9, 6, 15)


def test_layers_lie_one_after_the_other(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path / "s", Window(0, 0, 9, 9), (Window(2, 3, 4, 5), Window(0, 0, 0, 5), Window(1, 1, 3, 2)))
    assert scratch.size == 2 * (20 + 0 + 6)
    scratch.path.write_bytes(bytes(scratch.size))
    first = np.arange(20, dtype=np.uint16).reshape(4, 5)
    scratch.write(0, 0, first[:3])
    scratch.write(0, 3, first[3:])
    scratch.write(2, 0, np.full((3, 2), 9, dtype=np.uint8))
    assert np.asarray(scratch.read(0, Window(3, 4, 2, 3))).tolist() == first[1:3, 1:4].tolist()
    assert np.asarray(scratch.read(2, Window(1, 1, 3, 2))).tolist() == [[9, 9]] * 3
    assert scratch.read(0, Window(1, 3, 2, 2)) is None
    assert scratch.read(0, Window(2, 3, 5, 2)) is None
