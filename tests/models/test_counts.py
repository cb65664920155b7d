"""Numbers of parameters: by formula, and those of the paper's tables."""

from __future__ import annotations

import pytest
from torch import nn

from cropstar.config import ModelConfig
from cropstar.models.cells.cell import CELLS
from cropstar.models.classifier import RecurrentClassifier
from cropstar.models.contract import Shape
from cropstar.models.zoo import build_model

# How many products a cell has with its input (each with a bias) and with its state, and its further numbers a unit.
TERMS = {
    "rnn": (1, 1, 0),
    "star": (2, 1, 0),
    "lstm_forget": (2, 2, 0),
    "rhn": (2, 2, 0),
    "gru": (3, 3, 0),
    "lstm": (4, 4, 0),
    "mingru": (2, 0, 0),
    "indrnn": (1, 0, 1),
}


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def build(name: str, bands: int, classes: int, layers: int, hidden: int) -> RecurrentClassifier:
    config = ModelConfig(name=name, layers=layers, hidden=hidden, day_encoding="none")
    model = build_model(config, Shape(bands, classes, 30))
    assert isinstance(model, RecurrentClassifier)
    return model


@pytest.mark.parametrize("name", sorted(CELLS))
@pytest.mark.parametrize("spatial", [False, True])
@pytest.mark.parametrize(("inputs", "hidden"), [(4, 32), (13, 7), (1, 1), (8, 8)])
def test_by_formula(name: str, spatial: bool, inputs: int, hidden: int) -> None:
    taps = 9 if spatial else 1
    from_input, from_state, further = TERMS[name]
    weights = taps * (from_input * inputs * hidden + from_state * hidden**2)
    assert count(CELLS[name](inputs, hidden, spatial=spatial)) == weights + (from_input + further) * hidden


@pytest.mark.parametrize(
    ("name", "published"),
    [("convstar", 124_000), ("convlstm", 292_000), ("convgru", 227_000), ("convlstm_forget", 161_000)],
)
def test_tum_pixel_wise(name: str, published: int) -> None:
    """4 channels, 18 classes, 4 layers of 32 filters, and the head of two convolutions."""
    assert count(build(name, 4, 18, 4, 32)) == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize(
    ("name", "layers", "published"),
    [("lstm", 2, 201_000), ("gru", 4, 348_000), ("star", 4, 167_000), ("star", 6, 266_000)],
)
def test_breizhcrops(name: str, layers: int, published: int) -> None:
    """4 bands, 9 classes, 128 units."""
    assert count(build(name, 4, 9, layers, 128)) == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize(
    ("name", "layers", "published"),
    [("convstar", 8, 0.82), ("convstar", 12, 1.26), ("convlstm", 8, 2.22), ("convgru", 12, 2.55)],
)
def test_jester(name: str, layers: int, published: float) -> None:
    """Three colours, 64 filters; the recurrent part alone, in millions."""
    stack = build(name, 3, 2, layers, 64).stack
    assert count(stack) / 1e6 == pytest.approx(published, rel=0.01)


def test_character_model() -> None:
    """STAR with 6 layers of 410 units on PTB's 50 characters, "2.8M": characters in, scores out, all that learns."""
    found = count(build("star", 50, 50, 6, 410))
    assert round(found / 1e6, 1) == 2.8
