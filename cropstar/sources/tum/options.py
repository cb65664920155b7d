"""What the user may choose."""

from __future__ import annotations

from dataclasses import dataclass

from cropstar.errors import UsageError

FIRST_YEAR, LAST_YEAR = 2015, 2100  # Sentinel-2 sees since June 2015


@dataclass(frozen=True)
class TumOptions:
    """Whatever is left out means: all that is there."""

    year: int | None = None  # of folders that tell their year the one to take, of others the year that they are of
    data: str | None = None  # which of several folders, such as 240/data16, 240 or data16
    images_per_tile: int = 64  # fewer where images are large

    def __post_init__(self) -> None:
        if self.year is not None and not FIRST_YEAR <= self.year <= LAST_YEAR:
            raise UsageError(f"no year of Sentinel-2: {self.year}", remedy=f"give one from {FIRST_YEAR} on")
        if self.images_per_tile < 1:
            raise UsageError("the images of a tile must be above zero")
