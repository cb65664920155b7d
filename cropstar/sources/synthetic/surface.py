"""The ground as it would look through a perfectly clear sky: reflectance of every pixel on a day."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rasterio.features import rasterize

from cropstar.sources.synthetic.crops import BANDS, CROPS, Crop
from cropstar.sources.synthetic.landscape import Landscape, burn
from cropstar.sources.synthetic.noise import Floats, smooth_field
from cropstar.sources.synthetic.options import SceneOptions
from cropstar.sources.synthetic.phenology import Traits, draw_traits, ground_cover

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
class CropPixels:
    """All pixels of one crop, flat, with the traits of their spots."""

    crop: Crop
    where: NDArray[np.int64]
    traits: Traits


@dataclass(frozen=True)
class Surface:
    """Everything about the ground that does not change from date to date."""

    classes: NDArray[np.uint8]  # (H, W) 0 without label, else 1 + position in CROPS
    parcel_ids: NDArray[np.int32]  # (H, W) 0 outside parcels
    crop_pixels: tuple[CropPixels, ...]
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
        spot_traits = Traits(
            shift, vigour, spots.duration, spots.harvest, spots.tillage, spots.catch, spots.cuts, soil, leaf
        )
        crop_pixels.append(CropPixels(crop, where, spot_traits))

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
    flat = _unlabelled(surface, day, wetness).reshape(len(BANDS), height * width)
    for pixels in surface.crop_pixels:
        flat[:, pixels.where] = _field_reflectance(pixels, day, wetness)
    return flat.reshape(len(BANDS), height, width)


def _field_reflectance(pixels: CropPixels, day: float, wetness: float) -> Floats:
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


def _unlabelled(surface: Surface, day: float, wetness: float) -> Floats:
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
