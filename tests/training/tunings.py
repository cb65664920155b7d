"""A small store of series and a quick tuning on it."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cropstar.config import TrainConfig, resolve_config
from cropstar.sources.ingest import ingest
from cropstar.sources.ucr import open_ucr
from cropstar.training.search_space import Categorical, Range, Space
from cropstar.training.tuning import TuneOptions, TuningResult, tune
from tests.sources.examples.ucr import tsv, write_pair

CPU = torch.device("cpu")
SPACE: Space = {"optimiser.learning_rate": Range(1e-3, 0.1, log=True), "model.layers": Categorical((1, 2))}


def a_store(folder: Path, *, noise_in_test: float = 0.5) -> Path:
    """Three classes of eight steps, 90 series to train and 30 to test; learnt in part within some epochs."""
    texts = []
    for seed, (count, noise) in enumerate(((90, 0.5), (30, noise_in_test))):
        random = np.random.default_rng(seed)
        kinds = np.arange(count) % 3
        waves = np.sin(np.arange(8)[None] * (1 + kinds[:, None]))
        texts.append(tsv([str(kind) for kind in kinds], waves + noise * random.normal(size=(count, 8))))
    write_pair(folder / "data", texts[0], texts[1])
    ingest(open_ucr(folder / "data"), folder / "store")
    return folder / "store"


def a_config(store: Path, **changes: Any) -> TrainConfig:
    small = {"model.name": "star", "model.layers": 1, "model.hidden": 8, "epochs": 4, "optimiser.warmup": 0}
    return resolve_config(
        None,
        {"store": store, "split.name": "published", "split.validation": 0.3, "series_batch": 16, **small, **changes},
    )


def tuned(store: Path, folder: Path, space: Space = SPACE, *, trials: int = 12, **changes: Any) -> TuningResult:
    folds = changes.pop("folds", None)
    return tune(a_config(store, **changes), space, TuneOptions(folder.parent, CPU, folder, trials, folds))


def table(done: Path) -> list[dict[str, str]]:
    """The trials without the time that they took."""
    with (done / "trials.csv").open(newline="") as handle:
        return [{key: value for key, value in row.items() if key != "seconds"} for row in csv.DictReader(handle)]
