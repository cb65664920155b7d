"""Maps without a model: probabilities of a small landscape, cut into blocks as a prediction would."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import shapely
from numpy.typing import NDArray

from cropstar.geo.grid import Grid
from cropstar.geo.windows import split
from cropstar.prediction.blocks import BlockResult
from cropstar.prediction.layers import PixelResults
from cropstar.prediction.outputs import MapWriter
from cropstar.prediction.request import MapFiles, MapOptions
from cropstar.store.classes import ClassTable
from tests.examples import a_grid

EVIL = 'Mais <script>alert("1")</script> & "Öl"'
CLASSES = ClassTable.from_names(["barley", "meadow", "wheat", EVIL])
TAGS = {"CROPSTAR_MODEL": "0123abcd", "CROPSTAR_DATES": "2023-05-01 2023-06-10"}


@dataclass(frozen=True)
class Landscape:
    """Fields of 8 x 8 pixels with specks in them; its corner was never seen."""

    grid: Grid
    probabilities: NDArray[np.float32]  # (K, h, w)
    counts: NDArray[np.int64]  # valid dates

    @cached_property
    def seen(self) -> NDArray[np.bool_]:
        return self.counts > 0

    @property
    def pixels(self) -> PixelResults:
        return PixelResults(self.probabilities, self.classes, self.seen, self.counts)

    @cached_property
    def classes(self) -> NDArray[np.uint8]:
        return np.where(self.seen, self.probabilities.argmax(axis=0), 255).astype(np.uint8)

    def blocks(self, names: tuple[str, ...], size: int = 23) -> Iterator[BlockResult]:
        for window in split(self.grid.shape, size):
            part = window.slices
            yield BlockResult.of(window, self.probabilities[:, *part], self.seen[part], self.counts[part], names)


def a_landscape(height: int = 60, width: int = 90, *, classes: int = len(CLASSES), seed: int = 0) -> Landscape:
    random = np.random.default_rng(seed)
    fields = random.integers(0, classes, (height // 8 + 1, width // 8 + 1)).repeat(8, 0).repeat(8, 1)[:height, :width]
    scores = random.normal(0, 1.2, (classes, height, width)) + 3.0 * (np.arange(classes)[:, None, None] == fields)
    powers = np.exp(scores)
    counts = random.integers(1, 12, (height, width))
    counts[:5, :7] = 0
    return Landscape(a_grid(height, width), (powers / powers.sum(axis=0)).astype(np.float32), counts)


@dataclass(frozen=True)
class MapContents:
    files: MapFiles
    counts: NDArray[np.int64]


def write(folder: Path, landscape: Landscape, options: MapOptions, *, size: int = 23, **changes: Any) -> MapContents:
    files = MapFiles(folder / "map.tif", options)
    files.require_new(overwrite=bool(changes.pop("overwrite", False)))
    settings: dict[str, Any] = {"tags": TAGS, "title": "Crops, 2023-05-01 to 2023-06-10", "work": folder / ".work"}
    blocks = landscape.blocks(options.layers_of_blocks, size)
    writer = MapWriter(files, landscape.grid, CLASSES, **{**settings, **changes})
    return MapContents(files, writer.write(blocks).counts)


def square(row: float, column: float, side: float, grid: Grid) -> Any:
    """A parcel whose upper left corner and side are given in pixels."""
    left, top = place(column, row, grid)
    length = side * grid.resolution
    return shapely.box(left, top - length, left + length, top)


def place(column: float, row: float, grid: Grid) -> tuple[float, float]:
    """Where a pixel's upper left corner lies."""
    a, b, c, d, e, f = grid.transform
    return a * column + b * row + c, d * column + e * row + f
