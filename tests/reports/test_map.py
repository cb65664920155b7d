"""The picture of a map: colours in the right places and shares, whatever the names and the shape."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from rasterio.crs import CRS

from cropstar.errors import InputError, MismatchError
from cropstar.geo.grid import Grid, hectares_per_pixel
from cropstar.reports.drawing import Ruler, round_length
from cropstar.reports.map import NODATA_GROUND, NODATA_LINES, draw_map
from cropstar.reports.wording import printable
from cropstar.store.classes import ClassTable

UTM = CRS.from_epsg(32632).to_wkt()
THREE = ClassTable.from_names(["maize", "meadow", "rapeseed"])


def grid_of(raster: NDArray[np.uint8], crs: str = UTM, resolution: float = 10.0) -> Grid:
    height, width = raster.shape
    return Grid(crs, (resolution, 0.0, 500_000.0, 0.0, -resolution, 5_200_000.0), height, width)


def draw(path: Path, raster: NDArray[np.uint8], classes: ClassTable = THREE, crs: str = UTM) -> NDArray[np.int32]:
    """Draw without a single warning and give back the pixels, each as the number 0xrrggbb."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw_map(path, raster, grid_of(raster, crs), classes, title="Crops of 2023")
    with Image.open(path) as image:
        assert image.format == "PNG"
        red, green, blue = (np.asarray(band, dtype=np.int32) for band in image.convert("RGB").split())
    return red << 16 | green << 8 | blue


def count_colour(pixels: NDArray[np.int32], colour: str) -> int:
    return int(np.count_nonzero(pixels == int(colour[1:], 16)))


def test_classes_appear_in_their_colours_and_shares(tmp_path: Path) -> None:
    raster = np.zeros((400, 400), dtype=np.uint8)
    raster[:, 240:] = 1
    raster[:, 360:] = 2
    pixels = draw(tmp_path / "map.png", raster)
    painted = np.array([count_colour(pixels, entry.colour) for entry in THREE])
    assert painted / painted.sum() == pytest.approx([0.6, 0.3, 0.1], abs=0.01)
    # Classes keep their places: the first lies to the left of the second, the second of the third.
    row = pixels[pixels.shape[0] // 2]
    places = [np.flatnonzero(row == int(entry.colour[1:], 16)).mean() for entry in THREE]
    assert places == sorted(places)


def test_no_data_is_never_a_class(tmp_path: Path) -> None:
    raster = np.full((100, 100), 255, dtype=np.uint8)
    raster[:50] = 1
    pixels = draw(tmp_path / "map.png", raster)
    assert count_colour(pixels, THREE[0].colour) == count_colour(pixels, THREE[2].colour) == 0
    missing = count_colour(pixels, NODATA_GROUND) + count_colour(pixels, NODATA_LINES)
    assert missing == pytest.approx(count_colour(pixels, THREE[1].colour), rel=0.01)


def test_a_map_without_any_data(tmp_path: Path) -> None:
    pixels = draw(tmp_path / "map.png", np.full((30, 40), 255, dtype=np.uint8))
    assert all(count_colour(pixels, entry.colour) == 0 for entry in THREE)


@pytest.mark.parametrize("shape", [(1, 300), (300, 1), (1, 1), (20, 700), (700, 20)])
def test_strips_and_single_pixels_are_seen(tmp_path: Path, shape: tuple[int, int]) -> None:
    raster = np.zeros(shape, dtype=np.uint8)
    raster[shape[0] // 2 :, shape[1] // 2 :] = 2
    pixels = draw(tmp_path / "map.png", raster)
    assert count_colour(pixels, THREE[2].colour) > 2000
    assert max(pixels.shape) < 3500


def test_many_classes_and_odd_names(tmp_path: Path) -> None:
    odd = [
        "$x_1$",
        "$\\frac{",
        "<script>",
        "_hidden",
        "a & b",
        "new\nline\x00",
        "a very long name " * 20,
        "\u751c\u83dc",
    ]
    classes = ClassTable.from_names([*odd, *(f"crop {number}" for number in range(35 - len(odd)))])
    for number, shape in enumerate([(70, 70), (70, 350)]):
        raster = (np.arange(shape[0] * shape[1], dtype=np.int64) // 7 % 35).astype(np.uint8).reshape(shape)
        pixels = draw(tmp_path / f"{number}.png", raster, classes)
        assert all(count_colour(pixels, entry.colour) > 500 for entry in classes)
        assert max(pixels.shape) < 3500


@pytest.mark.parametrize("crs", [CRS.from_epsg(4326).to_wkt(), ""])
def test_without_metres_there_are_no_hectares(tmp_path: Path, crs: str) -> None:
    raster = np.zeros((60, 60), dtype=np.uint8)
    assert hectares_per_pixel(grid_of(raster, crs)) is None
    metric = draw(tmp_path / "metric.png", raster)
    other = draw(tmp_path / "other.png", raster, crs=crs)
    assert other.shape[1] < metric.shape[1], "the legend has a column less"
    assert other.shape[0] < metric.shape[0], "the scale bar is left out"


def test_feet_are_not_taken_for_metres() -> None:
    raster = np.zeros((2, 2), dtype=np.uint8)
    feet = grid_of(raster, CRS.from_epsg(2263).to_wkt(), 100.0)
    assert hectares_per_pixel(feet) == pytest.approx(0.0929, rel=1e-3)
    assert hectares_per_pixel(grid_of(raster)) == pytest.approx(0.01)


def test_the_same_map_is_the_same_bytes(tmp_path: Path) -> None:
    raster = np.arange(900, dtype=np.int64).reshape(30, 30).astype(np.uint8) % 3
    draw(tmp_path / "first.png", raster)
    draw(tmp_path / "second.png", raster)
    assert (tmp_path / "first.png").read_bytes() == (tmp_path / "second.png").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first.png", "second.png"]


def test_what_does_not_fit_is_refused_before_a_file_exists(tmp_path: Path) -> None:
    raster = np.full((4, 4), 7, dtype=np.uint8)
    with pytest.raises(MismatchError, match="7"):
        draw_map(tmp_path / "map.png", raster, grid_of(raster), THREE, title="")
    with pytest.raises(MismatchError, match="shape"):
        draw_map(tmp_path / "map.png", raster[:2], grid_of(raster), THREE, title="")
    with pytest.raises(InputError, match="no pixels"):
        draw_map(tmp_path / "map.png", raster[:0], grid_of(raster[:0]), THREE, title="")
    assert not list(tmp_path.iterdir())


def test_scale_bars_have_round_lengths() -> None:
    lengths = [round_length(longest) for longest in (0.7, 1.0, 4.99, 5.0, 19.0, 2400.0, 100_000.0)]
    assert lengths == pytest.approx([0.5, 1.0, 2.0, 5.0, 10.0, 2000.0, 100_000.0])


def test_text_is_made_to_fit() -> None:
    ruler = Ruler(10.0)
    name = "winter wheat, sown late and under glass, organic"
    short = ruler.shorten(name, 1.5)
    assert ruler.width(short) <= 1.5
    assert short.startswith("winter")
    assert short.endswith("organic")
    assert ruler.shorten("oat", 1.5) == "oat"
    lines = ruler.wrap(name * 5, 2.0)
    assert len(lines) == 2
    assert all(ruler.width(line) <= 2.0 for line in lines)
    assert printable(" a\tb\n\x07 c ") == "a b c"
