"""The picture sheet of a scene: every date, the labelled parcels, and the season of each class."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cropstar.errors import InputError, UsageError
from cropstar.geo.ground import hectares_per_pixel
from cropstar.reports.canvas import DPI, MUTED, encode, house_style, new_sheet
from cropstar.reports.contact import leave_blank
from cropstar.reports.contents import Holding
from cropstar.reports.ground import describe
from cropstar.reports.legend import Entry, Legend
from cropstar.reports.lettering import Ruler
from cropstar.reports.painting import NODATA_GROUND, drawn_size, is_true_to_scale
from cropstar.reports.panels import Pixels, paint_date, paint_labels, stretch
from cropstar.reports.samples import read_curves
from cropstar.reports.scalebar import draw_scale
from cropstar.reports.seasons import Multiples
from cropstar.reports.sheet_parts import (
    MARGIN,
    WIDTH,
    date_words,
    draw_heading,
    draw_masked_key,
    draw_title,
    place_image,
    whole_pixels,
)
from cropstar.reports.thinning import Thinned, thin
from cropstar.reports.wording import areas, shares
from cropstar.store.atomic import atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from cropstar.geo.grid import Grid
    from cropstar.store.fingerprint import Fingerprint

# In inches, as all lengths on the sheet.
GAP = 0.13
CAPTION = 0.2  # the date above each picture
HEAD = 0.36  # a section's heading
STRIP = 0.42  # the scale bar's room
TALLEST, BEST_HEIGHT = 7.8, 5.5  # all pictures together
LARGEST, LARGEST_MAP = 2.6, 3.9
MOST_DATES = 48
SERIES_WIDTH = 9.0


@dataclass(frozen=True)
class Places:
    """How the pictures of the dates lie: so many columns of panels of one size in pixels."""

    columns: int
    rows: int
    width: int
    height: int

    @property
    def total(self) -> float:
        return self.rows * (self.height / DPI + CAPTION + GAP) - GAP


def draw_sheet(path: Path, holding: Holding, *, scene: str | None = None) -> None:
    """Write the PNG of one scene of images (the largest unless named), or the curves of all samples of a table."""
    if scene is not None and scene not in holding.scenes:
        known = ", ".join(holding.scenes)
        raise UsageError(f"unknown scene '{scene}'", path=holding.path, why=f"known: {known}")
    images = [piece for piece in holding.pieces if piece.reader.layout != "series" and scene in (None, piece.scene)]
    if images:
        scenes = sorted({piece.scene for piece in images})
        chosen = max(scenes, key=lambda name: sum(piece.bytes for piece in holding.of_scene(name)))
        thinned = thin(holding.of_scene(chosen))
        with house_style():
            png = _image_sheet(thinned, holding.fingerprint, _name(holding, chosen), len(scenes))
    elif holding.pieces:
        with house_style():
            png = _series_sheet(holding, scene)
    else:
        raise InputError("nothing to draw", path=holding.path, why="the store has no tiles")
    with atomic_path(path) as partial:
        partial.write_bytes(png)


def place_panels(grid: Grid, number: int) -> Places:
    """Large pictures in full rows that are not too tall together: the best balance of these."""
    candidates = []
    for columns in range(min(number, 3), max(min(number, 12), 3) + 1):
        room = int(min((WIDTH - (columns - 1) * GAP) / columns, LARGEST) * DPI)
        longest = int(min(room * max(1.0, grid.height / grid.width), LARGEST * 1.35 * DPI))
        width, height = drawn_size(grid, longest)
        while width > room:
            longest -= 1
            width, height = drawn_size(grid, longest)
        places = Places(columns, math.ceil(number / columns), width, height)
        empty = 1 - number / (places.columns * places.rows)
        cost = empty + 0.08 * abs(places.total - BEST_HEIGHT) + max(places.total - TALLEST, 0)
        candidates.append((cost, columns, places))
    return min(candidates, key=lambda candidate: candidate[:2])[2]


def _image_sheet(thinned: Thinned, fingerprint: Fingerprint, name: str, scenes: int) -> bytes:
    classes = fingerprint.classes
    dates = _chosen_dates(len(thinned.days))
    places = place_panels(thinned.grid, len(dates))
    map_width, map_height = drawn_size(thinned.grid, int(LARGEST_MAP * DPI))
    legend = Legend(_entries(thinned, fingerprint), rows=max(int(map_height / DPI / 0.235) - 1, 12))
    right = MARGIN + map_width / DPI + 0.3 + legend.width + 0.45
    curves_width = MARGIN + WIDTH - right
    body = max(map_height / DPI + STRIP, legend.height)
    multiples, wide = (Multiples.for_width(thinned.curves, width) for width in (max(curves_width, 0.0), WIDTH))
    # A legend of many columns leaves no room beside it, and many curves in a narrow column would be a long strip.
    below = curves_width < 2.2 or multiples.least_height > body + HEAD + wide.least_height + 0.2
    if below:
        curves_width, multiples = WIDTH, wide
    else:
        body = max(body, multiples.least_height)
    top = MARGIN + 0.62
    middle = top + HEAD + places.total + 0.34
    bottom = middle + HEAD + body + (HEAD + multiples.least_height + 0.2 if below else 0.0)
    figure, axes = new_sheet(whole_pixels(WIDTH + 2 * MARGIN), whole_pixels(bottom + 0.8 * MARGIN))

    days = thinned.contact.days if thinned.contact else thinned.days
    first, last = (date_words(day) for day in (days[0], days[-1]))
    more = f" \u00b7 the largest of {scenes} scenes" if scenes > 1 else ""
    span = f"{len(days)} dates, {first} to {last}" if len(days) > 1 else first
    draw_title(axes, name, f"{_size_words(thinned, fingerprint.resolution)} \u00b7 {span}{more}")
    _draw_dates(figure, axes, thinned, dates, places, top)

    draw_heading(axes, MARGIN, middle, "Labels", "a darker line is the border of a parcel")
    labels = paint_labels(thinned, classes, map_width, map_height)
    if thinned.contact:
        labels = leave_blank(labels, thinned.contact.covered)
    place_image(figure, axes, labels, MARGIN, middle + HEAD)
    if not thinned.contact and is_true_to_scale(thinned.grid, map_width, map_height):
        draw_scale(axes, thinned.grid, MARGIN, middle + HEAD + map_height / DPI + 0.13, map_width / DPI)
    legend.draw(axes, MARGIN + map_width / DPI + 0.3, middle + HEAD)
    if below:
        right, middle = MARGIN, middle + HEAD + body + 0.2
        body = multiples.least_height
    _draw_curves(figure, axes, multiples, right, middle, curves_width, body)
    return encode(figure, "png")


def _series_sheet(holding: Holding, scene: str | None) -> bytes:
    pieces = [piece for piece in holding.pieces if scene in (None, piece.scene)]
    curves, used, total = read_curves(pieces, holding.fingerprint)
    multiples = Multiples.for_width(curves, SERIES_WIDTH)
    height = max(multiples.rows * 1.7 + 0.3, multiples.least_height)
    top = MARGIN + 0.62
    figure, axes = new_sheet(whole_pixels(SERIES_WIDTH + 2 * MARGIN), whole_pixels(top + HEAD + height + MARGIN))
    scenes = sorted({piece.scene for piece in pieces})
    samples = f"{total:,} samples" if used == total else f"every {math.ceil(total / used)}th of {total:,} samples"
    pooled = f" \u00b7 {len(scenes)} scenes on one season" if len(scenes) > 1 else ""
    name = _name(holding, scenes[0] if len(scenes) == 1 else "")
    draw_title(axes, name, f"{samples} \u00b7 {len(curves.fingerprint.bands)} bands{pooled}", SERIES_WIDTH)
    _draw_curves(figure, axes, multiples, MARGIN, top, SERIES_WIDTH, height)
    return encode(figure, "png")


def _draw_dates(figure: Figure, axes: Axes, thinned: Thinned, dates: list[int], places: Places, top: float) -> None:
    true = thinned.bands == ("B04", "B03", "B02")
    note = f"{', '.join(dict.fromkeys(thinned.bands))}; one stretch for all dates"
    number = len(thinned.contact.days if thinned.contact else thinned.days)
    if len(dates) < number:
        note += f"; {len(dates)} of {number} dates shown{', the clearest of each stretch' if thinned.contact else ''}"
    single = len(set(thinned.bands)) == 1
    head = "True colour" if true else "One band" if single else "False colour"
    end = draw_heading(axes, MARGIN, top, head, note)
    draw_masked_key(axes, end + 0.25, top)
    limits = stretch(thinned)
    width, height = places.width / DPI, places.height / DPI
    spread = (WIDTH - places.columns * width) / max(places.columns - 1, 1)
    step = width + min(spread, 2.5 * GAP)
    caption, small = (7.5, 7.0) if width > 1.25 else (6.3, 6.0)
    dates_ruler, shares_ruler = Ruler(caption), Ruler(small)
    for place, date in enumerate(dates):
        row, column = divmod(place, places.columns)
        left, above = MARGIN + column * step, top + HEAD + row * (height + CAPTION + GAP)
        clear = thinned.clear[date]
        text = f"{100 * clear:.0f} %" if clear in (0.0, 1.0) else f"{min(max(100 * clear, 1), 99):.0f} %"
        day = date_words(thinned.days[date], year=width > 1.25)
        axes.text(left, above + 0.13, day, fontsize=caption)
        rest = width - dates_ruler.width(day) - 0.08
        text = next((words for words in (f"{text} clear", text) if shares_ruler.width(words) < rest), "")
        if text:
            axes.text(left + width, above + 0.13, text, fontsize=small, color=MUTED, ha="right")
        place_image(figure, axes, _paint(thinned, date, limits, places), left, above + CAPTION)


def _paint(thinned: Thinned, date: int, limits: list[tuple[float, float]], places: Places) -> Pixels:
    picture = paint_date(thinned, date, limits, places.width, places.height)
    return leave_blank(picture, thinned.contact.dated[date]) if thinned.contact else picture


def _draw_curves(
    figure: Figure, axes: Axes, multiples: Multiples, left: float, top: float, width: float, height: float
) -> None:
    names = [quantity.name for quantity in multiples.curves.quantities]
    what = names[0] if names[0] == "NDVI" else "Reflectance"
    note = "mean and 10th to 90th percentile of valid observations"
    if what != "NDVI":
        note = f"mean and 10th to 90th percentile of {names[0]}" + (f", dashed {names[1]}" if len(names) > 1 else "")
    hidden = len(multiples.curves.present()) - len(multiples.shown)
    if hidden:
        note += f"; {hidden} smaller classes left out"
    room = width - Ruler(9.5, "bold").width(what) - 0.15
    draw_heading(axes, left, top, what, Ruler(7.5).shorten(note, room))
    if multiples.shown:
        multiples.draw(figure, left, top + HEAD - 0.06, width, height + 0.06)
    else:
        axes.text(left, top + HEAD + 0.15, "no clear observation of a labelled pixel", fontsize=8, color=MUTED)


def _size_words(thinned: Thinned, resolution: float) -> str:
    contact = thinned.contact
    if contact is None:
        return describe(thinned.grid)
    some = f"{contact.images} of {contact.total:,}" if contact.images < contact.total else str(contact.total)
    return f"{some} {'image' if contact.total == 1 else 'images'} of {describe(contact.image, resolution)}"


def _entries(thinned: Thinned, fingerprint: Fingerprint) -> list[Entry]:
    """The classes present, the largest first; shares are of what is labelled."""
    classes = fingerprint.classes
    pixels = thinned.pixels
    present = sorted((entry for entry in classes if pixels[entry.number]), key=lambda entry: -pixels[entry.number])
    counts = [int(thinned.pixels[entry.number]) for entry in present]
    rest = thinned.area - sum(counts)
    hectares = hectares_per_pixel(thinned.grid, fingerprint.resolution)
    texts = [""] * (len(counts) + 1) if hectares is None else areas([number * hectares for number in (*counts, rest)])
    parts = shares([number / max(sum(counts), 1) for number in counts])
    entries = [
        Entry(entry.name, entry.colour, area, share)
        for entry, area, share in zip(present, texts[:-1], parts, strict=True)
    ]
    return [*entries, Entry("no label", NODATA_GROUND, texts[-1], "")] if rest > 0 else entries


def _name(holding: Holding, scene: str) -> str:
    """The store's name and the scene's, unless one holds the other."""
    name = holding.path.resolve().stem if holding.kind == "tile" else holding.path.resolve().name
    return name if not scene or name.startswith(scene) else f"{name} \u00b7 {scene}"


def _chosen_dates(number: int) -> list[int]:
    """All dates, or as many as a sheet holds, evenly through the season."""
    if number <= MOST_DATES:
        return list(range(number))
    return [int(place) for place in np.linspace(0, number - 1, MOST_DATES).round()]
