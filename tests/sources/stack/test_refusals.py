"""Folders of dated GeoTIFFs that are refused: one line that names the file, what is wrong, and a way out."""

from __future__ import annotations

import struct
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rasterio.errors import NotGeoreferencedWarning
from rasterio.transform import Affine

from cropstar.errors import InputError, UsageError
from cropstar.sources.stack import open_stack
from tests.examples import a_grid
from tests.sources.examples.dated import (
    DAYS,
    HEIGHT,
    WHOLE,
    WIDTH,
    read,
    refusal,
    some_pixels,
    the_file,
    write_raster,
    write_season,
)

BLANK = np.full((HEIGHT, WIDTH), -9999, dtype=np.int16)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two dates of B04 and B08, of which tests spoil the last file."""
    write_season(tmp_path)
    return tmp_path


# --- grids


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"crs": "EPSG:32631"}, "EPSG:32631 instead of EPSG:32632"),
        ({"shift": (5, 0)}, "a shift of 5 x 0 m (0.5 x 0 pixels)"),
        ({"shift": (0, -2.5)}, "a shift of 0 x -2.5 m (0 x -0.25 pixels)"),
        ({"shift": (20, 10)}, "a shift of 20 x 10 m (2 x 1 pixels)"),
        ({"pixels": some_pixels(shape=(HEIGHT, WIDTH + 1))}, "31 x 24 pixels instead of 30 x 24"),
        ({"ratio": 2}, "pixels of 20 x 20 m instead of 10 x 10"),
        ({"ratio": 2, "pixels": some_pixels(shape=(HEIGHT // 2, WIDTH // 2))}, "15 x 12 pixels instead of 30 x 24"),
    ],
)
def test_a_date_on_another_grid(folder: Path, change: dict[str, Any], words: str) -> None:
    write_raster(the_file(folder), change.pop("pixels", some_pixels()), **change)
    line = refusal(folder, InputError)
    assert str(the_file(folder)) in line
    assert words in line
    assert the_file(folder, day=DAYS[0]).name in line  # the file that it is compared with


@pytest.mark.parametrize(
    ("ratio", "shift", "words"),
    [
        (2, (5, 0), "shifted by 0.5 x 0 pixels of 10 m"),
        (2, (100, 0), "does not cover the grid"),
        (1, (5, 0), "a shift of 5 x 0 m (0.5 x 0 pixels)"),
        (2.5, (0, 0), "its pixels are 2.5 x 2.5 of the grid's"),
    ],
)
def test_a_band_that_does_not_fit_the_others(folder: Path, ratio: Any, shift: tuple[float, float], words: str) -> None:
    for day in DAYS:
        pixels = some_pixels(shape=(int(HEIGHT / ratio), int(WIDTH / ratio)))
        write_raster(the_file(folder, "B11", day), pixels, ratio=ratio, shift=shift)
    line = refusal(folder, InputError)
    assert words in line
    assert str(the_file(folder, "B11", DAYS[0])) in line


def test_a_rounded_corner_is_the_same(folder: Path) -> None:
    pixels = some_pixels(7)
    write_raster(the_file(folder), pixels, shift=(0.004, -0.002), nodata=-9999)
    series, observations = read(folder)
    assert series.grid == a_grid(HEIGHT, WIDTH)  # that of the first date
    assert np.array_equal(observations.values[1, 1], pixels)
    assert observations.valid.all()


def test_no_coordinate_system(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        write_raster(the_file(folder), some_pixels(), crs=None)
        assert "no coordinate system in" in refusal(folder, InputError)


@pytest.mark.parametrize("transform", [(0, 10, 612_000, 10, 0, 5_412_000), (float("nan"), 0, 0, 0, 1, 0)])
def test_pixels_without_a_size(folder: Path, transform: tuple[float, ...]) -> None:
    write_raster(the_file(folder), some_pixels(), transform=Affine(*transform))
    assert "no usable pixel size" in refusal(folder, InputError)


# --- bands and dates


def test_a_missing_band(folder: Path) -> None:
    the_file(folder).unlink()
    assert f"{DAYS[1]} has no B08" in refusal(folder, InputError)


def test_a_missing_scene_classification_or_mask(folder: Path) -> None:
    path = write_raster(the_file(folder, "SCL"), some_pixels())
    assert f"{DAYS[0]} has no SCL" in refusal(folder, InputError)
    path.rename(folder / f"cloud_{DAYS[1]}.tif")
    assert f"{DAYS[0]} without a file named as cloud_{{date}}.tif" in refusal(
        folder, InputError, masks="cloud_{date}.tif"
    )
    assert "no masks" in refusal(folder, InputError, masks="clouds_{date}.tif")


def test_two_files_for_one_band_and_date(folder: Path) -> None:
    write_raster(folder / "T31TEJ_20180401T104021_B8_10m.tif", some_pixels())
    line = refusal(folder, InputError)
    assert "two files for B08 of 2018-04-01" in line
    assert the_file(folder).name in line
    assert "T31TEJ_20180401T104021_B8_10m.tif" in line


def test_two_masks_for_one_date(folder: Path) -> None:
    for place in "ab":
        write_raster(folder / place / f"cloud_{DAYS[1]}.tif", some_pixels())
    line = refusal(folder, InputError, masks="cloud_{date}.tif")
    assert f"{folder}/a/cloud_{DAYS[1]}.tif" in line
    assert f"{folder}/b/cloud_{DAYS[1]}.tif" in line


@pytest.mark.parametrize(
    ("names", "bands", "words"),
    [
        ((), None, "band 1 of 2 has no description"),
        (("B04",), None, "band 2 of 2 has no description"),
        (("B04", "near infrared"), None, "band 2 of 2 is described as 'near infrared'"),
        (("B04", "b4"), None, "a band appears twice"),
        (("B04", "2018-04-11 B08"), None, "several dates in one file"),
        ((), ("B02", "B03", "B04"), "2 bands are there and 3 are named: B02, B03, B04"),
        (("B04",), ("B04", "B08"), "band 2 of 2 has no description"),  # half named: which is which?
    ],
)
def test_unclear_bands(tmp_path: Path, names: tuple[str, ...], bands: tuple[str, ...] | None, words: str) -> None:
    path = write_raster(tmp_path / "S2_20180312.tif", some_pixels(shape=(2, HEIGHT, WIDTH)), names=names)
    line = refusal(tmp_path, InputError, bands=bands)
    assert words in line
    assert str(path) in line


def test_a_typing_error_renames_nothing(tmp_path: Path) -> None:
    write_raster(tmp_path / "S2_20180312.tif", some_pixels(shape=(2, HEIGHT, WIDTH)), names=("B04", "B08"))
    assert "no band 'B80'" in refusal(tmp_path, UsageError, bands=("B04", "B80"))


def test_a_mask_that_nobody_announced_is_not_ignored(folder: Path) -> None:
    path = write_raster(folder / f"T31TEJ_{DAYS[0]}_cloudmask.tif", some_pixels())
    line = refusal(folder, InputError)
    assert str(path) in line
    assert "--pattern" in line


def test_more_bands_than_the_name_says(folder: Path) -> None:
    write_raster(the_file(folder), some_pixels(shape=(2, HEIGHT, WIDTH)))
    assert "its name gives one band, but it has 2" in refusal(folder, InputError)


def test_masks_alone(tmp_path: Path) -> None:
    write_raster(the_file(tmp_path, "SCL"), some_pixels())
    assert "no reflectance bands" in refusal(tmp_path, InputError)


def test_two_dates_in_a_name(folder: Path) -> None:
    write_raster(folder / "mean_20180301_20180315_B04.tif", some_pixels())
    assert "the name has the dates 2018-03-01 and 2018-03-15" in refusal(folder, InputError)


def test_files_of_which_tile(folder: Path) -> None:
    for name in ("T31TDJ_20180312_B04.tif", "20180312_B04.tif"):
        write_raster(folder / name, some_pixels())
    assert "some names have a tile (T31TDJ, T31TEJ), others have none" in refusal(folder, UsageError)


def test_nothing_to_read(tmp_path: Path) -> None:
    assert "no GeoTIFFs" in refusal(tmp_path, InputError)
    assert "no such file" in refusal(tmp_path / "gone", InputError)
    write_raster(tmp_path / "dem.tif", some_pixels())
    assert "no date is in the names of dem.tif" in refusal(tmp_path, InputError)
    assert "none of dem.tif is named as S2_{date}.tif" in refusal(tmp_path, InputError, pattern="S2_{date}.tif")
    write_raster(tmp_path / "20180312_B04.tif", BLANK, nodata=-9999)
    assert "none of 1 dates has any data" in refusal(tmp_path, InputError)


# --- values


@pytest.mark.parametrize("pair", [(1e-3, 0.0), (1e-4, -0.1)])
def test_another_scale_or_offset(folder: Path, pair: tuple[float, float]) -> None:
    write_raster(the_file(folder), some_pixels(), radiometry=pair)
    line = refusal(folder, InputError)
    assert f"scale {pair[0]:g} and offset {pair[1]:g} instead of scale 0.0001 and offset 0" in line
    assert str(the_file(folder)) in line


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf"), 1e300, 1e-300])
def test_no_usable_scale(tmp_path: Path, scale: float) -> None:
    write_season(tmp_path, radiometry=(scale, 0.0))
    assert "no usable scale" in refusal(tmp_path, InputError)


@pytest.mark.parametrize("kind", ["complex64", "complex_int16"])
def test_no_plain_numbers(folder: Path, kind: str) -> None:
    write_raster(the_file(folder), some_pixels().astype("complex64"), dtype=kind)
    assert f"values are {kind}" in refusal(folder, InputError)


# --- files that are something else


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<!DOCTYPE html><html><body>Please log in</body></html>",
        b'<VRTDataset rasterXSize="30" rasterYSize="24"></VRTDataset>',
        b"https://example.org/B08.tif",
        b"II*\0\x08\0\0\0\xff\xff",
    ],
    ids=["empty", "web page", "VRT", "URL", "cut in its header"],
)
def test_no_geotiff_at_all(folder: Path, content: bytes) -> None:
    the_file(folder).write_bytes(content)
    line = refusal(folder, InputError)
    assert "unreadable raster" in line
    assert str(the_file(folder)) in line


def test_a_huge_block_is_refused_before_it_is_decoded(folder: Path) -> None:
    """A header that speaks of one strip of 40,000 x 40,000 pixels, in a file of a few bytes."""
    content = bytearray(write_raster(the_file(folder), some_pixels(), compress="deflate").read_bytes())
    (start,) = struct.unpack_from("<I", content, 4)
    for position in range(start + 2, start + 2 + 12 * struct.unpack_from("<H", content, start)[0], 12):
        tag = struct.unpack_from("<H", content, position)[0]
        if tag in (256, 257, 278):  # width, height, rows of a strip
            struct.pack_into("<HII", content, position + 2, 4, 1, 40_000)
    the_file(folder).write_bytes(content)
    line = refusal(folder, InputError)
    assert str(the_file(folder)) in line
    assert "blocks of 40000 x 40000 pixels" in line


@pytest.mark.parametrize("compress", ["none", "deflate"])
def test_a_cut_file(folder: Path, compress: str) -> None:
    """Found at the first look for data, or when the window is read."""
    path = write_raster(the_file(folder), some_pixels(shape=(HEIGHT, WIDTH)), compress=compress)
    path.write_bytes(path.read_bytes()[:-400])
    with pytest.raises(InputError, match="damaged raster") as caught:
        read(folder)
    assert str(path) in str(caught.value)


def test_a_file_that_shrinks_while_it_is_read(folder: Path) -> None:
    (series,) = open_stack(folder)
    series.close()  # as if so many files were read that this one had to be closed
    write_raster(the_file(folder), some_pixels(shape=(10, 10)))
    with pytest.raises(InputError, match="changed while it was read"):
        series.read(WHOLE)
    series.close()


def test_refused_files_are_not_held_open(folder: Path) -> None:
    write_raster(the_file(folder), some_pixels(), shift=(5, 0))
    refusal(folder, InputError)
    held = {Path(link).resolve() for link in Path("/proc/self/fd").iterdir() if link.exists()}
    assert not held & {path.resolve() for path in folder.iterdir()}
