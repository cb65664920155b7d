"""What numbers mean: Sentinel-2's scale, and which pixels are observations of the ground by class and nodata."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

SCALE = 1e-4  # reflectance of one count: Sentinel-2's quantification, and that of all who do not say otherwise
SCENE_CLASSIFICATION = "SCL"
# Dark areas, vegetation, bare soil, water, unclassified. Not valid: nodata, saturated, cloud shadow,
# clouds, cirrus and snow.
CLEAR_SCENE_CLASSES = (2, 4, 5, 6, 7)


def clear_sky(scene_classes: NDArray[Any], clear: Collection[int] = CLEAR_SCENE_CLASSES) -> NDArray[np.bool_]:
    """True where the scene classification saw the ground."""
    return np.isin(scene_classes, list(clear))


def observed(values: NDArray[Any], nodata: float | None) -> NDArray[np.bool_]:
    """True where every band of a date has data; values is (T, C, H, W), the answer (T, H, W).

    Where a file does not say what nodata is, zero in all bands is: the black beyond the edge of a swath.
    """
    present: NDArray[np.bool_] = (values != 0).any(axis=1) if nodata is None else (values != nodata).all(axis=1)
    return present
