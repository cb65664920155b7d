"""The picture sheet of a scene: every date, the labelled parcels, and the season of each class."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import InputError, UsageError
from cropstar.geo.calendar import from_days
from cropstar.reports.canvas import DPI, HAIRLINE, MUTED, encode, house_style, new_sheet
from cropstar.reports.contents import Holding
from cropstar.reports.ground import describe, hectares_per_pixel
from cropstar.reports.legend import Entry, Legend
from cropstar.reports.lettering import Ruler
from cropstar.reports.painting import NODATA_GROUND, drawn_size, is_true_to_scale
from cropstar.reports.panels import MASKED_GROUND, MASKED_LINES, Pixels, paint_date, paint_labels, stretch
from cropstar.reports.samples import read_curves
from cropstar.reports.scalebar import draw_scale
from cropstar.reports.seasons import MONTHS, Multiples
from cropstar.reports.thinning import Thinned, thin
from cropstar.reports.wording import areas, shares
from cropstar.store.atomic import atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from cropstar.geo.grid import Grid
    from cropstar.store.classes import ClassTable

MARGIN = 0.35  # inches, as all lengths on the sheet
WIDTH = 12.0  # without the margins
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
    """Write the PNG of one raster scene (the largest unless named), or the curves of all samples of a table."""
    if scene is not None and scene not in holding.scenes:
        known = ", ".join(holding.scenes)
        raise UsageError(f"unknown scene '{scene}'", path=holding.path, why=f"known: {known}")
    raster = [piece for piece in holding.pieces if piece.reader.layout == "raster" and scene in (None, piece.scene)]
    if raster:
        scenes = sorted({piece.scene for piece in raster})
        chosen = max(scenes, key=lambda name: sum(piece.bytes for piece in holding.of_scene(name)))
        thinned = thin(holding.of_scene(chosen))
        with house_style():
            png = _raster_sheet(thinned, holding.fingerprint.classes, _name(holding, chosen), len(scenes))
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


def _raster_sheet(thinned: Thinned, classes: ClassTable, name: str, scenes: int) -> bytes:
    dates = _chosen_dates(len(thinned.days))
    places = place_panels(thinned.grid, len(dates))
    map_width, map_height = drawn_size(thinned.grid, int(LARGEST_MAP * DPI))
    legend = Legend(_entries(thinned, classes), rows=max(int(map_height / DPI / 0.235) - 1, 12))
    right = MARGIN + map_width / DPI + 0.3 + legend.width + 0.45
    curves_width = MARGIN + WIDTH - right
    below = curves_width < 2.2  # a legend of many columns leaves no room beside it
    if below:
        curves_width = WIDTH
    multiples = Multiples.for_width(thinned.curves, curves_width)
    body = max(map_height / DPI + STRIP, legend.height)
    if not below:
        body = max(body, multiples.least_height)
    top = MARGIN + 0.62
    middle = top + HEAD + places.total + 0.34
    bottom = middle + HEAD + body + (HEAD + multiples.least_height + 0.2 if below else 0.0)
    figure, axes = new_sheet(_whole(WIDTH + 2 * MARGIN), _whole(bottom + 0.8 * MARGIN))

    first, last = (_date_words(day) for day in (thinned.days[0], thinned.days[-1]))
    more = f" \u00b7 the largest of {scenes} scenes" if scenes > 1 else ""
    span = f"{len(thinned.days)} dates, {first} to {last}" if len(thinned.days) > 1 else first
    _title(axes, name, f"{describe(thinned.grid)} \u00b7 {span}{more}")
    _draw_dates(figure, axes, thinned, dates, places, top)

    _heading(axes, MARGIN, middle, "Labels", "a darker line is the border of a parcel")
    _image(figure, axes, paint_labels(thinned, classes, map_width, map_height), MARGIN, middle + HEAD)
    if is_true_to_scale(thinned.grid, map_width, map_height):
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
    figure, axes = new_sheet(_whole(SERIES_WIDTH + 2 * MARGIN), _whole(top + HEAD + height + MARGIN))
    scenes = sorted({piece.scene for piece in pieces})
    samples = f"{total:,} samples" if used == total else f"every {math.ceil(total / used)}th of {total:,} samples"
    pooled = f" \u00b7 {len(scenes)} scenes on one season" if len(scenes) > 1 else ""
    name = _name(holding, scenes[0] if len(scenes) == 1 else "")
    _title(axes, name, f"{samples} \u00b7 {len(curves.fingerprint.bands)} bands{pooled}", SERIES_WIDTH)
    _draw_curves(figure, axes, multiples, MARGIN, top, SERIES_WIDTH, height)
    return encode(figure, "png")


def _draw_dates(figure: Figure, axes: Axes, thinned: Thinned, dates: list[int], places: Places, top: float) -> None:
    true = thinned.bands == ("B04", "B03", "B02")
    note = f"{', '.join(dict.fromkeys(thinned.bands))}; one stretch for all dates"
    if len(dates) < len(thinned.days):
        note += f"; {len(dates)} of {len(thinned.days)} dates shown"
    single = len(set(thinned.bands)) == 1
    head = "True colour" if true else "One band" if single else "False colour"
    end = _heading(axes, MARGIN, top, head, note)
    _masked_key(axes, end + 0.25, top)
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
        day = _date_words(thinned.days[date], year=width > 1.25)
        axes.text(left, above + 0.13, day, fontsize=caption)
        rest = width - dates_ruler.width(day) - 0.08
        text = next((words for words in (f"{text} clear", text) if shares_ruler.width(words) < rest), "")
        if text:
            axes.text(left + width, above + 0.13, text, fontsize=small, color=MUTED, ha="right")
        _image(figure, axes, paint_date(thinned, date, limits, places.width, places.height), left, above + CAPTION)


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
    _heading(axes, left, top, what, Ruler(7.5).shorten(note, room))
    if multiples.shown:
        multiples.draw(figure, left, top + HEAD - 0.06, width, height + 0.06)
    else:
        axes.text(left, top + HEAD + 0.15, "no clear observation of a labelled pixel", fontsize=8, color=MUTED)


def _entries(thinned: Thinned, classes: ClassTable) -> list[Entry]:
    """The classes present, the largest first; shares are of what is labelled."""
    pixels = thinned.pixels
    present = sorted((entry for entry in classes if pixels[entry.number]), key=lambda entry: -pixels[entry.number])
    counts = [int(thinned.pixels[entry.number]) for entry in present]
    rest = thinned.grid.height * thinned.grid.width - sum(counts)
    hectares = hectares_per_pixel(thinned.grid)
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


def _title(axes: Axes, title: str, line: str, width: float = WIDTH) -> None:
    axes.text(MARGIN, MARGIN + 0.12, Ruler(14, "bold").shorten(title, width), fontsize=14, weight="bold")
    axes.text(MARGIN, MARGIN + 0.36, Ruler(8.5).shorten(line, width), fontsize=8.5, color=MUTED)


def _heading(axes: Axes, left: float, top: float, head: str, note: str) -> float:
    """A section's name and a quiet word on it; returns where they end."""
    axes.text(left, top + 0.12, head, fontsize=9.5, weight="bold")
    start = left + Ruler(9.5, "bold").width(head) + 0.12
    axes.text(start, top + 0.12, note, fontsize=7.5, color=MUTED)
    return start + Ruler(7.5).width(note)


def _masked_key(axes: Axes, left: float, top: float) -> None:
    from matplotlib.patches import Rectangle

    box = Rectangle((left, top + 0.005), 0.2, 0.13, linewidth=0)
    box.set(facecolor=MASKED_GROUND, edgecolor=MASKED_LINES, hatch="//////")
    axes.add_patch(box)
    axes.text(left + 0.27, top + 0.12, "cloud, shadow or no data", fontsize=7.5, color=MUTED)


def _image(figure: Figure, axes: Axes, picture: Pixels | NDArray[np.uint8], left: float, top: float) -> None:
    """Pixel by pixel, with a hairline just outside."""
    from matplotlib.patches import Rectangle

    height, width = picture.shape[:2]
    sheet = round(figure.get_size_inches()[1] * DPI)
    column, row = round(left * DPI), round(top * DPI)
    figure.figimage(picture, column, sheet - row - height)
    corner = ((column - 0.5) / DPI, (row - 0.5) / DPI)
    axes.add_patch(Rectangle(corner, (width + 1) / DPI, (height + 1) / DPI, fill=False, edgecolor=HAIRLINE, lw=0.4))


def _date_words(day: int, *, year: bool = True) -> str:
    date = from_days([int(day)])[0]
    return f"{date.day} {MONTHS[date.month - 1]}" + (f" {date.year}" if year else "")


def _whole(inches: float) -> float:
    return math.ceil(inches * DPI) / DPI
