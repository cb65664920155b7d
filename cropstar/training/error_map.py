"""Where the right and the wrong parcels of a test lie, thinned to what a figure can show.

A canvas holds one byte a pixel, packed: it is part of result.json, which must stay small whatever the scene.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.datasets.fields import ParcelId
from cropstar.datasets.splits import PixelSplit, Split
from cropstar.geo.grid import Grid, enclosing_grid
from cropstar.reports.figures import LONGEST_CANVAS, OTHER, RIGHT, UNSEEN, WRONG, pack_codes
from cropstar.store.reader import TileReader
from cropstar.store.store import Store
from cropstar.training.evaluation import Evaluation

MOST_SCENES = 6
NO_PLACES = "the store keeps series without their places"
SMALL_IMAGES = "the store holds small images, each of a place of its own"


def error_map_facts(store: Store, split: Split, evaluation: Evaluation, part: str = "test") -> dict[str, Any]:
    """A canvas for each scene with the parcels of a part: those that were right and wrong, and all others.

    Of many scenes those with the most judged parcels are kept. `why` says why there is no map at all.
    """
    layouts = {entry.layout for entry in store.manifest.tiles}
    if layouts != {"raster"}:
        return {"scenes": [], "left_out": 0, "why": NO_PLACES if "series" in layouts else SMALL_IMAGES}
    outcomes = _outcomes(split, evaluation, part)
    readers: dict[str, list[TileReader]] = {}
    for _, reader in store.readers():
        readers.setdefault(reader.scene, []).append(reader)
    judged = {scene: [code for (own, _), code in outcomes.items() if own == scene] for scene in readers}
    busiest = sorted((scene for scene in readers if judged[scene]), key=lambda scene: (-len(judged[scene]), scene))
    scenes = []
    for scene in busiest[:MOST_SCENES]:
        codes, grid, step = _canvas(
            readers[scene],
            {number: code for (own, number), code in outcomes.items() if own == scene},
            _labelled(split, scene),
        )
        counts = {
            name: judged[scene].count(code) for name, code in (("right", RIGHT), ("wrong", WRONG), ("unseen", UNSEEN))
        }
        scenes.append({"scene": scene, "grid": grid.to_json(), "step": step, **counts, "codes": pack_codes(codes)})
    return {"scenes": scenes, "left_out": len(busiest) - len(scenes), "why": None}


def _outcomes(split: Split, evaluation: Evaluation, part: str) -> dict[ParcelId, int]:
    """What became of every parcel of the part; one whose pixels were never seen clearly was not judged."""
    counts = evaluation.parcel_counts
    truth, said = np.divmod(counts.cell, counts.classes)
    codes = dict(
        zip(counts.parcels[counts.parcel].tolist(), np.where(truth == said, RIGHT, WRONG).tolist(), strict=True)
    )
    members = (
        split.held.get(part, set())
        if isinstance(split, PixelSplit)
        else {parcel for parcel, own in split.part_of.items() if own == part}
    )
    running = split.running_numbers()
    return {parcel: codes.get(running[parcel], UNSEEN) for parcel in members}


def _labelled(split: Split, scene: str) -> list[int]:
    return [number for own, number in split.label_of if own == scene]


def _canvas(
    readers: list[TileReader], outcomes: dict[int, int], labelled: list[int]
) -> tuple[NDArray[np.uint8], Grid, int]:
    """Every n-th pixel of the tiles of a scene, never a mixture; tiles are read one after the other."""
    grid, corners = enclosing_grid([reader.grid for reader in readers])
    step = math.ceil(max(grid.shape) / LONGEST_CANVAS)
    rows, columns = (np.arange(min(step // 2, side - 1), side, step) for side in grid.shape)
    canvas: NDArray[np.uint8] = np.zeros((len(rows), len(columns)), dtype=np.uint8)
    codes = {**dict.fromkeys(labelled, OTHER), **outcomes}
    for reader, (top, left) in zip(readers, corners, strict=True):
        height, width = reader.grid.shape
        down, across = _inside(rows, top, height), _inside(columns, left, width)
        if down.start < down.stop and across.start < across.stop:
            parcels = reader.parcels()[np.ix_(rows[down] - top, columns[across] - left)]
            numbers, places = np.unique(parcels, return_inverse=True)
            looked_up = np.array([codes.get(int(number), 0) for number in numbers], dtype=np.uint8)
            found = looked_up[places].reshape(parcels.shape)
            canvas[down, across] = np.maximum(canvas[down, across], found)  # tiles may overlap
    a, b, c, d, e, f = grid.transform
    return canvas, Grid(grid.crs, (a * step, b * step, c, d * step, e * step, f), *canvas.shape), step


def _inside(lines: NDArray[np.int64], start: int, length: int) -> slice:
    """The lines of the canvas that fall into a tile."""
    first, last = np.searchsorted(lines, [start, start + length])
    return slice(int(first), int(last))
