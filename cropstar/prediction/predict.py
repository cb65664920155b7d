"""`cropstar predict`: from a raster series to a classified map and its picture."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from cropstar import __version__
from cropstar.devices import keep_large_buffers
from cropstar.errors import UsageError
from cropstar.geo.ground import hectares_per_pixel
from cropstar.geo.windows import split
from cropstar.logs import event
from cropstar.prediction.predictor import Predictor
from cropstar.prediction.raster import NODATA, create_map, names_file, read_for_display
from cropstar.progress import progress_bar
from cropstar.reports.quicklook import draw_map
from cropstar.sources.opening import open_raster_series


@dataclass(frozen=True)
class PredictOptions:
    model: Path
    device: torch.device
    window: int = 256
    any_dates: bool = False
    overwrite: bool = False


@dataclass(frozen=True)
class MapResult:
    raster: Path
    picture: Path
    pixels: NDArray[np.int64]  # of each class
    unseen: int  # pixels without a valid date


def predict(source: Path, output: Path, options: PredictOptions) -> MapResult:
    """Classify a raster window by window; memory depends on the window, not on the raster."""
    keep_large_buffers()
    picture = output.with_suffix(".png")
    if output.exists() and source.exists() and output.samefile(source):
        raise UsageError("the output is the input", path=output, remedy="choose another output with -o")
    existing = [path for path in (output, picture, names_file(output)) if path.exists()]
    if existing and not options.overwrite:
        raise UsageError("the output exists", path=existing[0], remedy="choose another with -o, or give --overwrite")
    if output.suffix.lower() not in (".tif", ".tiff"):
        raise UsageError(f"the output {output} is no GeoTIFF", remedy="give it a name that ends in .tif")

    predictor = Predictor(options.model, options.device)
    series = open_raster_series(source, predictor.card.fingerprint.bands, predictor.card.provenance.get("reading", {}))
    try:
        predictor.require_fits(series, source, any_dates=options.any_dates)
        classes = predictor.card.fingerprint.classes
        event(
            f"{source}: {series.grid.width} x {series.grid.height} pixels, {len(series.dates)} dates; "
            f"model {options.model}, margin of {predictor.halo(series)} pixels",
        )
        started = time.monotonic()
        counts = np.zeros(256, dtype=np.int64)
        tags = {
            "CROPSTAR_VERSION": __version__,
            "CROPSTAR_MODEL": predictor.digest,
            "CROPSTAR_FINGERPRINT": predictor.card.fingerprint.dumps(),
            "CROPSTAR_DATES": " ".join(day.isoformat() for day in series.dates),
        }
        total = series.grid.height * series.grid.width
        with (
            create_map(output, series.grid, classes, tags) as writer,
            progress_bar(total, "predict", "px", scale=True) as bar,
        ):
            for window in split(series.grid.shape, options.window):
                probabilities, seen = predictor.probabilities(series, window)
                chosen = np.where(seen, probabilities.argmax(axis=0), NODATA).astype(np.uint8)
                writer.write(window, chosen)
                counts += np.bincount(chosen.ravel(), minlength=256)
                bar.update(chosen.size)
        seconds = time.monotonic() - started
        area = hectares_per_pixel(series.grid)
        ground = "" if area is None else f", {total * area / seconds:,.0f} ha/s"
        event(
            f"{total:,} pixels in {seconds:.1f} s: {total / seconds:,.0f} px/s{ground}",
            pixels=total,
            seconds=seconds,
        )
    finally:
        series.close()
    title = f"Crops, {series.dates[0]} to {series.dates[-1]}"
    draw_map(picture, read_for_display(output), series.grid, classes, title=title, counts=counts)
    return MapResult(output, picture, counts[: len(classes)], int(counts[NODATA]))
