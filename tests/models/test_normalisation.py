"""Batch normalisation with a mask: torch's own where all is valid, blind to everything else."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from cropstar.models.normalisation import MaskedBatchNorm

CHANNELS = 4


def pair() -> tuple[MaskedBatchNorm, nn.BatchNorm1d]:
    ours, theirs = MaskedBatchNorm(CHANNELS).double(), nn.BatchNorm1d(CHANNELS).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for mine, other in ((ours.scale, theirs.weight), (ours.shift, theirs.bias)):
            mine.copy_(torch.randn(CHANNELS, dtype=torch.float64, generator=generator))
            other.copy_(mine)
    return ours, theirs


def sequence(length: int, batch: int, *space: int) -> Tensor:
    x = torch.randn(length, batch, CHANNELS, *space, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return 3 * x + 2


def flat(x: Tensor) -> Tensor:
    """(T, B, C, ...) as (N, C), the way torch's layer counts."""
    return x.movedim(2, -1).reshape(-1, CHANNELS)


@pytest.mark.parametrize("space", [(), (3, 5)])
def test_equals_torch_where_all_is_valid(space: tuple[int, ...]) -> None:
    ours, theirs = pair()
    for step in range(3):
        x = (sequence(6, 2, *space) + step).requires_grad_()
        copy = x.detach().clone().requires_grad_()
        mask = torch.ones(6, 2, 1, *space, dtype=torch.bool)
        found, expected = ours(x, mask, 2), theirs(flat(copy))
        torch.testing.assert_close(flat(found), expected, rtol=0, atol=1e-12)
        found.pow(3).sum().backward()
        expected.pow(3).sum().backward()
        assert x.grad is not None
        assert copy.grad is not None
        torch.testing.assert_close(x.grad, copy.grad, rtol=0, atol=1e-9)
    torch.testing.assert_close(ours.scale.grad, theirs.weight.grad, rtol=0, atol=1e-9)
    torch.testing.assert_close(ours.running_mean, theirs.running_mean, rtol=0, atol=1e-12)
    torch.testing.assert_close(ours.running_variance, theirs.running_var, rtol=0, atol=1e-12)

    ours.eval()
    theirs.eval()
    torch.testing.assert_close(flat(ours(x, mask, 2)), theirs(flat(x)), rtol=0, atol=1e-12)


def test_padding_changes_nothing() -> None:
    alone, padded = pair()[0], pair()[0]
    x = sequence(6, 2)
    mask = torch.rand(6, 2, 1, generator=torch.Generator().manual_seed(2)) > 0.4
    longer = torch.cat([torch.where(mask, x, torch.full_like(x, -50.0)), torch.full_like(x[:3], 1e6)])
    longer_mask = torch.cat([mask, torch.zeros_like(mask[:3])])
    expected, found = alone(x, mask, 2), padded(longer, longer_mask, 2)
    valid = mask.expand_as(x)
    torch.testing.assert_close(found[:6][valid], expected[valid], rtol=0, atol=1e-12)
    torch.testing.assert_close(padded.running_mean, alone.running_mean, rtol=0, atol=1e-12)
    torch.testing.assert_close(padded.running_variance, alone.running_variance, rtol=0, atol=1e-12)


def test_statistics_are_those_of_the_valid_observations() -> None:
    """The valid ones taken out and given to torch's layer give the same."""
    ours, theirs = pair()
    x = sequence(5, 3)
    mask = torch.rand(5, 3, 1, generator=torch.Generator().manual_seed(3)) > 0.4
    chosen = mask.squeeze(2)
    torch.testing.assert_close(ours(x, mask, 2)[chosen], theirs(x[chosen]), rtol=0, atol=1e-12)
    torch.testing.assert_close(ours.running_variance, theirs.running_var, rtol=0, atol=1e-12)


def test_one_observation_does_not_divide_by_zero() -> None:
    ours, _ = pair()
    mask = torch.zeros(2, 1, 1, dtype=torch.bool)
    mask[0] = True
    assert bool(ours(sequence(2, 1), mask, 2).isfinite().all())
    assert bool(ours.running_variance.isfinite().all())
