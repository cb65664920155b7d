"""Batch normalisation and means by bins of the season: kernels against the formulas in double precision."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cropstar.models.normalisation import MaskedBatchNorm
from cropstar.models.pooling import SeasonState
from cropstar.native import available, why_not
from cropstar.native.summaries import season_means

pytestmark = pytest.mark.skipif(not available(), reason=why_not())


def norm_of(channels: int, *, by_kernel: bool) -> MaskedBatchNorm:
    torch.manual_seed(1)
    norm = MaskedBatchNorm(channels).train()
    norm.by_kernel = by_kernel
    with torch.no_grad():
        norm.scale.uniform_(0.5, 2)
        norm.shift.normal_()
    return norm


def run_norm(norm: MaskedBatchNorm, x: Tensor, mask: Tensor, axis: int, weight: Tensor) -> list[Tensor]:
    """The result, gradients, and what it learnt."""
    x = x.clone().requires_grad_()
    y = norm(x, mask, axis)
    (y * weight).sum().backward()
    assert x.grad is not None
    assert norm.scale.grad is not None
    assert norm.shift.grad is not None
    return [y.detach(), x.grad, norm.scale.grad, norm.shift.grad, norm.running_mean, norm.running_variance]


@pytest.mark.parametrize("share", [0.0, 0.02, 0.7, 1.0])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 7), (24, 32, 64), (40, 41, 33), (3, 2, 5, 6, 7)])
def test_normalisation(shape: tuple[int, ...], share: float) -> None:
    torch.manual_seed(0)
    x, axis = torch.randn(shape) * 3 + 100, 2
    mask = torch.rand((*shape[:2], 1, *shape[3:])) < share
    weight = torch.randn(shape)
    found = run_norm(norm_of(shape[axis], by_kernel=True), x, mask, axis, weight)
    reference = norm_of(shape[axis], by_kernel=False).double()
    expected = run_norm(reference, x.double(), mask, axis, weight.double())
    # Without an observation, or with one, nothing spreads, and epsilon alone divides: some 300 times what it was.
    loose = 100 if mask.sum() < 2 else 1
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(
            one.double(), other, rtol=1e-4 * loose, atol=1e-4 * loose * float(other.abs().max() + 1e-9)
        )


def test_one_constant_channel() -> None:
    x = torch.full((4, 6, 3), 7.0)
    y = norm_of(3, by_kernel=True)(x, torch.ones(4, 6, 1, dtype=torch.bool), 2)
    torch.testing.assert_close(y, norm_of(3, by_kernel=True).shift.expand_as(y))


def test_threads_change_no_bit_of_normalisation() -> None:
    torch.manual_seed(0)
    x, mask, weight = torch.randn(30, 200, 64), torch.rand(30, 200, 1) < 0.8, torch.randn(30, 200, 64)
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(run_norm(norm_of(64, by_kernel=True), x, mask, 2, weight))
    finally:
        torch.set_num_threads(before)
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(("length", "batch", "hidden", "bins"), [(1, 1, 1, 1), (24, 7, 10, 12), (9, 33, 64, 3)])
def test_means_by_bins(length: int, batch: int, hidden: int, bins: int, share: float) -> None:
    torch.manual_seed(0)
    outputs, valid = torch.randn(length, batch, hidden), torch.rand(batch, length) < share
    days = 19_800 + torch.randint(0, 200, (batch, length)).sort(dim=1).values
    weight = torch.randn(batch, bins * hidden)
    results = []
    for by_kernel in (True, False):
        pool = SeasonState(60, 180, bins)
        pool.by_kernel = by_kernel
        given = (outputs if by_kernel else outputs.double()).clone().requires_grad_()
        features = pool.features(given, given[-1], valid, days)
        (features * weight).sum().backward()
        assert given.grad is not None
        results.append((features.detach().double(), given.grad.double()))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_bins_that_are_not_there() -> None:
    valid, bins = torch.ones(2, 3, dtype=torch.bool), torch.full((2, 3), 4, dtype=torch.int32)
    with pytest.raises(ValueError, match="bins are not int32 from 0 to 3"):
        season_means(torch.zeros(2, 3, 5), bins, valid, 4)
