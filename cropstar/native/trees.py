"""Decision trees of a fitted model: what the leaves of all trees sum to, for rows of features.

The sums are those of a plain loop over the trees, bit for bit: leaves are added in the order of the trees, in float64.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cropstar.native.library import TreeArrays, TreeSums, library

NODE = np.dtype([("threshold", np.float32), ("way", np.uint32)])


@dataclass(frozen=True)
class PackedTrees:
    """Nodes as `sum_leaves` wants them."""

    offsets: NDArray[np.int64]
    nodes: NDArray[Any]  # (nodes,) of NODE
    leaf: NDArray[np.int32]  # (nodes,): the row of the leaves


def pack_trees(
    offsets: NDArray[np.int64],
    left: NDArray[np.int32],
    right: NDArray[np.int32],
    feature: NDArray[np.int32],
    threshold: NDArray[np.float32],
    features: int,
) -> PackedTrees | None:
    """Lay out trees whose nodes were checked; None where a tree or the number of features is too large for it."""
    offsets, left, right, feature, threshold = map(np.ascontiguousarray, (offsets, left, right, feature, threshold))
    nodes, leaf = np.empty(len(left), NODE), np.empty(len(left), np.int32)
    given = TreeArrays(
        *(len(offsets) - 1, features),
        *(array.ctypes.data for array in (offsets, left, right, feature, threshold)),
    )
    fits = library()("trees_pack", ctypes.byref(given), nodes.ctypes.data, leaf.ctypes.data)
    return PackedTrees(offsets, nodes, leaf) if fits else None


def sum_leaves(
    packed: PackedTrees,
    leaves: NDArray[np.float32],
    features: NDArray[np.float32],
    sums: NDArray[np.float64],
    adds_to: NDArray[np.int64] | None = None,
) -> None:
    """Add to `sums` (N, columns) the leaves (kinds, width) that features (N, F) come to.

    A tree adds to all columns, or with `adds_to` (trees,) to one.
    """
    features, leaves = np.ascontiguousarray(features), np.ascontiguousarray(leaves)
    adds_to = None if adds_to is None else np.ascontiguousarray(adds_to)
    task = TreeSums(
        *(*features.shape, len(packed.offsets) - 1, leaves.shape[1], sums.shape[1]),
        *(packed.offsets.ctypes.data, packed.nodes.ctypes.data, packed.leaf.ctypes.data, leaves.ctypes.data),
        *(None if adds_to is None else adds_to.ctypes.data, features.ctypes.data, sums.ctypes.data),
    )
    library().run("trees_sum", task, torch.get_num_threads())
