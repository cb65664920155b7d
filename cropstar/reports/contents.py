"""What lies in a store, a tile or a model file, as plain facts that print as text or as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from cropstar.errors import ArtifactError, InputError
from cropstar.geo.calendar import from_days
from cropstar.geo.grid import Grid
from cropstar.geo.windows import split
from cropstar.reports.ground import hectares_per_pixel
from cropstar.store import layout
from cropstar.store.fingerprint import Fingerprint
from cropstar.store.model_file import read_model
from cropstar.store.reader import UNREADABLE, TileReader
from cropstar.store.store import MANIFEST, Store
from cropstar.store.tile import REMEDY

MODEL = "model.safetensors"
RESULT = "result.json"
ACCEPTED = "give a store's folder, a tile (.h5), a model file (.safetensors) or a run's folder"
BLOCK = 480  # pixels a side that are read at once: ten chunks, so that a tile of any size fits into memory


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
    """store, tile, model or run; whatever else is refused with a word on what is taken."""
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
    return kind


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
    dates = _date_facts(holding)
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
        "classes": _class_facts(holding, series=layouts == ["series"]),
    }


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


def whole_grid(pieces: list[Piece]) -> tuple[Grid, list[tuple[int, int]]]:
    """The grid that holds all tiles of a scene, and where in it each tile begins (row, column)."""
    first = pieces[0].reader.grid
    back, corners = ~first.affine, []
    for piece in pieces:
        grid = piece.reader.grid
        x, y = grid.transform[2], grid.transform[5]
        corners.append((round(back.d * x + back.e * y + back.f), round(back.a * x + back.b * y + back.c)))
    top, left = min(row for row, _ in corners), min(column for _, column in corners)
    bottom = max(row + piece.reader.grid.height for (row, _), piece in zip(corners, pieces, strict=True))
    right = max(column + piece.reader.grid.width for (_, column), piece in zip(corners, pieces, strict=True))
    a, b, c, d, e, f = first.transform
    transform = (a, b, c + a * left + b * top, d, e, f + d * left + e * top)
    return Grid(first.crs, transform, bottom - top, right - left), [
        (row - top, column - left) for row, column in corners
    ]


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
    days = np.unique(np.concatenate([np.unique(piece.reader.days) for piece in pieces]))
    facts["dates"] = [day.isoformat() for day in from_days(days)]
    if facts["layout"] == "raster":
        grid, _ = whole_grid(pieces)
        facts |= {"shape": [grid.height, grid.width], "crs": crs_name(grid.crs), "bounds": list(grid.bounds)}
    said = {name: value for name, value in holding.provenance.get(scene, {}).items() if name not in ("grid", "dates")}
    return {**facts, "provenance": said}


def _date_facts(holding: Holding) -> list[dict[str, Any]]:
    """The share of clear observations on each date, over all tiles that have it."""
    clear: dict[int, int] = {}
    seen: dict[int, int] = {}
    for piece in holding.pieces:
        reader = piece.reader
        if reader.layout == "raster":
            counts = sum(reader.valid(window).sum(axis=(1, 2)) for window in split(reader.grid.shape, BLOCK))
            sizes = np.full(len(reader.days), reader.grid.height * reader.grid.width)
            rows = zip(reader.days, np.asarray(counts), sizes, strict=True)
        else:
            days, places = np.unique(reader.days, return_inverse=True)
            good = np.bincount(places, weights=reader.whole_mask(), minlength=len(days))
            rows = zip(days, good, np.bincount(places, minlength=len(days)), strict=True)
        for day, good_ones, all_of_them in rows:
            clear[int(day)] = clear.get(int(day), 0) + int(good_ones)
            seen[int(day)] = seen.get(int(day), 0) + int(all_of_them)
    known = sorted(seen)
    return [
        {"date": date.isoformat(), "clear": clear[day] / max(seen[day], 1), "observations": seen[day]}
        for day, date in zip(known, from_days(known), strict=True)
    ]


def _class_facts(holding: Holding, *, series: bool) -> list[dict[str, Any]]:
    classes = holding.fingerprint.classes
    pixels = np.zeros(len(classes), dtype=np.int64)
    hectares: NDArray[np.float64] = np.zeros(len(classes))
    for piece in holding.pieces:
        if piece.reader.layout == "raster":
            share = hectares_per_pixel(piece.reader.grid)
            for window in split(piece.reader.grid.shape, 4 * BLOCK):
                labels = piece.reader.labels(window)
                counts = np.bincount(labels[labels >= 0], minlength=len(classes))
                pixels += counts
                hectares += counts * (np.nan if share is None else share)
    parcels = np.zeros(len(classes), dtype=np.int64)
    for scene in holding.scenes:
        tables = [piece.reader.table for piece in holding.of_scene(scene)]
        numbers = np.concatenate([table.numbers for table in tables])
        labels = np.concatenate([table.labels for table in tables])
        known = (numbers != 0) & (labels >= 0)
        _, first = np.unique(numbers[known], return_index=True)  # a parcel on the edge lies in several tiles
        parcels += np.bincount(labels[known][first], minlength=len(classes))
    rows = []
    for entry, number in zip(classes.to_json(), parcels, strict=True):
        if series:
            rows.append({**entry, "samples": int(number)})
        else:
            place = int(entry["number"])
            area = float(hectares[place])
            known_area = round(area, 4) if np.isfinite(area) else None
            rows.append({**entry, "parcels": int(number), "pixels": int(pixels[place]), "hectares": known_area})
    return rows


def _recipe(path: Path) -> str:
    try:
        with h5py.File(path, "r") as handle:
            return layout.read_text(handle, "recipe")
    except UNREADABLE as failure:
        raise ArtifactError("a tile cannot be read", path=path, why=str(failure), remedy=REMEDY) from None


def _test_facts(path: Path) -> dict[str, Any]:
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        return {
            "parcels": int(sum(result["split"]["counts"]["test"])),
            **{
                level: {name: result["test"][level][name] for name in ("overall_accuracy", "macro_f1")}
                for level in ("pixel", "parcel")
            },
        }
    except (ValueError, KeyError, TypeError) as failure:
        why = f"{type(failure).__name__}: {failure}"
        raise ArtifactError("the result cannot be read", path=path, why=why, remedy="train again") from None
