"""Which folders are stacks, opening them to be mapped, and files that are opened again and again."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cropstar.errors import InputError, UsageError
from cropstar.geo.windows import Window
from cropstar.sources.base import Series
from cropstar.sources.catalogue import open_raster_series
from cropstar.sources.stack import DatedSeries, StackOptions, StackSeries, looks_like_stack, open_stack
from cropstar.sources.stack.handles import OpenRasters, most_open
from tests.sources.examples.dated import (
    DAYS,
    HEIGHT,
    WHOLE,
    WIDTH,
    open_one,
    some_pixels,
    the_file,
    write_raster,
    write_season,
)
from tests.sources.examples.stacks import write_stack


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
    path, given = write_stack(tmp_path / "a.tif"), StackOptions(**{option: value})  # type: ignore[arg-type]
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
    with pytest.raises(UsageError, match="--pattern is not for Sentinel-2 products"):
        open_raster_series(real_data / "sentinel2-t31tej" / "safe", ("B04",), {}, {"pattern": "{date}.tif"})


# --- open files


def held(folder: Path) -> int:
    links = [link for link in Path("/proc/self/fd").iterdir() if link.exists()]
    return sum(link.resolve().is_relative_to(folder.resolve()) for link in links)


def test_only_so_many_files_are_open_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cropstar.sources.stack.handles.most_open", lambda: 5)
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
