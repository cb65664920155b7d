"""A folder of dated GeoTIFFs as a series."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import resource
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from hypothesis import given
from hypothesis import strategies as st
from rasterio.enums import Resampling
from rasterio.warp import reproject

from cropstar.errors import InputError, UsageError
from cropstar.geo.resampling import Alignment, RasterPart
from cropstar.geo.windows import Window, split
from cropstar.sources.base import Series
from cropstar.sources.catalogue import open_raster_series
from cropstar.sources.sentinel2 import find_products, open_sentinel2
from cropstar.sources.stack import DatedSeries, StackOptions, StackSeries, looks_like_stack, open_stack
from cropstar.sources.stack.rasters import OpenRasters, most_open, resample_numbers
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
from tests.sources.examples.stacks import write_stack

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
    numbers, present = resample_numbers(piece, window, -9999, resampling)
    moved = np.where(piece.pixels == -9999, 0, piece.pixels.astype(np.int32) + 20_000)
    others, there = resample_numbers(RasterPart(moved, place, alignment), window, None, resampling)
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


# --- Opening


def touch(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


# --- what a folder is


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["SENTINEL-2_MSI_T31TEJ_B04_2018-03-12.tif"], True),
        (["2018-03-12/B04.tif", "parcels.gpkg"], True),
        (["S2_20180312.TIFF"], True),
        (["a/b/20180312_B04.tif", "dem.tif"], True),
        (["T31TEJ_20180312_B02_10m.tif", "labels.tif"], True),
        (["mean_20180301_20180315.tif"], True),  # to be refused with a reason
        (["tile.tif", "parcels.gpkg"], False),
        (["20180312.jp2", "20180312.png"], False),
        (["S2A_MSIL2A_20180312T104021.SAFE/MTD_MSIL2A.xml", "20180312_B04.tif"], False),
        (["x/a.SAFE/IMG/T31TEJ_20180312T104021_B02_10m.tif"], False),
        (["2017/L1C/frh04.csv", "2017/L1C/frh04.h5", "codes.csv", "classmapping.csv"], False),
        (["data/123/20180312_10m.tif", "data/123/20180312_20m.tif", "data/123/y.tif", "classes.txt"], False),
        (["20180312_10m.tif", "20180312_20m.tif", "y.tif"], False),
        (["7/10m/20180312.tif", "7/20m/20180312.tif", "7/labels.tif"], False),
        ([], False),
    ],
)
def test_folders_of_dated_files_are_known_by_their_names(tmp_path: Path, names: list[str], expected: bool) -> None:
    assert looks_like_stack(touch(tmp_path, *names)) is expected


def test_files_and_nothing_are_no_folders(tmp_path: Path) -> None:
    assert not looks_like_stack(write_raster(tmp_path / "20180312_B04.tif", some_pixels()))
    assert not looks_like_stack(tmp_path / "gone")


def test_real_products_and_tables_are_no_stacks(real_data: Path) -> None:
    for name in ("sentinel2-t31tej/safe", "sentinel2-t31tej", "breizhcrops", "parcels"):
        assert not looks_like_stack(real_data / name)


# --- opening


def test_one_file_with_dates_x_bands(tmp_path: Path) -> None:
    path = write_stack(tmp_path / "a.tif")
    (series,) = open_stack(path)
    assert isinstance(series, StackSeries)
    assert (series.bands, series.files) == (("B04", "B08"), [path])
    (turned,) = open_stack(path, StackOptions(bands=("B8", "B4")))
    assert turned.bands == ("B08", "B04")
    window = Window(0, 0, 20, 30)
    assert np.array_equal(turned.read(window).values, series.read(window).values[:, ::-1])
    for each in (series, turned):
        each.close()
    with pytest.raises(UsageError, match="no band 'B11'"):
        open_stack(path, StackOptions(bands=("B11",)))


@pytest.mark.parametrize(
    ("option", "value"),
    [("pattern", "{date}.tif"), ("masks", "{date}.tif"), ("resampling", "nearest"), ("resampling", "bilinear")],
)
def test_options_of_folders_are_refused_for_one_file(tmp_path: Path, option: str, value: str) -> None:
    path, given = write_stack(tmp_path / "a.tif"), StackOptions(**{option: value})
    with pytest.raises(UsageError, match=f"--{option} is for a folder of dated files"):
        open_stack(path, given)


def test_a_model_of_resampled_bands_maps_one_file(tmp_path: Path) -> None:
    series = open_raster_series(write_stack(tmp_path / "a.tif"), ("B04",), {"resampling": "nearest", "clear": [4, 5]})
    assert series.bands == ("B04", "B08")
    series.close()


def test_the_classes_to_keep_of_one_file(tmp_path: Path) -> None:
    pixels = some_pixels(shape=(2, HEIGHT, WIDTH))
    pixels[1] %= 12
    path = write_stack(tmp_path / "a.tif", ["2023-05-01 B04", "2023-05-01 SCL"], pixels)
    series = open_raster_series(path, ("B04",), {"clear": [11], "unknown": 1})
    assert np.array_equal(series.read(WHOLE).valid[0], pixels[1] == 11)
    series.close()


def test_the_bands_of_a_model_are_picked_from_a_folder(tmp_path: Path) -> None:
    written = write_season(tmp_path, ("B02", "B04", "B08"))
    series = open_raster_series(tmp_path, ("B08", "B02"), {})
    assert series.bands == ("B08", "B02")
    assert np.array_equal(series.read(WHOLE).values[1, 0], written[DAYS[1], "B08"])
    series.close()
    others = open_raster_series(tmp_path, ("B08", "B11"), {})  # whoever maps says what is missing
    assert others.bands == ("B02", "B04", "B08")
    others.close()


def test_the_bands_of_a_model_are_no_names_for_bands_without(tmp_path: Path) -> None:
    write_raster(tmp_path / "S2_20180312.tif", some_pixels(shape=(2, HEIGHT, WIDTH)))
    with pytest.raises(InputError, match="unknown bands"):
        open_raster_series(tmp_path, ("B04", "B08"), {})
    series = open_raster_series(tmp_path, ("B04", "B08"), {}, {"bands": ("B04", "B08")})
    assert series.bands == ("B04", "B08")
    series.close()


def test_a_map_is_made_of_one_tile(tmp_path: Path) -> None:
    for tile in ("T31TEJ", "T31TDJ"):
        write_raster(tmp_path / f"{tile}_20180312_B04.tif", some_pixels())
    with pytest.raises(UsageError, match=r"more than one tile.*T31TDJ-2018, T31TEJ-2018"):
        open_raster_series(tmp_path, ("B04",), {})


def test_options_of_geotiffs_are_not_for_products(real_data: Path) -> None:
    with pytest.raises(UsageError, match="--pattern does not apply to Sentinel-2 products"):
        open_raster_series(real_data / "sentinel2-t31tej" / "safe", ("B04",), {}, {"pattern": "{date}.tif"})


# --- open files


def held(folder: Path) -> int:
    links = [link for link in Path("/proc/self/fd").iterdir() if link.exists()]
    return sum(link.resolve().is_relative_to(folder.resolve()) for link in links)


def test_only_so_many_files_are_open_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cropstar.sources.stack.rasters.most_open", lambda: 5)
    days = tuple(f"2018-{month:02d}-01" for month in range(1, 11))
    written = write_season(tmp_path, ("B02", "B04", "B08"), days)
    series = open_one(tmp_path)
    for _ in range(2):
        values = series.read(WHOLE).values
        assert held(tmp_path) == 5
    assert all(
        np.array_equal(values[number, band], written[day, name])
        for number, day in enumerate(days)
        for band, name in enumerate(series.bands)
    )
    series.close()
    assert held(tmp_path) == 0


def test_the_bound_follows_that_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for allowed in (16, 256, 1024, 1_000_000, resource.RLIM_INFINITY):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=allowed: (soft, soft))
        found.append(most_open())
    assert found == [8, 32, 128, 1024, 1024]


def test_the_file_asked_for_longest_ago_is_closed(tmp_path: Path) -> None:
    paths = [write_raster(tmp_path / f"{number}.tif", some_pixels(number)) for number in range(3)]
    files = OpenRasters(most=2)
    first, second = files.dataset(paths[0]), files.dataset(paths[1])
    assert files.dataset(paths[0]) is first
    files.dataset(paths[2])
    assert (first.closed, second.closed) == (False, True)
    files.close()
    assert first.closed


def test_after_a_fork_the_files_of_the_parent_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_raster(tmp_path / "a.tif", some_pixels())
    files = OpenRasters()
    before = files.dataset(path)
    child = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: child)
    assert files.dataset(path) is not before
    assert not before.closed  # the parent still reads it
    files.close()
    before.close()


# --- other processes


def read_there(series: Series, answers: multiprocessing.Queue[tuple[int, Any, Any]]) -> None:
    observations = series.read(WHOLE)
    answers.put((os.getpid(), observations.values, observations.valid))


@pytest.fixture(params=["dated", "one file"])
def series(request: pytest.FixtureRequest, tmp_path: Path) -> DatedSeries | StackSeries:
    if request.param == "dated":
        write_season(tmp_path)
        write_raster(the_file(tmp_path, "SCL", DAYS[0]), some_pixels() % 12)
        write_raster(the_file(tmp_path, "SCL", DAYS[1]), some_pixels(1) % 12)
        return open_one(tmp_path)
    return StackSeries(write_stack(tmp_path / "a.tif", shape=(HEIGHT, WIDTH)))


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_copy_in_another_process_opens_files_of_its_own(series: DatedSeries | StackSeries, method: str) -> None:
    here = series.read(WHOLE)
    context: Any = multiprocessing.get_context(method)
    answers = context.Queue()
    process = context.Process(target=read_there, args=(series, answers))  # pickled, or with all that is open
    process.start()
    number, values, valid = answers.get(timeout=60)
    process.join(60)
    assert number == process.pid
    assert np.array_equal(values, here.values)
    assert np.array_equal(valid, here.valid)
    assert np.array_equal(series.read(WHOLE).values, here.values)
    series.close()


def test_a_copy_is_as_the_first_and_holds_nothing_open(series: DatedSeries | StackSeries) -> None:
    here, folder = series.read(WHOLE), series.files[0].parent
    content = pickle.dumps(series)
    series.close()
    copy = pickle.loads(content)
    assert held(folder) == 0
    for name in ("name", "grid", "dates", "bands", "scale", "offset", "provenance", "files"):
        assert getattr(copy, name) == getattr(series, name)
    assert np.array_equal(copy.read(WHOLE).values, here.values)
    copy.close()


# --- Real files

SHAPE = (353, 232)
REAL_WHOLE = Window(0, 0, *SHAPE)
FINE = ("B02", "B03", "B04", "B08")
BANDS = (*FINE, "B11", "SCL")
MASKED = (2, 4, 5, 6, 7)


@pytest.fixture(scope="module")
def products(real_data: Path) -> dict[date, dict[str, Any]]:
    """Of each date and band the profile and the pixels, as rasterio reads them."""
    read: dict[date, dict[str, Any]] = {}
    for product in find_products(real_data / "sentinel2-t31tej" / "safe"):
        for band in BANDS:
            with rasterio.open(product.files[band].file) as dataset:
                profile = {"crs": dataset.crs, "transform": dataset.transform}
                read.setdefault(product.day, {})[band] = (profile, dataset.read(1))
    assert len(read) == 10
    return read


def write(path: Path, profile: dict[str, Any], pixels: Any, **options: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    _, height, width = pixels.shape
    kind = {"driver": "GTiff", "count": len(pixels), "height": height, "width": width, "dtype": pixels.dtype}
    with rasterio.open(path, "w", **kind, **profile, **options) as dataset:
        dataset.write(pixels)
        dataset.descriptions = FINE if len(pixels) > 1 else (None,)


@pytest.fixture(scope="module")
def single(products: dict[date, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One int16 file a band and date, nodata -9999, at each band's own resolution."""
    folder = tmp_path_factory.mktemp("single")
    for day, bands in products.items():
        for band, (profile, pixels) in bands.items():
            signed = pixels.astype(np.int16)
            signed[signed == 0] = 0 if band == "SCL" else -9999
            write(folder / f"SENTINEL-2_MSI_T31TEJ_{band}_{day}.tif", profile, signed[None], nodata=-9999)
    return folder


@pytest.fixture(scope="module")
def several(products: dict[date, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file of the 10 m bands a date, and one of the scene classification, in a folder a date."""
    folder = tmp_path_factory.mktemp("several")
    for day, bands in products.items():
        pixels = np.stack([bands[band][1] for band in FINE])
        write(
            folder / f"{day:%Y%m%d}" / "S2_10m.tif", bands["B02"][0], pixels, nodata=0, compress="deflate", tiled=True
        )
        write(folder / f"{day:%Y%m%d}" / "SCL.tif", bands["SCL"][0], bands["SCL"][1][None])
    return folder


def expected(products: dict[date, dict[str, Any]], series: DatedSeries) -> tuple[Any, Any]:
    """The 10 m bands and their mask by plain indexing; each pixel of 20 m covers four."""
    values = np.stack([[products[day][band][1] for band in FINE] for day in series.dates])
    classes = np.stack([products[day]["SCL"][1] for day in series.dates]).repeat(2, axis=1).repeat(2, axis=2)
    valid = np.isin(classes[:, : SHAPE[0], : SHAPE[1]], MASKED) & (values != 0).all(axis=1)
    return np.where(valid[:, None], values, 0), valid


@pytest.mark.parametrize("layout", ["single", "several"])
def test_values_and_mask_are_those_of_the_files(
    products: dict[date, dict[str, Any]], layout: str, request: pytest.FixtureRequest
) -> None:
    series = open_one(request.getfixturevalue(layout), bands=FINE)
    values, valid = expected(products, series)
    observations = series.read(REAL_WHOLE)
    series.close()
    assert len(series.dates) == 9  # 2018-02-12 is nodata throughout
    assert series.provenance["without_data"] == ["2018-02-12"]
    assert series.tile == ("T31TEJ" if layout == "single" else None)
    assert 0.75 < valid.mean() < 1
    assert np.array_equal(observations.valid, valid)
    assert np.array_equal(observations.values, values)


def test_the_same_series_as_the_products_give(real_data: Path, single: Path) -> None:
    """The 20 m band too: by default bilinear, from a grid that ends 10 m below the other."""
    from cropstar.sources.sentinel2 import Sentinel2Options

    bands = (*FINE, "B11")
    (wanted,) = open_sentinel2(real_data / "sentinel2-t31tej" / "safe", Sentinel2Options(bands=bands))
    (found,) = open_stack(single)
    assert (found.bands, found.dates, found.grid, found.scale) == (bands, wanted.dates, wanted.grid, wanted.scale)
    for window in (REAL_WHOLE, Window(100, 31, 57, 64)):
        one, other = found.read(window), wanted.read(window)
        assert np.array_equal(one.valid, other.valid)
        assert np.array_equal(one.values, other.values)
    for series in (found, wanted):
        series.close()
