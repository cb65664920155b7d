"""Decoded blocks on the disk: whatever is read in whatever order is what the files hold, and each is decoded once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cropstar.geo.windows import Window, split
from cropstar.prediction.request import MapInput
from cropstar.sources.decoding import Scratch, keep_decoded
from cropstar.sources.sentinel2 import Sentinel2Options
from cropstar.sources.sentinel2.series import Sentinel2Series, open_sentinel2
from cropstar.sources.stack import StackSeries
from tests.sources.examples.safe import HEIGHT, WIDTH, write_product

SIDE = 8
BLOCK = SIDE * SIDE * 2
BANDS = ("B02", "B05")


@pytest.fixture(scope="module")
def products(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two dates of 25 x 20 pixels, one band of which has pixels of 20 m."""
    folder = tmp_path_factory.mktemp("products")
    for seed, day in enumerate(("2023-05-01", "2023-06-10")):
        write_product(folder, day=day, seed=seed)
    return folder


@pytest.fixture(scope="module")
def plain(products: Path) -> Iterator[Sentinel2Series]:
    yield (series := opened(products))
    series.close()


def opened(products: Path) -> Sentinel2Series:
    (series,) = open_sentinel2(products, Sentinel2Options(bands=BANDS))
    return series


class Counting(Sentinel2Series):
    """Counts how often each pixel of a layer is decoded."""

    decoded: Counter[tuple[int, int, int]]

    def decode(self, number: int, scratch: Scratch) -> bool:
        place = scratch.places[number]
        self.decoded.update(
            (number, row, column) for row in range(place.top, place.bottom) for column in range(place.left, place.right)
        )
        return super().decode(number, scratch)


windows = st.builds(
    lambda top, left, height, width: Window(top, left, min(height, HEIGHT - top), min(width, WIDTH - left)),
    st.integers(0, HEIGHT - 1),
    st.integers(0, WIDTH - 1),
    st.integers(1, HEIGHT),
    st.integers(1, WIDTH),
)


@settings(max_examples=12)
@given(st.lists(windows, min_size=1, max_size=6), st.sampled_from([24, 30, 1000]))
def test_any_windows_in_any_order(
    products: Path, plain: Sentinel2Series, tmp_path_factory: pytest.TempPathFactory, some: list[Window], room: int
) -> None:
    folder = tmp_path_factory.mktemp("scratch")
    series = opened(products)
    keep_decoded(series, folder, room=room * BLOCK, in_memory=0, side=SIDE)
    for window in some:
        found, expected = series.read(window), plain.read(window)
        np.testing.assert_array_equal(found.values, expected.values)
        np.testing.assert_array_equal(found.valid, expected.valid)
    series.close()
    assert list(folder.iterdir()) == []  # the file has no name


def test_nothing_is_decoded_twice(products: Path, tmp_path: Path) -> None:
    series = opened(products)
    series.__class__ = Counting
    assert isinstance(series, Counting)
    series.decoded = Counter()
    keep_decoded(series, tmp_path, in_memory=0, side=SIDE)
    for window in split((HEIGHT, WIDTH), 5):
        series.read(window.expand(3, (HEIGHT, WIDTH)))
    series.close()
    assert set(series.decoded.values()) == {1}
    assert {layer for layer, _, _ in series.decoded} == set(range(6))  # two dates of two bands and their classes


def test_what_fits_the_memory_or_no_room_needs_no_file(products: Path, tmp_path: Path) -> None:
    for choice in ({}, {"in_memory": 0, "room": 23 * BLOCK}):
        series = opened(products)
        series.__class__ = Counting
        assert isinstance(series, Counting)
        series.decoded = Counter()
        keep_decoded(series, tmp_path, side=SIDE, **choice)
        series.read(Window(0, 0, HEIGHT, WIDTH))
        series.close()
        assert not series.decoded


def test_other_series_are_left_alone(small_scene: Path, tmp_path: Path) -> None:
    series = MapInput(small_scene / "tile.tif").open((), {}, {}, scratch=tmp_path / "scratch")
    assert isinstance(series, StackSeries)
    series.close()
    assert not (tmp_path / "scratch").exists()
