"""From sources to a store: every tile whole, the manifest last, a rerun only does what is missing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cropstar.errors import UsageError
from cropstar.logs import event, logger
from cropstar.progress import track
from cropstar.sources.scene import Scene
from cropstar.store.fingerprint import Fingerprint
from cropstar.store.store import (
    MANIFEST,
    TILES,
    Manifest,
    Store,
    TileEntry,
    read_manifest,
    tile_path,
    write_manifest,
    writing,
)
from cropstar.store.tile import is_whole, write_tile

TILE_NAME = re.compile(r"-[0-9a-f]{8}-(y\d+-x\d+|n\d+)$")  # recipe and place: only ingest names files so


@dataclass(frozen=True)
class IngestResult:
    folder: Path
    written: int
    kept: int


def ingest(scenes: Sequence[Scene], folder: Path, *, overwrite: bool = False) -> IngestResult:
    """Add scenes to a store. Nothing that the manifest names is touched before the new manifest stands."""
    _require_ours(folder)
    with writing(folder):
        before = read_manifest(folder)
        fingerprint = _require_one_kind(scenes, before, folder, overwrite)
        entries = {} if before is None or overwrite else {entry.name: entry for entry in before.tiles}
        described: dict[str, dict[str, Any]] = {} if before is None or overwrite else dict(before.scenes)
        written = kept = 0
        for scene in scenes:
            pieces = scene.pieces()
            for piece in track(pieces, len(pieces), f"ingest {scene.name}", "tile"):
                path = tile_path(folder, piece.name)
                if is_whole(path, scene.recipe):
                    kept += 1
                else:
                    if path.exists():
                        logger.warning("the tile %s was damaged and is made anew", path)
                    write_tile(path, scene.build(piece))
                    written += 1
                entries[piece.name] = TileEntry(piece.name, scene.name, scene.layout, path.stat().st_size, scene.recipe)
            described[scene.name] = scene.describe()
        write_manifest(folder, Manifest(fingerprint, tuple(sorted(entries.values())), described))
        _remove_unlisted(folder, set(entries))
    return IngestResult(folder, written, kept)


def _require_one_kind(scenes: Sequence[Scene], before: Manifest | None, folder: Path, overwrite: bool) -> Fingerprint:
    """All scenes of a store have the same bands, scale and classes; the season grows to cover them."""
    known = None if before is None or overwrite else before
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


def _require_ours(folder: Path) -> None:
    """A folder with other things in it is no place for a store."""
    known = {MANIFEST, ".lock"}
    if folder.is_dir() and any(folder.iterdir()) and not known & {entry.name for entry in folder.iterdir()}:
        raise UsageError("not a store", path=folder, why="other files lie there", remedy="choose a new folder with -o")


def summarise(folder: Path) -> None:
    """Say what the store now holds: parcels, pixels and hectares of rasters, samples of tables."""
    store = Store.open(folder)
    classes = store.fingerprint.classes
    pixels = np.zeros(len(classes), dtype=np.int64)
    clear, seen = 0, 0
    parcels: dict[tuple[str, int], int] = {}
    for entry, reader in store.readers():
        if entry.layout == "raster":
            labels = reader.labels()
            pixels += np.bincount(labels[labels >= 0], minlength=len(classes))
        valid = reader.whole_mask()
        clear, seen = clear + int(valid.sum()), seen + valid.size
        for number, label in zip(reader.table.numbers, reader.table.labels, strict=True):
            if number:
                parcels[reader.scene, int(number)] = int(label)
    series = all(entry.layout == "series" for entry in store.manifest.tiles)
    hectare = store.fingerprint.resolution**2 / 10_000
    counts = np.bincount([label for label in parcels.values() if label >= 0], minlength=len(classes))
    width = max(len(name) for name in classes.names)
    for crop in classes:
        count, area = counts[crop.number], pixels[crop.number]
        if series:
            logger.info("  %-*s %7d samples", width, crop.name, count)
        else:
            logger.info("  %-*s %5d parcels %8d pixels %8.1f ha", width, crop.name, count, area, area * hectare)
    dates = sorted({day for scene in store.manifest.scenes.values() for day in scene["dates"]})
    event(
        f"{len(store.manifest.tiles)} tiles, {f'{len(parcels)} samples, ' if series else ''}"
        f"{len(dates)} dates from {dates[0]} to {dates[-1]}, bands {' '.join(store.fingerprint.bands)}, "
        f"{clear / max(seen, 1):.0%} of the observations {'valid' if series else 'clear'}",
        tiles=len(store.manifest.tiles),
        dates=len(dates),
        **{"samples" if series else "parcels": len(parcels)},
    )
    store.close()
