"""How large windows may be: as large as the memory allows, in whole blocks of the raster.

What a window takes, a pixel of it and of its margin: the observations, of which one window is computed, one waits and
one is being read, and what lives at once in the model. Beside it stand the program itself and GDAL's blocks. All of it
follows from the model, the series and the options alone: another start, or another shard, plans the same windows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cropstar.errors import ResourceError, UsageError
from cropstar.prediction.footprint import bytes_per_pixel
from cropstar.prediction.predictor import SERIES_AT_ONCE, Predictor
from cropstar.sources.base import Series
from cropstar.sources.workers import GDAL_CACHE_MEGABYTES

MEMORY = "2GB"
PROGRAM = 480 * 2**20  # torch, GDAL and matplotlib, without any pixel
# For what convolutions lay out anew, and for holes in the heap: ConvSTAR 4 x 32 was measured to want 1.7, from the
# peaks at windows of 256 and 512 pixels.
SPARE = 1.9
READ = 3  # windows of observations at a time
MAKING = 2  # copies of a window while it is being read
LARGEST, SMALLEST = 512, 16  # pixels a side: more than that is lost when a block is
LARGEST_WITH_MARGIN = 1024  # of which a margin of 29 pixels costs half as much as of 512
STEP = 32  # where windows cannot be whole blocks
STEP_WITH_MARGIN = 64  # with a margin no window is whole blocks: larger ones save more than the blocks' edges cost
FEWEST_SERIES = 64
UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


@dataclass(frozen=True)
class WindowPlan:
    window: int  # pixels a side, without the margin
    series_at_once: int  # of a model of series
    bytes: int  # what that takes, all in all


def parse_memory(text: str) -> int:
    """Bytes of '2GB', '1500 MB' or '2GiB'."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", text.strip().lower(), re.ASCII)
    if match is None:
        raise UsageError(f"--memory '{text}' is no amount", remedy="give it as in --memory 2GB")
    unit = 1024 ** ("kmgt".index(match[2]) + 1) if match[2] and match[3] else UNITS[match[2]]
    return int(float(match[1]) * unit)


def plan_windows(
    predictor: Predictor, series: Series, memory: int, window: int | None, block: int | None, *, beside: int = 0
) -> WindowPlan:
    """The largest windows within the memory; `window` is the user's wish, `block` the side of the raster's blocks.

    `beside` are bytes a pixel that wait to be used or written, apart from observations and scores.
    """
    dates, bands = len(series.dates), len(series.bands)
    halo, shape = predictor.halo(series), series.grid.shape
    length = predictor.length(series)
    model = bytes_per_pixel(predictor.model, len(predictor.card.fingerprint.bands), length, by_date=predictor.by_date)
    image = dates * (2 * bands + 1)  # values and validity
    reading = image * (READ + MAKING) + 4 * dates
    fixed = PROGRAM + GDAL_CACHE_MEGABYTES * 2**20

    def needed(side: int, at_once: int) -> int:
        area = min(side + 2 * halo, shape[0]) * min(side + 2 * halo, shape[1])
        together = area if predictor.model.spatial else min(at_once, area)
        # Of models that see the season at once all of it stands there as float numbers, too.
        whole = 0 if predictor.by_date and predictor.model.spatial else 8 * dates * bands
        scores = 12 * predictor.card.shape["classes"]
        return int(fixed + area * (reading + scores + beside) + together * (model + whole) * SPARE)

    most = memory - fixed
    at_once = SERIES_AT_ONCE
    while not predictor.model.spatial and at_once > FEWEST_SERIES and at_once * model * SPARE > most / 2:
        at_once //= 2
    for side in [window] if window else _sides(block, halo):
        if needed(side, at_once) <= memory:
            return WindowPlan(side, at_once, needed(side, at_once))
    least = needed(window or SMALLEST, FEWEST_SERIES)
    why = f"windows of {window or SMALLEST} pixels and a margin of {halo} take {least / 1e9:.2f} GB"
    remedy = "give --memory more, or a smaller --window" if window else "give --memory more, or bound the --halo"
    raise ResourceError(f"{memory / 1e9:.2f} GB are not enough", why=why, remedy=remedy)


def _sides(block: int | None, halo: int) -> list[int]:
    """What to try, the best first: whole blocks where there is no margin; where not even one fits, parts of it."""
    if halo:
        return [*range(LARGEST_WITH_MARGIN, 0, -STEP_WITH_MARGIN), STEP, SMALLEST]
    whole = range(LARGEST // block * block, 0, -block) if block and block <= LARGEST else ()
    smaller = range(min(block or LARGEST, LARGEST) // STEP * STEP, 0, -STEP)
    return [*whole, *(side for side in smaller if side not in whole), SMALLEST]
