"""What every raster source yields: dated, banded observations of one grid, read window by window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cropstar.geo.grid import Grid
from cropstar.geo.windows import Window

Bands = tuple[str, ...]


@dataclass(frozen=True)
class Observations:
    """A window of a series. Values under an invalid pixel are zero and mean nothing."""

    values: NDArray[np.uint16]  # (T, C, H, W) scaled integers
    valid: NDArray[np.bool_]  # (T, H, W) false under cloud, shadow and nodata


class Series(Protocol):
    """An open raster time series. reflectance = values * scale + offset."""

    name: str
    grid: Grid
    dates: tuple[date, ...]
    bands: Bands
    scale: float
    offset: float
    provenance: dict[str, Any]

    @property
    def files(self) -> Sequence[Path]: ...  # on this disk, all that it is read from

    def read(self, window: Window) -> Observations: ...

    def close(self) -> None: ...
