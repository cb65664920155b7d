"""The loss and the learning rate: weights, focus, smoothing and levels by hand, schedules to the letter."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from torch import nn

from cropstar.config import LossConfig, OptimiserConfig
from cropstar.training.losses import CrossEntropy, SoftDice, class_weights
from cropstar.training.optimisation import learning_rate


def test_plain_cross_entropy_is_torchs() -> None:
    scores, labels = torch.randn(20, 4), torch.randint(0, 4, (20,))
    assert torch.equal(CrossEntropy(LossConfig(), None)(scores, labels), nn.functional.cross_entropy(scores, labels))


def naive_dice(scores: torch.Tensor, labels: torch.Tensor, smoothing: float) -> float:
    """By loops: the classes that occur among the labels, each counting the same."""
    classes, found = scores.shape[1], []
    likely = [[math.exp(one) / sum(math.exp(other) for other in row) for one in row] for row in scores.tolist()]
    for crop in sorted(set(labels.tolist())):
        overlap = said = true = 0.0
        for row, label in zip(likely, labels.tolist(), strict=True):
            wanted = (1 - smoothing) * (label == crop) + smoothing / classes
            overlap, said, true = overlap + row[crop] * wanted, said + row[crop], true + wanted
        found.append(2 * overlap / (said + true))
    return 1 - sum(found) / len(found)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_dice_is_that_of_the_naive_loops(smoothing: float) -> None:
    generator = torch.Generator().manual_seed(3)
    scores = 3 * torch.randn(40, 5, dtype=torch.float64, generator=generator)
    labels = torch.tensor([0, 1, 3, 4])[torch.randint(0, 4, (40,), generator=generator)]  # class 2 does not occur
    loss = SoftDice(smoothing)
    assert float(loss(scores, labels)) == pytest.approx(naive_dice(scores, labels, smoothing), rel=1e-12)
    pieces = [loss.sums(scores[rows], labels[rows]) for rows in (slice(0, 7), slice(7, 40))]
    assert float(loss.combine(pieces[0] + pieces[1])) == pytest.approx(float(loss(scores, labels)), rel=1e-12)
    right = 50 * nn.functional.one_hot(labels, 5).double()
    assert float(SoftDice()(right, labels)) == pytest.approx(0, abs=1e-9)
    assert torch.autograd.gradcheck(lambda given: loss(given, labels), scores.requires_grad_())


@pytest.mark.parametrize("name", ["balance", "focus", "levels"])
def test_dice_refuses_what_it_has_no_use_for(name: str) -> None:
    with pytest.raises(ValueError, match=f"dice does not use {name}"):
        LossConfig.model_validate({"name": "dice", name: 0.5})


def test_weights_make_classes_equal() -> None:
    counts = np.array([100, 10, 0, 1])
    assert class_weights(counts, LossConfig()) is None
    whole = class_weights(counts, LossConfig(balance=1.0))
    assert whole is not None
    assert (whole.numpy() * counts)[[0, 1, 3]] == pytest.approx(37.0)
    assert float(whole[2]) == 0
    half = class_weights(counts, LossConfig(balance=0.5))
    assert half is not None
    assert half.square().numpy() == pytest.approx(whole.numpy())


@pytest.mark.parametrize("weights", [None, torch.tensor([1.0, 3.0, 0.5])])
def test_the_focal_loss_by_hand(weights: torch.Tensor | None) -> None:
    scores, labels = torch.randn(15, 3, dtype=torch.float64), torch.randint(0, 3, (15,))
    found = CrossEntropy(LossConfig(focus=2.0), weights if weights is None else weights.double())(scores, labels)
    terms, total = [], 0.0
    for row, label in zip(scores, labels.tolist(), strict=True):
        probability = math.exp(row[label]) / sum(math.exp(value) for value in row)
        weight = 1.0 if weights is None else float(weights[label])
        terms.append(-weight * (1 - probability) ** 2 * math.log(probability))
        total += weight
    assert float(found) == pytest.approx(sum(terms) / total)


LINEAGES = ((0, 0, 0), (0, 1, 1), (1, 2, 2), (0, 1, 3), (1, 2, 4))  # two above three above five


@given(
    some.lists(some.integers(1, 9), min_size=1, max_size=5),
    some.sampled_from([0.0, 2.0]),
    some.sampled_from([0.0, 0.1]),
    some.sampled_from([0.0, 0.5]),
    some.booleans(),
)
def test_a_batch_in_pieces_has_the_same_mean(
    sizes: list[int], focus: float, smoothing: float, levels: float, weighted: bool
) -> None:
    generator = torch.Generator().manual_seed(sum(sizes))
    scores = torch.randn(sum(sizes), 5, dtype=torch.float64, generator=generator)
    labels = torch.randint(0, 5, (sum(sizes),), generator=generator)
    weights = torch.tensor([1.0, 0.2, 3.0, 0.7, 2.0], dtype=torch.float64) if weighted else None
    loss = CrossEntropy(LossConfig(focus=focus, smoothing=smoothing, levels=levels), weights, LINEAGES)
    pieces = list(zip(scores.split(sizes), labels.split(sizes), strict=True))
    total = sum(loss.sum(*piece) for piece in pieces) / sum(loss.weight(own) for _, own in pieces)
    assert float(total) == pytest.approx(float(loss(scores, labels)), rel=1e-12)


def test_smoothing_is_torchs() -> None:
    scores, labels = torch.randn(20, 4, dtype=torch.float64), torch.randint(0, 4, (20,))
    found = CrossEntropy(LossConfig(smoothing=0.2), None)(scores, labels)
    assert float(found) == pytest.approx(float(nn.functional.cross_entropy(scores, labels, label_smoothing=0.2)))


@pytest.mark.parametrize("weights", [None, torch.tensor([1.0, 0.2, 3.0, 0.7, 2.0], dtype=torch.float64)])
def test_levels_by_hand(weights: torch.Tensor | None) -> None:
    scores, labels = torch.randn(30, 5, dtype=torch.float64), torch.randint(0, 5, (30,))
    found = CrossEntropy(LossConfig(levels=0.6), weights, LINEAGES)(scores, labels)
    total = weight = 0.0
    for row, label in zip(scores.softmax(dim=1).tolist(), labels.tolist(), strict=True):
        own = 1.0 if weights is None else float(weights[label])
        above = [
            -math.log(sum(row[leaf] for leaf in range(5) if LINEAGES[leaf][level] == LINEAGES[label][level]))
            for level in (0, 1)
        ]
        total += own * (-math.log(row[label]) + 0.6 * sum(above) / 2)
        weight += own
    assert float(found) == pytest.approx(total / weight)


def test_levels_of_a_flat_table_weigh_nothing() -> None:
    scores, labels = torch.randn(20, 3), torch.randint(0, 3, (20,))
    plain = CrossEntropy(LossConfig(), None)(scores, labels)
    for lineages in ((), ((0,), (1,), (2,))):
        assert float(CrossEntropy(LossConfig(levels=1.0), None, lineages)(scores, labels)) == pytest.approx(
            float(plain)
        )


def test_schedules() -> None:
    def rates(schedule: str, steps: list[int], history: list[float] | None = None) -> list[float]:
        config = OptimiserConfig.model_validate({"learning_rate": 1.0, "schedule": schedule, "warmup": 4, "plateau": 2})
        rows = [{"validation": {"macro_f1": score}} for score in history or []]
        return [learning_rate(config, step, 100, rows) for step in steps]

    assert rates("constant", [0, 1, 3, 4, 99]) == [0.25, 0.5, 1.0, 1.0, 1.0]
    assert rates("noam", [0, 3, 15, 63]) == [0.25, 1.0, 0.5, 0.25]
    assert rates("polynomial", [50]) == pytest.approx([0.5**0.9])
    assert rates("plateau", [50], [0.1, 0.2, 0.2]) == [1.0]
    assert rates("plateau", [50], [0.1, 0.2, 0.2, 0.1]) == [0.5]
    assert rates("plateau", [50], [0.1, 0.2, 0.2, 0.1, 0.3, 0.3, 0.3]) == [0.25]
