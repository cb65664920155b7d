"""Cross-fitting: a network that learns from every training field, and is still judged and calibrated without it.

With a few hundred fields, those held out for validation are missed in training, and too few to say much. So k models
with the same settings are trained first, each without one fold of the fields; what they say of the fields that they
never saw is the validation figure, and calibrates. Then the model itself learns from all fields, for as many epochs.
No epoch is chosen: the last one, at a learning rate of zero, is kept. The members of an ensemble are trained on all
fields too; the folds are those of one member, whose confidence is a little lower than that of all together.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from cropstar.config import FITTED, TrainConfig
from cropstar.datasets.batches import Dataset
from cropstar.errors import UsageError
from cropstar.models.contract import Classifier
from cropstar.training.calibration import fit_temperature, parcel_weights
from cropstar.training.ensembles import mean_history
from cropstar.training.evaluation import Witness, evaluate
from cropstar.training.metrics import macro_f1, overall_accuracy
from cropstar.training.score_sample import ScoreSample
from cropstar.training.state import Progress


def require_cross_fittable(config: TrainConfig, processes: int) -> None:
    """Refuse what has its own use for a validation part."""
    if not config.cross_fit:
        return
    if config.cross_fit == 1:
        raise UsageError("one fold cannot be left out", remedy="set cross_fit to 2 or more, or to 0")
    asked = {
        f"'{config.model.name}'": config.model.name in FITTED,
        "beside": bool(config.beside),
        "--refit": config.refit,
        "torchrun": processes > 1,
        "split.by=pixel": config.split.by == "pixel",
    }
    for name in (name for name, given in asked.items() if given):
        raise UsageError(f"{name} cannot be combined with cross_fit", remedy="set cross_fit=0")


def without_choice(config: TrainConfig) -> TrainConfig:
    """Settings that keep the last epoch, whatever validation says of others."""
    return config.model_copy(update={"choose_after": (config.epochs - 0.5) / config.epochs, "patience": None})


class OutOfFold:
    """Collects what the model of every fold says of the fields that it was not trained on."""

    def __init__(self, classes: int, device: torch.device) -> None:
        self.scores = ScoreSample(classes)
        self._confusion = np.zeros((classes, classes), dtype=np.int64)
        self._device = device
        self._trainings: list[Progress] = []

    def add(self, model: Classifier, held_out: Dataset, training: Progress) -> None:
        found = evaluate(model, held_out, len(self._confusion), self._device, Witness(self.scores))
        self._confusion += found.parcel
        self._trainings.append(training)

    def calibrated(self) -> tuple[float, ScoreSample]:
        """The temperature of a member of an ensemble, and the scores with it."""
        scores, labels, parcels = self.scores.arrays()
        temperature, _ = fit_temperature(scores, labels, parcel_weights(parcels))
        sample = ScoreSample(len(self._confusion))
        sample.add(scores / temperature, labels, parcels)
        return temperature, sample

    def facts(self) -> dict[str, Any]:
        return {
            "folds": len(self._trainings),
            "fields": int(self._confusion.sum()),
            "overall_accuracy": overall_accuracy(self._confusion),
            "macro_f1": macro_f1(self._confusion),
        }

    def with_final(self, final: Progress) -> Progress:
        """The training on all fields, with the curves of the folds and the time of all."""
        every = [*self._trainings, final]
        return replace(
            final,
            history=mean_history(self._trainings),
            seconds=sum(each.seconds for each in every),
            samples=sum(each.samples for each in every),
        )
