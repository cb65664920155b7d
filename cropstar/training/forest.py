"""Growing the random forest: the part of the training loop, of a model that is not trained in epochs.

Settings are those of the published baselines: 300 trees, each grown until its leaves are pure. Nothing is chosen on the
validation parcels; they only calibrate, and the test parcels are looked at once, as with every other model.
"""

from __future__ import annotations

import importlib.util
import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cropstar.config import TrainConfig
from cropstar.errors import Interrupted, UsageError
from cropstar.geo.calendar import Season
from cropstar.logs import event
from cropstar.models.networks.forest import NAME, Forest
from cropstar.models.networks.forest_features import DayGrid
from cropstar.models.networks.forest_trees import Trees
from cropstar.progress import progress_bar
from cropstar.signals import stop_on_request
from cropstar.training.forest_samples import Samples, gather
from cropstar.training.loop import SaveModel, Task
from cropstar.training.state import Progress

TREES = 300
AT_ONCE = 20  # trees between two looks at the clock and at signals
UNUSED = ("optimiser", "loss", "sampling", "augmentation", "patience")


def require_growable(config: TrainConfig, *, diagnose: bool) -> None:
    """Refuse, before a run is made, what a forest has no use for, and a machine that cannot grow one."""
    for name in UNUSED:
        if getattr(config, name) != TrainConfig.model_fields[name].default:
            raise UsageError(f"'{NAME}' has no use for {name}", remedy="leave it out")
    if diagnose:
        raise UsageError(f"'{NAME}' has no layers to look into", remedy="leave --diagnose out")
    if importlib.util.find_spec("sklearn") is None:
        why = "scikit-learn is not installed"
        raise UsageError(f"'{NAME}' cannot be trained", why=why, remedy="pip install 'cropstar[forest]'")


def grow(task: Task, season: Season, save_model: SaveModel) -> Progress:
    """Grow the forest and save it. A run that was stopped begins anew and comes to the same forest."""
    model = task.model
    assert isinstance(model, Forest)
    started = time.monotonic()
    grid = DayGrid(season.start, season.length)
    samples = gather(task.training, task.classes, grid, task.config.seed)
    event(f"{len(samples.labels):,} series of {samples.features.shape[1]} features", samples=len(samples.labels))
    trees = to_arrays(_grown(samples, task.config.seed), task.classes)
    values = len(grid.offsets) * model.bands
    model.become(grid, samples.features[:, :values].mean(axis=0, dtype=np.float64).astype(np.float32), trees)
    progress = Progress(samples=len(samples.labels), seconds=time.monotonic() - started)
    event(f"{len(trees)} trees with {len(trees.left):,} nodes ({progress.seconds:.0f} s)", nodes=len(trees.left))
    save_model(model, progress)
    return progress


def _grown(samples: Samples, seed: int) -> Any:
    """A fitted RandomForestClassifier; the same, whether it is grown at once or a few trees at a time."""
    from sklearn.ensemble import RandomForestClassifier

    state = int(np.random.SeedSequence(seed).generate_state(1)[0]) if seed >= 2**32 else seed
    forest = RandomForestClassifier(TREES, random_state=state, n_jobs=torch.get_num_threads(), warm_start=True)
    with stop_on_request() as stop, progress_bar(TREES, "grow", "tree") as bar:
        for count in (*range(AT_ONCE, TREES, AT_ONCE), TREES):
            forest.set_params(n_estimators=count).fit(samples.features, samples.labels)
            bar.update(count - bar.n)
            if stop:
                assert stop.signal is not None
                raise Interrupted(stop.signal, f"{count} of {TREES} trees were grown, none is kept")
    return forest


def to_arrays(forest: Any, classes: int) -> Trees:
    """The trees of a RandomForestClassifier; classes that it never saw have a probability of zero."""
    parts = [_one_tree(each.tree_, forest.classes_, classes) for each in forest.estimators_]
    left, right, feature, threshold, probabilities = (np.concatenate(column) for column in zip(*parts, strict=True))
    leaves, rows = np.unique(probabilities, axis=0, return_inverse=True)
    right[left < 0] = rows.ravel()
    offsets = np.cumsum([0, *(len(part[0]) for part in parts)], dtype=np.int64)
    return Trees(offsets, left, right, feature, threshold, leaves)


def _one_tree(tree: Any, seen: NDArray[np.int64], classes: int) -> tuple[NDArray[Any], ...]:
    """left, right, feature and threshold (nodes,), and the probabilities (leaves, classes) of its leaves in order."""
    leaf = tree.children_left < 0
    counts = tree.value[leaf, 0]
    probabilities = np.zeros((len(counts), classes), dtype=np.float32)
    probabilities[:, seen] = counts / counts.sum(axis=1, keepdims=True)
    feature = np.where(leaf, -1, tree.feature).astype(np.int32)
    return (
        tree.children_left.astype(np.int32),
        tree.children_right.astype(np.int32),
        feature,
        np.where(leaf, 0, _rounded_down(tree.threshold)).astype(np.float32),
        probabilities,
    )


def _rounded_down(threshold: NDArray[np.float64]) -> NDArray[np.float32]:
    """As float32. A feature of that kind is at most the threshold exactly where it is at most this."""
    near = threshold.astype(np.float32)
    down: NDArray[np.float32] = np.where(near > threshold, np.nextafter(near, np.float32(-np.inf)), near)
    return down
