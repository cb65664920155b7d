"""`cropstar train`: from a store to a model file, its figures and its report."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from cropstar import __version__
from cropstar.config import AUTO, FITTED, TrainConfig, dump_config
from cropstar.datasets.samples import Prepared
from cropstar.datasets.splits import PARTS, Split, describe_lines, describe_split, named_splits, training_split
from cropstar.errors import ResourceError, UsageError
from cropstar.execution.local import FEWEST_TASKS, LocalPool
from cropstar.geo.calendar import from_days
from cropstar.geo.grid import Grid, degrees_of
from cropstar.models.backends import has_bfloat16, has_bfloat16_kernels
from cropstar.models.contract import Classifier, Shape, count_parameters
from cropstar.models.normalisation import normalises_by_batch
from cropstar.models.novelty import UNKNOWN, NoveltyScale
from cropstar.models.zoo import Ensemble, describe_model, load_weights, name_ensemble, weights_of
from cropstar.reports.record import Bounds, TestRecord, join_bounds
from cropstar.reports.report import write_report
from cropstar.reports.wording import plural
from cropstar.runtime import (
    event,
    keep_large_buffers,
    logger,
    memory_limit,
    peak_memory_megabytes,
    track,
    usual_threads,
)
from cropstar.store.files import write_json, write_text
from cropstar.store.model_file import ModelCard, read_model, write_model
from cropstar.store.store import Store
from cropstar.training.distillation import Teacher
from cropstar.training.distributed import ALONE, Processes, joined, require_shareable
from cropstar.training.ensembles import (
    Member,
    Outcome,
    OutOfFold,
    calibrate_member,
    ensemble_facts,
    finished_outcome,
    keeping_last_epoch,
    member_configs,
    require_cross_fittable,
    summed,
    write_metrics,
)
from cropstar.training.evaluation import CalibratedEvaluation, dates_in_season, error_map_facts, evaluate_calibrated
from cropstar.training.fitting import ForestTeacher, fit_model, require_fittable
from cropstar.training.label_check import FieldProbabilities, Suspect, clean_facts, find_suspects
from cropstar.training.metrics import levels_of
from cropstar.training.monitoring import Diagnosis, EventFiles, require_tensorboard
from cropstar.training.novelty import HeldOutFeatures, Stages, learn_distances, supports_novelty
from cropstar.training.optimisation import Precision
from cropstar.training.runs import Run, claim_run, open_run
from cropstar.training.selection import Selection, require_selectable, select
from cropstar.training.setup import Setup, scene_recipes
from cropstar.training.small_data import (
    advise_trees,
    both_parts,
    forest_baseline,
    log_baselines,
    majority,
    require_forest,
    tested_counts,
    warn_of_small_data,
)
from cropstar.training.trainer import Progress, SaveModel, Task, takes_small_steps, threads_for

MANY_STEPS = 500  # of a model: some seconds, for which a process is worth starting
SMALL_DATA = 256_000_000  # bytes, of which every process holds a copy
MEMORY_OF_A_WORKER = 2**30 + 2 * SMALL_DATA  # bytes


@dataclass(frozen=True)
class TrainOptions:
    """Options that do not change the outcome."""

    runs: Path
    device: torch.device
    resume: Path | None = None
    fresh: bool = False
    checkpoint_seconds: float = 30.0
    diagnose: bool = False
    tensorboard: bool = False
    backend: str = "auto"  # see models/backends.py; the last bits do depend on it
    budget: float | None = None  # minutes to compare the candidates of the model 'auto'; None: the usual ones


def train(config: TrainConfig, options: TrainOptions) -> tuple[Run, dict[str, Any]]:
    """Train to the end and evaluate the best model once on the test parcels.

    Of several processes the first one judges and has a result, the others end when training does.
    """
    keep_large_buffers()
    with ExitStack() as hold:
        processes = hold.enter_context(joined())
        store = Store.open(config.store)
        hold.callback(store.close)
        split = training_split(store, config)
        _log_split(store, split, describe_split(store, split))
        warn_of_small_data(store, split, config)
        setup = Setup.of(store, config, processes.own_device(options.device), options.backend)
        training = _begin(config, options, setup, split, processes, hold)
        config = training.config  # with the model that was chosen
        out_of_fold = training.cross_fit() if config.cross_fit else None
        if out_of_fold is not None and processes.is_first:
            advise_trees(out_of_fold.facts(), training.forest_accuracy)
        suspects = training.leave_out_suspects(out_of_fold) if config.clean and out_of_fold is not None else []
        outcomes = [training.fit(member, out_of_fold) for member in training.members]
        refits = training.refit(outcomes) if config.refit else []
        if not processes.is_first:
            return training.run, {}
        result = _finish(training, outcomes, refits, out_of_fold, suspects)
        write_report(training.run.report, result)
        write_json(training.run.result, result)
    return training.run, result


def _begin(
    config: TrainConfig, options: TrainOptions, setup: Setup, split: Split, processes: Processes, hold: ExitStack
) -> _Training:
    """Choose and build the models, refuse what cannot be trained, claim the run folder and open the data."""
    store = setup.store
    data: dict[str, Any] = {"fingerprint": store.fingerprint.to_json(), "scenes": scene_recipes(store)}
    claimed, selection = None, None
    if config.model.name == AUTO:
        _require_choice(config, options, store, split, processes)
        claimed = _claim(config, options, data, hold, processes)
        event(f"{AUTO}; run {claimed.folder}")
        seconds = options.checkpoint_seconds
        selection = select(config, setup, split, claimed, minutes=options.budget, checkpoint_seconds=seconds)
        config = selection.config
    elif options.budget is not None:
        raise UsageError(f"--budget is for --model {AUTO}", remedy="leave it out")
    shape = setup.shape(config)
    configs = member_configs(config)
    models = [setup.build(own, shape) for own in configs]
    # Before a run folder is made: an unknown name, or what cannot be trained, leaves nothing.
    model = models[0] if len(models) == 1 else Ensemble(models, shape.bands)
    require_cross_fittable(config, processes.size)
    require_forest(config)
    if config.cross_fit:
        setup.folds(split, config, config.cross_fit)  # refuses more folds than there are units
    for own, each in zip(configs, models, strict=True):
        setup.require(own, each)
        _require_possible(own, options, each, processes, setup.device)
    teacher = _teacher(config, setup, split, shape)
    if isinstance(teacher, Teacher):
        data["teacher"] = teacher.digest
    run = claimed or _claim(config, options, data, hold, processes)
    members = _members(run, configs, models)
    event(f"{_in_words(config, configs, model)}; run {run.folder}")
    if not model.streaming and model.makes_maps:
        logger.info("this model needs the whole season: for predict --state and update, train one that streams (star)")
    learnt = split.with_validation() if config.cross_fit else split
    parts, normalisation = setup.open(learnt, config, model)
    hold.enter_context(threads_for(parts["train"], config))
    if teacher is not None:
        parts["train"] = teacher.teach(parts["train"], learnt, config)
    forest_accuracy = teacher.accuracy if isinstance(teacher, ForestTeacher) else None  # before folds are taught
    provenance = {
        "version": __version__,
        "seed": config.seed,
        "scenes": scene_recipes(store),
        "reading": _reading(store),
        "class_fields": tested_counts(split, setup.classes),
        "out_of_fold": config.cross_fit if config.split.out_of_fold else 0,
        **_dates(config),
        **({"target": config.target} if config.target else {}),
        **_sensors(config, store),
        **({"distil": teacher.facts()} if isinstance(teacher, Teacher) else {}),
    }
    described = describe_model([own.model for own in configs])
    card = ModelCard(described, shape.to_json(), store.fingerprint, normalisation, provenance)
    return _Training(
        *(config, run, members, model, parts, learnt, card, setup, split),
        *(teacher, forest_accuracy, selection, processes, options, hold),
    )


def _finish(
    training: _Training,
    outcomes: Sequence[Outcome],
    refits: Sequence[Progress],
    out_of_fold: OutOfFold | None,
    suspects: Sequence[Suspect],
) -> dict[str, Any]:
    """Evaluate the best model, save it with all that maps need, and return the result."""
    config, run, model, setup = training.config, training.run, training.model, training.setup
    store, classes = setup.store, setup.store.fingerprint.classes.names
    for member in training.members:
        _load(member.model, training.best(member))
    if isinstance(model, Ensemble):
        model.calibrate([outcome.temperature for outcome in outcomes])
        model.to(setup.device)
    judged, progress = _judged(training, outcomes, out_of_fold)
    confidence = {"temperature": judged.calibration.to_json(), "sets": judged.sets.to_json()}
    members = len(training.members)
    novelty = _Novelty(setup, training.parts, judged.calibration.temperature, out_of_fold, members=members)
    card = novelty.with_limits(replace(training.card, calibration=confidence), model)

    result = _result(config, run, store, training.split, count_parameters(model), progress, judged)
    counts = card.provenance["class_fields"]
    result["split"]["counts"] = counts
    result["baselines"] = [majority(classes, counts, judged.test)]
    if config.forest and config.model.name not in FITTED:
        event("baseline: a random forest on the same fields")
        result["baselines"].append(forest_baseline(config, setup, training.split, run))
    log_baselines(result["baselines"], judged.test)
    if out_of_fold is not None:
        _add_out_of_fold(result, training, out_of_fold, judged)
    if config.clean:
        result["clean"] = clean_facts(suspects, store)
    record = TestRecord.of_result(result, store.fingerprint.season, join_bounds(store_bounds(store)))
    card = replace(card, provenance={**card.provenance, "record": record.to_json()})
    _save(run.before_refit if config.refit else run.model, card, model)
    if isinstance(model, Ensemble):
        result["model"]["name"] = card.model["name"]
        result["ensemble"] = ensemble_facts(training.members, outcomes, judged.validation)
    if isinstance(training.teacher, Teacher):
        teacher = training.teacher.facts()
        result["distil"] = {"path": str(config.distil), **teacher, "share": config.loss.teacher}
    if out_of_fold is not None:
        result["cross_fit"] = {**out_of_fold.facts(), "forest": training.forest_accuracy}
    if training.selection is not None:
        result["selection"] = training.selection.facts
    if config.refit:
        epochs = [outcome.progress.best_epoch for outcome in outcomes]
        _save_refitted(training, epochs, card, novelty)
        result["refit"] = {"epochs": epochs, "seconds": round(sum(each.seconds for each in refits), 1)}
    return result


def _save_refitted(training: _Training, epochs: list[int], card: ModelCard, novelty: _Novelty) -> None:
    """Save the model that learnt from all fields as the run's model, with the card of the one that was judged."""
    for member in training.members:
        _load(member.model, member.run.refit.model)
    card = replace(card, provenance={**card.provenance, "refit": {"epochs": epochs}})
    _save(training.run.model, novelty.remeasured(card, training.model), training.model)


def _judged(
    training: _Training, outcomes: Sequence[Outcome], out_of_fold: OutOfFold | None
) -> tuple[CalibratedEvaluation, Progress]:
    """The one evaluation on the test parcels, or of all fields out of fold; and the progress of all members."""
    model, setup, fingerprint = training.model, training.setup, training.setup.store.fingerprint
    held_out, progress = outcomes[0].held_out if len(outcomes) == 1 else None, summed(outcomes)
    if out_of_fold is not None:
        progress = out_of_fold.with_final(progress)
        held_out = out_of_fold.scores if len(outcomes) == 1 else out_of_fold.calibrated()[1]
        if out_of_fold.replaces_test:
            return out_of_fold.calibrated_evaluation(held_out, streaming=model.streaming), progress
    levels, dates = levels_of(fingerprint.classes), dates_in_season(setup.store)
    parts, season = training.parts, fingerprint.season
    return evaluate_calibrated(model, parts, setup.classes, season, setup.device, levels, held_out, dates), progress


def _add_out_of_fold(
    result: dict[str, Any], training: _Training, out_of_fold: OutOfFold, judged: CalibratedEvaluation
) -> None:
    """Add the out-of-fold predictions to the result, and write them to a file for `cropstar check`."""
    store, split = training.setup.store, training.split
    if out_of_fold.replaces_test:
        everything = Split(dict.fromkeys(out_of_fold.split.part_of, "test"), out_of_fold.split.label_of)
        result["split"] |= {"parcels": both_parts(split), "out_of_fold": training.config.cross_fit}
        result["errors"] = error_map_facts(store, everything, judged.test)
    fields = FieldProbabilities.out_of_fold(out_of_fold)
    if judged.scores is not None:
        fields = fields.joined(FieldProbabilities.of(split, judged.scores, judged.calibration.temperature))
    fields.write(training.run.out_of_fold, store.fingerprint.classes.names)


@dataclass(frozen=True)
class _Novelty:
    """Teaches a finished model what is ordinary, so that a map can say *unknown*."""

    setup: Setup
    parts: Mapping[str, Prepared]
    temperature: float
    out_of_fold: OutOfFold | None
    members: int

    def with_limits(self, card: ModelCard, model: Classifier) -> ModelCard:
        """The card with the limits of the unknown, where the model has features that tell."""
        training, device = self.parts["train"], self.setup.device
        if not supports_novelty(model, training):
            return card
        stages = Stages.of(model, self.setup.store)
        distances = learn_distances(model, training, stages, self.setup.classes, device)
        temperature = self.temperature
        if self.out_of_fold is not None and self.out_of_fold.novelty is not None:
            held_out = self.out_of_fold.novelty
            temperature *= self.out_of_fold.calibrated()[0] if self.members > 1 else 1.0
        else:
            held_out = HeldOutFeatures(self.setup.classes, stages, device, doubts=model.trains_in_epochs)
            held_out.add(model, distances, self.parts["validation"])
        scale = held_out.scale(temperature, distances)
        if scale is None:
            return card
        return replace(card, calibration={**(card.calibration or {}), UNKNOWN: scale.to_json()}, novelty=scale.arrays())

    def remeasured(self, card: ModelCard, model: Classifier) -> ModelCard:
        """The statistics of a model that has been trained anew; its scale is that of the one before."""
        if not card.novelty:
            return card
        stages = Stages.of(model, self.setup.store)
        distances = learn_distances(model, self.parts["train"], stages, self.setup.classes, self.setup.device)
        scale = NoveltyScale.from_card((card.calibration or {})[UNKNOWN], card.novelty)
        return replace(card, novelty=replace(scale, distances=distances).arrays())


@dataclass
class _Training:
    """The data, the setup and the run folder that all members of a run share."""

    config: TrainConfig
    run: Run
    members: Sequence[Member]
    model: Classifier  # what they are together
    parts: dict[str, Prepared]
    learnt: Split  # whose training part is learnt from
    card: ModelCard
    setup: Setup
    split: Split
    teacher: Teacher | ForestTeacher | None
    forest_accuracy: float | None  # of the forest that teaches
    selection: Selection | None
    processes: Processes
    options: TrainOptions
    hold: ExitStack

    @property
    def alone(self) -> bool:
        return len(self.members) == 1

    def best(self, member: Member) -> Path:
        """The file of a member's best epoch."""
        return member.run.before_refit if self.alone and member.config.refit else member.run.model

    def fit(self, member: Member, out_of_fold: OutOfFold | None = None) -> Outcome:
        """Train a member, or take over the result of an earlier start of the run."""
        if out_of_fold is not None:
            return self._fit_to_all(member, out_of_fold)
        if self.alone:
            task, save = self._task(member, self.parts["train"], member.run, self.best(member))
            whole_units = bool(self.split.about.get("units", {}).get("validation"))
            fitted = fit_model(task, save, self.parts["validation"], whole_units=whole_units)
            return Outcome(fitted.progress, held_out=fitted.held_out)
        event(f"member {member.number} of {len(self.members)}: {member.config.model.name}, seed {member.config.seed}")
        known = self.processes.broadcast(bool(finished_outcome(member.run)))
        if not known:
            progress = self._fit(member, self.parts["train"], member.run, self.best(member))
            if self.processes.is_first:
                _load(member.model, self.best(member))
                calibrate_member(member, progress, self.parts["validation"], self.setup.classes, self.setup.device)
            self.processes.broadcast(None)  # the others wait until it is written
        outcome = finished_outcome(member.run)
        assert outcome is not None
        return outcome

    @property
    def kinds(self) -> list[TrainConfig]:
        """The members that differ in more than their seed."""
        return [member.config for member in self.members[: 1 + len(self.config.beside)]]

    def folds(self) -> list[Split]:
        return self.setup.folds(self.split, self.kinds[0], self.kinds[0].cross_fit)

    def fit_fold(self, place: int) -> None:
        """Train the models of one fold."""
        self._fold(self.folds()[place], place + 1, self.kinds)

    def teach(self) -> None:
        """Let the teacher, if there is one, see what is learnt from."""
        if self.teacher is not None:
            self.parts["train"] = self.teacher.teach(self.parts["train"], self.learnt, self.config)

    def cross_fit(self) -> OutOfFold:
        """A model per fold, or one of each kind, for the figures and the calibration."""
        kinds, folds = self.kinds, self.folds()
        store, device, classes = self.setup.store, self.setup.device, self.setup.classes
        fields = len(folds[0].part_of)
        event(f"cross-fitting: {len(folds)} models, each without a fold of the {fields:,} fields, then one on all")
        self._fit_side_by_side(folds, kinds)
        out_of_fold = OutOfFold(folds[0], classes, device, store, levels_of(store.fingerprint.classes))
        folds_done = [self._fold(fold, number, kinds) for number, fold in enumerate(folds, 1)]
        for place in range(len(kinds) if len(kinds) > 1 else 0):
            own = OutOfFold(folds[0], classes, device, store)
            for models, parts, outcomes in folds_done:
                own.add(models[place], parts["validation"], outcomes[place].progress)
            out_of_fold.temperatures.append(own.calibrated()[0])
        for models, parts, outcomes in folds_done:
            model = models[0]
            if out_of_fold.temperatures:
                model = Ensemble(models, self.setup.shape(kinds[0]).bands)
                model.calibrate(out_of_fold.temperatures)
            out_of_fold.add(model.to(device), parts["validation"], summed(outcomes))
            out_of_fold.measure_novelty(model, parts["train"], parts["validation"])
        facts = out_of_fold.facts()
        event(
            f"out of fold: overall accuracy {facts['overall_accuracy']:.3f}, macro-F1 {facts['macro_f1']:.3f}", **facts
        )
        return out_of_fold

    def _fold(
        self, fold: Split, number: int, kinds: Sequence[TrainConfig]
    ) -> tuple[list[Classifier], dict[str, Prepared], list[Outcome]]:
        """The models that never saw a fold, and their data; those that an earlier start of the run made are read."""
        models, outcomes = [], []
        for place, config in enumerate(map(keeping_last_epoch, kinds)):
            model = self.setup.build(config)
            parts, _ = self.setup.open(fold, config, model, self.card.normalisation)
            run = self.run.fold(number)
            own = Member(number, config, run.member(place + 1) if place else run, model)
            outcome = finished_outcome(own.run)
            if outcome is None:
                training = self.teacher.teach(parts["train"], fold, config) if self.teacher else parts["train"]
                task, save = self._task(own, training, own.run, own.run.model)
                task = replace(task, validation=parts["validation"], diagnosis=None, quiet=True)
                outcome = Outcome(fit_model(task, save).progress)
                write_json(own.run.result, outcome.to_json())
            _load(model, own.run.model)
            models.append(model.to(self.setup.device))
            outcomes.append(outcome)
        return models, parts, outcomes

    def _fit_to_all(self, member: Member, out_of_fold: OutOfFold) -> Outcome:
        """Train a member on all fields, to the last epoch; or take over what an earlier start of the run made of it."""
        outcome = None if self.alone else finished_outcome(member.run)
        if outcome is not None:
            return outcome
        progress = self.fit_to_last_epoch(member)
        if self.alone:
            rows = out_of_fold.with_final(progress).history
            write_text(member.run.metrics, "".join(json.dumps(row, sort_keys=True) + "\n" for row in rows))
            return Outcome(progress)
        outcome = Outcome(progress, out_of_fold.temperature_of(member.number))
        write_json(member.run.result, outcome.to_json())
        return outcome

    def fit_to_last_epoch(self, member: Member) -> Progress:
        """Train a member on all that is learnt from, with no choice of an epoch."""
        config = keeping_last_epoch(member.config)
        task, save = self._task(member, self.parts["train"], member.run, self.best(member))
        last = Progress(best_epoch=config.epochs)
        return fit_model(replace(task, config=config, refit_of=last, quiet=True), save).progress

    def _fit_side_by_side(self, folds: Sequence[Split], kinds: Sequence[TrainConfig]) -> None:
        """Fit the models of the folds and of all fields at the same time, where each would leave processors idle.

        What follows finds them finished, just as those of an earlier start of the run.
        """
        if not self._leaves_processors_idle(kinds):
            return
        tasks: list[_OneModel] = [_OneModel(member=number) for number in range(len(self.members))]  # the longest first
        tasks += [_OneModel(fold=place) for place in range(len(folds)) if not self.run.fold(place + 1).finished]
        workers = min(usual_threads(), len(tasks), (memory_limit() or 0) // MEMORY_OF_A_WORKER)
        if workers < 2 or len(tasks) < FEWEST_TASKS:
            return
        try:
            with LocalPool(workers) as pool:
                pool.share(_Shared(self.config, self.options, self.run, self.card))
                for _ in track(pool.run(tasks), len(tasks), "train", "model"):
                    pass
        except ResourceError as failure:
            logger.info("%s: the models are trained one after the other", failure.what)

    def _leaves_processors_idle(self, kinds: Sequence[TrainConfig]) -> bool:
        """Whether a model is trained by one thread, for long enough to start processes, from data of which several
        copies fit into memory."""
        training = self.parts["train"]
        small = all(takes_small_steps(training, kind) for kind in kinds)
        networks = all(kind.model.name not in FITTED for kind in kinds)
        steps = self.config.epochs * -(-len(training) // training.batch_size)
        size = len(training) * training.batch([0]).x.numel() * 4
        plain = not (self.options.diagnose or self.options.tensorboard or self.config.clean)
        on_processor = self.setup.device.type == "cpu" and self.processes.size == 1
        return small and networks and plain and on_processor and steps >= MANY_STEPS and size <= SMALL_DATA

    def leave_out_suspects(self, out_of_fold: OutOfFold) -> list[Suspect]:
        """Leave fields with a suspect label out of the training part; which ones."""
        suspects = find_suspects(FieldProbabilities.out_of_fold(out_of_fold))
        self.learnt = self.learnt.without(suspect.parcel for suspect in suspects)
        _log_cleaned(suspects, self.setup.store, self.learnt)
        self.parts["train"] = self._open(self.learnt)
        return suspects

    def refit(self, outcomes: Sequence[Outcome]) -> list[Progress]:
        """Retrain every member on training and validation, up to its best epoch."""
        training, shape = self._open(self.split.with_validation()), self.setup.shape(self.config)
        refits = []
        for member, outcome in zip(self.members, outcomes, strict=True):
            fresh, epochs = replace(member, model=self.setup.build(member.config, shape)), outcome.progress.best_epoch
            number = f" of member {member.number}" if not self.alone else ""
            event(f"refit{number} on training and validation for {plural(epochs, 'epoch')}, the best number")
            run = member.run.refit
            refits.append(self._fit(fresh, training, run, run.model, refit_of=outcome.progress))
        return refits

    def _open(self, split: Split) -> Prepared:
        """The training part of another split, with the normalisation that was measured before: the model has one."""
        parts, _ = self.setup.open(split, self.config, self.members[0].model, self.card.normalisation)
        return self.teacher.teach(parts["train"], split, self.config) if self.teacher else parts["train"]

    def _fit(
        self, member: Member, training: Prepared, run: Run, file: Path, refit_of: Progress | None = None
    ) -> Progress:
        """In an ensemble, trees learn from the training part only: validation calibrates the ensemble."""
        task, save = self._task(member, training, run, file, refit_of)
        return fit_model(task, save).progress

    def _task(
        self, member: Member, training: Prepared, run: Run, file: Path, refit_of: Progress | None = None
    ) -> tuple[Task, SaveModel]:
        is_first = self.processes.is_first
        diagnosed = self.options.diagnose and is_first and member.number == 1 and refit_of is None
        task = Task(
            member.config,
            run,
            member.model,
            training,
            self.parts["validation"],
            self.setup.classes,
            self.setup.device,
            self.options.checkpoint_seconds,
            Diagnosis(member.model, self.run.folder) if diagnosed else None,
            self.processes,
            _event_files(run, self.hold) if self.options.tensorboard and is_first else None,
            self.setup.lineages,
            None if self.alone or refit_of is not None else self._note,
            refit_of=refit_of,
        )
        card = replace(self.card, model=member.config.model.model_dump(mode="json"))
        return task, lambda best, _: _save(file, card, best)

    def _note(self, progress: Progress) -> None:
        """The epochs of all members so far in one file."""
        before = [outcome.progress for member in self.members if (outcome := finished_outcome(member.run))]
        write_metrics(self.run, [each.history for each in (*before, progress)])


@dataclass(frozen=True)
class _Shared:
    """What a worker needs to train models of a run that another process began."""

    config: TrainConfig
    options: TrainOptions
    run: Run
    card: ModelCard

    def training(self, hold: ExitStack) -> _Training:
        config = self.config
        store = Store.open(config.store)
        hold.callback(store.close)
        split = training_split(store, config)
        setup = Setup.of(store, config, self.options.device, self.options.backend)
        shape, configs = setup.shape(config), member_configs(config)
        models = [setup.build(own, shape) for own in configs]
        members = _members(self.run, configs, models)
        learnt = split.with_validation()
        parts, _ = setup.open(learnt, config, models[0], self.card.normalisation)
        hold.enter_context(threads_for(parts["train"], config))
        teacher = _teacher(config, setup, split, shape)
        return _Training(
            *(config, self.run, members, models[0], parts, learnt, self.card, setup, split),
            *(teacher, None, None, ALONE, self.options, hold),
        )


@dataclass(frozen=True)
class _OneModel:
    """A model of a run with cross-fitting, trained by one thread: that of a fold, or a member on all fields."""

    fold: int | None = None
    member: int = 0

    def run(self, shared: _Shared) -> None:
        with ExitStack() as hold:
            training = shared.training(hold)
            if self.fold is None:
                training.teach()
                training.fit_to_last_epoch(training.members[self.member])
            else:
                training.fit_fold(self.fold)


def _members(run: Run, configs: Sequence[TrainConfig], models: Sequence[Classifier]) -> list[Member]:
    places = [run] if len(models) == 1 else [run.member(number) for number in range(1, 1 + len(models))]
    return [Member(*each) for each in zip(range(1, 1 + len(models)), configs, places, models, strict=True)]


def _teacher(config: TrainConfig, setup: Setup, split: Split, shape: Shape) -> Teacher | ForestTeacher | None:
    """The teacher of the training, if there is one."""
    forest = ForestTeacher.of(config, setup.target, shape)
    if forest is not None or config.distil is None:
        return forest
    return Teacher(config.distil, setup.store, split, config, setup.device)


def _load(model: Classifier, file: Path) -> None:
    _, weights, _ = read_model(file)
    load_weights(model, weights, file)


def _in_words(config: TrainConfig, configs: Sequence[TrainConfig], model: Classifier) -> str:
    parameters = count_parameters(model)
    if isinstance(model, Ensemble):
        return f"ensemble of {name_ensemble([own.model for own in configs])}, {parameters:,} parameters"
    if not model.trains_in_epochs:
        return config.model.name
    return f"{config.model.name}, {config.model.layers} layers, {parameters:,} parameters"


def _require_choice(
    config: TrainConfig, options: TrainOptions, store: Store, split: Split, processes: Processes
) -> None:
    """Refuse options that need a known model."""
    asked = {"torchrun": processes.size > 1, "--diagnose": options.diagnose, "--tensorboard": options.tensorboard}
    for name in (name for name, given in asked.items() if given):
        raise UsageError(f"'{AUTO}' does not use {name}", remedy="name a model, or leave it out")
    folded = {"--folds": config.split.out_of_fold, "--clean": config.clean}
    for name in (name for name, given in folded.items() if given):
        why = "the choice would have seen every field that it is evaluated on" if name == "--folds" else None
        raise UsageError(f"'{AUTO}' does not use {name}", why=why, remedy="name a model, or leave it out")
    require_selectable(config, store, split)


def _require_possible(
    config: TrainConfig, options: TrainOptions, model: Classifier, processes: Processes, device: torch.device
) -> None:
    """Refuse settings that cannot be trained, before a run folder is made."""
    asked = {"torchrun": processes.size > 1, "--diagnose": options.diagnose, "--tensorboard": options.tensorboard}
    require_fittable(config, asked)
    unfit = config.precision == "float16" or (config.precision == "bfloat16" and not has_bfloat16_kernels())
    if options.backend == "native" and (config.compile or unfit):
        why = "the kernels cannot be compiled, and compute in float32 or, where the processor can, in bfloat16"
        raise UsageError("--backend native cannot train this", why=why, remedy="leave out compile and precision")
    if config.loss.name == "dice":
        others = {
            "torchrun": processes.size > 1,
            "--distil": config.distil is not None,
            f"soft_labels={config.soft_labels}": config.soft_labels != "none",
        }
        for name in (name for name, given in others.items() if given):
            remedy = "leave one of them out, or use loss.name=cross-entropy"
            raise UsageError(f"loss.name=dice cannot be combined with {name}", remedy=remedy)
    require_shareable(model, processes)
    Precision(config.precision, device)
    if config.precision == "bfloat16" and not has_bfloat16(device):
        logger.warning("this %s has no instructions for bfloat16: float32 would be faster", device.type)
    if config.optimiser.micro_batch is not None and normalises_by_batch(model):
        logger.warning("with optimiser.micro_batch, batch normalisation uses the statistics of each micro-batch")
    if options.tensorboard:
        require_tensorboard()
    if options.diagnose and config.compile:
        why = "compiled models cannot be inspected"
        raise UsageError("--diagnose does not apply to compiled models", why=why, remedy="leave one of them out")


def _claim(
    config: TrainConfig, options: TrainOptions, data: dict[str, Any], hold: ExitStack, processes: Processes
) -> Run:
    """The run folder, which the first process holds for all."""
    if not processes.is_first:
        return Run(Path(processes.broadcast(None)))
    if options.resume:
        run = open_run(options.resume, data, hold)
    else:
        run = claim_run(options.runs, config, data, hold, fresh=options.fresh)
    processes.broadcast(str(run.folder))
    return run


def _event_files(run: Run, hold: ExitStack) -> EventFiles:
    events = EventFiles(run)
    hold.callback(events.close)
    return events


def _save(path: Path, card: ModelCard, model: Classifier) -> None:
    write_model(path, card, weights_of(model))


def _result(
    config: TrainConfig,
    run: Run,
    store: Store,
    split: Split,
    parameters: int,
    progress: Progress,
    judged: CalibratedEvaluation,
) -> dict[str, Any]:
    """The content of result.json."""
    fingerprint = store.fingerprint
    return {
        "version": __version__,
        "run": run.name,
        "command": " ".join(["cropstar", *sys.argv[1:]]),
        "classes": fingerprint.classes.to_json(),
        "data": {
            "store": str(store.folder),
            "bands": list(fingerprint.bands),
            "dates": sorted(
                {day.isoformat() for _, reader in store.readers() for day in from_days(reader.observed_days)}
            ),
            "tiles": len(store.manifest.tiles),
            "resolution": fingerprint.resolution,
        },
        "split": split.to_json(),
        "model": {**config.model.model_dump(mode="json"), "parameters": parameters},
        "config": dump_config(config),
        "history": progress.history,
        "best_epoch": progress.best_epoch,
        "test": judged.test.to_json(config.seed),
        **judged.facts,
        "errors": error_map_facts(store, split, judged.test),
        "throughput": {
            "samples_per_second": progress.samples / max(progress.seconds, 1e-9),
            "seconds": round(progress.seconds, 1),
            "peak_memory_mb": round(peak_memory_megabytes(), 1),
        },
    }


def store_bounds(store: Store) -> list[Bounds]:
    """The bounding boxes of a store's scenes, in degrees; empty for tables of series."""
    found = []
    for scene in store.manifest.scenes.values():
        if isinstance(scene.get("grid"), dict) and (bounds := degrees_of(Grid.from_json(scene["grid"]))) is not None:
            found.append(bounds)
    return found


def _dates(config: TrainConfig) -> dict[str, Any]:
    """How dates were made regular; maps do the same."""
    return {"regular": config.regular.model_dump(mode="json")} if config.regular.changes else {}


def _sensors(config: TrainConfig, store: Store) -> dict[str, Any]:
    """Whether the model learnt to do without one of several sensors, so that a map may."""
    share = config.augmentation.sensor_dropout
    return {"sensor_dropout": share} if share and store.fingerprint.several else {}


def _reading(store: Store) -> dict[str, Any]:
    """How images were brought to one grid and masked, and temperatures added up, so that others are read alike."""
    names = {"resampling": "resampling", "scene_classes": "clear", "warmth": "warmth"}
    for scene in store.manifest.scenes.values():
        columns = scene.get("columns", {})
        reading = {own: scene[name] for name, own in names.items() if name in scene}
        if reading:
            return reading | ({"temperature": columns["temperature"]} if columns.get("temperature") else {})
    return {}


def _log_cleaned(suspects: Sequence[Suspect], store: Store, learnt: Split) -> None:
    """Log the fields that are left out of the training; the other parts keep all of theirs."""
    left = sum(part == "train" for part in learnt.part_of.values())
    event(
        f"clean: {plural(len(suspects), 'field')} with a suspect label left out of training, {left:,} stay; "
        "'cropstar check RUN' shows them",
        suspects=len(suspects),
    )
    names = store.fingerprint.classes.names
    known = {learnt.label_of[parcel] for parcel, part in learnt.part_of.items() if part == "train"}
    for number in sorted({suspect.label for suspect in suspects} - known):
        logger.warning("no field of '%s' is left to learn from: all of its labels are suspect", names[number])


def _log_split(store: Store, split: Split, description: dict[str, Any]) -> None:
    counts = split.counts(len(store.fingerprint.classes))
    filled = [part for part in PARTS if any(counts[part])]
    totals = ", ".join(f"{sum(counts[part])} for {part}" for part in filled)
    event(f"{description['how']}: {totals}", **{part: sum(counts[part]) for part in PARTS})
    for line in describe_lines(description, store.fingerprint.classes.names):
        logger.debug("  %s", line)
    own = named_splits(store)
    if own and "name" not in description:
        logger.info("the data set has its own splits, for comparable figures: --split %s", " or ".join(sorted(own)))
