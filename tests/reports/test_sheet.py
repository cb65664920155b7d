"""The picture sheet: right colours, whatever the shape, the dates and the classes; exact curves; little memory."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from rasterio.crs import CRS

from cropstar.errors import UsageError
from cropstar.geo.calendar import Season
from cropstar.geo.grid import Grid
from cropstar.reports.contents import kind_of, open_tile_set
from cropstar.reports.overview import BINS, Curves, choose_colours, choose_quantities, read_overview, read_sample_curves
from cropstar.reports.sheet import (
    MASKED_GROUND,
    MASKED_LINES,
    arrange_panels,
    draw_sheet,
    paint_date,
    paint_labels,
    stretch,
)
from cropstar.store.classes import ClassTable
from cropstar.store.fingerprint import Fingerprint
from cropstar.store.store import Manifest, TileEntry, tile_path, write_manifest
from cropstar.store.tile import ParcelTable, RasterTile, SeriesTile, Tile, write_tile

UTM = CRS.from_epsg(32632).to_wkt()
BANDS = ("B02", "B03", "B04", "B08")
START = 19_500


def fingerprint(classes: int = 3, bands: tuple[str, ...] = BANDS) -> Fingerprint:
    names = [f"crop {number:02d}" for number in range(classes)]
    return Fingerprint(bands, 1e-4, 0.0, 10.0, Season(60, 200), ClassTable.from_names(names))


def raster_tile(
    shape: tuple[int, int], dates: int = 2, classes: int = 3, bands: tuple[str, ...] = BANDS, left: int = 0
) -> RasterTile:
    """Vertical stripes of classes, one parcel each, clouds on the left of the first date."""
    height, width = shape
    noise = np.random.default_rng(left)
    columns = np.arange(width) + left
    labels = np.broadcast_to((columns // 8 % (classes + 1) - 1).astype(np.int16), shape).copy()
    parcels = np.where(labels >= 0, columns // 8 + 1, 0).astype(np.int32)
    numbers = np.unique(parcels[parcels > 0])
    of = np.array([labels[parcels == number][0] for number in numbers], dtype=np.int16)
    valid = np.ones((dates, *shape), dtype=bool)
    valid[0, :, : width // 2] = False
    return RasterTile(
        scene="field",
        recipe="0" * 32,
        grid=Grid(UTM, (10.0, 0.0, 500_000.0 + 10 * left, 0.0, -10.0, 5_200_000.0), height, width),
        fingerprint=fingerprint(classes, bands),
        days=(START + 7 * np.arange(dates)).astype(np.int32),
        values=noise.integers(100, 5000, (dates, len(bands), *shape)).astype(np.uint16),
        valid=valid,
        labels=labels,
        parcels=parcels,
        table=ParcelTable(numbers.astype(np.int32), [str(number) for number in numbers], of),
    )


def series_tile(samples: int = 30, years: int = 2) -> SeriesTile:
    """Each sample has ten dates in its year; the second year's are a day late."""
    days = np.concatenate([START + 10 * np.arange(10) + (n % years) * 366 for n in range(samples)]).astype(np.int32)
    values = np.tile(np.array([400, 600, 1000, 3000], dtype=np.uint16), (len(days), 1))
    table = ParcelTable(
        np.arange(1, samples + 1, dtype=np.int32),
        [str(number) for number in range(samples)],
        (np.arange(samples) % 3).astype(np.int16),
    )
    starts = np.arange(samples + 1, dtype=np.int64) * 10
    season = fingerprint().with_season(Season(140, 100))
    return SeriesTile("table", "1" * 32, season, starts, days, values, np.ones(len(days), dtype=bool), table)


def write_store(folder: Path, *tiles: Tile) -> Path:
    entries = []
    for number, tile in enumerate(tiles):
        path = tile_path(folder, f"tile-{number}")
        write_tile(path, tile)
        entries.append(TileEntry(path.stem, tile.scene, tile.layout, path.stat().st_size, tile.recipe))
    write_manifest(folder, Manifest(tiles[0].fingerprint, tuple(entries), {tile.scene: {} for tile in tiles}))
    return folder


def draw(path: Path, store: Path) -> NDArray[np.uint8]:
    """Draw without a single warning and give back the pixels."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with open_tile_set(store, kind_of(store)) as tile_set:
            draw_sheet(path, tile_set)
    with Image.open(path) as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB"))


def count_colour(pixels: NDArray[np.uint8], colour: str) -> int:
    wanted = [int(colour[place : place + 2], 16) for place in (1, 3, 5)]
    return int((pixels == wanted).all(axis=-1).sum())


def test_the_sheet_of_the_small_store(small_store: Path, tmp_path: Path) -> None:
    pixels = draw(tmp_path / "sheet.png", small_store)
    with open_tile_set(small_store, "store") as tile_set:
        for entry in tile_set.fingerprint.classes:
            assert count_colour(pixels, entry.colour) > 100, entry.name
    assert count_colour(pixels, MASKED_GROUND) > 1000


def test_tiles_come_together_on_one_canvas(small_store: Path) -> None:
    with open_tile_set(small_store, "store") as tile_set:
        overview = read_overview(tile_set.tiles)
        assert overview.grid.shape == (96, 96)
        for tile in tile_set.tiles:
            grid = tile.reader.grid
            column = round((grid.bounds[0] - overview.grid.bounds[0]) / 10)
            row = round((overview.grid.bounds[3] - grid.bounds[3]) / 10)
            place = (slice(row, row + grid.height), slice(column, column + grid.width))
            assert np.array_equal(overview.labels[place], tile.reader.labels())
            assert np.array_equal(overview.valid[(slice(None), *place)], tile.reader.whole_mask())


@pytest.mark.parametrize("longest", [95, 40, 13, 7, 1])
def test_a_thinned_canvas_takes_every_so_manieth_pixel(longest: int, tmp_path: Path) -> None:
    whole = raster_tile((30, 120))
    tiles = [raster_tile((30, 50)), raster_tile((30, 70), left=50)]
    store = write_store(tmp_path, *tiles)
    step = -(-120 // longest)
    rows, columns = min(step, 30), step
    with open_tile_set(store, "store") as tile_set:
        overview = read_overview(tile_set.tiles, longest)
        assert np.array_equal(overview.labels, whole.labels[rows // 2 :: rows, columns // 2 :: columns])
        assert np.array_equal(overview.parcels, whole.parcels[rows // 2 :: rows, columns // 2 :: columns])
        assert max(overview.labels.shape) <= longest
        # What is counted is counted of every pixel, overview or not.
        assert overview.pixels.sum() == (whole.labels >= 0).sum()
        assert overview.clear == pytest.approx([0.5, 1.0])


def test_curves_are_those_of_all_valid_labelled_pixels(tmp_path: Path) -> None:
    tile = raster_tile((100, 120), dates=3)
    with open_tile_set(write_store(tmp_path, tile), "store") as tile_set:
        curves = read_overview(tile_set.tiles, 20).curves
    red, infrared = tile.values[:, 2].astype(float), tile.values[:, 3].astype(float)
    index = (infrared - red) / (infrared + red)
    for number in range(3):
        for date in range(3):
            chosen = index[date][(tile.labels == number) & tile.valid[date]]
            assert curves.mean(0, number)[date] == pytest.approx(chosen.mean())
            for share in (0.1, 0.9):
                expected = np.quantile(chosen, share)
                assert curves.percentile(0, number, share)[date] == pytest.approx(expected, abs=3 / BINS)


def test_a_date_without_observations_has_no_value() -> None:
    curves = Curves(fingerprint(), np.array([1, 2], dtype=np.int32))
    curves.add(0, np.array([[1], [1], [1000], [3000]]), np.array([1]))
    assert curves.present() == [1]
    assert curves.mean(0, 1).tolist() == pytest.approx([0.5, np.nan], nan_ok=True)
    assert np.isnan(curves.percentile(0, 1, 0.5)[1])
    curves.add(1, np.array([[0], [0], [0], [0]]), np.array([1]))  # no light at all: the index is not defined
    assert np.isnan(curves.mean(0, 1)[1])


def test_years_of_a_table_lie_on_one_season(tmp_path: Path) -> None:
    with open_tile_set(write_store(tmp_path, series_tile()), "store") as tile_set:
        curves, used, total = read_sample_curves(tile_set.tiles, tile_set.fingerprint)
    assert (used, total) == (30, 30)
    assert len(curves.positions) == 10
    assert curves.mean(0, 0) == pytest.approx([0.5] * 10)


def test_masked_pixels_are_hatched_and_never_shown(tmp_path: Path) -> None:
    with open_tile_set(write_store(tmp_path, raster_tile((40, 40))), "store") as tile_set:
        overview = read_overview(tile_set.tiles)
        picture = paint_date(overview, 0, stretch(overview), 80, 80)
        hatched = count_colour(picture[:, :40], MASKED_GROUND) + count_colour(picture[:, :40], MASKED_LINES)
        assert hatched == 80 * 40
        assert len(np.unique(picture[:, 40:].reshape(-1, 3), axis=0)) > 500
        labels = paint_labels(overview, tile_set.fingerprint.classes, 40, 40)
        over = paint_labels(overview, tile_set.fingerprint.classes, 40, 40, picture[::2, ::2])
    assert count_colour(labels, tile_set.fingerprint.classes[0].colour) == 6 * 40  # eight columns without the borders
    bare = overview.parcels == 0
    np.testing.assert_array_equal(over[~bare], labels[~bare])
    assert (over[bare] == over[bare][:, :1]).all(), "grey beside the parcels"
    assert len(np.unique(over[bare])) > 20, "the image is seen there"


@pytest.mark.parametrize(
    ("bands", "expected"),
    [
        (("B02", "B03", "B04", "B08"), ("B04", "B03", "B02")),
        (("B03", "B04", "B08"), ("B08", "B04", "B03")),
        (("x", "y", "z", "u"), ("x", "y", "z")),
        (("x", "y"), ("x", "x", "x")),
    ],
)
def test_colours_for_the_bands_there_are(bands: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert choose_colours(bands) == expected


def test_without_infrared_the_first_two_bands_are_drawn() -> None:
    assert [quantity.name for quantity in choose_quantities(BANDS)] == ["NDVI"]
    assert [quantity.name for quantity in choose_quantities(("B02", "B03", "B04"))] == ["B02", "B03"]
    assert [quantity.name for quantity in choose_quantities(("VV",))] == ["VV"]


@pytest.mark.parametrize(
    ("shape", "dates", "classes", "bands"),
    [
        ((30, 40), 1, 1, BANDS),
        ((1, 1), 1, 1, BANDS),
        ((3, 400), 5, 3, BANDS),
        ((400, 3), 5, 3, BANDS),
        ((16, 220), 3, 26, BANDS),
        ((12, 24), 60, 2, ("VV",)),
    ],
)
def test_any_shape_draws(
    shape: tuple[int, int], dates: int, classes: int, bands: tuple[str, ...], tmp_path: Path
) -> None:
    pixels = draw(tmp_path / "sheet.png", write_store(tmp_path / "store", raster_tile(shape, dates, classes, bands)))
    assert pixels.shape[1] == 2540
    assert pixels.shape[0] < 5000
    edge = np.concatenate([pixels[:20].ravel(), pixels[:, :20].ravel(), pixels[:, -20:].ravel()])
    assert (edge == 255).all()  # nothing runs over the margin


def test_a_table_draws_its_curves(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", series_tile())
    pixels = draw(tmp_path / "sheet.png", store)
    with open_tile_set(store, "store") as tile_set:
        for entry in tile_set.fingerprint.classes:
            assert count_colour(pixels, entry.colour) > 20, entry.name
    draw(tmp_path / "again.png", store)
    assert (tmp_path / "sheet.png").read_bytes() == (tmp_path / "again.png").read_bytes()


def test_panels_fit_the_sheet() -> None:
    for height, width in ((100, 100), (353, 232), (50, 400), (10980, 10980)):
        for number in (1, 2, 9, 24, 48):
            places = arrange_panels(Grid(UTM, (10.0, 0.0, 0.0, 0.0, -10.0, 0.0), height, width), number)
            assert places.columns * places.rows >= number
            assert places.columns * places.width <= 2400
            assert places.total < 9


def test_an_unknown_scene_is_named(small_store: Path, tmp_path: Path) -> None:
    with open_tile_set(small_store, "store") as tile_set, pytest.raises(UsageError, match="unknown scene 'nowhere'"):
        draw_sheet(tmp_path / "sheet.png", tile_set, scene="nowhere")
    assert not (tmp_path / "sheet.png").exists()
