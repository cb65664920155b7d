"""The text of `cropstar models`: fits the screen whatever the sizes, and is true."""

from __future__ import annotations

from typing import Any

import pytest

from cropstar.config import ModelConfig
from cropstar.models.contract import Shape
from cropstar.models.description import ModelFacts, describe
from cropstar.models.zoo import listed_models
from cropstar.reports.text import LINE_WIDTH, format_model, format_models
from cropstar.reports.wording import DASH

SMALL = Shape(3, 2, 5)


def facts_of(name: str, shape: Shape = SMALL, **settings: Any) -> ModelFacts:
    return describe(ModelConfig.model_validate({"name": name, "layers": 2, "hidden": 4, **settings}), shape)


def plain(text: str) -> list[str]:
    return text.replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines()


@pytest.mark.parametrize("name", [*listed_models(), "biconvlstm_forget", "lstm_forget+gru+star"])
def test_every_model_fits_the_screen(name: str) -> None:
    lines = plain(format_model(facts_of(name, Shape(999, 9999, 24), layers=3, hidden=64)))
    assert max(map(len, lines)) <= LINE_WIDTH
    assert not any(line != line.rstrip() for line in lines)
    assert any("cropstar train --model" in line for line in lines)


def test_equations_are_left_as_they_stand() -> None:
    facts = facts_of("gru")
    equations = [line for line in facts.documentation[0].splitlines() if line.startswith("    ")]
    assert len(equations) == 4
    lines = plain(format_model(facts))
    assert all(f"  {equation}" in lines for equation in equations)


def test_a_cell_stands_under_its_series_model() -> None:
    members = [facts_of(name) for name in ("convgru", "convstar", "gru", "star", "tcn")]
    lines = plain(format_models(members, []))
    rows = [line.split()[0] for line in lines if " series " in line or " images " in line]
    assert rows == ["gru", "convgru", "star", "convstar", "tcn"]
    assert lines[0] == "5 models  3 bands, 2 classes, 5 dates; 2 layers of 4"
    assert not any("left out" in line for line in lines)


def test_what_is_left_out_is_named() -> None:
    assert any("left out  gru, tcn" in line for line in plain(format_models([facts_of("star")], ["gru", "tcn"])))


def test_one_of_each() -> None:
    lines = plain(format_model(facts_of("star", Shape(1, 1, 1), layers=1, hidden=1, day_encoding="none")))
    assert lines[0] == "star  7 parameters \u00b7 reads series \u00b7 streams"
    assert "1 band, 1 class, 1 date; 1 layer of 1; day encoding none" in lines[2]


def test_a_forest_is_grown_not_counted() -> None:
    lines = plain(format_model(facts_of("rf")))
    assert lines[0] == "rf  grown from the data \u00b7 reads series \u00b7 does not stream"
    assert lines[-1] == "  train it  cropstar train --model rf"
    assert not any("parameters" in line or "MACs" in line or "products" in line for line in lines)
    (row,) = (line for line in plain(format_models([facts_of("star"), facts_of("rf")], [])) if line.startswith("  rf "))
    assert row.split()[1:6] == ["series", DASH, DASH, "0", "no"]


def test_a_model_of_clips_has_no_radius() -> None:
    facts = facts_of("convstar", head="video")
    lines = plain(format_model(facts))
    assert "  radius    none: one class for a whole clip, and no map" in lines
    assert not any("cropstar train" in line for line in lines)  # there is no store of clips
    (row,) = (line for line in plain(format_models([facts], [])) if line.startswith("  convstar "))
    assert row.split()[4:6] == [DASH, "yes"]


def test_a_model_without_state_says_so() -> None:
    assert any(line.startswith("  state     none") for line in plain(format_model(facts_of("transformer"))))
