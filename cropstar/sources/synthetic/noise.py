"""Smooth random fields: soil patches, cloud banks, haze."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

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
