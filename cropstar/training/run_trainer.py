"""The models of a run: its members, the folds that judge them, and refits; one after the other or side by side.

One small model leaves processors idle: those of the folds and those of all fields are then trained at the same time,
each by a process with one thread. They leave the same files either way, so that a run that was stopped continues.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from cropstar.config import FITTED, TrainConfig
from cropstar.datasets.samples import Prepared
from cropstar.datasets.splits import Split
from cropstar.errors import MismatchError, ResourceError
from cropstar.execution.local import FEWEST_TASKS, LocalPool
from cropstar.models.contract import Classifier, Shape
from cropstar.models.zoo import Ensemble, load_weights, weights_of
from cropstar.reports.wording import plural
from cropstar.runtime import event, log_level, logger, memory_limit, track, usual_threads
from cropstar.store.files import write_json, write_json_lines
from cropstar.store.model_file import ModelCard, read_model, write_model
from cropstar.store.store import Store
from cropstar.training.distillation import Teacher
from cropstar.training.distributed import ALONE, Processes
from cropstar.training.ensembles import (
    Member,
    Outcome,
    OutOfFold,
    calibrate_member,
    finished_outcome,
    keeping_last_epoch,
    member_configs,
    summed,
    write_metrics,
)
from cropstar.training.fitting import ForestTeacher, fit_model
from cropstar.training.label_noise import FieldProbabilities, Suspect, find_suspects
from cropstar.training.metrics import levels_of
from cropstar.training.monitoring import Diagnosis, EventFiles
from cropstar.training.runs import Run, sweep_run
from cropstar.training.setup import Setup
from cropstar.training.trainer import Progress, SaveModel, Task, takes_small_steps, threads_for

MANY_STEPS = 500  # of a model: some seconds, for which a process is worth starting
SMALL_DATA = 256_000_000  # bytes, of which every process holds a copy
OF_THE_RUN = ("seed", "scenes", "class_fields", "out_of_fold", "target")  # of the provenance: what all its models share
MEMORY_OF_A_WORKER = 2**30 + 2 * SMALL_DATA  # bytes


@dataclass
class RunTrainer:
    """Trains the models of a run, on data, a setup and a run folder that they share."""

    config: TrainConfig
    setup: Setup
    split: Split
    learnt: Split  # whose training part is learnt from
    parts: dict[str, Prepared]
    card: ModelCard
    run: Run
    members: Sequence[Member]
    model: Classifier  # the members together
    teacher: Teacher | ForestTeacher | None
    processes: Processes = ALONE
    checkpoint_seconds: float = 30.0
    diagnose: bool = False
    tensorboard: bool = False
    hold: ExitStack = field(default_factory=ExitStack)  # closes the event files
    forest_accuracy: float | None = None  # out of bag, of the forest that teaches

    @property
    def alone(self) -> bool:
        return len(self.members) == 1

    @property
    def kinds(self) -> list[TrainConfig]:
        """The settings of the members that differ in more than their seed."""
        return [member.config for member in self.members[: 1 + len(self.config.beside)]]

    def best(self, member: Member) -> Path:
        """The file of a member's best epoch."""
        return member.run.before_refit if self.alone and member.config.refit else member.run.model

    def teach(self) -> None:
        """Let the teacher, if there is one, see what is learnt from."""
        self.parts["train"] = self.taught(self.parts["train"], self.learnt, self.config)
        if isinstance(self.teacher, ForestTeacher):
            self.forest_accuracy = self.teacher.accuracy  # before it teaches folds

    def taught(self, samples: Prepared, split: Split, config: TrainConfig) -> Prepared:
        """Training samples with the answers of the teacher, if there is one."""
        return samples if self.teacher is None else self.teacher.teach(samples, split, config)

    # --- a model that chooses its epoch on validation

    def fit(self, member: Member) -> Outcome:
        """Train a member, or take over the result of an earlier start of the run."""
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
                load_trained(member.model, self.best(member), self.card)
                calibrate_member(member, progress, self.parts["validation"], self.setup.classes, self.setup.device)
            self.processes.broadcast(None)  # the others wait until it is written
        outcome = finished_outcome(member.run)
        assert outcome is not None
        return outcome

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

    # --- cross-fitting: a model per fold, which judges, and then one on all fields

    def cross_fit(self) -> OutOfFold:
        """A model per fold, or one of each kind, for the figures and the calibration."""
        kinds, setup = self.kinds, self.setup
        folds = setup.folds(self.split, kinds[0], kinds[0].cross_fit)
        store, device, classes = setup.store, setup.device, setup.classes
        fields = len(folds[0].part_of)
        event(f"cross-fitting: {len(folds)} models, each without a fold of the {fields:,} fields, then one on all")
        self._fit_side_by_side(folds)
        out_of_fold = OutOfFold(folds[0], classes, device, store, levels_of(store.fingerprint.classes))
        folds_done = [self.fit_fold(number, fold) for number, fold in enumerate(folds, 1)]
        for place in range(len(kinds) if len(kinds) > 1 else 0):
            own = OutOfFold(folds[0], classes, device, store)
            for models, parts, outcomes in folds_done:
                own.add(models[place], parts["validation"], outcomes[place].progress)
            out_of_fold.temperatures.append(own.calibrated()[0])
        for models, parts, outcomes in folds_done:
            model = models[0]
            if out_of_fold.temperatures:
                model = Ensemble(models, setup.shape(kinds[0]).bands)
                model.calibrate(out_of_fold.temperatures)
            out_of_fold.add(model.to(device), parts["validation"], summed(outcomes))
            out_of_fold.measure_novelty(model, parts["train"], parts["validation"])
        facts = out_of_fold.facts()
        event(
            f"out of fold: overall accuracy {facts['overall_accuracy']:.3f}, macro-F1 {facts['macro_f1']:.3f}", **facts
        )
        return out_of_fold

    def fit_fold(self, number: int, fold: Split) -> tuple[list[Classifier], dict[str, Prepared], list[Outcome]]:
        """The models that never saw a fold, and their data; those that an earlier start of the run made are read."""
        models, outcomes = [], []
        for place, config in enumerate(map(keeping_last_epoch, self.kinds)):
            model = self.setup.build(config)
            parts, _ = self.setup.open(fold, config, model, self.card.normalisation)
            run = self.run.fold(number)
            own = Member(number, config, run.member(place + 1) if place else run, model)
            outcome = finished_outcome(own.run)
            if outcome is None:
                task, save = self._task(own, self.taught(parts["train"], fold, config), own.run, own.run.model)
                quiet = replace(task, validation=parts["validation"], diagnosis=None, after_epoch=None, quiet=True)
                outcome = Outcome(fit_model(quiet, save).progress)
                write_json(own.run.result, outcome.to_json())
            load_trained(model, own.run.model, self.card)
            models.append(model.to(self.setup.device))
            outcomes.append(outcome)
        return models, parts, outcomes

    def fit_cross_fitted(self, member: Member, out_of_fold: OutOfFold) -> Outcome:
        """Train a member on all fields, to the last epoch; or take over what an earlier start of the run made of it."""
        outcome = None if self.alone else finished_outcome(member.run)
        if outcome is not None:
            return outcome
        progress = self.fit_to_last_epoch(member)
        if self.alone:
            write_json_lines(member.run.metrics, out_of_fold.with_final(progress).history)
            return Outcome(progress)
        self._note(progress)
        outcome = Outcome(progress, out_of_fold.temperature_of(member.number))
        write_json(member.run.result, outcome.to_json())
        return outcome

    def fit_to_last_epoch(self, member: Member) -> Progress:
        """Train a member on all that is learnt from, with no choice of an epoch."""
        config = keeping_last_epoch(member.config)
        task, save = self._task(member, self.parts["train"], member.run, self.best(member))
        last = Progress(best_epoch=config.epochs)
        return fit_model(replace(task, config=config, refit_of=last, after_epoch=None, quiet=True), save).progress

    def leave_out_suspects(self, out_of_fold: OutOfFold) -> list[Suspect]:
        """Leave fields with a suspect label out of the training part; which ones."""
        suspects = find_suspects(FieldProbabilities.out_of_fold(out_of_fold))
        self.learnt = self.learnt.without(suspect.parcel for suspect in suspects)
        _log_left_out(suspects, self.setup.store, self.learnt)
        self.parts["train"] = self._open(self.learnt)
        return suspects

    # --- side by side

    def _fit_side_by_side(self, folds: Sequence[Split]) -> None:
        """Train the models of the folds and of all fields at the same time, where each would leave processors idle.

        What follows finds them finished, just as those of an earlier start of the run.
        """
        if not self._leaves_processors_idle():
            return
        tasks: list[_MemberTask | _FoldTask] = [  # the longest first
            _MemberTask(place) for place, member in enumerate(self.members) if self.alone or not member.run.finished
        ]
        tasks += [_FoldTask(number, fold) for number, fold in enumerate(folds, 1) if not self.run.fold(number).finished]
        workers = min(usual_threads(), len(tasks), (memory_limit() or 0) // MEMORY_OF_A_WORKER)
        if workers < 2 or len(tasks) < FEWEST_TASKS:
            return
        try:
            with LocalPool(workers) as pool:
                pool.share(
                    _SharedRun(self.config, self.setup, self.split, self.card, self.run, self.checkpoint_seconds)
                )
                for _ in track(pool.run(tasks), len(tasks), "train", "model"):
                    pass
        except ResourceError as failure:
            logger.info("%s: the models are trained one after the other", failure.what)
            sweep_run(self.run)

    def _leaves_processors_idle(self) -> bool:
        """Whether a model is trained by one thread, for long enough to start processes, from data of which several
        copies fit into memory."""
        training = self.parts["train"]
        small = all(takes_small_steps(training, kind) for kind in self.kinds)
        networks = all(kind.model.name not in FITTED for kind in self.kinds)
        steps = self.config.epochs * -(-len(training) // training.batch_size)
        size = len(training) * training.batch([0]).x.numel() * 4
        plain = not (self.diagnose or self.tensorboard or self.config.clean)
        on_processor = self.setup.device.type == "cpu" and self.processes.size == 1
        return small and networks and plain and on_processor and steps >= MANY_STEPS and size <= SMALL_DATA

    # --- one training

    def _open(self, split: Split) -> Prepared:
        """The training part of another split, with the normalisation that was measured before: the model has one."""
        parts, _ = self.setup.open(split, self.config, self.members[0].model, self.card.normalisation)
        return self.taught(parts["train"], split, self.config)

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
        diagnosed = self.diagnose and is_first and member.number == 1 and refit_of is None
        events = EventFiles(run) if self.tensorboard and is_first else None
        if events is not None:
            self.hold.callback(events.close)
        task = Task(
            member.config,
            run,
            member.model,
            training,
            self.parts["validation"],
            self.setup.classes,
            self.setup.device,
            self.checkpoint_seconds,
            Diagnosis(member.model, self.run.folder) if diagnosed else None,
            self.processes,
            events,
            self.setup.lineages,
            None if self.alone or refit_of is not None else self._note,
            refit_of=refit_of,
        )
        card = replace(self.card, model=member.config.model.model_dump(mode="json"))

        def save(best: Classifier, _: Progress) -> None:
            write_model(file, card, weights_of(best))

        return task, save

    def _note(self, progress: Progress) -> None:
        """Write the epochs of all members so far to one file."""
        before = [outcome.progress for member in self.members if (outcome := finished_outcome(member.run))]
        write_metrics(self.run, [each.history for each in (*before, progress)])


# --- in a worker process


@dataclass(frozen=True)
class _SharedRun:
    """What a worker needs to train models of a run that another process began."""

    config: TrainConfig
    setup: Setup
    split: Split
    card: ModelCard
    run: Run
    checkpoint_seconds: float

    @cached_property
    def trainer(self) -> RunTrainer:
        config, setup, learnt = self.config, self.setup, self.split.with_validation()
        with log_level(logging.ERROR):  # the process that began the run has said it all
            shape, configs = setup.shape(config), member_configs(config)
            models = [setup.build(own, shape) for own in configs]
            parts, _ = setup.open(learnt, config, models[0], self.card.normalisation)
            teacher = find_teacher(config, setup, self.split, shape)
        members, model = make_members(self.run, configs, models), combined(models, shape)
        return RunTrainer(
            *(config, setup, self.split, learnt, parts, self.card, self.run, members, model, teacher),
            checkpoint_seconds=self.checkpoint_seconds,
        )


@dataclass(frozen=True)
class _FoldTask:
    """The models without one fold."""

    number: int
    fold: Split

    def run(self, shared: _SharedRun) -> None:
        trainer = shared.trainer
        with threads_for(trainer.parts["train"], trainer.config):
            trainer.fit_fold(self.number, self.fold)


@dataclass(frozen=True)
class _MemberTask:
    """A member on all that is learnt from."""

    place: int

    def run(self, shared: _SharedRun) -> None:
        trainer = shared.trainer
        with threads_for(trainer.parts["train"], trainer.config):
            own = replace(trainer, parts=dict(trainer.parts))  # which teaching changes
            own.teach()
            own.fit_to_last_epoch(own.members[self.place])


# --- the pieces of a run


def make_members(run: Run, configs: Sequence[TrainConfig], models: Sequence[Classifier]) -> list[Member]:
    runs = [run] if len(models) == 1 else [run.member(number) for number in range(1, 1 + len(models))]
    return [Member(*each) for each in zip(range(1, 1 + len(models)), configs, runs, models, strict=True)]


def combined(models: Sequence[Classifier], shape: Shape) -> Classifier:
    """The model that the members of a run make together."""
    return models[0] if len(models) == 1 else Ensemble(models, shape.bands)


def find_teacher(config: TrainConfig, setup: Setup, split: Split, shape: Shape) -> Teacher | ForestTeacher | None:
    """The teacher that the configuration asks for, if any."""
    forest = ForestTeacher.of(config, setup.target, shape)
    if forest is not None or config.distil is None:
        return forest
    return Teacher(config.distil, setup.store, split, config, setup.device)


def load_trained(model: Classifier, file: Path, card: ModelCard) -> None:
    """The weights of a model of the run with this `card`: those of another run may know what they are tested on."""
    own, weights, _ = read_model(file)
    theirs = json.loads(json.dumps(card.provenance))  # as it was written
    if any(own.provenance.get(name) != theirs.get(name) for name in OF_THE_RUN):
        why = "it was trained on other fields, or with other settings"
        raise MismatchError("a model of another run", path=file, why=why, remedy="start again with --fresh")
    load_weights(model, weights, file)


def _log_left_out(suspects: Sequence[Suspect], store: Store, learnt: Split) -> None:
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
