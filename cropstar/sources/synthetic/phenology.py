"""How fields grow: each field's habits, and what covers the ground of a pixel on a day of the year."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from cropstar.sources.synthetic.crops import BANDS, CROPS, Crop
from cropstar.sources.synthetic.noise import Floats

MOST_CUTS = 4


@dataclass(frozen=True)
class Traits:
    """What makes one field (or, indexed by pixel, one spot of a field) differ from the average of its crop."""

    shift: Floats  # days later than average
    vigour: Floats  # share of the usual canopy
    duration: Floats  # stretches the time from green-up to ripeness, in days
    harvest: Floats  # day of the year
    tillage: Floats  # day of the year when the stubble is turned under
    catch: Floats  # cover that volunteers or a catch crop reach after the harvest
    cuts: Floats  # (..., MOST_CUTS) days of the year when grass is mown
    soil: Floats  # brightness of the bare soil, 1 is average
    leaf: Floats  # (..., C) the variety's own leaf colour

    def at(self, index: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Traits:
        return Traits(*(getattr(self, field.name)[index] for field in fields(self)))


@dataclass(frozen=True)
class Ground:
    """Shares of the ground by what covers it; the rest is bare soil."""

    green: Floats
    flower: Floats
    dry: Floats
    stubble: Floats


def draw_traits(random: np.random.Generator, crop_names: list[str]) -> Traits:
    """Every field has its own farmer, sowing date, variety and soil."""
    count = len(crop_names)
    by_name = {crop.name: crop for crop in CROPS}
    crops = [by_name[name] for name in crop_names]
    harvest = np.array([crop.harvest for crop in crops], dtype=np.float64)
    spread = np.array([crop.harvest_spread for crop in crops], dtype=np.float64)
    shift = np.clip(random.normal(0.0, 6.0, count), -16.0, 16.0)
    duration = random.normal(0.0, 3.0, count)
    harvest = harvest + 0.8 * (shift + duration) + np.clip(random.normal(0.0, 1.0, count), -2.0, 2.0) * spread
    first_cut = random.normal(138.0, 9.0, count)
    gaps = random.uniform(30.0, 58.0, (count, MOST_CUTS - 1))
    cuts = np.column_stack([first_cut, first_cut[:, None] + np.cumsum(gaps, axis=1)])
    return Traits(
        shift=shift,
        vigour=np.clip(random.normal(0.96, 0.11, count), 0.6, 1.15),
        duration=duration,
        harvest=harvest,
        tillage=harvest + random.gamma(2.0, 12.0, count),
        catch=np.where(
            random.random(count) < 0.45, random.uniform(0.15, 0.75, count), random.uniform(0.0, 0.12, count)
        ),
        cuts=cuts,
        soil=np.clip(random.lognormal(0.0, 0.17, count), 0.65, 1.4),
        leaf=np.exp(random.normal(0.0, 0.035, (count, 1)) + random.normal(0.0, 0.02, (count, len(BANDS)))),
    )


def ground_cover(crop: Crop, traits: Traits, day: float) -> Ground:
    """The cover of each spot of a crop on a day."""
    return _meadow(crop, traits, day) if crop.mown else _annual(crop, traits, day)


def _annual(crop: Crop, traits: Traits, day: float) -> Ground:
    """A double logistic: canopy closes, dries, and is gone at the harvest, which spares no corner of the field."""
    grown = _logistic((day - crop.greenup - traits.shift) / crop.greenup_width)
    canopy = crop.peak * traits.vigour * (crop.winter_cover + (1.0 - crop.winter_cover) * grown)
    canopy = np.minimum(canopy, 0.99)
    dried = _logistic((day - crop.ripening - traits.shift - traits.duration) / crop.ripening_width)
    standing = day < traits.harvest
    green = np.where(standing, canopy * (1.0 - dried), 0.0)
    dry = np.where(standing, canopy * dried, 0.0)
    flower = np.zeros_like(green)
    if crop.flower is not None:
        bloom, width, strength = crop.flower
        blooming = strength * np.exp(-(((day - bloom - traits.shift) / width) ** 2))
        flower, green = green * blooming, green * (1.0 - blooming)
    since_harvest = np.maximum(day - traits.harvest, 0.0)
    regrown = np.where(standing, 0.0, traits.catch * _logistic((since_harvest - 42.0) / 9.0))
    turned = day >= traits.tillage
    stubble = np.where(standing | turned, 0.0, crop.residue * np.exp(-since_harvest / 60.0))
    return Ground(green + regrown, flower, dry, stubble * (1.0 - regrown))


def _meadow(crop: Crop, traits: Traits, day: float) -> Ground:
    """Grass: never bare, set back by each cut, a little yellow in a dry summer."""
    grown = _logistic((day - crop.greenup - traits.shift) / crop.greenup_width)
    canopy = crop.peak * traits.vigour * (crop.winter_cover + (1.0 - crop.winter_cover) * grown)
    since_cut = day - traits.cuts
    loss = np.where(since_cut >= 0.0, np.exp(-np.maximum(since_cut, 0.0) / 13.0), 0.0).max(axis=-1)
    parched = 0.16 * np.exp(-(((day - 215.0) / 35.0) ** 2)) * (2.0 - traits.vigour)
    green = np.minimum(canopy, 0.97) * (1.0 - 0.62 * loss) * (1.0 - parched)
    dry = (0.95 - green).clip(0.0) * 0.65  # cut sward and last year's litter rather than soil
    return Ground(green, np.zeros_like(green), dry, np.zeros_like(green))


def _logistic(values: Floats) -> Floats:
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(values, -30.0, 30.0))))
