"""Label rasters: burnt back they are the raster, areas are parcels, and other grids follow the rule of centres."""

from __future__ import annotations

import logging
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import h5py
import numpy as np
import pytest
import rasterio
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

import cropstar
from cropstar.errors import InputError, UsageError
from cropstar.geo.grid import Grid
from cropstar.geo.windows import Window, split
from cropstar.sources.class_rules import read_rules
from cropstar.sources.labels import Parcels, read_parcels
from cropstar.store.classes import UNLABELLED
from cropstar.store.store import Store
from tests.examples import a_grid

GRID = a_grid(20, 30)


def write_labels(path: Path, codes: NDArray[Any], grid: Grid = GRID, **profile: Any) -> Path:
    shape = {"height": codes.shape[0], "width": codes.shape[1], "count": 1, "dtype": codes.dtype}
    place = {"crs": grid.rasterio_crs, "transform": grid.affine}
    with rasterio.open(path, "w", driver="GTiff", **shape, **place, **profile) as dataset:
        dataset.write(codes, 1)
    return path


def codes_of(parcels: Parcels, grid: Grid = GRID) -> NDArray[np.int64]:
    """The codes that were burnt, 0 where nothing was."""
    labels, numbers = parcels.burn(grid)
    assert np.array_equal(labels == UNLABELLED, numbers == 0)
    names = np.array([*(int(name) for name in parcels.classes.names), 0])
    return names[labels]


def naive_areas(codes: NDArray[Any]) -> NDArray[np.int64]:
    """Connected areas of equal codes, filled pixel by pixel."""
    areas = np.zeros(codes.shape, dtype=np.int64)
    for start in zip(*np.nonzero(codes), strict=True):
        if areas[start]:
            continue
        number, front = areas.max() + 1, [start]
        areas[start] = number
        while front:
            row, column = front.pop()
            for near in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
                inside = 0 <= near[0] < codes.shape[0] and 0 <= near[1] < codes.shape[1]
                if inside and not areas[near] and codes[near] == codes[start]:
                    areas[near] = number
                    front.append(near)
    return areas


@given(codes=arrays(np.uint16, (20, 30), elements=st.sampled_from([0, 0, 7, 7, 1110, 65000])))
def test_burnt_back_it_is_the_raster(codes: NDArray[np.uint16]) -> None:
    if not codes.any():
        codes[3, 3] = 7
    with TemporaryDirectory() as folder:
        parcels = read_parcels(write_labels(Path(folder) / "labels.tif", codes), GRID)
    assert np.array_equal(codes_of(parcels), codes)
    pieces = np.zeros(GRID.shape, dtype=np.int64)
    for window in split(GRID.shape, 13):
        pieces[window.slices] = parcels.burn(GRID.crop(window))[1]
    areas = naive_areas(codes)
    pairs = {(int(area), int(number)) for area, number in zip(areas.ravel(), pieces.ravel(), strict=True)}
    assert len(pairs) == len({area for area, _ in pairs}) == len({number for _, number in pairs})
    # An area is called after its first pixel, whichever part of the raster was read.
    first = {int(area): divmod(int(np.flatnonzero(areas == area)[0]), 30) for area in range(1, areas.max() + 1)}
    keys = dict(zip(parcels.table.numbers.tolist(), parcels.table.keys, strict=True))
    for area, number in pairs - {(0, 0)}:
        assert keys[number] == f"{first[area][0]}-{first[area][1]}"


@pytest.mark.parametrize("factor", [2, 0.5])
def test_on_another_grid_a_pixel_has_the_code_at_its_centre(
    tmp_path: Path, factor: float, caplog: pytest.LogCaptureFixture
) -> None:
    a, b, c, d, e, f = GRID.transform
    other = Grid(GRID.crs, (a * factor, b, c - 43, d, e * factor, f + 61), 60, 90)
    codes = np.random.default_rng(0).integers(0, 4, other.shape).astype(np.uint8)
    path = write_labels(tmp_path / "labels.tif", codes, other)
    with caplog.at_level(logging.WARNING):
        parcels = read_parcels(path, GRID)
    assert "lies on another grid than the images: each pixel has the label at its centre" in caplog.text
    inverse = ~other.affine
    expected = np.zeros(GRID.shape, dtype=np.int64)
    for row in range(20):
        for column in range(30):
            x, y = inverse @ (GRID.affine @ (column + 0.5, row + 0.5))
            if 0 <= y < 60 and 0 <= x < 90:
                expected[row, column] = codes[int(y), int(x)]
    assert np.array_equal(codes_of(parcels), expected)


@pytest.mark.parametrize("way", ["a part", "from the south"])
def test_the_same_pixels_are_no_other_grid(tmp_path: Path, way: str, caplog: pytest.LogCaptureFixture) -> None:
    codes = np.random.default_rng(0).integers(0, 4, GRID.shape).astype(np.uint8)
    a, b, c, d, e, f = GRID.transform
    if way == "a part":
        own, written = GRID.crop(Window(2, 3, 15, 20)), codes[2:17, 3:23]
        expected = np.zeros(GRID.shape, dtype=np.int64)
        expected[2:17, 3:23] = written
    else:
        own, written = Grid(GRID.crs, (a, b, c, d, -e, f + e * GRID.height), *GRID.shape), codes[::-1]
        expected = codes.astype(np.int64)
    with caplog.at_level(logging.WARNING):
        parcels = read_parcels(write_labels(tmp_path / "labels.tif", written, own), GRID)
    assert "another grid" not in caplog.text
    assert np.array_equal(codes_of(parcels), expected)


def test_classes_nodata_and_erosion(tmp_path: Path) -> None:
    codes = np.zeros((20, 30), dtype=np.int16)
    codes[2:10, 2:10], codes[2:10, 12:20], codes[12:18, 2:20], codes[12:18, 22:28] = 5, 6, 7, -9999
    path = write_labels(tmp_path / "labels.tif", codes, nodata=-9999)
    (tmp_path / "classes.yaml").write_text("cereals: [5, 6]\ndrop: [7]\n")
    rules = read_rules(tmp_path / "classes.yaml")
    parcels = read_parcels(path, GRID, rules=rules, erode=10)
    labels, numbers = parcels.burn(GRID)
    assert parcels.classes.names == ["cereals"]
    assert (labels == 0).sum() == 2 * 36
    assert len(set(numbers[labels == 0])) == 2


def test_flanders(real_data: Path, tmp_path: Path) -> None:
    """A variable of a NetCDF file, against h5py's reading of it."""
    (path,) = (real_data / "flanders" / "0000280849BAC91C").glob("OUTPUT_*.nc")
    with h5py.File(path) as file:
        codes, x, y = file["CT"][()], file["x"][()], file["y"][()]
    grid = Grid(GRID.rasterio_crs.from_epsg(32631).to_wkt(), (10, 0, x[0] - 5, 0, -10, y[0] + 5), *codes.shape)
    assert np.array_equal(codes_of(read_parcels(path, grid, label_column="CT"), grid), codes)
    assert np.array_equal(codes_of(read_parcels(path, grid), grid), codes)  # of WorldCereal's three, the crop types
    with pytest.raises(UsageError, match="no variable 'CROP'"):
        read_parcels(path, grid, label_column="CROP")
    with pytest.raises(InputError, match="does not cover the images"):
        read_parcels(path, GRID, label_column="CT")


def test_through_ingest(small_scene: Path, small_store: Path, tmp_path: Path) -> None:
    """The demonstration's labels as a raster give its store's labels."""
    with rasterio.open(small_scene / "tile.tif") as dataset:
        grid = Grid.of(dataset)
    codes = np.zeros(grid.shape, dtype=np.uint8)
    store = Store.open(small_store)
    names = store.fingerprint.classes.names
    for entry, reader in store.readers():
        top, left = (int(part[1:]) for part in entry.name.split("-")[-2:])
        own = reader.labels() + 1
        codes[top : top + own.shape[0], left : left + own.shape[1]] = own
    store.close()
    write_labels(tmp_path / "labels.tif", codes, grid)
    lines = [f"{name}: ['{number}']" for number, name in enumerate(names, 1)]
    (tmp_path / "classes.yaml").write_text("\n".join(lines))
    output = tmp_path / "store"
    cropstar.ingest(
        small_scene / "tile.tif",
        parcels=tmp_path / "labels.tif",
        classes=tmp_path / "classes.yaml",
        tile_size=48,
        output=output,
    )
    made, before = Store.open(output), Store.open(small_store)
    assert made.fingerprint.classes.names == names
    for mine, theirs in zip(made.tiles, before.tiles, strict=True):
        assert np.array_equal(mine.labels(), theirs.labels())
    made.close()
    before.close()


def test_what_is_refused(tmp_path: Path) -> None:
    fractions = write_labels(tmp_path / "a.tif", np.full((20, 30), 0.5, dtype=np.float32))
    with pytest.raises(InputError, match=r"not a label raster .* with fractions"):
        read_parcels(fractions, GRID)
    empty = write_labels(tmp_path / "b.tif", np.zeros((20, 30), dtype=np.uint8))
    with pytest.raises(InputError, match="no labelled parcel lies on the scene"):
        read_parcels(empty, GRID)
    (tmp_path / "c.nc").write_text("CDF")
    with pytest.raises(InputError, match="not NetCDF-4 that can be read"):
        read_parcels(tmp_path / "c.nc", GRID)
    with h5py.File(tmp_path / "d.nc", "w") as file:
        file["CT"], file["x"] = np.ones((4, 4), dtype=np.int16), np.arange(4.0)
        file["y"] = np.array([0.0, 1, 2, 4])
    with pytest.raises(InputError, match="irregular coordinates 'y'"):
        read_parcels(tmp_path / "d.nc", GRID)
    with h5py.File(tmp_path / "d.nc", "a") as file:
        file["y"][...] = np.arange(4.0)
    with pytest.raises(InputError, match=r"no coordinate system .* no crs_wkt"):
        read_parcels(tmp_path / "d.nc", GRID)
    with h5py.File(tmp_path / "d.nc", "a") as file:
        file["winter"] = np.ones((4, 4), dtype=np.int16)
    with pytest.raises(UsageError, match=r"which variable has the labels .* CT, winter; name it with --label-column"):
        read_parcels(tmp_path / "d.nc", GRID)
    with pytest.raises(UsageError, match="no band 'crop'"):
        read_parcels(empty, GRID, label_column="crop")


def test_two_bands_of_one_name(tmp_path: Path) -> None:
    """The first one was taken."""
    path = write_labels(tmp_path / "labels.tif", np.ones(GRID.shape, dtype=np.uint8))
    with rasterio.open(path) as dataset:
        profile, codes = dataset.profile, dataset.read(1)
    with rasterio.open(path, "w", **{**profile, "count": 2}) as dataset:
        for band in (1, 2):
            dataset.write(codes, band)
            dataset.set_band_description(band, "crops")
    with pytest.raises(UsageError, match=r"which band 'crops'.*2 bands are called so; give its number"):
        read_parcels(path, GRID, label_column="crops")
    assert len(read_parcels(path, GRID, label_column="2").table.keys) == 1
