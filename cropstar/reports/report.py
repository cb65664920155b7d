"""The report of a training run: one self-contained HTML file for readers who did not run the training."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cropstar.errors import ArtifactError
from cropstar.geo.grid import SQUARE_METRES_PER_HECTARE
from cropstar.reports.figures import (
    confusion_matrix,
    error_map,
    loss_curve,
    reliability_plots,
    score_curve,
    season_curve,
)
from cropstar.reports.record import FEW_TESTED
from cropstar.reports.results import (
    PARTS,
    PLURALS,
    AccuracyTable,
    CoarserLevel,
    accuracy_tables,
    area_table,
    coarser_levels,
    tidy_classes,
    unit_of,
)
from cropstar.reports.wording import (
    DASH,
    amount,
    count,
    duration,
    html_templates,
    in_hundred,
    is_missing,
    percent,
    plural,
    rate,
    score,
    write_html,
)


def write_report(path: Path, data: dict[str, Any]) -> None:
    """Render a training result (the content of result.json); the same result gives the same bytes."""
    missing = sorted(PARTS - data.keys())
    if missing:
        raise ArtifactError(
            "cannot write the report",
            path=path,
            why=f"the training result lacks {', '.join(missing)}",
            remedy="train again with this version",
        )
    write_html(path, _render(data))


def _render(data: dict[str, Any]) -> str:
    environment = html_templates("cropstar.reports")
    environment.filters.update(
        percent=percent,
        score=score,
        count=count,
        capitalize_first=lambda text: text[:1].upper() + text[1:],
    )
    classes = tidy_classes(data["classes"])
    by_pixel = data["split"]["by"] == "pixel"
    shown = accuracy_tables(data["test"], split_by_pixel=by_pixel)
    rows = _class_rows(classes, shown)
    counts, folded = data["split"]["counts"], bool(data["split"].get("out_of_fold"))
    split = _split_rows(classes, counts, folded=folded)
    history, best_epoch = data["history"], data["best_epoch"]
    calibration, sets, earliness = (data.get(key) for key in ("calibration", "sets", "earliness"))
    return environment.get_template("report.html.j2").render(
        result=data,
        words=_sentences(data),
        kind="Evaluation" if data.get("judged") else "Training report",
        classes=classes,
        tables=shown,
        intervals=[_intervals(table.figures) for table in shown],
        rows=rows,
        extremes=_best_and_worst(rows),
        few=FEW_PARCELS,
        mistakes=_worst_confusions(shown[0].figures["confusion"], classes),
        matrices=[_as_data_uri(confusion_matrix(table.figures["confusion"], classes)) for table in shown],
        levels=[(level, _level_matrix(level)) for level in coarser_levels(data["test"], split_by_pixel=by_pixel)],
        split=split,
        untested=[] if data.get("judged") else _untested(classes, counts, "test"),
        unvalidated=[] if folded or data.get("cross_fit") else _untested(classes, counts, "validation"),
        few_tested=None if data.get("judged") or sum(counts["test"]) >= FEW_TESTED else sum(counts["test"]),
        baselines=[] if data.get("judged") else data.get("baselines") or [],
        split_totals=[sum(column) for column in zip(*(row["counts"] for row in split), strict=True)],
        facts=_data_rows(data["data"]),
        settings=_model_rows(data["model"]),
        costs=_cost_rows(data),
        loss=_as_data_uri(loss_curve(history, best_epoch)) if history else None,
        scores=_as_data_uri(score_curve(history, best_epoch)) if history else None,
        ensemble=data.get("ensemble"),
        crossed=data.get("cross_fit"),
        selection=data.get("selection"),
        calibration=calibration,
        reliability=[_as_data_uri(plot) for plot in reliability_plots(calibration)] if calibration else [],
        sets=sets,
        reached_sets=sets.get((data.get("judged") or {}).get("part", "test")) if sets else None,
        earliness=earliness,
        season=_as_data_uri(season_curve(earliness, classes)) if earliness else None,
        areas=area_table(data["areas"], classes) if data.get("areas") else None,
        errors=data.get("errors"),
        error_maps=[(scene, _as_data_uri(error_map(scene))) for scene in (data.get("errors") or {}).get("scenes", [])],
    )


def _level_matrix(level: CoarserLevel) -> str:
    return _as_data_uri(confusion_matrix(level.tables[0].figures["confusion"], level.classes))


def evaluation_report(path: Path, result: dict[str, Any], facts: dict[str, Any]) -> None:
    """The report of a run with what `cropstar evaluate` found in the place of its test."""
    same = all(facts["figures"][key] == result["test"][key] for key in ("parcel", "pixel"))
    judged = {"part": facts["part"], "store": facts["store"], "parcels": facts["parcels"]}
    changes = {
        "test": facts["figures"],
        "earliness": result.get("earliness") if same else None,  # of the test of the training
        "judged": None if same else {**judged, "seen": facts["seen_in_training"]},
        "split": {**result["split"], "by": facts["split"]["by"]}
        if facts["split"]["by"] == "pixel"
        else result["split"],
        **{key: facts[key] for key in ("calibration", "sets", "areas", "errors")},
    }
    write_report(path, {**result, **changes})


def _as_data_uri(svg: bytes) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg).decode("ascii")


# --- sentences


@dataclass(frozen=True)
class Sentences:
    """The sentences of a report that depend on what was evaluated."""

    lead: str
    dealt: str  # how the parts came about
    shown: str  # what was looked at, and when
    counted: str  # above the table of parts
    test: str  # "test parcels"
    validation: str
    sample: str  # "pixels": what has a confidence of its own
    limits: str = "The figures hold for this region and season. Another region or another year may be harder."


def _sentences(data: dict[str, Any]) -> Sentences:
    """The sentences for the result of a training or of an evaluation."""
    split, test = data["split"], data["test"]
    by_pixel = split["by"] == "pixel"
    main = accuracy_tables(test, split_by_pixel=by_pixel)[0]
    share = in_hundred(main.figures["overall_accuracy"])
    many = "pixels" if by_pixel else "parcels"
    sample = PLURALS[unit_of(test)]
    if data.get("judged"):
        return _of_evaluation(data, main, share, sample)
    epochs = len(data["history"])
    best = data["best_epoch"]
    chosen = f" Epoch {best} of {epochs} was chosen on the validation {many}." if best and epochs else ""
    if data.get("ensemble"):
        chosen = (
            f" It is {plural(len(data['ensemble']['members']), 'model')} whose calibrated probabilities are averaged; "
            f"the best epoch of each was chosen on the validation {many}."
        )
    if data.get("cross_fit"):
        facts = data["cross_fit"]
        members = len(data["ensemble"]["members"]) if data.get("ensemble") else 1
        averaged = f" It is {members} models whose calibrated probabilities are averaged." if members > 1 else ""
        chosen = (
            f"{averaged} It learned from training and validation {many} together; no epoch was chosen. The validation "
            f"figures and the calibration come from {facts['folds']} models with the same settings, each asked about "
            f"{many} that it had not seen: overall accuracy {in_hundred(facts['overall_accuracy'])}."
        )
    if data.get("clean"):
        left = plural(data["clean"]["suspects"], "parcel")
        chosen += f" {left} with a suspect label were left out of its training, though not out of the figures."
    if data.get("distil"):
        chosen += f" It also learned from the answers of a teacher, {data['distil']['teacher']}."
    if data.get("refit"):
        chosen += (
            f" The model file holds a refit: the same training once more on training and validation {many} together, "
            "up to the best epoch. The figures and the confidence here are those of the model before the refit."
        )
    if split.get("out_of_fold"):
        return _of_folds(data, share, sample)
    return Sentences(
        lead=_lead(main, share, sum(split["counts"]["test"]), by_pixel=by_pixel),
        dealt=_dealt(split),
        shown=f"The model was trained on the training {many}.{chosen} "
        f"The test {many} were used once, at the end, and influenced no choice.",
        counted=_counted(split),
        test=f"test {many}",
        validation=f"validation {many}",
        sample=sample,
    )


def _of_folds(data: dict[str, Any], share: str, sample: str) -> Sentences:
    """Of a training without a test part: every parcel was judged by the model of a fold that had not seen it."""
    folds, by = data["split"]["out_of_fold"], data["split"]["by"]
    dealt = "stratified by class" if by == "parcel" else f"with whole {by}s kept together"
    members = len(data["ensemble"]["members"]) if data.get("ensemble") else 1
    averaged = f", {members} times, whose probabilities are averaged" if members > 1 else ""
    clean = " Suspect labels were left out of that model alone." if data.get("clean") else ""
    return Sentences(
        lead=f"Of all parcels, each classified by a model that never saw it, {share} were given the right crop.",
        dealt=f"There is no test part: parcels were split into {folds} folds, {dealt}, and every parcel was evaluated "
        f"once, by a model that was trained on the other {folds - 1} folds.",
        shown=f"The figures are those of these {folds} models. The model file holds one more with the same settings, "
        f"trained on all parcels{averaged}.{clean}",
        counted="Every parcel is used for training and, out of fold, for the evaluation.",
        test="parcels, out of fold",
        validation="parcels, out of fold",
        sample=sample,
    )


def _lead(main: AccuracyTable, share: str, tested: int, *, by_pixel: bool) -> str:
    if by_pixel:
        return (
            f"Of the {main.many} that were kept for the test, {share} were given the right crop. They lie in fields "
            "that training has seen, so the figures are optimistic: new fields are harder."
        )
    if main.unit == "date":
        return f"Of the dates of parcels that training never saw, {share} were given the right class."
    few = f"only {tested} " if tested < FEW_TESTED else ""
    return f"Of the {few}parcels that training never saw, {share} were given the right crop."


def _dealt(split: dict[str, Any]) -> str:
    by = split["by"]
    if by == "pixel":
        return (
            "Before training, pixels were assigned to training, validation and test at random. Pixels of one field are "
            "nearly identical and occur in all three parts: the figures are of fields that the model knows, not of "
            "new ones."
        )
    wholes = {"block": "whole spatial blocks", "scene": "whole scenes", "group": "whole groups of parcels"}
    if by in wholes:
        return (
            f"Before training, {wholes[by]} were assigned to training, validation or test, so no field is used for "
            "both training and test."
        )
    own = f" by the data set\u2019s own split \u2018{split['name']}\u2019" if by == "name" else ""
    return (
        f"Before training, every parcel was assigned to training, validation or test{own}, so no field is used "
        "for both training and test."
    )


def _counted(split: dict[str, Any]) -> str:
    by = split["by"]
    if by == "pixel":
        return "Split by pixel: a parcel counts in every part that has one of its pixels; most count in all three."
    if by == "name":
        return f"The data set\u2019s own split \u2018{split['name']}\u2019."
    return "Stratified random split by parcel." if by == "parcel" else f"Split by {by}."


def _of_evaluation(data: dict[str, Any], main: AccuracyTable, share: str, sample: str) -> Sentences:
    judged = data["judged"]
    which = "all parcels" if judged["part"] == "all" else f"the {judged['part']} part"
    seen = judged["seen"]
    seen_note = (
        f" {count(seen)} of them were used in training or validation: the figures are optimistic." if seen else ""
    )
    what = f"{plural(judged['parcels'], 'parcel')} ({which} of {judged['store']})"
    of_what = what if main.unit == "parcel" else f"the {main.many} of {what}"
    return Sentences(
        lead=f"Of {of_what}, {share} were given the right crop.{seen_note}",
        dealt=_dealt(data["split"]),
        shown=f"The trained model was evaluated on {what}.{seen_note}",
        counted=f"As in training. {_counted(data['split'])}",
        test="evaluated parcels",
        validation="validation parcels",
        sample=sample,
    )


# --- rows of tables

FIRST_SETTINGS = ("name", "layers", "hidden", "parameters")
FEW_PARCELS = 10  # below so many test parcels one parcel more or less moves the figures by ten points


@dataclass(frozen=True)
class Confusion:
    """One kind of error: the parcels, or pixels, of one crop that were mapped as another."""

    true: dict[str, Any]
    mapped: dict[str, Any]
    number: int
    total: int

    @property
    def share(self) -> str:
        return percent(self.number / self.total)


def _worst_confusions(confusion: list[list[int]], classes: list[dict[str, Any]], most: int = 5) -> list[Confusion]:
    """The most frequent mistakes."""
    mistakes = [
        Confusion(classes[row], classes[column], number, sum(counts))
        for row, counts in enumerate(confusion)
        for column, number in enumerate(counts)
        if row != column and number
    ]
    return sorted(mistakes, key=lambda mistake: (-mistake.number, mistake.total))[:most]


def _class_rows(classes: list[dict[str, Any]], shown: Sequence[AccuracyTable]) -> list[dict[str, Any]]:
    """A row for each class with its figures in each table."""
    rows = []
    for number, entry in enumerate(classes):
        figures = [{**table.figures["classes"][number], "unit": table.unit} for table in shown]
        supports = [own["support"] for own in figures if own["unit"] == "parcel"]
        few = any(not is_missing(support) and support < FEW_PARCELS for support in supports)
        rows.append({**entry, "figures": figures, "few": few})
    return rows


def _best_and_worst(rows: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The classes with the best and the worst F1 in the main table; those with few test parcels prove neither."""
    judged = [row for row in rows if not is_missing(row["figures"][0]["f1"]) and not row["few"]]
    ranked = sorted(judged, key=lambda row: float(row["figures"][0]["f1"]))
    if not ranked or ranked[0]["figures"][0]["f1"] == ranked[-1]["figures"][0]["f1"]:  # nothing to choose between
        return None
    return ranked[-1], ranked[0]


def _split_rows(
    classes: list[dict[str, Any]], counts: dict[str, list[int]], *, folded: bool = False
) -> list[dict[str, Any]]:
    """Parcels of each class in each part, and in all; `folded` where parcels are of training and test alike."""
    parts = zip(counts["train"], counts["validation"], counts["test"], strict=True)
    return [
        {**entry, "counts": [*numbers, max(numbers) if folded else sum(numbers)]}
        for entry, numbers in zip(classes, parts, strict=True)
    ]


def _untested(classes: list[dict[str, Any]], counts: dict[str, list[int]], part: str) -> list[str]:
    """The classes that have fields, but none in a part."""
    return [
        entry["name"]
        for number, entry in enumerate(classes)
        if any(own[number] for own in counts.values()) and not counts[part][number]
    ]


def _data_rows(data: dict[str, Any]) -> list[tuple[str, str]]:
    """The training data."""
    dates = sorted(str(date) for date in data["dates"])
    period = f"{len(dates)} from {dates[0]} to {dates[-1]}" if len(dates) > 1 else ", ".join(dates) or DASH
    resolution = data["resolution"]
    return [
        ("store", str(data["store"])),
        ("dates", period),
        ("bands", ", ".join(str(band) for band in data["bands"]) or DASH),
        ("tiles", count(data["tiles"])),
        ("pixel size", DASH if is_missing(resolution) or not resolution else f"{resolution:g} m"),
    ]


def _model_rows(values: dict[str, Any]) -> list[tuple[str, str]]:
    """The model's own settings, what it is first; those that were left open do not concern it."""
    first = [key for key in FIRST_SETTINGS if key in values]
    ordered = {key: values[key] for key in [*first, *values] if values[key] is not None}
    return [(key.replace("_", " "), _in_words(value)) for key, value in ordered.items()]


def _in_words(value: Any) -> str:
    if value is None:
        return DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(_in_words(item) for item in value) or DASH
    return f"{value:g}" if isinstance(value, float) else str(value)


def _intervals(figures: dict[str, Any]) -> dict[str, str]:
    """The 95 % intervals of the main figures in words, empty where there is none."""
    known = figures.get("intervals", {})
    accuracy, f1 = known.get("overall_accuracy"), known.get("macro_f1")
    return {
        "overall_accuracy": f"{100 * accuracy[0]:.0f}\u2013{100 * accuracy[1]:.0f} %" if accuracy else "",
        "macro_f1": f"{f1[0]:.2f}\u2013{f1[1]:.2f}" if f1 else "",
    }


def _cost_rows(data: dict[str, Any]) -> list[tuple[str, str]]:
    """Time, speed and memory; of pixels also the ground that they cover."""
    throughput, unit = data["throughput"], unit_of(data["test"])
    speed, resolution = throughput["samples_per_second"], data["data"]["resolution"]
    what = {"pixel": "labelled pixels", "parcel": "series", "date": "series"}[unit]
    text = f"{rate(speed)} {what} a second" if not is_missing(speed) else DASH
    if unit == "pixel" and not is_missing(speed) and not is_missing(resolution) and resolution > 0:
        text += f", {rate(speed * resolution**2 / SQUARE_METRES_PER_HECTARE)} ha a second"
    return [
        ("training time", duration(throughput["seconds"])),
        ("speed", text),
        ("peak memory", amount(throughput["peak_memory_mb"], "MB")),
    ]
