"""A scene read for drawing, a block at a time: a small picture of each date, and curves by class.

The pictures are decimated to some hundred pixels per side; the curves are of every labelled pixel or sample. The images
of a collection are laid side by side on a contact sheet.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.geo.calendar import YEAR, from_days
from cropstar.geo.grid import Grid, enclosing_grid
from cropstar.geo.windows import Window, split
from cropstar.reports.contents import StoredTile
from cropstar.reports.drawing import nearest_pixels
from cropstar.runtime import track
from cropstar.store.classes import UNLABELLED
from cropstar.store.fingerprint import Fingerprint
from cropstar.store.reader import Image, TileReader

LONGEST_SIDE = 480  # pixels of the canvas
BLOCK = 96  # pixels per side read at once: two chunks; 70 dates of 13 bands are 17 MB
RED_GREEN_BLUE = (("B04", "B03", "B02"), ("B08", "B04", "B03"), ("B11", "B08", "B04"), ("B12", "B11", "B8A"))


@dataclass(frozen=True)
class Overview:
    """A scene decimated to a small canvas: every n-th pixel, never a mixture of pixels."""

    grid: Grid
    bands: tuple[str, ...]  # shown as red, green and blue
    days: NDArray[np.int32]  # (T,) that have a picture
    picture: NDArray[Any]  # (T, 3, h, w) stored integers
    valid: NDArray[np.bool_]  # (T, h, w)
    clear: NDArray[np.float64]  # (T,) share of all pixels
    labels: NDArray[np.int16]  # (h, w)
    parcels: NDArray[np.int32]  # (h, w)
    pixels: NDArray[np.int64]  # of each class, all of them
    curves: Curves
    radar: NDArray[np.bool_]  # (T,): of several sensors, the dates that only another one than the first has
    contact: ContactSheet | None = None  # of images side by side; None where the canvas is one piece of ground

    @property
    def area(self) -> int:
        """Pixels that the canvas stands for, before decimation."""
        if self.contact:
            return self.contact.images * self.contact.image.height * self.contact.image.width
        return self.grid.height * self.grid.width


def choose_colours(bands: tuple[str, ...]) -> tuple[str, ...]:
    """True colour where its bands are there, else a usual false colour, else what there is."""
    for wanted in RED_GREEN_BLUE:
        if set(wanted) <= set(bands):
            return wanted
    return bands[:3] if len(bands) >= 3 else (bands[0],) * 3


def read_overview(tiles: list[StoredTile], longest: int = LONGEST_SIDE) -> Overview:
    """All tiles of one scene, or some images of a collection on a contact sheet.

    The curves are of every labelled pixel of these, only the pictures are decimated.
    """
    readers = [tile.reader for tile in tiles]
    fingerprint = readers[0].fingerprint
    collection = readers[0].layout == "patches"
    mosaic = contact_mosaic(readers) if collection else _scene_mosaic(readers)
    grid = mosaic.grid
    step = math.ceil(max(grid.shape) / longest)
    steps = min(step, grid.height), min(step, grid.width)
    height, width = (len(range(one // 2, side, one)) for one, side in zip(steps, grid.shape, strict=True))
    every_day = np.unique(np.concatenate([image.days for image in mosaic.images]))
    days = choose_days(mosaic, every_day) if collection else every_day
    binned = _align_seasons(every_day, fingerprint) if collection else every_day
    positions = np.unique(binned)
    contact = None
    if collection:
        shown = np.zeros((1 + len(days), height, width), dtype=bool)
        total = sum(len(reader.images) for reader in readers)
        contact = ContactSheet(total, len(mosaic.images), mosaic.images[0].grid, every_day, shown[0], shown[1:])
    overview = Overview(
        grid,
        choose_colours(fingerprint.bands),
        days,
        np.zeros((len(days), 3, height, width), dtype=mosaic.images[0].values(Window(0, 0, 1, 1)).dtype),
        np.zeros((len(days), height, width), dtype=bool),
        np.zeros(len(days)),
        np.full((height, width), UNLABELLED, dtype=np.int16),
        np.zeros((height, width), dtype=np.int32),
        np.zeros(len(fingerprint.classes), dtype=np.int64),
        Curves(fingerprint, positions),
        ~np.isin(days, np.concatenate([image.days[_of_first(image)] for image in mosaic.images])),
        contact,
    )
    blocks = [
        (image, corner, window)
        for image, corner in zip(mosaic.images, mosaic.corners, strict=True)
        for window in split(image.grid.shape, BLOCK)
    ]
    seen = np.zeros(len(days))
    places = np.searchsorted(positions, binned)  # on the curves, of each day of `every_day`
    for image, corner, window in track(blocks, len(blocks), "draw", "block"):
        on_curves = places[np.searchsorted(every_day, image.days)]
        # Where two sensors saw a day, the first one's picture is shown, and its clear share.
        own = _of_first(image) | np.isin(image.days, days[overview.radar])
        shown_dates = np.flatnonzero(np.isin(image.days, days) & own)
        np.add.at(seen, np.searchsorted(days, image.days[shown_dates]), window.height * window.width)
        _read_block(overview, image, corner, window, steps, on_curves, shown_dates)
    overview.clear[:] /= np.maximum(seen, 1)
    return overview


def _read_block(
    overview: Overview,
    image: Image,
    corner: tuple[int, int],
    window: Window,
    steps: tuple[int, int],
    on_curves: NDArray[np.intp],
    shown_dates: NDArray[np.intp],
) -> None:
    targets = np.searchsorted(overview.days, image.days[shown_dates])
    valid, labels = image.valid(window), image.labels(window)
    np.add.at(overview.clear, targets, valid[shown_dates].sum(axis=(1, 2)))
    inside_rows, rows = _decimated(corner[0] + window.top, window.height, steps[0])
    inside_columns, columns = _decimated(corner[1] + window.left, window.width, steps[1])
    inside = (inside_rows, inside_columns)
    overview.labels[rows, columns] = labels[inside]
    overview.parcels[rows, columns] = image.parcels(window)[inside]
    if overview.contact:
        overview.contact.covered[rows, columns] = True
        overview.contact.dated[targets, rows, columns] = True
    labelled = labels != UNLABELLED
    overview.pixels[:] += np.bincount(labels[labelled], minlength=len(overview.pixels))
    on_canvas = valid[(slice(None), *inside)]
    if not on_canvas.any() and not (valid & labelled).any():
        return  # nothing to be seen here: the values stay unread
    values = image.values(window)  # (T, C, h, w)
    bands = [image.fingerprint.bands.index(band) for band in overview.bands]
    first = _of_first(image)
    for date, target in zip(shown_dates, targets, strict=True):
        shown = bands if first[date] else [_first_band(image, date)] * 3
        overview.valid[target, rows, columns] = on_canvas[date]
        overview.picture[target, :, rows, columns] = values[date][(shown, *inside)]
    for date, position in enumerate(on_curves):
        if not first[date]:
            continue
        overview.curves.add(int(position), values[date], np.where(valid[date], labels, UNLABELLED))


def _of_first(image: Image) -> NDArray[np.bool_]:
    """(T,): which dates are of the first sensor."""
    return np.ones(len(image.days), dtype=bool) if image.sensors is None else image.sensors == 0


def _first_band(image: Image, date: int) -> int:
    assert image.sensors is not None
    return int(image.fingerprint.columns[int(image.sensors[date])].start)


def _decimated(start: int, length: int, step: int) -> tuple[slice, slice]:
    """The lines of a block that fall on the canvas: where in the block, and where on the canvas."""
    first = -(-(start - step // 2) // step)  # the first canvas line whose source lies at or after the start
    source = first * step + step // 2 - start
    count = len(range(source, length, step))
    return slice(source, length, step), slice(first, first + count)


# --- where images lie


@dataclass(frozen=True)
class Mosaic:
    """Images on one grid, and the row and column in it where each begins."""

    grid: Grid
    images: list[Image]
    corners: list[tuple[int, int]]


def _scene_mosaic(readers: Sequence[TileReader]) -> Mosaic:
    """The raster tiles of one scene where they were cut out."""
    grid, corners = enclosing_grid([reader.grid for reader in readers])
    return Mosaic(grid, list(readers), corners)


# --- contact sheets

MOST_IMAGES = 64
MOST_PICTURED = 12
GAP = 0.08  # of an image's side
PAPER = 255  # white, between the images


@dataclass(frozen=True)
class ContactSheet:
    """The images on the canvas, and where each of them and each of its dates lies."""

    total: int  # images of the scene, of which some are shown
    images: int
    image: Grid  # of the first of them
    days: NDArray[np.int32]  # all dates, of which some are shown
    covered: NDArray[np.bool_]  # (h, w) of the canvas: an image lies here
    dated: NDArray[np.bool_]  # (D, h, w): and it has this date


def contact_mosaic(readers: Sequence[TileReader]) -> Mosaic:
    """Evenly spread images of one scene, row by row on a grid as square as they allow."""
    every = [image for reader in readers for image in reader.images]
    places = np.linspace(0, len(every) - 1, min(MOST_IMAGES, len(every))).round().astype(int)
    chosen = [every[place] for place in places]
    grids = [image.grid for image in chosen]
    height, width = max(grid.height for grid in grids), max(grid.width for grid in grids)
    gap = max(1, round(GAP * max(height, width)))
    columns = math.ceil(math.sqrt(len(chosen) * height / width))
    columns = min(columns, len(chosen))
    rows = math.ceil(len(chosen) / columns)
    corners = [(place // columns * (height + gap), place % columns * (width + gap)) for place in range(len(chosen))]
    a, b, _, d, e, _ = grids[0].transform
    whole = Grid(grids[0].crs, (a, b, 0.0, d, e, 0.0), rows * (height + gap) - gap, columns * (width + gap) - gap)
    return Mosaic(whole, chosen, corners)


def choose_days(mosaic: Mosaic, days: NDArray[np.int32]) -> NDArray[np.int32]:
    """All dates if they are few, else of each stretch of them the one with the most clear pixels of these images:
    one that many images have and that few clouds hide."""
    if len(days) <= MOST_PICTURED:
        return days
    clear = np.zeros(len(days), dtype=np.int64)
    for image in mosaic.images:
        whole = Window(0, 0, image.grid.height, image.grid.width)
        np.add.at(clear, np.searchsorted(days, image.days), image.valid(whole).sum(axis=(1, 2)))
    stretches = np.array_split(np.arange(len(days)), MOST_PICTURED)
    return days[[int(stretch[clear[stretch].argmax()]) for stretch in stretches]]


def leave_blank(picture: NDArray[np.uint8], shown: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """The picture (h, w, 3) with bare paper wherever the canvas under it shows nothing."""
    height, width = picture.shape[:2]
    return np.where(shown[nearest_pixels(shown.shape, width, height)][..., None], picture, np.uint8(PAPER))


# --- curves by class

Floats = NDArray[np.float64]

BINS = 200  # of the histograms that percentiles are read from: a hundredth of the index
RANGES = {"NDVI": (-1.0, 1.0)}  # of anything else: reflectance from 0 to 1
NEAR_INFRARED = ("B08", "B8A", "B07")


@dataclass(frozen=True)
class Quantity:
    """The quantity of a curve: NDVI, or plain reflectance where a band for it is missing."""

    name: str
    bands: tuple[int, ...]

    @property
    def range(self) -> tuple[float, float]:
        return RANGES.get(self.name, (0.0, 1.0))

    def of(self, reflectance: list[Floats]) -> Floats:
        """From the reflectance of its bands, each (N,); not a number where it is not defined."""
        if len(reflectance) == 1:
            return reflectance[0]
        infrared, red = (np.maximum(band, 0.0) for band in reflectance)
        return _divide(infrared - red, infrared + red)


def choose_quantities(bands: Sequence[str]) -> list[Quantity]:
    infrared = next((band for band in NEAR_INFRARED if band in bands), None)
    if infrared and "B04" in bands:
        return [Quantity("NDVI", (bands.index(infrared), bands.index("B04")))]
    return [Quantity(band, (place,)) for place, band in enumerate(bands[:2])]


@dataclass
class Curves:
    """Sums and histograms of every quantity, date and class, filled piece by piece."""

    fingerprint: Fingerprint
    positions: NDArray[np.int32]  # (P,) sorted days
    quantities: list[Quantity] = field(init=False)
    _counts: NDArray[np.int64] = field(init=False)
    _sums: Floats = field(init=False)
    _histograms: NDArray[np.int32] = field(init=False)

    def __post_init__(self) -> None:
        self.quantities = choose_quantities(self.fingerprint.bands)
        shape = (len(self.quantities), len(self.positions), len(self.fingerprint.classes))
        self._counts, self._sums = np.zeros(shape, dtype=np.int64), np.zeros(shape)
        self._histograms = np.zeros((*shape, BINS), dtype=np.int32)

    def add(self, position: int, values: NDArray[Any], labels: NDArray[Any]) -> None:
        """Valid observations of one date: stored values (C, ...) and their classes (...)."""
        known = labels != UNLABELLED
        scale, offset = self.fingerprint.scale, self.fingerprint.offset
        for number, quantity in enumerate(self.quantities):
            result = quantity.of([values[band, known] * scale + offset for band in quantity.bands])
            finite = np.isfinite(result)
            result, classes = result[finite], labels[known][finite].astype(np.intp)
            size = len(self.fingerprint.classes)
            self._counts[number, position] += np.bincount(classes, minlength=size)
            self._sums[number, position] += np.bincount(classes, weights=result, minlength=size)
            low, high = quantity.range
            bins = np.clip((result - low) / (high - low) * BINS, 0, BINS - 1).astype(np.intp)
            flat = np.bincount(classes * BINS + bins, minlength=size * BINS)
            self._histograms[number, position] += flat.reshape(size, BINS).astype(np.int32)

    def mean(self, quantity: int, number: int) -> Floats:
        """(P,) of one class; not a number on dates without an observation."""
        return _divide(self._sums[quantity, :, number], self._counts[quantity, :, number])

    def percentile(self, quantity: int, number: int, share: float) -> Floats:
        histogram = self._histograms[quantity, :, number].cumsum(axis=1)  # (P, BINS)
        total = histogram[:, -1:]
        low, high = self.quantities[quantity].range
        place = (histogram < share * total).sum(axis=1) + 0.5
        return np.where(total[:, 0] > 0, low + place / BINS * (high - low), np.nan)

    def present(self) -> list[int]:
        """The classes that have a curve, the most observed first."""
        totals = self._counts[0].sum(axis=0)
        return [int(number) for number in np.argsort(-totals, kind="stable") if totals[number]]


def _divide(above: NDArray[Any], below: NDArray[Any]) -> Floats:
    """NaN where the divisor is zero."""
    result: Floats = np.divide(above, below, out=np.full(above.shape, np.nan), where=below > 0)
    return result


# --- curves of samples with dates of their own

MOST_SAMPLES = 6000  # read one by one: enough for a mean that does not move
MOST_POSITIONS = 40
NEIGHBOURS = 4  # days that count as one where several years lie on each other


def read_sample_curves(tiles: list[StoredTile], fingerprint: Fingerprint) -> tuple[Curves, int, int]:
    """Mean curves, the number of samples used and the total; several years are overlaid."""
    total = sum(len(tile.reader.starts) - 1 for tile in tiles)
    step = max(1, math.ceil(total / MOST_SAMPLES))
    days = np.unique(np.concatenate([np.unique(tile.reader.days) for tile in tiles]))
    binned = _align_seasons(days, fingerprint)
    curves = Curves(fingerprint, np.unique(binned))
    places = np.searchsorted(curves.positions, binned)  # of each day of `days`
    used = 0
    for tile in tiles:
        labels = tile.reader.table.labels
        for index in range(0, len(labels), step):
            values, valid, sample_days = tile.reader.sample(index)
            if tile.reader.sensors is not None:  # curves are of the first sensor
                own = tile.reader.sensors[tile.reader.starts[index] : tile.reader.starts[index + 1]]
                valid = valid & (own == 0)
            used += 1
            position = places[np.searchsorted(days, sample_days)]
            for place in np.unique(position[valid]):
                rows = (position == place) & valid
                curves.add(int(place), values[rows].T, np.full(int(rows.sum()), labels[index]))
    return curves, used, total


def _align_seasons(days: NDArray[np.int32], fingerprint: Fingerprint) -> NDArray[np.int32]:
    """For each of the sorted days the day of one season that its observations are drawn at."""
    moved = _onto_one_season(days, fingerprint)
    # Leap years and orbits shift the dates of one year against another's by a few days.
    return _gather(moved, 0 if moved is days else NEIGHBOURS)


def _gather(days: NDArray[np.int32], reach: int) -> NDArray[np.int32]:
    """Each day as the first of its neighbours within reach, which grows until there are few enough."""
    while True:
        firsts: list[int] = []
        for day in np.unique(days):
            if not firsts or day - firsts[-1] > reach:
                firsts.append(int(day))
        if len(firsts) <= MOST_POSITIONS:
            break
        reach += 1
    starts = np.array(firsts, dtype=np.int32)
    gathered: NDArray[np.int32] = starts[np.searchsorted(starts, days, side="right") - 1]
    return gathered


def _onto_one_season(days: NDArray[np.int32], fingerprint: Fingerprint) -> NDArray[np.int32]:
    """Move the days of later years to the first one; seasons longer than a year are not changed."""
    if fingerprint.season.length >= YEAR or int(days[-1]) - int(days[0]) < YEAR:
        return days
    dates = from_days(days)
    start = fingerprint.season.start
    since = [int((day.timetuple().tm_yday - start) % YEAR) for day in dates]
    return np.array([int(days[0]) - since[0] + one for one in since], dtype=np.int32)
