"""Stacks as people have them: fractions, indices among the bands, sits' cubes, Landsat and HLS, grids of degrees."""

from __future__ import annotations

import logging
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from numpy.typing import NDArray

import cropstar
from cropstar.errors import InputError, UsageError
from cropstar.geo.grid import Grid
from cropstar.geo.windows import Window
from cropstar.sources.stack import StackOptions, open_stack
from tests.examples import a_grid
from tests.sources.examples.stacks import write_four_fields, write_stack

WHOLE = Window(0, 0, 20, 30)
GRID = a_grid(20, 30)


def write_band(path: Path, pixels: NDArray[Any], grid: Grid = GRID, **profile: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    size = {"height": pixels.shape[0], "width": pixels.shape[1], "count": 1, "dtype": pixels.dtype}
    place = {"crs": grid.rasterio_crs, "transform": grid.affine}
    with rasterio.open(path, "w", driver="GTiff", **size, **place, **profile) as dataset:
        dataset.write(pixels, 1)
    return path


def reflectance(seed: int = 0, shape: tuple[int, int] = (20, 30)) -> NDArray[np.float32]:
    return np.random.default_rng(seed).uniform(0.01, 0.6, shape).astype(np.float32)


# --- fractions


def test_reflectance_as_fractions(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pixels = np.stack([reflectance(seed) for seed in range(4)])
    pixels[1, 3, 4], pixels[2, 5, 6], pixels[3, 7, 8] = np.nan, -9999, -0.02
    with caplog.at_level("INFO", logger="cropstar"):
        (series,) = open_stack(write_stack(tmp_path / "a.tif", pixels=pixels, nodata=-9999))
    assert "a.tif: fractions; reflectance = value x 1, stored in steps of 0.0001" in caplog.text
    found = series.read(WHOLE)
    assert (series.scale, series.offset) == (1e-4, 0.0)
    expected = np.ones((2, 20, 30), dtype=bool)
    expected[0, 3, 4] = expected[1, 5, 6] = False
    assert np.array_equal(found.valid, expected)
    seen = np.broadcast_to(expected[:, None], found.values.shape)
    clipped = np.clip(pixels.reshape(found.values.shape), 0, None)
    assert np.abs(found.values[seen] * 1e-4 - clipped[seen]).max() < 6e-5
    series.close()


@pytest.mark.parametrize(
    ("factor", "options"), [(10_000, {}), (100, {"scale": 0.01}), (1, {"scale": 1.0, "offset": 0.1})]
)
def test_other_fractions(tmp_path: Path, factor: float, options: dict[str, float]) -> None:
    pixels = np.stack([reflectance(seed) for seed in range(4)])
    path = write_stack(tmp_path / "a.tif", pixels=(pixels * np.float32(factor)))
    if factor == 100:
        with pytest.raises(UsageError, match=r"the scale is not clear .* --scale"):
            open_stack(write_stack(tmp_path / "b.tif", pixels=pixels * np.float32(30)))
    (series,) = open_stack(path, StackOptions(**options))
    values = series.read(WHOLE).values * series.scale + series.offset
    shift = options.get("offset", 0.0)
    assert np.abs(values - (pixels.reshape(values.shape) + shift)).max() < 1e-4
    series.close()


def test_a_folder_of_fractions_with_coarser_bands(tmp_path: Path) -> None:
    """The same values as of whole numbers, resampling included."""
    a, b, c, d, e, f = GRID.transform
    coarse = Grid(GRID.crs, (2 * a, b, c, d, 2 * e, f), 10, 15)
    fine, rough = reflectance(1), reflectance(2, (10, 15))
    fine[4, 4] = np.nan
    for kind in ("float", "whole"):
        folder = tmp_path / kind
        for name, pixels, grid in (("B04", fine, GRID), ("B11", rough, coarse)):
            counts = np.where(np.isnan(pixels), -9999, np.rint(np.nan_to_num(pixels) * 1e4)).astype(np.int16)
            path = folder / f"S2_{name}_2023-05-01.tif"
            write_band(path, pixels if kind == "float" else counts, grid, nodata=np.nan if kind == "float" else -9999)
    (floats,), (wholes,) = (open_stack(tmp_path / kind) for kind in ("float", "whole"))
    first, second = floats.read(WHOLE), wholes.read(WHOLE)
    assert np.array_equal(first.valid, second.valid)
    assert np.abs(first.values.astype(int) - second.values).max() <= 1
    floats.close()
    wholes.close()


def test_scale_and_offset_of_whole_numbers(tmp_path: Path) -> None:
    path = write_stack(tmp_path / "a.tif")
    (series,) = open_stack(path, StackOptions(scale=2e-4, offset=-0.1))
    assert (series.scale, series.offset) == (2e-4, -0.1)
    series.close()
    for wrong in ({"scale": 0.0}, {"scale": -1.0}, {"scale": float("nan")}, {"offset": float("inf")}):
        with pytest.raises(UsageError, match=r"scale|offset"):
            StackOptions(**wrong)


def test_complex_numbers_are_refused(tmp_path: Path) -> None:
    path = write_stack(tmp_path / "a.tif", pixels=np.ones((4, 20, 30), dtype=np.complex64))
    with pytest.raises(InputError, match="not a stack of reflectance"):
        open_stack(path)


def test_ingest_and_predict_fractions(small_scene: Path, tmp_path: Path) -> None:
    """The demonstration as fractions: the same store but for rounding, and the same map."""
    with rasterio.open(small_scene / "tile.tif") as dataset:
        pixels, profile, names = dataset.read(), dataset.profile, dataset.descriptions
        nodata, scale = dataset.nodata, dataset.scales[0] if dataset.scales[0] != 1 else 1e-4
    classes = np.array([name.endswith("SCL") for name in names])[:, None, None]
    values = np.where(classes, pixels, pixels * np.float64(scale)).astype(np.float32)
    if nodata is not None:
        values[(pixels == nodata) & ~classes] = np.nan
    with rasterio.open(tmp_path / "tile.tif", "w", **{**profile, "dtype": "float32", "nodata": np.nan}) as dataset:
        dataset.write(values)
        dataset.descriptions = names
    (floats,), (wholes,) = open_stack(tmp_path / "tile.tif"), open_stack(small_scene / "tile.tif")
    whole = Window(0, 0, 96, 96)
    first, second = floats.read(whole), wholes.read(whole)
    assert (first.valid == second.valid).mean() > 0.999
    both = np.broadcast_to((first.valid & second.valid)[:, None], first.values.shape)
    assert np.abs(first.values[both].astype(int) - second.values[both]).max() <= 1
    floats.close()
    wholes.close()
    store = cropstar.ingest(
        tmp_path / "tile.tif", parcels=small_scene / "parcels.gpkg", tile_size=48, output=tmp_path / "store"
    )
    assert store.bands == tuple(wholes.bands)


# --- names


def test_indices_are_left_out_with_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for day in ("2022-01-05", "2022-01-21"):
        for band in ("B02", "B08", "NDVI", "EVI"):
            pixels = np.full((20, 30), 2000, dtype=np.int16)
            write_band(tmp_path / f"SENTINEL-2_MSI_20LMR_{band}_{day}.tif", pixels, nodata=-9999)
    with caplog.at_level(logging.WARNING):
        (series,) = open_stack(tmp_path)
    assert series.bands == ("B02", "B08")
    told = [record.getMessage() for record in caplog.records if "indices" in record.getMessage()]
    assert told == ["4 files of indices left out: EVI, NDVI are not bands"]
    series.close()


def test_a_cube_of_sits(tmp_path: Path) -> None:
    """Names, type and nodata as sits writes them; its CLOUD band is the scene classification."""
    clouds = np.full((20, 30), 4, dtype=np.uint8)
    clouds[:5] = 9
    for number, day in enumerate(("2022-01-05", "2022-01-21")):
        for band in ("B02", "B8A", "B11"):
            pixels = np.full((20, 30), 1000 + number, dtype=np.int16)
            pixels[10, 10] = -9999
            write_band(tmp_path / f"SENTINEL-2_MSI_20LMR_{band}_{day}.tif", pixels, nodata=-9999)
        write_band(tmp_path / f"SENTINEL-2_MSI_20LMR_CLOUD_{day}.tif", clouds)
    write_four_fields(tmp_path / "samples.gpkg")
    (series,) = open_stack(tmp_path)
    assert (series.name, series.bands) == ("T20LMR-2022", ("B02", "B8A", "B11"))
    found = series.read(WHOLE)
    assert found.valid.sum() == 2 * (15 * 30 - 1)
    assert set(found.values[1][:, found.valid[1]].ravel()) == {1001}
    series.close()
    store = cropstar.ingest(tmp_path, output=tmp_path / "store")
    assert store.dates == (date(2022, 1, 5), date(2022, 1, 21))


def test_landsat_collection_2(tmp_path: Path) -> None:
    quality = np.full((20, 30), 21824, dtype=np.uint16)  # clear
    quality[0, 0], quality[0, 1], quality[0, 2], quality[0, 3] = 22280, 23888, 1, 21952  # cloud, shadow, fill, water
    for satellite, layers in (("LC08", (2, 4, 5, 6, 7)), ("LE07", (1, 3, 4, 5, 7))):
        folder = tmp_path / satellite
        start = f"{satellite}_L2SP_226068_20220105_20220112_02_T1"
        for layer in layers:
            write_band(
                folder / f"{start}_SR_B{layer}.TIF", np.full((20, 30), 10_000 + layer, dtype=np.uint16), nodata=0
            )
        for companion in ("ST_B10", "SR_QA_AEROSOL", "QA_RADSAT"):
            write_band(folder / f"{start}_{companion}.TIF", np.ones((20, 30), dtype=np.uint16))
        write_band(folder / f"{start}_QA_PIXEL.TIF", quality, nodata=1)
        (series,) = open_stack(folder)
        assert series.bands == ("B02", "B04", "B8A", "B11", "B12")
        assert (series.scale, series.offset) == (2.75e-5, -0.2)
        assert series.dates == (date(2022, 1, 5),)
        found = series.read(WHOLE)
        assert np.flatnonzero(~found.valid[0].ravel()).tolist() == [0, 1, 2]
        assert found.values[0, :, 5, 5].tolist() == [10_000 + layer for layer in layers]
        series.close()


def test_harmonised_landsat_and_sentinel(tmp_path: Path) -> None:
    """Both sensors of HLS are one series of common bands."""
    mask = np.zeros((20, 30), dtype=np.uint8)
    mask[0, :4] = 2, 8, 255, 32  # cloud, shadow, nothing, water
    layers = {"S30": {"B02": "B02", "B8A": "B8A", "B12": "B12"}, "L30": {"B02": "B02", "B05": "B8A", "B07": "B12"}}
    for number, (kind, names) in enumerate(layers.items()):
        start = f"HLS.{kind}.T20LMR.202200{5 + number}T141739.v2.0"
        for name in names:
            write_band(tmp_path / f"{start}.{name}.tif", np.full((20, 30), 500 + number, np.int16), nodata=-9999)
        for name in ("SZA", "VAA", "B10"):
            write_band(tmp_path / f"{start}.{name}.tif", np.ones((20, 30), dtype=np.uint16))
        write_band(tmp_path / f"{start}.Fmask.tif", mask, nodata=255)
    (series,) = open_stack(tmp_path)
    assert series.bands == ("B02", "B8A", "B12")
    assert series.dates == (date(2022, 1, 5), date(2022, 1, 6))
    found = series.read(WHOLE)
    assert np.flatnonzero(~found.valid[0].ravel()).tolist() == [0, 1, 2]
    assert found.values[:, 1, 9, 9].tolist() == [500, 501]
    series.close()


def test_degrees_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    where = {"crs": "EPSG:4326", "transform": rasterio.Affine(1e-4, 0, 10, 0, -1e-4, 48)}
    path = write_stack(tmp_path / "a.tif", **where)
    with caplog.at_level(logging.WARNING):
        (series,) = open_stack(path)
    assert "pixels are degrees" in caplog.text
    series.close()
