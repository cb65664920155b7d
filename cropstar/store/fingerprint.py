"""The fingerprint of data, apart from their values: bands, scale, classes, season, resolution; and normalisation.

The fingerprint travels in every tile, model file and map and is compared at each hop, so that a model
never runs on data that it does not understand.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import ArtifactError, InputError, MismatchError
from cropstar.geo.calendar import Season
from cropstar.store.classes import ClassTable
from cropstar.store.gate import FingerprintRow, checked


@dataclass(frozen=True)
class Fingerprint:
    """reflectance = stored integer * scale + offset."""

    bands: tuple[str, ...]
    scale: float
    offset: float
    resolution: float  # metres; 0 where the data have no grid (tables of series)
    season: Season
    classes: ClassTable

    def to_json(self) -> dict[str, Any]:
        return {
            "bands": list(self.bands),
            "scale": self.scale,
            "offset": self.offset,
            "resolution": self.resolution,
            "season": self.season.to_json(),
            "classes": self.classes.to_json(),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any], path: Path) -> Fingerprint:
        try:
            row = checked(FingerprintRow, data)
        except ValueError as failure:
            raise ArtifactError(
                "the fingerprint cannot be read", path=path, why=str(failure), remedy="make the file again"
            ) from None
        return cls(
            tuple(row.bands),
            row.scale,
            row.offset,
            row.resolution,
            Season(row.season.start, row.season.length),
            ClassTable.from_json([entry.model_dump() for entry in row.classes]),
        )

    def dumps(self) -> str:
        return json.dumps(self.to_json(), sort_keys=True, ensure_ascii=False)

    def differences(self, other: Fingerprint) -> list[str]:
        """The fields in which two sets of training data may not differ, each in words."""
        found = []
        for field in ("bands", "scale", "offset", "resolution"):
            mine, theirs = getattr(self, field), getattr(other, field)
            if mine != theirs:
                found.append(f"{field} {_show(mine)} against {_show(theirs)}")
        if self.classes != other.classes:
            found.append(f"classes {_show(self.classes.names)} against {_show(other.classes.names)}")
        return found

    def require_same(self, other: Fingerprint, what: str, path: Path, remedy: str) -> None:
        different = self.differences(other)
        if different:
            raise MismatchError(what, path=path, why=", ".join(different), remedy=remedy)

    def require_fits(
        self, *, bands: Sequence[str], resolution: float, dates: Sequence[date], path: Path, any_dates: bool = False
    ) -> None:
        """Refuse data that the model with this fingerprint cannot be asked about."""
        problems = []
        missing = [band for band in self.bands if band not in bands]
        if missing:
            problems.append(f"bands {_show(missing)} are missing (the model needs {_show(self.bands)})")
        # A model of series without a grid (resolution 0) takes pixels of any size.
        if self.resolution and abs(self.resolution - resolution) > 1e-3 * self.resolution:
            problems.append(f"pixels of {resolution:g} m against the model's {self.resolution:g} m")
        strange = [] if any_dates else [day.isoformat() for day in dates if not self.season.covers(day)]
        if strange:
            problems.append(f"{len(strange)} dates outside the season of the training, such as {strange[0]}")
        if problems:
            remedy = (
                "--any-dates accepts them"
                if strange and len(problems) == 1
                else "use a model that was trained on such data"
            )
            raise MismatchError("the data do not fit the model", path=path, why=", ".join(problems), remedy=remedy)

    def with_season(self, season: Season) -> Fingerprint:
        return replace(self, season=season)


def _show(value: object) -> str:
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(str(entry) for entry in value)}]"
    return str(value)


# --- normalisation: from stored integers to reflectance with zero mean and unit spread a band


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


def measure_normalisation(observations: Iterable[NDArray[Any]], scale: float, offset: float) -> Normalisation:
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
