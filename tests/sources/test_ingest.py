"""From sources to a store: a rerun does only what is missing, and what does not fit is refused untouched."""

from __future__ import annotations

import os
import shutil
from datetime import date
from pathlib import Path

import geopandas
import numpy as np
import pytest
import rasterio

from cropstar.errors import ArtifactError, InputError, MismatchError, UsageError
from cropstar.geo.calendar import Season
from cropstar.geo.windows import Window
from cropstar.reports.contents import summarise
from cropstar.sources.base import RasterScene
from cropstar.sources.catalogue import SOURCES, IngestRequest
from cropstar.sources.ingest import IngestResult, ingest
from cropstar.store.store import MANIFEST, TILES, Store, read_manifest, writing
from tests.sources.examples.stacks import write_four_fields, write_stack


def scenes_of(path: Path, tile_size: int = 48) -> list[RasterScene]:
    scenes = SOURCES["stack"](IngestRequest(path, tile_size=tile_size))
    return [scene for scene in scenes if isinstance(scene, RasterScene)]


def run(*paths: Path, into: Path, tile_size: int = 48, overwrite: bool = False) -> IngestResult:
    scenes = [scene for path in paths for scene in scenes_of(path, tile_size)]
    try:
        return ingest(scenes, into, overwrite=overwrite)
    finally:
        for scene in scenes:
            scene.close()


def content(store: Path) -> dict[str, bytes]:
    """All files that the store consists of."""
    files = [store / MANIFEST, *(store / TILES).iterdir()]
    return {path.name: path.read_bytes() for path in files}


@pytest.fixture
def store(small_store: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small_store, tmp_path / "store"))


def a_stack(folder: Path, name: str = "tile.tif", **options: object) -> Path:
    """A small scene of its own, in a folder with its fields."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "fields.gpkg").exists():
        write_four_fields(folder / "fields.gpkg")
    return write_stack(folder / name, **options)  # type: ignore[arg-type]


# --- what is stored


def test_tiles_hold_the_scene(small_scene: Path, small_store: Path) -> None:
    store = Store.open(small_store)
    (series,) = {entry.scene for entry in store.manifest.tiles}
    assert series == "tile"
    (scene,) = scenes_of(small_scene / "tile.tif", tile_size=96)
    (piece,) = scene.tile_specs()
    whole = scene.build(piece)
    scene.close()
    for _, reader in store.readers():
        left, _, _, top = reader.grid.bounds
        row, column = round((whole.grid.bounds[3] - top) / 10), round((left - whole.grid.bounds[0]) / 10)
        rows, columns = slice(row, row + 48), slice(column, column + 48)
        assert np.array_equal(reader.values(Window(0, 0, 48, 48)), whole.values[:, :, rows, columns])
        assert np.array_equal(reader.whole_mask(), whole.valid[:, rows, columns])
        assert np.array_equal(reader.labels(), whole.labels[rows, columns])
        assert np.array_equal(reader.parcels(), whole.parcels[rows, columns])
        assert np.array_equal(reader.days, whole.days)
        assert {**reader.provenance, "origin": ""} == {"source": "stack", "file": "tile.tif", "origin": ""}
    store.close()


def test_the_manifest_describes_the_scene(small_scene: Path, small_store: Path) -> None:
    manifest = read_manifest(small_store)
    assert manifest is not None
    scene = manifest.scenes["tile"]
    parcels = geopandas.read_file(small_scene / "parcels.gpkg")
    assert scene["parcels"] == len(parcels)
    assert manifest.fingerprint.classes.names == sorted(set(parcels["crop"]))
    assert len(scene["dates"]) == 6
    assert scene["grid"]["shape"] == [96, 96]
    assert {entry.bytes for entry in manifest.tiles} == {
        path.stat().st_size for path in (small_store / TILES).iterdir()
    }


def test_the_same_scene_gives_the_same_bytes_in_another_place(small_scene: Path, store: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(small_scene, tmp_path / "copy"))
    result = run(copy / "tile.tif", into=tmp_path / "other")
    assert (result.written, result.kept) == (4, 0)
    assert content(tmp_path / "other") == content(store)


# --- doing it again


def test_a_rerun_keeps_everything(small_scene: Path, store: Path) -> None:
    before = content(store)
    numbers = {path.name: path.stat().st_ino for path in (store / TILES).iterdir()}
    os.utime(store / MANIFEST, (1000, 1000))
    result = run(small_scene / "tile.tif", into=store)
    assert (result.folder, result.written, result.kept) == (store, 0, 4)
    assert content(store) == before
    assert {path.name: path.stat().st_ino for path in (store / TILES).iterdir()} == numbers
    assert (store / MANIFEST).stat().st_mtime > 1000  # but it is the newest store now


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "gone"])
def test_a_damaged_tile_is_made_anew_to_the_same_bytes(small_scene: Path, store: Path, damage: str) -> None:
    before = content(store)
    tile = min((store / TILES).iterdir())
    spoilt = bytearray(tile.read_bytes())
    spoilt[len(spoilt) // 2] ^= 1
    kept = {"flip": bytes(spoilt), "cut": bytes(spoilt[:-100]), "empty": b""}
    if damage == "gone":
        tile.unlink()
    else:
        tile.write_bytes(kept[damage])
    result = run(small_scene / "tile.tif", into=store)
    assert (result.written, result.kept) == (1, 3)
    assert content(store) == before


def test_a_lost_manifest_is_made_anew_from_whole_tiles(small_scene: Path, store: Path) -> None:
    before = content(store)
    (store / MANIFEST).unlink()
    result = run(small_scene / "tile.tif", into=store)
    assert (result.written, result.kept) == (0, 4)
    assert content(store) == before


def test_what_a_killed_ingest_left_is_swept(small_scene: Path, store: Path) -> None:
    before = content(store)
    (store / TILES / ".tile.h5.1234.partial").write_text("half")
    (store / TILES / "tile-0123abcd-y00000-x00000.h5").write_text("of an ingest that was killed")
    run(small_scene / "tile.tif", into=store)
    assert content(store) == before
    (store / TILES / "thesis.h5").write_text("not of ingest's making")
    run(small_scene / "tile.tif", into=store)
    assert (store / TILES / "thesis.h5").exists()


# --- what is refused


def test_other_options_are_refused_without_overwrite(small_scene: Path, store: Path) -> None:
    before = content(store)
    with pytest.raises(UsageError, match="a scene 'tile' of other content or options is in the store") as caught:
        run(small_scene / "tile.tif", into=store, tile_size=96)
    assert "--overwrite" in str(caught.value)
    assert content(store) == before


def test_overwrite_replaces_and_removes_the_old_tiles(small_scene: Path, store: Path, tmp_path: Path) -> None:
    old = {path.name for path in (store / TILES).iterdir()}
    result = run(small_scene / "tile.tif", into=store, tile_size=96, overwrite=True)
    assert (result.written, result.kept) == (1, 0)
    assert old.isdisjoint(path.name for path in (store / TILES).iterdir())
    run(small_scene / "tile.tif", into=tmp_path / "fresh", tile_size=96)
    assert content(store) == content(tmp_path / "fresh")


def test_changed_parcels_are_another_scene(tmp_path: Path) -> None:
    stack, store = a_stack(tmp_path / "scene"), tmp_path / "store"
    run(stack, into=store)
    write_four_fields(tmp_path / "scene" / "fields.gpkg", ["wheat", "maize", "maize", "wheat"])
    with pytest.raises(UsageError, match="of other content or options"):
        run(stack, into=store)
    assert run(stack, into=store, overwrite=True).written == 1


def test_a_scene_of_other_bands_is_refused_and_both_are_named(tmp_path: Path) -> None:
    store = tmp_path / "store"
    run(a_stack(tmp_path / "one", "one.tif"), into=store)
    before = content(store)
    other = a_stack(tmp_path / "two", "two.tif", bands=["2023-05-01 B02", "2023-05-01 B03"])
    with pytest.raises(MismatchError, match="the scene 'two' does not fit the store") as caught:
        run(other, into=store)
    assert "bands [B04, B08] against [B02, B03]" in str(caught.value)
    assert caught.value.exit_code == 5
    assert content(store) == before


@pytest.mark.parametrize(
    ("options", "words"),
    [({"scales": [1e-3] * 4}, "scale 0.0001 against 0.001"), ({"offsets": [-0.1] * 4, "scales": [1e-4] * 4}, "offset")],
)
def test_a_scene_of_other_radiometry_is_refused(tmp_path: Path, options: dict[str, list[float]], words: str) -> None:
    run(a_stack(tmp_path / "one", "one.tif"), into=tmp_path / "store")
    with pytest.raises(MismatchError, match=words):
        run(a_stack(tmp_path / "two", "two.tif", **options), into=tmp_path / "store")


def test_a_scene_of_other_classes_is_refused(tmp_path: Path) -> None:
    run(a_stack(tmp_path / "one", "one.tif"), into=tmp_path / "store")
    other = a_stack(tmp_path / "two", "two.tif")
    write_four_fields(tmp_path / "two" / "fields.gpkg", ["wheat", "maize", "rye", "rye"])
    with pytest.raises(MismatchError, match=r"classes \[maize, wheat\] against \[maize, rye, wheat\]"):
        run(other, into=tmp_path / "store")


def test_names_that_no_reader_would_take_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    raster = a_stack(tmp_path / "one", "one.tif")
    write_four_fields(tmp_path / "one" / "fields.gpkg", ["wheat", "maize", "x" * 1200, "rye"])
    with pytest.raises(InputError, match=r"cannot be stored: classes\.3\.name: String should have at most 1000"):
        run(raster, into=tmp_path / "store")
    long = a_stack(tmp_path / "two", "a" * 190 + ".tif")
    with pytest.raises(InputError, match=r"cannot be stored: tiles\.0\.name: String should have at most 200"):
        run(long, into=tmp_path / "store")
    assert read_manifest(tmp_path / "store") is None
    assert not list(tmp_path.glob("store/tiles/*.h5"))


def test_a_store_that_is_being_written_is_refused(small_scene: Path, store: Path) -> None:
    with writing(store), pytest.raises(ArtifactError, match="the store is locked"):
        run(small_scene / "tile.tif", into=store)


def test_a_damaged_scene_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    store = tmp_path / "store"
    run(a_stack(tmp_path / "one", "one.tif"), into=store)
    before = content(store)
    broken = a_stack(tmp_path / "two", "two.tif", shape=(40, 30), seed=1)
    broken.write_bytes(broken.read_bytes()[:-3000])
    with pytest.raises(InputError):
        run(broken, into=store, tile_size=16)
    Store.open(store).close()
    assert content(store)[MANIFEST] == before[MANIFEST]
    assert all(content(store)[name] == before[name] for name in before)


# --- several scenes


def test_a_second_scene_is_added_and_the_season_grows(tmp_path: Path) -> None:
    store = tmp_path / "store"
    run(a_stack(tmp_path / "one", "one.tif"), into=store)
    later = a_stack(tmp_path / "two", "two.tif", bands=["2024-08-01 B04", "2024-08-01 B08"])
    result = run(later, into=store)
    assert (result.written, result.kept) == (1, 0)
    opened = Store.open(store)
    assert sorted(opened.manifest.scenes) == ["one", "two"]
    assert opened.fingerprint.season == Season(121, 93)  # the 1st of May to the 1st of August
    assert opened.fingerprint.season.covers(date(2030, 8, 1), tolerance=1)
    assert {reader.scene: len(reader.days) for _, reader in opened.readers()} == {"one": 2, "two": 1}
    opened.close()


def test_the_order_of_scenes_does_not_matter(tmp_path: Path) -> None:
    one = a_stack(tmp_path / "one", "one.tif")
    two = a_stack(tmp_path / "two", "two.tif", seed=1)
    run(one, two, into=tmp_path / "a")
    run(two, one, into=tmp_path / "b")
    run(two, into=tmp_path / "c")
    assert run(one, two, into=tmp_path / "c").kept == 1
    assert content(tmp_path / "a") == content(tmp_path / "b") == content(tmp_path / "c")


def test_the_order_of_bands_in_the_file_does_not_matter(tmp_path: Path) -> None:
    """Dates may come in any order; the bands' own order is part of the fingerprint."""
    one = a_stack(tmp_path / "one")
    with rasterio.open(one) as dataset:
        pixels, texts = dataset.read(), dataset.descriptions
    two = a_stack(tmp_path / "two", bands=[*texts[2:], *texts[:2]], pixels=np.roll(pixels, 2, axis=0))
    stored = []
    for path in (one, two):
        (scene,) = scenes_of(path)
        stored.append(scene.build(scene.tile_specs()[0]))
        scene.close()
    assert np.array_equal(stored[0].values, stored[1].values)
    assert np.array_equal(stored[0].days, stored[1].days)


def test_what_is_said_of_a_store(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="cropstar"):
        summarise(store)
    text = caplog.text
    opened = Store.open(store)
    assert all(name in text for name in opened.fingerprint.classes.names)
    parcels = opened.manifest.scenes["tile"]["parcels"]
    opened.close()
    assert f"4 tiles, {parcels} parcels, 6 dates from 2023-" in text
    fields = {key: value for record in caplog.records for key, value in getattr(record, "fields", {}).items()}
    assert (fields["tiles"], fields["dates"], fields["parcels"]) == (4, 6, parcels)
