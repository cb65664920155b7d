"""What a model costs: products by formula, what is measured once, and facts that are those of the model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from cropstar.config import ModelConfig
from cropstar.errors import ResourceError, UsageError
from cropstar.models.contract import NETWORKS, Shape
from cropstar.models.description import ModelFacts, describe, layers_of, name_of, parts_of
from cropstar.models.zoo import build_model, known_models

SHAPE = Shape(bands=4, classes=18, length=8)  # as long as layers are wide: axes must not be mixed up
MEMBERS = [*known_models(), "lstm_forget+star", "bigru", "biconvstar"]


def a_config(name: str, **changes: Any) -> ModelConfig:
    return ModelConfig.model_validate({"name": name, "layers": 2, "hidden": 8, "day_encoding": "none", **changes})


def facts_of(name: str, shape: Shape = SHAPE, **changes: Any) -> ModelFacts:
    return describe(a_config(name, **changes), shape)


# Products with the input and with the state, of each kind of cell.
@pytest.mark.parametrize(
    ("cell", "from_input", "from_state"),
    [("star", 2, 1), ("lstm", 4, 4), ("gru", 3, 3), ("mingru", 2, 0)],
)
@pytest.mark.parametrize("spatial", [False, True])
@pytest.mark.parametrize(("bands", "hidden", "layers"), [(4, 32, 3), (13, 7, 1)])
def test_products_of_recurrent_models_by_hand(
    cell: str, from_input: int, from_state: int, spatial: bool, bands: int, hidden: int, layers: int
) -> None:
    taps, dates, classes = 9 if spatial else 1, 11, 5
    facts = facts_of("conv" * spatial + cell, Shape(bands, classes, dates), hidden=hidden, layers=layers)
    first = taps * (from_input * bands * hidden + from_state * hidden**2)
    deeper = taps * (from_input + from_state) * hidden**2
    head = 9 * (hidden * 64 + 64 * classes) if spatial else hidden * classes
    assert [part.macs for part in facts.parts] == [dates * first, *[dates * deeper] * (layers - 1), head]
    assert [part.once for part in facts.parts] == [*[False] * layers, True]
    assert facts.macs_per_date == first + (layers - 1) * deeper
    assert facts.macs_once == head
    assert facts.macs_per_season == dates * facts.macs_per_date + head


@pytest.mark.parametrize("dates", [2, 9])
def test_products_of_attention_by_hand(dates: int) -> None:
    bands, hidden, classes = 4, 16, 18
    facts = facts_of("transformer", Shape(bands, classes, dates), hidden=hidden, heads=2)
    attention = 4 * hidden**2 * dates + 2 * dates**2 * hidden  # four projections; Q K^T and A V
    layer = attention + 2 * 4 * hidden**2 * dates
    macs = {part.name: part.macs for part in facts.parts}
    assert macs["layer 1"] == macs["layer 2"] == layer
    assert macs["embed"] == bands * hidden * dates
    assert facts.macs_once == hidden * classes
    assert facts.macs_per_season == 2 * layer + macs["embed"] + facts.macs_once


def test_products_between_layers_are_not_forgotten() -> None:
    """TempCNN stretches its features by a product that is no layer's: dates x segments x hidden."""
    facts = facts_of("tempcnn")
    (between,) = (part for part in facts.parts if part.name == "between")
    assert between.macs == SHAPE.length * SHAPE.length * 8
    assert facts.macs_once == 8 * SHAPE.length * 32 + 32 * SHAPE.classes


@pytest.mark.parametrize("name", MEMBERS)
def test_a_whole_season_of_the_real_model_costs_what_was_said(name: str) -> None:
    """Counted on weights that were really drawn, over all dates and several pixels."""
    facts = facts_of(name)
    model = build_model(a_config(name), SHAPE).eval()
    space = (3, 2) if model.spatial else ()
    x, days = torch.randn(1, SHAPE.length, 4, *space), torch.arange(SHAPE.length).unsqueeze(0)
    with FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel([SDPBackend.MATH]):
        model(x, torch.ones(1, SHAPE.length, *space, dtype=torch.bool), days)
    assert facts.macs_per_season is not None
    assert counter.get_total_flops() == 2 * facts.macs_per_season * (6 if model.spatial else 1)
    assert facts.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert facts.parameters == sum(part.parameters for part in facts.parts)
    assert facts.macs_per_season == sum(part.macs for part in facts.parts)
    assert facts.radius == model.radius(SHAPE.length)
    assert (facts.reads, facts.streams) == ("images" if model.spatial else "series", model.streaming)
    assert (facts.state_bytes is None) is not facts.streams
    assert len(facts.description) > 10
    assert "\n" not in facts.description
    assert "`" not in facts.description
    assert all(text.count("\n") > 3 for text in facts.documentation)
    assert len(facts.documentation) == (2 if "+" in name else 1)
    assert facts.parts[0].inputs == 4
    last = [part for part in facts.parts if part.name in ("head", "scores")][-1]
    assert last.outputs == 18
    assert all(part.inputs and part.outputs for part in facts.parts if part.name != "between")


@pytest.mark.parametrize(
    ("name", "published"),
    [("convstar", 124_000), ("convlstm", 292_000), ("convgru", 227_000), ("convlstm_forget", 161_000)],
)
def test_the_counts_of_the_paper(name: str, published: int) -> None:
    facts = facts_of(name, layers=4, hidden=32)
    assert facts.parameters == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize(
    ("name", "changes", "floats"),
    [
        ("star", {}, 2 * 8),
        ("convlstm", {}, 2 * 2 * 8),
        ("lstm_forget+star", {}, 2 * 8 + 8),
        ("star", {"revisit": 5.0}, 2 * (8 + 1)),  # and the day of the last valid date
        ("star", {"pool": "mean"}, 2 * 8 + 8 + 1),  # and sum and count
    ],
)
def test_the_state_of_a_pixel(name: str, changes: dict[str, Any], floats: int) -> None:
    assert facts_of(name, **changes).state_bytes == 4 * floats


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("star", {"variant", "pool", "stem", "normalise", "revisit", "memory", "hierarchy"}),
        ("biconvgru", {"variant", "pool", "stem", "normalise", "memory", "head", "hierarchy"}),
        # One cell of two follows the days: none does.
        ("lstm_forget+star", {"variant", "pool", "stem", "normalise", "memory", "hierarchy"}),
        ("tcn", {"pool", "kernel", "hierarchy"}),
        ("ltae", {"heads", "hierarchy"}),
        ("rf", {"trees", "leaf"}),
    ],
)
def test_settings_are_those_that_the_model_has(name: str, expected: set[str]) -> None:
    facts = facts_of(name)
    assert {option.key for option in facts.options} == expected
    assert all(option.meaning for option in facts.options)
    if name == "lstm_forget+star":
        assert facts.options[0].meaning == "one of paper, janet"


def test_a_forest_has_no_products_to_count() -> None:
    facts = facts_of("rf")
    assert (facts.parameters, facts.macs_per_date, facts.macs_once, facts.macs_per_season) == (None,) * 4
    assert (facts.parts, facts.radius, facts.state_bytes, facts.reads) == ((), 0, None, "series")
    assert facts.description.startswith("a random forest")


@pytest.mark.parametrize(("name", "width", "taps"), [("star", 8, 1), ("convstar", 64, 9), ("tcn", 8, 1)])
def test_levels_cost_one_head_each(name: str, width: int, taps: int) -> None:
    """Three classes, two of them below one of two nodes: two coarse nodes and two siblings are told apart."""
    shape = Shape(4, 3, 8, lineages=((0, 0), (0, 1), (1, 2)))
    flat, levels = facts_of(name, shape).parts[-1], facts_of(name, shape, hierarchy=True).parts[-1]
    assert levels.macs - flat.macs == taps * width
    assert levels.parameters - flat.parameters == taps * width + 1
    assert levels.outputs == flat.outputs == 3


def test_looking_draws_no_random_numbers() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    facts_of("convstar")
    assert torch.equal(before, torch.get_rng_state())


def test_a_model_that_cannot_be() -> None:
    with pytest.raises(UsageError, match="did you mean 'convstar'"):
        facts_of("convstr")
    with pytest.raises(UsageError, match="no variant"):
        facts_of("gru", variant="janet")
    with pytest.raises(ResourceError, match="parameters"):  # a hundred gigabytes, of which none is taken
        facts_of("convlstm", layers=64, hidden=4096)


def test_parts_by_name() -> None:
    assert [name_of(path) for path in ("stack.cells.0", "stack.backwards.11", "blocks.2", "dense.0", "scores")] == [
        "layer 1",
        "layer 12 backwards",
        "block 3",
        "dense 1",
        "scores",
    ]
    for name in MEMBERS:
        with torch.device("meta"):
            model = build_model(a_config(name, layers=3), SHAPE)
        inside = {id(each) for part in parts_of(model).values() for each in part.parameters()}
        assert len(inside) == len(list(model.parameters())), name
        layers = layers_of(model)
        assert not {"head", "scores"} & set(layers)
        if name not in NETWORKS:
            assert len(layers) == (6 if name.startswith("bi") else 3)
