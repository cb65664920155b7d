"""Several sensors of one place as one series: their dates in one order, each with the bands of its own sensor.

A series of several sensors is a `Series` with three attributes more:

    sensors             what each sensor is, in the order of its bands among all
    owners (T,)         which of them each date is of
    context             what every date has beside its bands, in physical units

`bands` are those of all sensors side by side, then the context; where a date is of another sensor they are zero. Dates
of one day follow each other in the order of the sensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import InputError, MismatchError, UsageError
from cropstar.geo.calendar import from_days, to_days
from cropstar.geo.grid import Grid
from cropstar.geo.resampling import Alignment, NotAligned, grid_difference
from cropstar.geo.sensors import OPTICAL, SENTINEL2, Sensor, flat_bands, is_radar, radar_name
from cropstar.geo.weather import THERMAL_BAND
from cropstar.geo.windows import Window
from cropstar.sources.base import Observations, Series
from cropstar.store.fingerprint import Fingerprint
from cropstar.store.reader import merge_events


def sensors_of(series: Series) -> tuple[Sensor, ...]:
    """The sensors of any series; of one alone it is named by its bands."""
    known: tuple[Sensor, ...] | None = getattr(series, "sensors", None)
    return known or (Sensor(sensor_name(series), tuple(series.bands), series.scale, series.offset),)


def sensor_numbers(series: Series) -> NDArray[np.int8]:
    """(T,): which of the sensors each date is of."""
    known: NDArray[np.int8] | None = getattr(series, "owners", None)
    return np.zeros(len(series.dates), dtype=np.int8) if known is None else known


def context_of(series: Series) -> tuple[str, ...]:
    known: tuple[str, ...] = getattr(series, "context", ())
    return known


def sensor_name(series: Series) -> str:
    """The sensor name of a series, else the one that its bands belong to."""
    name: str | None = getattr(series, "sensor_name", None)
    if name is not None:
        return name
    if is_radar(series.bands):
        return radar_name(f"{series.name} {series.provenance.get('folder', '')} {series.provenance.get('file', '')}")
    return OPTICAL if set(series.bands) <= set(SENTINEL2) else "optical"


class SensorSeries:
    """Series of several sensors on the grid of the first; a coarser one by the pixel that contains each."""

    def __init__(self, pieces: Sequence[Series]) -> None:
        first = pieces[0]
        self.name, self.grid = first.name, first.grid
        self.pieces = [first, *(on_grid(piece, first.grid) for piece in pieces[1:])]
        self.sensors = tuple(sensor for piece in self.pieces for sensor in sensors_of(piece))
        names = [sensor.name for sensor in self.sensors]
        for name in names:
            if names.count(name) > 1:
                why = f"{names.count(name)} of the inputs are of {name}"
                raise UsageError("one sensor twice", path=self.name, why=why, remedy="put its images into one folder")
        events = merge_events([to_days(piece.dates) for piece in self.pieces])
        self._places = events.places
        self.dates: tuple[date, ...] = from_days(events.days)
        self.owners: NDArray[np.int8] = events.sensors
        self.bands = flat_bands(self.sensors)
        self.context: tuple[str, ...] = ()
        self.scale, self.offset = first.scale, first.offset
        others = {name: piece.provenance for name, piece in zip(names[1:], self.pieces[1:], strict=True)}
        self.provenance: dict[str, Any] = {**first.provenance, "sensors": others}

    @property
    def files(self) -> list[Path]:
        return [path for piece in self.pieces for path in piece.files]

    def read(self, window: Window) -> Observations:
        """Values (T, C, h, w) and validity (T, h, w); invalid pixels hold zero."""
        shape = (window.height, window.width)
        values = np.zeros((len(self.dates), len(self.bands), *shape), dtype=np.uint16)
        valid = np.zeros((len(self.dates), *shape), dtype=bool)
        start = 0
        for piece, places in zip(self.pieces, self._places, strict=True):
            read = piece.read(window)
            values[places, start : start + len(piece.bands)] = read.values
            valid[places] = read.valid
            start += len(piece.bands)
        return Observations(values, valid)

    def close(self) -> None:
        for piece in self.pieces:
            piece.close()


# --- a coarser series on the grid of a finer one


def on_grid(series: Series, grid: Grid) -> Series:
    """The series on a grid: unchanged, or each pixel takes the value of the coarser pixel that contains it."""
    if series.grid == grid or grid_difference(series.grid, grid) is None:
        return series
    try:
        return CoarserSeries(series, grid)
    except NotAligned as failure:
        remedy = "give images of one place, whose pixels divide each other's"
        raise InputError("images on another grid", path=series.name, why=str(failure), remedy=remedy) from None


class CoarserSeries:
    """A series on a finer grid. Nothing is smoothed: radar has speckle, and measured values can be read back."""

    def __init__(self, series: Series, grid: Grid) -> None:
        self._series, self._alignment = series, Alignment.of(series.grid, grid)
        self.name, self.grid, self.dates, self.bands = series.name, grid, series.dates, series.bands
        self.scale, self.offset = series.scale, series.offset
        self.sensor_name = sensor_name(series)
        self.provenance: dict[str, Any] = {**series.provenance, "pixels": series.grid.resolution}

    @property
    def files(self) -> Sequence[Path]:
        return self._series.files

    def read(self, window: Window) -> Observations:
        alignment = self._alignment
        source = alignment.source(window, margin=0)
        shape = (window.height, window.width)
        values = np.zeros((len(self.dates), len(self.bands), *shape), dtype=np.uint16)
        valid = np.zeros((len(self.dates), *shape), dtype=bool)
        if source.height and source.width:
            read = self._series.read(source)
            rows = (np.arange(window.top, window.bottom) - alignment.top) // alignment.ratio - source.top
            columns = (np.arange(window.left, window.right) - alignment.left) // alignment.ratio - source.left
            at_rows, at_columns = (
                np.flatnonzero((own >= 0) & (own < size))
                for own, size in ((rows, source.height), (columns, source.width))
            )
            inside = np.ix_(rows[at_rows], columns[at_columns])
            values[:, :, at_rows[:, None], at_columns] = read.values[:, :, inside[0], inside[1]]
            valid[:, at_rows[:, None], at_columns] = read.valid[:, inside[0], inside[1]]
        return Observations(values, valid)

    def close(self) -> None:
        self._series.close()


# --- a series as a model reads it


class ModelSeries:
    """A series with the sensors, bands and scale of a model's fingerprint; dates of other sensors are left out.

    `missing` are the sensors of the model that the series has no date of.
    """

    def __init__(self, series: Series, model: Fingerprint, path: Path) -> None:
        self._series, self._model = series, model
        self.name, self.grid, self.provenance = series.name, series.grid, series.provenance
        self.bands, self.context, self.sensors = model.bands, model.context, model.sensors
        self.scale, self.offset = model.scale, model.offset
        have = sensors_of(series)
        starts = np.cumsum([0, *(len(sensor.bands) for sensor in have)]).tolist()
        self._columns: dict[int, list[int]] = {}  # of each sensor of the model: the series' bands
        self._radiometry: dict[int, tuple[float, float]] = {}
        owner: dict[int, int] = {}  # of each sensor of the series
        for number, sensor in enumerate(model.sensors):
            found = _find_sensor(sensor, have, owner)
            if found is None:
                continue
            owner[found] = number
            self._columns[number] = [starts[found] + have[found].bands.index(band) for band in sensor.bands]
            self._radiometry[number] = (have[found].scale, have[found].offset)
        self.missing = [sensor.name for number, sensor in enumerate(model.sensors) if number not in self._columns]
        self.renamed = [
            (have[found].name, model.sensors[number].name)
            for found, number in owner.items()
            if have[found].name != model.sensors[number].name
        ]
        own = sensor_numbers(series)
        kept = [place for place in range(len(series.dates)) if int(own[place]) in owner]
        if not kept:
            why = f"it has {', '.join(series.bands)}"
            remedy = f"give images of {' or '.join(sensor.name for sensor in model.sensors)}"
            raise MismatchError("no sensor that the model knows", path=path, why=why, remedy=remedy)
        kept.sort(key=lambda place: (series.dates[place], owner[int(own[place])]))
        self._kept = np.array(kept)
        self.dates: tuple[date, ...] = tuple(series.dates[place] for place in kept)
        self.owners: NDArray[np.int8] = np.array([owner[int(own[place])] for place in kept], dtype=np.int8)
        there = context_of(series)
        absent = [name for name in model.context if name not in there]
        if absent:
            why = f"the model was trained with {', '.join(absent)} of every date"
            rasters = ",".join(f"{name}=FILE" for name in absent if name != THERMAL_BAND)
            options = [f"--context {rasters}"] * bool(rasters) + ["--temperature FILE"] * (THERMAL_BAND in absent)
            remedy = f"give it with {' '.join(options)}, or map a store that has it"
            raise MismatchError("context is missing", path=path, why=why, remedy=remedy)
        self._context = [len(series.bands) - len(there) + there.index(name) for name in model.context]

    @property
    def files(self) -> Sequence[Path]:
        return self._series.files

    def read(self, window: Window) -> Observations:
        read = self._series.read(window)
        shape = (len(self._kept), len(self.bands), window.height, window.width)
        scaled = [
            number
            for number, own in self._radiometry.items()
            if own != (self._model.sensors[number].scale, self._model.sensors[number].offset)
        ]
        kind = np.float32 if scaled or self.context else read.values.dtype
        values: NDArray[Any] = np.zeros(shape, dtype=kind)
        for number, columns in self._columns.items():
            rows = np.flatnonzero(self.owners == number)
            own: NDArray[Any] = read.values[self._kept[rows]][:, columns]
            if number in scaled:  # as the model's own scale has it
                scale, offset = self._radiometry[number]
                sensor = self._model.sensors[number]
                own = (own.astype(np.float32) * scale + (offset - sensor.offset)) / sensor.scale
            values[rows, self._model.columns[number]] = own
        valid = read.valid[self._kept]
        if self._context:
            values[:, self._model.columns[-1].stop :] = read.values[self._kept][:, self._context]
        values *= valid[:, None]
        return Observations(values, valid)

    def close(self) -> None:
        self._series.close()


def _find_sensor(wanted: Sensor, have: Sequence[Sensor], taken: Mapping[int, int]) -> int | None:
    """The sensor of that name, else one of its kind that has all of its bands."""
    free = [number for number in range(len(have)) if number not in taken]
    able = [number for number in free if set(wanted.bands) <= set(have[number].bands)]
    named = [number for number in able if have[number].name == wanted.name]
    kind = [number for number in able if is_radar(have[number].bands) == is_radar(wanted.bands)]
    return next(iter([*named, *kind]), None)


def of_one_sensor(series: Series, bands: Sequence[str]) -> Series:
    """The sensor that has these bands, for a model of one sensor; other series are returned unchanged."""
    if not isinstance(series, SensorSeries):
        return series
    return next((piece for piece in series.pieces if set(bands) <= set(piece.bands)), series)
