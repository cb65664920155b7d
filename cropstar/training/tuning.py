"""`cropstar tune`: trials over a search space, scored on validation, and the best one as a configuration.

<runs>/tune-001/
  tune.json             what is tuned: configuration, space, folds, data
  study.journal         every trial as it went, in Optuna's format: a killed tuning resumes from it
  trials/001/...        the metrics of a trial, and checkpoints while it runs
  trials.csv, best.yaml the trials as a table, and the best configuration for `cropstar train --config`
"""

from __future__ import annotations

import csv
import importlib
import io
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cropstar.config import TrainConfig, dump_config
from cropstar.datasets.samples import Prepared
from cropstar.datasets.splits import split_parcels
from cropstar.errors import ArtifactError, CropstarError, MismatchError, ResourceError, UsageError
from cropstar.models.contract import Classifier
from cropstar.runtime import event, keep_large_buffers, logger, progress_bar
from cropstar.store.files import locked, write_json, write_text
from cropstar.store.gate import read_json
from cropstar.store.store import Store
from cropstar.training.ensembles import keeping_last_epoch
from cropstar.training.fitting import ForestTeacher
from cropstar.training.optimisation import Precision
from cropstar.training.runs import Run
from cropstar.training.search_space import Space, current_values, with_values
from cropstar.training.setup import Setup, without_test
from cropstar.training.trainer import Progress, Task, fit

SETTINGS = "tune.json"
STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "unfinished"}


@dataclass(frozen=True)
class TuneOptions:
    """How much is tried, and where; `folds` decides the outcome too and is kept with the tuning."""

    runs: Path
    device: torch.device
    folder: Path | None = None
    trials: int = 20
    folds: int | None = None
    checkpoint_seconds: float = 30.0


@dataclass(frozen=True)
class TuningResult:
    folder: Path
    score: float  # macro-F1 on validation
    values: dict[str, Any]

    @property
    def best(self) -> Path:
        return self.folder / "best.yaml"

    @property
    def table(self) -> Path:
        return self.folder / "trials.csv"


class Pruned(Exception):
    """A trial is not worth continuing."""


def tune(config: TrainConfig, space: Space, options: TuneOptions) -> TuningResult:
    """Run trials up to the given number, counting those of earlier starts; no trial uses the test part."""
    optuna = require_optuna()
    keep_large_buffers()
    with ExitStack() as hold:
        store = hold.enter_context(Store.open(config.store))
        folds = options.folds or config.cross_fit or None
        if folds is not None and options.folds is None:
            logger.info("every trial is cross-validated in %d folds: too few fields to hold some out", folds)
        trainer = Trainer(store, config, folds, options.device)
        settings = {
            "config": dump_config(config),
            "space": {key: {"kind": type(entry).__name__, **asdict(entry)} for key, entry in space.items()},
            "folds": folds,
            "data": {
                "fingerprint": store.fingerprint.to_json(),
                "scenes": {name: about.get("recipe", "") for name, about in store.manifest.scenes.items()},
            },
        }
        folder = _claim(options, json.loads(json.dumps(settings)), hold)
        # Steps are epochs, or folds where there are several; a fifth of the epochs is too early to tell.
        warmup = 1 + (config.epochs // 5 if trainer.folds == 1 else 0)
        journal = Journal(folder / "study.journal", optuna, space, config.seed, warmup)
        study = Tuning(config, space, options, folder, trainer, journal)
        study.run()
        return study.result()


class Tuning:
    def __init__(
        self, config: TrainConfig, space: Space, options: TuneOptions, folder: Path, trainer: Trainer, journal: Journal
    ) -> None:
        self._config, self._space, self._options = config, space, options
        self._folder, self._trainer, self._journal = folder, trainer, journal

    def run(self) -> None:
        wanted = self._options.trials
        event(f"tuning {', '.join(self._space)}; {self._folder}", folder=str(self._folder))
        done = sum(trial.state.is_finished() for trial in self._journal.trials())
        if done:
            event(f"resuming after {done} trials", done=done)
        with progress_bar(wanted, "tune", "trial") as bar:
            bar.update(min(done, wanted))
            while True:
                trial = self._journal.unfinished()
                if trial is None:
                    if len(self._journal.trials()) >= wanted:
                        break
                    trial = self._journal.begin(current_values(self._config, self._space))
                self._try(trial)
                self._write()
                self._log(trial.number, wanted)
                bar.update()
        self._write()

    def result(self) -> TuningResult:
        best = self._best()
        if best is None:
            failed = [trial.user_attrs["why"] for trial in self._journal.trials() if "why" in trial.user_attrs]
            why = f"the last one failed: {failed[-1]}" if failed else "none was run"
            raise CropstarError("no trial was completed", path=self._folder, why=why, remedy="change the space")
        return TuningResult(self._folder, float(best.value), dict(best.params))

    def _try(self, trial: Any) -> None:
        """Run one trial. An error due to its values fails the trial; a full disk or a signal ends the tuning."""
        folder = self._folder / "trials" / f"{trial.number + 1:03d}"
        try:
            self._journal.complete(trial, self._score(trial, folder))
        except Pruned:
            self._journal.prune(trial)
        except (CropstarError, RuntimeError, MemoryError) as failure:
            if not _is_fault_of_values(failure):
                raise
            self._journal.fail(trial, " ".join(str(failure).split()) or type(failure).__name__)
        for checkpoints in folder.rglob("checkpoints"):
            shutil.rmtree(checkpoints, ignore_errors=True)

    def _score(self, trial: Any, folder: Path) -> float:
        config, several = with_values(self._config, trial.params), self._trainer.folds > 1
        scores: list[float] = []
        best_epochs: list[int] = []
        seconds, epochs = 0.0, 0

        def on_epoch(epoch: int, score: float) -> None:
            if not several and self._journal.report(trial, epoch, score) and epoch < config.epochs:
                raise Pruned

        for fold in range(self._trainer.folds):
            place = folder / f"fold-{fold + 1}" if several else folder
            progress = self._trainer.fit(config, fold, place, on_epoch, self._options.checkpoint_seconds)
            scores.append(progress.best_score)
            best_epochs.append(progress.best_epoch)
            seconds, epochs = seconds + progress.seconds, epochs + progress.epoch
            mean = sum(scores) / len(scores)
            if several and self._journal.report(trial, fold + 1, mean) and fold + 1 < self._trainer.folds:
                raise Pruned
        for name, value in (("best_epochs", best_epochs), ("epochs", epochs), ("seconds", round(seconds, 1))):
            trial.set_user_attr(name, value)
        return sum(scores) / len(scores)

    def _best(self) -> Any | None:
        complete = [trial for trial in self._journal.trials() if trial.state.name == "COMPLETE"]
        return max(complete, key=lambda trial: (trial.value, -trial.number), default=None)

    def _write(self) -> None:
        """The table of all trials, and the best configuration so far."""
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(["trial", "state", "macro_f1", "best_epochs", "epochs", "seconds", *self._space, "why"])
        for trial in self._journal.trials():
            about = trial.user_attrs
            complete = trial.state.name == "COMPLETE"
            reached = trial.value if complete else max(trial.intermediate_values.values(), default="")
            best = " ".join(map(str, about.get("best_epochs", [])))
            epochs = about.get("epochs", "" if self._trainer.folds > 1 else len(trial.intermediate_values))
            values = [trial.params.get(key, "") for key in self._space]
            state = STATES.get(trial.state.name, trial.state.name.lower())
            rows.writerow(
                [
                    trial.number + 1,
                    state,
                    reached,
                    best,
                    epochs,
                    about.get("seconds", ""),
                    *values,
                    about.get("why", ""),
                ]
            )
        write_text(self._folder / "trials.csv", text.getvalue())
        best_trial = self._best()
        if best_trial is not None:
            where = f"trial {best_trial.number + 1} of {self._folder.name}"
            head = f"# macro-F1 {best_trial.value:.4f} on validation, {where}\n"
            write_text(self._folder / "best.yaml", head + dump_config(with_values(self._config, best_trial.params)))

    def _log(self, number: int, wanted: int) -> None:
        trial, best = self._journal.trials()[number], self._best()
        outcome = {
            "COMPLETE": lambda: f"macro-F1 {trial.value:.3f}",
            "PRUNED": lambda: f"pruned at {max(trial.intermediate_values.values()):.3f}",
            "FAIL": lambda: f"failed: {trial.user_attrs['why']}",
        }[trial.state.name]()
        leading = f"; best {best.value:.3f} of trial {best.number + 1}" if best is not None else ""
        event(
            f"trial {number + 1}/{wanted}  {outcome}  ({format_values(trial.params)}){leading}",
            trial=number + 1,
            state=STATES[trial.state.name],
            score=trial.value,
            values=trial.params,
        )


def format_values(values: dict[str, Any]) -> str:
    """Values by the last word of their keys."""
    texts = {
        key.rpartition(".")[2]: f"{value:.3g}" if isinstance(value, float) else value for key, value in values.items()
    }
    return ", ".join(f"{key} {text}" for key, text in texts.items())


def _is_fault_of_values(failure: Exception) -> bool:
    """A loss that is not a number, options that do not go together, a model too large for memory or torch itself."""
    if isinstance(failure, ResourceError):
        return failure.what == "out of memory"
    if isinstance(failure, CropstarError):
        return type(failure) is CropstarError or isinstance(failure, UsageError)
    return True


def _claim(options: TuneOptions, settings: dict[str, Any], hold: ExitStack) -> Path:
    """The given folder, or that of a tuning with the same settings, or a new one."""
    if options.folder is not None:
        folder = options.folder
        if folder.is_dir() and any(folder.iterdir()) and not (folder / SETTINGS).is_file():
            why = "it holds other files"
            raise UsageError("not a tuning folder", path=folder, why=why, remedy="choose a new folder with -o")
    else:
        known = sorted(options.runs.glob(f"tune-*/{SETTINGS}"), reverse=True)
        same = [path.parent for path in known if _read(path) == settings]
        number = 1
        while (options.runs / f"tune-{number:03d}").exists():
            number += 1
        folder = same[0] if same else options.runs / f"tune-{number:03d}"
    hold.enter_context(locked(folder, "the tuning"))
    if not (folder / SETTINGS).exists():
        write_json(folder / SETTINGS, settings)
        return folder
    before = _read(folder / SETTINGS)
    if before != settings:
        known_as = before if isinstance(before, dict) else {}
        changed = [name for name, value in settings.items() if known_as.get(name) != value]
        why = f"it was started with another {' and '.join(changed) or 'setting'}"
        remedy = "choose another folder with -o"
        raise MismatchError("cannot resume the tuning", path=folder, why=why, remedy=remedy)
    return folder


def _read(path: Path) -> Any:
    try:
        return read_json(path)
    except ValueError as failure:
        remedy = "choose another folder with -o"
        raise ArtifactError("not the settings of a tuning", path=path, why=str(failure), remedy=remedy) from None


# --- the journal: Optuna's, one file, which its own tools can read
#
# A proposal follows from the seed, the trial's number and the trials before it alone, and a trial enters the journal in
# one line with all its values: a tuning killed anywhere and started again comes to the trials of the unbroken one.


STUDY = "tune"
STARTUP = 5  # trials that are never pruned, for there is no median yet


def require_optuna() -> Any:
    """Optuna, or an error that says what to install."""
    try:
        optuna = importlib.import_module("optuna")
        importlib.import_module("optuna.storages.journal")
    except ImportError:
        why = "optuna is not installed"
        raise UsageError("tuning cannot be used", why=why, remedy="pip install 'cropstar[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


class HeldLock:
    """The folder's lock is held by this process already, and is freed when it is killed; Optuna's would stay."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        """Nothing to free."""


class Journal:
    def __init__(self, path: Path, optuna: Any, space: Space, seed: int, warmup: int) -> None:
        self._optuna = optuna
        self._seed = seed
        self._distributions = {key: entry.distribution(optuna) for key, entry in space.items()}
        _drop_torn_line(path)
        pruner = optuna.pruners.MedianPruner(n_startup_trials=STARTUP, n_warmup_steps=warmup)
        try:
            backend = optuna.storages.journal.JournalFileBackend(str(path), lock_obj=HeldLock())
            storage = optuna.storages.JournalStorage(backend)
            known = {"study_name": STUDY, "storage": storage, "pruner": pruner}
            if STUDY in optuna.get_all_study_names(storage):
                self._study = optuna.load_study(**known)
            else:
                self._study = optuna.create_study(**known, direction="maximize")
            self.trials()
        except (ValueError, KeyError, TypeError, AttributeError, AssertionError, optuna.exceptions.OptunaError) as bad:
            remedy = "choose another folder with -o"
            raise ArtifactError("the journal cannot be read", path=path, why=str(bad), remedy=remedy) from None

    def trials(self) -> list[Any]:
        return list(self._study.get_trials(deepcopy=False))

    def unfinished(self) -> Any | None:
        """The unfinished trial of a killed tuning, to resume."""
        running = [trial for trial in self.trials() if not trial.state.is_finished()]
        return self._optuna.trial.Trial(self._study, running[0]._trial_id) if running else None

    def begin(self, first: dict[str, Any] | None) -> Any:
        """A new trial. The first one has the values that are given, if any, so that the search begins where one is."""
        number = len(self.trials())
        values = first if number == 0 and first is not None else self._proposed(number)
        running = self._optuna.trial.TrialState.RUNNING
        self._study.add_trial(
            self._optuna.trial.create_trial(state=running, params=values, distributions=self._distributions)
        )
        trial = self.unfinished()
        assert trial is not None
        return trial

    def complete(self, trial: Any, score: float) -> None:
        self._study.tell(trial.number, score)

    def prune(self, trial: Any) -> None:
        self._study.tell(trial.number, state=self._optuna.trial.TrialState.PRUNED)

    def fail(self, trial: Any, why: str) -> None:
        trial.set_user_attr("why", why)
        self._study.tell(trial.number, state=self._optuna.trial.TrialState.FAIL)

    def report(self, trial: Any, step: int, score: float) -> bool:
        """Note a score on the way; whether the trial is worse than the median of the others and should end."""
        if step not in self.trials()[trial.number].intermediate_values:  # of a trial that is resumed
            trial.report(score, step)
        return bool(trial.should_prune())

    def _proposed(self, number: int) -> dict[str, Any]:
        """The next values, by a sampler with the trial's own seed and the earlier trials."""
        seed = int(np.random.SeedSequence([self._seed, number]).generate_state(1)[0])
        scratch = self._optuna.create_study(direction="maximize", sampler=self._optuna.samplers.TPESampler(seed=seed))
        scratch.add_trials(self.trials())
        return dict(scratch.ask(self._distributions).params)


def _drop_torn_line(path: Path) -> None:
    """Drop an incomplete last line of a killed process: the next line would be appended to it."""
    if not path.exists():
        return
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)


# --- one training of a tuning: to the best epoch by validation
#
# The test part is taken out of the split before anything is opened: no trial can look at it.


OnEpoch = Callable[[int, float], None]  # the epoch from 1, and its macro-F1 on validation
# Of the configuration: what data sets depend on.
SHAPING = ("batch", "series_batch", "patch", "target", "regular", "soft_labels")


class Trainer:
    """The data of all trials: a store and its split, once for all or fold by fold."""

    def __init__(self, store: Store, config: TrainConfig, folds: int | None, device: torch.device) -> None:
        self._setup = Setup.of(store, config, device)
        split = split_parcels(store, config.split, config.seed, self._setup.target)
        self._splits = [without_test(split)] if folds is None else self._setup.folds(split, config, folds)
        self.folds = len(self._splits)
        self._opened: dict[tuple[int, str], dict[str, Prepared]] = {}
        # Whatever is wrong with the configuration itself is said now, not twenty times as a failed trial.
        self._parts(config, self._model(config), 0)

    def fit(self, config: TrainConfig, fold: int, folder: Path, on_epoch: OnEpoch, seconds: float) -> Progress:
        """Train as `cropstar train` would, from the same seed; resumes where a killed one was."""
        model = self._model(config)
        parts = self._parts(config, model, fold)
        task = Task(
            keeping_last_epoch(config) if config.cross_fit else config,
            Run(folder),
            model,
            parts["train"],
            parts["validation"],
            self._setup.classes,
            self._setup.device,
            seconds,
            lineages=self._setup.lineages,
            after_epoch=lambda progress: on_epoch(progress.epoch, progress.history[-1]["validation"]["macro_f1"]),
        )
        with silenced():
            return fit(task, lambda *_: None)

    def _model(self, config: TrainConfig) -> Classifier:
        for name in ("ensemble", "beside", "refit", "distil"):
            if getattr(config, name) != TrainConfig.model_fields[name].default:
                why = "trials compare single models on validation"
                raise UsageError(f"tuning does not use {name}", why=why, remedy="leave it out")
        model = self._setup.build(config)
        if not model.trains_in_epochs:
            raise UsageError(
                f"'{config.model.name}' cannot be tuned", why="it has no epochs", remedy="use another model"
            )
        self._setup.require(config, model)
        Precision(config.precision, self._setup.device)
        return model

    def _parts(self, config: TrainConfig, model: Classifier, fold: int) -> dict[str, Prepared]:
        """Data sets are kept while trials do not differ in what they depend on: statistics take a pass over all."""
        shaping = config.model_dump_json(include=set(SHAPING)) + str(model.spatial)
        if (fold, shaping) not in self._opened:
            self._opened = {key: parts for key, parts in self._opened.items() if key[1] == shaping}
            parts, _ = self._setup.open(self._splits[fold], config, model)
            teacher = ForestTeacher.of(config, self._setup.target, self._setup.shape(config))
            if teacher is not None:
                parts["train"] = teacher.teach(parts["train"], self._splits[fold], config)
            self._opened[fold, shaping] = parts
        return self._opened[fold, shaping]


@contextmanager
def silenced() -> Iterator[None]:
    """Log only warnings within this context, or all with --verbose: twenty trials of fifty epochs are 1,000 lines."""

    def keep(record: logging.LogRecord) -> bool:
        return record.levelno > logging.INFO or logger.isEnabledFor(logging.DEBUG)

    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)
