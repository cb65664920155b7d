"""Cubes: values equal xarray's own reading whatever the order of axes, and every bad cube is one line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import rasterio
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.transform import from_origin

from cropstar.errors import InputError, UsageError
from cropstar.geo.sensors import DECIBEL_OFFSET, DECIBEL_SCALE
from cropstar.geo.windows import Window
from cropstar.sources.catalogue import guess_source, open_raster_series
from cropstar.sources.cube import CubeOptions, open_cubes
from cropstar.sources.multisensor import SensorSeries, sensor_numbers
from cropstar.sources.radar import RadarSeries

xarray = pytest.importorskip("xarray")
pytest.importorskip("h5netcdf")

LEFT, TOP = 500_000.0, 5_600_000.0
WHOLE = Window(0, 0, 8, 12)
NEAREST = CubeOptions(resampling="nearest")
DAYS = ("2018-03-04T10:50", "2018-03-09T10:50", "2018-03-14T10:50")


def a_cube(
    bands: dict[str, NDArray[Any]],
    size: float,
    days: tuple[str, ...] = DAYS,
    attributes: dict[str, Any] | None = None,
    left: float = LEFT,
) -> Any:
    """Bands (t, y, x), or (y, x), with centres of pixels as coordinates."""
    height, width = next(iter(bands.values())).shape[-2:]
    data = {name: (("t", "y", "x")[-values.ndim :], values, dict(attributes or {})) for name, values in bands.items()}
    coordinates = {
        "t": np.array(days, dtype="datetime64[ns]"),
        "y": TOP - size * (np.arange(height) + 0.5),
        "x": left + size * (np.arange(width) + 0.5),
        "spatial_ref": ((), 0, {"crs_wkt": CRS.from_epsg(32631).to_wkt()}),
    }
    return xarray.Dataset(data, coordinates)


def optical(seed: int = 0, dates: int = 3) -> dict[str, NDArray[Any]]:
    random = np.random.default_rng(seed)
    return {name: random.integers(1, 9000, (dates, 8, 12)).astype(np.uint16) for name in ("B04", "B02")}


def coarse(dates: int = 3) -> dict[str, NDArray[Any]]:
    random = np.random.default_rng(5)
    scl = random.choice([4, 5, 9], (dates, 4, 6)).astype(np.uint8)
    return {"B11": random.integers(1, 9000, (dates, 4, 6)).astype(np.uint16), "SCL": scl}


def radar(dates: int = 4) -> dict[str, NDArray[Any]]:
    random = np.random.default_rng(7)
    return {
        "VH": random.normal(-18, 2, (dates, 4, 6)).astype(np.float32),
        "VV": random.normal(-11, 2, (dates, 4, 6)).astype(np.float32),
    }


RADAR_DAYS = ("2018-03-04T17:32", "2018-03-10T17:32", "2018-03-10T17:33", "2018-03-16T17:32")


def a_folder(path: Path, *, with_radar: bool = True) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    a_cube(optical(), 10, attributes={"_FillValue": np.uint16(0)}).to_netcdf(path / "S2_10m.nc", engine="h5netcdf")
    a_cube(coarse(), 20).to_netcdf(path / "S2_20m.nc", engine="h5netcdf")
    if with_radar:
        a_cube(radar(), 20, RADAR_DAYS).to_netcdf(path / "S1_GRD-ASCENDING_20m.nc", engine="h5netcdf")
    return path


def up(values: NDArray[Any]) -> NDArray[Any]:
    return values.repeat(2, axis=-2).repeat(2, axis=-1)


def test_two_resolutions_and_radar(tmp_path: Path) -> None:
    series = open_cubes(a_folder(tmp_path / "patch"), NEAREST)
    assert isinstance(series, SensorSeries)
    assert [(sensor.name, sensor.bands) for sensor in series.sensors] == [
        ("S2", ("B02", "B04", "B11")),
        ("S1-ASC", ("VV", "VH")),
    ]
    assert sensor_numbers(series).tolist() == [0, 1, 0, 1, 0, 1]
    read = series.read(WHOLE)
    clear = np.isin(up(coarse()["SCL"]), (2, 4, 5, 6, 7))
    assert np.array_equal(read.valid[sensor_numbers(series) == 0], clear)
    bands = np.stack([optical()["B02"], optical()["B04"], up(coarse()["B11"])], axis=1)
    found = read.values[sensor_numbers(series) == 0][:, :3]
    assert np.array_equal(found, bands * clear[:, None])
    decibels = read.values[sensor_numbers(series) == 1][:, 3:] * DECIBEL_SCALE + DECIBEL_OFFSET
    expected = np.stack([up(radar()["VV"]), up(radar()["VH"])], axis=1)[[0, 1, 3]]  # of two on one day the first
    assert decibels == pytest.approx(expected, abs=DECIBEL_SCALE / 2 + 1e-4)
    part = Window(1, 3, 5, 4)
    assert np.array_equal(series.read(part).values, read.values[:, :, 1:6, 3:7])


@pytest.mark.parametrize("way", ["turned", "axes", "bands", "zarr", "netcdf3", "reflectance", "scaled"])
def test_as_people_write_them(tmp_path: Path, way: str) -> None:
    plain = a_cube(optical(), 10)
    path, cube = tmp_path / "cube.nc", plain
    if way == "turned":
        cube = plain.isel(y=slice(None, None, -1), x=slice(None, None, -1))
    elif way == "axes":
        cube = plain.transpose("x", "y", "t").rename({"t": "time"})
    elif way == "bands":
        cube = plain.to_array("bands", name="images").transpose("t", "bands", "y", "x").to_dataset()
        cube = cube.assign_coords(spatial_ref=plain.spatial_ref)
    elif way == "reflectance":
        cube = plain.assign({name: (plain[name] * 1e-4).astype(np.float32) for name in ("B02", "B04")})
    elif way == "scaled":
        attributes = {"scale_factor": 5e-5, "add_offset": -0.1}
        cube = plain.assign({name: ((plain[name].astype(np.uint32) + 1000) * 2) for name in ("B02", "B04")})
        for name in ("B02", "B04"):
            cube[name].attrs = attributes
    if way == "zarr":
        pytest.importorskip("zarr")
        path = tmp_path / "cube.zarr"
        cube.to_zarr(path)
    else:
        if way == "netcdf3":
            cube = cube.astype(np.int32)
        cube.to_netcdf(path, engine="scipy" if way == "netcdf3" else "h5netcdf")
    assert guess_source(path) == "cube"
    series = open_cubes(path)
    assert series.bands == ("B02", "B04")
    assert series.grid.transform == (10.0, 0.0, LEFT, 0.0, -10.0, TOP)
    read = series.read(WHOLE)
    assert np.array_equal(read.values, np.stack([optical()["B02"], optical()["B04"]], axis=1))
    assert read.valid.all()


def test_linear_power_is_told(tmp_path: Path) -> None:
    power = {name: (10 ** (values / 10)).astype(np.float32) for name, values in radar(3).items()}
    a_cube(power, 20).to_netcdf(tmp_path / "s1.nc", engine="h5netcdf")
    series = open_cubes(tmp_path / "s1.nc")
    assert series.provenance["backscatter"] == "linear"
    found = series.read(Window(0, 0, 4, 6)).values * DECIBEL_SCALE + DECIBEL_OFFSET
    expected = np.stack([radar(3)["VV"], radar(3)["VH"]], axis=1)
    assert found == pytest.approx(expected, abs=DECIBEL_SCALE / 2 + 1e-4)


@pytest.mark.parametrize("linear", [[4], [step for step in range(120) if step != 4]])
def test_a_single_date_in_another_unit(tmp_path: Path, linear: list[int]) -> None:
    """One of many dates hardly shows in a share of all values."""
    days = tuple(str(np.datetime64("2018-03-01") + step) for step in range(120))
    bands = radar(120)
    for values in bands.values():
        values[linear] = 10 ** (values[linear] / 10)
    a_cube(bands, 20, days).to_netcdf(tmp_path / "s1.nc", engine="h5netcdf")
    with pytest.raises(InputError, match=r"unclear backscatter in 'V[VH]' .* 1 of 120 dates cannot be"):
        open_cubes(tmp_path / "s1.nc")


def test_units_of_time_that_nobody_knows(tmp_path: Path) -> None:
    cube = a_cube(optical(), 10)
    units = {"units": "fortnights since yesterday"}
    cube.assign_coords(t=("t", np.arange(3), units)).to_netcdf(tmp_path / "cube.nc", engine="h5netcdf")
    with pytest.raises(InputError, match=r"time that cannot be read .*calendar'; write units") as caught:
        open_cubes(tmp_path / "cube.nc")
    assert "Try" not in str(caught.value)


def _without_crs(cube: Any) -> Any:
    return cube.drop_vars("spatial_ref")


def _irregular(cube: Any) -> Any:
    return cube.assign_coords(x=cube.x.values + np.array([0] * 11 + [3.0]))


def _no_units(cube: Any) -> Any:
    return cube.assign_coords(t=np.arange(3))


def _no_places(cube: Any) -> Any:
    return cube.drop_vars("x")


def _scaled(cube: Any, **attributes: float | str) -> Any:
    for name in cube:
        cube[name].attrs.update(attributes)
    return cube


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_without_crs, "no coordinate system"),
        (_irregular, "irregular coordinates"),
        (_no_units, "time without units"),
        (_no_places, "no place"),
        (lambda cube: cube.assign_coords(t=cube.t).assign(B04=cube.B04 * 0.0 + 55.5), "the scale is not clear"),
        (lambda cube: cube.assign_coords(x=[f"a{place}" for place in range(12)]), "no usable grid"),
        (lambda cube: cube.assign_coords(x=np.arange(12) * 1e300), "no usable grid"),
        (lambda cube: _scaled(cube, scale_factor=0.0), "no usable scale"),
        (lambda cube: _scaled(cube, scale_factor=float("nan")), "no usable scale"),
        (lambda cube: _scaled(cube, scale_factor="one in 10,000"), "no usable scale"),
        (lambda cube: _scaled(cube, add_offset=1e300), "no usable scale"),
        (lambda cube: cube.assign({name: cube[name].astype(np.complex64) for name in cube}), "no images"),
        (lambda cube: cube.assign({name: cube[name].astype(str) for name in cube}), "no images"),
        (lambda cube: cube.astype(np.float32) * 0 + np.float32(9.969e36), "no usable date"),  # NetCDF's own fill value
        (
            lambda cube: cube.to_dataarray("band").assign_coords(band=["B04", ""]).to_dataset(name="all"),
            "without names",
        ),
    ],
)
def test_bad_cubes(tmp_path: Path, change: Any, why: str) -> None:
    change(a_cube(optical(), 10)).to_netcdf(tmp_path / "cube.nc", engine="h5netcdf")
    with pytest.raises(InputError, match=why):
        open_cubes(tmp_path / "cube.nc")


def test_a_zarr_folder_that_leads_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    path = tmp_path / "cube.zarr"
    a_cube(optical(), 10).to_zarr(path)
    (file,) = [each for each in path.iterdir() if each.name in ("zarr.json", ".zgroup")]
    content = file.read_bytes()
    for plant in (os.mkfifo, lambda place: place.symlink_to("/dev/zero")):
        file.unlink()
        plant(file)
        with pytest.raises(InputError, match="leads elsewhere"):
            open_cubes(path)
    file.unlink()
    file.write_bytes(content + b" " * 17_000_000)
    with pytest.raises(InputError, match=r"has 17,\d+,\d+ bytes"):
        open_cubes(path)


def test_a_damaged_chunk_of_zarr(tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    path = tmp_path / "cube.zarr"
    a_cube(optical(), 10).to_zarr(path)
    for file in (path / "B02").rglob("*"):
        if file.is_file() and not file.name.startswith((".z", "zarr")):
            file.write_bytes(b"rubbish" * 10)
    with pytest.raises(InputError, match="a damaged cube"):
        open_cubes(path).read(Window(0, 0, 8, 12))


@pytest.mark.parametrize("version", [2, 3])
def test_a_chunk_of_zarr_that_was_cut_off(tmp_path: Path, version: int) -> None:
    """By one byte: Blosc reads what lies behind it in memory."""
    zarr = pytest.importorskip("zarr")
    blosc = pytest.importorskip("numcodecs").Blosc() if version == 2 else zarr.codecs.BloscCodec()
    path = tmp_path / "cube.zarr"
    cube = a_cube(optical(), 10)
    cube.to_zarr(path, zarr_format=version, encoding={name: {"compressors": [blosc]} for name in cube})
    files = [file for file in (path / "B02").rglob("*") if file.is_file() and not file.name.startswith((".z", "zarr"))]
    open_cubes(path).read(Window(0, 0, 8, 12))
    for file in files:
        file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"a damaged cube .*a chunk has .* bytes"):
        open_cubes(path).read(Window(0, 0, 8, 12))


def test_sizes_that_are_not_those_of_the_dates(tmp_path: Path) -> None:
    """As by a damaged file; the axes of an array without names are told by their sizes."""
    a_cube(optical(), 10).to_netcdf(tmp_path / "cube.nc", engine="h5netcdf")
    with h5py.File(tmp_path / "cube.nc", "r+") as file:
        del file["B04"]
        file["B04"] = np.zeros((2, 8, 12, 1000), dtype=np.int32)
    with pytest.raises(InputError, match="a damaged cube"):
        open_cubes(tmp_path / "cube.nc")


@pytest.mark.parametrize("size", ["large", np.nan, 0, np.zeros(0)])
def test_a_single_column_of_any_size(tmp_path: Path, size: Any) -> None:
    cube = a_cube(optical(), 10).isel(x=slice(0, 1)).assign_attrs(resolution=size)
    cube.to_netcdf(tmp_path / "cube.nc", engine="h5netcdf")
    assert open_cubes(tmp_path / "cube.nc").grid.resolution == 1


def test_cubes_of_different_places(tmp_path: Path) -> None:
    folder = a_folder(tmp_path / "patch", with_radar=False)
    a_cube(radar(), 20, RADAR_DAYS, left=LEFT + 5).to_netcdf(folder / "S1.nc", engine="h5netcdf")
    with pytest.raises(InputError, match="another grid"):
        open_cubes(folder)
    a_cube(coarse(), 20, left=LEFT + 50_000).to_netcdf(folder / "S2_20m.nc", engine="h5netcdf")
    with pytest.raises(InputError, match="cubes of different places"):
        open_cubes(folder)


def test_other_bad_input(tmp_path: Path) -> None:
    mixed = radar(3)
    mixed["VH"] = (10 ** (mixed["VH"] / 10)).astype(np.float32)
    a_cube(mixed, 20).to_netcdf(tmp_path / "s1.nc", engine="h5netcdf")
    with pytest.raises(InputError, match="mixed"):
        open_cubes(tmp_path / "s1.nc")
    (tmp_path / "text.nc").write_text("not a cube")
    with pytest.raises(InputError, match="not a NetCDF file"):
        open_cubes(tmp_path / "text.nc")
    (tmp_path / "cut.nc").write_bytes((tmp_path / "s1.nc").read_bytes()[:3000])
    with pytest.raises(InputError, match="cannot be read"):
        open_cubes(tmp_path / "cut.nc")
    a_cube(optical(), 10).to_netcdf(tmp_path / "s2.nc", engine="h5netcdf")
    with pytest.raises(UsageError, match="no band B8A"):
        open_cubes(tmp_path / "s2.nc", CubeOptions(bands=("B8A",)))
    raw = tmp_path / "S1A_IW_GRDH_1SDV_20180701T173236_20180701T173301_022600_0272F7_59E7.SAFE"
    raw.mkdir()
    for refused in (raw, tmp_path):
        with pytest.raises(InputError, match="orthorectify"):
            guess_source(refused)


# --- radar as dated GeoTIFFs


def write_radar(folder: Path, days: dict[str, NDArray[Any]], **settings: Any) -> Path:
    """Bands (VV, VH) of each day in one file."""
    folder.mkdir(parents=True, exist_ok=True)
    for day, values in days.items():
        profile = {"driver": "GTiff", "count": 2, "height": 4, "width": 6, "dtype": values.dtype, "crs": "EPSG:32631"}
        transform = from_origin(LEFT, TOP, 20, 20)
        with rasterio.open(folder / f"S1_{day}.tif", "w", transform=transform, **profile, **settings) as dataset:
            dataset.write(values)
            dataset.descriptions = ("VV", "VH")
    return folder


def test_dated_geotiffs(tmp_path: Path) -> None:
    values = {
        day: np.stack([radar()["VV"][place], radar()["VH"][place]])
        for place, day in enumerate(["20180304", "20180310"])
    }
    values["20180310"][:, 0, 0] = 0  # nodata
    series = open_raster_series(write_radar(tmp_path / "S1_asc", values), (), {})
    assert isinstance(series, RadarSeries)
    assert series.sensor_name == "S1-ASC"
    read = series.read(Window(0, 0, 4, 6))
    assert not read.valid[1, 0, 0]
    assert read.valid.sum() == 47
    found = (read.values * DECIBEL_SCALE + DECIBEL_OFFSET)[:, :, 1:]
    assert found == pytest.approx(np.stack(list(values.values()))[:, :, 1:], abs=DECIBEL_SCALE / 2 + 1e-4)
    power = {"20180316": (10 ** (values["20180304"] / 10)).astype(np.float32)}
    write_radar(tmp_path / "S1_asc", power)
    with pytest.raises(InputError, match="mixed"):
        RadarSeries(tmp_path / "S1_asc")
    alone = RadarSeries(tmp_path / "S1_asc" / "S1_20180316.tif")  # linear power, one file
    assert (alone.read(Window(0, 0, 4, 6)).values * DECIBEL_SCALE + DECIBEL_OFFSET)[0] == pytest.approx(
        values["20180304"], abs=DECIBEL_SCALE / 2 + 1e-4
    )


# --- real cubes


def test_flanders(real_data: Path) -> None:
    """Ten points of every band and sensor, against xarray's own decoding."""
    folder = real_data / "flanders" / "00002806639B424A"
    series = open_cubes(folder, NEAREST)
    assert isinstance(series, SensorSeries)
    random = np.random.default_rng(0)
    read = series.read(Window(0, 0, 64, 64))
    owners = sensor_numbers(series)
    for number, (sensor, pieces) in enumerate(zip(series.sensors, ("S2_L2A", "S1_GRD"), strict=True)):
        dates = [day for day, owner in zip(series.dates, owners, strict=True) if owner == number]
        values, valid = read.values[owners == number], read.valid[owners == number]
        start = series.bands.index(sensor.bands[0])
        for band, name in enumerate(sensor.bands):
            (file,) = [
                file for file in folder.glob(f"{pieces}*.nc") if name in xarray.open_dataset(file, engine="h5netcdf")
            ]
            cube = xarray.open_dataset(file, engine="h5netcdf", decode_coords=True)[name]
            days = cube.timestamp.values.astype("datetime64[D]")
            places = np.argwhere(valid)
            for date, row, column in places[random.choice(len(places), 10, replace=False)]:
                step = int(np.flatnonzero(days == np.datetime64(dates[date]))[0])
                ratio = 64 // cube.shape[1]
                expected = float(cube.values[step, row // ratio, column // ratio])
                found = values[date, start + band, row, column] * sensor.scale + sensor.offset
                assert found == pytest.approx(expected, abs=sensor.scale / 2 + 1e-5)
