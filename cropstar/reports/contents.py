"""What lies in a store, a tile or a model file, as plain facts that print as text or as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from cropstar.errors import ArtifactError, InputError
from cropstar.geo.calendar import from_days
from cropstar.reports.judged import unit_of
from cropstar.reports.mosaic import enclose
from cropstar.reports.tallies import count_tiles
from cropstar.store import layout
from cropstar.store.fingerprint import Fingerprint
from cropstar.store.model_file import read_model
from cropstar.store.reader import UNREADABLE, TileReader
from cropstar.store.store import MANIFEST, Store
from cropstar.store.tile import REMEDY

MODEL = "model.safetensors"
RESULT = "result.json"
ACCEPTED = "give a store's folder, a tile or a state (.h5), a model file (.safetensors) or a run's folder"
SEASON = {"card", "state"}  # what the file of a state has and a tile has not


@dataclass(frozen=True)
class Piece:
    """One tile with what its store knows of it."""

    name: str
    scene: str
    bytes: int
    recipe: str
    reader: TileReader


@dataclass(frozen=True)
class Holding:
    """The tiles of a store, or a single one."""

    path: Path
    kind: str
    fingerprint: Fingerprint
    pieces: list[Piece]
    provenance: dict[str, dict[str, Any]]  # by scene

    @property
    def scenes(self) -> list[str]:
        return sorted({piece.scene for piece in self.pieces})

    def of_scene(self, scene: str) -> list[Piece]:
        return [piece for piece in self.pieces if piece.scene == scene]


def kind_of(path: Path) -> str:
    """store, tile, season, model or run; whatever else is refused with a word on what is taken."""
    if path.is_dir():
        if (path / MANIFEST).exists():
            return "store"
        if (path / MODEL).exists():
            return "run"
        why = "an unfinished run has no model yet" if (path / "config.yaml").exists() else "neither a store nor a run"
        raise InputError("nothing to inspect", path=path, why=why, remedy=ACCEPTED)
    kind = {".h5": "tile", ".safetensors": "model"}.get(path.suffix.lower())
    if not path.exists():
        raise InputError("nothing to inspect", path=path, why="there is no such file or folder", remedy=ACCEPTED)
    if kind is None:
        raise InputError("nothing to inspect", path=path, why="a file of unknown kind", remedy=ACCEPTED)
    return "season" if kind == "tile" and _is_season(path) else kind


def _is_season(path: Path) -> bool:
    try:
        with h5py.File(path, "r") as handle:
            return set(handle) >= SEASON
    except UNREADABLE:  # whoever reads it as a tile says why it cannot be
        return False


@contextmanager
def open_holding(path: Path, kind: str) -> Iterator[Holding]:
    """A store or a tile, opened for reading and closed afterwards."""
    if kind == "store":
        store = Store.open(path)
        try:
            pieces = [
                Piece(entry.name, entry.scene, entry.bytes, entry.recipe, reader) for entry, reader in store.readers()
            ]
            yield Holding(path, kind, store.fingerprint, pieces, store.manifest.scenes)
        finally:
            store.close()
    else:
        reader = TileReader(path)
        try:
            recipe = _recipe(path)
            piece = Piece(path.stem, reader.scene, path.stat().st_size, recipe, reader)
            yield Holding(path, kind, reader.fingerprint, [piece], {reader.scene: reader.provenance})
        finally:
            reader.close()


def holding_facts(holding: Holding) -> dict[str, Any]:
    """Scenes, dates with their clear share, and the class table with its counts."""
    layouts = sorted({piece.reader.layout for piece in holding.pieces})
    readers = [piece.reader for piece in holding.pieces]
    dates, classes = count_tiles(readers, holding.fingerprint)
    labelled = _labelled_dates(readers, len(classes))
    if labelled is not None:
        classes = [{**row, "dates": count} for row, count in zip(classes, labelled, strict=True)]
    seen = sum(row["observations"] for row in dates)
    return {
        "kind": holding.kind,
        "path": str(holding.path),
        "layout": " and ".join(layouts),
        "bytes": sum(piece.bytes for piece in holding.pieces),
        "tiles": len(holding.pieces),
        **_fingerprint_facts(holding.fingerprint),
        "scenes": [_scene_facts(holding, scene) for scene in holding.scenes],
        "dates": dates,
        "clear": sum(row["clear"] * row["observations"] for row in dates) / seen if seen else None,
        "classes": classes,
    }


def _labelled_dates(readers: Sequence[TileReader], classes: int) -> list[int] | None:
    """How many dates of series have each class; None where only whole series have one."""
    counts, found = np.zeros(classes, dtype=np.int64), False
    for reader in readers:
        labels = reader.date_labels if reader.layout == "series" else None
        if labels is not None:
            found = True
            counts += np.bincount(labels[labels >= 0], minlength=classes)
            reader.close()
    return counts.tolist() if found and counts.any() else None


def model_facts(path: Path, kind: str) -> dict[str, Any]:
    """The card of a model whose checksum was verified, and the test figures of a finished run."""
    file = path / MODEL if kind == "run" else path
    card, tensors, digest = read_model(file)
    facts = {
        "kind": kind,
        "path": str(path),
        "bytes": file.stat().st_size,
        "model": card.model,
        "shape": card.shape,
        "parameters": sum(int(array.size) for array in tensors.values()),
        **_fingerprint_facts(card.fingerprint),
        "classes": card.fingerprint.classes.to_json(),
        "normalisation": card.normalisation.to_json(),
        "provenance": card.provenance,
        "digest": digest,
    }
    if kind == "run" and (path / RESULT).exists():
        facts["test"] = _test_facts(path / RESULT)
    return facts


def crs_name(wkt: str) -> str:
    """'WGS 84 / UTM zone 32N (EPSG:32632)', as far as the coordinate system tells."""
    from rasterio.crs import CRS
    from rasterio.errors import CRSError

    found = re.match(r'\s*\w+\["([^"]+)"', wkt)
    name = found[1] if found else ""
    try:
        code = CRS.from_wkt(wkt).to_epsg() if wkt else None
    except CRSError:
        code = None
    if code:
        return f"{name} (EPSG:{code})" if name else f"EPSG:{code}"
    return name or "no coordinate system"


def _fingerprint_facts(fingerprint: Fingerprint) -> dict[str, Any]:
    facts = fingerprint.to_json()
    del facts["classes"]
    return facts


def _scene_facts(holding: Holding, scene: str) -> dict[str, Any]:
    pieces = holding.of_scene(scene)
    facts: dict[str, Any] = {
        "name": scene,
        "layout": pieces[0].reader.layout,
        "tiles": len(pieces),
        "bytes": sum(piece.bytes for piece in pieces),
        "recipe": pieces[0].recipe,
    }
    days = np.unique(np.concatenate([piece.reader.observed_days for piece in pieces]))
    facts["dates"] = [day.isoformat() for day in from_days(days)]
    if facts["layout"] == "raster":
        grid, _ = enclose([piece.reader.grid for piece in pieces])
        facts |= {"shape": [grid.height, grid.width], "crs": crs_name(grid.crs), "bounds": list(grid.bounds)}
    if facts["layout"] == "patches":
        images = sum(len(piece.reader.lengths) for piece in pieces)
        shape, crs = pieces[0].reader.shape, pieces[0].reader.crs
        facts |= {"images": images, "shape": list(shape), "crs": crs_name(crs)}
    said = {name: value for name, value in holding.provenance.get(scene, {}).items() if name not in ("grid", "dates")}
    return {**facts, "provenance": said}


def _recipe(path: Path) -> str:
    try:
        with h5py.File(path, "r") as handle:
            return layout.read_text(handle, "recipe")
    except UNREADABLE as failure:
        raise ArtifactError("a tile cannot be read", path=path, why=str(failure), remedy=REMEDY) from None


def _test_facts(path: Path) -> dict[str, Any]:
    """Figures of the test by what was judged: pixels or dates, where there are any, and parcels."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        test = result["test"]
        unit = unit_of(test) if "unit" in test or "confusion" in test["pixel"] else "pixel"
        levels = {unit: test["pixel"]} if unit != "parcel" else {}
        return {
            "parcels": int(sum(result["split"]["counts"]["test"])),
            "unit": unit,
            **{
                level: {name: figures[name] for name in ("overall_accuracy", "macro_f1")}
                for level, figures in {**levels, "parcel": test["parcel"]}.items()
            },
        }
    except (ValueError, KeyError, TypeError, AttributeError) as failure:
        why = f"{type(failure).__name__}: {failure}"
        raise ArtifactError("the result cannot be read", path=path, why=why, remedy="train again") from None
