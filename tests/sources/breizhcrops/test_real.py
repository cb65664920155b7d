"""The real files: raw csv of a Bavarian region, Belle-Ile's index, the class mapping and the codes."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cropstar.errors import InputError
from cropstar.geo.calendar import from_days
from cropstar.sources.breizhcrops import BreizhCropsOptions, looks_like_breizhcrops, open_breizhcrops
from cropstar.sources.breizhcrops.files import read_parts
from cropstar.sources.ingest import ingest
from cropstar.store.store import Store
from tests.sources.breizhcrops.test_h5 import opened, plain, tile_of
from tests.sources.examples import regions
from tests.sources.examples.regions import a_series, write_region

LENGTHS = {"71456800": 74, "71456939": 71, "71459051": 71, "71459107": 71, "71459175": 71, "71459190": 71}


def test_raw_csv(real_data: Path, tmp_path: Path) -> None:
    root = real_data / "breizhcrops" / "raw-csv-sample"
    assert looks_like_breizhcrops(root)
    ingest(open_breizhcrops(root), tmp_path / "store")
    store = Store.open(tmp_path / "store")
    mapping = pd.read_csv(root / "classmapping.csv").set_index("nutzcode")["id"]
    ((_, reader),) = store.readers()
    assert {key: int(n) for key, n in zip(reader.table.keys, np.diff(reader.starts), strict=True)} == LENGTHS
    for place, key in enumerate(reader.table.keys):
        frame = pd.read_csv(root / "csv" / "regionA" / f"{key}.csv", index_col=0).dropna()
        frame = frame.groupby("doa").first().reset_index()  # as the package does
        values, valid, days = reader.sample(place)
        bands = frame[[plain(band) for band in store.fingerprint.bands]].to_numpy()
        assert np.array_equal(values, bands.astype(np.float32))
        assert [day.isoformat() for day in from_days(days)] == frame["doa"].tolist()
        assert reader.table.labels[place] == mapping[frame["label"].iloc[0]]
        assert valid.all()
    names = [store.fingerprint.classes.names[label] for label in reader.table.labels]
    assert Counter(names) == {"machined meadow": 4, "cattle meadow": 1, "clover alfalfa protein plants": 1}
    about = store.manifest.scenes["regionA-2018-L1C"]
    assert (about["samples"], about["observations"]) == (6, 429)
    assert about["id_lists"] == {"eval": 2, "train": 2, "valid": 2}
    assert (len(store.fingerprint.bands), len(store.fingerprint.classes)) == (13, 22)
    store.close()
    parts = read_parts(root, "regionA")
    assert {key for keys in parts.values() for key in keys} == set(LENGTHS)


def test_raw_csv_in_the_folders_of_the_package(real_data: Path, tmp_path: Path) -> None:
    sample = real_data / "breizhcrops" / "raw-csv-sample"
    folder = tmp_path / "2018" / "L1C" / "frh01" / "csv"
    folder.mkdir(parents=True)
    for path in (sample / "csv" / "regionA").iterdir():
        frame = pd.read_csv(path, index_col=0)
        frame["doa"] = pd.to_datetime(frame["doa"]).astype("datetime64[us]").astype("int64")  # as pandas 3 writes
        frame.to_csv(folder / path.name)
    shutil.copyfile(sample / "classmapping.csv", tmp_path / "classmapping.csv")
    tile, expected = tile_of(tmp_path), tile_of(sample)
    assert tile.scene == "frh01-2018-L1C"
    assert np.array_equal(tile.values, expected.values)
    assert np.array_equal(tile.days, expected.days)
    assert tile.table.labels.tolist() == expected.table.labels.tolist()
    clear = tile_of(tmp_path, mask="clouds").valid
    assert 0 < clear.sum() < len(clear)
    (folder / "1.csv").write_text(",B1,doa,label,id\nx,1,2018-01-01,451,1\n")
    with pytest.raises(InputError, match=r"wrong columns in .*1\.csv: B02"):
        opened(tmp_path)
    (folder / "1.csv").write_text("")
    with pytest.raises(InputError, match=r"not the csv of a parcel in .*1\.csv: it is empty"):
        opened(tmp_path)


def test_raw_csv_of_l2a(tmp_path: Path) -> None:
    series = a_series(regions.L2A, 5, 1)
    write_region(tmp_path, level="L2A", series={7: series})
    expected = tile_of(tmp_path)
    folder = tmp_path / "2017" / "L2A" / "frh01" / "csv"
    folder.mkdir(parents=True)
    frame = pd.DataFrame(series, columns=regions.L2A)
    frame["doa"] = pd.to_datetime(frame["doa"].astype("int64")).dt.strftime("%Y-%m-%d")
    frame.insert(1, "code_cultu", "BTH")
    frame.insert(1, "id", 7)
    frame.to_csv(folder / "7.csv")
    (tmp_path / "2017" / "L2A" / "frh01.h5").unlink()
    tile = tile_of(tmp_path)
    assert tile.provenance["files"] == "csv"
    assert np.array_equal(tile.values, expected.values)
    assert np.array_equal(tile.days, expected.days)


def test_the_real_index_and_mapping_of_belle_ile(real_data: Path, tmp_path: Path) -> None:
    root = real_data / "breizhcrops"
    assert looks_like_breizhcrops(root)
    with pytest.raises(InputError, match=r"belle-ile\.h5 is missing"):
        open_breizhcrops(root)
    index = pd.read_csv(root / "2017" / "L1C" / "belle-ile.csv")
    rows = a_series(regions.L1C, 3, 1)
    write_region(tmp_path, "belle-ile", series=dict.fromkeys(index["id"], rows), folder="frh04")
    for name in ("classmapping.csv", "codes.csv", "2017/L1C/belle-ile.csv"):
        shutil.copyfile(root / name, tmp_path / name)
    scene = opened(tmp_path, regions=("belle-ile",))
    tile = scene.build(scene.tile_specs()[0])
    assert (scene.name, len(tile.table.keys)) == ("belle-ile-2017-L1C", 1049)
    assert scene.describe()["left_out"] == {"unmapped": 0, "empty": 0}
    expected = index.set_index(index["id"].astype(str))
    assert tile.table.labels.tolist() == expected.loc[tile.table.keys, "classid"].tolist()
    names = [scene.fingerprint.classes.names[label] for label in tile.table.labels]
    assert names == expected.loc[tile.table.keys, "classname"].tolist()
    assert len(scene.fingerprint.classes) == 9
    assert opened(tmp_path, regions=("belle-ile",)).recipe == scene.recipe
    assert BreizhCropsOptions().to_json() == {"mask": "none", "samples_per_tile": 4096}
