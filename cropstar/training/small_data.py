"""Small and imbalanced data: warnings before a training, and baselines for its figures.

A figure is worth what it was measured on. Classes of few fields are named before a training, with what can be done;
classes that validation or test lack are named in the run, in its report and in the model file; and beside the accuracy
of the model stands that of always naming the most frequent class and, if asked for, that of a random forest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from cropstar.config import FITTED, ModelConfig, TrainConfig
from cropstar.datasets.splits import PARTS, PixelSplit, Split
from cropstar.registry import short_list
from cropstar.reports.record import FEW_TESTED
from cropstar.reports.wording import plural
from cropstar.runtime import event, logger
from cropstar.store.store import Store
from cropstar.training.accuracy import Evaluation, evaluate
from cropstar.training.fitting import fit_model, require_fittable, settings_for
from cropstar.training.metrics import Confusion, macro_f1, overall_accuracy
from cropstar.training.runs import Run
from cropstar.training.setup import Setup
from cropstar.training.trainer import Task

FEW_FIELDS = 10  # of a class: with fewer, one field more or less moves its figures by ten points
FOLDS = 5  # that are proposed
NAMED = 8  # classes that one line names


def tested_counts(split: Split, classes: int) -> dict[str, list[int]]:
    """Fields per class in each part; where all fields are judged out of fold they are of training and test alike."""
    counts = split.counts(classes)
    return {**counts, "test": counts["train"]} if split.about.get("test") == 0 else counts


def both_parts(split: Split) -> dict[str, dict[str, list[int]]]:
    """The parcels as a result lists them, where each is learnt from and judged out of fold."""
    listed: dict[str, list[int]] = defaultdict(list)
    for scene, number in sorted(split.part_of):
        listed[scene].append(number)
    return {"train": dict(listed), "validation": {}, "test": dict(listed)}


# --- before training


def warn_of_small_data(store: Store, split: Split, config: TrainConfig) -> None:
    """Name the classes that are too small to learn or to judge, and say what helps."""
    names, counts = store.fingerprint.classes.names, tested_counts(split, len(store.fingerprint.classes))
    out_of_fold = config.split.out_of_fold
    totals = np.sum([counts[part] for part in (PARTS[:1] if out_of_fold else PARTS)], axis=0)
    if isinstance(split, PixelSplit):
        totals = np.max([counts[part] for part in PARTS], axis=0)
    present = [number for number in range(len(names)) if totals[number]]
    few = [number for number in present if totals[number] < FEW_FIELDS]
    if few:
        logger.warning(
            "few fields: %s (fewer than %d each): such a class is hard to learn, and its figures mean little; merge it "
            "with one like it ('ingest --classes'), leave it out there, or label more fields",
            short_list(
                (f"'{names[number]}' {totals[number]}" for number in sorted(few, key=lambda each: totals[each])), NAMED
            ),
            FEW_FIELDS,
        )
    for number in present:
        if not counts["train"][number]:
            logger.warning("no training parcel of '%s': the model cannot learn this class", names[number])
    if out_of_fold:
        _warn_of_folds(names, counts["train"], config)
        return
    for part in ("test",) if config.cross_fit else ("validation", "test"):
        absent = [f"'{names[number]}'" for number in present if not counts[part][number]]
        if absent:
            known = sum(1 for number in present if counts[part][number])
            what = "epochs are chosen without them" if part == "validation" else "the accuracy says nothing of them"
            logger.warning(
                "no %s field of %s: %s, the figures are over %d of %d classes",
                part,
                short_list(absent, NAMED),
                what,
                known,
                len(present),
            )
    tested = sum(counts["test"])
    if tested < FEW_TESTED and config.split.by != "pixel" and config.split.name is None:
        logger.warning(
            "the test part has %s: too few to trust its figures; 'cropstar train --folds %d' judges all %d, each by a "
            "model that never saw it, and trains on all of them",
            plural(tested, "field"),
            FOLDS,
            int(totals.sum()),
        )


def _warn_of_folds(names: Sequence[str], counts: Sequence[int], config: TrainConfig) -> None:
    once = [f"'{names[number]}'" for number, count in enumerate(counts) if count == 1]
    if once:
        line = "a single field of %s: the model that judges it knows no other one, so it counts as wrong"
        logger.warning(line, short_list(once, NAMED))
    rare = [f"'{names[number]}' {count}" for number, count in enumerate(counts) if 1 < count < config.cross_fit]
    if rare:
        line = "%d folds are more than the fields of %s: some folds have none"
        logger.warning(line, config.cross_fit, short_list(rare, NAMED))


def advise_trees(facts: dict[str, Any], forest: float | None) -> None:
    """Say so where a forest, right so often out of bag, knows the training fields better by more than chance."""
    reached = facts["overall_accuracy"]
    if forest is None or reached is None:
        return
    error = np.sqrt(max(reached * (1 - reached), forest * (1 - forest)) / facts["fields"])
    if forest > reached + error:
        logger.warning(
            "a random forest is right more often (%.3f out of bag) than this model (%.3f out of fold, %d fields): "
            "consider '--model rf', or '--model auto', which compares",
            forest,
            reached,
            facts["fields"],
        )


# --- baselines


def majority(names: Sequence[str], counts: dict[str, list[int]], tested: Evaluation) -> dict[str, Any]:
    """The figures of always naming the class with the most fields in training and validation."""
    learnt = np.add(counts["train"], counts["validation"])
    number = int(learnt.argmax())
    return {
        "name": "most frequent class",
        "class": names[number],
        "parcel": _figures(_always(tested.parcel, number)),
        "pixel": _figures(_always(tested.pixel, number)),
    }


def forest_baseline(config: TrainConfig, setup: Setup, split: Split, run: Run) -> dict[str, Any]:
    """The figures of a random forest that learns from the same fields and is judged on the same."""
    own = settings_for(config.model_copy(update={"model": ModelConfig(name="rf"), "ensemble": 1, "beside": []}))
    own = own.model_copy(update={"refit": False, "cross_fit": 0, "clean": False})
    folds = setup.folds(split, config, config.cross_fit) if config.split.out_of_fold else [split.with_validation()]
    part = "validation" if config.split.out_of_fold else "test"
    predicted = []
    for fold in folds:
        model = setup.build(own)
        parts, _ = setup.open(fold, own, model)
        task = Task(own, run, model, parts["train"], parts[part], setup.classes, setup.device, 0.0)
        fit_model(task, lambda _, __: None)
        predicted.append(evaluate(model, parts[part], setup.classes, setup.device))
    tested = Evaluation.merged(predicted)
    return {"name": "random forest", "parcel": _figures(tested.parcel), "pixel": _figures(tested.pixel)}


def require_forest(config: TrainConfig) -> None:
    """Refuse, before a run is made, a forest that cannot be fitted."""
    if config.forest and config.model.name not in FITTED:
        require_fittable(TrainConfig(store=config.store, model=ModelConfig(name="rf")))


def log_baselines(baselines: Sequence[dict[str, Any]], tested: Evaluation) -> None:
    """Log the baselines in one line, and warn if the model is no better than the most frequent class."""
    unit = "pixel" if tested.unit != "parcel" else "parcel"
    words = []
    for row in baselines:
        known = f" ('{row['class']}')" if "class" in row else ""
        words.append(f"{row['name']}{known} accuracy {row['parcel']['overall_accuracy'] or 0:.3f}")
    event(f"baselines, by parcel: {'; '.join(words)}", baselines=list(baselines))
    reached, lowest = overall_accuracy(getattr(tested, unit)), baselines[0][unit]["overall_accuracy"]
    if reached is not None and lowest is not None and reached <= lowest:
        logger.warning(
            "the model is no better than naming '%s' everywhere (accuracy %.3f): its maps are of no use",
            baselines[0]["class"],
            lowest,
        )


def _always(matrix: Confusion, number: int) -> Confusion:
    answer = np.zeros_like(matrix)
    answer[:, number] = matrix.sum(axis=1)
    return answer


def _figures(matrix: Confusion) -> dict[str, float | None]:
    return {"overall_accuracy": overall_accuracy(matrix), "macro_f1": macro_f1(matrix)}
