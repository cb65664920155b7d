"""Masked series as sequences of observations, and what is pooled over them."""

from __future__ import annotations

import torch

from cropstar.models.encoding import masked_max, masked_mean, observe
from tests.models.networks.building import BANDS, inputs


def test_observations_keep_their_order() -> None:
    x, valid, days = inputs()
    valid[2] = False
    observed = observe(x, valid, days)
    assert observed.present.sum(dim=1).tolist() == valid.sum(dim=1).tolist()
    assert observed.values.shape == (3, int(valid.sum(dim=1).max()), BANDS)
    for sample in range(3):
        assert torch.equal(observed.values[sample][observed.present[sample]], x[sample][valid[sample]])
        assert torch.equal(observed.days[sample][observed.present[sample]], days[sample][valid[sample]])
    assert not observed.values[~observed.present].any()


def test_a_batch_without_any_observation_keeps_one_blank() -> None:
    x, valid, days = inputs()
    observed = observe(torch.full_like(x, torch.nan), torch.zeros_like(valid), days)
    assert observed.values.shape == (3, 1, BANDS)
    assert not observed.values.any()
    assert observed.counts.tolist() == [0, 0, 0]


def test_pools_read_observations_alone() -> None:
    features = torch.tensor([[[-1.0, -3.0, 7.0]], [[-2.0, 5.0, 5.0]], [[4.0, 4.0, 4.0]]])
    mask = torch.tensor([[[True, True, False]], [[True, False, False]], [[False, False, False]]])
    assert masked_mean(features, mask).tolist() == [[-2.0], [-2.0], [0.0]]
    assert masked_max(features, mask).tolist() == [[-1.0], [-2.0], [0.0]]
