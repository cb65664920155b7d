"""`cropstar gradients`: the lattice of several cells, drawn and in tables."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from cropstar import __version__
from cropstar.benchmarks.lattice import LOSSES, measure
from cropstar.benchmarks.lattice_findings import DEFINITIONS, long_table, notes, pattern_of, table_rows
from cropstar.benchmarks.lattice_inputs import pixel_by_pixel, smooth_noise
from cropstar.errors import UsageError
from cropstar.logs import event
from cropstar.models.cells.cell import CELLS
from cropstar.progress import progress_bar
from cropstar.reports.lattice import Pattern, draw_lattice
from cropstar.store.atomic import atomic_path, write_json, write_text

PICTURE, TABLE, SUMMARY = "lattice.png", "lattice.csv", "lattice.json"
# A place keeps its part of the graph, some 100 kB; 12 layers of MNIST's 784 pixels are half of this.
MAXIMUM_PLACES = 20_000
# Doubles of the inputs and of the result.
MAXIMUM_VALUES = 50_000_000


@dataclass(frozen=True)
class GradientOptions:
    cells: tuple[str, ...] = ("rnn", "lstm", "lstm_forget", "gru", "star")
    layers: int = 10
    steps: int = 10  # of noise; images have theirs
    hidden: int = 64
    alpha: float = 0.5
    runs: int = 100
    losses: tuple[str, ...] = LOSSES
    seed: int = 0
    images: Path | None = None


def gradients(folder: Path, options: GradientOptions, *, overwrite: bool = False) -> list[Pattern]:
    """Measure and write the picture, the long table and the summary; a pattern a cell and loss."""
    _require_new(folder, overwrite)
    for name in options.cells:
        CELLS[name]  # an unknown name is refused before any compute
    inputs = _inputs(options)
    runs, steps, _ = inputs.shape
    started = time.monotonic()
    patterns = []
    ways = 1 + len(options.losses)
    with progress_bar(len(options.cells) * ways * options.layers * steps * runs, "gradients", "", scale=True) as bar:
        for name in options.cells:
            found = measure(
                name,
                inputs,
                layers=options.layers,
                hidden=options.hidden,
                losses=options.losses,
                seed=options.seed,
                done=bar.update,
            )
            patterns += [pattern_of(name, loss, magnitudes) for loss, magnitudes in found.items()]
    seconds = time.monotonic() - started
    event(f"{runs} runs of {options.layers} layers x {steps} steps in {seconds:.1f} s", runs=runs, seconds=seconds)
    _write(folder, options, steps, patterns)
    return patterns


def _inputs(options: GradientOptions) -> Tensor:
    if options.images is not None:
        inputs = pixel_by_pixel(options.images, options.runs, options.seed)
        _require_bounded(options, inputs.shape[1])
        return inputs
    _require_bounded(options, options.steps)
    return smooth_noise(options.runs, options.steps, options.hidden, options.alpha, options.seed)


def _require_bounded(options: GradientOptions, steps: int) -> None:
    if options.layers * steps > MAXIMUM_PLACES:
        why = f"{options.layers} layers x {steps} steps, at most {MAXIMUM_PLACES:,} places"
        raise UsageError("too large a lattice", why=why, remedy="give fewer layers or shorter inputs")
    if options.runs * steps * max(options.layers, options.hidden) > MAXIMUM_VALUES:
        why = f"{options.runs} runs of {steps} steps, {options.layers} layers and width {options.hidden}"
        raise UsageError("too many runs to hold", why=why, remedy="give fewer --runs")


def _require_new(folder: Path, overwrite: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise UsageError("the output is a file", path=folder, remedy="give a folder with -o")
    existing = [folder / name for name in (PICTURE, TABLE, SUMMARY) if (folder / name).exists()]
    if existing and not overwrite:
        raise UsageError("the output exists", path=existing[0], remedy="choose another with -o, or give --overwrite")


def _write(folder: Path, options: GradientOptions, steps: int, patterns: list[Pattern]) -> None:
    settings: dict[str, Any] = {**asdict(options), "steps": steps, "input": "noise" if not options.images else "images"}
    if options.images is not None:
        settings |= {"images": str(options.images), "alpha": None}
    document = {
        "cropstar": __version__,
        "settings": settings,
        "definitions": DEFINITIONS,
        "table": table_rows(patterns),
    }
    write_text(folder / TABLE, long_table(patterns))
    with atomic_path(folder / PICTURE) as partial:
        partial.write_bytes(draw_lattice(patterns, _caption(options, steps), notes(patterns)))
    write_json(folder / SUMMARY, document)  # last: where it is, the others are


def _caption(options: GradientOptions, steps: int) -> str:
    source = (
        "images pixel by pixel" if options.images else f"smooth noise, \N{GREEK SMALL LETTER ALPHA} = {options.alpha:g}"
    )
    size = f"{options.layers} layers x {steps} steps, width {options.hidden}"
    return f"{size}; {source}; {options.runs} runs, each with new orthogonal weights"
