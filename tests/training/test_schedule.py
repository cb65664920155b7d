"""The learning rate is a plain function of the step."""

from __future__ import annotations

from itertools import pairwise

import pytest

from cropstar.config import OptimiserConfig
from cropstar.training.optimisation import learning_rate


def test_constant_after_warmup() -> None:
    config = OptimiserConfig(learning_rate=0.01, schedule="constant", warmup=4)
    rates = [learning_rate(config, step, 100) for step in range(6)]
    assert rates == pytest.approx([0.0025, 0.005, 0.0075, 0.01, 0.01, 0.01])


def test_polynomial_falls_to_zero() -> None:
    config = OptimiserConfig(learning_rate=0.01, schedule="polynomial", warmup=0)
    rates = [learning_rate(config, step, 50) for step in range(50)]
    assert rates[0] == pytest.approx(0.01)
    assert all(earlier > later for earlier, later in pairwise(rates))
    assert 0 < rates[-1] < 0.0005


def test_cosine_is_half_at_the_middle_and_falls_to_zero() -> None:
    config = OptimiserConfig(learning_rate=0.01, schedule="cosine", warmup=0)
    rates = [learning_rate(config, step, 50) for step in range(50)]
    assert rates[0] == pytest.approx(0.01)
    assert rates[25] == pytest.approx(0.005)
    assert all(earlier > later for earlier, later in pairwise(rates))
    assert 0 < rates[-1] < 0.0001
