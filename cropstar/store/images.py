"""What has images has them alike: a raster tile, and each patch of a tile of patches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cropstar.geo.grid import Grid
from cropstar.geo.windows import Window
from cropstar.store.fingerprint import Fingerprint
from cropstar.store.tile import ParcelTable

if TYPE_CHECKING:
    from cropstar.store.reader import TileReader


class Image(Protocol):
    """A time series of images: a raster tile, or one image of a tile of patches."""

    path: Path
    scene: str

    @property
    def fingerprint(self) -> Fingerprint: ...

    @property
    def grid(self) -> Grid: ...

    @property
    def days(self) -> NDArray[np.int32]: ...

    @property
    def table(self) -> ParcelTable: ...

    def values(self, window: Window) -> NDArray[Any]: ...

    def valid(self, window: Window) -> NDArray[np.bool_]: ...

    def labels(self, window: Window | None = None) -> NDArray[np.int16]: ...

    def parcels(self, window: Window | None = None) -> NDArray[np.int32]: ...


class Patch:
    """One image of a tile of patches."""

    def __init__(self, tile: TileReader, index: int) -> None:
        self.path, self.scene = tile.path, tile.scene
        self._tile, self._index = tile, index

    @property
    def fingerprint(self) -> Fingerprint:
        return self._tile.fingerprint

    @property
    def name(self) -> str:
        return self._tile.names[self._index]

    @property
    def grid(self) -> Grid:
        a, b, c, d, e, f = (float(part) for part in self._tile.transforms[self._index])
        height, width = self._tile.shape
        return Grid(self._tile.crs, (a, b, c, d, e, f), height, width)

    @property
    def days(self) -> NDArray[np.int32]:
        return self._tile.days[self._index, : self._length]

    @property
    def table(self) -> ParcelTable:
        """The parcels of this image alone."""
        return self._tile.table.select(np.unique(self.parcels()))

    def values(self, window: Window) -> NDArray[Any]:
        return self._tile.read_patch("values", self._index, (slice(self._length), slice(None), *window.slices))

    def valid(self, window: Window) -> NDArray[np.bool_]:
        return self._tile.read_patch("valid", self._index, (slice(self._length), *window.slices)).view(np.bool_)

    def labels(self, window: Window | None = None) -> NDArray[np.int16]:
        return self._tile.read_patch("labels", self._index, window.slices if window else ())

    def parcels(self, window: Window | None = None) -> NDArray[np.int32]:
        return self._tile.read_patch("parcels", self._index, window.slices if window else ())

    @property
    def _length(self) -> int:
        return int(self._tile.lengths[self._index])
