"""Reflectance of the ground on a day: growth of the crops, soils, roads, woods and water."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rasterio.features import rasterize

from cropstar.sources.synthetic.landscape import BANDS, CROPS, Crop, Landscape, SceneOptions, burn

HEADLAND = 13.0  # metres of turning strip along the edge of a field


def _spectrum(*values: float) -> Floats:
    return np.array(values, dtype=np.float32)


#                     B02    B03    B04    B05    B07    B08    B11    B12
SOIL = _spectrum(0.072, 0.100, 0.130, 0.150, 0.185, 0.205, 0.285, 0.245)
GREEN = _spectrum(0.024, 0.056, 0.026, 0.098, 0.380, 0.460, 0.200, 0.092)
STRAW = _spectrum(0.075, 0.115, 0.160, 0.195, 0.265, 0.295, 0.320, 0.225)
STALKS = _spectrum(0.048, 0.076, 0.106, 0.140, 0.205, 0.235, 0.275, 0.195)
STUBBLE = _spectrum(0.095, 0.135, 0.180, 0.210, 0.265, 0.295, 0.350, 0.275)
PETALS = _spectrum(0.050, 0.170, 0.150, 0.225, 0.420, 0.480, 0.225, 0.110)
TREES = _spectrum(0.016, 0.034, 0.016, 0.060, 0.235, 0.290, 0.125, 0.050)
TWIGS = _spectrum(0.030, 0.044, 0.050, 0.075, 0.135, 0.160, 0.165, 0.105)
ROOFS = _spectrum(0.115, 0.125, 0.150, 0.165, 0.190, 0.210, 0.240, 0.215)
ASPHALT = _spectrum(0.085, 0.095, 0.105, 0.115, 0.135, 0.150, 0.180, 0.165)
WATER = _spectrum(0.048, 0.052, 0.034, 0.030, 0.022, 0.019, 0.011, 0.008)


@dataclass(frozen=True)
class _CropPixels:
    """All pixels of one crop, flat, with the traits of their spots."""

    crop: Crop
    where: NDArray[np.int64]
    traits: _Traits


@dataclass(frozen=True)
class Surface:
    """The properties of the ground that do not change from date to date."""

    classes: NDArray[np.uint8]  # (H, W) 0 without label, else 1 + position in CROPS
    parcel_ids: NDArray[np.int32]  # (H, W) 0 outside parcels
    crop_pixels: tuple[_CropPixels, ...]
    patches: Floats  # (H, W) soil patches, mean 0
    grain: Floats  # (H, W) what differs from pixel to pixel
    woods: NDArray[np.bool_]
    village: NDArray[np.bool_]
    roads: NDArray[np.bool_]
    water: NDArray[np.bool_]


def make_surface(options: SceneOptions, landscape: Landscape) -> Surface:
    random = options.random(3)
    grid, parcels = landscape.grid, landscape.parcels
    patches = smooth_field(random, grid.shape, 14.0)
    timing = smooth_field(random, grid.shape, 20.0, 4.0)
    grain = random.standard_normal(grid.shape, dtype=np.float32)
    traits = draw_traits(random, list(parcels["crop"]))

    shapes = zip(parcels.geometry, parcels["parcel_id"], strict=True)
    ids = np.asarray(rasterize(shapes, grid.shape, transform=grid.affine, dtype="int32"), dtype=np.int32)
    inner = burn(grid, parcels.geometry.buffer(-HEADLAND).union_all())
    position = {crop.name: number for number, crop in enumerate(CROPS, start=1)}
    class_of_parcel = np.array([0] + [position[name] for name in parcels["crop"]], dtype=np.uint8)
    classes = class_of_parcel[ids]

    crop_pixels = []
    for number, crop in enumerate(CROPS, start=1):
        where = np.flatnonzero(classes == number)
        spots = traits.at(ids.ravel()[where].astype(np.int64) - 1)
        edge = ~inner.ravel()[where]
        patch, late = patches.ravel()[where], timing.ravel()[where]
        # Machines turn on the headland: compacted soil, a thinner and later stand with weeds in it.
        vigour = spots.vigour * (1.0 + 0.07 * patch + 0.03 * grain.ravel()[where]) * np.where(edge, 0.78, 1.0)
        shift = spots.shift + 2.5 * late + np.where(edge, 4.5, 0.0)
        soil = spots.soil * (1.0 - 0.06 * patch)
        leaf = spots.leaf
        spot_traits = _Traits(
            shift, vigour, spots.duration, spots.harvest, spots.tillage, spots.catch, spots.cuts, soil, leaf
        )
        crop_pixels.append(_CropPixels(crop, where, spot_traits))

    free = ids == 0
    return Surface(
        classes=classes,
        parcel_ids=ids,
        crop_pixels=tuple(crop_pixels),
        patches=patches,
        grain=grain,
        woods=burn(grid, landscape.woods) & free,
        village=burn(grid, landscape.village) & free,
        roads=burn(grid, landscape.roads) & free,
        water=burn(grid, landscape.water) & free,
    )


def reflectance_on(surface: Surface, day: float, wetness: float) -> Floats:
    """(C, H, W) for a day of the year; wet soil (1) is darker than dry soil (0)."""
    height, width = surface.classes.shape
    flat = _unlabelled_reflectance(surface, day, wetness).reshape(len(BANDS), height * width)
    for pixels in surface.crop_pixels:
        flat[:, pixels.where] = _field_reflectance(pixels, day, wetness)
    return flat.reshape(len(BANDS), height, width)


def _field_reflectance(pixels: _CropPixels, day: float, wetness: float) -> Floats:
    crop, traits = pixels.crop, pixels.traits
    ground = ground_cover(crop, traits, day)
    bare = 1.0 - ground.green - ground.flower - ground.dry - ground.stubble
    leaf = GREEN[:, None] * np.array(crop.leaf)[:, None] * traits.leaf.T
    dry = (1.0 - crop.brown) * STRAW + crop.brown * STALKS
    mixed = (
        ground.green * leaf
        + ground.flower * PETALS[:, None]
        + ground.dry * dry[:, None]
        + ground.stubble * STUBBLE[:, None]
        + bare.clip(0.0) * _soil_brightness(wetness) * traits.soil * SOIL[:, None]
    )
    return np.asarray(mixed, dtype=np.float32)


def _unlabelled_reflectance(surface: Surface, day: float, wetness: float) -> Floats:
    """Verges and tracks everywhere first, then woods, houses, roads and water over them."""
    season = float(np.exp(-(((day - 165.0) / 75.0) ** 2)))
    grain, patches = surface.grain, surface.patches
    verge = np.clip(0.45 + 0.3 * season + 0.1 * patches + 0.08 * grain, 0.1, 0.95)
    soil = _soil_brightness(wetness) * SOIL
    land = verge * GREEN[:, None, None] + (1.0 - verge) * (0.5 * soil + 0.5 * STRAW)[:, None, None]

    leaves = float(1.0 / (1.0 + np.exp(-(day - 117.0) / 6.0)) / (1.0 + np.exp((day - 292.0) / 8.0)))
    evergreen = np.clip(0.35 + 0.3 * patches, 0.0, 0.9)
    crown = evergreen * 0.75 + (1.0 - evergreen) * leaves
    trees = crown * TREES[:, None, None] + (1.0 - crown) * TWIGS[:, None, None]
    trees = trees * (1.0 + 0.10 * grain) * (1.0 + 0.25 * season * (1.0 - evergreen))

    gardens = np.clip(0.45 + 0.35 * grain, 0.0, 1.0)  # house by house, hence by pixel
    houses = gardens * land + (1.0 - gardens) * ROOFS[:, None, None] * (1.0 + 0.2 * patches + 0.15 * grain)
    for mask, look in (
        (surface.woods, trees),
        (surface.village, houses),
        (surface.roads, 0.75 * ASPHALT[:, None, None] + 0.25 * land),
        (surface.water, WATER[:, None, None] * (1.0 + 0.05 * grain)),
    ):
        land = np.where(mask, look, land)
    return np.asarray(land, dtype=np.float32)


def _soil_brightness(wetness: float) -> float:
    return 1.08 - 0.33 * wetness


# --- Phenology: how a crop covers the ground over the year

MOST_CUTS = 4


@dataclass(frozen=True)
class _Traits:
    """How one field (or, indexed by pixel, one spot of a field) differs from the average of its crop."""

    shift: Floats  # days later than average
    vigour: Floats  # share of the usual canopy
    duration: Floats  # stretches the time from green-up to ripeness, in days
    harvest: Floats  # day of the year
    tillage: Floats  # day of the year when the stubble is turned under
    catch: Floats  # cover that volunteers or a catch crop reach after the harvest
    cuts: Floats  # (..., MOST_CUTS) days of the year when grass is mown
    soil: Floats  # brightness of the bare soil, 1 is average
    leaf: Floats  # (..., C) the variety's own leaf colour

    def at(self, index: np.ndarray[tuple[int], np.dtype[np.int64]]) -> _Traits:
        return _Traits(*(getattr(self, field.name)[index] for field in fields(self)))


@dataclass(frozen=True)
class _Ground:
    """Shares of the ground by what covers it; the rest is bare soil."""

    green: Floats
    flower: Floats
    dry: Floats
    stubble: Floats


def draw_traits(random: np.random.Generator, crop_names: list[str]) -> _Traits:
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
    return _Traits(
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


def ground_cover(crop: Crop, traits: _Traits, day: float) -> _Ground:
    """The cover of each spot of a crop on a day."""
    return _meadow(crop, traits, day) if crop.mown else _annual(crop, traits, day)


def _annual(crop: Crop, traits: _Traits, day: float) -> _Ground:
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
    return _Ground(green + regrown, flower, dry, stubble * (1.0 - regrown))


def _meadow(crop: Crop, traits: _Traits, day: float) -> _Ground:
    """Grass: never bare, set back by each cut, a little yellow in a dry summer."""
    grown = _logistic((day - crop.greenup - traits.shift) / crop.greenup_width)
    canopy = crop.peak * traits.vigour * (crop.winter_cover + (1.0 - crop.winter_cover) * grown)
    since_cut = day - traits.cuts
    loss = np.where(since_cut >= 0.0, np.exp(-np.maximum(since_cut, 0.0) / 13.0), 0.0).max(axis=-1)
    parched = 0.16 * np.exp(-(((day - 215.0) / 35.0) ** 2)) * (2.0 - traits.vigour)
    green = np.minimum(canopy, 0.97) * (1.0 - 0.62 * loss) * (1.0 - parched)
    dry = (0.95 - green).clip(0.0) * 0.65  # cut sward and last year's litter rather than soil
    return _Ground(green, np.zeros_like(green), dry, np.zeros_like(green))


def _logistic(values: Floats) -> Floats:
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(values, -30.0, 30.0))))


# --- Noise

Floats = NDArray[np.floating[Any]]


def smooth_field(random: np.random.Generator, shape: tuple[int, int], length: float, roughness: float = 3.0) -> Floats:
    """White noise through a low-pass filter: mean 0, deviation 1, alike over about `length` pixels.

    A larger `roughness` exponent takes away more of the fine structure (2 is ragged, 4 is silky).
    """
    height, width = shape
    spectrum = np.fft.rfft2(random.standard_normal(shape, dtype=np.float32))
    rows, columns = np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :]
    spectrum *= (1.0 + (2.0 * np.pi * length) ** 2 * (rows**2 + columns**2) / 4.0) ** (-roughness / 2.0)
    field = np.fft.irfft2(spectrum, s=shape).astype(np.float32)
    field -= field.mean()
    return np.asarray(field / max(float(field.std()), 1e-9), dtype=np.float32)


def coarsen(values: Floats) -> Floats:
    """The mean of each 2x2 block put back in all four pixels: how a 20 m band looks on the 10 m grid."""
    height, width = values.shape[-2:]
    edges = [(0, 0)] * (values.ndim - 2) + [(0, height % 2), (0, width % 2)]
    padded = np.pad(values, edges, mode="edge")
    blocks = (
        padded[..., 0::2, 0::2] + padded[..., 1::2, 0::2] + padded[..., 0::2, 1::2] + padded[..., 1::2, 1::2]
    ) * np.float32(0.25)
    return np.asarray(blocks.repeat(2, axis=-2).repeat(2, axis=-1)[..., :height, :width])
