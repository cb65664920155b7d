"""The journal of a tuning: Optuna's, one file, which its own tools can read.

What is proposed follows from the seed, the trial's number and the trials before it alone, and a trial enters the
journal in one line with all its values: a tuning killed anywhere and started again comes to the trials of the unbroken
one.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import numpy as np

from cropstar.errors import ArtifactError, UsageError
from cropstar.training.search_space import Space

STUDY = "tune"
STARTUP = 5  # trials that are never pruned, for there is no median yet


def require_optuna() -> Any:
    """Optuna, or the word what to install."""
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
        """The trial that a killed tuning was at, to go on with."""
        found = [trial for trial in self.trials() if not trial.state.is_finished()]
        return self._optuna.trial.Trial(self._study, found[0]._trial_id) if found else None

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
        if step not in self.trials()[trial.number].intermediate_values:  # of a trial that goes on
            trial.report(score, step)
        return bool(trial.should_prune())

    def _proposed(self, number: int) -> dict[str, Any]:
        """By a sampler of the trial's own seed that knows what came before."""
        seed = int(np.random.SeedSequence([self._seed, number]).generate_state(1)[0])
        scratch = self._optuna.create_study(direction="maximize", sampler=self._optuna.samplers.TPESampler(seed=seed))
        scratch.add_trials(self.trials())
        return dict(scratch.ask(self._distributions).params)


def _drop_torn_line(path: Path) -> None:
    """What a killed process left of its last line; the next one would be written on to it."""
    if not path.exists():
        return
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)
