"""Samples of a store for one part of a split: patches of images, parcels as mean series, series of tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from cropstar.config import AugmentationConfig, RegularConfig, TrainConfig
from cropstar.datasets.batches import Batch, Dataset, collate
from cropstar.datasets.fields import ParcelId, Target, choose_target
from cropstar.datasets.splits import PARTS, PatchWindow, Split
from cropstar.datasets.transforms import Draw, SensorChannels, augment, regularise
from cropstar.errors import UsageError
from cropstar.geo.calendar import Season
from cropstar.geo.windows import split as split_windows
from cropstar.runtime import track
from cropstar.store.classes import UNLABELLED
from cropstar.store.fingerprint import Normalisation, bands_present, measure_normalisation
from cropstar.store.reader import Image, TileReader
from cropstar.store.store import Store
from cropstar.store.tile import PATCH

POOLING_BLOCK = 96  # pixels per side read at once: 70 dates of 13 bands are 17 MB
CLEAR_SHARE = 0.25  # of a parcel's pixels; fewer are mostly the edge of a cloud


def open_parts(
    store: Store,
    split: Split,
    config: TrainConfig,
    *,
    spatial: bool,
    regular: RegularConfig | None = None,
    normalisation: Normalisation | None = None,
    target: Target | None = None,
) -> tuple[dict[str, Prepared], Normalisation]:
    """Training, validation and test samples, and the normalisation: given, or measured on the training part.

    `target` is what `choose_target` gives, where it is known already.
    """
    target = target or choose_target(config, store)
    require_samples(store, config, target, spatial=spatial)
    parts, normalisation = _open_samples(store, split, config, normalisation, target)
    season, sensors = store.fingerprint.season, SensorChannels.of(store.fingerprint)
    return {
        part: Prepared(samples, season, regular or RegularConfig(), sensors) for part, samples in parts.items()
    }, normalisation


def _open_samples(
    store: Store, split: Split, config: TrainConfig, normalisation: Normalisation | None, target: Target
) -> tuple[dict[str, LabelledDataset], Normalisation]:
    if "series" in store.manifest.layouts:
        normalisation = normalisation or measure_series(store, split)
        return {
            part: SeriesDataset(
                store,
                split,
                part,
                normalisation,
                config.series_batch,
                dated=target == "date",
                unlabelled=part == "train" and config.distil is not None,
            )
            for part in PARTS
        }, normalisation
    if target == "parcel":
        pooled = pool_parcels(store, split)
        normalisation = normalisation or measure_pooled(pooled, store, split)
        return {
            part: ParcelDataset(pooled, store, split, part, normalisation, config.series_batch) for part in PARTS
        }, normalisation
    normalisation = normalisation or measure_patches(store, split)
    return {
        # Larger patches for judging: fewer pixels have their neighbours cut off. A map, computed with the
        # model's whole margin, cuts none off.
        part: PatchDataset(
            store, split, part, config.patch * (1 if part == "train" else 2), normalisation, config.batch
        )
        for part in PARTS
    }, normalisation


def require_samples(store: Store, config: TrainConfig, target: Target, *, spatial: bool) -> None:
    """Refuse a store without samples for the target and the model."""
    layouts = store.manifest.layouts
    if "series" in layouts and len(layouts) > 1:
        raise UsageError(
            "the store holds both images and series",
            path=store.folder,
            remedy="ingest images and series into two stores",
        )
    if spatial and target != "pixel":
        held = "the store holds series without neighbours" if "series" in layouts else "a parcel is one series"
        why = f"{held}, and {config.model.name} needs images"
        raise UsageError("no images", path=store.folder, why=why, remedy="use a series model, e.g. --model star")
    if target == "parcel" and config.split.by == "pixel":
        raise UsageError("parcels cannot be split by pixel", remedy="leave split.by or the target out")


# --- what the model gets


class LabelledDataset(Dataset, Protocol):
    """A data set that knows the classes of its samples."""

    def class_counts(self, classes: int) -> NDArray[np.int64]: ...


class Prepared:
    """The samples of another data set on regular dates; unchanged if `regular.every` is null."""

    def __init__(
        self,
        samples: LabelledDataset,
        season: Season,
        regular: RegularConfig,
        sensors: SensorChannels | None = None,  # of several
    ) -> None:
        self.samples = samples
        self.sensors = sensors
        self.part = samples.part
        self.batch_size = samples.batch_size
        self.season = season
        self.regular = regular

    def __len__(self) -> int:
        return len(self.samples)

    def class_counts(self, classes: int) -> NDArray[np.int64]:
        return self.samples.class_counts(classes)

    def batch(self, indexes: list[int]) -> Batch:
        return self.on_regular_dates(self.samples.batch(indexes))

    def augmented(self, indexes: list[int], config: AugmentationConfig, draw: Draw) -> Batch:
        """A batch for training. Dates are hidden before they are averaged and filled, as clouds would hide them."""
        return self.on_regular_dates(augment(self.samples.batch(indexes), config, draw, self.sensors))

    def on_regular_dates(self, batch: Batch) -> Batch:
        if not self.regular.changes:
            return batch
        dated = regularise(batch.x, batch.valid, batch.days, self.season, self.regular, self.sensors)
        return Batch(*dated, batch.labels, batch.parcels, taught=batch.taught)


# --- patches of images


class PatchDataset:
    """The patches of a store that hold pixels of one part; labels of other parts are hidden."""

    def __init__(
        self, store: Store, split: Split, part: str, size: int, normalisation: Normalisation, batch_size: int = 1
    ) -> None:
        self.part = part
        self.batch_size = batch_size
        self._store = store
        self._split = split
        self._size = size
        self._normalisation = normalisation
        self._running = split.running_numbers()
        self.places = list(labelled_windows(store, split, part, size))

    def __len__(self) -> int:
        return len(self.places)

    def batch(self, indexes: list[int]) -> Batch:
        """Patches of possibly different numbers of dates; missing dates and pixels are not valid."""
        return collate([self._read(self.places[index]) for index in indexes], self._size)

    def class_counts(self, classes: int) -> NDArray[np.int64]:
        """(samples, classes): the labelled pixels of each class."""
        table = np.zeros((len(self), classes), dtype=np.int64)
        for row, place in enumerate(self.places):
            image, window = place.image(self._store), place.window
            inside = self._split.mask(image.scene, image.parcels(window), self.part, place)
            labels = image.labels(window)[inside]
            table[row] = np.bincount(labels[labels != UNLABELLED], minlength=classes)
        return table

    def usable_for_distillation(self, indexes: list[int]) -> NDArray[np.bool_]:
        """(B, H, W): pixels of this part and unlabelled pixels, but no labelled pixel of another part."""
        usable = np.zeros((len(indexes), self._size, self._size), dtype=bool)
        for row, place in enumerate(self.places[index] for index in indexes):
            image, window = place.image(self._store), place.window
            inside = self._split.mask(image.scene, image.parcels(window), self.part, place)
            free = inside | (image.labels(window) == UNLABELLED)
            usable[row, : free.shape[0], : free.shape[1]] = free
        return usable

    def _read(self, place: PatchWindow) -> dict[str, NDArray[Any]]:
        image, window = place.image(self._store), place.window
        fingerprint = image.fingerprint
        numbers = image.parcels(window)
        inside = self._split.mask(image.scene, numbers, self.part, place)
        running = np.full(numbers.shape, -1, dtype=np.int64)
        for number in np.unique(numbers[inside]):
            running[numbers == number] = self._running[image.scene, int(number)]
        return {
            "x": self._normalisation.inputs(image.values(window), fingerprint, image.sensors),
            "valid": image.valid(window),
            "days": image.days,
            "labels": np.where(inside, image.labels(window), UNLABELLED).astype(np.int64),
            "parcels": running,
        }


def labelled_windows(store: Store, split: Split, part: str, size: int) -> Iterator[PatchWindow]:
    """The windows of a regular grid over each image that hold pixels of a part."""
    for entry, reader in store.readers():
        inside = split.tile_mask(entry.name, reader, part)
        for number, image in enumerate(inside.reshape(-1, *inside.shape[-2:])):
            for window in split_windows(image.shape, size):
                if image[window.slices].any():
                    yield PatchWindow(entry.name, number, window)


def measure_patches(store: Store, split: Split) -> Normalisation:
    """Statistics of the training parcels only: nothing of validation and test enters the model."""

    def observations() -> Iterator[SensorValues]:
        for place in labelled_windows(store, split, "train", PATCH):
            image, window = place.image(store), place.window
            inside = split.mask(image.scene, image.parcels(window), "train", place)
            chosen = image.valid(window) & inside  # (T,H,W)
            yield np.moveaxis(image.values(window), 1, -1)[chosen], _sensors_of(chosen, image.sensors)

    return measure_normalisation(observations(), store.fingerprint)


SensorValues = tuple[NDArray[Any], NDArray[np.integer[Any]]]  # stored values (N, C), and the sensor of each (N,)


def _sensors_of(chosen: NDArray[np.bool_], sensors: NDArray[np.int8] | None) -> NDArray[np.integer[Any]]:
    """The sensor of each chosen observation (T, ...), in their order."""
    dates = np.nonzero(chosen)[0]
    return np.zeros(len(dates), dtype=np.int8) if sensors is None else sensors[dates]


# --- parcels of images as series: on each date the mean of a parcel's clear pixels


@dataclass(frozen=True)
class PooledSeries:
    days: NDArray[np.int32]  # (T,)
    values: NDArray[np.float32]  # (T, C) means of stored values, zero where not valid
    valid: NDArray[np.bool_]  # (T,)
    sensors: NDArray[np.int8] | None  # (T,) of several


class ParcelDataset:
    """The parcels of one part as mean series, computed once when the data set is opened."""

    def __init__(
        self,
        pooled: dict[ParcelId, PooledSeries],
        store: Store,
        split: Split,
        part: str,
        normalisation: Normalisation,
        batch_size: int,
    ) -> None:
        self.part = part
        self.batch_size = batch_size
        self._pooled = pooled
        self._labels = split.label_of
        self._fingerprint = store.fingerprint
        self._normalisation = normalisation
        self._running = {parcel: index for index, parcel in enumerate(sorted(split.part_of))}
        self._parcels = [parcel for parcel in sorted(pooled) if split.part_of.get(parcel) == part]

    def __len__(self) -> int:
        return len(self._parcels)

    def class_counts(self, classes: int) -> NDArray[np.int64]:
        """(samples, classes): one in the column of the parcel's class."""
        labels = [self._labels[parcel] for parcel in self._parcels]
        table: NDArray[np.int64] = np.eye(classes, dtype=np.int64)[labels]
        return table

    def batch(self, indexes: list[int]) -> Batch:
        return collate([self._sample(self._parcels[index]) for index in indexes], size=None)

    def _sample(self, parcel: ParcelId) -> dict[str, NDArray[Any]]:
        series = self._pooled[parcel]
        return {
            "x": self._normalisation.inputs(series.values, self._fingerprint, series.sensors),
            "valid": series.valid,
            "days": series.days,
            "labels": np.array(self._labels[parcel], dtype=np.int64),
            "parcels": np.array(self._running[parcel], dtype=np.int64),
        }


def measure_pooled(pooled: dict[ParcelId, PooledSeries], store: Store, split: Split) -> Normalisation:
    """Statistics of the training parcels only."""

    def observations() -> Iterator[SensorValues]:
        for parcel in sorted(pooled):
            if split.part_of.get(parcel) == "train":
                valid = pooled[parcel].valid
                yield pooled[parcel].values[valid], _sensors_of(valid, pooled[parcel].sensors)

    return measure_normalisation(observations(), store.fingerprint)


def pool_parcels(store: Store, split: Split) -> dict[ParcelId, PooledSeries]:
    """Every parcel of the split, also where it lies in several tiles of its scene."""
    pools: dict[ParcelId, _ParcelMeans] = {}
    tiles = store.tiles
    for reader in track(tiles, len(tiles), "pool parcels", "tile"):
        for image in reader.images:
            sensors = np.zeros(len(image.days), dtype=np.int8) if image.sensors is None else image.sensors
            for parcel, days, counts, sums, size in _parcel_sums(image, split):
                pools.setdefault(parcel, _ParcelMeans()).add(days, sensors, counts, sums, size)
    several = store.fingerprint.several
    return {parcel: pool.series(several=several) for parcel, pool in pools.items()}


class _ParcelMeans:
    """Sums over the pieces of a parcel."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int, int], int] = {}  # by day and sensor
        self._sums: dict[tuple[int, int], NDArray[np.float64]] = {}
        self._size = 0

    def add(
        self,
        days: NDArray[np.int32],
        sensors: NDArray[np.int8],
        counts: NDArray[np.int64],
        sums: NDArray[np.float64],
        size: int,
    ) -> None:
        """Days (T,), whose they are, clear pixels (T,), sums over them (T, C), and how many pixels the piece has."""
        self._size += size
        for place, event in enumerate(zip(days.tolist(), sensors.tolist(), strict=True)):
            self._counts[event] = self._counts.get(event, 0) + int(counts[place])
            self._sums[event] = self._sums.get(event, np.zeros(sums.shape[1])) + sums[place]

    def series(self, *, several: bool) -> PooledSeries:
        events = sorted(self._sums)
        days = np.array([day for day, _ in events], dtype=np.int32)
        sensors = np.array([sensor for _, sensor in events], dtype=np.int8) if several else None
        counts = np.array([self._counts[event] for event in events])
        sums = np.stack([self._sums[event] for event in events])  # (T, C)
        valid = (counts > 0) & (counts >= CLEAR_SHARE * self._size)
        values = np.where(valid[:, None], sums / np.maximum(counts, 1)[:, None], 0).astype(np.float32)
        return PooledSeries(days, values, valid, sensors)


def _parcel_sums(
    image: Image, split: Split
) -> Iterator[tuple[ParcelId, NDArray[np.int32], NDArray[np.int64], NDArray[np.float64], int]]:
    """The clear pixels of each parcel in each block of an image, summed."""
    days = image.days
    for window in split_windows(image.grid.shape, POOLING_BLOCK):
        parcels = image.parcels(window).ravel()
        numbers, starts_at = np.unique(parcels, return_inverse=True)
        wanted = np.array([(image.scene, int(number)) in split.part_of for number in numbers])
        if not wanted.any():
            continue
        chosen = np.flatnonzero(wanted[starts_at])
        order = chosen[np.argsort(starts_at[chosen], kind="stable")]
        found, starts, sizes = np.unique(starts_at[order], return_index=True, return_counts=True)
        valid = image.valid(window).reshape(len(days), -1)[:, order]  # (T, P)
        values = image.values(window)
        values = values.reshape(*values.shape[:2], -1)[:, :, order] * valid[:, None]  # (T, C, P)
        counts = np.add.reduceat(valid, starts, axis=1, dtype=np.int64)
        sums = np.add.reduceat(values, starts, axis=2, dtype=np.float64)
        for place, rank in enumerate(found):
            parcel = image.scene, int(numbers[rank])
            yield parcel, days, counts[:, place], sums[:, :, place], int(sizes[place])


# --- series tiles: one sample a parcel, each with dates of its own


class SeriesDataset:
    """The series of a store that belong to one part, with one label each or, `dated`, with one per date."""

    def __init__(
        self,
        store: Store,
        split: Split,
        part: str,
        normalisation: Normalisation,
        batch_size: int,
        *,
        dated: bool = False,
        unlabelled: bool = False,
    ) -> None:
        """`unlabelled` adds the series that have no class at all, for a teacher to speak of."""
        self.part = part
        self.batch_size = batch_size
        self._store = store
        self._dated = dated
        self._names = [entry.name for entry in store.manifest.tiles]
        data = store.fingerprint
        self._factor, self._shift = normalisation.factors(data.scales, data.offsets)
        self._present = bands_present(data) if data.several else None
        running = split.running_numbers()
        tiles = {name: number for number, name in enumerate(self._names)}
        samples = []
        for name, place in _labelled_series(store, split, part):
            reader = store.reader(name)
            parcel = reader.scene, int(reader.table.numbers[place])
            rows = reader.starts[place : place + 2]
            samples.append((tiles[name], *rows, split.label_of[parcel], running[parcel]))
        for name, place in _unlabelled_series(store) if unlabelled else ():
            samples.append((tiles[name], *store.reader(name).starts[place : place + 2], UNLABELLED, -1))
        columns = np.array(samples, dtype=np.int64).reshape(-1, 5).T
        self._tiles, self._starts, self._ends, self._labels, self._parcels = columns  # one entry per sample

    def __len__(self) -> int:
        return len(self._tiles)

    def class_counts(self, classes: int) -> NDArray[np.int64]:
        """(samples, classes): one in the column of the sample's class, or its clear dates of each class."""
        table: NDArray[np.int64] = np.eye(classes, dtype=np.int64)[self._labels]
        table[self._labels == UNLABELLED] = 0
        if self._dated:
            for row in range(len(self)):
                labels = self._date_labels(row)
                clear = self._reader(row).series[1][self._starts[row] : self._ends[row]]
                table[row] = np.bincount(labels[clear & (labels != UNLABELLED)], minlength=classes)
        return table

    def batch(self, indexes: list[int]) -> Batch:
        """Filled up to the longest series; what is added is not valid, zero, and of the last date."""
        starts, ends = self._starts[indexes], self._ends[indexes]
        lengths = ends - starts
        longest = int(lengths.max())
        x = np.zeros((len(indexes), longest, len(self._factor)), dtype=np.float32)  # (B, T, C)
        valid = np.zeros((len(indexes), longest), dtype=bool)
        days = np.empty((len(indexes), longest), dtype=np.int32)
        places = zip(indexes, starts.tolist(), ends.tolist(), strict=True)
        for row, (index, start, end) in enumerate(places):
            values, clear, dates = self._reader(index).series
            count = end - start
            x[row, :count] = values[start:end]
            valid[row, :count] = clear[start:end]
            days[row, :count] = dates[start:end]
            days[row, count:] = dates[end - 1]
        x *= self._factor
        x += self._shift
        x[np.arange(longest) >= lengths[:, None]] = 0
        x = x if self._present is None else self._of_sensors(x, indexes, lengths)
        labels, parcels = self._labels[indexes], self._parcels[indexes]
        if not self._dated:
            return Batch(*map(torch.from_numpy, (x, valid, days, labels, parcels)))
        by_date = np.full((len(indexes), longest), UNLABELLED, dtype=np.int64)
        for row, index in enumerate(indexes):
            by_date[row, : lengths[row]] = self._date_labels(index)
        return Batch(*map(torch.from_numpy, (x, valid, days, by_date, parcels, by_date == labels[:, None])))

    def _of_sensors(
        self, x: NDArray[np.float32], indexes: list[int], lengths: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Normalised bands (B, T, C) with a flag for each sensor, and zero where a date is of another one."""
        assert self._present is not None
        whole = np.ones((*x.shape[:2], self._present.shape[1]), dtype=np.float32)
        whole[:, :, : x.shape[2]] = x
        for row, (index, length) in enumerate(zip(indexes, lengths.tolist(), strict=True)):
            sensors = self._reader(index).sensors
            assert sensors is not None
            whole[row, :length] *= self._present[sensors[self._starts[index] : self._ends[index]]]
            whole[row, length:] = 0
        return whole

    def _reader(self, index: int) -> TileReader:
        return self._store.reader(self._names[self._tiles[index]])

    def _date_labels(self, index: int) -> NDArray[np.int16]:
        start, end = self._starts[index], self._ends[index]
        labels = self._reader(index).date_labels
        return np.full(end - start, UNLABELLED, dtype=np.int16) if labels is None else labels[start:end]


def measure_series(store: Store, split: Split) -> Normalisation:
    """Statistics of the training series only."""

    def observations() -> Iterator[SensorValues]:
        for tile, index in _labelled_series(store, split, "train"):
            reader = store.reader(tile)
            values, valid, _ = reader.sample(index)
            sensors = reader.sensors
            own = None if sensors is None else sensors[reader.starts[index] : reader.starts[index + 1]]
            yield values[valid], _sensors_of(valid, own)

    return measure_normalisation(observations(), store.fingerprint)


def _unlabelled_series(store: Store) -> Iterator[tuple[str, int]]:
    for entry, reader in store.readers():
        for index in np.flatnonzero(np.asarray(reader.table.labels) == UNLABELLED).tolist():
            yield entry.name, index


def _labelled_series(store: Store, split: Split, part: str) -> Iterator[tuple[str, int]]:
    for entry, reader in store.readers():
        for index, number in enumerate(reader.table.numbers):
            if split.part_of.get((reader.scene, int(number))) == part:
                yield entry.name, index
