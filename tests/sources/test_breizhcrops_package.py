"""Our reading of BreizhCrops against the loader of the package `breizhcrops`, parcel by parcel."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from cropstar.sources.breizhcrops import BreizhCropsOptions, open_breizhcrops
from cropstar.sources.ingest import ingest
from cropstar.store.store import Store
from tests.sources.breizhcrops.test_h5 import plain
from tests.sources.examples import regions
from tests.sources.examples.regions import CODES, NANOSECONDS, a_series, write_region

KEYS = (1007, 203, 31, 1010, 55, 8, 77)
SCALE = 1e-4  # by which the package's own transform multiplies

Sample = tuple[NDArray[Any], NDArray[Any], int]  # reflectance, days, class


@pytest.fixture(scope="module")
def package() -> Any:
    reason = "the package breizhcrops is not installed: pip install 'cropstar[breizhcrops]'"
    return pytest.importorskip("breizhcrops.datasets.breizhcrops", reason=reason, exc_type=ImportError)


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy"):  # a missing file would be fetched: fail at once instead
        monkeypatch.setenv(name, "http://127.0.0.1:9")


def loaded(package: Any, monkeypatch: pytest.MonkeyPatch, root: Path, region: str, level: str, **options: Any) -> Any:
    """The package's data set, its transforms replaced so that it draws no random dates."""
    h5 = root / "2017" / level / f"{region}.h5"
    size = h5.stat().st_size if h5.exists() else 0
    monkeypatch.setitem(package.FILESIZES, 2017, {level: {region: size}})
    identity = {"transform": lambda rows: rows, "target_transform": lambda number: number}
    return package.BreizhCrops(region, str(root), 2017, level, **identity, **options)


def theirs(package: Any, dataset: Any, bands: tuple[str, ...], day: float = NANOSECONDS) -> dict[str, Sample]:
    columns = package.SELECTED_BANDS[dataset.level]
    places = [columns.index(plain(band)) for band in bands]
    samples = {}
    for place in range(len(dataset)):
        rows, label, key = dataset[place]
        days = np.floor(rows[:, columns.index("doa")] / day)
        samples[str(key)] = (rows[:, places] * SCALE, days, int(label))
    return samples


def ours(root: Path, store: Path, **options: Any) -> tuple[dict[str, Sample], tuple[str, ...], list[str]]:
    ingest(open_breizhcrops(root, BreizhCropsOptions(samples_per_tile=3, **options)), store)
    opened = Store.open(store)
    samples = {}
    for _, reader in opened.readers():
        for place, key in enumerate(reader.table.keys):
            values, valid, days = reader.sample(place)
            assert valid.all()
            reflectance = values * opened.fingerprint.scale + opened.fingerprint.offset
            samples[key] = (reflectance, days, int(reader.table.labels[place]))
    opened.close()
    return samples, opened.fingerprint.bands, opened.fingerprint.classes.names


def require_same(mine: dict[str, Sample], other: dict[str, Sample]) -> None:
    assert set(mine) == set(other)
    for key, (reflectance, days, label) in mine.items():
        expected, moments, number = other[key]
        assert reflectance.shape == expected.shape
        # Means over parcels are stored in single precision.
        np.testing.assert_allclose(reflectance, expected, rtol=1e-6, atol=0)
        assert days.tolist() == moments.tolist()
        assert label == number


@pytest.mark.parametrize("whole", [False, True], ids=["means", "whole"])
@pytest.mark.parametrize(("level", "columns"), [("L1C", regions.L1C), ("L2A", regions.L2A)], ids=["L1C", "L2A"])
def test_every_parcel_is_the_same(
    package: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, level: str, columns: list[str], whole: bool
) -> None:
    arrays = {key: a_series(columns, 4 + key % 7, key, whole) for key in KEYS}
    codes = {key: [*CODES, "JAC"][place] for place, key in enumerate(KEYS)}  # the last is of no class
    write_region(tmp_path, level=level, series=arrays, codes=codes)
    before, bands, names = ours(tmp_path, tmp_path / "before")
    dataset = loaded(package, monkeypatch, tmp_path, "frh01", level)
    require_same(before, theirs(package, dataset, bands))
    assert set(before) == {str(key) for key in KEYS} - {"77"}
    assert names == list(dataset.classname)

    # The package has now written the index anew, with classes, region and another first column.
    after, *_ = ours(tmp_path, tmp_path / "after")
    require_same(after, theirs(package, loaded(package, monkeypatch, tmp_path, "frh01", level), bands))
    assert set(after) == set(before)


def test_the_bands_stand_where_the_package_takes_them_from(
    package: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its default transform for models: the same values in its own, alphabetical, order of bands."""
    write_region(tmp_path, series={key: a_series(regions.L1C, 45, key) for key in KEYS[:3]})
    mine, bands, _ = ours(tmp_path, tmp_path / "store")
    dataset = loaded(package, monkeypatch, tmp_path, "frh01", "L1C")
    dataset.transform = package.get_default_transform("L1C")  # of 45 dates it draws all
    order = ["B01", "B10", "B11", "B12", "B02", "B03", "B04", "B05", "B06", "B07", "B08", "B8A", "B09"]
    for place in range(len(dataset)):
        tensor, _, key = dataset[place]
        places = [bands.index(band) for band in order]
        np.testing.assert_allclose(mine[str(key)][0][:, places], tensor.numpy(), rtol=1e-6)


def test_belle_ile_with_its_real_index(
    package: Any, monkeypatch: pytest.MonkeyPatch, real_data: Path, tmp_path: Path
) -> None:
    root = real_data / "breizhcrops"
    index = pd.read_csv(root / "2017" / "L1C" / "belle-ile.csv")
    lengths = dict(zip(index["id"].tolist(), index["sequencelength"].tolist(), strict=True))
    series = {key: a_series(regions.L1C, length, key % 1000) for key, length in lengths.items()}
    write_region(tmp_path, "belle-ile", series=series, folder="frh04")
    for name in ("classmapping.csv", "codes.csv", "2017/L1C/belle-ile.csv"):
        shutil.copyfile(root / name, tmp_path / name)
    ingest(open_breizhcrops(tmp_path), tmp_path / "store")
    dataset = loaded(package, monkeypatch, tmp_path, "belle-ile", "L1C", preload_ram=True)
    store = Store.open(tmp_path / "store")
    ((_, reader),) = store.readers()
    other = theirs(package, dataset, store.fingerprint.bands)
    mine = {}
    for place, key in enumerate(reader.table.keys):
        values, _, days = reader.sample(place)
        mine[key] = (values * store.fingerprint.scale, days, int(reader.table.labels[place]))
    store.close()
    assert len(mine) == 1049
    require_same(mine, other)


@pytest.mark.parametrize("level", ["L1C", "L2A"])
def test_raw_csv_as_the_package_compiles_it(
    package: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, level: str
) -> None:
    """Gaps and double dates are in the csv; its own compilation to h5 and ours of the csv come to the same."""
    write_region(tmp_path, level=level)
    place = tmp_path / "2017" / level
    for name in ("frh01.h5", "frh01.csv"):
        (place / name).unlink()
    folder = place / "frh01" / "csv"
    folder.mkdir(parents=True)
    for number, key in enumerate(KEYS[:5]):
        write_raw_csv(folder / f"{key}.csv", level, key, list(CODES)[number])
    mine, bands, _ = ours(tmp_path, tmp_path / "raw")

    # An index must be there, else it is downloaded; the compilation writes it anew.
    (place / "frh01.csv").write_text("id,CODE_CULTU,path,idx,sequencelength\n")
    monkeypatch.setattr(package.BreizhCrops, "download_csv_files", lambda self: None)  # they are here
    dataset = loaded(package, monkeypatch, tmp_path, "frh01", level, recompile_h5_from_csv=True)
    columns = package.SELECTED_BANDS[level]
    latest = dataset[0][0][:, columns.index("doa")].max()
    day = NANOSECONDS if latest > 1e17 else NANOSECONDS / 1000  # with pandas 3 it stores microseconds
    require_same(mine, theirs(package, dataset, bands, day))
    assert {key: len(days) for key, (_, days, _) in mine.items()} == {str(key): 6 for key in KEYS[:5]}

    # And what it compiled is read by us like any other h5 file.
    shutil.rmtree(folder)
    compiled, *_ = ours(tmp_path, tmp_path / "compiled")
    require_same(compiled, theirs(package, dataset, bands, day))


def write_raw_csv(path: Path, level: str, key: int, code: str) -> None:
    """Eight rows: one with a gap, one that repeats a date with other values."""
    columns = regions.L1C if level == "L1C" else regions.L2A
    frame = pd.DataFrame(a_series(columns, 8, key), columns=columns)
    days = pd.to_datetime((frame["doa"] / NANOSECONDS).astype("int64"), unit="D").dt.strftime("%Y-%m-%d")
    frame["doa"] = days.where(days.index != 5, days[4])
    frame.loc[2, "B4"] = np.nan
    if level == "L1C":
        order = sorted(columns[:13]) + columns[13:]
        frame = frame[order].assign(label=code, id=key)
    else:
        frame.insert(1, "code_cultu", code)
        frame.insert(1, "id", key)
    frame.index = pd.Index([f"2017{number:04d}T1_T30UVU" for number in range(8)])
    frame.to_csv(path)
