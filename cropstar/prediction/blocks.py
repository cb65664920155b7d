"""Finished blocks of a map, kept as files in a work folder until the map is put together.

    .<map>.<key>.blocks/
      00000256-00000512.npz    the block whose upper left pixel is in row 256, column 512
      assembling               the map is being put together: what lies at its place is ours to replace

The key is made of the model, the input and the options: blocks of another model are never found. A block on the disk
is what a killed prediction goes on from, and what shards hand to the one that assembles.
"""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import ArtifactError
from cropstar.geo.windows import Window
from cropstar.prediction.cog import NODATA
from cropstar.prediction.layers import layers_of
from cropstar.store.files import atomic_path, locked

BLOCKS = ".blocks"
ASSEMBLING = "assembling"
CLASSES = "classes"
LAYER = "layer:"


@dataclass(frozen=True)
class BlockResult:
    """What a map holds within one window."""

    window: Window  # on the map's grid
    classes: NDArray[np.uint8]  # (h, w), 255 where nothing was seen
    layers: dict[str, NDArray[Any]] = field(default_factory=dict)  # (bands, h, w) each, by the layer's name


def block_of(
    window: Window,
    probabilities: NDArray[np.float32],
    seen: NDArray[np.bool_],
    counts: NDArray[np.integer[Any]],
    layers: Sequence[str],
) -> BlockResult:
    """The likeliest class of each pixel that was seen, and the layers that are asked for."""
    classes = np.where(seen, probabilities.argmax(axis=0), NODATA).astype(np.uint8)
    return BlockResult(window, classes, layers_of(probabilities, seen, counts, layers))


class BlockFolder:
    """The finished blocks of one job."""

    def __init__(self, output: Path, key: str) -> None:
        self._output = output
        self.folder = output.with_name(f".{output.name}.{key}{BLOCKS}")

    def path(self, window: Window) -> Path:
        return self.folder / f"{window.top:08d}-{window.left:08d}.npz"

    def missing(self, windows: Sequence[Window]) -> list[Window]:
        """Those that have no block yet, in their order."""
        there = {path.name for path in self.folder.glob("*.npz")}
        return [window for window in windows if self.path(window).name not in there]

    def write(self, block: BlockResult) -> None:
        arrays = {CLASSES: block.classes, **{LAYER + name: layer for name, layer in block.layers.items()}}
        with atomic_path(self.path(block.window)) as partial, partial.open("wb") as handle:
            np.savez_compressed(handle, **arrays)  # type: ignore[arg-type]  # of numpy's stubs

    def read(self, windows: Sequence[Window]) -> Iterator[BlockResult]:
        """The blocks one after the other; one that is damaged is removed, so that the next run makes it anew."""
        for window in windows:
            path = self.path(window)
            try:
                with np.load(path, allow_pickle=False) as found:
                    arrays = {name: found[name] for name in found.files}
                block = BlockResult(
                    window,
                    arrays.pop(CLASSES),
                    {name.removeprefix(LAYER): array for name, array in arrays.items()},
                )
                if block.classes.shape != (window.height, window.width) or block.classes.dtype != np.uint8:
                    raise ValueError(f"a block of shape {block.classes.shape}")
            except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as failure:
                path.unlink(missing_ok=True)
                remedy = "run the same command again: it makes the block anew"
                raise ArtifactError("a finished block is damaged", path=path, why=str(failure), remedy=remedy) from None
            yield block

    @property
    def assembling(self) -> bool:
        return (self.folder / ASSEMBLING).exists()

    def begin_assembling(self) -> None:
        (self.folder / ASSEMBLING).touch()

    def remove(self) -> None:
        """This folder, and what jobs of other models or options left for the same map, unless they still run."""
        for folder in [self.folder, *folders_beside(self._output)]:
            try:
                if folder != self.folder and folder.exists():
                    with locked(folder, "the prediction"):
                        shutil.rmtree(folder, ignore_errors=True)
                else:
                    shutil.rmtree(folder, ignore_errors=True)
            except ArtifactError:
                continue


def folders_beside(output: Path) -> list[Path]:
    """The work folders of all jobs that have this output."""
    start = f".{output.name}."
    beside = output.parent.iterdir() if output.parent.is_dir() else ()
    return [path for path in beside if path.name.startswith(start) and path.name.endswith(BLOCKS) and path.is_dir()]
