"""`cropstar train`: from a store to a model file, its figures and its report."""

from __future__ import annotations

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
from cropstar.errors import UsageError
from cropstar.geo.calendar import from_days
from cropstar.models.backends import has_bfloat16, has_bfloat16_kernels
from cropstar.models.contract import Classifier, count_parameters
from cropstar.models.normalisation import normalises_by_batch
from cropstar.models.novelty import UNKNOWN, NoveltyScale
from cropstar.models.zoo import Ensemble, describe_model, name_ensemble, weights_of
from cropstar.reports.record import TestRecord, join_bounds, store_bounds
from cropstar.reports.report import write_report
from cropstar.runtime import (
    event,
    keep_large_buffers,
    logger,
    peak_memory_megabytes,
)
from cropstar.store.files import write_json
from cropstar.store.model_file import ModelCard, write_model
from cropstar.store.store import Store
from cropstar.training.accuracy import CalibratedEvaluation, dates_in_season, error_map_facts, evaluate_calibrated
from cropstar.training.distillation import Teacher
from cropstar.training.distributed import Processes, joined, require_shareable
from cropstar.training.ensembles import (
    Outcome,
    OutOfFold,
    ensemble_facts,
    member_configs,
    require_cross_fittable,
    summed,
)
from cropstar.training.fitting import ForestTeacher, require_fittable
from cropstar.training.label_noise import FieldProbabilities, Suspect, clean_facts
from cropstar.training.metrics import levels_of
from cropstar.training.monitoring import require_tensorboard
from cropstar.training.novelty import HeldOutFeatures, Stages, calendars_of, learn_distances, supports_novelty
from cropstar.training.optimisation import Precision
from cropstar.training.run_trainer import RunTrainer, combined, find_teacher, load_trained, make_members
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
from cropstar.training.trainer import Progress, threads_for


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
        store = hold.enter_context(Store.open(config.store))
        split = training_split(store, config)
        _log_split(store, split, describe_split(store, split))
        warn_of_small_data(store, split, config)
        setup = Setup.of(store, config, processes.own_device(options.device), options.backend)
        start = _Start(options, setup, split, processes, hold)
        selection = start.choose_model(config)
        training = start.trainer(config if selection is None else selection.config)
        config = training.config
        out_of_fold, suspects = None, []
        if config.cross_fit:
            out_of_fold = training.cross_fit()
            if processes.is_first:
                advise_trees(out_of_fold.facts(), training.forest_accuracy)
            if config.clean:
                suspects = training.leave_out_suspects(out_of_fold)
            outcomes = [training.fit_cross_fitted(member, out_of_fold) for member in training.members]
        else:
            outcomes = [training.fit(member) for member in training.members]
        refits = training.refit(outcomes) if config.refit else []
        if not processes.is_first:
            return training.run, {}
        result = _finish(training, outcomes, refits, out_of_fold, suspects)
        if selection is not None:
            result["selection"] = selection.facts
        write_report(training.run.report, result)
        write_json(training.run.result, result)
    return training.run, result


@dataclass
class _Start:
    """A training before its models are built: nothing is written until it is known that they can be trained."""

    options: TrainOptions
    setup: Setup
    split: Split
    processes: Processes
    hold: ExitStack
    run: Run | None = None  # once it is claimed

    def choose_model(self, config: TrainConfig) -> Selection | None:
        """Compare the candidates of the model 'auto'; None where the user named a model."""
        options = self.options
        if config.model.name != AUTO:
            if options.budget is not None:
                raise UsageError(f"--budget is for --model {AUTO}", remedy="leave it out")
            return None
        _require_choice(config, options, self.setup.store, self.split, self.processes)
        self.run = self._claim(config)
        event(f"{AUTO}; run {self.run.folder}")
        seconds = options.checkpoint_seconds
        return select(config, self.setup, self.split, self.run, minutes=options.budget, checkpoint_seconds=seconds)

    def trainer(self, config: TrainConfig) -> RunTrainer:
        """Build the models, refuse what cannot be trained, claim the run folder and open the data."""
        setup, split, options = self.setup, self.split, self.options
        shape, configs = setup.shape(config), member_configs(config)
        models = [setup.build(own, shape) for own in configs]
        model = combined(models, shape)
        require_cross_fittable(config, self.processes.size)
        require_forest(config)
        if config.cross_fit:
            setup.folds(split, config, config.cross_fit)  # refuses more folds than there are units
        for own, each in zip(configs, models, strict=True):
            setup.require(own, each)
            _require_possible(own, options, each, self.processes, setup.device)
        teacher = find_teacher(config, setup, split, shape)
        run = self.run or self._claim(config, teacher)
        event(f"{_in_words(config, configs, model)}; run {run.folder}")
        if not model.streaming and model.makes_maps:
            logger.info(
                "this model needs the whole season: for predict --state and update, train one that streams (star)"
            )
        learnt = split.with_validation() if config.cross_fit else split
        parts, normalisation = setup.open(learnt, config, model)
        self.hold.enter_context(threads_for(parts["train"], config))
        described = describe_model([own.model for own in configs])
        provenance = _provenance(config, setup, split, teacher)
        card = ModelCard(described, shape.to_json(), setup.store.fingerprint, normalisation, provenance)
        members = make_members(run, configs, models)
        training = RunTrainer(
            *(config, setup, split, learnt, parts, card, run, members, model, teacher, self.processes),
            checkpoint_seconds=options.checkpoint_seconds,
            diagnose=options.diagnose,
            tensorboard=options.tensorboard,
            hold=self.hold,
        )
        training.teach()
        return training

    def _claim(self, config: TrainConfig, teacher: Teacher | ForestTeacher | None = None) -> Run:
        """The run folder, which the first process holds for all."""
        if not self.processes.is_first:
            return Run(Path(self.processes.broadcast(None)))
        store, options = self.setup.store, self.options
        data: dict[str, Any] = {"fingerprint": store.fingerprint.to_json(), "scenes": scene_recipes(store)}
        if isinstance(teacher, Teacher):
            data["teacher"] = teacher.digest
        if options.resume:
            run = open_run(options.resume, data, self.hold)
        else:
            run = claim_run(options.runs, config, data, self.hold, fresh=options.fresh)
        self.processes.broadcast(str(run.folder))
        return run


def _provenance(
    config: TrainConfig, setup: Setup, split: Split, teacher: Teacher | ForestTeacher | None
) -> dict[str, Any]:
    """What the model was made of, for its file."""
    store = setup.store
    return {
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


def _finish(
    training: RunTrainer,
    outcomes: Sequence[Outcome],
    refits: Sequence[Progress],
    out_of_fold: OutOfFold | None,
    suspects: Sequence[Suspect],
) -> dict[str, Any]:
    """Evaluate the best model, save it with all that maps need, and return the result."""
    config, run, model, setup = training.config, training.run, training.model, training.setup
    store, classes = setup.store, setup.store.fingerprint.classes.names
    for member in training.members:
        load_trained(member.model, training.best(member), training.card)
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
    write_model(run.before_refit if config.refit else run.model, card, weights_of(model))
    if isinstance(model, Ensemble):
        result["model"]["name"] = card.model["name"]
        result["ensemble"] = ensemble_facts(training.members, outcomes, judged.validation)
    if isinstance(training.teacher, Teacher):
        teacher = training.teacher.facts()
        result["distil"] = {"path": str(config.distil), **teacher, "share": config.loss.teacher}
    if out_of_fold is not None:
        result["cross_fit"] = {**out_of_fold.facts(), "forest": training.forest_accuracy}
    if config.refit:
        epochs = [outcome.progress.best_epoch for outcome in outcomes]
        _save_refitted(training, epochs, card, novelty)
        result["refit"] = {"epochs": epochs, "seconds": round(sum(each.seconds for each in refits), 1)}
    return result


def _save_refitted(training: RunTrainer, epochs: list[int], card: ModelCard, novelty: _Novelty) -> None:
    """Save the model that learnt from all fields as the run's model, with the card of the one that was judged."""
    for member in training.members:
        load_trained(member.model, member.run.refit.model, training.card)
    card = replace(card, provenance={**card.provenance, "refit": {"epochs": epochs}})
    write_model(training.run.model, novelty.remeasured(card, training.model), weights_of(training.model))


def _judged(
    training: RunTrainer, outcomes: Sequence[Outcome], out_of_fold: OutOfFold | None
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
    result: dict[str, Any], training: RunTrainer, out_of_fold: OutOfFold, judged: CalibratedEvaluation
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
        scale = held_out.scale(temperature, distances, calendars_of(self.setup.store))
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
