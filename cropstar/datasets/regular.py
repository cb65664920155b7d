"""Irregular dates brought to regular ones: the mean of each stretch of days, and gaps between them filled.

A function of arrays, so that training and prediction do the very same. It is never needed: models take the dates as
they are, by mask.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cropstar.config import RegularConfig
from cropstar.geo.calendar import YEAR, Season


def count_periods(season: Season, every: int) -> int:
    """How many stretches of `every` days a season has; the last may go beyond its end."""
    return season.length // every + 1


def regularise(
    x: Tensor, valid: Tensor, days: Tensor, season: Season, config: RegularConfig
) -> tuple[Tensor, Tensor, Tensor]:
    """x (B,T,C) or (B,T,C,H,W), valid (B,T[,H,W]) and days (B,T) with one date for each stretch of the season (B,P).

    A stretch has the mean of its clear observations and is not valid where it has none; its day is the one in its
    middle. Filled linearly, a stretch without any lies on the line between its clear neighbours; before the first and
    after the last one nothing is made up: it stays not valid. Dates outside of the season are left out.
    """
    if config.every is None:
        return x, valid, days
    starts = torch.from_numpy(season_starts(days.cpu().numpy(), season)).to(days)  # (B,)
    periods = count_periods(season, config.every)
    place = torch.div(days - starts[:, None], config.every, rounding_mode="floor").long()  # (B,T)
    place = torch.where((place >= 0) & (place < periods), place, periods)  # the place past the end is thrown away
    means, clear = _means(x, valid, place, periods)
    if config.fill == "linear":
        means, clear = _filled(means, clear)
    middles = torch.arange(periods, device=days.device) * config.every + config.every // 2
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


def _means(x: Tensor, valid: Tensor, place: Tensor, periods: int) -> tuple[Tensor, Tensor]:
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


def _filled(x: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
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
