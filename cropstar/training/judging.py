"""The last look at a finished model: calibrated on validation, then judged once on the test parcels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cropstar.datasets.batches import Dataset
from cropstar.geo.calendar import Season
from cropstar.models.contract import Classifier
from cropstar.runtime import logger
from cropstar.training.calibration import Calibration, calibrate, parcel_weights
from cropstar.training.conformal import ConformalSets, learn_sets
from cropstar.training.earliness import EarlinessTally
from cropstar.training.evaluation import Evaluation, Witness, evaluate
from cropstar.training.levels import Level
from cropstar.training.score_sample import ScoreSample

COVERAGE = 0.9


@dataclass(frozen=True)
class Judgement:
    test: Evaluation
    calibration: Calibration
    sets: ConformalSets
    facts: dict[str, Any]  # what the report shows beside the confusion matrices
    validation: Evaluation | None  # None: the model has learnt from it


def judge(
    model: Classifier,
    parts: Mapping[str, Dataset],
    classes: int,
    season: Season,
    device: torch.device,
    levels: Sequence[Level] = (),
    held_out: ScoreSample | None = None,
) -> Judgement:
    """Every parcel counts as one in the calibration, however many pixels it has.

    `held_out` are the scores to calibrate by, of a model that has learnt from the validation parcels too.

    Temperature and sets are learnt on the parcels on which the epoch was chosen too: what they promise holds nearly,
    and the test says how nearly.
    """
    validation = None
    if held_out is None:
        held_out = ScoreSample(classes)
        validation = evaluate(model, parts["validation"], classes, device, Witness(held_out))
    scores, labels, parcels = held_out.arrays()
    calibration = calibrate(scores, labels, parcel_weights(parcels))
    if calibration.bounded:
        logger.warning("the confidence could not be calibrated: validation has too few mistakes, or nothing but them")
    sets = learn_sets(calibration.probabilities(scores), labels, parcels, coverage=COVERAGE)

    unseen = ScoreSample(classes)
    earliness = EarlinessTally(season, classes) if model.streaming else None
    tested = evaluate(model, parts["test"], classes, device, Witness(unseen, earliness), levels)
    scores, labels, parcels = unseen.arrays()
    promise = sets.judged(calibration.probabilities(scores), labels, parcels)
    facts: dict[str, Any] = {
        "calibration": calibration.judged(scores, labels, parcel_weights(parcels)).to_json(),
        "sets": {**sets.to_json(), "test": promise.to_json()},
    }
    if earliness is not None and tested.unit != "date":  # how early the class of one date is known says nothing
        facts["earliness"] = earliness.result().to_json()
    return Judgement(tested, calibration, sets, facts, validation)
