"""What a gradient lattice says in numbers: mean, spread, and the factors from layer to layer and from step to step."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cropstar.reports.lattice import Pattern, cell_title

DEFINITIONS = {
    "magnitude": "Frobenius norm of dL/dw over all parameters w of the copy of the cell at one layer and step",
    "mean": "over runs, each with new weights and input",
    "spread": "standard deviation over runs divided by the mean; in the table averaged over the lattice",
    "per_layer": "factor from a layer to the one below: geometric mean over layers of the ratio of layer magnitudes, "
    "a layer's magnitude being the root of the sum over steps of squared means",
    "per_step": "the same from a step to the one before, with the sum over layers",
    "straight_down": "the same as per_layer at the last step alone: the path that never goes back in time",
    "straight_back": "the same as per_step in the top layer alone: the path that never goes down",
}


@dataclass(frozen=True)
class Factors:
    """How a gradient changes from one layer to the one below, and from one step to the one before."""

    per_layer: float
    per_step: float
    straight_down: float
    straight_back: float
    spread: float


def pattern_of(cell: str, loss: str, magnitudes: NDArray[np.float64]) -> Pattern:
    """From magnitudes (R, L, T) of two runs at least; the spread is not a number where no gradient arrives."""
    mean = magnitudes.mean(axis=0)
    # Of ratios to the mean, since squares of vanished gradients are nothing.
    ratios = np.divide(magnitudes, mean, out=np.full_like(magnitudes, np.nan), where=mean > 0)
    return Pattern(cell, loss, mean, ratios.std(axis=0, ddof=1))


def factors_of(pattern: Pattern) -> Factors:
    mean, known = pattern.mean, pattern.spread[np.isfinite(pattern.spread)]
    # hypot keeps what squares of vanished gradients would lose.
    return Factors(
        per_layer=mean_ratio(np.hypot.reduce(mean, axis=1)),
        per_step=mean_ratio(np.hypot.reduce(mean, axis=0)),
        straight_down=mean_ratio(mean[:, -1]),
        straight_back=mean_ratio(mean[-1]),
        spread=float(known.mean()) if known.size else math.nan,
    )


def mean_ratio(magnitudes: NDArray[np.float64]) -> float:
    """The geometric mean of all magnitude[i] / magnitude[i + 1]; the inner ones cancel."""
    first, last = float(magnitudes[0]), float(magnitudes[-1])
    if len(magnitudes) < 2 or first <= 0 or last <= 0:
        return math.nan
    return math.exp((math.log(first) - math.log(last)) / (len(magnitudes) - 1))


def table_text(patterns: Sequence[Pattern]) -> str:
    """For people."""
    head = ("cell", "loss", "per layer", "per step", "straight down", "straight back", "spread")
    rows = [head]
    for pattern in patterns:
        found = factors_of(pattern)
        numbers = (found.per_layer, found.per_step, found.straight_down, found.straight_back, found.spread)
        rows.append((cell_title(pattern.cell), pattern.loss, *(f"{number:.3f}" for number in numbers)))  # type: ignore[arg-type]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            text.ljust(width) if column < 2 else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def table_rows(patterns: Sequence[Pattern]) -> list[dict[str, str | float | None]]:
    """For programs: what is not a number is null."""
    rows: list[dict[str, str | float | None]] = []
    for pattern in patterns:
        found = {key: value if math.isfinite(value) else None for key, value in vars(factors_of(pattern)).items()}
        rows.append({"cell": pattern.cell, "loss": pattern.loss, **found})
    return rows


def long_table(patterns: Sequence[Pattern]) -> str:
    """CSV, a row a place; layers and steps count from one, layer 1 reads the input."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("cell", "loss", "layer", "step", "mean", "spread"))
    for pattern in patterns:
        for (layer, step), mean in np.ndenumerate(pattern.mean):
            spread = pattern.spread[layer, step]
            shown = f"{spread:.6g}" if np.isfinite(spread) else ""
            writer.writerow((pattern.cell, pattern.loss, layer + 1, step + 1, f"{mean:.9g}", shown))
    return text.getvalue()


def notes(patterns: Sequence[Pattern]) -> dict[tuple[str, str, str], str]:
    """The headline of every heat map."""
    found = {}
    for pattern in patterns:
        factors = factors_of(pattern)
        if math.isfinite(factors.per_layer):
            found[pattern.cell, pattern.loss, "mean"] = f"{factors.per_layer:.2f} per layer"
        if math.isfinite(factors.spread):
            found[pattern.cell, pattern.loss, "spread"] = f"{factors.spread:.2f} on average"
    return found
