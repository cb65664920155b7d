"""`rf`: a random forest on gap-filled series, the baseline to beat.

Every band is brought to a day in ten of the season, from the valid dates alone, and its changes from one such day to
the next come beside it. The trees are scikit-learn's, `model.trees` of them (300), each grown until its leaves are pure
or hold `model.leaf` samples. On images each tree has four fifths of the fields and a share of their pixels. A fitted
forest needs no scikit-learn to be asked. It learns from training and validation fields together: nothing is chosen on
validation, and its probabilities are calibrated by trees that did not see the field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.models.networks.trees import (
    TREES,
    FittedClassifier,
    Floats,
    OnTrees,
    TreeArrays,
    Trees,
    TreeSamples,
    rounded_down,
)
from cropstar.runtime import usual_threads

AT_ONCE = 20  # trees between two looks at the clock and at signals
PARTS = 5  # of the fields: each tree leaves one out
PIXELS, PIXELS_A_FIELD = 2048, 8  # of images, for each tree: so many, and on average so many of a field
ASKED = 32  # pixels of a field whose out-of-bag probabilities are worked out


class Forest(FittedClassifier):
    """Leaves are probabilities; the forest's are their mean over the trees."""

    name = "rf"
    usual_trees = 300

    def ask(self, features: Floats) -> NDArray[np.float64]:
        assert self.trees is not None
        total = np.zeros((len(features), self.classes))
        self.trees.sum_leaves(features, total)
        return total / len(self.trees)

    def grow(
        self, samples: TreeSamples, seed: int, on_trees: OnTrees
    ) -> tuple[dict[str, NDArray[Any]], NDArray[np.float64]]:
        """The same forest, whether it is grown at once or a few trees at a time."""
        grow = self._grow_on_samples if samples.fields is None else self._grow_on_fields
        forest, unseen = grow(samples, seed, on_trees)
        return {f"{TREES}{name}": array for name, array in forest.arrays().items()}, unseen

    def _grow_on_samples(self, samples: TreeSamples, seed: int, on_trees: OnTrees) -> tuple[Trees, NDArray[np.float64]]:
        """Scikit-learn's random forest: every tree has a bootstrap sample of all samples."""
        from sklearn.ensemble import RandomForestClassifier

        forest = RandomForestClassifier(
            min_samples_leaf=self.leaf or 1, random_state=seed, n_jobs=usual_threads(), warm_start=True
        )
        for count in self._steps():
            forest.set_params(n_estimators=count).fit(samples.features, samples.labels)
            on_trees(count, self.tree_count)
        unseen = _Unseen(samples.features, self.classes)
        for tree, drawn in zip(forest.estimators_, forest.estimators_samples_, strict=True):
            left_out = np.ones(len(samples.labels), dtype=bool)
            left_out[drawn] = False
            unseen.ask(tree, forest.classes_, left_out)
        return forest_arrays(forest, self.classes), unseen.mean()

    def _grow_on_fields(self, samples: TreeSamples, seed: int, on_trees: OnTrees) -> tuple[Trees, NDArray[np.float64]]:
        """Every tree has four fifths of the fields, drawn at random, and of each the same share of its pixels.

        Pixels of one field are so alike that a share of them does: the trees are as good and far quicker to grow. The
        fields that a tree left out are as new to it as any other, which pixels left out of a known field are not. Five
        trees in a row leave out every field once.
        """
        from sklearn.tree import DecisionTreeClassifier
        from sklearn.utils.parallel import Parallel, delayed

        assert samples.fields is not None
        features, labels = samples.features, samples.labels
        names, field_of = np.unique(samples.fields, return_inverse=True)
        rows_of = np.split(np.argsort(field_of, kind="stable"), np.cumsum(np.bincount(field_of))[:-1])
        share = min(1.0, max(PIXELS, PIXELS_A_FIELD * len(names)) / (len(labels) * (1 - 1 / PARTS)))
        asked = _spread(rows_of, ASKED)

        def one(number: int) -> tuple[Any, NDArray[np.bool_]]:
            order = np.random.default_rng([seed, number // PARTS]).permutation(len(names))
            drawn = np.delete(order, np.s_[number % PARTS :: PARTS]) if len(names) > 1 else order
            random = np.random.default_rng([seed, number, 1])
            rows = np.concatenate([_share_of(rows_of[field], share, random) for field in drawn])
            tree = DecisionTreeClassifier(
                max_features="sqrt", min_samples_leaf=self.leaf or 1, random_state=int(random.integers(2**31))
            )
            tree.fit(features[rows], labels[rows])
            left_out = asked.copy()
            left_out[np.isin(field_of, drawn)] = False
            return tree, left_out

        grown: list[tuple[Any, NDArray[np.bool_]]] = []
        for count in self._steps():
            work = Parallel(n_jobs=usual_threads(), prefer="threads")
            grown += work(delayed(one)(number) for number in range(len(grown), count))
            on_trees(count, self.tree_count)
        unseen = _Unseen(features, self.classes, doubt=1.0)
        for tree, left_out in grown:
            unseen.ask(tree, tree.classes_, left_out)
        return Trees.join([_one_tree(tree.tree_, tree.classes_, self.classes) for tree, _ in grown]), unseen.mean()

    def _steps(self) -> Sequence[int]:
        return *range(AT_ONCE, self.tree_count, AT_ONCE), self.tree_count

    def load_trees(self, arrays: Mapping[str, NDArray[Any]], trees: Trees, features: int) -> None:
        trees.check(features, self.classes)
        sums = trees.leaves.sum(axis=1, dtype=np.float64)
        if (trees.leaves < 0).any() or not np.allclose(sums, 1, atol=1e-4):
            raise ValueError("the probabilities of a leaf do not sum to one")


def forest_arrays(forest: Any, classes: int) -> Trees:
    """The trees of a RandomForestClassifier; classes that it never saw have a probability of zero."""
    return Trees.join([_one_tree(each.tree_, forest.classes_, classes) for each in forest.estimators_])


def _one_tree(tree: Any, seen: NDArray[np.int64], classes: int) -> TreeArrays:
    leaf = tree.children_left < 0
    counts = tree.value[leaf, 0]
    probabilities = np.zeros((len(counts), classes), dtype=np.float32)
    probabilities[:, seen] = counts / counts.sum(axis=1, keepdims=True)
    feature, threshold = np.where(leaf, -1, tree.feature), np.where(leaf, 0, rounded_down(tree.threshold))
    return tree.children_left, tree.children_right, feature, threshold, probabilities


class _Unseen:
    """Out-of-bag probabilities: the mean over the trees that left a sample out.

    `doubt` adds so many trees that know nothing: of few trees, a class that none of them named is not impossible.
    """

    def __init__(self, features: Floats, classes: int, doubt: float = 0.0) -> None:
        self._features, self._doubt = features, doubt
        self._total, self._count = np.zeros((len(features), classes)), np.zeros((len(features), 1))

    def ask(self, tree: Any, seen: NDArray[np.int64], left_out: NDArray[np.bool_]) -> None:
        if left_out.any():
            self._total[np.ix_(left_out, seen)] += tree.predict_proba(self._features[left_out])
            self._count[left_out] += 1

    def mean(self) -> NDArray[np.float64]:
        """(N, classes), NaN where no tree left the sample out."""
        doubt = np.where(self._count > 0, self._doubt, 0.0)
        with np.errstate(invalid="ignore"):
            mean: NDArray[np.float64] = (self._total + doubt / self._total.shape[1]) / (self._count + doubt)
        return mean


def _share_of(rows: NDArray[np.int64], share: float, random: np.random.Generator) -> NDArray[np.int64]:
    """One row at least."""
    return random.choice(rows, max(1, round(share * len(rows))), replace=False)


def _spread(rows_of: list[NDArray[np.int64]], most: int) -> NDArray[np.bool_]:
    """Which rows (N,) get an out-of-bag prediction: at most `most` of each field, evenly spaced."""
    chosen = np.zeros(sum(map(len, rows_of)), dtype=bool)
    for rows in rows_of:
        chosen[rows[np.linspace(0, len(rows) - 1, min(most, len(rows))).astype(np.int64)]] = True
    return chosen
