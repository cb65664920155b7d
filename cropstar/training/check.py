"""`cropstar check`: the labels of a store, or the crops that are declared for its fields, against what the fields show.

Probabilities are those that a run with folds keeps, each by a model that never saw the field. Fields of another store
are asked of the run's own model; they are judged by how usual such probabilities were for fields of the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cropstar.datasets.fields import Fields, ParcelId, centres_of, choose_target
from cropstar.datasets.samples import pool_parcels
from cropstar.datasets.splits import Split
from cropstar.errors import ArtifactError, InputError, MismatchError, UsageError
from cropstar.geo.calendar import from_days
from cropstar.models.calibration import Calibration
from cropstar.registry import short_list
from cropstar.reports.wording import percent, plural
from cropstar.runtime import logger
from cropstar.store.classes import ClassTable
from cropstar.store.store import Store
from cropstar.training.accuracy import Collectors, evaluate
from cropstar.training.evaluate import EvaluatedModel, all_parcels, open_evaluated, open_samples, require_fits
from cropstar.training.label_noise import (
    ConformalGroups,
    FieldProbabilities,
    Floats,
    Integers,
    Light,
    Suspect,
    choose_survey,
    confused_pairs,
    find_suspects,
)
from cropstar.training.metrics import ScoreSample
from cropstar.training.runs import Run
from cropstar.training.setup import scene_recipes

CURVES_PER_CLASS = 200  # fields whose median is the curve of a class
MOST_SHOWN = 60  # fields with a plot on the page
PAIRS_SHOWN = 6  # pairs of classes in the terminal
STEP = 10  # days between the points of a class's curve
FOLDS_FIRST = "train with folds: 'cropstar train --folds 5', or give the store to 'cropstar check'"


@dataclass(frozen=True)
class CheckOptions:
    device: torch.device
    rate: float  # of false alarms, at most
    survey: int  # fields to propose
    store: Path | None = None  # other fields than those of the run
    declared: Mapping[str, str] | None = None  # crop by key of the field; None: the labels of the store
    declared_path: Path | None = None


@dataclass(frozen=True)
class CheckedField:
    """A field and what was found of its crop."""

    parcel: ParcelId
    key: str
    declared: str
    light: Light
    p_value: float
    declared_probability: float
    mapped: str
    probability: float
    second: str
    suspect: int | None  # its rank among the suspects, from 1
    survey: int | None  # its place on the list of fields to visit
    place: tuple[float, float] | None  # coordinates of the store


@dataclass(frozen=True)
class Curve:
    """One band or index of a field, or the middle of a class, over the days of the season."""

    days: list[int]
    values: list[float]


@dataclass(frozen=True)
class CheckResult:
    run: Path
    store: Path
    fields: list[CheckedField]
    facts: dict[str, Any]  # counts, promise and warnings, as plain data
    band: str  # what the curves show
    curves: dict[ParcelId, Curve]  # of the fields that are shown
    medians: dict[str, Curve]


def check_fields(path: Path, options: CheckOptions) -> CheckResult:
    """Check the fields of a run, or those of another store by its model."""
    subject = open_evaluated(path, options.store)
    if subject.run is None:
        why = "the model file is outside its run folder"
        raise UsageError("no folds to check by", path=path, why=why, remedy="give the folder of a run")
    with Store.open(subject.config.store) as store:
        if choose_target(subject.config, store) == "date":
            why = "the dates of a field have classes of their own"
            raise UsageError("labels by date are not checked", path=store.folder, why=why, remedy="check other labels")
        known = _out_of_fold_probabilities(subject)
        other = options.store is not None and scene_recipes(store) != subject.scenes
        if not other and scene_recipes(store) != subject.scenes:
            why = "it holds other scenes than when the run was trained"
            raise MismatchError("the store has changed", path=store.folder, why=why, remedy="name it with --store")
        if not other:
            _require_same_labels(known, store, subject.run.out_of_fold)
        fields = _probabilities_of(subject, store, options.device) if other else known
        return _checked(subject, store, known, fields, options, other=other)


def reusable_run(runs: Path, store_folder: Path) -> Run | None:
    """The newest finished run that judged every labelled field of the store out of fold."""
    with Store.open(store_folder) as store:
        labelled, scenes = set(Fields.of(store).label_of), scene_recipes(store)
        names = store.fingerprint.classes.names
    if not labelled:
        raise InputError("no labels to check", path=store_folder, remedy="ingest it with labels")
    kept = sorted(runs.glob("*/out-of-fold.safetensors"), key=lambda path: path.stat().st_mtime, reverse=True)
    for file in kept:
        run = Run(file.parent)
        try:
            subject = open_evaluated(run.folder, store_folder) if run.finished else None
            if subject and subject.scenes == scenes and set(FieldProbabilities.read(file, names).parcels) >= labelled:
                return run
        except ArtifactError:  # damaged, or of other classes
            continue
    return None


def _require_same_labels(known: FieldProbabilities, store: Store, file: Path) -> None:
    """Refuse probabilities of the fields of another store."""
    labels = Fields.of(store).label_of
    strange = sum(labels.get(parcel) != int(own) for parcel, own in zip(known.parcels, known.labels, strict=True))
    if strange:
        why = f"{strange} of its {len(known)} fields are not in the store, or have another label there"
        raise MismatchError("the probabilities are not of this store", path=file, why=why, remedy=FOLDS_FIRST)


def _out_of_fold_probabilities(subject: EvaluatedModel) -> FieldProbabilities:
    assert subject.run is not None
    file = subject.run.out_of_fold
    if not file.exists():
        why = "the run was trained without folds: its model has seen the fields"
        raise ArtifactError("no probabilities out of fold", path=subject.run.folder, why=why, remedy=FOLDS_FIRST)
    return FieldProbabilities.read(file, subject.card.fingerprint.classes.names)


def _probabilities_of(subject: EvaluatedModel, store: Store, device: torch.device) -> FieldProbabilities:
    """The model's probabilities for the labelled fields of a store that it was not trained on."""
    numbers = require_fits(subject.card, store, spatial=subject.model.spatial)
    split = all_parcels(store)
    if not split.label_of:
        raise InputError("no labels to check", path=store.folder, remedy="ingest it with labels")
    samples = open_samples(subject.card, store, split, "all", subject.config, numbers)
    sample, classes = ScoreSample(len(subject.card.fingerprint.classes)), len(subject.card.fingerprint.classes)
    evaluate(subject.model.to(device), samples, classes, device, Collectors(sample))
    calibration = Calibration.from_json((subject.card.calibration or {}).get("temperature", {}))
    return FieldProbabilities.of(split, sample, calibration.temperature)


def _checked(
    subject: EvaluatedModel,
    store: Store,
    known: FieldProbabilities,
    fields: FieldProbabilities,
    options: CheckOptions,
    *,
    other: bool,
) -> CheckResult:
    names, keys = subject.card.fingerprint.classes.names, keys_of_parcels(store)
    judged = len(fields)
    labels = fields.labels
    if options.declared is not None:
        rows, declared = _declared_labels(options.declared, fields, keys, subject, options.declared_path)
        labels = labels[rows]
        fields = replace(fields.rows(rows), labels=declared)
    groups = ConformalGroups.of(known, options.rate)
    p_values = groups.p_values(fields.probabilities, None if other else labels)
    lights = groups.lights(fields, p_values)
    learnt = np.bincount(known.labels, minlength=len(names))[fields.labels]
    suspects = find_suspects(fields, learnt if other else learnt - (labels == fields.labels))
    places = _places(store, fields.parcels)
    survey = choose_survey(fields, places, options.survey)
    checked = _rows(fields, p_values, lights, suspects, survey, places, names, keys)
    held = p_values[np.arange(len(fields)), fields.labels]
    elsewhere = _other_years(subject, store) if other else []
    broken = _warn_of_low_p_values(held, options.rate) if other or options.declared is not None else []
    warnings = [*elsewhere, *_warnings(groups, names, options.rate, other=other and not elsewhere), *broken]
    warnings += _warn_of_doubtful_labels(known, options.rate)
    for warning in warnings:
        logger.warning(warning)
    facts = {
        "run": str(subject.file.parent),
        "store": str(store.folder),
        "fields": len(fields),
        "undeclared": judged - len(fields),
        "calibrated_on": len(known),
        "other_store": other,
        "promised": not (elsewhere or broken),
        "rate": options.rate,
        "lights": {light: lights.count(light) for light in ("green", "yellow", "red")},
        "by_class": _by_class(fields.labels, lights, names),
        "if_wrong": groups.lights_if_wrong(known, groups.p_values(known.probabilities, known.labels)),
        "suspects": len(suspects),
        "pairs": confused_pairs(suspects, names),
        "pooled": [names[number] for number in groups.pooled if (known.labels == number).any()],
        "warnings": warnings,
        "classes": [{"name": crop.name, "colour": crop.colour} for crop in subject.card.fingerprint.classes],
    }
    shown = [fields.parcels[suspect.place] for suspect in suspects[:MOST_SHOWN]]
    reds = sorted((row for row in checked if row.light == "red"), key=lambda row: row.p_value)
    shown += [row.parcel for row in [*reds, *(row for row in checked if row.survey)]]
    band, curves, medians = _curves(store, list(dict.fromkeys(shown))[: 2 * MOST_SHOWN], fields, names)
    return CheckResult(subject.file.parent, store.folder, checked, facts, band, curves, medians)


def _declared_labels(
    crop_of: Mapping[str, str],
    fields: FieldProbabilities,
    keys: Mapping[ParcelId, str],
    subject: EvaluatedModel,
    path: Path | None,
) -> tuple[list[int], Integers]:
    """The rows of the fields with a declared crop, and its class."""
    rows = [row for row, parcel in enumerate(fields.parcels) if keys[parcel] in crop_of]
    if not rows:
        why = "none of its names is that of a labelled field in the store"
        remedy = "give the parcels that the store was made with"
        raise InputError("no field is declared", path=path, why=why, remedy=remedy)
    declared = [crop_of[keys[fields.parcels[row]]] for row in rows]
    return rows, _numbers(declared, subject.card.fingerprint.classes, path)


def _numbers(declared: Sequence[str], classes: ClassTable, path: Path | None) -> Integers:
    """The classes of declared crops, also if spelt in capitals; refuses those that the model does not know."""
    names = classes.names
    known = {crop: classes.find(crop) for crop in set(declared)}
    strange = Counter(crop for crop in declared if known[crop] is None)
    if strange:
        listed = short_list((f"'{crop}' ({count})" for crop, count in strange.most_common()), 5)
        raise MismatchError(
            "declared crops that the model does not know",
            path=path,
            why=f"{listed}; it knows {', '.join(names[:8])}{' ...' if len(names) > 8 else ''}",
            remedy="name, merge or drop them in a class table (--classes)",
        )
    return np.array([names.index(known[crop] or "") for crop in declared], dtype=np.int64)


def _rows(
    fields: FieldProbabilities,
    p_values: Floats,
    lights: Sequence[Light],
    suspects: Sequence[Suspect],
    survey: Sequence[int],
    places: Floats | None,
    names: Sequence[str],
    keys: Mapping[ParcelId, str],
) -> list[CheckedField]:
    rank = {suspect.place: place for place, suspect in enumerate(suspects, 1)}
    visit = {row: place for place, row in enumerate(survey, 1)}
    order = np.argsort(-fields.probabilities, axis=1, kind="stable")
    rows = []
    for row, parcel in enumerate(fields.parcels):
        best, second = int(order[row, 0]), int(order[row, min(1, len(names) - 1)])
        label = int(fields.labels[row])
        known = places is not None and bool(np.isfinite(places[row]).all())
        rows.append(
            CheckedField(
                parcel,
                keys[parcel],
                names[label],
                lights[row],
                float(p_values[row, label]),
                float(fields.probabilities[row, label]),
                names[best],
                float(fields.probabilities[row, best]),
                names[second],
                rank.get(row),
                visit.get(row),
                (float(places[row, 0]), float(places[row, 1])) if known and places is not None else None,
            )
        )
    return rows


# --- warnings about the guaranteed rate


def _other_years(subject: EvaluatedModel, store: Store) -> list[str]:
    """A warning where the fields are of years that the model did not learn: nothing is promised across years."""
    assert subject.result is not None
    learnt = {str(day)[:4] for day in subject.result["data"]["dates"]}
    years = {str(day.year) for reader in store.tiles for day in from_days(reader.observed_days)}
    if not years - learnt:
        return []
    return [
        f"the fields are of {_join(years)}, the model learnt {_join(learnt)}: across years the rate of false alarms is "
        "not promised and may be many times higher; label fields of this year and train with them"
    ]


def _warnings(groups: ConformalGroups, names: Sequence[str], rate: float, *, other: bool) -> list[str]:
    warnings = []
    if other:
        warnings.append(
            "the fields are not those of the training: the rate of false alarms holds as far as they are like them"
        )
    undecidable = [names[number] for number in groups.undecidable if number < len(names)]
    if undecidable and len(groups.odd[-1]):
        warnings.append(
            f"too few fields of {', '.join(undecidable)} ({len(groups.odd[-1])}) to reject them at a rate of {rate:g}: "
            "they are never red"
        )
    return warnings


def _warn_of_doubtful_labels(known: FieldProbabilities, rate: float) -> list[str]:
    """A warning where more of the known labels are suspect than may be false alarms."""
    doubtful = len(find_suspects(known)) / len(known)
    if doubtful <= rate:
        return []
    return [
        f"{doubtful:.0%} of the known labels are suspect, more than the rate of {rate:g}: "
        "fewer fields are red and more are yellow than with right labels; correct the suspect ones first"
    ]


def _warn_of_low_p_values(held: Floats, rate: float) -> list[str]:
    """A warning where p-values are so low that either many declarations are wrong or the promise does not hold here.

    Of right declarations at most half have a p-value of 0.5 or less, and at most the rate is red.
    """
    count = len(held)
    red, low = float(np.mean(held <= rate)), float(np.mean(held <= 0.5))
    margin = 3 / np.sqrt(count)
    if red <= rate + margin * np.sqrt(rate * (1 - rate)) or low <= 0.5 + margin * 0.5:
        return []
    wrong = (red - rate) / (1 - rate)
    return [
        f"{red:.0%} of the declared crops are red where at most {rate:.0%} of right ones would be: either {wrong:.0%} "
        "of them are wrong, or the model does not fit these fields; visit some before any of this is used"
    ]


def _join(words: set[str]) -> str:
    return ", ".join(sorted(words))


def _by_class(labels: Integers, lights: Sequence[Light], names: Sequence[str]) -> list[dict[str, Any]]:
    counts = Counter(zip(labels.tolist(), lights, strict=True))
    return [
        {"name": name, **{light: counts[number, light] for light in ("green", "yellow", "red")}}
        for number, name in enumerate(names)
        if any(counts[number, light] for light in ("green", "yellow", "red"))
    ]


# --- places and curves


def keys_of_parcels(store: Store) -> dict[ParcelId, str]:
    """What each parcel of a store is called in the data that it came from."""
    return {
        (reader.scene, int(number)): key
        for reader in store.tiles
        for number, key in zip(reader.table.numbers, reader.table.keys, strict=True)
    }


def _places(store: Store, parcels: Sequence[ParcelId]) -> Floats | None:
    """Centres of the fields in one coordinate system; None where there is none."""
    if "series" in store.manifest.layouts:
        return None
    if any(reader.layout == "patches" and not reader.crs for reader in store.tiles):
        return None
    fields = Fields.of(store)
    centres = centres_of(store, fields)
    if len({system for system, _, _ in centres.values()}) != 1:
        return None
    of_parcel = {
        parcel: centres[field][1:] for field, pieces in fields.pieces.items() if field in centres for parcel in pieces
    }
    return np.array([of_parcel.get(parcel, (np.nan, np.nan)) for parcel in parcels], dtype=np.float64).reshape(-1, 2)


def _curves(
    store: Store, shown: Sequence[ParcelId], fields: FieldProbabilities, names: Sequence[str]
) -> tuple[str, dict[ParcelId, Curve], dict[str, Curve]]:
    """NDVI, or the first band, of the shown fields and the middle of each class."""
    drawn = np.random.default_rng(0).permutation(len(fields))
    members: dict[int, list[ParcelId]] = {}
    for row in drawn.tolist():
        own = members.setdefault(int(fields.labels[row]), [])
        if len(own) < CURVES_PER_CLASS:
            own.append(fields.parcels[row])
    wanted = {*shown, *(parcel for own in members.values() for parcel in own)}
    band, series = _series(store, wanted)
    start = store.fingerprint.season.start
    grid = np.arange(0, store.fingerprint.season.length + 1, STEP)
    curves = {parcel: _curve(*series[parcel], start) for parcel in series}
    medians = {}
    for number, own in members.items():
        lines = [np.interp(grid, curves[p].days, curves[p].values, left=np.nan, right=np.nan)
                 for p in own if p in curves and curves[p].days]  # fmt: skip
        if lines:
            table = np.array(lines)
            seen = np.isfinite(table).sum(axis=0) >= max(len(lines) / 2, 1)
            middle = np.nanmedian(table[:, seen], axis=0)
            medians[names[number]] = Curve(grid[seen].tolist(), [round(float(value), 4) for value in middle])
    return band, {parcel: curves[parcel] for parcel in shown if parcel in curves}, medians


def _curve(days: NDArray[Any], values: Floats, start: int) -> Curve:
    """A curve by day of the season, in any year."""
    first = int(days.min()) if len(days) else 0
    year = np.datetime64(first, "D").astype("datetime64[Y]").astype("datetime64[D]").astype(int)
    since = [int(day - year - (start - 1)) for day in days.tolist()]
    order = np.argsort(since, kind="stable")
    return Curve([since[place] for place in order], [round(float(values[place]), 4) for place in order])


def _series(store: Store, wanted: set[ParcelId]) -> tuple[str, dict[ParcelId, tuple[NDArray[Any], Floats]]]:
    """Days and values of NDVI, where red and near infrared are there, else of the first band; clear dates alone."""
    fingerprint = store.fingerprint
    bands = [band.rpartition(":")[2] for band in fingerprint.bands]
    red, infrared = (bands.index(name) if name in bands else None for name in ("B04", "B08"))
    scales, offsets = fingerprint.scales, fingerprint.offsets

    def of(days: NDArray[Any], values: NDArray[Any], valid: NDArray[np.bool_]) -> tuple[NDArray[Any], Floats]:
        real = values[valid].astype(np.float64) * scales + offsets
        if red is None or infrared is None:
            line = real[:, 0]
        else:
            total = real[:, infrared] + real[:, red]
            line = np.divide(real[:, infrared] - real[:, red], total, out=np.full(len(total), np.nan), where=total > 0)
        kept = np.isfinite(line)
        return days[valid][kept], line[kept]

    series: dict[ParcelId, tuple[NDArray[Any], Floats]] = {}
    if store.manifest.layouts == {"series"}:
        for reader in store.tiles:
            for index, number in enumerate(reader.table.numbers.tolist()):
                if (reader.scene, number) in wanted:
                    values, valid, days = reader.sample(index)
                    series[reader.scene, number] = of(days, values, valid)
    else:
        pooled = pool_parcels(store, Split(dict.fromkeys(wanted, "all"), dict.fromkeys(wanted, 0)))
        series = {parcel: of(each.days, each.values, each.valid) for parcel, each in pooled.items()}
    return ("NDVI" if red is not None and infrared is not None else fingerprint.bands[0]), series


def summary_lines(facts: Mapping[str, Any]) -> list[str]:
    """The findings for the terminal."""
    lights, rate = facts["lights"], facts["rate"]
    total = max(facts["fields"], 1)
    shown = facts["pairs"][:PAIRS_SHOWN]
    others = facts["suspects"] - sum(row["fields"] for row in shown)
    wrong = {light: percent(share) for light, share in facts["if_wrong"].items()}
    promise = f"of those that are right, at most {rate:.0%} are red"
    if not facts["promised"]:
        promise = f"that at most {rate:.0%} of right ones are red is NOT promised here, see the warnings"
    return [
        f"{plural(facts['fields'], 'field')}, each judged by a model that never saw it",
        f"suspect labels  {facts['suspects']:,} ({facts['suspects'] / total:.1%})",
        *(f"  {row['fields']:5d}  {row['label']} looks like {row['probable']}" for row in shown),
        *([f"  {others:5d}  others"] if others else []),
        f"declared crops  {lights['green']:,} green, {lights['yellow']:,} yellow, {lights['red']:,} red; {promise}",
        f"wrong crops     would be red in {wrong['red']}, yellow in {wrong['yellow']} and green in {wrong['green']} of "
        "cases, if any other crop were declared",
    ]
