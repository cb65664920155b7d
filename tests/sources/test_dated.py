"""Folders of dated GeoTIFFs: what was written is read, in order, on one grid and masked."""

from __future__ import annotations

import logging
from datetime import date
from pathlib import Path

import numpy as np
import pytest
import rasterio
from hypothesis import given
from hypothesis import strategies as st
from rasterio.enums import Resampling
from rasterio.warp import reproject

from cropstar.geo.resampling import Alignment, RasterPart
from cropstar.geo.windows import Window, split
from cropstar.sources.stack import open_stack
from cropstar.sources.stack.values import on_grid
from tests.sources.examples.dated import (
    DAYS,
    HEIGHT,
    WHOLE,
    WIDTH,
    open_one,
    read,
    some_pixels,
    the_file,
    write_raster,
    write_season,
)

DATES = tuple(map(date.fromisoformat, DAYS))


def test_one_file_a_band_and_date(tmp_path: Path) -> None:
    written = write_season(tmp_path, ("B08", "B04"))
    series, observations = read(tmp_path)
    assert (series.dates, series.bands, series.name, series.tile) == (DATES, ("B04", "B08"), "T31TEJ-2018", "T31TEJ")
    assert (series.scale, series.offset) == (1e-4, 0.0)
    assert series.files == sorted(tmp_path.iterdir())
    expected = np.stack([[written[day, band] for band in series.bands] for day in DAYS])
    assert np.array_equal(observations.values, expected)
    assert observations.valid.all()
    assert observations.values.dtype == np.uint16


def test_several_bands_a_file(tmp_path: Path) -> None:
    """Each file says itself in which order its bands are."""
    pixels = some_pixels(shape=(2, 3, HEIGHT, WIDTH))
    pixels[:, 2] = 4
    write_raster(tmp_path / "S2_20180312.tif", pixels[0], names=("B8", "b04", "SCL"))
    write_raster(
        tmp_path / "S2_20180401.tif", pixels[1][::-1], names=("SCL", "B4, central wavelength 665 nm", "2018-04-01 B08")
    )
    series, observations = read(tmp_path)
    assert (series.bands, series.dates, series.name) == (("B04", "B08"), DATES, tmp_path.name)
    assert np.array_equal(observations.values, pixels[:, [1, 0]])


def test_bands_without_names_get_those_of_the_user(tmp_path: Path) -> None:
    pixels = some_pixels(shape=(3, HEIGHT, WIDTH))
    pixels[1] = np.arange(WIDTH) % 12
    write_raster(tmp_path / "S2_20180312.tif", pixels)
    series, observations = read(tmp_path, bands=("B8", "SCL", "B04"))
    assert series.bands == ("B08", "B04")
    assert np.array_equal(observations.valid[0], np.isin(pixels[1], [2, 4, 5, 6, 7]))
    assert np.array_equal(observations.values[0], np.where(observations.valid, pixels[[0, 2]], 0))


def test_bands_with_other_names_get_those_of_the_user(tmp_path: Path) -> None:
    pixels = some_pixels(shape=(2, HEIGHT, WIDTH))
    write_raster(tmp_path / "S2_20180312.tif", pixels, names=("red", "nir"))
    assert read(tmp_path)[0].bands == ("RED", "NIR")
    assert read(tmp_path, bands=("B04", "B08"))[0].bands == ("B04", "B08")
    assert read(tmp_path, bands=("NIR",))[0].bands == ("NIR",)  # now a choice


@pytest.mark.parametrize("form", ["{day}/{band}.tif", "{band}/S2_{day}.tif", "a/T31TEJ/{day}/x_{band}.TIFF"])
def test_folders_may_name_date_and_band(tmp_path: Path, form: str) -> None:
    for number, (day, band) in enumerate((day, band) for day in DAYS for band in ("B04", "B08")):
        write_raster(tmp_path / form.format(day=day, band=band), some_pixels(number))
    series, observations = read(tmp_path)
    assert (series.dates, series.bands) == (DATES, ("B04", "B08"))
    assert np.array_equal(observations.values[1, 1], some_pixels(3))


def test_a_choice_of_bands_leaves_the_other_files_alone(tmp_path: Path) -> None:
    written = write_season(tmp_path, ("B02", "B04", "B08"))
    the_file(tmp_path, "B02").write_bytes(b"")  # never opened
    series, observations = read(tmp_path, bands=("B08", "B04"))
    assert series.bands == ("B08", "B04")
    assert np.array_equal(observations.values[1, 0], written[DAYS[1], "B08"])
    assert len(series.files) == 4


def test_a_pattern_names_the_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for kind in ("FRE", "SRE"):
        write_raster(tmp_path / f"S2_20180312-104021_{kind}_B4.tif", some_pixels(kind == "SRE"))
    with caplog.at_level(logging.INFO, "cropstar"):
        series, observations = read(tmp_path, pattern="S2_{date}-{*}_SRE_{band}.tif")
    assert np.array_equal(observations.values[0, 0], some_pixels(1))
    assert series.files == [tmp_path / "S2_20180312-104021_SRE_B4.tif"]
    assert "1 GeoTIFFs left out" in caplog.text


def test_one_series_a_tile(tmp_path: Path) -> None:
    for number, tile in enumerate(("T31TEJ", "31TDJ")):
        write_raster(tmp_path / f"{tile}_20180312_B04.tif", some_pixels(number), shift=(number * 1000, 0))
    opened = open_stack(tmp_path)
    assert [series.name for series in opened] == ["T31TDJ-2018", "T31TEJ-2018"]
    assert [series.read(WHOLE).values[0, 0, 0, 0] for series in opened] == [some_pixels(1)[0, 0], some_pixels(0)[0, 0]]
    for series in opened:
        series.close()


def test_what_is_no_band_of_a_date_is_left_out(tmp_path: Path) -> None:
    write_season(tmp_path)
    for name in ("dem.tif", "T31TEJ_20180312_TCI.tif", "._T31TEJ_B04_20180312.tif", "S2_20180312_B04.tif.aux.xml"):
        (tmp_path / name).write_bytes(b"no raster")
    assert len(read(tmp_path)[0].files) == 4


# --- what is data


def test_nodata_and_dark_pixels_of_signed_files(tmp_path: Path) -> None:
    write_season(tmp_path)
    pixels = some_pixels()
    pixels[0, :3] = [-25, -9999, 0]
    write_raster(the_file(tmp_path, "B04", DAYS[0]), pixels, nodata=-9999)
    observations = read(tmp_path)[1]
    assert observations.valid[0, 0, :4].tolist() == [True, False, True, True]
    assert observations.values[0, 0, 0, :4].tolist() == [0, 0, 0, pixels[0, 3]]
    assert observations.values[0, :, 0, 1].tolist() == [0, 0]
    assert observations.valid[1].all()


def test_without_nodata_black_in_all_bands_is_what_the_swath_missed(tmp_path: Path) -> None:
    for band, columns in (("B04", 5), ("B08", 8)):
        pixels = some_pixels()
        pixels[:, :columns] = 0
        write_raster(tmp_path / f"20180312_{band}.tif", pixels.astype(np.uint16))
    observations = read(tmp_path)[1]
    assert np.array_equal(observations.valid[0], np.broadcast_to(np.arange(WIDTH) >= 5, (HEIGHT, WIDTH)))
    assert (observations.values[0, 1, :, 5:8] == 0).all()


def test_a_nodata_value_that_no_pixel_can_have_means_nothing(tmp_path: Path) -> None:
    pixels = np.zeros((HEIGHT, WIDTH), dtype=np.uint16)
    pixels[:, 3:] = 700
    path = write_raster(tmp_path / "20180312_B04.tif", pixels, nodata=8888)
    path.write_bytes(path.read_bytes().replace(b"8888\0", b"-999\0"))
    assert np.array_equal(read(tmp_path)[1].valid[0], pixels != 0)


def test_dates_without_data_are_dropped_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_season(tmp_path, days=("2018-01-01", *DAYS))
    write_raster(the_file(tmp_path, "B08", "2018-01-01"), np.full((HEIGHT, WIDTH), -9999, np.int16), nodata=-9999)
    with caplog.at_level(logging.WARNING, "cropstar"):
        series = read(tmp_path)[0]
    assert series.dates == DATES
    assert "1 of 3 dates left out, without any data: 2018-01-01" in caplog.text
    assert series.provenance["without_data"] == ["2018-01-01"]
    assert the_file(tmp_path, "B08", "2018-01-01") in series.files  # other pixels there would be another series


def test_the_last_pixel_saves_a_date(tmp_path: Path) -> None:
    pixels = np.full((2100, 300), -9999, np.int16)
    pixels[0, 0] = 5
    write_raster(tmp_path / "20180312_B04.tif", pixels, nodata=-9999, tiled=True, blockxsize=256, blockysize=256)
    assert read(tmp_path)[0].dates == DATES[:1]


def test_scale_and_offset(tmp_path: Path) -> None:
    write_season(tmp_path, radiometry=(1e-3, -0.1))
    assert (read(tmp_path)[0].scale, read(tmp_path)[0].offset) == (1e-3, -0.1)
    write_season(tmp_path)
    write_raster(the_file(tmp_path), some_pixels(), radiometry=(1e-4, 0))  # what the others leave unsaid
    assert read(tmp_path)[0].scale == 1e-4


# --- clouds


@pytest.mark.parametrize("ratio", [1, 2])
def test_the_scene_classification_becomes_the_mask(tmp_path: Path, ratio: int) -> None:
    write_season(tmp_path)
    shape = (HEIGHT // ratio, WIDTH // ratio)
    classes = np.arange(shape[0] * shape[1], dtype=np.uint8).reshape(shape) % 12
    for day in DAYS:
        write_raster(the_file(tmp_path, "SCL", day), classes, ratio=ratio)
    fine = classes.repeat(ratio, axis=0).repeat(ratio, axis=1)
    assert np.array_equal(read(tmp_path)[1].valid[0], np.isin(fine, [2, 4, 5, 6, 7]))
    series, observations = read(tmp_path, clear=(4, 11))
    assert np.array_equal(observations.valid[1], np.isin(fine, [4, 11]))
    assert (observations.values[:, 0][~observations.valid] == 0).all()
    assert series.bands == ("B04", "B08")


@pytest.mark.parametrize(("ratio", "pattern"), [(1, "{tile}_{date}_cloud.tif"), (5, "{*}_{date}_cloud.tif")])
def test_masks_are_clear_where_they_are_zero(tmp_path: Path, ratio: int, pattern: str) -> None:
    write_season(tmp_path)
    for number, day in enumerate(DAYS):
        cloud = np.zeros((HEIGHT // ratio, WIDTH // ratio), dtype=np.uint8)  # four rows of 24 are left over
        cloud[number, 1], cloud[number, 2] = 1, 255
        write_raster(tmp_path / f"T31TEJ_{day}_cloud.tif", cloud, ratio=ratio, nodata=0)
    series, observations = read(tmp_path, masks=pattern)
    expected = np.ones((2, HEIGHT, WIDTH), dtype=bool)
    for number in range(2):
        expected[number, number * ratio : (number + 1) * ratio, ratio : 3 * ratio] = False
    expected[:, HEIGHT // ratio * ratio :] = False  # nobody knows what lies beyond the mask
    assert np.array_equal(observations.valid, expected)
    assert len(series.files) == 6


# --- coarser bands


@pytest.mark.parametrize("resampling", ["bilinear", "cubic", "nearest"])
@pytest.mark.parametrize("ratio", [2, 6])
def test_coarser_bands_as_gdal_resamples_them(tmp_path: Path, ratio: int, resampling: str) -> None:
    shape = (60, 72)
    write_raster(the_file(tmp_path, "B02"), some_pixels(6, shape), nodata=-9999)
    coarse = some_pixels(7, (shape[0] // ratio, shape[1] // ratio))
    path = write_raster(the_file(tmp_path, "B11"), coarse, ratio=ratio, nodata=-9999)
    series = open_one(tmp_path, resampling=resampling)
    observations = series.read(Window(0, 0, *shape))
    series.close()
    assert (series.bands, series.grid.resolution) == (("B02", "B11"), 10)
    wanted = np.zeros(shape)
    with rasterio.open(path) as dataset:
        reproject(
            dataset.read(1).astype(np.float64),
            wanted,
            src_transform=dataset.transform,
            src_crs=dataset.crs,
            dst_transform=series.grid.affine,
            dst_crs=dataset.crs,
            resampling=Resampling[resampling],
            tolerance=0,
        )
    inside = (slice(2 * ratio, -2 * ratio),) * 2  # at the edge GDAL has other rules
    assert np.abs(observations.values[0, 1] - wanted.clip(0))[inside].max() <= 0.5001  # rounding


@given(st.integers(-3000, 9000), st.integers(-3000, 9000), st.sampled_from(["bilinear", "cubic", "nearest"]))
def test_resampling_knows_zero_and_negative_numbers_from_nodata(low: int, high: int, resampling: str) -> None:
    """The same as for numbers moved far from zero, as no reader of products could do."""
    pixels = np.random.default_rng(low + 3000).integers(min(low, high), max(low, high) + 1, (6, 6)).astype(np.int16)
    pixels[2, 3] = -9999
    window, alignment = Window(1, 2, 9, 8), Alignment(2, 0, 0, 6, 6)
    place = alignment.source(window)
    piece = RasterPart(pixels[place.slices], place, alignment)
    numbers, present = on_grid(piece, window, -9999, resampling)
    moved = np.where(piece.pixels == -9999, 0, piece.pixels.astype(np.int32) + 20_000)
    others, there = on_grid(RasterPart(moved, place, alignment), window, None, resampling)
    assert np.array_equal(present, there)
    assert np.count_nonzero(~present) == 4
    assert np.abs(numbers - (others - 20_000.0))[present].max() < 0.01


def test_windows_put_together_are_the_whole(tmp_path: Path) -> None:
    write_season(tmp_path, ("B02",))
    for day in DAYS:
        write_raster(the_file(tmp_path, "B11", day), some_pixels(3, (HEIGHT // 2, WIDTH // 2)), ratio=2, nodata=5)
        write_raster(the_file(tmp_path, "SCL", day), some_pixels(4, (HEIGHT // 2, WIDTH // 2)) % 8, ratio=2)
    (series,) = open_stack(tmp_path)
    whole = series.read(WHOLE)
    for window in split((HEIGHT, WIDTH), 7):
        part, (rows, columns) = series.read(window), window.slices
        assert np.array_equal(part.values, whole.values[:, :, rows, columns])
        assert np.array_equal(part.valid, whole.valid[:, rows, columns])
    series.close()
    assert 0.3 < whole.valid.mean() < 0.9
