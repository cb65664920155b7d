"""Regions as the package downloads them: levels, orders of columns, indexes, classes, stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest

from cropstar.errors import InputError, UsageError
from cropstar.sources.breizhcrops import (
    FOLDS,
    REGIONS,
    BreizhCropsOptions,
    BreizhCropsScene,
    looks_like_breizhcrops,
    open_breizhcrops,
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
        train, test = fold.scenes()
        assert {*train, *test} <= set(names)
        assert not {*train} & {*test}
    assert FOLDS["test-frh04"].scenes(2018, "L2A")[1] == ("frh04-2018-L2A",)
    write_region(tmp_path, "frh01", level="L2A")
    with pytest.raises(UsageError, match=r"which level\? in .*L1C and L2A"):
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
