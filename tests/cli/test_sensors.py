"""Optical images and radar through the commands: one store, one model, maps of both, and radar alone updates a map."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
import rasterio
from click.testing import CliRunner
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.transform import from_origin

import cropstar
from cropstar.cli.inspect import inspect
from cropstar.errors import InputError, MismatchError, UsageError
from cropstar.geo.windows import Window
from cropstar.reports.contents import open_tile_set
from cropstar.reports.overview import read_overview
from cropstar.store.store import Store
from tests.sources.test_cube import LEFT, TOP

xarray = pytest.importorskip("xarray")
pytest.importorskip("h5netcdf")

SIDE = 24
OPTICAL_DAYS, RADAR_DAYS = (
    np.array([f"2018-{month:02d}-{day:02d}" for month in (4, 5, 6) for day in days], dtype="datetime64[ns]")
    for days in ((3, 18), (6, 18, 28))
)


def codes() -> NDArray[np.uint16]:
    """Sixteen fields of two crops, with paths between them."""
    fields = np.zeros((SIDE, SIDE), dtype=np.uint16)
    for row in range(4):
        for column in range(4):
            fields[6 * row : 6 * row + 5, 6 * column : 6 * column + 5] = 11 + (row + column) % 2
    return fields


def cube(bands: dict[str, NDArray[Any]], size: int, days: NDArray[Any] | None = None) -> Any:
    side = next(iter(bands.values())).shape[-1]
    axes = ("y", "x") if days is None else ("t", "y", "x")
    coordinates = {
        "y": TOP - size * (np.arange(side) + 0.5),
        "x": LEFT + size * (np.arange(side) + 0.5),
        "spatial_ref": ((), 0, {"crs_wkt": CRS.from_epsg(32631).to_wkt()}),
        **({} if days is None else {"t": days}),
    }
    return xarray.Dataset({name: (axes, values) for name, values in bands.items()}, coordinates)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Cubes of a place where radar, not the optical bands, tells the crops apart; and a model of both."""
    random, folder = np.random.default_rng(0), tmp_path_factory.mktemp("place")
    crop = codes() == 12
    noise = random.integers(300, 3000, (len(OPTICAL_DAYS), SIDE, SIDE)).astype(np.uint16)
    coarse = crop[::2, ::2]
    vv = np.where(coarse, -8.0, -14.0) + random.normal(0, 1, (len(RADAR_DAYS), SIDE // 2, SIDE // 2))
    images = folder / "images"
    images.mkdir()
    cube({"B04": noise, "B08": noise[::-1].copy()}, 10, OPTICAL_DAYS).to_netcdf(images / "S2.nc", engine="h5netcdf")
    backscatter = {"VV": vv.astype(np.float32), "VH": (vv - 7).astype(np.float32)}
    cube(backscatter, 20, RADAR_DAYS).to_netcdf(images / "S1.nc", engine="h5netcdf")
    cube({"CT": codes()}, 10).to_netcdf(images / "labels.nc", engine="h5netcdf")
    cropstar.ingest(images, label_column="CT", output=folder / "store")
    settings = {"augmentation.sensor_dropout": 0.3, "cross_fit": 0}
    for name, own in (
        ("star", settings),
        ("convstar", settings),
        ("strict", {**settings, "augmentation.sensor_dropout": 0.0}),
    ):
        cropstar.train(
            store=folder / "store",
            model=name.replace("strict", "star"),
            layers=1,
            hidden=12,
            epochs=30 if name == "star" else 2,
            settings=own,
            runs=folder / name,
        )
    return folder


def model_of(place: Path, name: str) -> Path:
    (run,) = (place / name).iterdir()
    return run


def pixels(path: Path) -> NDArray[np.uint8]:
    with rasterio.open(path) as dataset:
        return np.asarray(dataset.read(1))


def part(place: Path, folder: Path, *, optical: int | None, radar: slice | None) -> Path:
    """Some dates of the place's cubes."""
    folder.mkdir()
    for name, dates in (("S2", None if optical is None else slice(optical)), ("S1", radar)):
        if dates is not None:
            whole = xarray.open_dataset(place / "images" / f"{name}.nc", engine="h5netcdf")
            whole.isel(t=dates).to_netcdf(folder / f"{name}.nc", engine="h5netcdf")
    return folder


def test_radar_is_learnt_and_mapped(place: Path, tmp_path: Path) -> None:
    with rasterio.open(_map(place, tmp_path, "star")) as dataset:
        found = dataset.read(1)
    labelled = codes() > 0
    assert (found[labelled] == (codes()[labelled] == 12)).mean() > 0.9
    cropstar.predict(place / "store", model=model_of(place, "star"), output=tmp_path / "of-store.tif")
    assert np.array_equal(pixels(tmp_path / "of-store.tif"), found)
    store = Store.open(place / "store")
    assert [sensor.name for sensor in store.fingerprint.sensors] == ["S2", "S1"]
    assert len(store.tiles[0].days) == len(OPTICAL_DAYS) + len(RADAR_DAYS)
    store.close()


def _map(place: Path, folder: Path, name: str, images: Path | None = None, **options: Any) -> Path:
    output = folder / f"{name}.tif"
    cropstar.predict(images or place / "images", model=model_of(place, name), output=output, any_dates=True, **options)
    return output


@pytest.mark.parametrize("name", ["star", "convstar"])
def test_one_radar_date_updates_the_map(place: Path, tmp_path: Path, name: str) -> None:
    """The state after all dates but the last, which is radar's, and that date alone: the map of a run over all."""
    whole = part(place, tmp_path / "whole", optical=5, radar=slice(8))
    earlier = part(place, tmp_path / "earlier", optical=5, radar=slice(7))
    last = part(place, tmp_path / "last", optical=None, radar=slice(7, 8))
    expected = _map(place, tmp_path, name, whole, probabilities=True)
    state = tmp_path / "season.h5"
    (tmp_path / "update").mkdir()
    map_of_state = _map(place, tmp_path / "update", name, earlier, state=state, probabilities=True)
    if name == "convstar":  # which is not yet sure of anything
        assert not np.array_equal(_probabilities(map_of_state), _probabilities(expected))
    cropstar.update(state, last / "S1.nc", output=map_of_state, overwrite=True, probabilities=True, any_dates=True)
    assert np.array_equal(pixels(map_of_state), pixels(expected))
    assert np.array_equal(_probabilities(map_of_state), _probabilities(expected))


def _probabilities(path: Path) -> NDArray[Any]:
    with rasterio.open(path.with_name(f"{path.stem}-probabilities.tif")) as dataset:
        return np.asarray(dataset.read())


def test_a_map_of_every_day(place: Path, tmp_path: Path) -> None:
    """Two sensors see the place on the 18th of every month: one map of that day."""
    images = part(place, tmp_path / "images", optical=4, radar=slice(5))
    _map(place, tmp_path, "star", images, every_date=True)
    days = {str(day)[:10] for day in [*OPTICAL_DAYS[:4], *RADAR_DAYS[:5]]}
    assert {path.stem.removeprefix("star-") for path in tmp_path.glob("star-2018*.tif")} == days


@pytest.mark.parametrize("window", [7, 16])
def test_windows_are_exact(place: Path, tmp_path: Path, window: int) -> None:
    whole = pixels(_map(place, tmp_path, "convstar"))
    (tmp_path / "windows").mkdir()
    assert np.array_equal(pixels(_map(place, tmp_path / "windows", "convstar", window=window)), whole)


def test_a_missing_sensor(place: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    optical = part(place, tmp_path / "optical", optical=6, radar=None)
    _map(place, tmp_path, "star", optical)
    assert "no date of S1" in caplog.text
    with pytest.raises(MismatchError, match="no date of S1"):
        _map(place, tmp_path, "strict", optical)


def test_radar_is_added(place: Path, tmp_path: Path) -> None:
    """The same store and the same map, whether both sensors lie in one folder or radar is added."""
    optical = part(place, tmp_path / "optical", optical=6, radar=None)
    radar = part(place, tmp_path / "radar", optical=None, radar=slice(9))
    labels = place / "images" / "labels.nc"
    cropstar.ingest(optical, add=radar, parcels=labels, label_column="CT", output=tmp_path / "store")
    both, added = Store.open(place / "store"), Store.open(tmp_path / "store")
    assert both.fingerprint == added.fingerprint
    whole = Window(0, 0, SIDE, SIDE)
    assert np.array_equal(both.tiles[0].values(whole), added.tiles[0].values(whole))
    both.close()
    added.close()
    expected = pixels(_map(place, tmp_path, "star"))
    (tmp_path / "added").mkdir()
    assert np.array_equal(pixels(_map(place, tmp_path / "added", "star", optical, add=radar)), expected)
    with pytest.raises(UsageError, match="one sensor twice"):
        cropstar.ingest(optical, add=[radar, radar], parcels=labels, label_column="CT", output=tmp_path / "twice")


def test_the_sheet_counts_what_it_shows(place: Path, tmp_path: Path) -> None:
    """Of a day that both sensors saw the optical picture is shown, with its own clear share."""
    images = tmp_path / "images"
    shutil.copytree(place / "images", images)
    with h5py.File(images / "S2.nc", "r+") as file:
        for band in ("B04", "B08"):
            file[band][1, :, : SIDE // 4] = 0  # 18 April, which radar saw as well
    store = tmp_path / "store"
    cropstar.ingest(images, label_column="CT", output=store)
    with open_tile_set(store, "store") as tile_set:
        overview = read_overview(tile_set.tiles)
    day = int((OPTICAL_DAYS[1] - np.datetime64("1970-01-01")) / np.timedelta64(1, "D"))
    (index,) = np.flatnonzero(overview.days == day)
    assert overview.clear[index] == overview.valid[index].mean() == 0.75


def test_the_python_views(place: Path) -> None:
    """xarray gets decibels on the dates of radar alone; arrays, which do not say whose a date is, are refused."""
    cube = next(iter(cropstar.open_store(place / "store").scenes.values())).to_xarray()
    name = next(name for name, values in cube.data_vars.items() if "band" in values.dims)
    vv = cube[name].sel(band="VV").values
    seen = np.isfinite(vv).any(axis=(1, 2))
    assert seen.sum() == len(RADAR_DAYS)
    assert -25 < np.nanmedian(vv) < -5
    assert np.isfinite(cube[name].sel(band="B04").values).any(axis=(1, 2)).sum() == len(OPTICAL_DAYS)
    model = cropstar.load_model(model_of(place, "star"))
    with pytest.raises(UsageError, match="which sensor"):
        model.predict_proba(np.zeros((1, 2, 4), dtype=np.float32), ["2018-04-03", "2018-04-06"])


def test_the_sheet_and_the_facts(place: Path, tmp_path: Path) -> None:
    drawn = CliRunner().invoke(inspect, [str(place / "store"), "-o", str(tmp_path / "sheet.png")], obj={})
    assert drawn.exit_code == 0, drawn.exception
    assert (tmp_path / "sheet.png").stat().st_size > 10_000
    said = CliRunner().invoke(inspect, [str(place / "store")], obj={}).stdout
    assert "S1: VV VH" in said


# --- context: terrain, and the warmth of the season

TEMPERATURES = 273.15 + np.arange(365) / 20.0  # kelvins of the days of 2018


@pytest.fixture(scope="module")
def warm(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Temperatures and terrain beside the cubes of the place, a store with both, and a model of it."""
    folder = tmp_path_factory.mktemp("warm")
    days = np.arange("2018-01-01", "2019-01-01", dtype="datetime64[D]").astype("datetime64[ns]")
    (folder / "weather.csv").write_text(
        "date,temperature_mean\n"
        + "".join(f"{str(day)[:10]},{value - 273.15:.4f}\n" for day, value in zip(days, TEMPERATURES, strict=True))
    )
    wide = np.broadcast_to(TEMPERATURES[:, None, None], (365, 3, 3)).copy()
    wide[:, 0], wide[:, :, 2] = 200.0, -9999  # elsewhere
    centres = {"y": TOP - 120 + 1000.0 * np.arange(-1, 2), "x": LEFT + 120 + 1000.0 * np.arange(-1, 2)}
    data = {"temperature_mean": (("t", "y", "x"), wide), "temperature_max": (("t", "y", "x"), wide + 5)}
    reference = {"spatial_ref": ((), 0, {"crs_wkt": CRS.from_epsg(32631).to_wkt()})}
    agera = xarray.Dataset(data, {**centres, **reference, "t": days}, {"nodata": -9999})
    agera.to_netcdf(folder / "AgERA5.nc", engine="h5netcdf")
    heights = (50 + np.arange(SIDE)[None] + 10 * np.arange(SIDE)[:, None]).astype(np.float32)
    profile = {"driver": "GTiff", "width": SIDE, "height": SIDE, "count": 1, "dtype": "float32", "crs": "EPSG:32631"}
    with rasterio.open(folder / "dem.tif", "w", transform=from_origin(LEFT, TOP, 10, 10), **profile) as dataset:
        dataset.write(heights, 1)
    cropstar.ingest(
        place / "images",
        label_column="CT",
        output=folder / "store",
        context=f"elevation={folder / 'dem.tif'}",
        temperature=str(folder / "AgERA5.nc"),
        base_temperature=4,
    )
    cropstar.train(
        store=folder / "store", model="star", layers=1, hidden=8, epochs=2, settings={"cross_fit": 0},
        runs=folder / "runs",
    )  # fmt: skip
    return folder


def test_context_of_images(place: Path, warm: Path) -> None:
    store = Store.open(warm / "store")
    assert store.fingerprint.context == ("gdd", "elevation")
    tile = store.tiles[0]
    values = tile.values(Window(0, 0, SIDE, SIDE))
    sums = np.concatenate([[0.0], np.cumsum(np.maximum(TEMPERATURES - 273.15 - 4, 0))])
    since = tile.days - int(np.datetime64("2018-01-01").astype("datetime64[D]").astype(int))
    assert values[:, -2, 3, 5] == pytest.approx(sums[since], rel=1e-4)
    assert values[0, -1, 2, 7] == values[-1, -1, 2, 7] == 50 + 7 + 20
    store.close()


@pytest.mark.parametrize("weather", ["AgERA5.nc", "weather.csv"])
def test_images_are_mapped_with_their_context(place: Path, warm: Path, tmp_path: Path, weather: str) -> None:
    """From images and from the store the same; and one radar date with its warmth updates the map."""
    (model,) = (warm / "runs").iterdir()
    given: dict[str, Any] = {"context": f"elevation={warm / 'dem.tif'}", "temperature": str(warm / weather)}
    given |= {"model": model, "probabilities": True, "any_dates": True}
    of_store, of_images = tmp_path / "of-store.tif", tmp_path / "of-images.tif"
    cropstar.predict(warm / "store", model=model, output=of_store, probabilities=True)
    cropstar.predict(place / "images", output=of_images, **given)
    # Temperatures written as text differ in their last digits, and a probability may be rounded the other way.
    differences = _probabilities(of_images).astype(int) - _probabilities(of_store)
    assert np.abs(differences).max() <= (weather == "weather.csv")
    expected = tmp_path / "whole.tif"
    cropstar.predict(part(place, tmp_path / "whole", optical=5, radar=slice(8)), output=expected, **given)
    earlier = part(place, tmp_path / "earlier", optical=5, radar=slice(7))
    last = part(place, tmp_path / "last", optical=None, radar=slice(7, 8))
    cropstar.predict(earlier, output=tmp_path / "map.tif", state=tmp_path / "season.h5", **given)
    cropstar.update(tmp_path / "season.h5", last / "S1.nc", overwrite=True, **given)
    assert np.array_equal(_probabilities(tmp_path / "map.tif"), _probabilities(expected))


def test_context_that_does_not_fit(place: Path, warm: Path, tmp_path: Path) -> None:
    (model,) = (warm / "runs").iterdir()
    output, dem = tmp_path / "map.tif", f"elevation={warm / 'dem.tif'}"
    with pytest.raises(MismatchError, match=r"context is missing .* give it with --temperature FILE, or"):
        cropstar.predict(place / "images", model=model, output=output, context=dem)
    with pytest.raises(MismatchError, match="no context 'height'"):
        cropstar.predict(place / "images", model=model, output=output, context=f"height={warm / 'dem.tif'}")
    short = tmp_path / "short.csv"
    short.write_text("date,temperature\n2018-01-01,1.5\n2018-04-20,9.0\n")
    with pytest.raises(InputError, match="dates without a temperature"):
        cropstar.predict(place / "images", model=model, output=output, context=dem, temperature=str(short))
    short.write_text("date;temperature\n01/04/2018;1.5\n02/04/2018;9.0\n")  # read as January and February
    with pytest.raises(InputError, match=r"not a date in .*'01/04/2018' in row 1"):
        cropstar.predict(place / "images", model=model, output=output, context=dem, temperature=str(short))
    short.write_text("date;temperature\n2018-04-01;1,5\n2018-04-02;9.0\n")  # left out
    with pytest.raises(InputError, match=r"text among the numbers in .*'1,5' in row 1"):
        cropstar.predict(place / "images", model=model, output=output, context=dem, temperature=str(short))
    with pytest.raises(InputError, match="no mean temperature"):
        cropstar.ingest(place / "images", output=tmp_path / "s", temperature=str(place / "images" / "S1.nc"))
    with rasterio.open(warm / "dem.tif") as dataset:
        profile, heights = dataset.profile, dataset.read()
    profile["transform"] = from_origin(LEFT + 90_000, TOP, 10, 10)
    with rasterio.open(tmp_path / "elsewhere.tif", "w", **profile) as dataset:
        dataset.write(heights)
    with pytest.raises(InputError, match="context of another place"):
        cropstar.ingest(place / "images", output=tmp_path / "s", context=str(tmp_path / "elsewhere.tif"))
    with rasterio.open(tmp_path / "several.tif", "w", **{**profile, "count": 2}) as dataset:
        dataset.write(np.concatenate([heights, heights]))
    with pytest.raises(InputError, match="context of several bands"):
        cropstar.ingest(place / "images", output=tmp_path / "s", context=str(tmp_path / "several.tif"))
    with pytest.raises(UsageError, match="without --temperature"):
        cropstar.ingest(place / "images", output=tmp_path / "s", warm_from="03-01")


def test_a_table_is_predicted_with_the_warmth_of_the_training(tmp_path: Path) -> None:
    """Radar and optical values of one day, and a column of temperature: no option is needed to predict."""
    random, rows = np.random.default_rng(0), []
    for field in range(24):
        for day in np.arange("2018-01-01", "2018-09-01", 30, dtype="datetime64[D]"):
            level = 1000 + 2000 * (field % 2)
            bands = {"B04": level + random.integers(200), "B08": 4000, "VV": -9.0 - random.random(), "VH": -15.0}
            warmth = {"tmean": 273.15 + 10 + random.random()}
            rows.append({"id": f"f{field}", "date": str(day), "crop": f"c{field % 2}", **bands, **warmth})
    table = tmp_path / "fields.csv"
    pd.DataFrame(rows).to_csv(table, index=False)
    cropstar.ingest(table, output=tmp_path / "store", temperature="tmean", base_temperature=4, warm_from="02-01")
    settings = {"cross_fit": 0, "soft_labels": "none"}
    run = cropstar.train(
        store=tmp_path / "store", model="star", layers=1, hidden=8, epochs=2, settings=settings, runs=tmp_path / "runs"
    )
    of_table, of_store = tmp_path / "of-table.csv", tmp_path / "of-store.csv"
    cropstar.predict(table, model=run, output=of_table)
    cropstar.predict(tmp_path / "store", model=run, output=of_store)
    first, second = (pd.read_csv(path).set_index("id").sort_index() for path in (of_table, of_store))
    assert first["p_c0"].to_numpy() == pytest.approx(second["p_c0"].to_numpy(), abs=1e-6)
    with pytest.raises(UsageError, match="--context does not apply to tables"):
        cropstar.predict(table, model=run, output=tmp_path / "x.csv", context="elevation")
