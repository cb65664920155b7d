"""All files of a map from its finished blocks: gathered in drafts, smoothed, then published, the map itself last.

map.tif  map.tif.aux.xml  map.qml  map.png         the map, names and colours for GIS, its picture
map-confidence.tif  map-probabilities.tif ...      the layers that were asked for
map-parcels.gpkg (or .parquet)  map.html           with parcels, as a page
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.geo.grid import Grid, hectares_per_pixel
from cropstar.geo.windows import split
from cropstar.prediction.blocks import BlockResult
from cropstar.prediction.cog import NODATA, Draft, RasterKind, drafting, publish, read_thinned
from cropstar.prediction.layers import CONFIDENCE, LAYERS, PROBABILITIES, VALID_DATES, layers_of, stored_probabilities
from cropstar.prediction.names import describe_names, names_file
from cropstar.prediction.page import write_page
from cropstar.prediction.smoothing import Smoothing, bayesian, majority
from cropstar.prediction.style import describe_style, style_file
from cropstar.prediction.wanted import Files, Wanted
from cropstar.prediction.zones import ParcelClassifier, classify_parcels
from cropstar.reports.map import draw_map
from cropstar.runtime import track
from cropstar.store.classes import ClassTable
from cropstar.store.files import write_text

MAP = "map"
Drafts = dict[str, Draft]

DISPLAY = 2000  # pixels of a picture's long side
SMOOTHED_AT_ONCE = 8_000_000  # probabilities; some hundred megabytes with what is computed from them


@dataclass(frozen=True)
class Finished:
    """What was written, and the pixels of each value."""

    files: Files
    counts: NDArray[np.int64]  # (256,)


def write_outputs(
    blocks: Iterable[BlockResult],
    files: Files,
    grid: Grid,
    classes: ClassTable,
    *,
    tags: dict[str, str],
    title: str,
    work: Path,
    pooled: ParcelClassifier | None = None,
) -> Finished:
    """Put a map together. Drafts lie in the work folder meanwhile and are gone afterwards.

    `pooled` classifies parcels where the model does so itself; else what the map shows in them counts.
    """
    wanted = files.wanted
    if wanted.smoothing is not None:  # what a layer says of confidence is then said of a window, not of a pixel
        tags = {**tags, "CROPSTAR_SMOOTHING": str(wanted.smoothing)}
    work.mkdir(parents=True, exist_ok=True)
    with ExitStack() as hold:
        drafts, counts = _gather(blocks, wanted.needed, grid, classes, work, hold)
        if wanted.smoothing is not None:
            drafts, counts = _smooth(drafts, wanted, grid, classes, work, hold)
        hectares = hectares_per_pixel(grid)
        if wanted.parcels is not None and pooled is not None:
            pooled(wanted.parcels, files.parcels)
        elif wanted.parcels is not None:
            map_draft, probabilities = drafts[MAP].path, drafts[PROBABILITIES].path
            classify_parcels(wanted.parcels, files.parcels, map_draft, probabilities, classes)
        thinned = read_thinned(drafts[MAP].path, DISPLAY)
        if wanted.page:
            confidence = read_thinned(drafts[CONFIDENCE].path, DISPLAY)
            found = files.parcels if wanted.parcels is not None else None
            write_page(files.page, thinned, confidence, grid, classes, counts, title=title, parcels=found)
        if wanted.picture:
            draw_map(files.picture, thinned, grid, classes, title=title, counts=counts)
        write_text(names_file(files.map), describe_names(classes, counts, hectares))
        write_text(style_file(files.map), describe_style(classes))
        for name in wanted.layers:
            publish(drafts[name], files.layer(name), {**tags, "CROPSTAR_LAYER": LAYERS[name].meaning})
        publish(drafts[MAP], files.map, tags)
    return Finished(files, counts)


def _gather(
    blocks: Iterable[BlockResult], names: tuple[str, ...], grid: Grid, classes: ClassTable, work: Path, hold: ExitStack
) -> tuple[Drafts, NDArray[np.int64]]:
    """Blocks, in any order, as one draft for the map and one for each layer."""
    counts = np.zeros(256, dtype=np.int64)
    with ExitStack() as writing:
        drafts = _open(names, grid, classes, work, "draft", hold, writing)
        for block in blocks:
            drafts[MAP].write(block.window, block.classes[None])
            for name in names:
                drafts[name].write(block.window, block.layers[name])
            counts += np.bincount(block.classes.ravel(), minlength=256)
    return drafts, counts


def _smooth(
    rough: Drafts, wanted: Wanted, grid: Grid, classes: ClassTable, work: Path, hold: ExitStack
) -> tuple[Drafts, NDArray[np.int64]]:
    """New drafts of the smoothed map and of the layers that follow from it; the valid dates stay as they are."""
    assert wanted.smoothing is not None
    names = tuple(name for name in wanted.made if name != VALID_DATES)
    counts = np.zeros(256, dtype=np.int64)
    side = 512 if len(classes) * 512 * 512 <= SMOOTHED_AT_ONCE else 256
    with ExitStack() as writing:
        drafts = _open(names, grid, classes, work, "smooth", hold, writing)
        windows = list(split(grid.shape, side))
        for window in track(windows, len(windows), "smooth", "block"):
            outer = window.expand(wanted.smoothing.margin, grid.shape)
            inner = window.relative_to(outer).slices
            numbers = rough[MAP].read(outer)[0]
            stored = rough[PROBABILITIES].read(outer) if PROBABILITIES in rough else None
            chosen, layers = smoothed_block(numbers, stored, inner, wanted.smoothing, names)
            drafts[MAP].write(window, chosen[None])
            for name, values in layers.items():
                drafts[name].write(window, values)
            counts += np.bincount(chosen.ravel(), minlength=256)
    return drafts | ({VALID_DATES: rough[VALID_DATES]} if VALID_DATES in rough else {}), counts


def smoothed_block(
    classes: NDArray[np.uint8],
    stored: NDArray[np.uint16] | None,
    inner: tuple[slice, slice],
    smoothing: Smoothing,
    names: tuple[str, ...],
) -> tuple[NDArray[np.uint8], dict[str, NDArray[Any]]]:
    """The smoothed inner part of a window that is read with its margin, and the layers that go with it."""
    seen = classes != NODATA
    probabilities: NDArray[Any] | None = None if stored is None else stored_probabilities(stored)
    if smoothing.method == "bayesian":
        assert probabilities is not None
        probabilities = bayesian(probabilities, seen, smoothing.window, smoothing.smoothness)
        chosen = np.where(seen, probabilities.argmax(axis=0), NODATA).astype(np.uint8)
    else:
        chosen = majority(classes, smoothing.window)
    chosen = chosen[inner]
    if not names:
        return chosen, {}
    assert probabilities is not None
    return chosen, layers_of(probabilities[:, *inner], seen[inner], np.zeros(1, dtype=np.int64), names, chosen)


def _open(
    names: tuple[str, ...],
    grid: Grid,
    classes: ClassTable,
    work: Path,
    stem: str,
    hold: ExitStack,
    writing: ExitStack,
) -> Drafts:
    """Drafts that are open until `writing` ends and there until `hold` does."""
    kinds = {MAP: RasterKind.of_map(classes)} | {name: RasterKind.of_layer(LAYERS[name], classes) for name in names}
    drafts = {}
    for name, kind in kinds.items():
        path = work / f"{stem}-{name}.tif"
        hold.callback(path.unlink, missing_ok=True)
        drafts[name] = writing.enter_context(drafting(path, grid, kind))
    return drafts
