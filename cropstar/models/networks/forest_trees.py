"""Decision trees as plain arrays, grown elsewhere and asked here with numpy alone.

The nodes of all trees stand one after the other, a parent before its children; `offsets` says where each tree begins.
A node sends a sample to `left` where its feature is at most the threshold, else to `right`, both counted within the
tree. A leaf has -1 as `left`, and its `right` is a row of `leaves`: most leaves of a grown forest are alike, so each
kind is kept once.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

KINDS = {"offsets": "int64", "left": "int32", "right": "int32", "feature": "int32", "threshold": "float32"}


@dataclass(frozen=True)
class Trees:
    offsets: NDArray[np.int64]  # (trees + 1,)
    left: NDArray[np.int32]  # (nodes,)
    right: NDArray[np.int32]
    feature: NDArray[np.int32]
    threshold: NDArray[np.float32]
    leaves: NDArray[np.float32]  # (kinds of leaves, classes): probabilities

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def probabilities(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """(N, features) to (N, classes): the mean over the trees."""
        total = np.zeros((len(features), self.leaves.shape[1]))
        for begin, end in zip(self.offsets[:-1], self.offsets[1:], strict=True):
            total += self.leaves[self._leaf_of(features, slice(begin, end))]
        return total / len(self)

    def _leaf_of(self, features: NDArray[np.float32], tree: slice) -> NDArray[np.int32]:
        """The row of `leaves` that each sample comes to; those that arrived are not followed any further."""
        left, right, feature, threshold = (
            array[tree] for array in (self.left, self.right, self.feature, self.threshold)
        )
        arrived = np.empty(len(features), dtype=np.int32)
        rows, at = np.arange(len(features)), np.zeros(len(features), dtype=np.int32)
        while len(rows):
            ended = left[at] < 0
            arrived[rows[ended]] = right[at[ended]]
            rows, at = rows[~ended], at[~ended]
            smaller = features[rows, feature[at]] <= threshold[at]
            at = np.where(smaller, left[at], right[at])
        return arrived

    def problem(self, features: int, classes: int) -> str | None:
        """Why trees from a file cannot be asked, None if they can: no walk leaves its tree or goes in circles."""
        for name, kind in KINDS.items():
            array = getattr(self, name)
            if array.ndim != 1 or array.dtype != kind:
                return f"{name} is {array.dtype} of {array.ndim} dimensions"
        if len({len(array) for array in (self.left, self.right, self.feature, self.threshold)}) > 1:
            return "its arrays of nodes differ in length"
        if self.leaves.ndim != 2 or self.leaves.dtype != np.float32 or self.leaves.shape[1] != classes:
            return f"its leaves are not of {classes} classes"
        sizes = np.diff(self.offsets)
        if not len(sizes) or self.offsets[0] != 0 or self.offsets[-1] != len(self.left) or (sizes < 1).any():
            return "its trees do not share its nodes"
        return self._wrong_nodes(sizes, features) or self._wrong_leaves()

    def _wrong_nodes(self, sizes: NDArray[np.int64], features: int) -> str | None:
        inner = self.left >= 0
        place = (np.arange(len(self.left)) - np.repeat(self.offsets[:-1], sizes))[inner]
        size = np.repeat(sizes, sizes)[inner]
        for children in (self.left[inner], self.right[inner]):
            if (children <= place).any() or (children >= size).any():
                return "a node has a child that does not come after it in its tree"
        if ((self.feature[inner] < 0) | (self.feature[inner] >= features)).any():
            return f"a node asks for a feature beyond the {features} there are"
        if not np.isfinite(self.threshold[inner]).all():
            return "a threshold is no number"
        if (self.left[~inner] != -1).any():
            return "a node is neither a fork nor a leaf"
        if ((self.right[~inner] < 0) | (self.right[~inner] >= len(self.leaves))).any():
            return "a leaf has no probabilities"
        return None

    def _wrong_leaves(self) -> str | None:
        sound = np.isfinite(self.leaves).all() and (self.leaves >= 0).all()
        if not sound or not np.allclose(self.leaves.sum(axis=1, dtype=np.float64), 1, atol=1e-4):
            return "the probabilities of a leaf do not sum to one"
        return None
