"""What is to be mapped, and where each map goes."""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cropstar.errors import InputError, UsageError
from cropstar.prediction.decoded import keep_decoded
from cropstar.prediction.stored import StoredSeries, is_store, scenes_of
from cropstar.sources.base import Series
from cropstar.sources.catalogue import open_raster_series

SUFFIXES = (".tif", ".tiff")
ENDING = "-crops.tif"


@dataclass(frozen=True)
class MapInput:
    """A raster series on the disk, or a scene of a store."""

    path: Path
    scene: str | None = None

    @property
    def stem(self) -> str:
        named = self.path if self.path.name else self.path.resolve()  # "." has no name of its own
        return self.scene or named.stem

    def __str__(self) -> str:
        return str(self.path) if self.scene is None else f"{self.path} ({self.scene})"

    def open(
        self,
        bands: Sequence[str],
        reading: Mapping[str, Any],
        given: Mapping[str, Any],
        *,
        scratch: Path | None = None,
    ) -> Series:
        """`scratch` is a folder where compressed images may lie decoded while windows are read."""
        if self.scene is None:
            series = open_raster_series(self.path, bands, reading, given)
            if scratch is not None:
                keep_decoded(series, scratch)
            return series
        for name in given:
            why = "its bands have their names and dates"
            option = name.replace("_", "-")
            raise UsageError(f"--{option} is not for a store", path=self.path, why=why, remedy="leave it out")
        return StoredSeries(self.path, self.scene)


def find_inputs(texts: Sequence[str]) -> list[MapInput]:
    """Paths and patterns, each input once. A shell that knows the pattern expands it itself; batch systems do not."""
    paths: dict[Path, None] = {}
    for text in texts:
        given = Path(text)
        if given.exists() or not glob.has_magic(text):
            paths[given] = None
            continue
        found = sorted(glob.glob(text, recursive=True))
        if not found:
            raise InputError("no such file", path=text, why="nothing fits the pattern", remedy="check the pattern")
        paths |= dict.fromkeys(map(Path, found))
    inputs: list[MapInput] = []
    for path in paths:
        inputs += [MapInput(path, scene) for scene in scenes_of(path)] if is_store(path) else [MapInput(path)]
    return inputs


def find_outputs(inputs: Sequence[MapInput], output: Path | None) -> list[Path]:
    """The name of each map: the one that is given, or `<input>-crops.tif` in a folder, or beside the input."""
    if output is None:
        outputs = [_beside(each) for each in inputs]
    elif len(inputs) == 1 and not output.is_dir():
        outputs = [output]
    elif output.suffix.lower() in SUFFIXES and not output.is_dir():
        why = f"{len(inputs)} inputs make as many maps"
        raise UsageError("one output for several inputs", path=output, why=why, remedy="give a folder with -o")
    elif output.exists() and not output.is_dir():
        raise UsageError("the output is no folder", path=output, remedy="give a folder with -o")
    else:
        outputs = [output / f"{each.stem}{ENDING}" for each in inputs]
    for place, path in enumerate(outputs):
        if path in outputs[:place]:
            first = inputs[outputs.index(path)]
            remedy = "map them one by one, or rename one of them"
            raise UsageError("two maps of one name", path=path, why=f"{first} and {inputs[place]}", remedy=remedy)
    return outputs


def _beside(each: MapInput) -> Path:
    named = each.path if each.path.name else each.path.resolve()
    return named.with_name(f"{each.stem}{ENDING}")
