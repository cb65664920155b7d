"""`rf`: a random forest on gap-filled series, the baseline to beat.

Every band is brought to a day in ten of the season, from the valid dates alone, and its changes from one such day to
the next come beside it. The trees are scikit-learn's, `model.trees` of them (300), each grown until its leaves are pure
or hold `model.leaf` samples; a fitted forest is asked with numpy alone. It learns from training and validation fields
together: nothing is chosen on validation, and what calibrates its probabilities are trees that did not see the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cropstar.models.networks.trees import (
    TREES,
    FittedClassifier,
    Floats,
    OnTrees,
    TreeArrays,
    Trees,
    rounded_down,
)

AT_ONCE = 20  # trees between two looks at the clock and at signals


class Forest(FittedClassifier):
    """Leaves are probabilities; the forest's are their mean over the trees."""

    name = "rf"
    usual_trees = 300

    def ask(self, features: Floats) -> NDArray[np.float64]:
        assert self.trees is not None
        total = np.zeros((len(features), self.classes))
        for tree in range(len(self.trees)):
            total += self.trees.leaf_of(features, tree)
        return total / len(self.trees)

    def grow(
        self, features: Floats, labels: NDArray[np.int64], seed: int, on_trees: OnTrees
    ) -> tuple[dict[str, NDArray[Any]], NDArray[np.float64] | None]:
        """The same forest, whether it is grown at once or a few trees at a time."""
        from sklearn.ensemble import RandomForestClassifier

        forest = RandomForestClassifier(
            min_samples_leaf=self.leaf or 1, random_state=seed, n_jobs=torch.get_num_threads(), warm_start=True
        )
        for count in (*range(AT_ONCE, self.tree_count, AT_ONCE), self.tree_count):
            forest.set_params(n_estimators=count).fit(features, labels)
            on_trees(count, self.tree_count)
        trees = {f"{TREES}{name}": array for name, array in forest_arrays(forest, self.classes).arrays().items()}
        return trees, _out_of_bag(forest, features, self.classes)

    def take(self, arrays: Mapping[str, NDArray[Any]], trees: Trees, features: int) -> None:
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


def _out_of_bag(forest: Any, features: Floats, classes: int) -> NDArray[np.float64]:
    """The mean over the trees whose bootstrap sample left a row out."""
    total, count = np.zeros((len(features), classes)), np.zeros((len(features), 1))
    for tree, drawn in zip(forest.estimators_, forest.estimators_samples_, strict=True):
        left_out = np.ones(len(features), dtype=bool)
        left_out[drawn] = False
        if left_out.any():
            total[np.ix_(left_out, forest.classes_)] += tree.predict_proba(features[left_out])
            count[left_out] += 1
    with np.errstate(invalid="ignore"):
        mean: NDArray[np.float64] = total / count
    return mean
