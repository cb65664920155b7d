"""BreizhCrops: h5 and csv files, splits, bad files, and the same as the published package reads."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from cropstar.config import SplitConfig
from cropstar.datasets.splits import split_parcels
from cropstar.errors import InputError, UsageError
from cropstar.geo.calendar import from_days
from cropstar.sources.breizhcrops import (
    FOLDS,
    REGIONS,
    BreizhCropsOptions,
    BreizhCropsScene,
    looks_like_breizhcrops,
    open_breizhcrops,
    read_parts,
)
from cropstar.sources.ingest import ingest
from cropstar.store.store import Store
from cropstar.store.tile import SeriesTile
from tests.sources.examples import regions
from tests.sources.examples.regions import CODES, NANOSECONDS, a_series, write_region

BANDS = ("B01", "B02", "B03", "B04", "B05", "B06", "B07", "B08", "B8A", "B09", "B10", "B11", "B12")
BANDS_L2A = ("B02", "B03", "B04", "B05", "B06", "B07", "B08", "B8A", "B11", "B12")


def opened(root: Path, **options: Any) -> BreizhCropsScene:
    (scene,) = open_breizhcrops(root, BreizhCropsOptions(**options))
    return scene


def tile_of(root: Path, **options: Any) -> SeriesTile:
    scene = opened(root, **options)
    return scene.build(scene.tile_specs()[0])


def plain(name: str) -> str:
    """B02 as the files call it."""
    return name if name == "B8A" else f"B{int(name[1:])}"


def require_equal(root: Path, store_folder: Path, region: str, level: str, columns: list[str]) -> None:
    """A store against a plain reading of the index and the h5 file."""
    folder = root / "2017" / level
    index = pd.read_csv(folder / f"{region}.csv")
    mapping = pd.read_csv(root / "classmapping.csv").set_index("code")["id"]
    rows = {str(row.id): row for row in index.itertuples() if row.CODE_CULTU in mapping}
    store = Store.open(store_folder)
    seen = []
    with h5py.File(folder / f"{region}.h5") as handle:
        for _, reader in store.readers():
            for place, key in enumerate(reader.table.keys):
                expected = pd.DataFrame(handle[str(rows[key].path)][()], columns=columns)
                bands = expected[[plain(band) for band in store.fingerprint.bands]].to_numpy()
                values, valid, days = reader.sample(place)
                assert np.array_equal(values, bands.astype(values.dtype))
                moments = pd.to_datetime(expected["doa"].astype("int64"), unit="ns")
                assert days.tolist() == [(moment - pd.Timestamp(0)).days for moment in moments]
                assert reader.table.labels[place] == mapping[str(rows[key].CODE_CULTU)]
                assert valid.all()
                seen.append(key)
    store.close()
    assert seen == sorted(rows, key=int)


@pytest.mark.parametrize(
    ("level", "columns", "bands"),
    [("L1C", regions.L1C, BANDS), ("L1C", regions.ALPHABETIC, BANDS)]
    + [("L2A", columns, BANDS_L2A) for columns in (regions.L2A, regions.L2A_OLD)],
    ids=["L1C", "L1C-alphabetic", "L2A", "L2A-date-last"],
)
@pytest.mark.parametrize("whole", [False, True], ids=["means", "whole"])
def test_a_store_equals_a_plain_reading(
    tmp_path: Path, level: str, columns: list[str], bands: tuple[str, ...], whole: bool
) -> None:
    keys = (1007, 203, 31, 1010, 55)
    series = {key: a_series(columns, 4 + key % 5, key, whole) for key in keys}
    write_region(tmp_path, level=level, series=series)
    assert looks_like_breizhcrops(tmp_path)
    scenes = open_breizhcrops(tmp_path, BreizhCropsOptions(samples_per_tile=2))
    assert ingest(scenes, tmp_path / "store").written == 3
    assert ingest(scenes, tmp_path / "store").kept == 3
    require_equal(tmp_path, tmp_path / "store", "frh01", level, columns)
    store = Store.open(tmp_path / "store")
    assert (store.fingerprint.bands, store.fingerprint.scale, store.fingerprint.offset) == (bands, 1e-4, 0.0)
    assert store.fingerprint.classes.names[:3] == ["barley", "wheat", "rapeseed"]
    assert len(store.fingerprint.classes) == 9
    assert {reader.sample(0)[0].dtype for _, reader in store.readers()} == {np.dtype("u2" if whole else "f4")}
    ((name, about),) = store.manifest.scenes.items()
    assert (name, about["samples"]) == (f"frh01-2017-{level}", 5)
    assert about["observations"] == sum(map(len, series.values()))
    assert about["dates"][0] == "2017-01-04"
    store.close()


@pytest.mark.parametrize("unit", [NANOSECONDS, 86_400e6], ids=["nanoseconds", "microseconds"])
@pytest.mark.parametrize(("level", "columns"), [("L1C", regions.L1C), ("L2A", regions.L2A), ("L2A", regions.L2A_OLD)])
def test_the_unit_of_dates_by_magnitude(tmp_path: Path, level: str, columns: list[str], unit: float) -> None:
    write_region(tmp_path, level=level, series={1: a_series(columns, 3, 1, unit=unit)})
    assert tile_of(tmp_path).days.tolist() == [17_170, 17_175, 17_180]


def test_gaps_are_dropped_and_of_one_date_the_first_row_is_kept(tmp_path: Path) -> None:
    rows = a_series(regions.L1C, 6, 1)
    rows[1, 3] = np.nan
    rows[4, -1] = rows[3, -1] + 3_600e9  # an hour later
    rows = rows[[0, 1, 3, 4, 2, 5]]
    empty = np.full((3, 17), np.nan)
    write_region(tmp_path, series={1: rows, 2: empty, 3: np.empty((0, 17))})
    scene = opened(tmp_path)
    tile = scene.build(scene.tile_specs()[0])
    assert tile.days.tolist() == [17_170, 17_180, 17_185, 17_195]
    assert np.array_equal(tile.values, rows[[0, 4, 2, 5], :13].astype(np.float32))
    assert (tile.table.keys, tile.table.numbers.tolist()) == (["1"], [1])
    assert scene.describe()["left_out"] == {"unmapped": 0, "empty": 2}


def test_codes_that_are_not_mapped_are_left_out_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    series = {key: a_series(regions.L1C, 3, key) for key in range(1, 7)}
    codes = {1: "BTH", 2: "JAC", 3: "JAC", 4: "XYZ", 5: "RGA", 6: "MIS"}
    write_region(tmp_path, series=series, codes=codes)
    with caplog.at_level("WARNING", logger="cropstar"):
        scene = opened(tmp_path)
    tile = scene.build(scene.tile_specs()[0])
    assert tile.table.keys == ["1", "5", "6"]
    assert tile.table.labels.tolist() == [CODES["BTH"], CODES["RGA"], CODES["MIS"]]
    assert scene.describe()["left_out"] == {"unmapped": 3, "empty": 0}
    assert "3 parcels of no mapped class left out: JAC (Jachère) 2, XYZ 1" in caplog.text


def test_every_variant_of_the_index(tmp_path: Path) -> None:
    write_region(tmp_path)
    path = tmp_path / "2017" / "L1C" / "frh01.csv"
    expected = tile_of(tmp_path)
    index = pd.read_csv(path)
    full = index.assign(classid=0, classname="wrong", region="frh01")
    for variant in (
        full,
        index.rename(columns={"meanCLD": "meanQA60"}),
        full.assign(**{"Unnamed: 0": index["idx"]}),
        index[["CODE_CULTU", "path"]],
        index.iloc[::-1],
    ):
        variant.to_csv(path, index=False)
        tile = tile_of(tmp_path)
        assert np.array_equal(tile.values, expected.values)
        assert tile.table.keys == expected.table.keys == ["31", "203", "1007", "1010"]
        assert tile.table.labels.tolist() == expected.table.labels.tolist()


def test_clouds_by_option(tmp_path: Path) -> None:
    for level, columns in (("L1C", regions.L1C), ("L2A", regions.L2A)):
        root = tmp_path / level
        write_region(root, level=level, series={1: a_series(columns, 5, 1)})
        assert tile_of(root).valid.all()
        masked = tile_of(root, mask="clouds")
        assert masked.valid.tolist() == [True, False, True, True, False]
        assert np.array_equal(masked.values, tile_of(root).values)
        assert tile_of(root, mask="clouds", cloud_limit=1024.0).valid.all()
        assert opened(root).recipe != opened(root, mask="clouds").recipe


# --- regions, years, levels


def test_one_scene_a_region_year_and_level(tmp_path: Path) -> None:
    for region in REGIONS[:4]:
        write_region(tmp_path, region)
    write_region(tmp_path, "frh02", year=2018)
    names = [scene.name for scene in open_breizhcrops(tmp_path)]
    assert names == [*(f"frh0{n}-2017-L1C" for n in range(1, 5)), "frh02-2018-L1C"]
    assert opened(tmp_path, year=2018).name == "frh02-2018-L1C"
    chosen = open_breizhcrops(tmp_path, BreizhCropsOptions(regions=("frh04", "frh01"), year=2017))
    assert [scene.name for scene in chosen] == ["frh01-2017-L1C", "frh04-2017-L1C"]
    for fold in FOLDS.values():
        assert {*fold["train"], *fold["test"]} <= {name[:5] for name in names}
        assert not {*fold["train"]} & {*fold["test"]}
    write_region(tmp_path, "frh01", level="L2A")
    with pytest.raises(UsageError, match=r"several levels in .*L1C and L2A"):
        open_breizhcrops(tmp_path)
    assert opened(tmp_path, level="L2A").fingerprint.bands == BANDS_L2A
    with pytest.raises(InputError, match=r"no region 'frh03' of 2018 in .*there is frh01-2017-L1C"):
        opened(tmp_path, year=2018, regions=("frh03",))
    for wrong in ({"level": "L3"}, {"mask": "sky"}, {"samples_per_tile": 0}):
        with pytest.raises(UsageError):
            BreizhCropsOptions(**wrong)


def test_belle_ile_is_a_part_of_frh04(tmp_path: Path) -> None:
    series = write_region(tmp_path, "frh04")
    part = {key: series[key] for key in list(series)[:2]}
    write_region(tmp_path, "belle-ile", series=part, folder="frh04")
    assert opened(tmp_path).name == "frh04-2017-L1C"
    assert opened(tmp_path, regions=("belle-ile",)).describe()["samples"] == 2
    assert len(open_breizhcrops(tmp_path, BreizhCropsOptions(regions=("belle-ile", "frh04")))) == 2


# --- Splits


@pytest.fixture(scope="module")
def brittany(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of four regions with 24 parcels each."""
    root = tmp_path_factory.mktemp("brittany")
    for number, region in enumerate(REGIONS[:4]):
        keys = range(1000 * number, 1000 * number + 24)
        write_region(root, region, series={key: a_series(regions.L1C, 3, key) for key in keys})
    ingest(open_breizhcrops(root), root / "store")
    return root / "store"


@pytest.mark.parametrize("name", FOLDS)
def test_a_fold_keeps_its_regions_apart(brittany: Path, name: str) -> None:
    store = Store.open(brittany)
    assert {reader.provenance["group"] for _, reader in store.readers()} == set(REGIONS[:4])
    split = split_parcels(store, SplitConfig(name=name, validation=0.25), seed=1)
    store.close()
    of_part: dict[str, set[str]] = {}
    for (scene, _), part in split.part_of.items():
        of_part.setdefault(part, set()).add(scene.removesuffix("-2017-L1C"))
    assert of_part["test"] == set(FOLDS[name]["test"])
    assert of_part["train"] == set(FOLDS[name]["train"])
    assert of_part["validation"] <= of_part["train"]  # a share of the training fields


def test_the_lists_of_ids_beside_raw_csv(real_data: Path, tmp_path: Path) -> None:
    root = tmp_path / "raw"
    shutil.copytree(real_data / "breizhcrops" / "raw-csv-sample", root)
    listed = {path.stem[8:]: path.read_text().split() for path in (root / "ids").iterdir()}
    tile = tile_of(root)
    assert tile.table.groups is not None
    groups = dict(zip(tile.table.keys, tile.table.groups, strict=True))
    assert groups == {key: part for part, keys in listed.items() for key in keys}
    assert opened(root).describe()["splits"] == {"ids": {"train": ["train"], "validation": ["valid"], "test": ["eval"]}}
    ingest(open_breizhcrops(root), tmp_path / "store")
    store = Store.open(tmp_path / "store")
    split = split_parcels(store, SplitConfig(name="ids"), seed=1)
    ((_, reader),) = store.readers()
    keys = dict(zip(reader.table.numbers.tolist(), reader.table.keys, strict=True))
    parts = {keys[number]: part for (_, number), part in split.part_of.items()}
    store.close()
    names = {"train": "train", "valid": "validation", "eval": "test"}
    assert parts == {key: names[part] for part, own in listed.items() for key in own}


def test_a_changed_list_makes_another_scene(real_data: Path, tmp_path: Path) -> None:
    shutil.copytree(real_data / "breizhcrops" / "raw-csv-sample", tmp_path, dirs_exist_ok=True)
    before = opened(tmp_path).recipe
    training, testing = tmp_path / "ids" / "regiona_train.txt", tmp_path / "ids" / "regiona_eval.txt"
    first, *others = training.read_text().split()
    training.write_text("\n".join(others))
    tile = tile_of(tmp_path)
    assert tile.table.groups is not None
    assert tile.table.groups[tile.table.keys.index(first)] == ""  # in no list: in no part
    assert tile.recipe != before
    testing.write_text(f"{testing.read_text()}\n{others[0]}\n")
    with pytest.raises(InputError, match=rf"a parcel is in two lists in .*'{others[0]}' is in those of eval and train"):
        opened(tmp_path)


# --- Real files

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


# --- Bad input

HERE = Path("2017") / "L1C"


def message(root: Path) -> str:
    with pytest.raises(InputError) as caught:
        open_breizhcrops(root)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_missing_files(tmp_path: Path) -> None:
    assert not looks_like_breizhcrops(tmp_path)
    assert "no such folder" in message(tmp_path / "nowhere")
    assert "no class mapping" in message(tmp_path)
    write_region(tmp_path)
    (tmp_path / HERE / "frh01.h5").rename(tmp_path / "away.h5")
    assert "no series of the region 'frh01'" in message(tmp_path)
    assert "frh01.h5 is missing" in message(tmp_path)
    (tmp_path / "away.h5").rename(tmp_path / HERE / "frh01.h5")
    (tmp_path / HERE / "frh01.csv").unlink()
    assert "no index of the region" in message(tmp_path)
    (tmp_path / HERE / "frh01.h5").unlink()
    assert "no BreizhCrops region" in message(tmp_path)


def test_without_class_mapping(tmp_path: Path) -> None:
    write_region(tmp_path)
    mapping = tmp_path / "classmapping.csv"
    for text, expected in (
        ("", "not a table"),
        ("a,b\n1,2\n", "not a class mapping"),
        (",id,classname,code\n1,x,barley,ORH\n", "no numeric id"),
        (",id,classname,code\n1,0,barley,ORH\n2,1,wheat,ORH\n", "the code 'ORH' appears twice"),
        (",id,classname,code\n1,0,wheat,ORH\n2,1,wheat,BTH\n", "the class name 'wheat' appears twice"),
        (",id,classname,code\n1,0,wheat,QQQ\n", "no parcel of a mapped class"),
    ):
        mapping.write_text(text)
        assert expected in message(tmp_path)
    mapping.unlink()
    assert looks_like_breizhcrops(tmp_path)
    assert "classmapping.csv is missing" in message(tmp_path)


def test_an_h5_file_without_a_parcel_of_the_index(tmp_path: Path) -> None:
    write_region(tmp_path)
    with h5py.File(tmp_path / HERE / "frh01.h5", "a") as handle:
        del handle["csv/frh01/203.csv"]
    assert "a parcel is missing in " in message(tmp_path)
    assert "the index names 'csv/frh01/203.csv'" in message(tmp_path)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_truncated_h5_file(tmp_path: Path, share: float) -> None:
    write_region(tmp_path)
    path = tmp_path / HERE / "frh01.h5"
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    assert "damaged h5 file" in message(tmp_path)


def test_wrong_columns(tmp_path: Path) -> None:
    write_region(tmp_path, series={1: a_series(regions.L2A, 3, 1)})
    assert "wrong number of columns in " in message(tmp_path)
    assert "has the shape (3, 14), L1C has 17 columns" in message(tmp_path)
    write_region(tmp_path, series={1: a_series([*regions.L1C[:-1], "B", "doa"], 3, 1)[:, :17]})
    assert "not a date" in message(tmp_path)
    write_region(tmp_path, series={1: np.full((2, 17), np.nan)})
    assert "no observation" in message(tmp_path)


def test_a_broken_index(tmp_path: Path) -> None:
    write_region(tmp_path)
    path = tmp_path / HERE / "frh01.csv"
    text = path.read_text()
    path.write_text(text + text.splitlines()[1] + "\n")
    assert "the parcel '1007' appears 2 times" in message(tmp_path)
    path.write_text("a,b\n1,2\n")
    assert "not an index of parcels" in message(tmp_path)
    path.write_bytes(b"\xff\xfe\x00")
    assert "frh01.csv" in message(tmp_path)


# --- As the published package reads it

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
