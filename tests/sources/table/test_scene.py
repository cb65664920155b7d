"""From a table to a store: real files, pieces, recipes, both formats."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cropstar.config import SplitConfig
from cropstar.datasets.fields import Fields
from cropstar.datasets.splits import split_parcels
from cropstar.errors import InputError, UsageError
from cropstar.geo.calendar import from_days
from cropstar.reports.contents import summarise
from cropstar.sources.ingest import IngestResult, ingest
from cropstar.sources.table import TableOptions, open_table
from cropstar.store.reader import TileReader
from cropstar.store.store import MANIFEST, TILES, Store
from tests.sources.examples.tables import a_frame, as_csv, as_parquet, scene_of, tile_of

BANDS = ["B1", "B2", "B3", "B4", "B5", "B6", "B7", "B8", "B8A", "B9", "B10", "B11", "B12"]


def stored(path: Path, folder: Path, **options: Any) -> IngestResult:
    return ingest(open_table(path, TableOptions(**options)), folder)


def require_equal(folder: Path, frame: pd.DataFrame, key: str, bands: list[str]) -> int:
    """Every sample of a store against the rows that pandas read; answers how many there were."""
    store, rows = Store.open(folder), dict(list(frame.groupby(key)))
    names = store.fingerprint.classes.names
    count = 0
    for _, reader in store.readers():
        for index, name in enumerate(reader.table.keys):
            expected = rows[name].sort_values("date")
            values, valid, days = reader.sample(index)
            assert np.array_equal(values, expected[bands].to_numpy())
            assert [day.isoformat() for day in from_days(days)] == expected["date"].tolist()
            assert {names[reader.table.labels[index]]} == set(expected["crop"])
            assert valid.all()
            count += 1
    store.close()
    assert count == len(rows)
    return count


# --- real files


def test_bavaria(real_data: Path, tmp_path: Path) -> None:
    path = real_data / "bavaria" / "fields_2016_2017.parquet"
    result = stored(path, tmp_path / "store")
    assert (result.written, result.kept) == (2, 0)
    frame = pd.read_parquet(path)
    assert require_equal(tmp_path / "store", frame, "field_id", BANDS) == 1199
    store = Store.open(tmp_path / "store")
    assert store.fingerprint.bands[:2] + store.fingerprint.bands[7:10] == ("B01", "B02", "B08", "B8A", "B09")
    assert (len(store.fingerprint.bands), store.fingerprint.scale, store.fingerprint.resolution) == (13, 1e-4, 0.0)
    assert store.fingerprint.classes.names == sorted(set(frame["crop"]))
    assert (store.fingerprint.season.start, store.fingerprint.season.length) == (46, 197)  # not two years
    counts = {reader.scene: len(reader.table.keys) for _, reader in store.readers()}
    assert counts == {"fields_2016_2017-2016": 599, "fields_2016_2017-2017": 600}
    for _, reader in store.readers():
        assert set(np.diff(reader.starts).tolist()) == {14}
        assert reader.sample(0)[0].dtype == np.float32
    assert [len(scene["dates"]) for scene in store.manifest.scenes.values()] == [14, 14]
    store.close()


def test_bavaria_as_csv_has_the_same_values(real_data: Path, tmp_path: Path) -> None:
    (head,) = open_table(real_data / "bavaria" / "fields_head.csv")
    tile = head.build(head.tile_specs()[0])
    whole, _ = open_table(real_data / "bavaria" / "fields_2016_2017.parquet")
    start = whole.build(whole.tile_specs()[0])
    assert (head.name, len(tile.table.keys)) == ("fields_head-2016", 40)
    assert tile.table.keys == start.table.keys[:40]
    assert np.array_equal(tile.values, start.values[:560])
    assert np.array_equal(tile.days, start.days[:560])


def test_french_parcels_stay_irregular(real_data: Path, tmp_path: Path) -> None:
    path = real_data / "fra-lpis" / "parcels_2023_dekads.parquet"
    assert stored(path, tmp_path / "store").written == 1
    frame = pd.read_parquet(path)
    bands = [column for column in frame.columns if column.startswith("B")]
    assert require_equal(tmp_path / "store", frame, "sample_id", bands) == 499
    store = Store.open(tmp_path / "store")
    ((_, reader),) = store.readers()
    lengths = np.diff(reader.starts)
    assert (lengths.min(), lengths.max(), lengths.sum()) == (13, 42, 13_341)
    assert reader.sample(0)[0].dtype == np.uint16
    assert (store.fingerprint.scale, len(store.fingerprint.classes)) == (1e-4, 26)
    assert len(store.manifest.scenes["parcels_2023_dekads"]["dates"]) == 50
    store.close()


# --- pieces and recipes


def test_a_scene_is_cut_into_tiles_of_whole_samples(tmp_path: Path) -> None:
    whole = tile_of(a_frame(), tmp_path)
    scene = scene_of(a_frame(), tmp_path, samples_per_tile=2)
    pieces = scene.tile_specs()
    assert [(piece.window.top, piece.window.height) for piece in pieces] == [(0, 2), (2, 1)]
    assert [piece.name for piece in pieces] == [f"table-{scene.recipe[:8]}-n000000{start}" for start in (0, 2)]
    second, first = (scene.build(piece) for piece in reversed(pieces))  # in any order
    assert np.array_equal(np.concatenate([first.values, second.values]), whole.values)
    assert np.array_equal(np.concatenate([first.days, second.days]), whole.days)
    assert (first.starts.tolist(), second.starts.tolist()) == ([0, 1, 3], [0, 3])
    assert [*first.table.keys, *second.table.keys] == whole.table.keys
    assert [*first.table.numbers, *second.table.numbers] == [1, 2, 3]
    assert scene.layout == first.layout == "series"
    with pytest.raises(UsageError, match="must be above zero"):
        scene_of(a_frame(), tmp_path, samples_per_tile=0)


def test_what_is_guessed_and_what_is_given_have_one_recipe(tmp_path: Path) -> None:
    guessed = scene_of(a_frame(), tmp_path).recipe
    given_options: dict[str, Any] = {
        "id_column": "field_id",
        "label_column": "crop",
        "bands": ("B04", "B8"),
        "scale": 1e-4,
    }
    assert scene_of(a_frame(), tmp_path, **given_options).recipe == guessed
    others: list[dict[str, Any]] = [
        {"scale": 1.0},
        {"bands": ("B8", "B4")},
        {"bands": ("B4",)},
        {"nodata": ()},
        {"samples_per_tile": 1},
        {"keep_unlabelled": True},
        {"mask_column": "B4"},
        {"offset": -0.1},
    ]
    frame = a_frame(B4=[0, 0, 0, 0, 0, 1])  # so that it also makes a mask
    recipes = [scene_of(frame, tmp_path, **options).recipe for options in [{}, *others]]
    assert len({guessed, *recipes}) == len(others) + 2


def test_the_manifest_describes_the_scene(tmp_path: Path) -> None:
    stored(as_csv(a_frame(region=["north"] * 6), tmp_path / "table"), tmp_path / "store")
    scene = json.loads((tmp_path / "store" / MANIFEST).read_text())["scenes"]["table-north"]
    assert scene["dates"] == sorted(a_frame()["date"])
    assert (scene["samples"], scene["observations"], scene["group"]) == (3, 6, "north")
    assert (scene["source"], scene["file"]) == ("table", "table.csv")
    assert scene["columns"]["bands"] == {"B04": "B4", "B08": "B8"}


# --- several series of one field


def test_the_field_of_every_series_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    frame = a_frame(farm=["a", "b", "b", "a", "a", "b"])
    with caplog.at_level("INFO", logger="cropstar"):
        stored(as_csv(frame, tmp_path / "table"), tmp_path / "store", field_column="farm")
    assert "group none, field farm, mask none" in caplog.text
    store = Store.open(tmp_path / "store")
    ((_, reader),) = store.readers()
    assert (reader.table.keys, reader.table.fields) == (["f1", "f2", "f10"], ["a", "a", "b"])
    assert [len(pieces) for pieces in Fields.of(store).pieces.values()] == [2, 1]
    store.close()


def test_without_fields_recipe_and_tile_are_those_of_older_versions(tmp_path: Path) -> None:
    scene = scene_of(a_frame(), tmp_path)
    assert "field" not in scene.provenance["columns"]
    assert scene.build(scene.pieces()[0]).table.fields is None
    assert scene_of(a_frame(), tmp_path, field_column="field_id").recipe != scene.recipe


def test_a_series_is_of_one_field_and_every_one_has_its_field(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"fields differ within one id .*table.csv: 'f10' has 'b' and 'c'; .*--id"):
        scene_of(a_frame(farm=["a", "b", "c", "a", "a", "b"]), tmp_path, field_column="farm")
    with pytest.raises(InputError, match=r"no field .*table.csv: row 2 has none; fill the column 'farm' or leave out"):
        scene_of(a_frame(farm=["a", None, "b", "a", "a", "b"]), tmp_path, field_column="farm")


@settings(max_examples=25)
@given(st.lists(st.integers(0, 19), min_size=60, max_size=60), st.integers(0, 2**32))
def test_no_split_tears_the_series_of_a_field_apart(fields: list[int], seed: int) -> None:
    """Sixty series over five years, of up to twenty fields."""
    series = range(len(fields))
    frame = pd.DataFrame(
        {
            "sample_id": [f"s{number}" for number in series],
            "farm": fields,
            "year": [2016 + number % 5 for number in series],
            "date": [f"{2016 + number % 5}-05-01" for number in series],
            "crop": "wheat",
            "B4": [100 + number for number in series],
        }
    )
    with TemporaryDirectory() as folder:
        stored(as_csv(frame, Path(folder) / "table"), Path(folder) / "store", field_column="farm")
        store = Store.open(Path(folder) / "store")
        own = {
            (reader.scene, int(number)): farm
            for _, reader in store.readers()
            for number, farm in zip(reader.table.numbers, reader.table.fields or [], strict=True)
        }
        assert len(own) == len(fields)
        for options in ({}, {"folds": 3, "fold": 2}, {"by": "group"}, {"by": "scene", "test": ["table-2020"]}):
            try:
                split = split_parcels(store, SplitConfig.model_validate(options), seed)
            except InputError:  # too few fields for three parts
                continue
            parts: dict[str, set[str]] = {}
            for parcel, part in split.part_of.items():
                parts.setdefault(own[parcel], set()).add(part)
            assert all(len(found) == 1 for found in parts.values())
            if "by" not in options:  # nothing is lost
                assert set(split.part_of) == set(own)
        store.close()


# --- a store


def test_a_rerun_keeps_everything_and_other_options_are_refused(tmp_path: Path) -> None:
    path, store = as_csv(a_frame(year=[2020, 2021] * 3), tmp_path / "table"), tmp_path / "store"
    assert (stored(path, store).written, stored(path, store).kept) == (2, 2)
    before = {file.name: file.read_bytes() for file in store.rglob("*.h5")}
    with pytest.raises(UsageError, match="of other content or options is in the store"):
        stored(path, store, samples_per_tile=1)
    assert {file.name: file.read_bytes() for file in store.rglob("*.h5")} == before


def test_csv_and_parquet_give_the_same_store(tmp_path: Path) -> None:
    frame = a_frame(year=[2021, 2021, 2022, 2021, 2022, 2022], B8=[0.25, None, 0.1, 0.33333334, 1.1, 0.7])
    frame["B4"] = frame["B4"] / 1000
    contents: list[Any] = []
    for write, name in ((as_csv, "one"), (as_parquet, "two")):
        store = tmp_path / name
        path = write(frame, tmp_path / "table")
        stored(path, store)
        recipe = open_table(path)[0].recipe
        tiles = {tile.name.replace(recipe[:8], ""): tile for tile in (store / TILES).iterdir()}
        contents.append({name: _arrays(tile) for name, tile in tiles.items()})
        manifest = json.loads((store / MANIFEST).read_text())
        contents.append((manifest["fingerprint"], {name: scene["dates"] for name, scene in manifest["scenes"].items()}))
    assert contents[:2] == contents[2:]
    assert len(contents[0]) == 2


def _arrays(path: Path) -> tuple[Any, ...]:
    """All that a tile holds apart from its recipe and provenance."""
    reader = TileReader(path)
    samples = [reader.sample(index) for index in range(len(reader.table.keys))]
    held = [array.tobytes() + str(array.dtype).encode() for sample in samples for array in sample]
    table = (reader.table.keys, reader.table.labels.tolist(), reader.table.numbers.tolist())
    fingerprint, scene = reader.fingerprint, reader.scene
    reader.close()
    return scene, fingerprint, table, held


def test_what_is_said_of_a_store_of_series(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    frame = a_frame(B4=[100, None, 300, 400, 500, 600], crop=["maize", "wheat", "wheat", "maize", None, "wheat"])
    with caplog.at_level("INFO", logger="cropstar"):
        stored(as_csv(frame.assign(lon=1.5), tmp_path / "table"), tmp_path / "store", keep_unlabelled=True)
        summarise(tmp_path / "store")
    text = caplog.text
    assert (
        "id field_id, date date, label crop, group none, mask none, bands B04 B08; reflectance = value x 0.0001" in text
    )
    assert "not used: lon" in text
    assert [line.split()[-3:] for line in text.splitlines() if line.endswith(" sample")] == [
        ["maize", "1", "sample"],
        ["wheat", "1", "sample"],
    ]
    assert (
        "1 tile, 3 samples, 6 dates from 2021-04-01 to 2021-06-30, bands B04 B08, 83% of the observations valid" in text
    )
    assert " ha\n" not in text
    fields = {key: value for record in caplog.records for key, value in getattr(record, "fields", {}).items()}
    assert (fields["tiles"], fields["dates"], fields["samples"]) == (1, 6, 3)
