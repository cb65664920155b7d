"""PASTIS, EuroCropsML and TimeSen2Crop: small files as published ones are described, and damaged ones."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import cropstar
from cropstar.config import SplitConfig
from cropstar.datasets.splits import split_parcels
from cropstar.errors import InputError
from cropstar.geo.calendar import from_days
from cropstar.geo.sensors import SENTINEL2
from cropstar.geo.windows import Window
from cropstar.sources.catalogue import guess_source
from cropstar.sources.pastis import BANDS as PASTIS_BANDS
from cropstar.store.classes import UNLABELLED
from cropstar.store.store import Store

SIDE = 16  # of a patch; PASTIS has 128


def ingest(path: Path, folder: Path) -> Store:
    return Store.open(cropstar.ingest(path, output=folder, workers=1).path)


# --- PASTIS


def write_pastis(folder: Path, patches: int = 5) -> Path:
    generator = np.random.default_rng(2)
    features = []
    for part in ("DATA_S2", "ANNOTATIONS"):
        (folder / part).mkdir(parents=True)
    for number in range(patches):
        days = [20180917, 20180927, 20181017, 20190104][: 3 + number % 2]
        values = generator.integers(-20, 6000, (len(days), 10, SIDE, SIDE)).astype(np.int16)
        values[0, :, 0, 0] = 0
        target = np.zeros((3, SIDE, SIDE), dtype=np.uint8)
        parcels = np.zeros((SIDE, SIDE), dtype=np.int32)
        target[0, 2:6, 2:6], parcels[2:6, 2:6] = 1 + number % 3, 7
        target[0, 8:12, 2:12], parcels[8:12, 2:12] = 18, 9
        target[0, 14:, :], parcels[14:, :] = 19, 11
        name = 10000 + number
        np.save(folder / "DATA_S2" / f"S2_{name}.npy", values)
        np.save(folder / "ANNOTATIONS" / f"TARGET_{name}.npy", target)
        np.save(folder / "ANNOTATIONS" / f"ParcelIDs_{name}.npy", parcels)
        about: dict[str, Any] = {"ID_PATCH": name, "Fold": 1 + number % 5, "TILE": "t30uxv", "N_Parcel": 3}
        about["dates-S2"] = {str(place): day for place, day in enumerate(days)}
        features.append({"type": "Feature", "id": str(name), "properties": about, "geometry": None})
    (folder / "metadata.geojson").write_text(json.dumps({"type": "FeatureCollection", "features": features}))
    return folder


def test_pastis(tmp_path: Path) -> None:
    folder = write_pastis(tmp_path / "PASTIS")
    assert guess_source(folder) == "pastis"
    store = ingest(folder, tmp_path / "store")
    assert store.fingerprint.bands == PASTIS_BANDS
    names = store.fingerprint.classes.names
    assert names[:3] == ["background", "meadow", "soft winter wheat"]  # numbers as in the files
    images = [image for reader in store.tiles for image in reader.images]
    assert len(images) == 5
    for name, image in enumerate(images, 10000):
        values = np.load(folder / "DATA_S2" / f"S2_{name}.npy")
        target = np.load(folder / "ANNOTATIONS" / f"TARGET_{name}.npy")[0]
        valid = (values > 0).any(axis=1)
        whole = Window(0, 0, SIDE, SIDE)
        assert np.array_equal(image.valid(whole), valid)
        assert np.array_equal(image.values(whole), np.where(valid[:, None], values.clip(0), 0))
        labels = image.labels(whole)
        assert (labels[target == 19] == UNLABELLED).all()
        assert {names[label] for label in labels[target == 0]} == {"background"}
        assert {names[label] for label in labels[target == 18]} == {"sorghum"}
        assert from_days(image.days)[0] == date(2018, 9, 17)
    about = next(iter(store.manifest.scenes.values()))
    assert about["splits"]["fold3"] == {
        "train": ["fold3", "fold4", "fold5"],
        "validation": ["fold1"],
        "test": ["fold2"],
    }
    again = write_pastis(tmp_path / "again" / "PASTIS")
    about = json.loads((again / "metadata.geojson").read_text())
    for feature in about["features"]:
        feature["properties"]["dates-S2"] = json.dumps(feature["properties"]["dates-S2"])
    (again / "metadata.geojson").write_text(json.dumps(about))  # as GeoPandas writes nested values
    other = ingest(again, tmp_path / "other")
    assert [image.days.tolist() for reader in other.tiles for image in reader.images] == [
        image.days.tolist() for image in images
    ]
    other.close()
    split = split_parcels(store, SplitConfig(name="fold1"), seed=0)
    assert set(split.part_of.values()) == {"train", "validation", "test"}
    store.close()


def add_radar(folder: Path) -> Path:
    """As PASTIS-R has it: both orbits, at dates of their own, with the end of a swath in one patch."""
    generator = np.random.default_rng(3)
    metadata = json.loads((folder / "metadata.geojson").read_text())
    for orbit, days in (("A", [20180903, 20180915, 20180927]), ("D", [20180904, 20180916])):
        (folder / f"DATA_S1{orbit}").mkdir()
        for number, feature in enumerate(metadata["features"]):
            own = days[: len(days) - number % 2]
            values = generator.normal(-14, 3, (len(own), 3, SIDE, SIDE)).astype(np.float32)
            values[0, :, :, 12:] = np.nan
            np.save(folder / f"DATA_S1{orbit}" / f"S1{orbit}_{10000 + number}.npy", values)
            feature["properties"][f"dates-S1{orbit}"] = {str(place): day for place, day in enumerate(own)}
    (folder / "metadata.geojson").write_text(json.dumps(metadata))
    return folder


def test_pastis_with_radar(tmp_path: Path) -> None:
    folder = add_radar(write_pastis(tmp_path / "PASTIS-R"))
    store = ingest(folder, tmp_path / "store")
    assert [sensor.name for sensor in store.fingerprint.sensors] == ["S2", "S1-ASC", "S1-DESC"]
    whole = Window(0, 0, SIDE, SIDE)
    for name, image in enumerate((image for reader in store.tiles for image in reader.images), 10000):
        assert image.sensors is not None
        values, valid = image.values(whole), image.valid(whole)
        for sensor, place in (("S2", 0), ("S1A", 1), ("S1D", 2)):
            own = image.sensors == place
            expected = np.load(folder / f"DATA_{sensor}" / f"{sensor}_{name}.npy")
            columns = store.fingerprint.columns[place]
            clear = np.isfinite(expected).all(axis=1) if place else (expected > 0).any(axis=1)
            assert np.array_equal(valid[own], clear)
            read = values[own][:, columns].astype(np.float64)
            if place:
                read, expected = read * 0.001 - 45, expected[:, :2]
            seen = np.broadcast_to(clear[:, None], read.shape)
            assert read[seen] == pytest.approx(expected.clip(-45 if place else 0)[seen], abs=6e-4 if place else 0)
        assert (np.diff(image.days) >= 0).all()
    store.close()
    np.save(folder / "DATA_S1A" / "S1A_10002.npy", np.zeros((1, 3, SIDE, SIDE), dtype=np.float32))
    with pytest.raises(InputError, match=r"a damaged patch in .*S1A_10002\.npy"):
        ingest(folder, tmp_path / "b")


def test_damaged_pastis(tmp_path: Path) -> None:
    folder = write_pastis(tmp_path / "PASTIS")
    target = folder / "ANNOTATIONS" / "TARGET_10001.npy"
    np.save(target, np.full((3, SIDE, SIDE), 33, dtype=np.uint8))
    with pytest.raises(InputError, match=r"an unknown class in .*TARGET_10001\.npy"):
        ingest(folder, tmp_path / "a")
    target.write_bytes(b"\x93NUMPY")
    with pytest.raises(InputError, match=r"a damaged patch in .*TARGET_10001\.npy"):
        ingest(folder, tmp_path / "b")
    np.save(target, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match=r"a damaged patch in .*TARGET_10001\.npy"):
        ingest(folder, tmp_path / "c")
    target.unlink()
    with pytest.raises(InputError, match=r"a file is missing in .*TARGET_10001\.npy"):
        ingest(folder, tmp_path / "d")
    (folder / "metadata.geojson").write_text('{"features": [{"properties": {"ID_PATCH": 1}}]}')
    with pytest.raises(InputError, match="not PASTIS"):
        ingest(folder, tmp_path / "e")


# --- EuroCropsML


def write_eurocropsml(folder: Path) -> Path:
    folder.mkdir(parents=True)
    generator = np.random.default_rng(1)
    for number in range(12):
        region = ("LV001", "EE00A", "PT16")[number % 3]
        days = np.datetime64("2021-03-01") + np.arange(4 + number % 2) * 20
        values = generator.integers(1, 9000, (len(days), 13)).astype(np.uint16)
        values[1] = 0
        path = folder / f"{region}_{500 + number}_{3301010000 + number % 2}.npz"
        np.savez(path, data=values, dates=days.astype("datetime64[D]"), center=np.array([24.1, 56.9]))
    return folder


def test_eurocropsml(tmp_path: Path) -> None:
    folder = write_eurocropsml(tmp_path / "S2")
    assert guess_source(folder) == "eurocropsml"
    store = ingest(folder, tmp_path / "store")
    assert store.fingerprint.bands == SENTINEL2
    assert store.fingerprint.classes.names == ["3301010000", "3301010001"]
    (reader,) = store.tiles
    assert sorted(set(reader.table.groups or [])) == ["EE", "LV", "PT"]
    for place, key in enumerate(reader.table.keys):
        with np.load(folder / f"{key}.npz") as content:
            data, dates = content["data"], content["dates"]
        values, valid, days = reader.sample(place)
        assert np.array_equal(values, data)
        assert valid.tolist() == [True, False, *[True] * (len(dates) - 2)]
        assert np.array_equal(days, dates.astype("datetime64[D]").astype(np.int32))
        assert reader.table.labels[place] == store.fingerprint.classes.number_of(key.rsplit("_", 1)[1])
    store.close()


def test_eurocropsml_with_radar(tmp_path: Path) -> None:
    folder = tmp_path / "preprocess"
    write_eurocropsml(folder / "S2")
    files = sorted((folder / "S2").glob("*.npz"))
    generator = np.random.default_rng(5)
    (folder / "S1").mkdir()
    for number, file in enumerate(files[1:]):  # one parcel has no radar, the last one nothing else
        dates = np.datetime64("2021-03-03") + np.arange(6) * 12
        values = generator.normal(-14, 3, (6, 2))
        values[number % 6] = -999
        np.savez(folder / "S1" / file.name, data=values, dates=dates, center=np.array([24.1, 56.9]))
    files[-1].unlink()
    assert guess_source(folder) == "eurocropsml"
    store = ingest(folder, tmp_path / "store")
    assert [(sensor.name, sensor.bands) for sensor in store.fingerprint.sensors] == [
        ("S2", SENTINEL2),
        ("S1", ("VV", "VH")),
    ]
    (reader,) = store.tiles
    assert reader.table.keys == [file.stem for file in files]
    for place, file in enumerate(files):
        values, valid, days = reader.sample(place)
        radar = values[:, 13:15] * 0.001 - 45
        of_radar = np.sum(values[:, 13:15], axis=1) > 0
        assert (np.diff(days) >= 0).all()
        if file.exists():
            with np.load(file) as content:
                assert np.array_equal(values[~of_radar & valid][:, :13], content["data"][content["data"].any(axis=1)])
        else:
            assert of_radar[valid].all()
        if place:
            with np.load(folder / "S1" / file.name) as content:
                seen = content["data"][:, 0] > -100
                assert radar[of_radar] == pytest.approx(content["data"][seen], abs=6e-4)
                assert np.array_equal(days[of_radar], content["dates"][seen].astype(np.int32))
        else:
            assert not of_radar.any()
    store.close()
    alone = ingest(folder / "S1", tmp_path / "alone")
    assert alone.fingerprint.bands == ("VV", "VH")
    alone.close()


@pytest.mark.parametrize(
    "content", [b"not a zip", {"data": np.ones((3, 12))}, {"data": np.array([{}], dtype=object)}, {"other": np.ones(3)}]
)
def test_damaged_eurocropsml(tmp_path: Path, content: Any) -> None:
    folder = write_eurocropsml(tmp_path / "S2")
    path = next(iter(sorted(folder.glob("*.npz"))))
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.savez(path, **{"dates": np.array(["2021-03-01"] * 3, dtype="datetime64[D]"), **content})
    with pytest.raises(InputError, match=r"a damaged series in .*\.npz"):
        ingest(folder, tmp_path / "store")


# --- TimeSen2Crop


def write_timesen2crop(folder: Path) -> Path:
    generator = np.random.default_rng(4)
    for tile in ("33TUM", "33TVN"):
        for crop in ("1", "Winter Wheat"):
            place = folder / tile / crop
            place.mkdir(parents=True)
            for number in range(3):
                bands = {
                    f"B{band}": generator.integers(1, 5000, 5)
                    for band in ("2", "3", "4", "5", "6", "7", "8A", "11", "12")
                }
                pd.DataFrame({**bands, "Flag": [0, 1, 0, 2, 3]}).to_csv(place / f"{number}.csv", index=False)
        (folder / tile / "dates.csv").write_text("acquisition_date\n20170905\n20170915\n20171005\n20180103\n20180310\n")
    return folder


def test_timesen2crop(tmp_path: Path) -> None:
    folder = write_timesen2crop(tmp_path / "TimeSen2Crop")
    assert guess_source(folder) == "timesen2crop"
    store = ingest(folder, tmp_path / "store")
    assert store.fingerprint.classes.names == ["Winter Wheat", "grassland"]
    (reader,) = store.tiles
    assert sorted(set(reader.table.groups or [])) == ["33TUM", "33TVN"]
    assert len(reader.table.keys) == 12
    for place, key in enumerate(reader.table.keys):
        frame = pd.read_csv(folder / f"{key}.csv")
        values, valid, days = reader.sample(place)
        assert valid.tolist() == [True, False, True, False, False]
        assert np.array_equal(values[valid], frame.drop(columns="Flag").to_numpy()[valid])
        assert from_days(days)[3] == date(2018, 1, 3)
    store.close()


def test_timesen2crop_as_published(tmp_path: Path) -> None:
    """Bands are counted in the files' headers, and classes are numbers."""
    generator = np.random.default_rng(4)
    names = ("B02", "B03", "B04", "B05", "B06", "B07", "B8A", "B11", "B12")
    for tile in ("33TUM", "2019_33UVP"):
        for crop in (0, 2, 15):
            folder = tmp_path / "TimeSen2Crop" / tile / str(crop)
            folder.mkdir(parents=True)
            bands = {f"B{number}": generator.integers(1, 5000, 3) for number in range(1, 10)}
            pd.DataFrame({**bands, "Flag": [0, 3, 0]}).to_csv(folder / "0.csv", index=False)
        (tmp_path / "TimeSen2Crop" / tile / "dates.csv").write_text("acquisition_date\n20170905\n20170915\n20171005\n")
    store = ingest(tmp_path / "TimeSen2Crop", tmp_path / "store")
    assert store.fingerprint.bands == names
    assert store.fingerprint.classes.names == ["legumes", "maize", "other crops"]
    (reader,) = store.tiles
    for place, key in enumerate(reader.table.keys):
        frame = pd.read_csv(tmp_path / "TimeSen2Crop" / f"{key}.csv")
        values, valid, _ = reader.sample(place)
        assert valid.tolist() == [True, False, True]
        assert np.array_equal(values[valid], frame.drop(columns="Flag").to_numpy()[valid])
    store.close()


def test_damaged_timesen2crop(tmp_path: Path) -> None:
    folder = write_timesen2crop(tmp_path / "TimeSen2Crop")
    file = folder / "33TUM" / "1" / "0.csv"
    pd.read_csv(file).iloc[:3].to_csv(file, index=False)
    with pytest.raises(InputError, match=r"3 rows for 5 dates"):
        ingest(folder, tmp_path / "a")
    file.write_text("B2,B3\n1,2\n")
    with pytest.raises(InputError, match="not nine bands and a flag"):
        ingest(folder, tmp_path / "b")
    write_timesen2crop(tmp_path / "other")
    (tmp_path / "other" / "33TUM" / "dates.csv").write_text("soon\n")
    with pytest.raises(InputError, match="no dates"):
        ingest(tmp_path / "other", tmp_path / "c")
