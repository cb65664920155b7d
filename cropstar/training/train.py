"""`cropstar train`: from a store to a model file, its figures and its report."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from cropstar import __version__
from cropstar.config import TrainConfig
from cropstar.datasets.description import describe_lines, describe_split
from cropstar.datasets.opening import open_parts
from cropstar.datasets.splits import PARTS, Split, named_splits, split_parcels
from cropstar.datasets.targets import choose_target
from cropstar.devices import keep_large_buffers, peak_memory_megabytes
from cropstar.errors import UsageError
from cropstar.geo.calendar import from_days
from cropstar.logs import event, logger
from cropstar.models.backends import use_backend
from cropstar.models.contract import Classifier
from cropstar.models.networks.forest import Forest
from cropstar.models.normalisation import normalises_by_batch
from cropstar.models.weights import load_weights, weights_of
from cropstar.models.zoo import build_model
from cropstar.reports.report import write_report
from cropstar.resolving import dump
from cropstar.store.atomic import write_json
from cropstar.store.model_file import ModelCard, read_model, write_model
from cropstar.store.store import Store
from cropstar.training.diagnosis import Diagnosis
from cropstar.training.error_map import error_map_facts
from cropstar.training.forest import grow, require_growable
from cropstar.training.judging import Judgement, judge
from cropstar.training.levels import levels_of
from cropstar.training.loop import SaveModel, Task, fit
from cropstar.training.precision import Precision
from cropstar.training.processes import Processes, joined, require_shareable
from cropstar.training.runs import FOREST, Run, claim_run, open_run
from cropstar.training.shaping import lineages_of, shape_of
from cropstar.training.state import Progress
from cropstar.training.targets import require_target
from cropstar.training.tensorboard import EventFiles, require_tensorboard


@dataclass(frozen=True)
class TrainOptions:
    """What does not change the outcome."""

    runs: Path
    device: torch.device
    resume: Path | None = None
    fresh: bool = False
    checkpoint_seconds: float = 30.0
    diagnose: bool = False
    tensorboard: bool = False
    backend: str = "auto"  # see models/backends.py; the last bits do depend on it


def train(config: TrainConfig, options: TrainOptions) -> tuple[Run, dict[str, Any]]:
    """Train to the end and judge the best model once on the test parcels.

    Of several processes the first one judges and has a result, the others end when training does.
    """
    keep_large_buffers()
    with ExitStack() as hold:
        processes = hold.enter_context(joined())
        device = processes.own_device(options.device)
        store = Store.open(config.store)
        hold.callback(store.close)
        split = split_parcels(store, config.split, config.seed, choose_target(config, store))
        description = describe_split(store, split)
        _say_split(store, split, description)
        shape = shape_of(store, config)
        torch.manual_seed(config.seed)
        model = build_model(config.model, shape)  # before a run folder is made: an unknown name leaves nothing
        require_target(config, store, model)
        _require_possible(config, options, model, processes, device)
        use_backend(model, options.backend, device, training=True)
        data = {"fingerprint": store.fingerprint.to_json(), "scenes": _recipes(store)}
        run = _claim(config, options, data, hold, processes)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        size = "" if isinstance(model, Forest) else f", {config.model.layers} layers, {parameters:,} parameters"
        event(f"{config.model.name}{size}; run {run.folder}")

        parts, normalisation = open_parts(store, split, config, spatial=model.spatial, regular=config.regular)
        card = ModelCard(
            config.model.model_dump(mode="json"),
            shape.to_json(),
            store.fingerprint,
            normalisation,
            {
                "version": __version__,
                "seed": config.seed,
                "scenes": _recipes(store),
                "reading": _reading(store),
                **_dates(config),
                **({"target": config.target} if config.target else {}),
            },
        )
        task = Task(
            config,
            run,
            model,
            parts["train"],
            parts["validation"],
            shape.classes,
            device,
            options.checkpoint_seconds,
            Diagnosis(model, run.folder) if options.diagnose and processes.is_first else None,
            processes,
            _event_files(run, hold) if options.tensorboard and processes.is_first else None,
            lineages_of(store),
        )
        progress = _trained(task, store, lambda best, _: _save(run.model, card, best))
        if not processes.is_first:
            return run, {}
        _, weights, _ = read_model(run.model)
        load_weights(model, weights, run.model)
        levels = levels_of(store.fingerprint.classes)
        judged = judge(model, parts, shape.classes, store.fingerprint.season, device, levels)
        confidence = {"temperature": judged.calibration.to_json(), "sets": judged.sets.to_json()}
        _save(run.model, replace(card, calibration=confidence), model)
        result = _result(config, run, store, split, parameters, progress, judged)
        write_report(run.report, result)
        write_json(run.result, result)
    return run, result


def _require_possible(
    config: TrainConfig, options: TrainOptions, model: Classifier, processes: Processes, device: torch.device
) -> None:
    """Refuse, before a run folder is made, what cannot be trained as it was asked for."""
    if isinstance(model, Forest):
        require_growable(config, diagnose=options.diagnose)
        asked = {
            "torchrun": processes.size > 1,
            "--tensorboard": options.tensorboard,
            "precision": config.precision != "float32",
            "compile": config.compile,
        }
        for name in (name for name, given in asked.items() if given):
            raise UsageError(f"'{FOREST}' has no use for {name}", remedy="leave it out")
    if options.backend == "native" and (config.compile or config.precision != "float32"):
        why = "the kernels compute in float32, and what is compiled is PyTorch's"
        raise UsageError("--backend native cannot train this", why=why, remedy="leave out compile and precision")
    require_shareable(model, processes)
    Precision(config.precision, device)
    if config.optimiser.micro_batch is not None and normalises_by_batch(model):
        logger.warning("with optimiser.micro_batch this model normalises by the statistics of every micro-batch alone")
    if options.tensorboard:
        require_tensorboard()
    if options.diagnose and config.compile:
        why = "what is compiled cannot be looked into"
        raise UsageError("--diagnose is not for compiled models", why=why, remedy="leave one of them out")


def _claim(
    config: TrainConfig, options: TrainOptions, data: dict[str, Any], hold: ExitStack, processes: Processes
) -> Run:
    """The run folder, which the first process holds for all."""
    if not processes.is_first:
        return Run(Path(processes.tell(None)))
    if options.resume:
        run = open_run(options.resume, data, hold)
    else:
        run = claim_run(options.runs, config, data, hold, fresh=options.fresh)
    processes.tell(str(run.folder))
    return run


def _event_files(run: Run, hold: ExitStack) -> EventFiles:
    events = EventFiles(run)
    hold.callback(events.close)
    return events


def _trained(task: Task, store: Store, save_model: SaveModel) -> Progress:
    return grow(task, store.fingerprint.season, save_model) if isinstance(task.model, Forest) else fit(task, save_model)


def _save(path: Path, card: ModelCard, model: Classifier) -> None:
    write_model(path, card, weights_of(model))


def _result(
    config: TrainConfig,
    run: Run,
    store: Store,
    split: Split,
    parameters: int,
    progress: Progress,
    judged: Judgement,
) -> dict[str, Any]:
    """All that the report shows, as plain data."""
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
        "split": {**split.to_json(), "counts": split.counts(len(fingerprint.classes))},
        "model": {**config.model.model_dump(mode="json"), "parameters": parameters},
        "config": dump(config),
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
    """How dates were made regular, so that a map is made of the same."""
    return {"regular": config.regular.model_dump(mode="json")} if config.regular.every is not None else {}


def _reading(store: Store) -> dict[str, Any]:
    """How images were brought to one grid and masked, so that those to be mapped are read alike."""
    for scene in store.manifest.scenes.values():
        if "resampling" in scene and "scene_classes" in scene:
            return {"resampling": scene["resampling"], "clear": scene["scene_classes"]}
    return {}


def _recipes(store: Store) -> dict[str, str]:
    return {name: scene["recipe"] for name, scene in store.manifest.scenes.items()}


def _say_split(store: Store, split: Split, description: dict[str, Any]) -> None:
    counts = split.counts(len(store.fingerprint.classes))
    totals = ", ".join(f"{sum(counts[part])} for {part}" for part in PARTS)
    event(f"{description['how']}: {totals}", **{part: sum(counts[part]) for part in PARTS})
    for line in describe_lines(description, store.fingerprint.classes.names):
        logger.debug("  %s", line)
    for crop in store.fingerprint.classes:
        if not counts["train"][crop.number] and any(counts[part][crop.number] for part in PARTS):
            logger.warning("no parcel of '%s' is left for training: no model can know it", crop.name)
    own = named_splits(store)
    if own and "name" not in description:
        logger.info(
            "the data set has splits of its own, for figures that compare: --split %s", " or ".join(sorted(own))
        )
