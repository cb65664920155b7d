"""Collections of one small file per series, such as EuroCropsML and TimeSen2Crop: a scene that reads them by tiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import InputError
from cropstar.geo.calendar import Season, from_days
from cropstar.geo.sensors import SCALE
from cropstar.sources.base import SampleScene, TileSpec, equal_parts, pack_series, recipe_of, safe_name
from cropstar.store.classes import ClassTable
from cropstar.store.fingerprint import Fingerprint
from cropstar.store.tile import ParcelTable, SeriesTile

SAMPLES_PER_TILE = 4096
BRIGHTEST = np.iinfo(np.uint16).max

Rows = tuple[NDArray[np.int32], NDArray[Any], NDArray[np.bool_]]  # days (T,), values (T, C), valid (T,)


@dataclass(frozen=True)
class SampleFile:
    """One series: its file, what it is called, its class, and the group that splits may hold out."""

    path: Path
    key: str
    label: str
    group: str


class SampleFilesScene(SampleScene):
    """The series of a collection, read when their tile is built. `read` gives the dates of a file in any order."""

    layout = "series"

    def __init__(
        self,
        folder: Path,
        source: str,
        samples: Sequence[SampleFile],
        bands: tuple[str, ...],
        read: Callable[[Path], Rows],
        extra_files: Sequence[Path] = (),
    ) -> None:
        self.name = safe_name(folder.resolve().name)
        self._samples, self._read = list(samples), read
        self.recipe = recipe_of([*extra_files, *(sample.path for sample in samples)], {"source": source})
        self.provenance: dict[str, Any] = {"source": source, "folder": folder.resolve().name}
        self._classes = ClassTable.from_names(sorted({sample.label for sample in samples}))
        self.dates = _first_and_last([read(sample.path)[0] for sample in self._some()], folder)
        self.fingerprint = Fingerprint(bands, SCALE, 0.0, 0.0, Season.of(self.dates), self._classes)

    def _some(self) -> list[SampleFile]:
        """Series of every group, to learn the season from."""
        found: dict[str, list[SampleFile]] = {}
        for sample in self._samples:
            found.setdefault(sample.group, []).append(sample)
        return [sample for own in found.values() for sample in own[:: max(len(own) // 50, 1)]]

    @property
    def volume(self) -> int:
        """Bytes of all values, about."""
        return len(self._samples) * 50 * 2 * len(self.fingerprint.bands)

    def cuts(self) -> list[tuple[int, int]]:
        return equal_parts(len(self._samples), SAMPLES_PER_TILE)

    def build(self, spec: TileSpec) -> SeriesTile:
        window = spec.window
        samples = self._samples[window.top : window.bottom]
        series = []
        for sample in samples:
            days, values, valid = self._read(sample.path)
            once, firsts = np.unique(days, return_index=True)  # of two rows of one date the first
            kept = np.where(valid[firsts][:, None], values[firsts], 0)
            series.append((once, np.clip(np.rint(kept), 0, BRIGHTEST).astype(np.uint16), valid[firsts]))
        table = ParcelTable(
            np.arange(window.top + 1, window.bottom + 1, dtype=np.int32),
            [sample.key for sample in samples],
            np.array([self._classes.number_of(sample.label) for sample in samples], dtype=np.int16),
            [sample.group for sample in samples],
        )
        return pack_series(self, series, table)

    def counts(self) -> dict[str, Any]:
        return {
            "samples": len(self._samples),
        }


def _first_and_last(days: Sequence[NDArray[np.int32]], folder: Path) -> tuple[Any, ...]:
    seen = [each for each in days if len(each)]
    if not seen:
        raise InputError("no dates", path=folder, why="all series are empty", remedy="get the collection again")
    return from_days([int(min(each.min() for each in seen)), int(max(each.max() for each in seen))])
