"""Bands missing, grids that differ, pixels that do not coincide, wrong options: refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cropstar.errors import UsageError
from cropstar.sources.sentinel2 import Sentinel2Options, find_products, open_series
from tests.sources.examples.safe import CORNER, HEIGHT, WIDTH, band_file, some_pixels, write_band, write_product
from tests.sources.sentinel2.reading import read, refusal

NEAREST = Sentinel2Options(resampling="nearest")


@pytest.mark.parametrize("band", ["B02", "B05", "SCL"])
def test_a_band_missing_on_one_date(tmp_path: Path, band: str) -> None:
    write_product(tmp_path, day="2023-05-01")
    safe = write_product(tmp_path, day="2023-05-11")
    band_file(safe, band).unlink()
    line = refusal(tmp_path)
    assert "2023-05-11" in line
    assert f"has no {band}" in line
    assert "2023-05-01" not in line


def test_a_band_that_is_asked_for_and_nowhere(tmp_path: Path) -> None:
    write_product(tmp_path)
    assert "has no B11" in refusal(tmp_path, Sentinel2Options(("B02", "B11")))


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"corner": (CORNER[0] + 10, CORNER[1])}, "a shift of 10 x 0 m (1 x 0 pixels)"),
        ({"corner": (CORNER[0], CORNER[1] - 3)}, "a shift of 0 x -3 m (0 x -0.3 pixels)"),
        ({"epsg": 32633}, "EPSG:32633 instead of EPSG:32632"),
        ({"pixels": {"B02": np.ones((24, 20), np.uint16)}}, "20 x 24 pixels instead of 20 x 25"),
    ],
)
def test_grids_that_differ_between_dates(tmp_path: Path, other: dict[str, object], words: str) -> None:
    write_product(tmp_path, day="2023-05-01")
    write_product(tmp_path, day="2023-05-11", **other)  # type: ignore[arg-type]
    line = refusal(tmp_path)
    assert words in line
    assert "S2A_MSIL2A_20230501T102031" in line
    assert "S2A_MSIL2A_20230511T102031" in line


@pytest.mark.parametrize(
    ("band", "resolution", "corner", "epsg", "words"),
    [
        ("B05", 20, (CORNER[0] + 3, CORNER[1]), 32632, "shifted by 0.3 x 0 pixels"),
        ("SCL", 20, (CORNER[0], CORNER[1] + 5), 32632, "shifted by 0 x -0.5 pixels"),
        ("B05", 15, CORNER, 32632, "its pixels are 1.5 x 1.5"),
        ("B05", 20, CORNER, 32631, "EPSG:32631 instead of EPSG:32632"),
        ("B05", 20, (CORNER[0] + 40, CORNER[1]), 32632, "does not cover"),
        ("B03", 10, (CORNER[0] - 10, CORNER[1]), 32632, "does not cover"),
    ],
)
def test_bands_that_do_not_fit_the_grid(
    tmp_path: Path, band: str, resolution: float, corner: tuple[float, float], epsg: int, words: str
) -> None:
    safe = write_product(tmp_path, bands=("B02", "B03", "B05", "SCL"))
    file = band_file(safe, band)
    file.unlink()
    write_band(file, some_pixels(band), resolution, epsg=epsg, corner=corner)
    line = refusal(safe)
    assert words in line
    assert file.name in line


def test_a_band_of_the_finest_resolution_has_the_very_grid(tmp_path: Path) -> None:
    larger = np.ones((HEIGHT + 1, WIDTH), dtype=np.uint16)
    safe = write_product(tmp_path, bands=("B02", "B03", "SCL"), pixels={"B03": larger})
    assert "20 x 26 pixels instead of 20 x 25 as the grid has" in refusal(safe)


def test_a_coarse_grid_half_a_pixel_off_is_placed_right(tmp_path: Path) -> None:
    safe = write_product(tmp_path)
    file = band_file(safe, "B05")
    file.unlink()
    pixels = np.arange(1, 155, dtype=np.uint16).reshape(14, 11)
    write_band(file, pixels, 20, corner=(CORNER[0] - 10, CORNER[1] + 10))
    values = read(safe, NEAREST)[1].values[0, 1]
    assert np.array_equal(values, pixels.repeat(2, axis=0).repeat(2, axis=1)[1 : HEIGHT + 1, 1 : WIDTH + 1])


@pytest.mark.parametrize(
    ("bands", "resampling", "clear", "words"),
    [
        (("B02", "XY"), "bilinear", (4,), "unknown Sentinel-2 L2A band 'XY'"),
        (("SCL",), "bilinear", (4,), "unknown Sentinel-2 L2A band 'SCL'"),
        (("B02", "B13"), "bilinear", (4,), "unknown Sentinel-2 L2A band 'B13'"),
        (("B10",), "bilinear", (4,), "unknown Sentinel-2 L2A band 'B10'"),
        ((), "bilinear", (4,), "no band is named"),
        (None, "bilinaer", (4,), "did you mean 'bilinear'"),
        (None, "bilinear", (0, 4), "scene classes are 1 to 11: got 0"),
        (None, "bilinear", (), "scene classes are 1 to 11"),
    ],
)
def test_wrong_options(bands: tuple[str, ...] | None, resampling: str, clear: tuple[int, ...], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Sentinel2Options(bands, resampling, clear)


def test_a_series_of_no_products_is_refused() -> None:
    assert find_products([]) == []
    assert open_series([]) == []
