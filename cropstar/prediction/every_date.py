"""A map a date, and since when each pixel's class has been sure.

A pixel's class is sure from the first date after which it never changed again and never was less likely than asked
for; 0 where that is not even so after the last date.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.geo.grid import Grid, hectares_per_pixel
from cropstar.geo.windows import Window
from cropstar.prediction.blocks import BlockResult
from cropstar.prediction.cog import NODATA, Draft, RasterKind, drafting, publish
from cropstar.prediction.names import describe_names, names_file
from cropstar.prediction.style import describe_style, style_file
from cropstar.prediction.wanted import EARLIEST, Files
from cropstar.store.classes import ClassTable
from cropstar.store.files import write_text

DATED = "dated"  # the layer of a block with the class after each date
AT_ONCE = 32  # files that are open at the same time
MEANING = "day of the year from which the class stayed the same with a confidence of at least {:g}; 0 if never"


class Following:
    """The classes of one window after every date."""

    def __init__(self, window: Window, dates: Sequence[date], confidence: float) -> None:
        self._shape = (window.height, window.width)
        size = window.height * window.width
        self._days = [day.timetuple().tm_yday for day in dates]
        self._confidence = confidence
        self._classes = np.full((len(dates), size), NODATA, dtype=np.uint8)
        self._since = np.zeros(size, dtype=np.uint16)

    def follow(self, date: int, pixels: slice, probabilities: NDArray[np.float32], seen: NDArray[np.bool_]) -> None:
        chosen = np.where(seen, probabilities.argmax(axis=0), NODATA).astype(np.uint8)
        self._classes[date, pixels] = chosen
        sure = seen & (probabilities.max(axis=0) >= self._confidence)
        since = self._since[pixels]
        going_on = since > 0
        if date > 0:
            going_on &= chosen == self._classes[date - 1, pixels]
        self._since[pixels] = np.where(sure, np.where(going_on, since, self._days[date]), 0)

    def layers(self) -> dict[str, NDArray[Any]]:
        """For a block."""
        classes = self._classes.reshape(-1, *self._shape)
        return {DATED: classes, EARLIEST: self._since.reshape(1, *self._shape)}


def write_dated(
    blocks: Callable[[], Iterable[BlockResult]],
    files: Files,
    grid: Grid,
    classes: ClassTable,
    *,
    tags: dict[str, str],
    work: Path,
) -> None:
    """All maps of single dates; blocks are read again for every `AT_ONCE` of them."""
    assert files.wanted.stable is not None
    work.mkdir(parents=True, exist_ok=True)
    confidence = f"{files.wanted.stable:g}"
    meaning = MEANING.format(files.wanted.stable)
    kind = RasterKind("uint16", 0, [meaning], "NEAREST")
    with ExitStack() as hold:
        (draft,) = _gather(blocks(), {EARLIEST: (kind, lambda block: block.layers[EARLIEST])}, grid, work, hold)
        publish(draft, files.earliest, {**tags, "CROPSTAR_LAYER": meaning, "CROPSTAR_CONFIDENCE": confidence})
    for start in range(0, len(files.dates), AT_ONCE):
        numbers = range(start, min(start + AT_ONCE, len(files.dates)))
        counts = np.zeros((len(files.dates), 256), dtype=np.int64)

        def one(number: int, counts: NDArray[np.int64] = counts) -> Callable[[BlockResult], NDArray[Any]]:
            def take(block: BlockResult) -> NDArray[Any]:
                chosen: NDArray[np.uint8] = block.layers[DATED][number]
                counts[number] += np.bincount(chosen.ravel(), minlength=256)
                return chosen[None]

            return take

        with ExitStack() as hold:
            wanted = {str(number): (RasterKind.of_map(classes), one(number)) for number in numbers}
            for number, draft in zip(numbers, _gather(blocks(), wanted, grid, work, hold), strict=True):
                path = files.layer(files.dates[number].isoformat())
                write_text(names_file(path), describe_names(classes, counts[number], hectares_per_pixel(grid)))
                write_text(style_file(path), describe_style(classes))
                until = " ".join(day.isoformat() for day in files.dates[: number + 1])
                publish(draft, path, {**tags, "CROPSTAR_DATES": until})


def _gather(
    blocks: Iterable[BlockResult],
    wanted: dict[str, tuple[RasterKind, Callable[[BlockResult], NDArray[Any]]]],
    grid: Grid,
    work: Path,
    hold: ExitStack,
) -> list[Draft]:
    """A draft of each, there until `hold` ends."""
    drafts: list[Draft] = []
    with ExitStack() as writing:
        for name, (kind, _) in wanted.items():
            path = work / f"dated-{name}.tif"
            hold.callback(path.unlink, missing_ok=True)
            drafts.append(writing.enter_context(drafting(path, grid, kind)))
        for block in blocks:
            for draft, (_, take) in zip(drafts, wanted.values(), strict=True):
                draft.write(block.window, take(block))
    return drafts
