"""The contract of a model, for every member of the zoo, as series and as image model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch import Tensor

from cropstar.config import ModelConfig
from cropstar.models.cells.cell import CELLS
from cropstar.models.classifier import RecurrentClassifier
from cropstar.models.contract import Shape
from cropstar.models.normalisation import MaskedBatchNorm
from cropstar.models.pooling import SeasonState
from cropstar.models.stack import RecurrentStack
from cropstar.models.zoo import build_model
from tests.models.references import run_reference, run_steps

HIERARCHY = "/hierarchy"  # after a name: with a head for each level
MEMBERS = [
    *(prefix + cell for cell in sorted(CELLS) for prefix in ("", "conv")),
    *("lstm_forget+star", "convlstm+star"),
    *(f"star{HIERARCHY}", f"convstar{HIERARCHY}"),
    *(f"{prefix}star/{part}" for prefix in ("", "conv") for part in ("season", "stem", "whole")),
    "gru/whole",
]
PARTS: dict[str, dict[str, Any]] = {  # after a name: with these settings
    "hierarchy": {"hierarchy": True},
    "season": {"pool": "season", "bins": 3},
    "stem": {"stem": 2, "kernel": 3},
    "whole": {"stem": 1, "pool": "season", "bins": 4, "normalise": True},
}
LINEAGES = ((0, 0, 0), (1, 2, 1), (0, 1, 2), (0, 0, 3), (1, 2, 4), (2, 3, 5))  # of six classes
Inputs = tuple[Tensor, Tensor, Tensor]


def make(
    name: str, *, layers: int = 3, hidden: int = 5, bands: int = 4, day_encoding: str = "sincos"
) -> RecurrentClassifier:
    torch.manual_seed(0)
    plain, _, part = name.partition("/")
    config = ModelConfig.model_validate(
        {"name": plain, "layers": layers, "hidden": hidden, "day_encoding": day_encoding, **PARTS.get(part, {})}
    )
    model = build_model(config, Shape(bands, 6, 7, lineages=LINEAGES, season=(1, 60))).double()
    assert isinstance(model, RecurrentClassifier)
    with torch.no_grad():  # running statistics as training would leave them
        for module in model.modules():
            if isinstance(module, MaskedBatchNorm):
                module.running_mean.uniform_(-0.5, 0.5)
                module.running_variance.uniform_(0.5, 2)
                module.scale.uniform_(0.5, 1.5)
                module.shift.uniform_(-0.5, 0.5)
    return model.eval()


def inputs(model: RecurrentClassifier, *, batch: int = 2, length: int = 7, size: int = 6, bands: int = 4) -> Inputs:
    generator = torch.Generator().manual_seed(1)
    space = (size, size + 1) if model.spatial else ()
    x = torch.randn(batch, length, bands, *space, dtype=torch.float64, generator=generator)
    valid = torch.rand(batch, length, *space, generator=generator) > 0.3
    days = (19_000 + torch.arange(length) * 11).expand(batch, length)
    return x, valid, days


@pytest.mark.parametrize("name", MEMBERS)
@pytest.mark.parametrize(
    ("batch", "length", "size", "hidden", "layers"), [(2, 7, 6, 5, 3), (1, 1, 1, 1, 1), (1, 3, 2, 4, 2)]
)
def test_shapes_down_to_one(name: str, batch: int, length: int, size: int, hidden: int, layers: int) -> None:
    model = make(name, hidden=hidden, layers=layers)
    x, valid, days = inputs(model, batch=batch, length=length, size=size)
    expected = (batch, 6, size, size + 1) if model.spatial else (batch, 6)
    assert model(x, valid, days).shape == expected


@pytest.mark.parametrize("name", MEMBERS)
def test_forward_equals_repeated_step(name: str) -> None:
    model = make(name)
    given_inputs = inputs(model)
    torch.testing.assert_close(model(*given_inputs), run_steps(model, *given_inputs), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", MEMBERS)
def test_masked_date_leaves_the_state_untouched(name: str) -> None:
    model = make(name)
    x, valid, days = inputs(model)
    state = model.step(x[:, 0], valid[:, 0], days[:, 0], None)
    after = model.step(x[:, 1], torch.zeros_like(valid[:, 1]), days[:, 1], state)
    for before_parts, after_parts in zip(state, after, strict=True):
        for before, later in zip(before_parts, after_parts, strict=True):
            assert torch.equal(before, later)


@pytest.mark.parametrize("name", MEMBERS)
@pytest.mark.parametrize("rubbish", [0.0, 1e6, float("nan")])
def test_what_lies_under_the_mask_does_not_matter(name: str, rubbish: float) -> None:
    """Clouds, nodata and padding hold anything, and neither the pixel nor its neighbours may see it."""
    model = make(name)
    x, valid, days = inputs(model)
    spoilt = torch.where(valid.unsqueeze(2), x, torch.full_like(x, rubbish))
    assert torch.equal(model(x, valid, days), model(spoilt, valid, days))


@pytest.mark.parametrize("name", MEMBERS)
def test_padding_with_invalid_dates_never_changes_a_result(name: str) -> None:
    model = make(name)
    x, valid, days = inputs(model)
    padded = (
        torch.cat([x, torch.ones_like(x[:, :2])], dim=1),
        torch.cat([valid, torch.zeros_like(valid[:, :2])], dim=1),
        torch.cat([days, days[:, -1:], days[:, -1:]], dim=1),
    )
    torch.testing.assert_close(model(*padded), model(x, valid, days), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", MEMBERS)
def test_a_sample_does_not_depend_on_its_neighbours_in_the_batch(name: str) -> None:
    model = make(name)
    x, valid, days = inputs(model)
    torch.testing.assert_close(model(x, valid, days)[:1], model(x[:1], valid[:1], days[:1]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", MEMBERS)
def test_layers_have_their_own_parameters(name: str) -> None:
    model = make(name, layers=4)
    layers = model.stack.layers()
    addresses = [parameter.data_ptr() for layer in layers for parameter in layer.parameters()]
    assert len(set(addresses)) == len(addresses)
    before = [next(layer.parameters()).clone() for layer in layers]
    with torch.no_grad():
        next(layers[1].parameters()).add_(1.0)
    changed = [not torch.equal(old, next(layer.parameters())) for old, layer in zip(before, layers, strict=True)]
    assert changed == [False, True, False, False]


@pytest.mark.parametrize("name", MEMBERS)
def test_every_parameter_learns(name: str) -> None:
    model = make(name)
    model(*inputs(model)).square().sum().backward()
    still = [
        label for label, parameter in model.named_parameters() if parameter.grad is None or not parameter.grad.any()
    ]
    assert still == []


@pytest.mark.parametrize("name", MEMBERS)
def test_the_date_matters_only_where_it_is_encoded(name: str) -> None:
    for encoding, differs in (("none", False), ("sincos", True)):
        model = make(name, day_encoding=encoding)
        differs = differs or isinstance(model.pool, SeasonState)  # whose bins are those of the calendar
        x, valid, days = inputs(model)
        assert bool((model(x, valid, days) != model(x, valid, days + 90)).any()) is differs


@pytest.mark.parametrize("spatial", [False, True])
@pytest.mark.parametrize("name", sorted(CELLS))
@settings(max_examples=10, deadline=None)
@given(
    batch=some.integers(1, 3),
    length=some.integers(1, 6),
    channels=some.integers(1, 4),
    hidden=some.integers(1, 5),
    size=some.integers(1, 5),
    seed=some.integers(0, 1000),
)
def test_fast_path_equals_naive_reference_with_gradients(
    name: str, spatial: bool, batch: int, length: int, channels: int, hidden: int, size: int, seed: int
) -> None:
    torch.manual_seed(seed)
    cell = CELLS[name](channels, hidden, spatial=spatial).double()
    cell.initialise(length)
    stack = RecurrentStack([cell])
    space = (size, size + 1) if spatial else ()
    x = torch.randn(batch, length, channels, *space, dtype=torch.float64, requires_grad=True)
    valid = torch.rand(batch, length, *space) > 0.4
    weight = torch.randn(length, batch, hidden, *space, dtype=torch.float64)

    fast, state = stack(x, valid, torch.zeros(batch, length))
    naive, last = run_reference(cell, x, valid)
    torch.testing.assert_close(fast, naive, rtol=0, atol=1e-12)
    for quick, slow in zip(state[0], last, strict=True):
        torch.testing.assert_close(quick, slow, rtol=0, atol=1e-12)
    learnt = [x, *cell.parameters()]
    fast_gradients = torch.autograd.grad((fast * weight).sum(), learnt, allow_unused=True)
    naive_gradients = torch.autograd.grad((naive * weight).sum(), learnt, allow_unused=True)
    for quick, slow in zip(fast_gradients, naive_gradients, strict=True):
        torch.testing.assert_close(quick, slow, rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", [*(f"conv{cell}" for cell in sorted(CELLS)), "biconvgru", "convgru+star"])
@pytest.mark.parametrize(("layers", "length"), [(1, 1), (2, 3)])
def test_no_pixel_looks_further_than_the_radius(name: str, layers: int, length: int) -> None:
    """Windows with this margin give the map of one pass: a change outside must not reach the centre."""
    model = make(name, layers=layers, hidden=3, bands=2, day_encoding="none")
    radius = model.radius(length)
    middle = radius + 2
    x = torch.randn(1, length, 2, 2 * middle + 1, 2 * middle + 1, dtype=torch.float64, requires_grad=True)
    valid = torch.ones(1, length, *x.shape[-2:], dtype=torch.bool)
    model(x, valid, torch.zeros(1, length))[0, :, middle, middle].sum().backward()
    assert x.grad is not None
    reached = int((x.grad.abs().sum(dim=(0, 1, 2)).nonzero() - middle).abs().max())
    assert radius - 4 <= reached <= radius  # not much wider than needed either


@pytest.mark.parametrize("name", ["star", "convstar", "lstm+star", "bigru", "biconvgru", f"convstar{HIERARCHY}"])
@pytest.mark.parametrize("pool", ["last", "mean"])
def test_scores_by_date_and_pooling(name: str, pool: str) -> None:
    torch.manual_seed(0)
    plain, hierarchy = name.removesuffix(HIERARCHY), name.endswith(HIERARCHY)
    config = ModelConfig(name=plain, layers=2, hidden=4, pool=pool, hierarchy=hierarchy)  # type: ignore[arg-type]
    model = build_model(config, Shape(4, 6, 7, lineages=LINEAGES)).double().eval()
    assert isinstance(model, RecurrentClassifier)
    x, valid, days = inputs(model)
    if not model.streaming:
        assert torch.isfinite(model(x, valid, days)).all()
        return
    dated = model.by_date(x, valid, days)
    for t in range(x.shape[1]):
        so_far = model(x[:, : t + 1], valid[:, : t + 1], days[:, : t + 1])
        torch.testing.assert_close(dated[:, t], so_far, rtol=0, atol=1e-12)
    torch.testing.assert_close(run_steps(model, x, valid, days), dated[:, -1], rtol=0, atol=1e-12)
