"""Where in time an observation stands, as a vector to be added to its embedding.

Published encodings count days from the start of the data or of the year. Here they are a Fourier series of the year: a
season may cross the new year without a jump, and the same day has the same code in every year. The first two channels
are those that other models get as input. Where the season is told by growing degree-days, these take the place of the
day, in waves that are whole fractions of the longest that other models get. Without either, the order of the
observations is encoded instead, or attention would not know it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cropstar.models.days import THERMAL_PERIODS, YEAR
from cropstar.models.networks.observations import Observations

HARMONICS = 32  # the fastest has a period of eleven days; wider codes begin again
ORDER_BASE = 10_000.0  # of the sinusoids that Vaswani et al. (2017) give to the place in a sequence


def encode(observed: Observations, width: int, day_encoding: str, thermal: int | None = None) -> Tensor:
    """(B, N, width)."""
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
