"""The inspection sheet of a scene: a picture of every date, the labelled parcels, and the season of each class."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import InputError, UsageError
from cropstar.geo.calendar import from_days, to_days
from cropstar.geo.grid import hectares_per_pixel
from cropstar.reports.contents import TileSet
from cropstar.reports.drawing import (
    DPI,
    HAIRLINE,
    INK,
    MUTED,
    Ruler,
    describe,
    draw_scale,
    encode,
    house_style,
    nearest_pixels,
    new_sheet,
    place_pixels,
    style_axes,
    whole_pixels,
)
from cropstar.reports.map import NODATA_GROUND, Legend, LegendEntry, drawn_size, is_true_to_scale
from cropstar.reports.overview import Curves, Overview, leave_blank, read_overview, read_sample_curves
from cropstar.reports.wording import MONTHS, areas, shares
from cropstar.store.classes import UNLABELLED, ClassTable, rgb
from cropstar.store.files import atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from cropstar.geo.grid import Grid
    from cropstar.store.fingerprint import Fingerprint


# In inches, as all lengths on the sheet.
PANEL_GAP = 0.13
CAPTION = 0.2  # the date above each picture
HEAD = 0.36  # a section's heading
STRIP = 0.42  # the scale bar's room
TALLEST, BEST_HEIGHT = 7.8, 5.5  # all pictures together
LARGEST, LARGEST_MAP = 2.6, 3.9
MOST_DATES = 48
SERIES_WIDTH = 9.0


@dataclass(frozen=True)
class PanelLayout:
    """The arrangement of the pictures of the dates: columns and rows of panels of one size in pixels."""

    columns: int
    rows: int
    width: int
    height: int

    @property
    def total(self) -> float:
        return self.rows * (self.height / DPI + CAPTION + PANEL_GAP) - PANEL_GAP


def draw_sheet(path: Path, tile_set: TileSet, *, scene: str | None = None) -> None:
    """Write the PNG of one scene of images (the largest unless named), or the curves of all samples of a table."""
    if scene is not None and scene not in tile_set.scenes:
        known = ", ".join(tile_set.scenes)
        raise UsageError(f"unknown scene '{scene}'", path=tile_set.path, why=f"known: {known}")
    images = [tile for tile in tile_set.tiles if tile.reader.layout != "series" and scene in (None, tile.scene)]
    if images:
        scenes = sorted({tile.scene for tile in images})
        chosen = max(scenes, key=lambda name: sum(tile.bytes for tile in tile_set.of_scene(name)))
        overview = read_overview(tile_set.of_scene(chosen))
        with house_style():
            png = _image_sheet(overview, tile_set.fingerprint, _name(tile_set, chosen), len(scenes))
    elif tile_set.tiles:
        with house_style():
            png = _series_sheet(tile_set, scene)
    else:
        raise InputError("nothing to draw", path=tile_set.path, why="the store has no tiles")
    with atomic_path(path) as partial:
        partial.write_bytes(png)


def arrange_panels(grid: Grid, number: int) -> PanelLayout:
    """Large pictures in full rows that are not too tall together: the best balance of these."""
    candidates = []
    for columns in range(min(number, 3), max(min(number, 12), 3) + 1):
        room = int(min((WIDTH - (columns - 1) * PANEL_GAP) / columns, LARGEST) * DPI)
        longest = int(min(room * max(1.0, grid.height / grid.width), LARGEST * 1.35 * DPI))
        width, height = drawn_size(grid, longest)
        while width > room:
            longest -= 1
            width, height = drawn_size(grid, longest)
        places = PanelLayout(columns, math.ceil(number / columns), width, height)
        empty = 1 - number / (places.columns * places.rows)
        cost = empty + 0.08 * abs(places.total - BEST_HEIGHT) + max(places.total - TALLEST, 0)
        candidates.append((cost, columns, places))
    return min(candidates, key=lambda candidate: candidate[:2])[2]


def _image_sheet(overview: Overview, fingerprint: Fingerprint, name: str, scenes: int) -> bytes:
    classes = fingerprint.classes
    dates = _chosen_dates(len(overview.days))
    places = arrange_panels(overview.grid, len(dates))
    map_width, map_height = drawn_size(overview.grid, int(LARGEST_MAP * DPI))
    legend = Legend(_entries(overview, fingerprint), rows=max(int(map_height / DPI / 0.235) - 1, 12))
    right = MARGIN + map_width / DPI + 0.3 + legend.width + 0.45
    curves_width = MARGIN + WIDTH - right
    body = max(map_height / DPI + STRIP, legend.height)
    multiples, wide = (SmallMultiples.for_width(overview.curves, width) for width in (max(curves_width, 0.0), WIDTH))
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

    days = overview.contact.days if overview.contact else overview.days
    first, last = (_date_words(day) for day in (days[0], days[-1]))
    more = f" \u00b7 the largest of {scenes} scenes" if scenes > 1 else ""
    span = f"{len(days)} dates, {first} to {last}" if len(days) > 1 else first
    _draw_title(axes, name, f"{_size_words(overview, fingerprint.resolution)} \u00b7 {span}{more}")
    _draw_dates(figure, axes, overview, dates, places, top)

    best = int(np.argmax(np.where(overview.radar, -1, overview.clear)))
    ground = paint_date(overview, best, stretch(overview), map_width, map_height)
    _draw_heading(axes, MARGIN, middle, "Labels", f"over the image of {_date_words(overview.days[best])}")
    labels = paint_labels(overview, classes, map_width, map_height, ground)
    if overview.contact:
        labels = leave_blank(labels, overview.contact.covered)
    _place_image(figure, axes, labels, MARGIN, middle + HEAD)
    if not overview.contact and is_true_to_scale(overview.grid, map_width, map_height):
        draw_scale(axes, overview.grid, MARGIN, middle + HEAD + map_height / DPI + 0.13, map_width / DPI)
    legend.draw(axes, MARGIN + map_width / DPI + 0.3, middle + HEAD)
    if below:
        right, middle = MARGIN, middle + HEAD + body + 0.2
        body = multiples.least_height
    _draw_curves(figure, axes, multiples, right, middle, curves_width, body)
    return encode(figure, "png")


def _series_sheet(tile_set: TileSet, scene: str | None) -> bytes:
    tiles = [tile for tile in tile_set.tiles if scene in (None, tile.scene)]
    curves, used, total = read_sample_curves(tiles, tile_set.fingerprint)
    multiples = SmallMultiples.for_width(curves, SERIES_WIDTH)
    height = max(multiples.rows * 1.7 + 0.3, multiples.least_height)
    top = MARGIN + 0.62
    figure, axes = new_sheet(whole_pixels(SERIES_WIDTH + 2 * MARGIN), whole_pixels(top + HEAD + height + MARGIN))
    scenes = sorted({tile.scene for tile in tiles})
    samples = f"{total:,} samples" if used == total else f"1 in {math.ceil(total / used)} of {total:,} samples"
    pooled = f" \u00b7 {len(scenes)} scenes in one season" if len(scenes) > 1 else ""
    name = _name(tile_set, scenes[0] if len(scenes) == 1 else "")
    _draw_title(axes, name, f"{samples} \u00b7 {len(curves.fingerprint.bands)} bands{pooled}", SERIES_WIDTH)
    _draw_curves(figure, axes, multiples, MARGIN, top, SERIES_WIDTH, height)
    return encode(figure, "png")


def _draw_dates(
    figure: Figure, axes: Axes, overview: Overview, dates: list[int], places: PanelLayout, top: float
) -> None:
    true = overview.bands == ("B04", "B03", "B02")
    note = f"{', '.join(dict.fromkeys(overview.bands))}; one contrast stretch for all dates"
    if overview.radar.any():
        note += "; radar in grey"
    number = len(overview.contact.days if overview.contact else overview.days)
    if len(dates) < number:
        note += f"; {len(dates)} of {number} dates shown{', the clearest of each period' if overview.contact else ''}"
    single = len(set(overview.bands)) == 1
    head = "True colour" if true else "One band" if single else "False colour"
    end = _draw_heading(axes, MARGIN, top, head, note)
    _draw_masked_key(axes, end + 0.25, top)
    limits = stretch(overview)
    width, height = places.width / DPI, places.height / DPI
    spread = (WIDTH - places.columns * width) / max(places.columns - 1, 1)
    step = width + min(spread, 2.5 * PANEL_GAP)
    caption, small = (7.5, 7.0) if width > 1.25 else (6.3, 6.0)
    dates_ruler, shares_ruler = Ruler(caption), Ruler(small)
    for place, index in enumerate(dates):
        row, column = divmod(place, places.columns)
        left, above = MARGIN + column * step, top + HEAD + row * (height + CAPTION + PANEL_GAP)
        clear = overview.clear[index]
        text = f"{100 * clear:.0f} %" if clear in (0.0, 1.0) else f"{min(max(100 * clear, 1), 99):.0f} %"
        day = _date_words(overview.days[index], year=width > 1.25)
        axes.text(left, above + 0.13, day, fontsize=caption)
        rest = width - dates_ruler.width(day) - 0.08
        text = next((words for words in (f"{text} clear", text) if shares_ruler.width(words) < rest), "")
        if text:
            axes.text(left + width, above + 0.13, text, fontsize=small, color=MUTED, ha="right")
        _place_image(figure, axes, _date_panel(overview, index, limits, places), left, above + CAPTION)


def _date_panel(overview: Overview, index: int, limits: list[tuple[float, float]], places: PanelLayout) -> Pixels:
    limits = stretch(overview, radar=True) if overview.radar[index] else limits
    picture = paint_date(overview, index, limits, places.width, places.height)
    return leave_blank(picture, overview.contact.dated[index]) if overview.contact else picture


def _draw_curves(
    figure: Figure, axes: Axes, multiples: SmallMultiples, left: float, top: float, width: float, height: float
) -> None:
    names = [quantity.name for quantity in multiples.curves.quantities]
    what = names[0] if names[0] == "NDVI" else "Reflectance"
    note = "mean and 10th to 90th percentile of valid observations"
    if what != "NDVI":
        note = f"mean and 10th to 90th percentile of {names[0]}" + (f", dashed {names[1]}" if len(names) > 1 else "")
    hidden = len(multiples.curves.present()) - len(multiples.shown)
    if hidden:
        note += f"; {hidden} smaller classes not shown"
    room = width - Ruler(9.5, "bold").width(what) - 0.15
    _draw_heading(axes, left, top, what, Ruler(7.5).shorten(note, room))
    if multiples.shown:
        multiples.draw(figure, left, top + HEAD - 0.06, width, height + 0.06)
    else:
        axes.text(left, top + HEAD + 0.15, "no clear observation of a labelled pixel", fontsize=8, color=MUTED)


def _size_words(overview: Overview, resolution: float) -> str:
    contact = overview.contact
    if contact is None:
        return describe(overview.grid)
    some = f"{contact.images} of {contact.total:,}" if contact.images < contact.total else str(contact.total)
    return f"{some} {'image' if contact.total == 1 else 'images'} of {describe(contact.image, resolution)}"


def _entries(overview: Overview, fingerprint: Fingerprint) -> list[LegendEntry]:
    """The classes present, the largest first; shares are of what is labelled."""
    classes = fingerprint.classes
    pixels = overview.pixels
    present = sorted((entry for entry in classes if pixels[entry.number]), key=lambda entry: -pixels[entry.number])
    counts = [int(overview.pixels[entry.number]) for entry in present]
    rest = overview.area - sum(counts)
    hectares = hectares_per_pixel(overview.grid, fingerprint.resolution)
    texts = [""] * (len(counts) + 1) if hectares is None else areas([number * hectares for number in (*counts, rest)])
    parts = shares([number / max(sum(counts), 1) for number in counts])
    entries = [
        LegendEntry(entry.name, entry.colour, area, share)
        for entry, area, share in zip(present, texts[:-1], parts, strict=True)
    ]
    return [*entries, LegendEntry("no label", BARE_GROUND, texts[-1], "")] if rest > 0 else entries


def _name(tile_set: TileSet, scene: str) -> str:
    """The store's name and the scene's, unless one holds the other."""
    name = tile_set.path.resolve().stem if tile_set.kind == "tile" else tile_set.path.resolve().name
    return name if not scene or name.startswith(scene) else f"{name} \u00b7 {scene}"


def _chosen_dates(number: int) -> list[int]:
    """All dates, or as many as a sheet holds, evenly through the season."""
    if number <= MOST_DATES:
        return list(range(number))
    return [int(place) for place in np.linspace(0, number - 1, MOST_DATES).round()]


# --- parts of the sheet

MARGIN = 0.35  # inches, as all lengths on the sheet
WIDTH = 12.0  # without the margins


def _draw_title(axes: Axes, title: str, line: str, width: float = WIDTH) -> None:
    """The sheet's name and a line on what it shows."""
    axes.text(MARGIN, MARGIN + 0.12, Ruler(14, "bold").shorten(title, width), fontsize=14, weight="bold")
    axes.text(MARGIN, MARGIN + 0.36, Ruler(8.5).shorten(line, width), fontsize=8.5, color=MUTED)


def _draw_heading(axes: Axes, left: float, top: float, head: str, note: str) -> float:
    """A section's name and a note in grey; returns where they end."""
    axes.text(left, top + 0.12, head, fontsize=9.5, weight="bold")
    start = left + Ruler(9.5, "bold").width(head) + 0.12
    axes.text(start, top + 0.12, note, fontsize=7.5, color=MUTED)
    return start + Ruler(7.5).width(note)


def _draw_masked_key(axes: Axes, left: float, top: float) -> None:
    """The key of the hatch in the pictures."""
    from matplotlib.patches import Rectangle

    box = Rectangle((left, top + 0.005), 0.2, 0.13, linewidth=0)
    box.set(facecolor=MASKED_GROUND, edgecolor=MASKED_LINES, hatch="//////")
    axes.add_patch(box)
    axes.text(left + 0.27, top + 0.12, "cloud, shadow or no data", fontsize=7.5, color=MUTED)


def _place_image(figure: Figure, axes: Axes, picture: NDArray[np.uint8], left: float, top: float) -> None:
    """Pixel by pixel, with a hairline just outside."""
    from matplotlib.patches import Rectangle

    height, width = picture.shape[:2]
    sheet = round(figure.get_size_inches()[1] * DPI)
    column, row = round(left * DPI), round(top * DPI)
    place_pixels(figure, picture, column, sheet - row - height)
    corner = ((column - 0.5) / DPI, (row - 0.5) / DPI)
    axes.add_patch(Rectangle(corner, (width + 1) / DPI, (height + 1) / DPI, fill=False, edgecolor=HAIRLINE, lw=0.4))


def _date_words(day: int, *, year: bool = True) -> str:
    """'3 Apr 2019'."""
    shown = from_days([int(day)])[0]
    return f"{shown.day} {MONTHS[shown.month - 1]}" + (f" {shown.year}" if year else "")


# --- pictures of dates and labels

Pixels = NDArray[np.uint8]  # (h, w, 3)

UNLABELLED_PARCEL = "#d9dcd6"
MASKED_GROUND, MASKED_LINES = "#e2e4df", "#b3b8b0"  # greyer than a map's missing data: bare fields are bright
GAMMA = 0.85  # crops are dark: a little light makes fields tell apart
OUTLINE = 0.62  # how dark the border of a parcel is against its inside
PALEST = 140  # grey of black ground beside the parcels
BARE_GROUND = "#b4b4b4"  # and of middling ground, in the legend


def stretch(overview: Overview, *, radar: bool = False) -> list[tuple[float, float]]:
    """The 2nd and the 98th percentile of each colour over the valid pixels of all dates, of radar by itself."""
    ends = []
    dates = overview.radar == radar
    for band in range(3):
        seen = overview.picture[dates, band][overview.valid[dates]]
        low, high = np.percentile(seen, (2, 98)) if seen.size else (0.0, 1.0)
        ends.append((float(low), float(max(high, low + 1e-6))))
    # Blue varies least: stretched as far as red it would tint soils violet, so it meets the widest half-way.
    widest = max(high - low for low, high in ends)
    return [(low, low + (high - low + widest) / 2) for low, high in ends]


def paint_date(overview: Overview, index: int, limits: list[tuple[float, float]], width: int, height: int) -> Pixels:
    """One date at the size of its panel; masked pixels carry the hatch of missing data."""
    places = nearest_pixels(overview.labels.shape, width, height)
    picture = np.empty((height, width, 3), dtype=np.uint8)
    for band, (low, high) in enumerate(limits):
        light = (overview.picture[index, band][places].astype(np.float32) - low) / (high - low)
        picture[..., band] = np.round(255 * np.clip(light, 0, 1) ** GAMMA)
    masked = ~overview.valid[index][places]
    lines = np.add.outer(np.arange(height), np.arange(width)) % 9 < 2
    picture[masked] = rgb(MASKED_GROUND)
    picture[masked & lines] = rgb(MASKED_LINES)
    return picture


def paint_labels(
    overview: Overview, classes: ClassTable, width: int, height: int, ground: Pixels | None = None
) -> Pixels:
    """The classes in their colours, every parcel with a darker border; where there is none, `ground` in pale grey."""
    places = nearest_pixels(overview.labels.shape, width, height)
    labels, parcels = overview.labels[places], overview.parcels[places]
    colours = np.array([rgb(NODATA_GROUND), *(entry.rgb for entry in classes)], dtype=np.uint8)
    picture = colours[np.where(labels == UNLABELLED, 0, labels + 1)]  # (h, w, 3)
    if ground is not None:  # shows whether outlines lie on the fields
        bare = parcels == 0
        picture[bare] = np.round(PALEST + (255 - PALEST) * ground[bare].mean(axis=1, keepdims=True) / 255)
    picture[(labels == UNLABELLED) & (parcels != 0)] = rgb(UNLABELLED_PARCEL)
    border = np.zeros(parcels.shape, dtype=bool)
    border[:, 1:] |= parcels[:, 1:] != parcels[:, :-1]
    border[1:] |= parcels[1:] != parcels[:-1]
    border[:, :-1] |= parcels[:, 1:] != parcels[:, :-1]
    border[:-1] |= parcels[1:] != parcels[:-1]
    border &= parcels != 0
    picture[border] = np.round(picture[border] * OUTLINE).astype(np.uint8)
    return picture


# --- season curves as small multiples

MOST_PLOTS = 24  # plots on a sheet
NARROWEST, LOWEST = 1.5, 0.98  # inches of a plot with its title
LEFT, BOTTOM = 0.32, 0.24  # room for the numbers
TITLE = 0.2
PLOT_GAP = 0.16
BAND = (0.1, 0.9)
SHADOW = "#e3e7e3"


@dataclass(frozen=True)
class SmallMultiples:
    """A grid of small plots whose size is known before they are drawn."""

    curves: Curves
    shown: list[int]
    columns: int

    @classmethod
    def for_width(cls, curves: Curves, width: float) -> SmallMultiples:
        shown = curves.present()[:MOST_PLOTS]
        columns = max(1, min(len(shown), int((width - LEFT + PLOT_GAP) / NARROWEST)))
        rows = math.ceil(len(shown) / columns)
        return cls(curves, shown, math.ceil(len(shown) / max(rows, 1)) or 1)

    @property
    def rows(self) -> int:
        return math.ceil(len(self.shown) / self.columns)

    @property
    def least_height(self) -> float:
        return self.rows * LOWEST + BOTTOM

    def draw(self, figure: Figure, left: float, top: float, width: float, height: float) -> None:
        across, down = figure.get_size_inches()
        cell_width = (width - LEFT + PLOT_GAP) / self.columns
        cell_height = (height - BOTTOM) / max(self.rows, 1)
        low, high = self._limits()
        for place, number in enumerate(self.shown):
            row, column = divmod(place, self.columns)
            x, y = left + LEFT + column * cell_width, top + row * cell_height + TITLE
            plot_width, plot_height = cell_width - PLOT_GAP, cell_height - TITLE - 0.06
            box = (x / across, 1 - (y + plot_height) / down, plot_width / across, plot_height / down)
            axes = figure.add_axes(box)
            self._plot(axes, number)
            axes.set_ylim(low, high)
            self._tidy(axes, first=column == 0, last=place + self.columns >= len(self.shown), width=plot_width)
            entry = self.curves.fingerprint.classes[number]
            name = Ruler(7.5).shorten(entry.name, plot_width - 0.14)
            axes.text(0.0, 1.0, "\u25a0", transform=_points(axes, 0, 3.4), fontsize=7.5, color=entry.colour)
            axes.text(0.0, 1.0, name, transform=_points(axes, 8.5, 4), fontsize=7.5, color=INK)

    def _plot(self, axes: Axes, number: int) -> None:
        days = self.curves.positions
        for other in self.shown:
            if other != number:
                mean = self.curves.mean(0, other)
                known = np.isfinite(mean)
                axes.plot(days[known], mean[known], color=SHADOW, linewidth=0.6, zorder=1)
        colour = self.curves.fingerprint.classes[number].colour
        for quantity in range(len(self.curves.quantities)):
            mean = self.curves.mean(quantity, number)
            known = np.isfinite(mean)
            if quantity == 0:
                lower, upper = (self.curves.percentile(0, number, share)[known] for share in BAND)
                axes.fill_between(days[known], lower, upper, color=colour, alpha=0.32, linewidth=0, zorder=2)
            style = "-" if quantity == 0 else (0, (3, 1.5))
            marker = {"marker": "o", "markersize": 1.8} if known.sum() <= 30 else {}
            axes.plot(days[known], mean[known], color=_darker(colour), lw=1.3, linestyle=style, zorder=3, **marker)  # type: ignore[arg-type]

    def _limits(self) -> tuple[float, float]:
        """One axis for all plots, so that classes compare; from zero unless something lies below."""
        edges = [0.0]
        for number in self.shown:
            for quantity in range(len(self.curves.quantities)):
                edges += [float(value) for value in self.curves.mean(quantity, number)]
            for share in BAND:
                edges += [float(value) for value in self.curves.percentile(0, number, share)]
        known = [value for value in edges if math.isfinite(value)]
        step = 0.1 if max(known) > 0.4 else 0.05
        return max(math.floor(min(known) / step) * step, -0.3), max(math.ceil(max(known) / step), 1) * step

    def _tidy(self, axes: Axes, *, first: bool, last: bool, width: float) -> None:
        from matplotlib.ticker import MaxNLocator

        style_axes(axes, label_size=6.2, line=0.4, pad=2)
        axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
        ticks, words = _month_ticks(self.curves.positions, room=max(2, int(width / 0.36)))
        axes.set_xticks(ticks, words if last else [""] * len(words))
        axes.tick_params(axis="x", length=2, color=HAIRLINE)
        if len(ticks) == 2:  # the ends of a short season: their words stay within the plot
            early, late = axes.get_xticklabels()
            early.set_horizontalalignment("left")
            late.set_horizontalalignment("right")
        days = self.curves.positions
        margin = max((int(days[-1]) - int(days[0])) * 0.03, 1.0)
        axes.set_xlim(float(days[0]) - margin, float(days[-1]) + margin)
        if not first:
            axes.set_yticklabels([])


def _month_ticks(days: np.ndarray[tuple[int, ...], np.dtype[np.int32]], room: int) -> tuple[list[int], list[str]]:
    """The first days of months within the dates, no more than there is room for; the dates themselves if short."""
    first, last = from_days([int(days[0]), int(days[-1])])
    months = []
    month = date(first.year, first.month, 1)
    while month <= last:
        if month >= first:
            months.append(month)
        month = (month + timedelta(days=32)).replace(day=1)
    if len(months) < 2:
        ends = [first] if first == last else [first, last]
        return [int(day) for day in to_days(ends)], [f"{day.day} {MONTHS[day.month - 1]}" for day in ends]
    months = months[:: math.ceil(len(months) / room)]
    years = len({day.year for day in months}) > 1
    words = [f"{MONTHS[day.month - 1]}{f' {day.year % 100:02d}' if years else ''}" for day in months]
    return [int(day) for day in to_days(months)], words


def _points(axes: Axes, right: float, up: float):  # type: ignore[no-untyped-def]
    """The upper left corner of a plot, moved by some points."""
    from matplotlib.transforms import offset_copy

    return offset_copy(axes.transAxes, fig=axes.figure, x=right, y=up, units="points")  # type: ignore[arg-type]


def _darker(colour: str) -> str:
    """A pale class must still be a line on white."""
    return "#" + "".join(f"{round(part * 0.78):02x}" for part in rgb(colour))
