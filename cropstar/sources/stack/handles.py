"""Open GeoTIFFs, a bounded number of them: a season of single bands is more files than a process may hold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rasterio.errors import RasterioError

from cropstar.errors import InputError
from cropstar.geo.raster import open_raster, rasterio_window
from cropstar.geo.windows import Window
from cropstar.sources.base import HandleCache

LEAST_OPEN, MOST_OPEN = 8, 1024
SHARE = 8  # of the files that the system allows: several tiles may be open, and others want files too


class OpenRasters(HandleCache[Path]):
    """Open GeoTIFFs."""

    def __init__(self, most: int | None = None) -> None:
        super().__init__()
        self._most = most

    def limit(self) -> int:
        return self._most or most_open()

    def dataset(self, path: Path) -> Any:
        """The open rasterio dataset of a file."""
        return self.get(path, lambda stack: stack.enter_context(open_raster(path)))

    def read(self, path: Path, indexes: Sequence[int], window: Window) -> NDArray[Any]:
        """Pixels (bands, h, w) of a window, which may be empty."""
        dataset = self.dataset(path)
        shape = (len(indexes), window.height, window.width)
        if not window.height or not window.width:
            return np.zeros(shape, dtype=dataset.dtypes[0])
        try:
            pixels: NDArray[Any] = dataset.read(list(indexes), window=rasterio_window(window))
        except (RasterioError, IndexError) as failure:
            why = f"the pixels cannot be read ({failure.__cause__ or failure})"
            raise InputError("damaged raster", path=path, why=why, remedy="get the file again") from None
        if pixels.shape != shape:
            why = "it is smaller than when it was opened"
            raise InputError("a raster changed while it was read", path=path, why=why, remedy="run again")
        return pixels


def most_open() -> int:
    """How many files one series keeps open; 128 where a process may have the usual 1,024."""
    try:
        from resource import RLIMIT_NOFILE, getrlimit
    except ImportError:  # not on Windows
        return 128
    allowed, _ = getrlimit(RLIMIT_NOFILE)
    return min(max(allowed // SHARE, LEAST_OPEN), MOST_OPEN) if allowed > 0 else MOST_OPEN
