"""What a map is made from, as one key: blocks are only found again by the very same model, input and options."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cropstar import __version__
from cropstar.geo.raster import open_raster
from cropstar.prediction.planning import WindowPlan
from cropstar.prediction.predictor import Predictor
from cropstar.sources.base import Series

ENDS = 2**16  # bytes at either end of a file that are looked at
FORMAT = 1  # raised when blocks come to mean something else


def job_key(predictor: Predictor, series: Series, plan: WindowPlan, layers: Sequence[str]) -> str:
    """Twenty digits; `layers` name all that blocks hold beside the classes."""
    said: dict[str, Any] = {
        "format": FORMAT,
        "version": __version__,
        "model": predictor.digest,
        "device": predictor.device.type,
        "backend": predictor.backend,
        "half": predictor.half,
        "window": plan.window,
        "series_at_once": plan.series_at_once,
        "halo": predictor.halo(series),
        "grid": series.grid.to_json(),
        "dates": [day.isoformat() for day in series.dates],
        "bands": list(series.bands),
        "scale": [series.scale, series.offset],
        "provenance": series.provenance,
        "layers": sorted(layers),
        "files": [_trace(path) for path in files_of(series)],
    }
    text = json.dumps(said, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()


def files_of(series: Series) -> list[Path]:
    """The files that a series is read from; every source of images can tell."""
    return list(series.files)


def _trace(path: Path) -> list[Any]:
    """Name, length, time of the last change and both ends. Every byte of a season would take as long as the map."""
    status = path.stat()
    digest = hashlib.blake2b(digest_size=10)
    with path.open("rb") as handle:
        digest.update(handle.read(ENDS))
        handle.seek(max(status.st_size - ENDS, 0))
        digest.update(handle.read(ENDS))
    return [path.name, status.st_size, status.st_mtime_ns, digest.hexdigest()]


def block_side(series: Series) -> int | None:
    """The side of the square blocks that a GeoTIFF is stored in, to be read whole; None of anything else."""
    files = files_of(series)
    if not files or files[0].suffix.lower() not in (".tif", ".tiff"):
        return None
    with open_raster(files[0]) as dataset:
        height, width = dataset.block_shapes[0]
    return int(height) if height == width else None
