"""Transforms of batches: random augmentation in training, and averaging to regular dates.

The change of a sample follows from (seed, epoch, its place in the epoch's order) alone: not from the batch that it is
in, nor from the worker that reads it. The place, not the sample, because balanced sampling draws some of them several
times. Each change has random numbers of its own, drawn date after date: padding at the end moves none of them.

Regular dates are a function of arrays, so that training and prediction do the very same. They are never needed: models
take the dates as they are, by mask.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cropstar.config import AugmentationConfig, RegularConfig
from cropstar.datasets.batches import Batch
from cropstar.geo.calendar import YEAR, Season
from cropstar.store.fingerprint import Fingerprint

STREAMS = (
    "date_dropout",
    "day_jitter",
    "flips",
    "noise",
    "scale",
    "sensor_dropout",
    "mixes",
)  # new ones at the end: places are seeds


@dataclass(frozen=True)
class SensorChannels:
    """How the channels of a model's input belong to several sensors: their bands, then context, then a flag each."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]  # bands of each

    @classmethod
    def of(cls, data: Fingerprint) -> SensorChannels | None:
        """None of one sensor."""
        return cls(tuple(sensor.name for sensor in data.sensors), data.sensor_sizes) if data.sensor_sizes else None

    def flags(self, x: Tensor) -> Tensor:
        """Whose date each is, (B, T, S) with one in the place of the sensor; x (B, T, C[, H, W]) is not yet masked."""
        flags = x[:, :, -len(self.sizes) :]
        return flags[..., 0, 0] if x.dim() == 5 else flags

    def changeable(self, x: Tensor) -> Tensor:
        """(B, T, C): one where a date has a band that can be changed: its sensor's own, and context."""
        flags = self.flags(x)
        context = x.shape[2] - sum(self.sizes) - len(self.sizes)
        own = [flags[..., [number]].expand(-1, -1, size) for number, size in enumerate(self.sizes)]
        rest = flags.amax(dim=2, keepdim=True).expand(-1, -1, context)
        return torch.cat([*own, rest, torch.zeros_like(flags)], dim=2)


@dataclass(frozen=True)
class Draw:
    """The random numbers of a batch: one generator for each sample and change."""

    seed: int
    epoch: int
    places: Sequence[int]  # of the samples in the epoch's order

    def generators(self, change: str) -> Iterator[np.random.Generator]:
        for place in self.places:
            yield np.random.default_rng([self.seed, self.epoch, place, STREAMS.index(change)])


def augment(batch: Batch, config: AugmentationConfig, draw: Draw, sensors: SensorChannels | None = None) -> Batch:
    """All changes that the configuration asks for; without any, the batch as it is."""
    if len(draw.places) != len(batch.x):
        raise ValueError(f"{len(draw.places)} places for {len(batch.x)} samples")
    if config.sensor_dropout and sensors is not None:
        batch = hide_sensors(batch, config.sensor_dropout, draw, sensors)
    if config.date_dropout:
        batch = hide_dates(batch, config.date_dropout, draw)
    if config.day_jitter:
        batch = jitter_days(batch, config.day_jitter, draw)
    if config.flips:
        batch = flip(batch, draw)
    if config.scale:
        batch = scale_bands(batch, config.scale, draw, sensors)
    if config.noise:
        batch = add_noise(batch, config.noise, draw, sensors)
    return batch


def hide_sensors(batch: Batch, share: float, draw: Draw, sensors: SensorChannels) -> Batch:
    """Hide all dates of one sensor in some samples, unless nothing else was seen: a model learns to do without."""
    chosen = np.full(len(batch.x), -1)
    for place, random in enumerate(draw.generators("sensor_dropout")):
        if random.random() < share:
            chosen[place] = random.integers(len(sensors.sizes))
    flags = sensors.flags(batch.x).numpy()  # (B, T, S)
    hidden = (chosen[:, None] >= 0) & (flags.argmax(axis=2) == chosen[:, None])  # (B, T)
    left = batch.valid & _beside(torch.from_numpy(~hidden), batch.valid)
    spared = ~left.flatten(1).any(dim=1)
    return replace(batch, valid=torch.where(_beside(spared, batch.valid), batch.valid, left))


def hide_dates(batch: Batch, share: float, draw: Draw) -> Batch:
    """Hide some dates of each sample, as clouds would, so that no crop is recognised by a single date."""
    dates = batch.valid.shape[1]
    kept = np.stack([random.random(dates) >= share for random in draw.generators("date_dropout")])  # (B,T)
    return replace(batch, valid=batch.valid & _beside(torch.from_numpy(kept), batch.valid))


def jitter_days(batch: Batch, most: int, draw: Draw) -> Batch:
    """Move each date by up to some days, never past the one before it; what is of one day stays so."""
    days = batch.days.numpy()
    shifts = np.stack([random.integers(-most, most + 1, days.shape[1]) for random in draw.generators("day_jitter")])
    new = np.diff(days, axis=1, prepend=days[:, :1] - 1) != 0
    leader = np.maximum.accumulate(np.where(new, np.arange(days.shape[1]), 0), axis=1)  # the first of its day
    moved = days + np.take_along_axis(shifts, leader, axis=1)
    return replace(batch, days=torch.from_numpy(np.maximum.accumulate(moved, axis=1).astype(days.dtype)))


def flip(batch: Batch, draw: Draw) -> Batch:
    """Rotate and flip images, one of eight ways each; series are left unchanged."""
    if not batch.is_image:
        return batch
    ways = [int(random.integers(8)) for random in draw.generators("flips")]

    def turned(tensor: Tensor) -> Tensor:
        return torch.stack([turn(image, way) for image, way in zip(tensor, ways, strict=True)])

    taught = turned(batch.taught) if len(batch.taught) else batch.taught
    whole = (turned(batch.x), turned(batch.valid), batch.days, turned(batch.labels), turned(batch.parcels))
    return Batch(*whole, taught=taught)


def turn(image: Tensor, way: int) -> Tensor:
    """One of the eight symmetries of a square, on the last two axes: quarter turns, then mirrored from 4 on."""
    quarter = torch.rot90(image, way % 4, (-2, -1))
    return quarter if way < 4 else quarter.flip(-1)


def scale_bands(batch: Batch, deviation: float, draw: Draw, sensors: SensorChannels | None = None) -> Batch:
    """Stretch every band of a sample about its mean in training, which is 0 here, alike on all dates.

    The factor's logarithm is drawn, so that half and twice are as likely and no band is turned over.
    """
    bands = batch.x.shape[2]
    drawn = np.stack([random.standard_normal(bands, dtype=np.float32) for random in draw.generators("scale")])  # (B,C)
    if sensors is not None:
        drawn[:, -len(sensors.sizes) :] = 0  # flags stay one
    factors = torch.from_numpy(np.exp(deviation * drawn)).unsqueeze(1)
    return replace(batch, x=batch.x * _beside(factors, batch.x))


def add_noise(batch: Batch, deviation: float, draw: Draw, sensors: SensorChannels | None = None) -> Batch:
    """Normal noise on every band of every clear observation; bands have a deviation of 1 themselves."""
    shape = tuple(batch.x.shape[1:])
    noise = np.stack([random.standard_normal(shape, dtype=np.float32) for random in draw.generators("noise")])
    clear = _beside(batch.valid.unsqueeze(2), batch.x)
    if sensors is not None:
        clear = clear * _beside(sensors.changeable(batch.x), batch.x)
    return replace(batch, x=batch.x + torch.from_numpy(noise) * clear * deviation)


def mix_series(batch: Batch, others: Batch, shares: NDArray[np.float32], season: Season) -> Batch:
    """Series of a batch moved by their shares (B,) towards those of another, read on the same days of the season.

    Between two clear dates the other series is a line; a batch of one sensor. Dates and masks stay those of the batch.
    """
    at, since = (_since_start(each.days.numpy(), season) for each in (batch, others))
    x, values = batch.x.numpy().copy(), others.x.numpy()
    for row, (share, clear) in enumerate(zip(shares, others.valid.numpy(), strict=True)):
        if clear.any():
            known = values[row][clear]
            place = np.interp(at[row], since[row][clear], np.arange(len(known)))  # between which dates, for all bands
            before = place.astype(np.intp)
            after = np.minimum(before + 1, len(known) - 1)
            drawn = known[before] + (place - before).astype(np.float32)[:, None] * (known[after] - known[before])
            x[row] += share * (drawn - x[row])
    return replace(batch, x=torch.from_numpy(x))


def _since_start(days: NDArray[np.int32], season: Season) -> NDArray[np.int64]:
    since: NDArray[np.int64] = days - season_starts(days, season)[:, None]
    return since


def _beside(few: Tensor, many: Tensor) -> Tensor:
    """With axes of length one at the end, to go with a tensor that has more."""
    return few.reshape(*few.shape, *(1,) * (many.dim() - few.dim()))


# --- regular dates: the mean of each stretch of days, and gaps between them filled


def count_periods(season: Season, every: int) -> int:
    """How many stretches of `every` days a season has; the last may go beyond its end."""
    return season.length // every + 1


Dated = tuple[Tensor, Tensor, Tensor]


def count_regular(
    dates: int, season: Season, config: RegularConfig, sensors: SensorChannels | None, of_sensor: Sequence[int] = ()
) -> int:
    """How many dates a model gets to see of so many; `of_sensor` are those of each of several sensors."""
    if config.every is None:
        return dates
    every = config.by_sensor(sensors.names if sensors else ())
    kept = of_sensor if sensors else [dates]
    return sum(own if days is None else count_periods(season, days) for own, days in zip(kept, every, strict=True))


def regularise(
    x: Tensor,
    valid: Tensor,
    days: Tensor,
    season: Season,
    config: RegularConfig,
    sensors: SensorChannels | None = None,
) -> Dated:
    """x (B,T,C) or (B,T,C,H,W), valid (B,T[,H,W]) and days (B,T) with one date for each stretch of the season (B,P).

    A stretch has the mean of its clear observations and is not valid where it has none; its day is the one in its
    middle. Filled linearly, a stretch without any lies on the line between its clear neighbours; before the first and
    after the last one nothing is made up: it stays not valid. Dates outside of the season are left out.

    Of several sensors each has stretches of its own, or its dates as they are; all of them follow each other in time.
    Joined, what they saw on one day is one date.
    """
    if config.every is not None:
        x, valid, days = _on_periods(x, valid, days, season, config, sensors)
    return join_days(x, valid, days, sensors) if config.join and sensors is not None else (x, valid, days)


def _on_periods(
    x: Tensor, valid: Tensor, days: Tensor, season: Season, config: RegularConfig, sensors: SensorChannels | None
) -> Dated:
    starts = torch.from_numpy(season_starts(days.cpu().numpy(), season)).to(days)  # (B,)
    every = config.by_sensor(sensors.names if sensors else ())
    if sensors is None:
        assert every[0] is not None
        return _periods(x, valid, days, starts, season, every[0], config.fill)
    flags = sensors.flags(x)
    parts = []
    for number, own in enumerate(every):
        of_sensor = flags[:, :, number] > 0  # (B, T)
        seen = valid & of_sensor.reshape(*of_sensor.shape, *(1,) * (valid.dim() - 2))
        if own is not None:
            parts.append(_periods(x, seen, days, starts, season, own, config.fill))
        else:
            kept = of_sensor.any(dim=0)
            parts.append((x[:, kept], seen[:, kept], days[:, kept]))
    x, valid, days = (torch.cat(column, dim=1) for column in zip(*parts, strict=True))
    order = torch.argsort(days, dim=1, stable=True)
    return _taken(x, order), _taken(valid, order), days.gather(1, order)


def join_days(x: Tensor, valid: Tensor, days: Tensor, sensors: SensorChannels) -> Dated:
    """Dates of one day as one: each sensor's bands where it saw the ground, and a flag for every sensor that did.

    Samples with fewer days than others have dates at the end that are not valid.
    """
    new = torch.diff(days, dim=1, prepend=days[:, :1] - 1) != 0
    place = new.cumsum(dim=1) - 1  # (B, T)
    count = int(place.max()) + 1
    means, clear = _period_means(x, valid, place, count)
    shares = means[:, :, -len(sensors.sizes) :]  # of a day's dates, those of each sensor
    factors = torch.where(shares > 0, 1 / shares, 0)
    bands = torch.repeat_interleave(factors, torch.tensor(sensors.sizes, device=x.device), dim=2)
    context = torch.ones_like(means[:, :, sum(sensors.sizes) : -len(sensors.sizes)])
    joined = days[:, -1:].repeat(1, count).scatter(1, place, days)
    return means * torch.cat([bands, context, factors], dim=2), clear, joined


def _taken(tensor: Tensor, order: Tensor) -> Tensor:
    """Dates (B, T, ...) in the order (B, T) of each sample."""
    return torch.stack([own[places] for own, places in zip(tensor, order, strict=True)])


def _periods(x: Tensor, valid: Tensor, days: Tensor, starts: Tensor, season: Season, every: int, fill: str) -> Dated:
    """The periods of one sensor's dates; `starts` (B,) are the first days of the season."""
    periods = count_periods(season, every)
    place = torch.div(days - starts[:, None], every, rounding_mode="floor").long()  # (B,T)
    place = torch.where((place >= 0) & (place < periods), place, periods)  # the place past the end is thrown away
    means, clear = _period_means(x, valid, place, periods)
    if fill == "linear":
        means, clear = _fill_gaps(means, clear)
    middles = torch.arange(periods, device=days.device) * every + every // 2
    return means, clear, (starts[:, None] + middles).to(days.dtype)


def season_starts(days: NDArray[np.int32], season: Season) -> NDArray[np.int64]:
    """The first day (B,) of the year's season that leaves the least of each sample's days (B,T) outside."""
    first, last = days.min(axis=1).astype(np.int64), days.max(axis=1).astype(np.int64)
    years = first.astype("datetime64[D]").astype("datetime64[Y]")[:, None]
    nearby = np.arange(1, -3 - int(season.length / YEAR), -1)  # the latest first: it wins where several are as good
    starts = (years + nearby).astype("datetime64[D]").astype(np.int64) + season.start - 1  # (B, years)
    outside = np.maximum(starts - first[:, None], 0) + np.maximum(last[:, None] - starts - season.length, 0)
    chosen: NDArray[np.int64] = np.take_along_axis(starts, outside.argmin(axis=1)[:, None], axis=1)[:, 0]
    return chosen


def _period_means(x: Tensor, valid: Tensor, place: Tensor, periods: int) -> tuple[Tensor, Tensor]:
    """Sums date by date, not by a matrix product, whose last bits would depend on the other samples."""
    kept = valid.unsqueeze(2)  # (B,T,1[,H,W])
    sums = x.new_zeros(len(x), periods + 1, *x.shape[2:])
    counts = x.new_zeros(len(x), periods + 1, *kept.shape[2:])
    samples = torch.arange(len(x), device=x.device)
    for date in range(x.shape[1]):
        sums[samples, place[:, date]] += torch.where(kept[:, date], x[:, date], 0)
        counts[samples, place[:, date]] += kept[:, date]
    counts = counts[:, :periods]
    return sums[:, :periods] / counts.clamp(min=1), counts.squeeze(2) > 0


def _fill_gaps(x: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Straight lines between valid neighbours, which are as far apart as their places."""
    periods = valid.shape[1]
    places = torch.arange(periods, device=x.device).reshape(-1, *(1,) * (valid.dim() - 2)).expand_as(valid)
    before = torch.where(valid, places, -1).cummax(dim=1).values
    after = torch.where(valid, places, periods).flip(1).cummin(dim=1).values.flip(1)
    between = (before >= 0) & (after < periods)
    before, after = before.clamp(min=0), after.clamp(max=periods - 1)
    weight = ((places - before) / (after - before).clamp(min=1)).to(x.dtype).unsqueeze(2)
    left, right = (x.gather(1, side.unsqueeze(2).expand_as(x)) for side in (before, after))
    return torch.where(between.unsqueeze(2), left + weight * (right - left), 0), between
