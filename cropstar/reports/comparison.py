"""Finished runs side by side, as a table and as a picture: figures on test parcels, costs, validation curves."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cropstar.config import read_config
from cropstar.errors import ArtifactError, CropstarError
from cropstar.reports.drawing import INK, MUTED, Ruler, encode, house_style, new_figure, style_axes
from cropstar.reports.results import CONFIG, PLURALS, RESULT, damaged, read_result, with_interval
from cropstar.reports.wording import DASH, count, duration, percent, plural, printable, score
from cropstar.store.files import atomic_path
from cropstar.store.gate import read_json

if TYPE_CHECKING:
    from matplotlib.axes import Axes


LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
Interval = list[float] | None


@dataclass(frozen=True)
class LevelScores:
    overall_accuracy: float | None
    overall_accuracy_interval: Interval
    macro_f1: float | None
    macro_f1_interval: Interval


@dataclass(frozen=True)
class RunRow:
    """A run in one line."""

    run: str
    folder: str
    model: str
    layers: int
    hidden: int
    parameters: int
    store: str
    split: str
    by_pixel: bool  # the split
    test_parcels: int
    parcel: LevelScores
    pixel: LevelScores | None  # None: the run judges parcels alone
    unit: str  # what `pixel` counts: pixels, or dates of series; parcels where there is none
    ece: float | None  # after calibration
    seconds: float | None
    samples_per_second: float | None
    epochs: list[int]
    validation: list[float | None]  # macro-F1 of each epoch
    best_epoch: int | None
    tested_on: tuple[str, str, str]  # data, test parcels and classes, as text to be compared


@dataclass(frozen=True)
class Comparison:
    rows: list[RunRow]  # the best first, by the macro-F1 of parcels
    groups: list[list[str]]  # folders of runs that were tested on the same

    def group_of(self, row: RunRow) -> str:
        place = next(place for place, folders in enumerate(self.groups) if row.folder in folders)
        return LETTERS[place] if place < len(LETTERS) else str(place + 1)

    def warnings(self) -> list[str]:
        """Warnings that the table alone would not give."""
        warnings = []
        if len(self.groups) > 1:
            kinds = zip(("stores", "test parcels", "classes"), *(row.tested_on for row in self.rows), strict=True)
            different = ", ".join(name for name, *found in kinds if len(set(found)) > 1)
            warnings.append(
                f"not all of these runs are comparable: their {different} differ; those with the same letter are"
            )
        optimistic = [row.run for row in self.rows if row.by_pixel]
        if optimistic:
            warnings.append(
                f"split by pixel, so tested on fields that training saw, which is optimistic: {', '.join(optimistic)}"
            )
        return warnings

    @property
    def finer(self) -> str:
        """The unit counted beside parcels, in the plural; empty where there is none."""
        return "/".join(dict.fromkeys(PLURALS[row.unit] for row in self.rows if row.pixel))

    def to_json(self) -> dict[str, Any]:
        rows = [{**asdict(row), "tested_alike": self.group_of(row)} for row in self.rows]
        for row in rows:
            del row["tested_on"]
        return {"runs": rows, "comparable": len(self.groups) == 1, "warnings": self.warnings()}


def compare_runs(folders: Sequence[Path]) -> Comparison:
    """Compare runs, each once, however often it is named."""
    rows = [read_row(folder) for folder in dict.fromkeys(folder.resolve() for folder in folders)]
    rows.sort(key=lambda row: (-(row.parcel.macro_f1 if row.parcel.macro_f1 is not None else -1.0), row.run))
    groups: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        groups.setdefault(row.tested_on, []).append(row.folder)
    return Comparison(rows, list(groups.values()))


def read_row(folder: Path) -> RunRow:
    result = read_result(folder)
    try:
        return _row(folder, result)
    except CropstarError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as failure:
        raise damaged(folder / RESULT, f"{type(failure).__name__}: {failure}") from None


def _row(folder: Path, result: dict[str, Any]) -> RunRow:
    model, split, test, history = result["model"], result["split"], result["test"], result["history"]
    unit = _unit(folder, result)
    calibration, throughput = result.get("calibration"), result["throughput"]
    return RunRow(
        run=printable(folder.name),
        folder=str(folder),
        model=printable(str(model["name"])),
        layers=int(model["layers"]),
        hidden=int(model["hidden"]),
        parameters=int(model["parameters"]),
        store=str(result["data"]["store"]),
        split=_split_words(split),
        by_pixel=split["by"] == "pixel",
        test_parcels=sum(map(int, split["counts"]["test"])),
        parcel=_level(test["parcel"]),
        pixel=_level(test["pixel"]) if unit != "parcel" else None,
        unit=unit,
        ece=_number(calibration["after"]["ece"]) if calibration else None,
        seconds=_number(throughput["seconds"]),
        samples_per_second=_number(throughput["samples_per_second"]),
        epochs=[int(row["epoch"]) for row in history],
        validation=[_number((row.get("validation") or {}).get("macro_f1")) for row in history],
        best_epoch=None if result["best_epoch"] is None else int(result["best_epoch"]),
        tested_on=_tested_on(folder, result),
    )


def _unit(folder: Path, result: dict[str, Any]) -> str:
    """Results of earlier versions do not say it."""
    unit = result["test"].get("unit")
    if unit in PLURALS:
        return str(unit)
    pooled = (folder / CONFIG).exists() and read_config(folder / CONFIG).get("target") == "parcel"
    return "pixel" if result["data"]["resolution"] and not pooled else "parcel"


def _tested_on(folder: Path, result: dict[str, Any]) -> tuple[str, str, str]:
    """By content, not by path: a store that was moved is still the same."""
    split = result["split"]
    members = split["parcels"]["test"] if "parcels" in split else {key: split[key] for key in split if key != "counts"}
    classes = [entry["name"] for entry in result["classes"]]
    data = folder / "data.json"
    try:
        scenes = read_json(data)["scenes"] if data.is_file() else result["data"]["store"]
    except (ValueError, KeyError, TypeError) as failure:
        why = f"{type(failure).__name__}: {failure}"
        raise ArtifactError(
            "the data of the run cannot be read", path=data, why=why, remedy="leave the run out"
        ) from None
    stores, parcels, names = (json.dumps(part, sort_keys=True) for part in (scenes, members, classes))
    return stores, parcels, names


def _split_words(split: dict[str, Any]) -> str:
    words = str(split["name"] if split["by"] == "name" else split["by"])
    fold = f" {split['fold']}/{split['folds']}" if "folds" in split else ""
    return printable(f"{words}{fold}, seed {split['seed']}")


def _level(figures: dict[str, Any]) -> LevelScores:
    known = figures.get("intervals", {})
    pairs = ((_number(figures[key]), _interval(known.get(key))) for key in ("overall_accuracy", "macro_f1"))
    (accuracy, around_accuracy), (f1, around_f1) = pairs
    return LevelScores(accuracy, around_accuracy, f1, around_f1)


def _interval(value: Any) -> Interval:
    if value is None:
        return None
    low, high = map(float, value)
    return [low, high] if math.isfinite(low) and math.isfinite(high) else None


def _number(value: Any) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def format_comparison(comparison: Comparison) -> str:
    """Two tables: the accuracy of the runs, and their settings and cost."""
    rows = comparison.rows
    grouped, finer = len(comparison.groups) > 1, comparison.finer
    figures = [["run", "macro-F1", "accuracy", "ECE", "parcels"]]
    if finer:
        figures[0][3:3] = [f"macro-F1, {finer}", f"accuracy, {finer}"]
    if grouped:
        figures[0].append("tested")
    costs = [["run", "model", "layers", "parameters", "split", "time", "samples/s"]]
    for row in rows:
        by_pixel = _pair(row.pixel) if row.pixel else [DASH, DASH]
        letter = [comparison.group_of(row)] if grouped else []
        cells = [*_pair(row.parcel), *(by_pixel if finer else []), percent(row.ece), count(row.test_parcels)]
        figures.append([row.run, *cells, *letter])
        trained = row.parameters > 0  # a forest has neither layers nor weights
        size = f"{row.layers}\u00d7{row.hidden}" if trained else DASH
        weights = count(row.parameters) if trained else DASH
        speed = score(row.samples_per_second) if (row.samples_per_second or 10) < 10 else count(row.samples_per_second)
        costs.append([row.run, row.model, size, weights, row.split, duration(row.seconds), speed])
    return "\n".join([*_table(figures, left=(0,)), "", *_table(costs, left=(0, 1, 4))])


def _pair(level: LevelScores) -> list[str]:
    return [
        with_interval(level.macro_f1, level.macro_f1_interval),
        with_interval(level.overall_accuracy, level.overall_accuracy_interval),
    ]


def _table(lines: list[list[str]], left: tuple[int, ...]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            f"{cell:<{width}}" if place in left else f"{cell:>{width}}"
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


# --- picture

WIDTH = 11.0  # inches
TOP, BOTTOM, ROW = 0.85, 0.62, 0.42
LEAST = 2.6  # height of the panels
NAMES = 2.1
MOST_ROWS = 60
# Told apart by the colour-blind too; runs beyond them are grey.
COLOURS = ("#2f6f4e", "#c8701b", "#3b6fb5", "#a8327d", "#8a7a17", "#2aa1a8", "#7a4fb0", "#6b4a34")
REST = "#a9b1ac"


def draw_comparison(path: Path, comparison: Comparison) -> None:
    """Draw the best runs first; if there are too many, the figure says how many it shows."""
    rows = comparison.rows[:MOST_ROWS]
    colours = [COLOURS[place] if place < len(COLOURS) else REST for place in range(len(rows))]
    panel = max(LEAST, ROW * len(rows))
    height = TOP + panel + BOTTOM
    with house_style():
        figure = new_figure(WIDTH, height)
        lower, share = BOTTOM / height, panel / height
        left = figure.add_axes(((NAMES + 0.25) / WIDTH, lower, 3.7 / WIDTH, share))
        right = figure.add_axes(((NAMES + 4.75) / WIDTH, lower, (WIDTH - NAMES - 5.0) / WIDTH, share))
        _draw_scores(left, comparison, rows, colours)
        _draw_curves(right, rows, colours)
        first = f", the best {len(rows)} of {len(comparison.rows)}" if len(rows) < len(comparison.rows) else ""
        title = f"{plural(len(comparison.rows), 'run')} on their test parcels{first}"
        figure.text(0.2 / WIDTH, 1 - 0.3 / height, title, fontsize=12, fontweight="bold", va="center")
        if len(comparison.groups) > 1:
            note = "Tested on different data: only runs with the same letter are comparable."
            figure.text(1 - 0.25 / WIDTH, 1 - 0.3 / height, note, fontsize=9, va="center", ha="right", color=COLOURS[1])
        picture = encode(figure, "png")
    with atomic_path(path) as partial:
        partial.write_bytes(picture)


def _draw_scores(axes: Axes, comparison: Comparison, rows: list[RunRow], colours: list[str]) -> None:
    ruler, small = Ruler(8.5, "bold"), Ruler(7)
    finer = comparison.finer.replace("pixels", "pixel").replace("dates", "date")
    for place, (row, colour) in enumerate(zip(rows, colours, strict=True)):
        if place % 2 == 0:
            axes.axhspan(place - 0.5, place + 0.5, color="#f5f7f5", linewidth=0, zorder=0)
        _draw_level(axes, row.parcel, place - (0.14 if row.pixel else 0.0), colour, filled=True)
        if row.pixel:
            _draw_level(axes, row.pixel, place + 0.18, colour, filled=False)
        letter = f" {comparison.group_of(row)}" if len(comparison.groups) > 1 else ""
        name = ruler.shorten(row.run, NAMES - 0.1 - ruler.width(letter)) + letter
        about = small.shorten(f"{row.model} {row.layers}\u00d7{row.hidden}, {row.split}", NAMES - 0.1)
        right_of = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "ha": "right", "va": "center"}
        name_colour = INK if colour == REST else colour
        axes.annotate(name, (0, place), xytext=(-8, 5), fontsize=8.5, fontweight="bold", color=name_colour, **right_of)  # type: ignore[arg-type]
        axes.annotate(about, (0, place), xytext=(-8, -6), fontsize=7, color=MUTED, **right_of)  # type: ignore[arg-type]
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(*_limits(rows))
    axes.set_yticks([])
    axes.set_xticks([tick for tick in axes.get_xticks() if axes.get_xlim()[0] <= tick < 1 + 1e-9])  # no F1 is above 1
    style_axes(axes, "x")
    axes.set_xlabel("macro-F1, with its 95 % interval", fontsize=8.5, color=MUTED)
    key = f"\u25cf by parcel   \u25cb by {finer}" if finer else "\u25cf by parcel"
    axes.set_title(f"Test   {key}", loc="left", fontsize=9.5, color=INK)


def _draw_level(axes: Axes, level: LevelScores, height: float, colour: str, *, filled: bool) -> None:
    if level.macro_f1 is None:
        return
    if level.macro_f1_interval:
        width = 2.2 if filled else 1.2
        axes.plot(level.macro_f1_interval, [height, height], color=colour, linewidth=width, zorder=2, alpha=0.75)
    face = colour if filled else "white"
    axes.plot([level.macro_f1], [height], "o", markersize=6, color=face, mec=colour, mew=1.4, zorder=3, clip_on=False)
    axes.annotate(
        score(level.macro_f1),
        (max([level.macro_f1, *(level.macro_f1_interval or [])]), height),
        xytext=(6, -0.5),
        textcoords="offset points",
        fontsize=7,
        color=MUTED,
        va="center",
    )


def _limits(rows: list[RunRow]) -> tuple[float, float]:
    """All intervals, and room for the figures beside them."""
    levels = [level for row in rows for level in (row.parcel, row.pixel) if level]
    values = [value for level in levels for value in (level.macro_f1, *(level.macro_f1_interval or ()))]
    known = [value for value in values if value is not None] or [0.0, 1.0]
    low, high = max(0.0, math.floor(min(known) * 20 - 0.5) / 20), min(1.0, math.ceil(max(known) * 20) / 20)
    return low, high + 0.12 * max(high - low, 0.05)


def _draw_curves(axes: Axes, rows: list[RunRow], colours: list[str]) -> None:
    from matplotlib.ticker import MaxNLocator

    # The best is drawn last, above the others.
    for place in reversed(range(len(rows))):
        row, colour = rows[place], colours[place]
        values = [math.nan if value is None else value for value in row.validation]
        above = 3 + (len(rows) - place) / len(rows)
        dots = "o" if len(values) <= 30 else None
        axes.plot(row.epochs, values, color=colour, linewidth=1.5, marker=dots, markersize=2.6, zorder=above)
        if row.best_epoch in row.epochs:
            best = row.epochs.index(row.best_epoch)
            ring = {"markersize": 7, "color": "white", "mec": colour, "mew": 1.6, "zorder": above}
            axes.plot([row.best_epoch], [values[best]], "o", **ring)  # type: ignore[arg-type]
    last = max((epoch for row in rows for epoch in row.epochs), default=1)
    axes.set_xlim(0.5, last + 0.5)
    axes.margins(y=0.1)
    lowest, highest = axes.get_ylim()
    axes.set_ylim(max(lowest, -0.02), min(highest, 1.02))
    style_axes(axes)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))
    axes.set_xlabel("epoch; a ring marks the one that was kept", fontsize=8.5, color=MUTED)
    axes.set_title("Validation   macro-F1 by epoch", loc="left", fontsize=9.5, color=INK)
