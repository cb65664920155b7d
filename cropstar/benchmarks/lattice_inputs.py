"""What is fed to the gradient lattice: smooth noise, or images pixel by pixel."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from cropstar.benchmarks.mnist import read_images
from cropstar.errors import InputError


def smooth_noise(runs: int, steps: int, width: int, alpha: float, seed: int) -> Tensor:
    """x_t = alpha x_{t-1} + (1 - alpha) z_t with z standard normal and x_0 = 0: (R, T, C) in double.

    Drawn run by run: more runs leave the first ones as they were.
    """
    generator = torch.Generator().manual_seed(seed)
    noise = torch.stack(
        [torch.randn(steps, width, generator=generator, dtype=torch.float64) for _ in range(runs)]
    )  # (R, T, C)
    x = torch.zeros(runs, width, dtype=torch.float64)
    series = []
    for z in noise.unbind(1):
        x = alpha * x + (1 - alpha) * z
        series.append(x)
    return torch.stack(series, dim=1)


def pixel_by_pixel(path: Path, runs: int, seed: int) -> Tensor:
    """Images drawn by lot, row after row, as (R, T, 1) in double between 0 and 1."""
    images = read_images(path)
    if len(images) < runs:
        raise InputError("too few images", path=path, why=f"{len(images)} for {runs} runs", remedy="give fewer --runs")
    chosen = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))[:runs]
    pixels = torch.from_numpy(images[chosen.numpy()]).double() / 255
    return pixels.flatten(1).unsqueeze(2)
