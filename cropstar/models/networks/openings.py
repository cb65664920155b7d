"""How networks over series begin: from a masked series to the features of its observations."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from cropstar.models.days import with_days, without_thermal
from cropstar.models.networks.observations import Observations, observe
from cropstar.models.networks.positions import encode
from cropstar.models.registry import Shape


class Season:
    """What tells a network the season; see `model.day_encoding`."""

    def __init__(self, day_encoding: str, thermal: int | None) -> None:
        self.day_encoding = day_encoding
        self.thermal = thermal if day_encoding == "thermal" else None

    def bands(self, shape: Shape) -> int:
        """Those that are embedded by themselves, not as a place in the season."""
        return shape.bands - (self.thermal is not None)

    def as_channels(self, x: Tensor, valid: Tensor, days: Tensor) -> tuple[Tensor, Observations]:
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
        code = encode(observed, features.shape[2] // copies, self.day_encoding, self.thermal)
        return features + code.repeat(1, 1, copies), observed.present
