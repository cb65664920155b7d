"""`hgb`: gradient-boosted trees on gap-filled series, often ahead of a forest where there are many fields.

The features are the forest's: every band on a day in ten, and its changes. The trees are those of scikit-learn's
HistGradientBoostingClassifier, one a class in each of `model.trees` (100) rounds, with at least `model.leaf` samples a
leaf; no early stopping, so that all training and validation fields are learnt from. A trained model needs no
scikit-learn to be asked.
"""

from __future__ import annotations

from collections.abc import Mapping
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

LEAF = 10  # samples of the smallest leaf
# Neighbouring days tell almost the same, so few of the features at each split, and coarse steps of them: for speed,
# after a look at neighbouring settings on one table.
FEATURES, BINS = 0.2, 63
AT_ONCE = 20  # rounds between two looks at the clock and at signals


class Boosting(FittedClassifier):
    """Each tree adds to the score of one class; probabilities are the softmax of `start` plus all of them."""

    name = "hgb"
    usual_trees = 100
    own_arrays = ("start", "adds_to")

    start: NDArray[np.float64]  # (classes,): scores before the first tree, minus infinity of classes never seen
    adds_to: NDArray[np.int64]  # (trees,): a class

    def ask(self, features: Floats) -> NDArray[np.float64]:
        assert self.trees is not None
        scores = np.tile(self.start, (len(features), 1))
        self.trees.sum_leaves(features, scores, self.adds_to)
        powers: NDArray[np.float64] = np.exp(scores - scores.max(axis=1, keepdims=True))
        powers /= powers.sum(axis=1, keepdims=True)
        return powers

    def grow(self, samples: TreeSamples, seed: int, on_trees: OnTrees) -> tuple[dict[str, NDArray[Any]], None]:
        """The same trees, whether they are grown at once or a few rounds at a time."""
        from sklearn.ensemble import HistGradientBoostingClassifier

        if len(np.unique(samples.labels)) == 1:
            return boosting_arrays(None, samples.labels[:1], self.classes), None
        boosted = HistGradientBoostingClassifier(
            min_samples_leaf=self.leaf or LEAF,
            max_features=FEATURES,
            max_bins=BINS,
            early_stopping=False,
            random_state=seed,
            warm_start=True,
        )
        for count in (*range(AT_ONCE, self.tree_count, AT_ONCE), self.tree_count):
            boosted.set_params(max_iter=count).fit(samples.features, samples.labels)
            on_trees(count, self.tree_count)
        return boosting_arrays(boosted, boosted.classes_, self.classes), None

    def load_trees(self, arrays: Mapping[str, NDArray[Any]], trees: Trees, features: int) -> None:
        trees.check(features, 1)
        start, adds_to = arrays["start"], arrays["adds_to"]
        if start.dtype != np.float64 or start.shape != (self.classes,):
            raise ValueError(f"it does not start from {self.classes} scores")
        if np.isnan(start).any() or (start == np.inf).any() or not np.isfinite(start).any():
            raise ValueError("it starts from scores that are not numbers")
        if adds_to.dtype != np.int64 or adds_to.shape != (len(trees),):
            raise ValueError("its trees are not of classes")
        if (adds_to < 0).any() or (adds_to >= self.classes).any():
            raise ValueError(f"a tree is of a class beyond the {self.classes} there are")
        self.start, self.adds_to = start, adds_to


def boosting_arrays(boosted: Any, seen: NDArray[np.int64], classes: int) -> dict[str, NDArray[Any]]:
    """The trees of a HistGradientBoostingClassifier that saw these classes; one class alone needs none.

    Of two classes scikit-learn has the scores of the second alone: those of the first are zero.
    """
    start = np.full(classes, -np.inf)
    start[seen] = 0.0
    no, zero = np.array([-1]), np.array([0])
    stump: TreeArrays = (no, zero, no, zero, np.zeros((1, 1)))
    parts, adds_to = [stump], [int(seen[0])]
    if boosted is not None:
        scored = seen[1:] if len(seen) == 2 else seen
        start[scored] = boosted._baseline_prediction.ravel()
        parts = [_one_tree(tree.nodes) for stage in boosted._predictors for tree in stage]
        adds_to = [int(crop) for _ in boosted._predictors for crop in scored]
    trees = {f"{TREES}{name}": array for name, array in Trees.join(parts).arrays().items()}
    return {"start": start, "adds_to": np.array(adds_to, dtype=np.int64), **trees}


def _one_tree(nodes: NDArray[Any]) -> TreeArrays:
    leaf = nodes["is_leaf"].astype(bool)
    left, right = (np.where(leaf, -1, nodes[side].astype(np.int64)) for side in ("left", "right"))
    feature, threshold = np.where(leaf, -1, nodes["feature_idx"]), np.where(leaf, 0, nodes["num_threshold"])
    return left, right, feature, rounded_down(threshold), nodes["value"][leaf][:, None]
