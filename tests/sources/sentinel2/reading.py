"""What the tests of series share: reading a folder of small products whole, refusals, plain pixels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cropstar.errors import InputError
from cropstar.geo.windows import Window
from cropstar.sources.base import Observations
from cropstar.sources.sentinel2 import Sentinel2Options, Sentinel2Series, open_series
from tests.sources.examples.safe import HEIGHT, WIDTH, Pixels, some_pixels

WHOLE = Window(0, 0, HEIGHT, WIDTH)


def read(path: Path, options: Sentinel2Options | None = None) -> tuple[Sentinel2Series, Observations]:
    (series,) = open_series(path, options)
    observations = series.read(WHOLE)
    series.close()
    return series, observations


def refusal(path: Path, options: Sentinel2Options | None = None) -> str:
    with pytest.raises(InputError) as caught:
        open_series(path, options)
    assert "\n" not in str(caught.value)
    assert caught.value.remedy
    return str(caught.value)


def constant(band: str, value: int) -> Pixels:
    return np.full_like(some_pixels(band), value)


def spread(pixels: Pixels, ratio: int = 2) -> Pixels:
    """Coarse pixels repeated on the 10 m grid."""
    return pixels.repeat(ratio, axis=0).repeat(ratio, axis=1)[:HEIGHT, :WIDTH]
