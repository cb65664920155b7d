"""Models that are fitted to all samples at once: their features, and decision trees as plain arrays.

Scikit-learn grows the trees. What it grew is kept as arrays in the model file and asked by a compiled kernel, or with
numpy where there is none, so that no pickle is ever read and a map needs no scikit-learn. `forest.py` and
`boosting.py` say how each model is grown.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cropstar.config import ModelConfig
from cropstar.errors import UsageError
from cropstar.models.contract import Classifier, Shape
from cropstar.models.encoding import YEAR
from cropstar.models.networks.network import refuse_others
from cropstar.native import available
from cropstar.native.trees import PackedTrees, pack_trees, sum_leaves

Floats = NDArray[np.float32]
OnTrees = Callable[[int, int], None]  # told how many trees of how many are grown; may raise to end the growing

EVERY = 10  # days between two values of a band
LONGEST = 36_525  # days of a season: what a file may claim
SERIES_AT_ONCE = 2048
LEAST = 1e-7  # instead of a probability of zero, whose logarithm is not a number to calculate with
TREES = "trees."


@dataclass(frozen=True)
class DayGrid:
    """Regular days over a season that starts on a day of the year."""

    start: int
    length: int
    every: int = EVERY
    differences: bool = True  # see `features_of`; False: features as in older files

    @classmethod
    def from_array(cls, season: NDArray[Any]) -> DayGrid:
        """The grid from `array`; raises ValueError if it is not valid."""
        if season.shape not in ((3,), (4,)) or season.dtype != np.int64:
            raise ValueError("its season cannot be read")
        start, length, every, *differences = season.tolist()
        sound = 1 <= start <= 366 and 0 <= length <= LONGEST and 1 <= every <= 366 and differences in ([], [1])
        if not sound:
            raise ValueError(f"a season of {length} days from day {start} on, every {every}")
        return cls(start, length, every, bool(differences))

    def array(self) -> NDArray[np.int64]:
        """Older files have three numbers."""
        return np.array([self.start, self.length, self.every, *[1] * self.differences], dtype=np.int64)

    @property
    def offsets(self) -> NDArray[np.int64]:
        """(G,) in days since the start of the season; the last is within it."""
        return np.arange(0, self.length + 1, self.every)

    def values(self, bands: int) -> int:
        """How many features are values of bands; the others come after them."""
        return len(self.offsets) * bands

    def features(self, bands: int) -> int:
        days = len(self.offsets)
        return days * bands + ((days - 1) * bands if self.differences else days)

    def starts(self, days: NDArray[np.int64]) -> NDArray[np.int64]:
        """The first day (B,) of the season of the year that leaves the least of each sample's days (B,T) outside."""
        first, last = days.min(axis=1), days.max(axis=1)
        years = first.astype("datetime64[D]").astype("datetime64[Y]")[:, None]
        nearby = np.arange(1, -3 - int(self.length / YEAR), -1)  # the latest wins where several are as good
        starts = (years + nearby).astype("datetime64[D]").astype(np.int64) + self.start - 1  # (B, years)
        outside = np.maximum(starts - first[:, None], 0) + np.maximum(last[:, None] - starts - self.length, 0)
        chosen: NDArray[np.int64] = np.take_along_axis(starts, outside.argmin(axis=1)[:, None], axis=1)[:, 0]
        return chosen


def sensor_features(
    x: Floats,
    valid: NDArray[np.bool_],
    days: NDArray[np.int64],
    grid: DayGrid,
    sensors: tuple[int, ...] | None,
    means: Floats | None = None,
) -> Floats:
    """The same as `features_of` of each of several sensors by itself, and of their context: values, then changes.

    `sensors` are the numbers of their bands (see `Shape`); None: there is one. A sensor that saw nothing of a sample
    has the means of the training.
    """
    if sensors is None:
        return features_of(x, valid, days, grid, means)
    flags = x[:, :, -len(sensors) :] > 0  # (B, T, S)
    ends = np.cumsum([0, *sensors, x.shape[2] - len(sensors) - sum(sensors)])
    values, changes = [], []
    for number, (start, end) in enumerate(pairwise(ends.tolist())):
        if start == end:
            continue  # no context
        seen = valid & flags[:, :, number] if number < len(sensors) else valid
        own = None if means is None else means[grid.values(start) : grid.values(end)]
        found = features_of(x[:, :, start:end], seen, days, grid, own)
        values.append(found[:, : grid.values(end - start)])
        changes.append(found[:, grid.values(end - start) :])
    return np.concatenate([*values, *changes], axis=1)


def features_of(
    x: Floats, valid: NDArray[np.bool_], days: NDArray[np.int64], grid: DayGrid, means: Floats | None = None
) -> Floats:
    """x (B,T,C), valid (B,T) and days (B,T) as features (B, F): the bands on each day of the grid, then their changes.

    A day has the mean of the clear dates that are nearest to it of all days of the grid; one without any lies on the
    line between the clear dates before and after it, held before the first and after the last. A series without any
    clear date has the `means` (G*C,) of the training, zeros where there are none yet. After these G*C values come the
    (G-1)*C differences between one day and the next: a tree cannot subtract.

    Older model files have every day on such a line, which blurs what was seen between two days of the grid, and after
    the values the days (G) from each day of the grid to the nearest clear date.

    One function of arrays, so that training and prediction do the very same.
    """
    since = np.where(valid, days - grid.starts(days)[:, None], np.iinfo(np.int32).max)  # hidden dates go to the end
    order = np.argsort(since, axis=1, kind="stable")
    since = np.take_along_axis(since, order, axis=1)
    clear = valid.sum(axis=1)  # (B,)
    last = np.maximum(clear - 1, 0)[:, None]
    offsets = grid.offsets
    passed = (since[:, :, None] <= offsets).sum(axis=1)  # (B,G): clear dates up to each day
    before, after = np.clip(passed - 1, 0, last), np.clip(passed, 0, last)
    left, right = (np.take_along_axis(since, side, axis=1) for side in (before, after))  # (B,G)
    weight = np.clip((offsets - left) / np.maximum(right - left, 1), 0, 1).astype(np.float32)[:, :, None]
    rows = np.arange(len(x))[:, None]
    low, high = (x[rows, np.take_along_axis(order, side, axis=1)] for side in (before, after))  # (B,G,C)
    filled = (low + weight * (high - low)).astype(np.float32, copy=False)
    if grid.differences:
        _put_means(filled, x, since, order, grid)
    values: Floats = filled.reshape(len(x), -1)
    values[clear == 0] = 0 if means is None else means
    if grid.differences:
        changes = np.diff(values.reshape(filled.shape), axis=1).reshape(len(x), -1)
        return np.concatenate([values, changes], axis=1)
    distance = np.minimum(np.abs(offsets - left), np.abs(offsets - right)).clip(max=grid.length)
    distance[clear == 0] = grid.length
    return np.concatenate([values, distance], axis=1).astype(np.float32)


def _put_means(filled: Floats, x: Floats, since: NDArray[np.int64], order: NDArray[np.int64], grid: DayGrid) -> None:
    """Into values (B,G,C): means of the dates at each place, which follow each other as `since` and `order` (B,T) say.

    Dates beyond the season, and hidden ones, have no place.
    """
    place = (since + grid.every // 2) // grid.every
    sums, counts = np.zeros_like(filled), np.zeros((*filled.shape[:2], 1), dtype=np.float32)
    for rank in range(x.shape[1]):  # one after the other: two dates of a series may have one place
        rows = np.flatnonzero((place[:, rank] >= 0) & (place[:, rank] < filled.shape[1]))
        at = rows, place[rows, rank]
        sums[at] += x[rows, order[rows, rank]]
        counts[at] += 1
    np.divide(sums, counts, out=filled, where=counts > 0)


@dataclass(frozen=True)
class Trees:
    """The nodes of all trees one after the other, a parent before its children.

    A node sends a sample to `right` where its feature is above the threshold, else to `left`, both counted within the
    tree. A leaf has -1 as `left`, and its `right` is a row of `leaves`: leaves that are alike are kept once.
    """

    offsets: NDArray[np.int64]  # (trees + 1,): where each tree begins
    left: NDArray[np.int32]  # (nodes,)
    right: NDArray[np.int32]
    feature: NDArray[np.int32]
    threshold: Floats
    leaves: Floats  # (kinds of leaves, columns)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def join(cls, parts: list[TreeArrays]) -> Trees:
        """Single trees as one."""
        left, right, feature, threshold, values = (np.concatenate(column) for column in zip(*parts, strict=True))
        leaves, rows = np.unique(values, axis=0, return_inverse=True)
        right[left < 0] = rows.ravel()
        offsets = np.cumsum([0, *(len(part[0]) for part in parts)], dtype=np.int64)
        left, right, feature = (array.astype(np.int32) for array in (left, right, feature))
        return cls(offsets, left, right, feature, threshold.astype(np.float32), leaves.astype(np.float32))

    def sum_leaves(self, features: Floats, sums: NDArray[np.float64], adds_to: NDArray[np.int64] | None = None) -> None:
        """Add to `sums` (N, columns) the leaf of each sample in every tree; `adds_to` (trees,): to one column only."""
        if available() and self.packed is not None:
            sum_leaves(self.packed, self.leaves, features, sums, adds_to)
            return
        for tree in range(len(self)):
            values = self.leaf_of(features, tree)
            if adds_to is None:
                sums += values
            else:
                sums[:, adds_to[tree]] += values[:, 0]

    @cached_property
    def packed(self) -> PackedTrees | None:
        """The trees as the kernel takes them; None if a tree is too large for it."""
        features = int(self.feature.max()) + 1
        return pack_trees(self.offsets, self.left, self.right, self.feature, self.threshold, features)

    def leaf_of(self, features: Floats, tree: int) -> Floats:
        """(N, features) to (N, columns): the leaf that each sample comes to in one of the trees."""
        nodes = slice(*self.offsets[tree : tree + 2])
        left, right, feature, threshold = (
            array[nodes] for array in (self.left, self.right, self.feature, self.threshold)
        )
        arrived = np.empty(len(features), dtype=np.int32)
        rows, at = np.arange(len(features)), np.zeros(len(features), dtype=np.int32)
        while len(rows):  # samples that arrived are not followed any further
            ended = left[at] < 0
            arrived[rows[ended]] = right[at[ended]]
            rows, at = rows[~ended], at[~ended]
            above = features[rows, feature[at]] > threshold[at]
            at = np.where(above, right[at], left[at])
        reached: Floats = self.leaves[arrived]
        return reached

    def check(self, features: int, columns: int) -> None:
        """A ValueError says why trees from a file cannot be asked: no walk leaves its tree or goes in circles."""
        kinds = {"offsets": "int64", "left": "int32", "right": "int32", "feature": "int32", "threshold": "float32"}
        for name, kind in kinds.items():
            array = getattr(self, name)
            if array.ndim != 1 or array.dtype != kind:
                raise ValueError(f"{name} is {array.dtype} of {array.ndim} dimensions")
        if len({len(array) for array in (self.left, self.right, self.feature, self.threshold)}) > 1:
            raise ValueError("its arrays of nodes differ in length")
        if self.leaves.ndim != 2 or self.leaves.dtype != np.float32 or self.leaves.shape[1] != columns:
            raise ValueError(f"its leaves are not of {columns} classes")
        if not np.isfinite(self.leaves).all():
            raise ValueError("a leaf is not a number")
        sizes = np.diff(self.offsets)
        if not len(sizes) or self.offsets[0] != 0 or self.offsets[-1] != len(self.left) or (sizes < 1).any():
            raise ValueError("its trees do not share its nodes")
        self._check_nodes(sizes, features)

    def _check_nodes(self, sizes: NDArray[np.int64], features: int) -> None:
        inner = self.left >= 0
        place = (np.arange(len(self.left)) - np.repeat(self.offsets[:-1], sizes))[inner]
        size = np.repeat(sizes, sizes)[inner]
        for children in (self.left[inner], self.right[inner]):
            if (children <= place).any() or (children >= size).any():
                raise ValueError("a node has a child that does not come after it in its tree")
        first = np.repeat(self.offsets[:-1], sizes)[inner]
        children = np.concatenate([first + self.left[inner], first + self.right[inner]])
        parents = np.bincount(children, minlength=len(self.left))
        if (np.delete(parents, self.offsets[:-1]) != 1).any():
            raise ValueError("a node has several parents, or none")
        if ((self.feature[inner] < 0) | (self.feature[inner] >= features)).any():
            raise ValueError(f"a node asks for a feature beyond the {features} there are")
        if not np.isfinite(self.threshold[inner]).all():
            raise ValueError("a threshold is not a number")
        if (self.left[~inner] != -1).any():
            raise ValueError("a node is neither a fork nor a leaf")
        if ((self.right[~inner] < 0) | (self.right[~inner] >= len(self.leaves))).any():
            raise ValueError("a leaf has no values")


# left, right, feature and threshold (nodes,) of one tree, and the values (leaves, columns) of its leaves in order
TreeArrays = tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]


def rounded_down(threshold: NDArray[np.float64]) -> Floats:
    """As float32. A feature of that kind is at most the threshold exactly where it is at most this."""
    near = threshold.astype(np.float32)
    down: Floats = np.where(near > threshold, np.nextafter(near, np.float32(-np.inf)), near)
    return down


@dataclass(frozen=True)
class TreeSamples:
    """The samples that trees are grown on."""

    features: Floats  # (N, F)
    labels: NDArray[np.int64]  # (N,)
    fields: NDArray[np.int64] | None  # (N,): the field of each sample; None: every sample is a field of its own


class FittedClassifier(Classifier):
    """A model that is fitted to a table of features at once, not trained in epochs.

    It has no weights that a gradient could change: its state is made of arrays whose sizes only the fitted model
    knows. Its scores are logarithms of probabilities, so that their softmax gives the probabilities back.
    """

    trains_in_epochs = False
    name: ClassVar[str]
    usual_trees: ClassVar[int]
    own_arrays: ClassVar[tuple[str, ...]] = ()  # beyond season, means and trees

    def __init__(self, config: ModelConfig, shape: Shape) -> None:
        super().__init__()
        refuse_others(config, "trees", "leaf")
        if config.day_encoding == "thermal":
            raise UsageError(
                f"'{config.name}' does not use model.day_encoding thermal",
                why="degree-days are a band to it like any other",
                remedy="leave it out",
            )
        self.bands, self.classes, self.sensors = shape.bands, shape.classes, shape.sensors
        self.columns = shape.bands - len(shape.sensors or ())  # that features are made of: not the flags of sensors
        self.tree_count, self.leaf = config.trees or self.usual_trees, config.leaf
        self.grid, self.means, self.trees = DayGrid(1, 0), np.zeros(0, np.float32), None

    grid: DayGrid
    means: Floats
    trees: Trees | None  # None: not fitted yet

    def fit(
        self,
        features: Floats,
        labels: NDArray[np.int64],
        grid: DayGrid,
        seed: int,
        on_trees: OnTrees,
        fields: NDArray[np.int64] | None = None,
    ) -> NDArray[np.float64] | None:
        """Grow trees on features (N, F) of a grid and labels (N,).

        `fields` (N,) numbers the field of each sample; None: every sample is a field of its own.

        Returns probabilities (N, classes) of the samples by trees that never saw their field, where they come for
        free: NaN for a sample without such trees, None of a model that has none.
        """
        means = features[:, : grid.values(self.columns)].mean(axis=0, dtype=np.float64).astype(np.float32)
        alone = fields is None or len(np.unique(fields)) == len(fields)
        arrays, unseen = self.grow(TreeSamples(features, labels, None if alone else fields), seed % 2**32, on_trees)
        self.load_arrays({"season": grid.array(), "means": means, **arrays})
        return unseen

    @abstractmethod
    def grow(
        self, samples: TreeSamples, seed: int, on_trees: OnTrees
    ) -> tuple[dict[str, NDArray[Any]], NDArray[np.float64] | None]:
        """The arrays of the grown trees, and what `fit` returns."""

    @abstractmethod
    def ask(self, features: Floats) -> NDArray[np.float64]:
        """Probabilities (N, classes)."""

    @abstractmethod
    def load_trees(self, arrays: Mapping[str, NDArray[Any]], trees: Trees, features: int) -> None:
        """Check the trees and set `own_arrays`; raises ValueError if they are not valid."""

    def load_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Set the fitted arrays; raises ValueError if they are not valid."""
        grid, means = DayGrid.from_array(arrays["season"]), arrays["means"]
        if means.dtype != np.float32 or means.shape != (grid.values(self.columns),):
            raise ValueError(f"its means are not those of {self.bands} bands and {len(grid.offsets)} days")
        if not np.isfinite(means).all():
            raise ValueError("one of its means is not a number")
        trees = Trees(*(arrays[f"{TREES}{field.name}"] for field in fields(Trees)))
        self.load_trees(arrays, trees, grid.features(self.columns))
        self.grid, self.means, self.trees = grid, means, trees

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The fitted arrays, as `load_arrays` takes them."""
        assert self.trees is not None
        own = {name: getattr(self, name) for name in self.own_arrays}
        trees = {f"{TREES}{name}": array for name, array in self.trees.arrays().items()}
        return {"season": self.grid.array(), "means": self.means, **own, **trees}

    def forward(self, x: Tensor, valid: Tensor, days: Tensor) -> Tensor:
        values, clear = x.detach().cpu().numpy().astype(np.float32, copy=False), valid.cpu().numpy()
        dates = days.cpu().numpy().astype(np.int64)
        scores = np.empty((len(values), self.classes), dtype=np.float32)
        for start in range(0, len(values), SERIES_AT_ONCE):
            some = slice(start, start + SERIES_AT_ONCE)
            scores[some] = log_probabilities(self.probabilities(values[some], clear[some], dates[some]))
        return torch.from_numpy(scores).to(x.device)

    def probabilities(self, x: Floats, valid: NDArray[np.bool_], days: NDArray[np.int64]) -> NDArray[np.float64]:
        if self.trees is None:
            raise RuntimeError("the model is not fitted yet")
        return self.ask(sensor_features(x, valid, days, self.grid, self.sensors, self.means))

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        if self.trees is not None:
            destination |= {f"{prefix}{name}": torch.from_numpy(array) for name, array in self.arrays().items()}

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Sizes are those of the file; what does not make trees is among the errors of `load_state_dict`."""
        names = ("season", "means", *self.own_arrays, *(f"{TREES}{field.name}" for field in fields(Trees)))
        missing = [name for name in names if f"{prefix}{name}" not in state_dict]
        wanted = {f"{prefix}{name}" for name in names}
        missing_keys += [f"{prefix}{name}" for name in missing]
        unexpected_keys += [name for name in state_dict if name.startswith(prefix) and name not in wanted]
        if missing:
            return
        try:
            self.load_arrays({name: state_dict[f"{prefix}{name}"].detach().cpu().numpy() for name in names})
        except ValueError as failure:
            error_msgs.append(str(failure))


def log_probabilities(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scores whose softmax gives the probabilities back."""
    scores: NDArray[np.float64] = np.log(np.maximum(probabilities, LEAST))
    return scores
