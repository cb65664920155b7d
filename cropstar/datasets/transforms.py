"""What is changed at random in the samples of a training epoch.

What a sample gets follows from (seed, epoch, its place in the epoch's order) alone: not from the batch that it is in,
nor from the worker that reads it. The place, not the sample, because balanced sampling draws some of them several
times. Each change has random numbers of its own, drawn date after date: padding at the end moves none of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from cropstar.config import AugmentationConfig
from cropstar.datasets.batch import Batch

STREAMS = ("date_dropout", "day_jitter", "flips", "noise", "scale")  # new ones at the end: places are seeds


@dataclass(frozen=True)
class Draw:
    """The random numbers of a batch: one generator for each sample and change."""

    seed: int
    epoch: int
    places: Sequence[int]  # of the samples in the epoch's order

    def generators(self, change: str) -> Iterator[np.random.Generator]:
        for place in self.places:
            yield np.random.default_rng([self.seed, self.epoch, place, STREAMS.index(change)])


def augment(batch: Batch, config: AugmentationConfig, draw: Draw) -> Batch:
    """All changes that the configuration asks for; without any, the batch as it is."""
    if len(draw.places) != len(batch.x):
        raise ValueError(f"{len(draw.places)} places for {len(batch.x)} samples")
    if config.date_dropout:
        batch = hide_dates(batch, config.date_dropout, draw)
    if config.day_jitter:
        batch = jitter_days(batch, config.day_jitter, draw)
    if config.flips:
        batch = flip(batch, draw)
    if config.scale:
        batch = scale_bands(batch, config.scale, draw)
    if config.noise:
        batch = add_noise(batch, config.noise, draw)
    return batch


def hide_dates(batch: Batch, share: float, draw: Draw) -> Batch:
    """Hide some dates of each sample, as clouds would: no crop shall be known by one date alone."""
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
    """Turn and mirror images, one of eight ways each; series have no sides."""
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


def scale_bands(batch: Batch, deviation: float, draw: Draw) -> Batch:
    """Stretch every band of a sample about its mean in training, which is 0 here, alike on all dates.

    The factor's logarithm is drawn, so that half and twice are as likely and no band is turned over.
    """
    bands = batch.x.shape[2]
    drawn = np.stack([random.standard_normal(bands, dtype=np.float32) for random in draw.generators("scale")])  # (B,C)
    factors = torch.from_numpy(np.exp(deviation * drawn)).unsqueeze(1)
    return replace(batch, x=batch.x * _beside(factors, batch.x))


def add_noise(batch: Batch, deviation: float, draw: Draw) -> Batch:
    """Normal noise on every band of every clear observation; bands have a deviation of 1 themselves."""
    shape = tuple(batch.x.shape[1:])
    noise = np.stack([random.standard_normal(shape, dtype=np.float32) for random in draw.generators("noise")])
    clear = _beside(batch.valid.unsqueeze(2), batch.x)
    return replace(batch, x=batch.x + torch.from_numpy(noise) * clear * deviation)


def _beside(few: Tensor, many: Tensor) -> Tensor:
    """With axes of length one at the end, to go with a tensor that has more."""
    return few.reshape(*few.shape, *(1,) * (many.dim() - few.dim()))
