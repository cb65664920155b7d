"""Whether the disk has room for a map and all that comes with it, asked before anything is computed.

How small maps become is only known when they are there. So there are two figures: a cautious guess at the least, with
which a job that cannot end is refused, and the most, uncompressed, of which there is only a warning.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cropstar.errors import ResourceError
from cropstar.geo.grid import Grid
from cropstar.prediction.layers import LAYERS, PROBABILITIES
from cropstar.prediction.season import Layout
from cropstar.prediction.season_card import state_bytes
from cropstar.prediction.wanted import Files
from cropstar.runtime import logger
from cropstar.store.model_file import ModelCard

OVERVIEWS = 4 / 3  # of a raster with its smaller copies
# Assumed, not measured, and low, so that nothing is refused that fits; hidden states hardly shrink.
LEAST_MAP, LEAST_LAYER, LEAST_STATE = 0.02, 0.1, 0.5
COUNTS = 2  # bytes of the valid dates that are kept with a state
GIGABYTE = 10**9


@dataclass(frozen=True)
class Need:
    """Bytes that will lie at a place at the same time."""

    place: Path
    least: int
    most: int


def require_room(files: Files, grid: Grid, card: ModelCard, layout: Layout | None, work: Path) -> None:
    """Refuse a map that cannot fit, before the first block of it is computed; blocks go to the `work` folder."""
    require_space(needs_of(files, grid, len(card.fingerprint.classes), layout=layout), work=work)


def needs_of(
    files: Files,
    grid: Grid,
    classes: int,
    *,
    layout: Layout | None = None,
    state: Path | None = None,
    in_blocks: bool = True,
) -> list[Need]:
    """What the files of a map take at the moment when it is put together.

    `layout` is that of the state, where one is kept at `state`. Without `in_blocks` windows go straight to their files.
    """
    pixels, wanted = grid.height * grid.width, files.wanted
    smoothed = wanted.smoothing is not None
    dated = 0 if wanted.stable is None else len(files.dates) + 2
    drafts = 1 + _layer_bytes(wanted.needed, classes) + (1 + _layer_bytes(wanted.made, classes) if smoothed else 0)
    blocks = 1 + _layer_bytes(wanted.needed, classes) + dated if in_blocks else 0
    published = 1 + _layer_bytes(wanted.layers, classes) + dated
    maps = pixels * ((LEAST_MAP if drafts == 1 else LEAST_LAYER) * (drafts + blocks) + LEAST_MAP * published)
    most = pixels * (drafts + blocks + OVERVIEWS * published)
    kept = 0 if layout is None else pixels * (state_bytes(layout) + COUNTS)
    if in_blocks:  # states of blocks are stored as they are, beside the map
        maps, most = maps + kept, most + kept
    needs = [Need(files.map.parent, int(maps), int(most))]
    place = state or files.state
    return needs + ([Need(place.parent, int(LEAST_STATE * kept), kept)] if place is not None and kept else [])


def require_space(
    needs: Iterable[Need], *, work: Path | None = None, free_at: Callable[[Path], int] | None = None
) -> None:
    """Refuse what cannot fit; what lies in the `work` folder is there already."""
    measure = free_at or (lambda place: shutil.disk_usage(place).free)
    disks: dict[int, list[Need]] = {}
    for need in needs:
        place = _existing(need.place)
        disks.setdefault(os.stat(place).st_dev, []).append(Need(place, need.least, need.most))
    for device, own in disks.items():
        there = _size(work) if work is not None and work.is_dir() and os.stat(work).st_dev == device else 0
        least, most = (max(sum(figures) - there, 0) for figures in _columns(own))
        free = measure(own[0].place)
        if least > free:
            why = f"at least {_words(least)} are needed and {_words(free)} are free"
            remedy = "free some disk space, choose another disk with -o, or ask for fewer layers"
            raise ResourceError("the disk is too small for the map", path=own[0].place, why=why, remedy=remedy)
        if most > free:
            logger.warning(
                "%s may become too small: the map can take up to %s and %s are free",
                own[0].place,
                _words(most),
                _words(free),
            )


def _layer_bytes(names: Iterable[str], classes: int) -> int:
    """Of a pixel, uncompressed."""
    return sum(np.dtype(LAYERS[name].dtype).itemsize * (classes if name == PROBABILITIES else 1) for name in names)


def _columns(needs: Sequence[Need]) -> tuple[list[int], list[int]]:
    return [need.least for need in needs], [need.most for need in needs]


def _existing(place: Path) -> Path:
    """The folder itself, or the nearest above it that is there."""
    whole = place.resolve()
    return next(each for each in (whole, *whole.parents) if each.exists())


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _words(count: int) -> str:
    return f"{count / GIGABYTE:,.2f} GB"
