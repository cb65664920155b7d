"""The results of a suite: one row per cell in CSV, a page of Markdown beside the paper's figures, and two figures."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from cropstar.benchmarks.lattice_plot import cell_title
from cropstar.benchmarks.tasks.base import Metric
from cropstar.reports.comparison import COLOURS, REST
from cropstar.reports.drawing import INK, MUTED, Ruler, encode, house_style, new_figure, percent_formatter, style_axes
from cropstar.reports.wording import DASH, count, duration, plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from cropstar.benchmarks.suite import MatrixEntry, SuiteOutcome


CSV_COLUMNS = (
    *("name", "task", "model", "layers", "seed", "state", "metric", "value", "validation", "ended", "budget_minutes"),
    *("epochs", "best_epoch", "seconds", "hidden", "parameters", "baseline", "paper", "run", "error"),
)
PICTURES = {"depth.png": "The metric against layers", "curves.png": "The metric on validation by epoch"}


def as_csv(outcomes: Sequence[SuiteOutcome], folder: Path) -> str:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(CSV_COLUMNS)
    for outcome in outcomes:
        cell, entry = outcome.cell, outcome.cell.entry
        known = outcome.state == "finished"
        figures = (outcome.value, outcome.validation, outcome.ended, outcome.minutes, len(outcome.curve))
        more = (outcome.best_epoch, outcome.seconds, outcome.hidden, outcome.parameters, outcome.baseline)
        run = "" if outcome.run is None else outcome.run.relative_to(folder)
        rows.writerow(
            [
                *(entry.title, entry.task, cell.model, cell.layers, cell.seed, outcome.state, outcome.metric.name),
                *(value if known and value is not None else "" for value in (*figures, *more)),
                *(dict(entry.kind.paper).get(cell.model, ""), run, outcome.error),
            ]
        )
    return text.getvalue()


def as_markdown(outcomes: Sequence[SuiteOutcome], name: str, pictures: Sequence[str]) -> str:
    finished = sum(outcome.state == "finished" for outcome in outcomes)
    failed = [outcome for outcome in outcomes if outcome.state == "failed"]
    lines = [
        f"# Results of {name}",
        "",
        f"{finished} of {plural(len(outcomes), 'cell')} finished, {len(failed)} failed. Figures are of the test part, "
        "evaluated once for each budget, with the epoch chosen on validation; for several seeds the mean \u00b1 their "
        "standard deviation. The paper's figures are for its own, full settings.",
        "",
        *(f"![{PICTURES[picture]}]({picture})\n" for picture in pictures),
    ]
    for title in dict.fromkeys(outcome.cell.entry.title for outcome in outcomes):
        lines += _section([outcome for outcome in outcomes if outcome.cell.entry.title == title])
    if failed:
        lines += ["## Failed", ""]
        lines += [f"- {titles}: {_plain(error)}" for error, titles in _failures(failed).items()]
        lines += [""]
    return "\n".join(lines)


def format_figure(metric: Metric, values: Sequence[float]) -> str:
    """The mean and, of several, the spread."""
    if not values:
        return DASH
    middle, spread = mean(values), stdev(values) if len(values) > 1 else None
    if metric.is_share:
        return f"{100 * middle:.2f}" + (f" \u00b1 {100 * spread:.2f} %" if spread is not None else " %")
    decimals = 4 if middle == 0 or not math.isfinite(middle) else max(2, 2 - math.floor(math.log10(abs(middle))))
    return f"{middle:.{decimals}f}" + (f" \u00b1 {spread:.{decimals}f}" if spread is not None else "")


def _section(outcomes: Sequence[SuiteOutcome]) -> list[str]:
    entry, metric = outcomes[0].cell.entry, outcomes[0].metric
    about = entry.kind.about
    better = "larger" if metric.larger_is_better else "smaller"
    baseline = next((outcome.baseline for outcome in outcomes if outcome.baseline is not None), None)
    without = "" if baseline is None else f" Baseline without memory: {format_figure(metric, [baseline])}."
    return [
        f"## {entry.title}",
        "",
        f"{about[:1].upper()}{about[1:]}. The {metric.words}; {better} is better.{without}{_settings(entry, outcomes)}",
        "",
        *_matrix(entry, outcomes, metric),
        "",
        *_details(outcomes),
        "",
    ]


def _settings(entry: MatrixEntry, outcomes: Sequence[SuiteOutcome]) -> str:
    parts = [] if entry.config is None else [f"those of {entry.config}"]
    parts += [f"{key}={value}" for key, value in entry.assignments.items()]
    for model, own in entry.by_model.items():
        parts += [f"{key}={value} for {model}" for key, value in own.items()]
    if entry.match_parameters is not None:
        parts.append(f"{entry.match_parameters:,} parameters by choice of width")
    # What is finished had the budget of its own day.
    minutes = [outcome.minutes if outcome.state == "finished" else outcome.cell.budget for outcome in outcomes]
    budgets = sorted({each for each in minutes if each is not None})
    parts += [f"at most {' or '.join(f'{each:g}' for each in budgets)} minutes each"] if budgets else []
    return f" Settings that differ from the defaults: {_plain(', '.join(parts))}." if parts else ""


def _matrix(entry: MatrixEntry, outcomes: Sequence[SuiteOutcome], metric: Metric) -> list[str]:
    """Models x depths, the best of each depth bold."""
    depths = sorted({outcome.cell.layers for outcome in outcomes})
    paper = dict(entry.kind.paper)
    models = list(dict.fromkeys([*(outcome.cell.model for outcome in outcomes), *paper]))
    known = {
        (model, depth): [
            outcome.value
            for outcome in outcomes
            if (outcome.cell.model, outcome.cell.layers) == (model, depth) and outcome.value is not None
        ]
        for model in models
        for depth in depths
    }
    best = {}
    for depth in depths:
        means = {model: mean(known[model, depth]) for model in models if known[model, depth]}
        if len(means) > 1:
            best[depth] = (max if metric.larger_is_better else min)(means.values())
    lines = [
        "| model | " + " | ".join(plural(depth, "layer") for depth in depths) + " | paper |",
        "| --- | " + "--: | " * len(depths) + "--- |",
    ]
    for model in models:
        shown = []
        for depth in depths:
            values = known[model, depth]
            text = format_figure(metric, values)
            shown.append(f"**{text}**" if values and mean(values) == best.get(depth) else text)
        lines.append(f"| `{model}` | " + " | ".join(shown) + f" | {_plain(paper.get(model, '')) or DASH} |")
    return lines


def _details(outcomes: Sequence[SuiteOutcome]) -> list[str]:
    lines = [
        "| model | layers | seeds | parameters | width | epochs | ended by | training |",
        "| --- | --: | --: | --: | --: | --: | --- | --: |",
    ]
    models = list(dict.fromkeys(outcome.cell.model for outcome in outcomes))
    groups: dict[tuple[str, int], list[SuiteOutcome]] = {}
    for outcome in outcomes:
        groups.setdefault((outcome.cell.model, outcome.cell.layers), []).append(outcome)
    for (model, depth), group in sorted(groups.items(), key=lambda pair: models.index(pair[0][0])):
        done = [outcome for outcome in group if outcome.state == "finished"]
        seeds = f"{len(done)} of {len(group)}" if len(done) < len(group) else str(len(done))
        seconds = [outcome.seconds for outcome in done if outcome.seconds is not None]
        columns = [
            seeds,
            _span([outcome.parameters for outcome in done]),
            _span([outcome.hidden for outcome in done]),
            _span([len(outcome.curve) for outcome in done]),
            _ends(group),
            duration(mean(seconds)) if seconds else DASH,
        ]
        lines.append(f"| `{model}` | {depth} | " + " | ".join(columns) + " |")
    return lines


def _failures(failed: Sequence[SuiteOutcome]) -> dict[str, str]:
    """The failed cells, grouped by their error line: missing data fails many cells in the same way."""
    alike: dict[str, list[str]] = {}
    for outcome in failed:
        alike.setdefault(outcome.error, []).append(outcome.cell.title)
    return {error: titles[0] + (f" and {len(titles) - 1} more" * (len(titles) > 1)) for error, titles in alike.items()}


def _ends(group: Sequence[SuiteOutcome]) -> str:
    """The reason why the runs ended; a budget with its minutes."""
    words = []
    for outcome in group:
        word = {"failed": "failure", "unfinished": "not finished"}.get(outcome.state, outcome.ended)
        words.append(f"{word} of {outcome.minutes:g} min" if word == "budget" else word)
    return ", ".join(f"{words.count(word)} x {word}" if len(set(words)) > 1 else word for word in dict.fromkeys(words))


def _span(values: Sequence[int | None]) -> str:
    known = sorted({value for value in values if value is not None})
    if not known:
        return DASH
    return count(known[0]) if len(known) == 1 else f"{count(known[0])} to {count(known[-1])}"


def _plain(text: str) -> str:
    """Text with Markdown characters escaped, for a table or list."""
    for sign in "\\|`*_<":
        text = text.replace(sign, f"\\{sign}")
    return text


# --- figures

PANEL_COLUMNS = 3
PANEL = (3.3, 2.15)  # inches
GAP = (0.72, 1.2)
CORNER = (0.8, 1.75)
MARGIN = (0.35, 0.62)
LOGARITHMIC = 8.0  # from this ratio of the largest to the smallest on, where both are above nothing
NETWORK_TITLES = {
    "tcn": "TCN",
    "transformer": "Transformer",
    "tempcnn": "TempCNN",
    "ltae": "L-TAE",
    "inceptiontime": "InceptionTime",
}
Draw = Callable[["Axes", Sequence["SuiteOutcome"], dict[str, str]], None]


def draw_depths(outcomes: Sequence[SuiteOutcome]) -> bytes | None:
    """The figure on the test part by layers, mean and spread over seeds; None while nothing is finished."""
    note = "test data; dots are seeds, bars their standard deviation, \u00d7 a failed run"
    return _draw(outcomes, "By the number of layers", note, _depths)


def draw_curves(outcomes: Sequence[SuiteOutcome]) -> bytes | None:
    """Validation by epoch, mean over seeds; None while no epoch is finished."""
    note = "validation data, mean over seeds; thicker lines have more layers"
    return _draw(outcomes, "Learning curves", note, _curves, learnt=True)


def _draw(outcomes: Sequence[SuiteOutcome], title: str, note: str, draw: Draw, *, learnt: bool = False) -> bytes | None:
    shown = [outcome for outcome in outcomes if outcome.curve or not learnt]
    done = {outcome.cell.entry.title for outcome in shown if outcome.state == "finished"}
    panels = [list(group) for name, group in groupby(shown, lambda outcome: outcome.cell.entry.title) if name in done]
    if not panels:
        return None
    colours = _colours(outcomes)  # of all: alike in both figures
    across = min(PANEL_COLUMNS, len(panels))
    down = math.ceil(len(panels) / PANEL_COLUMNS)
    width = CORNER[0] + across * PANEL[0] + (across - 1) * GAP[0] + MARGIN[0]
    height = CORNER[1] + down * PANEL[1] + (down - 1) * GAP[1] + MARGIN[1]
    with house_style():
        width = max(width, Ruler(8).width(note) + 0.6)
        figure = new_figure(width, height)
        figure.text(0.25 / width, 1 - 0.3 / height, title, fontsize=11, fontweight="bold")
        figure.text(0.25 / width, 1 - 0.5 / height, note, fontsize=8, color=MUTED)
        drawn = {_family(outcome.cell.model) for panel in panels for outcome in panel}
        _legend(figure, {name: colour for name, colour in colours.items() if name in drawn}, width, height)
        for place, panel in enumerate(panels):
            left = CORNER[0] + place % PANEL_COLUMNS * (PANEL[0] + GAP[0])
            top = CORNER[1] + place // PANEL_COLUMNS * (PANEL[1] + GAP[1])
            box = (left / width, 1 - (top + PANEL[1]) / height, PANEL[0] / width, PANEL[1] / height)
            axes = figure.add_axes(box)
            draw(axes, panel, colours)
            _finish(axes, panel)
        return encode(figure, "png")


def _family(model: str) -> str:
    """A cell is known by one colour, over series and over images."""
    return model.removeprefix("conv")


def _title(model: str) -> str:
    return NETWORK_TITLES.get(model) or cell_title(model)


def _colours(outcomes: Sequence[SuiteOutcome]) -> dict[str, str]:
    """STAR has the house's green in every figure; the others follow in the order of the suite."""
    families = sorted(
        dict.fromkeys(_family(outcome.cell.model) for outcome in outcomes), key=lambda name: name != "star"
    )
    free = COLOURS if "star" in families else COLOURS[1:]
    return {name: free[place] if place < len(free) else REST for place, name in enumerate(families)}


def _legend(figure: Figure, colours: dict[str, str], width: float, height: float) -> None:
    ruler, left = Ruler(8.5, "bold"), 0.27
    for name, colour in colours.items():
        title = _title(name)
        if left + 0.2 + ruler.width(title) > width - 0.2:
            break
        figure.text(left / width, 1 - 0.76 / height, "\u25cf", fontsize=10, color=colour, va="center")
        figure.text(
            (left + 0.15) / width, 1 - 0.755 / height, title, fontsize=8.5, color=colour, va="center", fontweight="bold"
        )
        left += 0.15 + ruler.width(title) + 0.22


def _finish(axes: Axes, panel: Sequence[SuiteOutcome]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    entry, metric = panel[0].cell.entry, panel[0].metric
    style_axes(axes)
    if metric.is_share:
        axes.yaxis.set_major_formatter(percent_formatter())
        axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    elif axes.get_yscale() == "log":
        lowest, highest = axes.get_ylim()
        wide = highest > 300 * lowest
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0), numticks=9))
        axes.yaxis.set_minor_locator(NullLocator())
    baseline = _baseline(panel)
    if baseline is not None:
        axes.axhline(baseline, color=INK, linewidth=0.8, linestyle=(0, (3, 2)), zorder=1.5)
        axes.annotate(
            "without memory",
            (1.0, baseline),
            xycoords=("axes fraction", "data"),
            xytext=(0, 2),
            textcoords="offset points",
            ha="right",
            fontsize=7,
            color=MUTED,
        )
    paper = [f"{_title(_family(who))} {what}" for who, what in entry.kind.paper]
    about = f"{metric.words}, {'larger' if metric.larger_is_better else 'smaller'} is better"
    small, above = Ruler(7.5), {"xycoords": "axes fraction", "textcoords": "offset points"}
    style: dict[str, Any] = {**above, "fontsize": 7.5, "color": MUTED}
    axes.annotate(entry.title, (0, 1), xytext=(0, 37), **{**style, "fontsize": 9.5, "color": INK, "fontweight": "bold"})
    for number, text in enumerate([about, *("paper: " * (not place) + text for place, text in enumerate(paper))]):
        axes.annotate(small.shorten(text, PANEL[0] + 0.2), (0, 1), xytext=(0, 26 - 10 * number), **style)


def _by_model(panel: Sequence[SuiteOutcome]) -> dict[str, list[SuiteOutcome]]:
    models: dict[str, list[SuiteOutcome]] = {}
    for outcome in panel:
        models.setdefault(outcome.cell.model, []).append(outcome)
    return models


def _scale(axes: Axes, panel: Sequence[SuiteOutcome], values: Sequence[float]) -> None:
    known = [value for value in (*values, _baseline(panel)) if value is not None]
    if known and min(known) > 0 and max(known) / min(known) > LOGARITHMIC:
        axes.set_yscale("log")
        axes.set_ylim(min(known) / 1.6, max(known) * 1.6)  # a spread may reach below nothing
    axes.margins(y=0.12)


def _baseline(panel: Sequence[SuiteOutcome]) -> float | None:
    return next((outcome.baseline for outcome in panel if outcome.baseline is not None), None)


def _depths(axes: Axes, panel: Sequence[SuiteOutcome], colours: dict[str, str]) -> None:
    depths = sorted({outcome.cell.layers for outcome in panel})
    models = _by_model(panel)
    axes.set_xscale("log", base=2)
    for place, (model, outcomes) in enumerate(models.items()):
        colour = colours[_family(model)]
        # Models of one depth stand a little apart, or the bars would hide each other.
        aside = 2 ** (0.05 * (place - (len(models) - 1) / 2))
        middles: dict[float, float] = {}
        for depth in depths:
            at_depth = [outcome for outcome in outcomes if outcome.cell.layers == depth]
            values = [outcome.value for outcome in at_depth if outcome.value is not None]
            spot = depth * aside
            if any(outcome.state == "failed" for outcome in at_depth):
                axes.plot(
                    [spot], [0.03], "x", color=colour, transform=axes.get_xaxis_transform(), markersize=5, mew=1.4
                )
            if not values:
                continue
            middles[spot] = mean(values)
            if len(values) > 1:
                axes.plot([spot] * len(values), values, "o", color=colour, markersize=2.2, alpha=0.5, mew=0, zorder=2)
                spread = stdev(values)
                axes.plot(
                    [spot, spot], [mean(values) - spread, mean(values) + spread], color=colour, linewidth=1, zorder=2
                )
        axes.plot(
            list(middles),
            list(middles.values()),
            "o-",
            color=colour,
            linewidth=1.5,
            markersize=5,
            mec="white",
            mew=0.8,
            zorder=3,
        )
    _scale(axes, panel, [outcome.value for outcome in panel if outcome.value is not None])
    axes.set_xlim(depths[0] / 1.25, depths[-1] * 1.25)
    axes.set_xticks(depths, [str(depth) for depth in depths])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("layers", fontsize=8, color=MUTED, labelpad=3)


def _curves(axes: Axes, panel: Sequence[SuiteOutcome], colours: dict[str, str]) -> None:
    from matplotlib.ticker import MaxNLocator

    depths = sorted({outcome.cell.layers for outcome in panel})
    drawn: list[float] = []
    longest = 1
    for model, outcomes in _by_model(panel).items():
        for depth in depths:
            curves = [outcome.curve for outcome in outcomes if outcome.cell.layers == depth]
            if not curves:
                continue
            # Cut where the first of the seeds ends: a mean over fewer of them would jump.
            values = [mean(each) for each in zip(*curves, strict=False)]
            colour = colours[_family(model)]
            line = 1.4 if len(depths) == 1 else 0.8 + 1.4 * depths.index(depth) / (len(depths) - 1)
            dots = "o" if len(values) <= 20 else None
            axes.plot(
                range(1, len(values) + 1), values, color=colour, linewidth=line, marker=dots, markersize=line + 1.2
            )
            drawn += values
            longest = max(longest, len(values))
    _scale(axes, panel, drawn)
    axes.set_xlim(1 - 0.04 * longest, longest * 1.06)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
    axes.set_xlabel("epoch", fontsize=8, color=MUTED, labelpad=3)
