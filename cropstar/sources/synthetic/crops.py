"""The crops: how common each is, when it grows, ripens and is harvested, and what its leaves look like."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

BANDS = ("B02", "B03", "B04", "B05", "B07", "B08", "B11", "B12")

# A crop with fewer parcels than this cannot be trained, validated and tested on different fields.
FEWEST_PARCELS = 4


@dataclass(frozen=True)
class Crop:
    """Days are days of the year for an average field; `leaf` multiplies the green leaf's reflectance by band."""

    name: str
    share: float  # of all parcels
    greenup: float  # half of the canopy is there
    greenup_width: float
    ripening: float  # half of the canopy is dry
    ripening_width: float
    harvest: float
    leaf: tuple[float, ...]
    winter_cover: float = 0.0  # share of the canopy that is there at the end of winter
    peak: float = 0.95  # ground covered by the full canopy
    brown: float = 0.0  # dry canopy: 0 straw, 1 brown stalks
    residue: float = 0.7  # ground under stubble after the harvest
    flower: tuple[float, float, float] | None = None  # day, width, strength
    harvest_spread: float = 6.0
    mown: bool = False


# Most common first: a scene with few parcels keeps the head of this list. The timing of neighbours overlaps on
# purpose (wheat and barley; maize, soybeans and sunflower; beet and potatoes): one date or a lazy model must not do.
#        name, share, greenup and width, ripening and width, harvest, then leaf: B02 B03 B04 B05 B07 B08 B11 B12
CROPS: tuple[Crop, ...] = (
    Crop("winter wheat", 0.170, 105, 11, 192, 7, 210, (1.00, 1.00, 1.00, 1.00, 1.00, 1.00, 1.00, 1.00),
         winter_cover=0.33),
    Crop("grassland", 0.150, 90, 14, 420, 20, 420, (1.10, 1.12, 1.15, 1.12, 0.92, 0.90, 1.08, 1.12),
         winter_cover=0.62, peak=0.90, mown=True),
    Crop("maize", 0.140, 166, 9, 262, 10, 274, (0.98, 1.00, 1.04, 1.00, 0.91, 0.90, 0.95, 0.97),
         peak=0.93, brown=0.8, residue=0.5),
    Crop("rapeseed", 0.110, 90, 10, 180, 9, 202, (1.08, 1.08, 1.02, 1.10, 1.07, 1.06, 0.93, 0.92),
         winter_cover=0.50, brown=0.3, residue=0.6, flower=(122, 13, 0.8)),
    Crop("winter barley", 0.100, 92, 11, 167, 7, 187, (1.04, 1.06, 1.05, 1.06, 0.97, 0.96, 1.04, 1.06),
         winter_cover=0.40),
    Crop("sugar beet", 0.080, 155, 9, 330, 20, 286, (0.98, 1.05, 0.97, 1.02, 1.12, 1.13, 0.90, 0.86),
         peak=0.96, brown=1.0, residue=0.1, harvest_spread=12),
    Crop("potatoes", 0.070, 149, 8, 228, 10, 251, (1.04, 1.07, 1.06, 1.06, 1.05, 1.06, 0.92, 0.90),
         peak=0.92, brown=1.0, residue=0.1, harvest_spread=9),
    Crop("soybeans", 0.065, 179, 9, 257, 7, 275, (1.02, 1.09, 1.00, 1.10, 1.10, 1.12, 1.06, 1.06),
         peak=0.93, brown=0.7, residue=0.4),
    Crop("sunflower", 0.060, 167, 9, 235, 8, 257, (1.06, 1.04, 1.08, 1.02, 1.00, 0.98, 1.03, 1.07),
         peak=0.89, brown=1.0, residue=0.4, flower=(201, 11, 0.40)),
    Crop("spring barley", 0.055, 121, 9, 186, 7, 205, (1.04, 1.06, 1.05, 1.06, 0.97, 0.96, 1.04, 1.06)),
)  # fmt: skip


def crops_for(parcels: int) -> tuple[Crop, ...]:
    """The crops that a scene of so many parcels can show a few times each."""
    return CROPS[: max(min(parcels, 2), min(len(CROPS), parcels // FEWEST_PARCELS))]


def assign_crops(random: np.random.Generator, parcels: int) -> list[str]:
    """One crop a parcel, in the wished shares as nearly as whole numbers allow, scattered over the land."""
    chosen = crops_for(parcels)
    if not chosen:
        return []
    least = min(FEWEST_PARCELS, parcels // len(chosen))
    shares = np.array([crop.share for crop in chosen])
    exact = least + (parcels - least * len(chosen)) * shares / shares.sum()
    counts = np.floor(exact).astype(int)
    for index in np.argsort(counts - exact, kind="stable")[: parcels - counts.sum()]:
        counts[index] += 1
    names = np.repeat([crop.name for crop in chosen], counts)
    return [str(name) for name in random.permutation(names)]
