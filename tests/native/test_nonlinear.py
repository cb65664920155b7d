"""tanh and sigmoid in units of the last place."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from cropstar.native.library import library

pytestmark = pytest.mark.usefixtures("instruction_set")


def apply(name: str, x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    library()(name, x.data_ptr(), x.numel(), y.data_ptr())
    return y


@pytest.mark.parametrize(("name", "exact", "units"), [("tanh", torch.tanh, 6.0), ("sigmoid", torch.sigmoid, 2.5)])
def test_a_few_units_in_the_last_place(name: str, exact: Callable[[Tensor], Tensor], units: float) -> None:
    small = torch.logspace(-30, 1.9, 100_001)
    x = torch.cat([torch.linspace(-20, 20, 400_001), small, -small])
    expected = exact(x.double())
    unit = torch.from_numpy(np.spacing(expected.float().abs().numpy())).double()
    assert ((apply(name, x) - expected).abs() / unit).max() <= units


@pytest.mark.parametrize("name", ["tanh", "sigmoid"])
def test_the_ends(name: str) -> None:
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 1e30, -1e30, 0.0])
    found, expected = apply(name, x), getattr(torch, name)(x)
    assert found[0].isnan()
    payloads = torch.tensor([0x7FC00001, -1, 0x7F800001], dtype=torch.int32).view(torch.float32)
    assert apply(name, payloads).isnan().all()
    assert (found[1:] - expected[1:]).abs().max() <= 1e-37
    assert apply(name, torch.linspace(-30, 30, 100_003)).abs().max() <= 1
