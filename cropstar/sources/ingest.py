"""From sources to a store: every tile whole, the manifest last, a rerun only does what is missing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cropstar.cluster import Cluster
from cropstar.errors import UsageError
from cropstar.runtime import logger, progress_bar
from cropstar.sources.base import Scene
from cropstar.sources.workers import CheckTile, ClusterPool, WorkerPool
from cropstar.store.fingerprint import Fingerprint
from cropstar.store.store import (
    MANIFEST,
    TILES,
    Manifest,
    TileEntry,
    read_manifest,
    tile_path,
    write_manifest,
    writing,
)
from cropstar.store.tile import flush_tiles

LOCK = ".lock"
TILE_NAME = re.compile(r"-[0-9a-f]{8}-(y\d+-x\d+|n\d+)$")  # recipe and place: only ingest names files so


@dataclass(frozen=True)
class IngestResult:
    folder: Path
    written: int
    kept: int


def ingest(
    scenes: Sequence[Scene], folder: Path, *, overwrite: bool = False, workers: int = 1, cluster: Cluster | None = None
) -> IngestResult:
    """Add scenes to a store. Nothing that the manifest names is touched before the new manifest stands.

    The bytes are the same for any number of workers, also for those of a cluster.
    """
    _require_store_or_new(folder)
    pool = WorkerPool(scenes, folder, workers) if cluster is None else ClusterPool(cluster, scenes, folder)
    with writing(folder):
        before = read_manifest(folder)
        fingerprint = _require_same_kind(scenes, before, folder, overwrite)
        entries = {} if before is None or overwrite else {entry.name: entry for entry in before.tiles}
        described: dict[str, dict[str, Any]] = {} if before is None or overwrite else dict(before.scenes)
        counts = []
        with pool:
            for number, scene in enumerate(scenes):
                counts.append(_make_tiles(pool, number, scene, folder))
                for spec in scene.tile_specs():
                    size = tile_path(folder, spec.name).stat().st_size
                    entries[spec.name] = TileEntry(spec.name, scene.name, scene.layout, size, scene.recipe)
                described[scene.name] = scene.describe()
        flush_tiles(tile_path(folder, spec.name) for scene in scenes for spec in scene.tile_specs())
        write_manifest(folder, Manifest(fingerprint, tuple(sorted(entries.values())), described))
        _remove_unlisted(folder, set(entries))
    return IngestResult(folder, sum(written for written, _ in counts), sum(kept for _, kept in counts))


def _require_same_kind(scenes: Sequence[Scene], before: Manifest | None, folder: Path, overwrite: bool) -> Fingerprint:
    """All scenes of a store have the same bands, scale and classes; the season grows to cover them."""
    known = None if before is None or overwrite else before
    names = [scene.name for scene in scenes]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two scenes are called '{name}'", path=folder, remedy="rename one, or ingest them apart")
    fingerprint = known.fingerprint if known else scenes[0].fingerprint
    for scene in scenes:
        fingerprint.require_same(
            scene.fingerprint,
            f"the scene '{scene.name}' does not fit the store",
            folder,
            "choose another store with -o, or replace this one with --overwrite",
        )
        fingerprint = fingerprint.with_season(fingerprint.season.merge(scene.fingerprint.season))
        if known and known.scenes.get(scene.name, {}).get("recipe", scene.recipe) != scene.recipe:
            raise UsageError(
                f"a scene '{scene.name}' of other content or options is in the store",
                path=folder,
                remedy="choose another store with -o, or replace this one with --overwrite",
            )
    return fingerprint


def _remove_unlisted(folder: Path, names: set[str]) -> None:
    for path in (folder / TILES).glob("*.h5"):
        if path.stem not in names and TILE_NAME.search(path.stem):
            path.unlink()


def _require_store_or_new(folder: Path) -> None:
    """What is no folder, or one with other things in it, is no place for a store."""
    known = {MANIFEST, LOCK}
    for place in (folder, *folder.parents):
        if (place.exists() or place.is_symlink()) and not place.is_dir():
            why = "it is no folder"
            raise UsageError("not a store", path=place, why=why, remedy="choose a new folder with -o")
    for place in (folder / name for name in known):
        if place.exists() and not place.is_file():  # a pipe would be waited for without end
            raise UsageError("not a store", path=place, why="it is no file", remedy="choose a new folder with -o")
    if folder.is_dir() and any(folder.iterdir()) and not known & {entry.name for entry in folder.iterdir()}:
        raise UsageError("not a store", path=folder, why="other files lie there", remedy="choose a new folder with -o")


# --- Tiles of one scene


def _make_tiles(pool: WorkerPool | ClusterPool, number: int, scene: Scene, folder: Path) -> tuple[int, int]:
    """Make what is missing of the scene with that number; how many tiles were written and kept."""
    specs = scene.tile_specs()
    with progress_bar(len(specs), f"ingest {scene.name}", "tile") as bar:
        present = _tiles_there(folder)
        whole: set[str] = set()
        for check, good in pool.run([CheckTile(number, spec) for spec in specs if spec.name in present]):
            assert isinstance(check, CheckTile)
            if good:
                whole.add(check.spec.name)
                bar.update()
            else:
                path = tile_path(folder, check.spec.name)
                logger.warning("the tile %s was damaged and is made anew", path)
        missing = [spec for spec in specs if spec.name not in whole]
        for done in pool.make_tiles(number, missing):
            bar.update(done)
    return len(missing), len(whole)


def _tiles_there(folder: Path) -> set[str]:
    """What lies there, by one listing: a network's file system remembers for a while what it was asked for in vain."""
    return {path.stem for path in (folder / TILES).glob("*.h5")}
