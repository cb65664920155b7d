"""One training of a tuning: to the best epoch by validation, and not a step further.

The test part is taken out of the split before anything is opened: no trial can look at it, by mistake or otherwise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from cropstar.config import TrainConfig
from cropstar.datasets.fields import choose_target
from cropstar.datasets.samples import Prepared, open_parts
from cropstar.datasets.splits import split_parcels
from cropstar.errors import UsageError
from cropstar.models.contract import Classifier
from cropstar.models.networks.trees import FittedClassifier
from cropstar.models.zoo import build_model
from cropstar.runtime import logger
from cropstar.store.store import Store
from cropstar.training.inner_folds import inner_folds, without_test
from cropstar.training.loop import Task, fit
from cropstar.training.precision import Precision
from cropstar.training.runs import Run
from cropstar.training.shaping import lineages_of, shape_of
from cropstar.training.state import Progress
from cropstar.training.targets import require_target

OnEpoch = Callable[[int, float], None]  # the epoch from 1, and its macro-F1 on validation
SHAPING = ("batch", "series_batch", "patch", "target", "regular")  # of the configuration: what data sets depend on


class Trainer:
    """The data of all trials: a store and its split, once for all or fold by fold."""

    def __init__(self, store: Store, config: TrainConfig, folds: int | None, device: torch.device) -> None:
        self._store, self._device = store, device
        target = choose_target(config, store)
        split = split_parcels(store, config.split, config.seed, target)
        self._splits = [without_test(split)] if folds is None else inner_folds(store, split, config, target, folds)
        self.folds = len(self._splits)
        self._opened: dict[tuple[int, str], dict[str, Prepared]] = {}
        # Whatever is wrong with the configuration itself is said now, not twenty times as a failed trial.
        self._parts(config, self._model(config), 0)

    def fit(self, config: TrainConfig, fold: int, folder: Path, on_epoch: OnEpoch, seconds: float) -> Progress:
        """Train as `cropstar train` would, from the same seed; goes on where a killed one was."""
        model = self._model(config)
        parts = self._parts(config, model, fold)
        task = Task(
            config,
            Run(folder),
            model,
            parts["train"],
            parts["validation"],
            len(self._store.fingerprint.classes),
            self._device,
            seconds,
            lineages=lineages_of(self._store),
            after_epoch=lambda progress: on_epoch(progress.epoch, progress.history[-1]["validation"]["macro_f1"]),
        )
        with silenced():
            return fit(task, lambda *_: None)

    def _model(self, config: TrainConfig) -> Classifier:
        for name in ("ensemble", "beside", "refit", "distil"):
            if getattr(config, name) != TrainConfig.model_fields[name].default:
                why = "trials compare single models on validation"
                raise UsageError(f"tuning has no use for {name}", why=why, remedy="leave it out")
        torch.manual_seed(config.seed)
        model = build_model(config.model, shape_of(self._store, config))
        if isinstance(model, FittedClassifier):
            raise UsageError(f"'{model.name}' cannot be tuned", why="it has no epochs", remedy="take another model")
        require_target(config, self._store, model)
        Precision(config.precision, self._device)
        return model

    def _parts(self, config: TrainConfig, model: Classifier, fold: int) -> dict[str, Prepared]:
        """Data sets are kept while trials do not differ in what they depend on: statistics take a pass over all."""
        shaping = config.model_dump_json(include=set(SHAPING)) + str(model.spatial)
        if (fold, shaping) not in self._opened:
            self._opened = {key: parts for key, parts in self._opened.items() if key[1] == shaping}
            split = self._splits[fold]
            parts, _ = open_parts(self._store, split, config, spatial=model.spatial, regular=config.regular)
            self._opened[fold, shaping] = parts
        return self._opened[fold, shaping]


@contextmanager
def silenced() -> Iterator[None]:
    """Within, only warnings are said, or all with --verbose: twenty trials of fifty epochs are a thousand lines."""

    def keep(record: logging.LogRecord) -> bool:
        return record.levelno > logging.INFO or logger.isEnabledFor(logging.DEBUG)

    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)
