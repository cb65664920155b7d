"""Heads by level: leaves against a walk through the tree, and levels that agree by construction."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch import Tensor

from cropstar.config import ModelConfig
from cropstar.errors import ArtifactError, UsageError
from cropstar.models.contract import NETWORKS, Shape
from cropstar.models.heads import HierarchicalScores, level_log_probabilities, lineage_problem
from cropstar.models.zoo import build_model, restore_model, weights_of

Lineages = tuple[tuple[int, ...], ...]
CROPS: Lineages = ((0, 0, 0), (1, 2, 1), (0, 1, 2), (0, 0, 3), (1, 2, 4), (2, 3, 5))
MEMBERS = ["star", "convgru", "bistar", "biconvstar", "lstm_forget+star", *sorted(NETWORKS)]


@some.composite
def trees(draw: some.DrawFn) -> Lineages:
    """From the leaves up: nodes of a level are dealt to fewer nodes above, in any order, some of them only children."""
    classes = draw(some.integers(2, 9))
    lineages: list[tuple[int, ...]] = [(number,) for number in range(classes)]
    for _ in range(draw(some.integers(0, 3))):
        nodes = max(lineage[0] for lineage in lineages) + 1
        raw = draw(some.lists(some.integers(0, nodes - 1), min_size=nodes, max_size=nodes))
        numbers = {parent: number for number, parent in enumerate(dict.fromkeys(raw))}
        lineages = [(numbers[raw[lineage[0]]], *lineage) for lineage in lineages]
    return tuple(lineages)


def walk(logits: dict[tuple[int, int], float], lineages: Lineages) -> list[float]:
    """log p of each class by the chain rule, a node and its siblings at a time; logits by (level, node)."""
    scores = []
    for lineage in lineages:
        total = 0.0
        for level, node in enumerate(lineage):
            siblings = {other[level] for other in lineages if other[:level] == lineage[:level]}
            total += logits[level, node] - math.log(sum(math.exp(logits[level, other]) for other in siblings))
        scores.append(total)
    return scores


def logits_of(module: HierarchicalScores, output: Tensor, lineages: Lineages) -> dict[tuple[int, int], float]:
    """What the product says of each node that has siblings, in the order of levels, parents and nodes."""
    found = {}
    channels = iter(output.tolist())
    for level in range(len(lineages[0])):
        edges = sorted({(lineage[level - 1] if level else 0, lineage[level]) for lineage in lineages})
        for parent, node in edges:
            alone = sum(edge[0] == parent for edge in edges) == 1
            found[level, node] = 0.7 if alone else next(channels)  # of an only child: anything
    assert next(channels, None) is None
    return found


@settings(max_examples=60, deadline=None)
@given(trees(), some.integers(0, 1000))
def test_classes_by_the_chain_rule(lineages: Lineages, seed: int) -> None:
    torch.manual_seed(seed)
    module = HierarchicalScores(3, lineages, spatial=False).double()
    features = 5 * torch.randn(4, 3, dtype=torch.float64)
    scores, raw = module(features), module.product(features)
    for sample, output in zip(scores, raw, strict=True):
        expected = walk(logits_of(module, output, lineages), lineages)
        torch.testing.assert_close(sample, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-10)
    torch.testing.assert_close(scores.exp().sum(dim=1), torch.ones(4, dtype=torch.float64))


@settings(max_examples=60, deadline=None)
@given(trees(), some.integers(0, 1000))
def test_a_level_is_the_sum_of_its_classes(lineages: Lineages, seed: int) -> None:
    """Against a plain sum, of any scores; and each level's sums are those of the level below."""
    torch.manual_seed(seed)
    scores = 3 * torch.randn(5, len(lineages), dtype=torch.float64)
    probabilities = scores.softmax(dim=1)
    for level in range(len(lineages[0])):
        found = level_log_probabilities(scores, lineages, level)
        nodes = torch.tensor([lineage[level] for lineage in lineages])
        expected = torch.zeros(5, int(nodes.max()) + 1, dtype=torch.float64).index_add_(1, nodes, probabilities)
        torch.testing.assert_close(found.exp(), expected)


def test_levels_of_unlikely_classes_keep_their_logarithms() -> None:
    """As float32 cannot hold e to the -200 itself."""
    scores = torch.tensor([[0.0, -200.0, -200.0]])
    found = level_log_probabilities(scores, ((0, 0), (1, 1), (1, 2)), 0)
    torch.testing.assert_close(found, torch.tensor([[0.0, -200.0 + math.log(2)]]))


def test_one_level_is_a_plain_softmax() -> None:
    module = HierarchicalScores(4, ((0,), (1,), (2,)), spatial=False)
    features = torch.randn(6, 4)
    torch.testing.assert_close(module(features), module.product(features).log_softmax(dim=1))


@pytest.mark.parametrize("spatial", [False, True])
def test_gradients(spatial: bool) -> None:
    torch.manual_seed(0)
    module = HierarchicalScores(2, CROPS, spatial=spatial).double()
    features = torch.randn(2, 2, *((3, 2) if spatial else ()), dtype=torch.float64, requires_grad=True)
    weights = [parameter.detach().clone().requires_grad_() for parameter in module.parameters()]
    names = [name for name, _ in module.named_parameters()]

    def scores(x: Tensor, *given: Tensor) -> Tensor:
        found: Tensor = torch.func.functional_call(module, dict(zip(names, given, strict=True)), (x,))
        return found

    assert torch.autograd.gradcheck(scores, (features, *weights))


def make(name: str, lineages: Lineages = CROPS, **settings: Any) -> Any:
    torch.manual_seed(0)
    config = ModelConfig.model_validate({"name": name, "layers": 2, "hidden": 8, "hierarchy": True, **settings})
    return build_model(config, Shape(3, len(lineages), 5, lineages=lineages)).eval()


def season(spatial: bool) -> tuple[Tensor, Tensor, Tensor]:
    space = (9, 8) if spatial else ()
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 5, 3, *space, generator=generator)
    return x, torch.rand(2, 5, *space, generator=generator) > 0.3, 19_000 + 9 * torch.arange(5).expand(2, 5)


@pytest.mark.parametrize("name", MEMBERS)
def test_every_network_gives_probabilities_of_classes(name: str) -> None:
    model = make(name)
    scores = model(*season(model.spatial))
    assert scores.shape == (2, 6, *((9, 8) if model.spatial else ()))
    torch.testing.assert_close(scores.exp().sum(dim=1), torch.ones_like(scores[:, 0]))


def test_scores_by_date_of_a_network() -> None:
    model = make("tcn")
    x, valid, days = season(spatial=False)
    dated = model.by_date(x, valid, days)
    torch.testing.assert_close(dated[:, -1], model(x, valid, days))
    torch.testing.assert_close(dated.exp().sum(dim=2), torch.ones(2, 5))


def test_the_head_of_a_clip_has_levels_as_well() -> None:
    scores = make("convstar", head="video")(*season(spatial=True))
    torch.testing.assert_close(scores.exp().sum(dim=1), torch.ones(2))


def test_only_children_have_no_weights() -> None:
    model = make("star")
    # Three coarse nodes; two below the first of them, one below each other; two classes each below two of four.
    assert model.head.scores.product.out_features == 3 + 2 + 4


@pytest.mark.parametrize("name", ["star", "convstar"])
def test_through_a_model_file(name: str) -> None:
    """As JSON keeps it: tuples come back as lists."""
    model = make(name)
    config = ModelConfig(name=name, layers=2, hidden=8, hierarchy=True).model_dump(mode="json")
    shape = json.loads(json.dumps(Shape(3, 6, 5, lineages=CROPS).to_json()))
    again = restore_model(config, shape, weights_of(model), Path("model.safetensors"))
    given_season = season(model.spatial)
    assert torch.equal(again(*given_season), model(*given_season))


@pytest.mark.parametrize(
    "lineages",
    [
        [[0, 0], [0, 1]],  # of fewer classes
        [[0, 0], [0, 1], [2, 2]],  # a gap
        [[0, 0], [1, 0], [1, 2]],  # two parents, and a class twice
        [[0, 1], [0, 0], [0, 2]],  # classes in another order
        [[0, 0], [1], [0, 2]],
        [[], [], []],
        [["a", "b"]] * 3,
        7,
    ],
)
def test_what_is_no_tree_is_refused(lineages: Any) -> None:
    config = ModelConfig(name="star", layers=1, hidden=2, hierarchy=True).model_dump(mode="json")
    shape = {"bands": 3, "classes": 3, "length": 5, "lineages": lineages}
    with pytest.raises((ArtifactError, UsageError), match="cannot be used") as refused:
        restore_model(config, shape, {}, Path("model.safetensors"))
    assert "\n" not in str(refused.value)


def test_a_tree_without_a_problem() -> None:
    assert lineage_problem(CROPS, 6) is None
    assert lineage_problem(((0, 0), (1, 1), (1, 1)), 3) is not None  # classes 1 and 2 are the same


def test_models_that_cannot() -> None:
    with pytest.raises(UsageError, match=r"'rf' does not use model\.hierarchy"):
        make("rf")
    for lineages in (None, ((0,), (1,))):
        with pytest.raises(UsageError, match="the classes have no levels"):
            build_model(ModelConfig(name="star", hierarchy=True), Shape(3, 2, 5, lineages=lineages))
    with pytest.raises(UsageError, match="there is only one class"):
        make("star", ((0, 0),))


def test_levels_of_the_classes_change_nothing_where_they_are_not_asked_for() -> None:
    torch.manual_seed(0)
    plain = build_model(ModelConfig(name="star", layers=1, hidden=4), Shape(3, 6, 5))
    same = make("star", hierarchy=False, layers=1, hidden=4)
    assert weights_of(plain).keys() == weights_of(same).keys()
    assert torch.equal(plain.eval()(*season(spatial=False)), same(*season(spatial=False)))
