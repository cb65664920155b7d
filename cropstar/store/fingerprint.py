"""The fingerprint of data (bands, scale, classes, season, resolution), and their normalisation.

The fingerprint travels in every tile, model file and map and is compared at each hop, so that a model
never runs on data that it does not understand.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import ArtifactError, InputError, MismatchError
from cropstar.geo.calendar import Season
from cropstar.geo.sensors import Sensor, flat_bands
from cropstar.store.classes import ClassTable
from cropstar.store.gate import FingerprintRow, checked


@dataclass(frozen=True)
class Fingerprint:
    """reflectance = stored integer * scale + offset.

    Data of several sensors, or with context, list their `sensors`, each with a scale and offset of its own; `bands` are
    then those of all sensors side by side, and last the `context`: what every date has in physical units, whichever
    sensor it is of (elevation, the warmth of the season).
    """

    bands: tuple[str, ...]
    scale: float
    offset: float
    resolution: float  # metres; 0 where the data have no grid (tables of series)
    season: Season
    classes: ClassTable
    sensors: tuple[Sensor, ...] = ()  # empty: one sensor, of these bands
    context: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        sensors: Sequence[Sensor],
        resolution: float,
        season: Season,
        classes: ClassTable,
        context: Sequence[str] = (),
    ) -> Fingerprint:
        """A fingerprint of these sensors; one sensor alone has no name in it."""
        first = sensors[0]
        plain = cls(first.bands, first.scale, first.offset, resolution, season, classes)
        if len(sensors) == 1 and not context:
            return plain
        return replace(plain, bands=flat_bands(sensors, context), sensors=tuple(sensors), context=tuple(context))

    @property
    def scales(self) -> float | NDArray[np.float64]:
        """The scale of all bands, or (C,) of each."""
        return self._by_band([sensor.scale for sensor in self.sensors], 1.0) if self.sensors else self.scale

    @property
    def offsets(self) -> float | NDArray[np.float64]:
        return self._by_band([sensor.offset for sensor in self.sensors], 0.0) if self.sensors else self.offset

    def _by_band(self, numbers: Sequence[float], context: float) -> NDArray[np.float64]:
        own = np.repeat(np.array(numbers), [len(sensor.bands) for sensor in self.sensors])
        return np.concatenate([own, np.full(len(self.context), context)])

    @property
    def columns(self) -> list[slice]:
        """The columns of each sensor's bands among all bands; context comes last."""
        ends = np.cumsum([0, *(len(sensor.bands) for sensor in self.sensors)]).tolist()
        return [slice(start, end) for start, end in pairwise(ends)] if self.sensors else [slice(0, len(self.bands))]

    @property
    def several(self) -> bool:
        """Whether a date can be of one sensor or another."""
        return len(self.sensors) > 1

    @property
    def channels(self) -> int:
        """Bands, and of several sensors a flag each that tells whose date it is: what a model reads."""
        return len(self.bands) + (len(self.sensors) if self.several else 0)

    @property
    def sensor_sizes(self) -> tuple[int, ...] | None:
        """How many bands each of several sensors has."""
        return tuple(len(sensor.bands) for sensor in self.sensors) if self.several else None

    def to_json(self) -> dict[str, Any]:
        several = {"sensors": [asdict(sensor) for sensor in self.sensors]} if self.sensors else {}
        context = {"context": list(self.context)} if self.context else {}
        for sensor in several.get("sensors", []):
            sensor["bands"] = list(sensor["bands"])
        return {
            "bands": list(self.bands),
            "scale": self.scale,
            "offset": self.offset,
            "resolution": self.resolution,
            "season": self.season.to_json(),
            "classes": self.classes.to_json(),
            **several,
            **context,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any], path: Path) -> Fingerprint:
        try:
            row = checked(FingerprintRow, data)
            sensors = tuple(Sensor(each.name, tuple(each.bands), each.scale, each.offset) for each in row.sensors)
            if sensors and flat_bands(sensors, row.context) != tuple(row.bands):
                raise ValueError("the bands are not those of the sensors")
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
            sensors,
            tuple(row.context),
        )

    def dumps(self) -> str:
        return json.dumps(self.to_json(), sort_keys=True, ensure_ascii=False)

    def differences(self, other: Fingerprint) -> list[str]:
        """The differences between two fingerprints that prevent training on both, in words."""
        different = []
        for field in ("bands", "sensors", "scale", "offset", "resolution"):
            mine, theirs = getattr(self, field), getattr(other, field)
            if field == "sensors":
                mine, theirs = ([sensor.name for sensor in each] for each in (mine, theirs))
            if mine != theirs:
                different.append(f"{field} {_show(mine)} against {_show(theirs)}")
        radiometry = [[(each.scale, each.offset) for each in own.sensors] for own in (self, other)]
        if not different and radiometry[0] != radiometry[1]:
            different.append("the scale or offset of a sensor")
        if self.classes != other.classes:
            different.append(f"classes {_show(self.classes.names)} against {_show(other.classes.names)}")
        return different

    def require_same(self, other: Fingerprint, what: str, path: Path, remedy: str) -> None:
        different = self.differences(other)
        if different:
            raise MismatchError(what, path=path, why=", ".join(different), remedy=remedy)

    def require_fits(
        self, *, bands: Sequence[str], resolution: float, dates: Sequence[date], path: Path, any_dates: bool = False
    ) -> None:
        """Refuse data that do not fit a model with this fingerprint."""
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

Scaling = float | NDArray[np.float64]  # of all bands, or of each (C,)


@dataclass(frozen=True)
class Normalisation:
    """Mean and standard deviation of each band's reflectance over the training parcels."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def apply(self, values: NDArray[Any], scale: Scaling, offset: Scaling) -> NDArray[np.float32]:
        """values (T, C, ...) stored integers."""
        factor, shift = self.factors(scale, offset)
        shape = (-1, *(1,) * (values.ndim - 2))
        normalised: NDArray[np.float32] = values.astype(np.float32) * factor.reshape(shape) + shift.reshape(shape)
        return normalised

    def factors(self, scale: Scaling, offset: Scaling) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """(C,) and (C,): stored values times the first plus the second."""
        mean, deviation = np.array(self.mean), np.array(self.deviation)
        return (scale / deviation).astype(np.float32), ((offset - mean) / deviation).astype(np.float32)

    def inputs(
        self, values: NDArray[Any], data: Fingerprint, sensors: NDArray[np.integer[Any]] | None = None
    ) -> NDArray[np.float32]:
        """The model's input from stored values (T, C, ...): normalised bands, and a flag for each of several sensors.

        `sensors` (T,) tells whose date each is. The bands of the others are zero, which is their mean: with the flag as
        a bias, a linear or convolutional input layer is to every sensor a layer of its own.
        """
        normalised = self.apply(values, data.scales, data.offsets)
        if sensors is None or not data.several:
            return normalised
        present = bands_present(data)[sensors]  # (T, channels)
        whole = np.empty((len(values), data.channels, *values.shape[2:]), dtype=np.float32)
        whole[:, : values.shape[1]] = normalised
        whole[:, values.shape[1] :] = 1
        whole *= present.reshape(*present.shape, *(1,) * (values.ndim - 2))
        return whole

    def to_json(self) -> dict[str, Any]:
        return {"mean": list(self.mean), "deviation": list(self.deviation)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Normalisation:
        return cls(tuple(map(float, data["mean"])), tuple(map(float, data["deviation"])))


def bands_present(data: Fingerprint) -> NDArray[np.float32]:
    """(S, channels) of several sensors: one where a date of the sensor has a band, context, or its flag."""
    present = np.zeros((len(data.sensors), data.channels), dtype=np.float32)
    for number, columns in enumerate(data.columns):
        present[number, columns] = 1
        present[number, len(data.bands) + number] = 1
    present[:, data.columns[-1].stop : len(data.bands)] = 1
    return present


def measure_normalisation(
    observations: Iterable[tuple[NDArray[Any], NDArray[np.integer[Any]]]], data: Fingerprint
) -> Normalisation:
    """One pass over pairs of stored integers (N, C) and the sensor (N,) that each is of: bands count where it saw.

    Integer sums are exact in float64.
    """
    sums = [_BandSums() for _ in data.columns]
    everywhere = _BandSums()
    for values, sensors in observations:
        everywhere.add(values)
        for number, columns in enumerate(data.columns):
            own = values[sensors == number, columns] if data.several else values[:, columns]
            if len(own):
                sums[number].add(own)
    parts = list(zip(sums, data.columns, strict=True))
    if data.context:
        parts.append((everywhere, slice(data.columns[-1].stop, None)))
    return _normalisation(parts, data.scales, data.offsets, len(data.bands))


class _BandSums:
    """Sums and sums of squares of bands, over any number of arrays (N, C)."""

    def __init__(self) -> None:
        self.count, self.total, self.squares = 0, np.zeros(0), np.zeros(0)

    def add(self, values: NDArray[Any]) -> None:
        wide = values.astype(np.float64)
        if self.count == 0:
            self.total, self.squares = np.zeros(values.shape[1]), np.zeros(values.shape[1])
        self.count += len(values)
        self.total += wide.sum(axis=0)
        self.squares += np.square(wide).sum(axis=0)


def _normalisation(
    parts: Sequence[tuple[_BandSums, slice]], scale: Scaling, offset: Scaling, bands: int
) -> Normalisation:
    """Of the sums of some columns each; bands of a sensor that saw nothing are left as they are."""
    if not any(sums.count for sums, _ in parts):
        raise InputError("no clear observation of a training parcel", remedy="check the masks and the dates")
    mean, deviation = np.zeros(bands), np.ones(bands)
    for sums, columns in parts:
        if sums.count:
            whole = slice(None) if len(sums.total) == len(mean[columns]) else columns
            own = sums.total[whole] / sums.count
            mean[columns] = own
            deviation[columns] = np.sqrt(np.maximum(sums.squares[whole] / sums.count - np.square(own), 0))
    # A band that never changes carries nothing: leave it at zero instead of dividing by zero.
    deviation[deviation == 0] = 1
    return Normalisation(tuple((mean * scale + offset).tolist()), tuple((deviation * scale).tolist()))
