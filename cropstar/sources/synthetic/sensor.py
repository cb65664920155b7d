"""What the instrument and its ground processor make of the ground under its sky."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cropstar.geo.sensors import SCALE
from cropstar.sources.synthetic.crops import BANDS
from cropstar.sources.synthetic.noise import Floats, coarsen, smooth_field
from cropstar.sources.synthetic.weather import Sky

COARSE_BANDS = tuple(BANDS.index(band) for band in ("B05", "B07", "B11", "B12"))  # 20 m in the original

# Codes of the Sentinel-2 scene classification.
NODATA, SHADOW, VEGETATION, BARE, WATER, UNCLASSIFIED, CLOUD_MEDIUM, CLOUD_HIGH, CIRRUS = 0, 3, 4, 5, 6, 7, 8, 9, 10

#                       B02   B03   B04   B05   B07   B08   B11   B12
CLOUD_TOP = np.array([0.62, 0.61, 0.62, 0.64, 0.67, 0.69, 0.50, 0.40], dtype=np.float32)
# Diffuse light from the sky, which is blue, still reaches the ground in a shadow.
SHADE = np.array([0.50, 0.57, 0.62, 0.65, 0.70, 0.71, 0.74, 0.75], dtype=np.float32)
PATH = np.array([1.00, 0.70, 0.48, 0.40, 0.28, 0.22, 0.06, 0.04], dtype=np.float32)


def observe(
    random: np.random.Generator, ground: Floats, sky: Sky, water: NDArray[np.bool_]
) -> tuple[NDArray[np.uint16], NDArray[np.uint8]]:
    """Counts (C, H, W) and scene classification (H, W) of one date."""
    light: Floats = ground * (1.0 - SHADE[:, None, None] * sky.shadow)
    light = light + PATH[:, None, None] * sky.haze
    tops = CLOUD_TOP[:, None, None] * (0.72 + 0.42 * sky.cloud)
    light = light * (1.0 - sky.cloud) + tops * sky.cloud
    light = _blur(np.asarray(light, dtype=np.float32))
    light[COARSE_BANDS, ...] = coarsen(light[COARSE_BANDS, ...])
    gain = 1.0 + random.normal(0.0, 0.015, (len(BANDS), 1, 1))  # viewing angle and atmospheric correction
    noise = random.standard_normal(light.shape, dtype=np.float32)
    light = light * gain + noise * (0.0025 + 0.012 * light)
    # A dark pixel that was seen is 1, never 0: zero is the mark of the unseen.
    counts = np.clip(np.rint(light / SCALE), 1, 20_000).astype(np.uint16)
    counts[:, ~sky.seen] = 0
    return counts, _classify(random, light, sky, water)


def _classify(random: np.random.Generator, light: Floats, sky: Sky, water: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """As good as the real one: sure of thick cloud and deep shadow, mistaken along their thin edges."""
    red, infrared = coarsen(light[BANDS.index("B04")]), coarsen(light[BANDS.index("B08")])
    vegetation = (infrared - red) / np.maximum(infrared + red, 1e-3)
    codes = np.where(vegetation > 0.4, VEGETATION, BARE).astype(np.uint8)
    codes[water] = WATER
    doubt = coarsen(smooth_field(random, sky.cloud.shape, 5.0))
    shadow = coarsen(sky.shadow) + 0.07 * doubt
    cloud = coarsen(sky.cloud) + 0.05 * doubt
    cloudy = coarsen(sky.cloud) > 0.0  # doubt alone makes no clouds in a blue sky
    codes[(shadow > 0.28) & (coarsen(sky.shadow) > 0.0)] = SHADOW
    codes[cloudy & (cloud > 0.08)] = UNCLASSIFIED
    codes[cloudy & (cloud > 0.14)] = CIRRUS
    codes[cloudy & (cloud > 0.30)] = CLOUD_MEDIUM
    codes[cloudy & (cloud > 0.60)] = CLOUD_HIGH
    codes[~sky.seen] = NODATA
    return codes


def _blur(light: Floats) -> Floats:
    """The point spread function: every pixel gets a little of its neighbours' light, so field edges are mixed."""
    padded = np.pad(light, [(0, 0), (1, 1), (1, 1)], mode="edge")
    middle, side = np.float32(0.76), np.float32(0.12)
    rows = middle * padded[:, 1:-1] + side * (padded[:, :-2] + padded[:, 2:])
    return np.asarray(middle * rows[..., 1:-1] + side * (rows[..., :-2] + rows[..., 2:]))
