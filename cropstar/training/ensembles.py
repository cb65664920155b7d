"""Several trainings of one run: members of an ensemble, and the folds of a cross-fitting.

Members are trained one after the other, each in a folder of its own below that of the run, and a finished one leaves
a `result.json`: a killed run resumes inside the member it was at. The split is that of the run for all;
weights, order, dropout and augmentation follow from the member's own seed. The first member has the seed of the run,
so that it is the model which the run would give without an ensemble.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from cropstar.config import FITTED, ModelConfig, TrainConfig
from cropstar.datasets.batches import Dataset
from cropstar.datasets.splits import Split
from cropstar.errors import ArtifactError, UsageError
from cropstar.models.calibration import calibrate, fit_temperature, learn_sets, measure_coverage, parcel_weights
from cropstar.models.contract import Classifier
from cropstar.store.files import write_json, write_json_lines
from cropstar.store.gate import OutcomeRow, checked, read_json
from cropstar.store.store import Store
from cropstar.training.accuracy import (
    COVERAGE,
    CalibratedEvaluation,
    Collectors,
    EarlinessTally,
    Evaluation,
    dates_in_season,
    evaluate,
)
from cropstar.training.fitting import settings_for
from cropstar.training.metrics import Level, ScoreSample, macro_f1, overall_accuracy
from cropstar.training.novelty import HeldOutFeatures, Stages, learn_distances, supports_novelty
from cropstar.training.runs import Run
from cropstar.training.trainer import Progress


@dataclass(frozen=True)
class Member:
    number: int  # from 1
    config: TrainConfig
    run: Run
    model: Classifier


@dataclass(frozen=True)
class Outcome:
    """A member at its best epoch."""

    progress: Progress
    temperature: float = 1.0
    validation: dict[str, float | None] | None = None
    held_out: ScoreSample | None = None  # to calibrate by, of a model that has learnt from validation too

    def to_json(self) -> dict[str, Any]:
        return {"progress": vars(self.progress), "temperature": self.temperature, "validation": self.validation}


def member_configs(config: TrainConfig) -> list[TrainConfig]:
    """The configuration of every member; of a run without an ensemble its own."""
    kinds = [config.model, *config.beside] * config.ensemble
    if len(kinds) == 1:
        return [config]
    return [_member_config(config, kind, number) for number, kind in enumerate(kinds)]


def _member_config(config: TrainConfig, kind: ModelConfig, number: int) -> TrainConfig:
    seed = int(np.random.SeedSequence([config.seed, number]).generate_state(1)[0]) if number else config.seed
    own = config.model_copy(update={"model": kind, "seed": seed, "ensemble": 1, "beside": []})
    return settings_for(own)


def finished_outcome(run: Run) -> Outcome | None:
    """The outcome of a member that an earlier start of the run finished; None if it did not."""
    if not run.finished:
        return None
    try:
        row = checked(OutcomeRow, read_json(run.result))
        return Outcome(Progress(**row.progress.model_dump()), row.temperature, row.validation)
    except (ValueError, TypeError) as failure:
        why = f"it cannot be understood ({failure})"
        raise ArtifactError(
            "the result of a member cannot be used", path=run.result, why=why, remedy="start again with --fresh"
        ) from None


def calibrate_member(
    member: Member, progress: Progress, dataset: Dataset, classes: int, device: torch.device
) -> Outcome:
    """The temperature of a trained member, and its figures on validation; noted as the end of the member."""
    known = ScoreSample(classes)
    judged = evaluate(member.model, dataset, classes, device, Collectors(known))
    scores, labels, parcels = known.arrays()
    temperature, _ = fit_temperature(scores, labels, parcel_weights(parcels))
    outcome = Outcome(progress, temperature, validation_figures(judged))
    write_json(member.run.result, outcome.to_json())
    return outcome


def validation_figures(judged: Evaluation) -> dict[str, float | None]:
    return {"overall_accuracy": overall_accuracy(judged.pixel), "macro_f1": macro_f1(judged.pixel)}


def write_metrics(run: Run, histories: Sequence[list[dict[str, Any]]]) -> None:
    """One line per epoch, member after member."""
    rows = [{"member": number, **row} for number, rows in enumerate(histories, 1) for row in rows]
    write_json_lines(run.metrics, rows)


def summed(outcomes: Sequence[Outcome]) -> Progress:
    """The progress of all members together; its history is the mean over those that reached an epoch."""
    if len(outcomes) == 1:
        return outcomes[0].progress
    own = [outcome.progress for outcome in outcomes]
    return Progress(
        samples=sum(progress.samples for progress in own),
        seconds=sum(progress.seconds for progress in own),
        history=mean_history(own),
    )


def mean_history(trainings: Sequence[Progress]) -> list[dict[str, Any]]:
    """Epoch by epoch, the mean of the trainings that got to it."""
    longest = max(len(progress.history) for progress in trainings)
    return [
        _mean_row([progress.history[place] for progress in trainings if place < len(progress.history)])
        for place in range(longest)
    ]


def _mean_row(rows: list[dict[str, Any]]) -> dict[str, Any]:
    keys = rows[0]["validation"]
    return {
        "epoch": rows[0]["epoch"],
        "loss": float(np.mean([row["loss"] for row in rows])),
        "validation": {key: float(np.mean([row["validation"][key] for row in rows])) for key in keys},
        "seconds": round(sum(row["seconds"] for row in rows), 1),
    }


def ensemble_facts(
    members: Sequence[Member], outcomes: Sequence[Outcome], together: Evaluation | None
) -> dict[str, Any]:
    """For the report: the members on validation, and what they reach together; None if they have learnt from it."""
    rows = [
        {
            "name": member.config.model.name,
            "layers": member.config.model.layers,
            "hidden": member.config.model.hidden,
            "seed": member.config.seed,
            "best_epoch": outcome.progress.best_epoch,
            "temperature": outcome.temperature,
            "validation": outcome.validation,
        }
        for member, outcome in zip(members, outcomes, strict=True)
    ]
    return {"validation": validation_figures(together) if together else None, "members": rows}


# --- cross-fitting: a network that learns from every training field, judged and calibrated by folds
#
# With a few hundred fields, those held out for validation are missed in training, and too few to say much. So k models
# with the same settings are trained first, each without one fold of the fields; their answers on the fields that they
# never saw are the validation figure, and calibrate. Then the model itself learns from all fields, for as many epochs.
# No epoch is chosen: the last one, at a learning rate of zero, is kept. The members of an ensemble are trained on all
# fields too; the folds are those of one member, whose confidence is a little lower than that of all together. Of
# models that differ (`beside`) each has its folds, and what they say together is judged.
#
# With `split.test=0` (--folds) no field is kept for the test: the folds are of all fields, and what is said of them out
# of fold are the figures of the report. `split.folds` and `split.fold` are another thing: one fold of several is the
# test part of an ordinary training, for who wants to run the folds one by one.


def require_cross_fittable(config: TrainConfig, processes: int) -> None:
    """Refuse what has its own use for a validation part."""
    if not config.cross_fit:
        return
    if config.cross_fit == 1:
        raise UsageError("one fold cannot be left out", remedy="set cross_fit to 2 or more, or to 0")
    asked = {
        "--refit": config.refit,
        "torchrun": processes > 1,
        "split.by=pixel": config.split.by == "pixel",
    }
    named = "--folds" if config.split.out_of_fold else "--clean" if config.clean else "cross_fit"
    for name in (name for name, given in asked.items() if given):
        remedy = "set cross_fit=0" if named == "cross_fit" else "leave one of them out"
        raise UsageError(f"{name} cannot be combined with {named}", remedy=remedy)


def keeping_last_epoch(config: TrainConfig) -> TrainConfig:
    """A configuration that keeps the last epoch, without choosing by validation."""
    if config.model.name in FITTED:
        return config
    return config.model_copy(update={"choose_after": (config.epochs - 0.5) / config.epochs, "patience": None})


class OutOfFold:
    """Collects the predictions of each fold's model for the fields that it was not trained on."""

    def __init__(
        self, split: Split, classes: int, device: torch.device, store: Store, levels: Sequence[Level] = ()
    ) -> None:
        """`split` is that of a fold: all have the same parcels."""
        self.scores = ScoreSample(classes)
        self.split = split
        self._classes = classes
        self._device = device
        self._levels = levels
        self._evaluations: list[Evaluation] = []
        self._trainings: list[Progress] = []
        self._earliness = EarlinessTally(store.fingerprint.season, classes, dates_in_season(store))
        self._store = store
        self.novelty: HeldOutFeatures | None = None
        self.temperatures: list[float] = []  # of models that differ, whose scores together are the ones collected

    def add(self, model: Classifier, held_out: Dataset, training: Progress) -> None:
        # How early a crop is known is of interest where these figures stand in place of a test.
        asked = self._earliness if model.streaming and self.replaces_test else None
        collectors = Collectors(self.scores, asked)
        self._evaluations.append(evaluate(model, held_out, self._classes, self._device, collectors, self._levels))
        self._trainings.append(training)

    @property
    def replaces_test(self) -> bool:
        """Whether the folds replace the test: no fields are held out."""
        return self.split.about.get("test") == 0

    @property
    def evaluation(self) -> Evaluation:
        """The evaluation of all fields, each by the model that never saw it."""
        return Evaluation.merged(self._evaluations)

    def measure_novelty(self, model: Classifier, training: Dataset, held_out: Dataset) -> None:
        """Collect how odd the held-out fields are to the fold's model, for the class *unknown*."""
        if not supports_novelty(model, training):
            return
        classes, stages = self._classes, Stages.of(model, self._store)
        if self.novelty is None:
            self.novelty = HeldOutFeatures(classes, stages, self._device)
        distances = learn_distances(model, training, stages, classes, self._device)
        self.novelty.add(model, distances, held_out)

    def calibrated(self) -> tuple[float, ScoreSample]:
        """The temperature of a member of an ensemble, and the scores with it; models that differ have their own."""
        if self.temperatures:
            return 1.0, self.scores
        scores, labels, parcels = self.scores.arrays()
        temperature, _ = fit_temperature(scores, labels, parcel_weights(parcels))
        sample = ScoreSample(self._classes)
        sample.add(scores / temperature, labels, parcels)
        return temperature, sample

    def temperature_of(self, number: int) -> float:
        """The temperature of a member, counted from 1."""
        return self.temperatures[(number - 1) % len(self.temperatures)] if self.temperatures else self.calibrated()[0]

    def calibrated_evaluation(self, sample: ScoreSample, *, streaming: bool) -> CalibratedEvaluation:
        """The figures of all fields in place of a test. Sets of a fold are learnt on the other folds.

        The one number that is fitted to the fields it is judged on is the temperature. `sample` are the scores, or
        those of `calibrated`.
        """
        scores, labels, parcels = sample.arrays()
        calibration = calibrate(scores, labels, parcel_weights(parcels), "out of fold")
        probabilities = calibration.probabilities(scores)
        sets = learn_sets(probabilities, labels, parcels, coverage=COVERAGE)
        chosen = np.zeros(probabilities.shape, dtype=bool)
        for part in self._evaluations:
            own = np.isin(parcels, part.parcel_counts.parcels)
            others = learn_sets(probabilities[~own], labels[~own], parcels[~own], coverage=COVERAGE)
            chosen[own] = others.sets(probabilities[own])
        facts: dict[str, Any] = {
            "calibration": calibration.judged(scores, labels, parcel_weights(parcels), "out of fold").to_json(),
            "sets": {**sets.to_json(), "test": measure_coverage(chosen, labels, parcels).to_json()},
        }
        evaluation = self.evaluation
        if streaming and evaluation.unit != "date":
            facts["earliness"] = self._earliness.result().to_json()
        return CalibratedEvaluation(evaluation, calibration, sets, facts, None)

    def facts(self) -> dict[str, Any]:
        matrix = self.evaluation.parcel
        return {
            "folds": len(self._trainings),
            "fields": int(matrix.sum()),
            "overall_accuracy": overall_accuracy(matrix),
            "macro_f1": macro_f1(matrix),
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
