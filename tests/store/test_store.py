"""A folder of tiles and its manifest, the only list of truth."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from cropstar.errors import ArtifactError, InputError
from cropstar.geo.windows import Window
from cropstar.store.store import MANIFEST, TILES, Store, newest_store, read_manifest, write_manifest, writing
from cropstar.store.tile import SENSORS_FORMAT
from tests.examples import a_raster_tile, store_of


@pytest.fixture
def store(tmp_path: Path) -> Path:
    tiles = {f"tile-{number}": a_raster_tile((2, 2, 8, 8), seed=number) for number in range(3)}
    return store_of(tmp_path / "store", tiles)


def change(store: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    """Edit a manifest by hand."""
    path = store / MANIFEST
    data = json.loads(path.read_text(encoding="utf-8"))
    edit(data)
    path.write_text(json.dumps(data), encoding="utf-8")


def test_a_store_opens_with_all_its_tiles(small_store: Path) -> None:
    store = Store.open(small_store)
    names = [entry.name for entry, _ in store.readers()]
    assert len(names) == 4
    assert names == sorted(names)
    assert all(entry.scene == reader.scene == "tile" for entry, reader in store.readers())
    assert all(reader.fingerprint == store.fingerprint for _, reader in store.readers())
    assert store.reader(names[0]) is store.reader(names[0])
    store.close()


def test_a_manifest_reads_back_the_same(store: Path) -> None:
    manifest = read_manifest(store)
    assert manifest is not None
    write_manifest(store / "copy", manifest)
    assert read_manifest(store / "copy") == manifest
    assert (store / "copy" / MANIFEST).read_bytes() == (store / MANIFEST).read_bytes()


def test_a_tile_of_another_store_is_refused(store: Path) -> None:
    """A manifest that says other bands, as one that was edited or put together by hand."""

    def other_bands(data: dict[str, Any]) -> None:
        data["fingerprint"]["bands"] = ["B03", "B08"]
        del data["checksum"]

    change(store, other_bands)
    opened = Store.open(store)
    with pytest.raises(ArtifactError, match="a tile of another store"):
        opened.reader("tile-0")


@pytest.mark.parametrize("name", ["scene", "recipe"])
def test_a_tile_of_another_ingest_is_refused(store: Path, name: str) -> None:
    """Of the same bands, classes and size, put in the place of one of this store."""

    def of_another(data: dict[str, Any]) -> None:
        data["tiles"][0][name] = "another"
        del data["checksum"]

    change(store, of_another)
    with pytest.raises(ArtifactError, match=r"a tile of another store .*, the manifest and the tile"):
        Store.open(store).reader("tile-0")


def test_a_folder_without_manifest_is_no_store(tmp_path: Path) -> None:
    assert read_manifest(tmp_path) is None
    with pytest.raises(InputError, match="make one with 'cropstar ingest'"):
        Store.open(tmp_path)


@pytest.mark.parametrize("keep", [0, 0.5, None])
def test_a_tile_that_is_cut_or_gone_is_refused(store: Path, keep: float | None) -> None:
    tile = store / TILES / "tile-1.h5"
    content = tile.read_bytes()
    if keep is None:
        tile.unlink()
    else:
        tile.write_bytes(content[: int(len(content) * keep)])
    with pytest.raises(ArtifactError, match="a tile is incomplete") as caught:
        Store.open(store)
    assert caught.value.exit_code == 4
    assert str(tile) in str(caught.value)
    assert f"{len(content)} in the manifest" in str(caught.value)


@pytest.mark.parametrize("share", [0, 0.01, 0.3, 0.98])
def test_a_cut_manifest_is_refused(store: Path, share: float) -> None:
    path = store / MANIFEST
    text = path.read_text(encoding="utf-8")
    path.write_text(text[: int(len(text) * share)], encoding="utf-8")
    with pytest.raises(ArtifactError, match="the manifest cannot be read") as caught:
        Store.open(store)
    assert caught.value.exit_code == 4


EDITS: dict[str, Callable[[dict[str, Any]], None]] = {
    "no tiles": lambda data: data.pop("tiles"),
    "no fingerprint": lambda data: data.pop("fingerprint"),
    "half a fingerprint": lambda data: data["fingerprint"].pop("scale"),
    "bands of a fingerprint are no list": lambda data: data["fingerprint"].update(bands=3),
    "no format": lambda data: data.pop("format"),
    "strange format": lambda data: data.update(format="new"),
    "strange scenes": lambda data: data.update(scenes=3),
    "strange tile": lambda data: data["tiles"].append({"name": "a"}),
    "a tile twice": lambda data: data["tiles"].append(data["tiles"][0]),
    "tiles are no list": lambda data: data.update(tiles="tile-1"),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS.keys())
def test_a_spoilt_manifest_is_refused(store: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    change(store, edit)
    with pytest.raises(ArtifactError, match=r"the manifest is damaged|cannot be read"):
        Store.open(store)
    change(store, lambda data: data.pop("checksum"))  # as older versions write it
    with pytest.raises(ArtifactError, match="cannot be read"):
        Store.open(store)


def test_a_changed_manifest_is_told_by_its_checksum(store: Path) -> None:
    change(store, lambda data: data["fingerprint"]["classes"][0].update(name="another"))
    with pytest.raises(ArtifactError, match="the manifest is damaged") as caught:
        Store.open(store)
    assert caught.value.exit_code == 4


def test_tiles_of_older_versions_are_read_with_one_warning(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    sizes = {}
    for path in (store / "tiles").glob("*.h5"):
        with h5py.File(path, "r+") as handle:
            del handle["checksums"]
        sizes[path.stem] = path.stat().st_size
    change(store, lambda data: as_before(data, sizes))
    logging.getLogger("cropstar").addHandler(caplog.handler)
    opened = Store.open(store)
    assert all(len(reader.days) for reader in opened.tiles)
    opened.close()
    logging.getLogger("cropstar").removeHandler(caplog.handler)
    assert len({id(record) for record in caplog.records if "without checksums" in record.message}) == 1


def as_before(data: dict[str, Any], sizes: dict[str, int]) -> None:
    """A manifest as older versions wrote it."""
    data.pop("checksum")
    for row in data["tiles"]:
        row["bytes"] = sizes[row["name"]]


def test_verifying_reads_every_tile(store: Path) -> None:
    opened = Store.open(store)
    assert opened.verify() == []
    path = next((store / "tiles").glob("*.h5"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert opened.verify() == [path]


def test_a_manifest_that_is_no_table(store: Path) -> None:
    for text in ("[]", "3", "null", '"text"', "\udcff"):
        (store / MANIFEST).write_bytes(text.encode("utf-8", "surrogateescape"))
        with pytest.raises(ArtifactError, match="the manifest cannot be read"):
            Store.open(store)


def test_a_store_of_a_newer_format(store: Path) -> None:
    change(store, lambda data: data.update(format=SENSORS_FORMAT + 1))
    with pytest.raises(ArtifactError, match="a store of a newer format") as caught:
        Store.open(store)
    assert "update cropstar" in str(caught.value)


def test_tiles_that_the_manifest_does_not_name_do_not_exist(store: Path) -> None:
    shutil.copy(store / TILES / "tile-1.h5", store / TILES / "stray.h5")
    opened = Store.open(store)
    assert [entry.name for entry, _ in opened.readers()] == ["tile-0", "tile-1", "tile-2"]
    opened.close()


def test_the_same_manifest_is_only_touched(store: Path) -> None:
    path, manifest = store / MANIFEST, read_manifest(store)
    assert manifest is not None
    os.utime(path, (1000, 1000))
    number = path.stat().st_ino
    write_manifest(store, manifest)
    assert path.stat().st_ino == number  # not written anew
    assert path.stat().st_mtime > 1000


def test_another_manifest_replaces_it(store: Path) -> None:
    path, manifest = store / MANIFEST, read_manifest(store)
    assert manifest is not None
    before = path.stat().st_ino
    write_manifest(store, type(manifest)(manifest.fingerprint, manifest.tiles[:1], manifest.scenes))
    assert path.stat().st_ino != before
    again = read_manifest(store)
    assert again is not None
    assert [entry.name for entry in again.tiles] == ["tile-0"]


def test_the_newest_store_is_the_one_ingested_last(tmp_path: Path) -> None:
    assert newest_store(tmp_path / "absent") is None
    assert newest_store(tmp_path) is None
    for number, name in enumerate(["b", "a", "c"]):
        folder = store_of(tmp_path / name, {"tile": a_raster_tile((1, 1, 4, 4))})
        os.utime(folder / MANIFEST, (1000 + number, 1000 + number))
    (tmp_path / "no_store").mkdir()
    assert newest_store(tmp_path) == tmp_path / "c"
    manifest = read_manifest(tmp_path / "b")
    assert manifest is not None
    write_manifest(tmp_path / "b", manifest)  # ingested again: the same content, but now the newest
    assert newest_store(tmp_path) == tmp_path / "b"


def test_writing_sweeps_and_locks(store: Path) -> None:
    left = [store / ".manifest.json.1.partial", store / TILES / ".tile-1.h5.2.partial"]
    for path in left:
        path.write_text("half")
    with writing(store):
        assert not any(path.exists() for path in left)
        with pytest.raises(ArtifactError, match="the store is locked"), writing(store):
            pass
    Store.open(store).close()
    assert len(list((store / TILES).iterdir())) == 3


def test_a_reader_may_be_kept_when_others_take_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cropstar.store.store.MOST_OPEN", 2)
    tiles = {f"tile-{number}": a_raster_tile((1, 1, 4, 4), seed=number) for number in range(5)}
    store = Store.open(store_of(tmp_path, tiles))
    readers = store.tiles
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    for _ in range(2):
        for reader, tile in zip(readers, tiles.values(), strict=True):
            assert np.array_equal(reader.values(Window(0, 0, 4, 4)), tile.values)
    assert not before or len(os.listdir("/proc/self/fd")) <= before + 2  # two are mapped as well
    store.close()
