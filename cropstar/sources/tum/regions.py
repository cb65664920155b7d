"""Connected regions of a small label map."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def connected(labels: NDArray[Any]) -> NDArray[np.int64]:
    """A number above zero for each pixel, the same for pixels of one label that touch with a side.

    Every pixel points to itself at first; where two neighbours of one label point to different pixels, the later one
    is made to point to the earlier, until all that belong together point to one.
    """
    places = np.arange(labels.size).reshape(labels.shape)
    across = labels[:, 1:] == labels[:, :-1]
    down = labels[1:] == labels[:-1]
    one = np.concatenate([places[:, :-1][across], places[:-1][down]])
    other = np.concatenate([places[:, 1:][across], places[1:][down]])
    target = np.arange(labels.size)
    while True:
        low, high = np.minimum(target[one], target[other]), np.maximum(target[one], target[other])
        if (low == high).all():
            return target.reshape(labels.shape) + 1
        np.minimum.at(target, high, low)
        while (target[target] != target).any():
            target = target[target]
