"""Tiles of several sensors: each date is read back as its sensor wrote it, and nothing is filled in on the disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from cropstar.errors import ArtifactError
from cropstar.geo.sensors import Sensor, flat_bands
from cropstar.geo.windows import Window
from cropstar.store.fingerprint import Fingerprint, Normalisation, bands_present, measure_normalisation
from cropstar.store.reader import TileReader, merge_events
from cropstar.store.store import Store, read_manifest
from cropstar.store.tile import SensorArrays, is_whole, write_tile
from tests.examples import RECIPE, a_fingerprint, a_patch_tile, a_raster_tile, a_series_tile, store_of

S2 = Sensor("S2", ("B04", "B08"), 1e-4, 0.0)
S1 = Sensor("S1-ASC", ("VV",), 0.001, -45.0)


def two_sensors(context: tuple[str, ...] = ()) -> Fingerprint:
    plain = a_fingerprint()
    return Fingerprint.of((S2, S1), 10.0, plain.season, plain.classes, context)


Event = tuple[int, int, NDArray[Any], NDArray[Any]]  # day, sensor, values, valid


def in_order(*sensors: list[tuple[int, NDArray[Any], NDArray[Any]]]) -> list[Event]:
    """The naive reference: all dates sorted by day, then by sensor."""
    events = [(day, number, values, valid) for number, own in enumerate(sensors) for day, values, valid in own]
    return sorted(events, key=lambda event: event[:2])


def raster(shape: tuple[int, int], days: list[int], context: int = 0, static: int = 0) -> Any:
    """A tile with Sentinel-2 as usual and radar on these days."""
    random = np.random.default_rng(1)
    height, width = shape
    tile = a_raster_tile((3, 2, height, width))
    radar = SensorArrays(
        np.array(days, dtype=np.int32),
        random.integers(1, 60_000, (len(days), 1, height, width)).astype(np.uint16),
        random.random((len(days), height, width)) < 0.9,
        context=random.random((len(days), context)).astype(np.float32) if context else None,
    )
    names = tuple(f"c{number}" for number in range(context + static))
    return replace(
        tile,
        fingerprint=two_sensors(names),
        others=(radar,),
        context=random.random((3, context)).astype(np.float32) if context else None,
        static=random.random((static, height, width)).astype(np.float32) if static else None,
    )


@given(
    st.lists(st.integers(18_990, 19_030), min_size=1, max_size=6, unique=True),
    st.integers(0, 2),
    st.integers(0, 2),
    st.tuples(st.integers(1, 60), st.integers(1, 60)),
)
@settings(max_examples=20, deadline=None)
def test_images(
    tmp_path_factory: pytest.TempPathFactory, days: list[int], context: int, static: int, shape: tuple[int, int]
) -> None:
    path = tmp_path_factory.mktemp("sensors") / "tile.h5"
    tile = raster(shape, sorted(days), context, static)
    write_tile(path, tile)
    assert is_whole(path, RECIPE)
    radar = tile.others[0]
    events = in_order(
        list(zip(tile.days.tolist(), tile.values, tile.valid, strict=True)),
        list(zip(radar.days.tolist(), radar.values, radar.valid, strict=True)),
    )
    reader, window = TileReader(path), Window(0, 0, *shape)
    assert reader.days.tolist() == [day for day, *_ in events]
    assert reader.sensors is not None
    assert reader.sensors.tolist() == [sensor for _, sensor, *_ in events]
    values, valid = reader.values(window), reader.valid(window)
    assert values.shape == (len(events), 3 + context + static, *shape)
    own = {0: iter(tile.context if context else []), 1: iter(radar.context if context else [])}
    for place, (_, sensor, bands, mask) in enumerate(events):
        columns, others = (slice(0, 2), slice(2, 3))[:: -1 if sensor else 1]
        assert np.array_equal(values[place, columns], bands)
        assert not values[place, others].any()
        assert np.array_equal(valid[place], mask)
        if context:
            assert np.array_equal(values[place, 3 : 3 + context, 0, 0], next(own[sensor]))
        if static:
            assert np.array_equal(values[place, 3 + context :], tile.static)
    reader.close()


def test_the_other_sensor_takes_no_room(tmp_path: Path) -> None:
    write_tile(tmp_path / "tile.h5", raster((50, 50), [19_001, 19_011]))
    with h5py.File(tmp_path / "tile.h5") as handle:
        assert handle["values"].shape == (3, 2, 50, 50)
        assert handle["sensor1/values"].shape == (2, 1, 50, 50)
        assert handle.attrs["format"] == 2


def test_one_sensor_is_written_as_ever(tmp_path: Path) -> None:
    """Not a byte more, so that stores can be compared, and older versions read them."""
    write_tile(tmp_path / "tile.h5", a_raster_tile())
    with h5py.File(tmp_path / "tile.h5") as handle:
        assert handle.attrs["format"] == 1
        assert b"sensors" not in bytes(handle.attrs["fingerprint"])
    plain = a_fingerprint()
    assert Fingerprint.of((S2,), 10.0, plain.season, plain.classes) == plain


def test_series(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    tile = a_series_tile([3, 1, 2])
    days = np.array([5, 15, 25, 7, 3, 9], dtype=np.int32)
    starts = np.array([0, 0, 3, 4], dtype=np.int64)  # no radar of the first field
    radar = SensorArrays(
        np.array([4, 15, 30, 9], dtype=np.int32),
        random.normal(size=(4, 1)).astype(np.float32),
        np.ones(4, dtype=bool),
        starts=starts,
    )
    write_tile(tmp_path / "tile.h5", replace(tile, days=days, fingerprint=two_sensors(), others=(radar,)))
    reader = TileReader(tmp_path / "tile.h5")
    assert reader.starts.tolist() == [0, 3, 7, 10]
    for index in range(3):
        optical, own = slice(*tile.starts[index : index + 2]), slice(*starts[index : index + 2])
        events = in_order(
            list(zip(days[optical].tolist(), tile.values[optical], tile.valid[optical], strict=True)),
            list(zip(radar.days[own].tolist(), radar.values[own], radar.valid[own], strict=True)),
        )
        values, valid, found = reader.sample(index)
        assert found.tolist() == [day for day, *_ in events]
        assert valid.tolist() == [bool(mask) for *_, mask in events]
        for row, (_, sensor, bands, _) in zip(values, events, strict=True):
            assert np.array_equal(row[2:] if sensor else row[:2], bands.astype(np.float32))
    assert reader.sensors is not None
    assert reader.sensors[3:7].tolist() == [1, 0, 1, 1]


def test_patches(tmp_path: Path) -> None:
    tile = a_patch_tile([3, 2])
    random = np.random.default_rng(0)
    radar = SensorArrays(
        np.array([[19_001, 19_007], [18_000, 18_000]], dtype=np.int32),
        random.integers(1, 9, (2, 2, 1, 6, 6)).astype(np.uint16),
        np.ones((2, 2, 6, 6), dtype=bool),
        lengths=np.array([2, 0], dtype=np.int32),
    )
    write_tile(tmp_path / "tile.h5", replace(tile, fingerprint=two_sensors(), others=(radar,)))
    assert is_whole(tmp_path / "tile.h5", RECIPE)
    first, second = TileReader(tmp_path / "tile.h5").images
    assert first.days.tolist() == [19_000, 19_001, 19_007, 19_007, 19_014]
    assert first.sensors is not None
    assert first.sensors.tolist() == [0, 1, 0, 1, 0]
    window = Window(1, 0, 3, 6)
    assert np.array_equal(first.values(window)[1, 2], radar.values[0, 0, 0, 1:4])
    assert np.array_equal(first.values(window)[2, :2], tile.values[0, 1, :, 1:4])
    assert second.days.tolist() == [19_001, 19_008]
    assert np.array_equal(second.valid(window), tile.valid[1, :2, 1:4])


@pytest.mark.parametrize("name", ["sensor1/values", "sensor1/valid", "context", "static"])
def test_damage_is_found(tmp_path: Path, name: str) -> None:
    path = tmp_path / "tile.h5"
    write_tile(path, raster((20, 20), [19_001], context=1, static=1))
    with h5py.File(path) as handle:
        info = handle[name].id.get_chunk_info(0)
    content = bytearray(path.read_bytes())
    content[info.byte_offset + info.size // 2] ^= 1
    path.write_bytes(content)
    assert not is_whole(path, RECIPE)
    reader = TileReader(path)
    with pytest.raises(ArtifactError, match="checksum"):
        (reader.valid if name.endswith("valid") else reader.values)(Window(0, 0, 20, 20))


def test_arrays_that_are_not_the_sensors(tmp_path: Path) -> None:
    path = tmp_path / "tile.h5"
    write_tile(path, replace(raster((20, 20), [19_001]), fingerprint=two_sensors(("gdd",))))
    with pytest.raises(ArtifactError, match="not those of its sensors"):
        TileReader(path).values(Window(0, 0, 1, 1))
    with h5py.File(path, "a") as handle:
        del handle["sensor1/days"]
    with pytest.raises(ArtifactError, match="days"):
        TileReader(path)


def test_a_store_says_its_sensors(tmp_path: Path) -> None:
    folder = store_of(tmp_path / "store", {"one": raster((20, 20), [19_001])})
    manifest = read_manifest(folder)
    assert manifest is not None
    assert [sensor.name for sensor in manifest.fingerprint.sensors] == ["S2", "S1-ASC"]
    assert manifest.to_json()["format"] == 2
    assert Store.open(folder).fingerprint == two_sensors()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"sensors": []}, "bands|sensor"),
        ({"bands": ["B04", "B08", "VH"]}, "not those of the sensors"),
        ({"sensors": [{"name": "../S2", "bands": ["B04"], "scale": 1.0, "offset": 0.0}]}, "name"),
        ({"context": ["gdd"]}, "not those of the sensors"),
    ],
)
def test_fingerprints_from_strangers(change: dict[str, Any], why: str) -> None:
    data = {**two_sensors(("x",)).to_json(), **change}
    with pytest.raises(ArtifactError, match=why):
        Fingerprint.from_json(data, Path("tile.h5"))


def test_bands_of_one_name() -> None:
    orbits = (Sensor("S1-ASC", ("VV", "VH"), 1.0, 0.0), Sensor("S1-DESC", ("VV",), 1.0, 0.0))
    assert flat_bands(orbits, ("elevation",)) == ("S1-ASC:VV", "VH", "S1-DESC:VV", "elevation")


def test_events_of_one_day() -> None:
    days = [np.array([3, 8], dtype=np.int32), np.array([3, 3, 9], dtype=np.int32)]
    events = merge_events(days)
    assert events.days.tolist() == [3, 3, 3, 8, 9]
    assert events.sensors.tolist() == [0, 1, 1, 0, 1]
    assert [place.tolist() for place in events.places] == [[0, 3], [1, 2, 4]]


# --- normalisation


def test_statistics_are_a_sensors_own() -> None:
    random = np.random.default_rng(0)
    data = two_sensors(("gdd",))
    values = random.integers(1, 10_000, (50, 4)).astype(np.float32)
    sensors = random.integers(0, 2, 50).astype(np.int8)
    values[sensors == 0, 2] = 0
    values[sensors == 1, :2] = 0
    pieces = [(values[:20], sensors[:20]), (values[20:], sensors[20:])]
    measured = measure_normalisation(pieces, data)
    physical = values * data.scales + data.offsets
    rows = [sensors == 0, sensors == 0, sensors == 1, sensors >= 0]
    for band, own in enumerate(rows):
        assert measured.mean[band] == pytest.approx(physical[own, band].mean(), rel=1e-6)
        assert measured.deviation[band] == pytest.approx(physical[own, band].std(), rel=1e-6)


def test_inputs_of_two_sensors() -> None:
    data = two_sensors(("gdd",))
    normalisation = Normalisation((0.1, 0.2, -12.0, 300.0), (0.05, 0.1, 3.0, 100.0))
    values = np.array([[2000, 3000, 0, 400], [0, 0, 30_000, 500]], dtype=np.float32)
    found = normalisation.inputs(values, data, np.array([0, 1]))
    assert found[0] == pytest.approx([2.0, 1.0, 0.0, 1.0, 1, 0], abs=1e-5)
    assert found[1] == pytest.approx([0.0, 0.0, -1.0, 2.0, 0, 1], abs=1e-5)
    assert bands_present(data).tolist() == [[1, 1, 0, 1, 1, 0], [0, 0, 1, 1, 0, 1]]
    images = np.broadcast_to(values[:, :, None, None], (2, 4, 3, 5))
    assert np.array_equal(normalisation.inputs(images, data, np.array([0, 1]))[..., 2, 4], found)
