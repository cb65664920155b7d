"""The results of a suite as tables: a row a cell in CSV, and a page of Markdown beside the paper's figures."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

from cropstar.benchmarks.objectives import Metric
from cropstar.benchmarks.suite_file import Entry
from cropstar.benchmarks.suite_outcomes import Outcome
from cropstar.reports.wording import DASH, count, duration, plural

COLUMNS = (
    *("name", "task", "model", "layers", "seed", "state", "metric", "value", "validation", "ended", "budget_minutes"),
    *("epochs", "best_epoch", "seconds", "hidden", "parameters", "baseline", "paper", "run", "error"),
)
PICTURES = {"depth.png": "The metric against layers", "curves.png": "The metric on validation, epoch by epoch"}


def as_csv(outcomes: Sequence[Outcome], folder: Path) -> str:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(COLUMNS)
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


def as_markdown(outcomes: Sequence[Outcome], name: str, pictures: Sequence[str]) -> str:
    finished = sum(outcome.state == "finished" for outcome in outcomes)
    failed = [outcome for outcome in outcomes if outcome.state == "failed"]
    lines = [
        f"# Results of {name}",
        "",
        f"{finished} of {plural(len(outcomes), 'cell')} finished, {len(failed)} failed. Figures are of the test part, "
        "looked at once for each budget, with the epoch chosen on validation; of several seeds the mean \u00b1 their "
        "standard deviation. The paper's figures are of its own, full settings.",
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


def show(metric: Metric, values: Sequence[float]) -> str:
    """The mean and, of several, the spread."""
    if not values:
        return DASH
    middle, spread = mean(values), stdev(values) if len(values) > 1 else None
    if metric.is_share:
        return f"{100 * middle:.2f}" + (f" \u00b1 {100 * spread:.2f} %" if spread is not None else " %")
    decimals = 4 if middle == 0 or not math.isfinite(middle) else max(2, 2 - math.floor(math.log10(abs(middle))))
    return f"{middle:.{decimals}f}" + (f" \u00b1 {spread:.{decimals}f}" if spread is not None else "")


def _section(outcomes: Sequence[Outcome]) -> list[str]:
    entry, metric = outcomes[0].cell.entry, outcomes[0].metric
    better = "larger" if metric.larger_is_better else "smaller"
    baseline = next((outcome.baseline for outcome in outcomes if outcome.baseline is not None), None)
    without = "" if baseline is None else f" Without memory: {show(metric, [baseline])}."
    return [
        f"## {entry.title}",
        "",
        f"{_sentence(entry.kind.about)} The {metric.words}; {better} is better.{without}{_settings(entry, outcomes)}",
        "",
        *_matrix(entry, outcomes, metric),
        "",
        *_details(outcomes),
        "",
    ]


def _settings(entry: Entry, outcomes: Sequence[Outcome]) -> str:
    parts = [] if entry.config is None else [f"those of {entry.config}"]
    parts += [f"{key}={value}" for key, value in entry.assignments.items()]
    for model, own in entry.by_model.items():
        parts += [f"{key}={value} for {model}" for key, value in own.items()]
    if entry.match_parameters is not None:
        parts.append(f"{entry.match_parameters:,} parameters by the choice of the width")
    # What is finished had the budget of its own day.
    minutes = [outcome.minutes if outcome.state == "finished" else outcome.cell.budget for outcome in outcomes]
    budgets = sorted({each for each in minutes if each is not None})
    parts += [f"at most {' or '.join(f'{each:g}' for each in budgets)} minutes each"] if budgets else []
    return f" Unlike the settings that ship: {_plain(', '.join(parts))}." if parts else ""


def _matrix(entry: Entry, outcomes: Sequence[Outcome], metric: Metric) -> list[str]:
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
            text = show(metric, values)
            shown.append(f"**{text}**" if values and mean(values) == best.get(depth) else text)
        lines.append(f"| `{model}` | " + " | ".join(shown) + f" | {_plain(paper.get(model, '')) or DASH} |")
    return lines


def _details(outcomes: Sequence[Outcome]) -> list[str]:
    lines = [
        "| model | layers | seeds | parameters | width | epochs | ended by | training |",
        "| --- | --: | --: | --: | --: | --: | --- | --: |",
    ]
    models = list(dict.fromkeys(outcome.cell.model for outcome in outcomes))
    groups: dict[tuple[str, int], list[Outcome]] = {}
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


def _failures(failed: Sequence[Outcome]) -> dict[str, str]:
    """The cells by the one line that tells why: missing data fail many alike."""
    alike: dict[str, list[str]] = {}
    for outcome in failed:
        alike.setdefault(outcome.error, []).append(outcome.cell.title)
    return {error: titles[0] + (f" and {len(titles) - 1} more" * (len(titles) > 1)) for error, titles in alike.items()}


def _ends(group: Sequence[Outcome]) -> str:
    """What ended the runs; a budget with its minutes."""
    words = []
    for outcome in group:
        word = {"failed": "failure", "unfinished": "(not yet)"}.get(outcome.state, outcome.ended)
        words.append(f"{word} of {outcome.minutes:g} min" if word == "budget" else word)
    return ", ".join(f"{words.count(word)} x {word}" if len(set(words)) > 1 else word for word in dict.fromkeys(words))


def _span(values: Sequence[int | None]) -> str:
    known = sorted({value for value in values if value is not None})
    if not known:
        return DASH
    return count(known[0]) if len(known) == 1 else f"{count(known[0])} to {count(known[-1])}"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def _plain(text: str) -> str:
    """Within a table or a list nothing of it is markup."""
    for sign in "\\|`*_<":
        text = text.replace(sign, f"\\{sign}")
    return text
