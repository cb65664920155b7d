"""Dates as input: the season as channels or added to embeddings, and masked series as sequences of observations.

A convolution in time has no place for a date without an observation: whatever stood there would be read. So the valid
dates move to the front, in order, and a network runs over what was really seen; the date travels along as input. What
is left behind the last observation is zero, as is what a convolution finds beyond its input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cropstar.models.contract import Shape

YEAR = 365.25
THERMAL_BANDS = ("thermal", "gdd", "thermal_time")
# Growing degree-days come as a band, and bands are normalised: a season runs from about -2 to 3 deviations. The longest
# wave is that of 16, a rising sine over -4 to 4: it has no value twice in a season, not even in one far warmer than any
# in training. The shortest, of 2 deviations, tells apart what is a tenth of one: some 80 degree-days of a summer crop's
# 0 to 2,500, a leaf or so. Shorter ones would mostly follow the noise of weather stations.
THERMAL_PERIODS = (16.0, 8.0, 4.0, 2.0)
# Channels more than bands; the thermal band itself leaves.
EXTRA_CHANNELS = {"none": 0, "sincos": 2, "thermal": 2 * len(THERMAL_PERIODS) - 1}
HARMONICS = 32  # the fastest has a period of eleven days; wider codes begin again
ORDER_BASE = 10_000.0  # of the sinusoids that Vaswani et al. (2017) give to the place in a sequence


class SeasonEncoding:
    """How a network sees the day of the season; see `model.day_encoding`."""

    def __init__(self, day_encoding: str, thermal: int | None) -> None:
        self.day_encoding = day_encoding
        self.thermal = thermal if day_encoding == "thermal" else None

    def bands(self, shape: Shape) -> int:
        """The number of bands that are embedded as values, without thermal time."""
        return shape.bands - (self.thermal is not None)

    def as_channels(self, x: Tensor, valid: Tensor, days: Tensor) -> tuple[Tensor, ObservedSeries]:
        """For convolutions: bands and season as channels (B, C, N), zero beyond the last observation."""
        observed = observe(x, valid, days)
        channels = with_days(observed.values, observed.days, self.day_encoding, self.thermal).transpose(1, 2)
        return channels * observed.present.unsqueeze(1), observed

    def embedded(
        self, x: Tensor, valid: Tensor, days: Tensor, embed: Callable[[Tensor], Tensor], copies: int = 1
    ) -> tuple[Tensor, Tensor]:
        """For attention: embedded bands with the season added to them (B, N, C), and which are real (B, N).

        Every one of `copies` shares of the channels gets the same code.
        """
        observed = observe(x, valid, days)
        features = embed(without_thermal(observed.values, self.thermal))
        code = encode_positions(observed, features.shape[2] // copies, self.day_encoding, self.thermal)
        return features + code.repeat(1, 1, copies), observed.present


# --- observations


@dataclass(frozen=True)
class ObservedSeries:
    """values (B, N, C), days (B, N), present (B, N): N is the most valid dates that a series of the batch has."""

    values: Tensor
    days: Tensor
    present: Tensor

    @property
    def counts(self) -> Tensor:  # (B,)
        return self.present.sum(dim=1)


def observe(x: Tensor, valid: Tensor, days: Tensor) -> ObservedSeries:
    """x (B, T, C), valid (B, T), days (B, T); one date stays, be it masked: nothing has length zero."""
    counts = valid.sum(dim=1, keepdim=True)
    present = torch.arange(most_valid(valid), device=valid.device) < counts
    order = torch.argsort(valid.logical_not().to(torch.uint8), dim=1, stable=True)[:, : present.shape[1]]
    values = x.gather(1, order.unsqueeze(2).expand(-1, -1, x.shape[2]))
    return ObservedSeries(
        # A choice, not a product: NaN times zero would stay NaN.
        torch.where(present.unsqueeze(2), values, x.new_zeros(())),
        torch.where(present, days.gather(1, order), days.new_zeros(())),
        present,
    )


def masked_mean(features: Tensor, mask: Tensor) -> Tensor:
    """features (B, H, N), mask (B, 1, N): the mean over observations (B, H), zero where there is none."""
    return (features * mask).sum(dim=2) / mask.sum(dim=2).clamp(min=1)


def masked_max(features: Tensor, mask: Tensor) -> Tensor:
    """features (B, H, N), mask (B, 1, N): the largest over observations (B, H), zero where there is none."""
    largest = features.masked_fill(~mask, -torch.inf).amax(dim=2)
    return torch.where(mask.any(dim=2), largest, largest.new_zeros(()))


# --- the season as channels: the day of the year, or the warmth that plants have had


def find_thermal(bands: Sequence[str]) -> int | None:
    """The band of accumulated growing degree-days, by its name."""
    return next((place for place, name in enumerate(bands) if name.strip().lower() in THERMAL_BANDS), None)


def with_days(x: Tensor, days: Tensor, encoding: str, thermal: int | None = None) -> Tensor:
    """Append the season's channels: x (B, T, C, ...), days (B, T) since 1970-01-01, `thermal` one of the bands."""
    if encoding == "none":
        return x
    if encoding == "thermal" and thermal is not None:
        rates = 2 * math.pi / torch.tensor(THERMAL_PERIODS, dtype=x.dtype, device=x.device)
        angle = x.narrow(2, thermal, 1) * rates.reshape(-1, *(1,) * (x.dim() - 3))  # (B, T, periods, ...)
        return torch.cat([without_thermal(x, thermal), angle.sin(), angle.cos()], dim=2)
    angle = (2 * math.pi / YEAR) * torch.remainder(days.to(torch.float64), YEAR)
    channels = torch.stack([angle.sin(), angle.cos()], dim=2).to(x.dtype)  # (B, T, 2)
    channels = channels.reshape(*channels.shape, *(1,) * (x.dim() - 3)).expand(-1, -1, -1, *x.shape[3:])
    return torch.cat([x, channels], dim=2)


def without_thermal(x: Tensor, thermal: int | None) -> Tensor:
    """x (B, T, C, ...) without that band."""
    if thermal is None:
        return x
    return torch.cat([x.narrow(2, 0, thermal), x.narrow(2, thermal + 1, x.shape[2] - thermal - 1)], dim=2)


# --- the season as a vector to be added to an embedding


def encode_positions(observed: ObservedSeries, width: int, day_encoding: str, thermal: int | None = None) -> Tensor:
    """(B, N, width), for attention.

    Published encodings count days from the start of the data or of the year. Here they are a Fourier series of the
    year: a season may cross the new year without a jump, and the same day has the same code in every year. The first
    two channels are those that other models get as input. Where the season is told by growing degree-days, these take
    the place of the day, in waves that are whole fractions of the longest that other models get. Without either, the
    order of the observations is encoded instead, or attention would not know it.
    """
    pairs = torch.arange((width + 1) // 2, device=observed.days.device)
    if day_encoding == "none":
        place = torch.arange(observed.days.shape[1], device=observed.days.device).expand(observed.days.shape)
        rate = ORDER_BASE ** (-2.0 * pairs.to(torch.float64) / width)
    else:
        period = YEAR
        place = torch.remainder(observed.days.to(torch.float64), YEAR)
        if day_encoding == "thermal" and thermal is not None:
            period = THERMAL_PERIODS[0]
            place = observed.values[..., thermal].to(torch.float64)
        rate = (2 * math.pi / period) * (1 + pairs % HARMONICS).to(torch.float64)
    angle = place.unsqueeze(2) * rate  # (B, N, pairs)
    waves = torch.stack([angle.sin(), angle.cos()], dim=3).flatten(2)[..., :width]
    return waves.to(observed.values.dtype)


# --- short cuts that a mask allows, where asking it costs no waiting for a GPU
#
# A processor would stand still until a GPU has computed the answer, at every date. So only masks that lie in its own
# memory are asked; elsewhere the general way is gone, which gives the same results.


def is_complete(mask: Tensor) -> bool:
    """Whether nothing is masked; False where that is not known."""
    return _on_host(mask) and bool(mask.all())


def complete_dates(mask: Tensor) -> list[bool]:
    """The same for every date of a mask (T, ...)."""
    return mask.flatten(1).all(dim=1).tolist() if _on_host(mask) else [False] * len(mask)


def most_valid(valid: Tensor) -> int:
    """The largest number of valid dates of a series (B, T), one at least; all dates where that is not known."""
    return max([1, *valid.sum(dim=1).tolist()]) if _on_host(valid) else valid.shape[1]


def bins_in_use(chosen: Tensor) -> list[bool]:
    """Which bins of one-hot codes (B, n) any series uses; all where that is not known."""
    return chosen.any(dim=0).tolist() if _on_host(chosen) else [True] * chosen.shape[1]


def _on_host(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu"
