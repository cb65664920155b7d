"""A store: a folder of tiles and a manifest, which decides what is in it.

    <store>/manifest.json        replaced last, so it never names a tile that is not whole
    <store>/tiles/<name>.h5

Tiles that the manifest does not name do not exist for readers: a killed ingest leaves the store as it was.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from cropstar.errors import ArtifactError, InputError
from cropstar.runtime import logger
from cropstar.store.files import locked, require_own_folder, sweep, write_json
from cropstar.store.fingerprint import Fingerprint
from cropstar.store.gate import ManifestRow, checked, read_json
from cropstar.store.reader import OpenFiles, TileReader
from cropstar.store.tile import FORMAT, REMEDY, SENSORS_FORMAT, is_whole

MANIFEST = "manifest.json"
TILES = "tiles"
MOST_OPEN = 256  # tiles at once, each opened and mapped: systems allow a process some 1,000 open files


@dataclass(frozen=True, order=True)
class TileEntry:
    """A tile as the manifest lists it."""

    name: str
    scene: str
    layout: str
    bytes: int
    recipe: str


@dataclass(frozen=True)
class Manifest:
    fingerprint: Fingerprint
    tiles: tuple[TileEntry, ...]
    scenes: dict[str, dict[str, Any]]  # what ingest said of each scene: source, recipe, dates, parcels

    @property
    def layouts(self) -> set[str]:
        return {entry.layout for entry in self.tiles}

    def to_json(self) -> dict[str, Any]:
        content = {
            "format": SENSORS_FORMAT if self.fingerprint.sensors else FORMAT,
            "fingerprint": self.fingerprint.to_json(),
            "tiles": [asdict(entry) for entry in sorted(self.tiles)],
            "scenes": self.scenes,
        }
        return {**content, "checksum": _checksum(content)}


class Store:
    """An ingested store, opened for reading; a `with` block closes it."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self._entries = {entry.name: entry for entry in manifest.tiles}
        self._readers: dict[str, TileReader] = {}
        self._open_files = OpenFiles(MOST_OPEN)
        self._warned = False

    @classmethod
    def open(cls, folder: Path) -> Store:
        """Open and check that every tile is there and has its full length."""
        manifest = read_manifest(folder)
        if manifest is None:
            raise InputError(
                "no store", path=folder, why="there is no manifest.json", remedy="make one with 'cropstar ingest'"
            )
        for entry in manifest.tiles:
            path = tile_path(folder, entry.name)
            size = path.stat().st_size if path.exists() else 0
            if size != entry.bytes:
                raise ArtifactError(
                    "a tile is incomplete",
                    path=path,
                    why=f"{size} bytes on disk, {entry.bytes} in the manifest",
                    remedy=REMEDY,
                )
        return cls(folder, manifest)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """For another process, which opens the files itself and sees the same tiles, whatever is ingested meanwhile."""
        return {**vars(self), "_readers": {}, "_open_files": OpenFiles(MOST_OPEN)}

    @property
    def fingerprint(self) -> Fingerprint:
        return self.manifest.fingerprint

    def reader(self, name: str) -> TileReader:
        """The tile's reader; it may be kept: its file is opened again where it had to make room for another."""
        if name not in self._readers:
            self._readers[name] = self._opened(name)
            if not self._readers[name].has_checksums and not self._warned:
                self._warned = True
                logger.warning(
                    "%s has tiles without checksums, of an older version: damage to them goes unnoticed; check them "
                    "with 'cropstar inspect --verify', or ingest again",
                    self.folder,
                )
        return self._readers[name]

    def _opened(self, name: str) -> TileReader:
        path, entry = tile_path(self.folder, name), self._entries[name]
        reader = TileReader(path, self._open_files)
        different = self.fingerprint.differences(reader.fingerprint)
        if (entry.scene, entry.layout, entry.recipe) != (reader.scene, reader.layout, reader.recipe):
            different.append(f"scene '{entry.scene}' against '{reader.scene}', or other options of ingest")
        if different:
            why = f"{', '.join(different)}, the manifest and the tile"
            raise ArtifactError("a tile of another store", path=path, why=why, remedy=REMEDY)
        return reader

    def verify(self, on_tile: Callable[[], None] = lambda: None) -> list[Path]:
        """Read every byte of every tile; the paths of those that are not as they were written."""
        damaged = []
        for entry in self.manifest.tiles:
            path = tile_path(self.folder, entry.name)
            if not is_whole(path, entry.recipe):
                damaged.append(path)
            on_tile()
        return damaged

    @property
    def tiles(self) -> list[TileReader]:
        return [reader for _, reader in self.readers()]

    def readers(self) -> Iterator[tuple[TileEntry, TileReader]]:
        for entry in self.manifest.tiles:
            yield entry, self.reader(entry.name)

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()


def tile_path(folder: Path, name: str) -> Path:
    return folder / TILES / f"{name}.h5"


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest, or None where there is no store yet."""
    path = folder / MANIFEST
    if not path.exists():
        return None
    try:
        data = read_json(path)
        version = int(data["format"])
        if version > SENSORS_FORMAT:  # before its fields are looked at: they may be others
            why = f"format {version}"
            raise ArtifactError("a store of a newer format", path=path, why=why, remedy="update cropstar")
        written = data.pop("checksum", None)  # none in manifests of older versions
        if written is not None and written != _checksum(data):
            raise ArtifactError(
                "the manifest is damaged",
                path=path,
                why="it does not match its checksum",
                remedy="run the ingest again, or restore it from a copy",
            )
        row = checked(ManifestRow, data)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as failure:
        raise ArtifactError(
            "the manifest cannot be read", path=path, why=str(failure), remedy="delete it and run the ingest again"
        ) from None
    tiles = tuple(TileEntry(**entry.model_dump()) for entry in row.tiles)
    return Manifest(Fingerprint.from_json(row.fingerprint, path), tiles, row.scenes)


def _checksum(content: dict[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Hold the store for one writer and sweep what a killed one left."""
    require_own_folder(folder / TILES)
    with locked(folder, "the store"):
        sweep(folder)
        sweep(folder / TILES)
        yield


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest unless it already says the same; either way the store is now the newest."""
    path = folder / MANIFEST
    if read_manifest(folder) == manifest:
        os.utime(path)
    else:
        write_json(path, manifest.to_json())


def is_store(path: Path) -> bool:
    return (path / MANIFEST).is_file()


def newest_store(root: Path) -> Path | None:
    """The store under `root` that was ingested last."""
    manifests = list(root.glob(f"*/{MANIFEST}")) if root.is_dir() else []
    return max(manifests, key=lambda path: path.stat().st_mtime).parent if manifests else None
