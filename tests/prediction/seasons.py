"""Seasons in parts: the dates of a stacked raster as files of their own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
import torch
from numpy.typing import NDArray

from cropstar.geo.windows import Window
from cropstar.prediction.outputs import MapResult
from cropstar.prediction.request import MapInput, UpdateRequest
from cropstar.prediction.season import SeasonReader, update

CPU = torch.device("cpu")


def cut(source: Path, target: Path, dates: slice, **changes: Any) -> Path:
    """A stack with some of the dates; its profile can be changed, and bands left out."""
    without = changes.pop("without", None)
    with rasterio.open(source) as old:
        days = sorted({_day(old, index) for index in old.indexes})[dates]
        chosen = [i for i in old.indexes if _day(old, i) in days and _name(old, i) != without]
        profile = {**old.profile, "count": len(chosen), **changes}
        with rasterio.open(target, "w", **profile) as new:
            for place, index in enumerate(chosen, 1):
                new.write(old.read(index)[: profile["height"], : profile["width"]], place)
                new.set_band_description(place, old.descriptions[index - 1])
                new.update_tags(place, **old.tags(index))
            new.scales = [old.scales[i - 1] for i in chosen]
            new.offsets = [old.offsets[i - 1] for i in chosen]
    return target


def take_in(state: Path, *new: Path, **options: Any) -> MapResult:
    return update(state, [MapInput(path) for path in new], UpdateRequest(device="cpu", **options))


def whole_state(path: Path) -> tuple[list[NDArray[np.float32]], NDArray[Any], Sequence[str]]:
    """Parts, valid dates, and the dates as text."""
    reader = SeasonReader(path)
    try:
        before = reader.read(Window(0, 0, *reader.card.grid.shape))
        return before.state, before.counts, [day.isoformat() for day in reader.card.dates]
    finally:
        reader.close()


def pixels(path: Path) -> NDArray[Any]:
    with rasterio.open(path) as dataset:
        values: NDArray[Any] = dataset.read()
    return values


def _day(dataset: Any, index: int) -> str:
    return str(dataset.tags(index).get("DATE") or dataset.descriptions[index - 1].split()[0])


def _name(dataset: Any, index: int) -> str:
    return str(dataset.tags(index).get("BAND") or dataset.descriptions[index - 1].split()[1])
