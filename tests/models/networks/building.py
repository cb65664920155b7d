"""Networks and series for their tests."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cropstar.config import ModelConfig
from cropstar.models.contract import NETWORKS, Classifier, Shape
from cropstar.models.networks import inceptiontime, ltae, tcn, tempcnn, transformer

MODULES = (inceptiontime, ltae, tcn, tempcnn, transformer)  # importing them registers them
NAMES = ("inceptiontime", "ltae", "tcn", "tempcnn", "transformer")
BANDS, CLASSES, LENGTH = 4, 6, 9
Inputs = tuple[Tensor, Tensor, Tensor]


def make(name: str, *, bands: int = BANDS, length: int = LENGTH, **settings: object) -> Classifier:
    torch.manual_seed(0)
    config = ModelConfig.model_validate({"name": name, "layers": 4, "hidden": 8, **settings})
    model = NETWORKS[name](config, Shape(bands, CLASSES, length)).double().eval()
    wear_in(model)
    return model


def wear_in(model: nn.Module) -> None:
    """As after some training: with biases, shifts and statistics of zero a forgotten mask would not show."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        for statistic in model.buffers():
            statistic.add_(0.05 * torch.rand_like(statistic))


def inputs(*, batch: int = 3, length: int = LENGTH, bands: int = BANDS, share: float = 0.7, seed: int = 1) -> Inputs:
    """Series with gaps; the first of the batch always has an observation."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, length, bands, dtype=torch.float64, generator=generator)
    valid = torch.rand(batch, length, generator=generator) < share
    valid[:1, length // 2] = True
    days = (19_000 + torch.arange(length) * 11).expand(batch, length)
    return x, valid, days


def complete(*, batch: int = 3, length: int = LENGTH, bands: int = BANDS) -> Inputs:
    return inputs(batch=batch, length=length, bands=bands, share=1.1)


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
