"""The kernel of decision trees against a walk row by row."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from cropstar.models.networks.trees import TreeArrays, Trees
from cropstar.native import available, why_not
from cropstar.native.trees import pack_trees, sum_leaves

pytestmark = pytest.mark.skipif(not available(), reason=why_not())


def random_tree(random: np.random.Generator, forks: int, features: int, width: int) -> TreeArrays:
    """A tree grown by splitting leaves at random: children come after their parents, in any order."""
    left, right, leaves = [-1], [0], [0]
    for _ in range(forks):
        node = leaves.pop(random.integers(len(leaves)))
        left[node], right[node] = len(left), len(left) + 1
        leaves += [len(left), len(left) + 1]
        left += [-1, -1]
        right += [0, 0]
    inner = np.array(left) >= 0
    feature = np.where(inner, random.integers(0, features, len(left)), -1)
    threshold = np.where(inner, random.normal(size=len(left)).round(1), 0)
    return np.array(left), np.array(right), feature, threshold, random.random((len(leaves), width))


def naive(
    trees: Trees, features: NDArray[np.float32], columns: int, adds_to: NDArray[np.int64] | None
) -> NDArray[np.float64]:
    sums = np.zeros((len(features), columns))
    for row, sample in enumerate(features):
        for tree, start in enumerate(trees.offsets[:-1]):
            at = 0
            while trees.left[start + at] >= 0:
                above = sample[trees.feature[start + at]] > trees.threshold[start + at]
                at = (trees.right if above else trees.left)[start + at]
            leaf = trees.leaves[trees.right[start + at]]
            if adds_to is None:
                sums[row] += leaf
            else:
                sums[row, adds_to[tree]] += leaf[0]
    return sums


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 150),
    features=st.integers(1, 9),
    forks=st.lists(st.integers(0, 40), min_size=1, max_size=6),
    boosted=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_sums_are_those_of_a_walk_row_by_row(
    rows: int, features: int, forks: list[int], boosted: bool, seed: int
) -> None:
    random = np.random.default_rng(seed)
    columns = 3
    trees = Trees.join([random_tree(random, count, features, 1 if boosted else columns) for count in forks])
    trees.check(features, 1 if boosted else columns)
    x = random.normal(size=(rows, features)).round(1).astype(np.float32)  # some are equal to a threshold
    x[random.random(x.shape) < 0.05] = np.nan
    x[random.random(x.shape) < 0.05] = np.inf
    adds_to = random.integers(0, columns, len(forks)) if boosted else None
    found = np.zeros((rows, columns))
    trees.sum_leaves(x, found, adds_to)
    assert np.array_equal(found, naive(trees, x, columns, adds_to))


def test_the_number_of_threads_changes_nothing(two_threads: None) -> None:
    random = np.random.default_rng(5)
    trees = Trees.join([random_tree(random, 300, 20, 4) for _ in range(40)])
    x = random.normal(size=(5000, 20)).astype(np.float32)
    together, alone = np.zeros((5000, 4)), np.zeros((5000, 4))
    trees.sum_leaves(x, together)
    for row in range(0, 5000, 777):
        trees.sum_leaves(x[row : row + 777], alone[row : row + 777])
    assert np.array_equal(together, alone)


def test_without_the_kernel_numpy_gives_the_same_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(6)
    trees = Trees.join([random_tree(random, 60, 8, 1) for _ in range(9)])
    x, adds_to = random.normal(size=(500, 8)).astype(np.float32), np.arange(9) % 4
    fast, plain = np.zeros((500, 4)), np.zeros((500, 4))
    trees.sum_leaves(x, fast, adds_to)
    monkeypatch.setenv("CROPSTAR_NATIVE", "0")
    trees.sum_leaves(x, plain, adds_to)
    assert np.array_equal(fast, plain)


def test_more_features_than_the_layout_holds_are_left_to_numpy() -> None:
    random = np.random.default_rng(7)
    trees = Trees.join([random_tree(random, 30, 5000, 2) for _ in range(4)])
    x = random.normal(size=(50, 5000)).astype(np.float32)
    found = np.zeros((50, 2))
    assert trees.packed is None
    trees.sum_leaves(x, found)
    assert np.array_equal(found, naive(trees, x, 2, None))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        pytest.param([1, -1, -1, -1], [2, 0, 0, 0], id="a node without a parent"),
        pytest.param([1, 3, 3, -1, -1], [2, 4, 4, 0, 0], id="nodes with two parents"),
    ],
)
def test_what_is_no_tree_is_refused(left: list[int], right: list[int]) -> None:
    size = len(left)
    arrays = (np.array([0, size]), np.array(left, np.int32), np.array(right, np.int32))
    feature, threshold = np.zeros(size, np.int32), np.zeros(size, np.float32)
    with pytest.raises(ValueError, match="several parents"):
        Trees(*arrays, feature, threshold, np.ones((1, 1), np.float32)).check(1, 1)
    assert pack_trees(*arrays, feature, threshold, 1) is None


def test_sums_are_added_to() -> None:
    random = np.random.default_rng(8)
    trees = Trees.join([random_tree(random, 3, 2, 2)])
    x = random.normal(size=(4, 2)).astype(np.float32)
    packed = pack_trees(trees.offsets, trees.left, trees.right, trees.feature, trees.threshold, 2)
    assert packed is not None
    sums = np.full((4, 2), 10.0)
    sum_leaves(packed, trees.leaves, x, sums)
    assert np.array_equal(sums, 10.0 + naive(trees, x, 2, None))
