"""Where in the season an observation stands, as input: the day of the year, or the warmth that plants have had."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

YEAR = 365.25
THERMAL_BANDS = ("thermal", "gdd", "thermal_time")
# Growing degree-days come as a band, and bands are normalised: a season runs from about -2 to 3 deviations. The longest
# wave is that of 16, a rising sine over -4 to 4: it has no value twice in a season, not even in one far warmer than any
# in training. The shortest, of 2 deviations, tells apart what is a tenth of one: some 80 degree-days of a summer crop's
# 0 to 2,500, a leaf or so. Shorter ones would mostly follow the noise of weather stations.
THERMAL_PERIODS = (16.0, 8.0, 4.0, 2.0)
# Channels more than bands; the thermal band itself leaves.
EXTRA_CHANNELS = {"none": 0, "sincos": 2, "thermal": 2 * len(THERMAL_PERIODS) - 1}


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
