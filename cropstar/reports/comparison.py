"""Finished runs side by side: their figures on test parcels, their costs, and which of them may be compared."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cropstar.errors import ArtifactError, CropstarError
from cropstar.reports.contents import RESULT
from cropstar.reports.judged import MANY
from cropstar.reports.lettering import printable
from cropstar.reports.results import CONFIG, damaged, read_result
from cropstar.reports.scores import with_interval
from cropstar.reports.wording import DASH, count, duration, percent, score
from cropstar.resolving import read_config

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
Interval = list[float] | None


@dataclass(frozen=True)
class Level:
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
    parcel: Level
    pixel: Level | None  # None: the run judges parcels alone
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
        """What the table alone would not tell."""
        said = []
        if len(self.groups) > 1:
            kinds = zip(("stores", "test parcels", "classes"), *(row.tested_on for row in self.rows), strict=True)
            different = ", ".join(name for name, *found in kinds if len(set(found)) > 1)
            said.append(f"not all of these runs compare: their {different} differ; those with the same letter do")
        flattered = [row.run for row in self.rows if row.by_pixel]
        if flattered:
            said.append(
                f"split by pixel, so tested on fields that training saw, which flatters: {', '.join(flattered)}"
            )
        return said

    @property
    def finer(self) -> str:
        """What is counted beside parcels, as a word of many; empty where nothing is."""
        return "/".join(dict.fromkeys(MANY[row.unit] for row in self.rows if row.pixel))

    def to_json(self) -> dict[str, Any]:
        rows = [{**asdict(row), "tested_alike": self.group_of(row)} for row in self.rows]
        for row in rows:
            del row["tested_on"]
        return {"runs": rows, "comparable": len(self.groups) == 1, "warnings": self.warnings()}


def compare_runs(folders: Sequence[Path]) -> Comparison:
    """Each run once, however often it is named."""
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
    if unit in MANY:
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
        scenes = json.loads(data.read_text(encoding="utf-8"))["scenes"] if data.is_file() else result["data"]["store"]
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


def _level(figures: dict[str, Any]) -> Level:
    known = figures.get("intervals", {})
    pairs = ((_number(figures[key]), _interval(known.get(key))) for key in ("overall_accuracy", "macro_f1"))
    (accuracy, around_accuracy), (f1, around_f1) = pairs
    return Level(accuracy, around_accuracy, f1, around_f1)


def _interval(value: Any) -> Interval:
    if value is None:
        return None
    low, high = map(float, value)
    return [low, high] if math.isfinite(low) and math.isfinite(high) else None


def _number(value: Any) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def say_comparison(comparison: Comparison) -> str:
    """Two tables: how good the runs are, and what they are and cost."""
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


def _pair(level: Level) -> list[str]:
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
