"""Contact sheets: every image in its place, chosen dates, curves of all dates, blank paper between images."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from cropstar.geo.windows import Window
from cropstar.reports.contents import open_tile_set
from cropstar.reports.overview import choose_days, contact_mosaic, leave_blank, read_overview
from cropstar.reports.sheet import MASKED_GROUND, draw_sheet
from cropstar.store.classes import UNLABELLED
from tests.examples import UTM
from tests.reports.collections import CLASSES, START, a_store, an_image


def draw(path: Path, store: Path) -> NDArray[np.uint8]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with open_tile_set(store, "store") as tile_set:
            draw_sheet(path, tile_set)
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def test_images_lie_side_by_side(tmp_path: Path) -> None:
    images = [an_image(index) for index in range(10)]
    with open_tile_set(a_store(tmp_path, images), "store") as tile_set:
        overview = read_overview(tile_set.tiles)
        mosaic = contact_mosaic([tile.reader for tile in tile_set.tiles])
    contact = overview.contact
    assert contact is not None
    assert (contact.images, contact.total, overview.area) == (10, 10, 1440)
    assert contact.covered.sum() == overview.area
    assert overview.labels.shape == overview.grid.shape == contact.covered.shape
    for image, (row, column) in zip(images, mosaic.corners, strict=True):
        place = (slice(row, row + 12), slice(column, column + 12))
        assert np.array_equal(overview.labels[place], image.labels)
        for date in range(5):
            assert np.array_equal(overview.valid[(date, *place)], image.valid[date])
            assert np.array_equal(overview.picture[(date, slice(None), *place)], image.values[date][[2, 1, 0]])
    assert (overview.labels[~contact.covered] == UNLABELLED).all()
    assert overview.clear == pytest.approx(np.mean([image.valid for image in images], axis=(0, 2, 3)))


def test_of_many_images_some_are_shown_evenly_spread(tmp_path: Path) -> None:
    images = [an_image(index, side=2, dates=1) for index in range(200)]
    with open_tile_set(a_store(tmp_path, images, size=50), "store") as tile_set:
        readers = [tile.reader for tile in tile_set.tiles]
        names = [int(image.name) for image in contact_mosaic(readers).images]  # type: ignore[attr-defined]
        contact = read_overview(tile_set.tiles).contact
    assert contact is not None
    assert (contact.images, contact.total) == (64, 200)
    assert (names[0], names[-1]) == (0, 199)
    assert {int(step) for step in np.diff(names)} <= {3, 4}


def test_dates_that_an_image_lacks_are_blank_and_not_clouded(tmp_path: Path) -> None:
    images = [an_image(index, dates=2, shift=10) for index in range(3)]  # days 0 10, 10 20, 20 30
    with open_tile_set(a_store(tmp_path, images), "store") as tile_set:
        overview = read_overview(tile_set.tiles)
    assert overview.contact is not None
    assert overview.days.tolist() == [START, START + 10, START + 20, START + 30]
    assert [int(dated.sum()) for dated in overview.contact.dated] == [144, 288, 288, 144]
    expected = [images[0].valid[0].mean(), np.mean([images[0].valid[1], images[1].valid[0]])]
    assert overview.clear[:2] == pytest.approx(expected)
    assert not overview.valid[~overview.contact.dated].any()


def test_curves_are_of_all_dates_though_a_dozen_are_pictured(tmp_path: Path) -> None:
    images = [an_image(index, dates=30) for index in range(4)]
    with open_tile_set(a_store(tmp_path, images), "store") as tile_set:
        overview = read_overview(tile_set.tiles)
    assert (len(overview.days), overview.picture.shape[0]) == (12, 12)
    assert len(overview.curves.positions) == 30
    for number in range(len(CLASSES)):
        for date in (0, 17, 29):
            chosen = [
                image.values[date][:, (image.labels == number) & image.valid[date]].astype(float) for image in images
            ]
            red, infrared = np.concatenate([part[2] for part in chosen]), np.concatenate([part[3] for part in chosen])
            expected = ((infrared - red) / (infrared + red)).mean()
            assert overview.curves.mean(0, number)[date] == pytest.approx(expected)


def test_pictured_dates_are_the_clearest_of_each_stretch(tmp_path: Path) -> None:
    images = [an_image(index, dates=36) for index in range(4)]
    clear = np.sum([image.valid.sum(axis=(1, 2)) for image in images], axis=0)
    with open_tile_set(a_store(tmp_path, images), "store") as tile_set:
        mosaic = contact_mosaic([tile.reader for tile in tile_set.tiles])
        chosen = choose_days(mosaic, images[0].days)
    expected = [int(images[0].days[3 * place + clear[3 * place : 3 * place + 3].argmax()]) for place in range(12)]
    assert chosen.tolist() == expected


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_blank_is_exactly_what_is_not_shown(rows: int, columns: int, factor: int, seed: int) -> None:
    shown = np.random.default_rng(seed).random((rows, columns)) < 0.5
    picture = np.full((rows * factor, columns * factor, 3), 7, dtype=np.uint8)
    blank = leave_blank(picture, shown)
    assert np.array_equal(blank[..., 0] == 7, np.kron(shown, np.ones((factor, factor), dtype=bool)))
    assert set(np.unique(blank)) <= {7, 255}


@pytest.mark.parametrize(("number", "side", "dates", "crs"), [(1, 1, 1, ""), (10, 12, 5, UTM), (70, 4, 40, "")])
def test_any_collection_draws(number: int, side: int, dates: int, crs: str, tmp_path: Path) -> None:
    images = [an_image(index, side, dates, shift=index % 3) for index in range(number)]
    store = a_store(tmp_path / "store", images, size=20, crs=crs)
    pixels = draw(tmp_path / "sheet.png", store)
    assert pixels.shape[1] == 2540
    edge = np.concatenate([pixels[:20].ravel(), pixels[:, :20].ravel(), pixels[:, -20:].ravel()])
    assert (edge == 255).all()
    if number > 1:
        for entry in CLASSES:
            assert (pixels == entry.rgb).all(axis=-1).sum() > 100, entry.name
        ground = [int(MASKED_GROUND[place : place + 2], 16) for place in (1, 3, 5)]
        assert (pixels == ground).all(axis=-1).sum() > 1000


def test_images_of_a_tile_read_windows(tmp_path: Path) -> None:
    """What thinning relies on: blocks of an image larger than one block come together."""
    images = [an_image(index, side=130, dates=1) for index in range(2)]
    with open_tile_set(a_store(tmp_path, images), "store") as tile_set:
        overview = read_overview(tile_set.tiles, longest=2000)
        mosaic = contact_mosaic([tile.reader for tile in tile_set.tiles])
        whole = mosaic.images[1].values(Window(0, 0, 130, 130))
    row, column = mosaic.corners[1]
    assert np.array_equal(overview.picture[0, :, row : row + 130, column : column + 130], whole[0][[2, 1, 0]])
