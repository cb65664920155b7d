"""From stored integers to what a model eats: reflectance with zero mean and unit spread a band."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import InputError


@dataclass(frozen=True)
class Normalisation:
    """Mean and standard deviation of each band's reflectance over the training parcels."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def apply(self, values: NDArray[Any], scale: float, offset: float) -> NDArray[np.float32]:
        """values (T, C, ...) stored integers."""
        factor, shift = self.factors(scale, offset)
        shape = (-1, *(1,) * (values.ndim - 2))
        normalised: NDArray[np.float32] = values.astype(np.float32) * factor.reshape(shape) + shift.reshape(shape)
        return normalised

    def factors(self, scale: float, offset: float) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """(C,) and (C,): stored values times the first plus the second."""
        mean, deviation = np.array(self.mean), np.array(self.deviation)
        return (scale / deviation).astype(np.float32), ((offset - mean) / deviation).astype(np.float32)

    def to_json(self) -> dict[str, Any]:
        return {"mean": list(self.mean), "deviation": list(self.deviation)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Normalisation:
        return cls(tuple(map(float, data["mean"])), tuple(map(float, data["deviation"])))


def measure(observations: Iterable[NDArray[Any]], scale: float, offset: float) -> Normalisation:
    """One pass over arrays (N, C) of stored integers; integer sums are exact in float64."""
    count, total, squares = 0, np.zeros(0), np.zeros(0)
    for values in observations:
        wide = values.astype(np.float64)
        if count == 0:
            total, squares = np.zeros(values.shape[1]), np.zeros(values.shape[1])
        count += len(values)
        total += wide.sum(axis=0)
        squares += np.square(wide).sum(axis=0)
    if count == 0:
        raise InputError("no clear observation of a training parcel", remedy="check the masks and the dates")
    mean = total / count
    deviation = np.sqrt(np.maximum(squares / count - np.square(mean), 0))
    # A band that never changes carries nothing: leave it at zero instead of dividing by zero.
    deviation[deviation == 0] = 1
    return Normalisation(tuple((mean * scale + offset).tolist()), tuple((deviation * scale).tolist()))
