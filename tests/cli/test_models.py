"""`cropstar models`: the listing, one model, JSON, and what is refused."""

from __future__ import annotations

import re
import shlex

import click
import pytest

from cropstar.cli.models import models
from cropstar.cli.train import train
from cropstar.errors import UsageError
from cropstar.models.zoo import listed_models
from cropstar.reports.wording import DASH
from tests.cli.invoking import InProcess

run = InProcess(models)
said, facts, refusal = run.said, run.facts, run.refusal


def test_the_zoo_fits_on_one_screen() -> None:
    lines = said().splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100
    listed = {line.split()[0]: line.split()[1:6] for line in lines if re.match(r"  \w+ +(series|images) ", line)}
    assert sorted(listed) == listed_models()
    assert listed["star"] == ["series", "169,226", "166,912", "0", "yes"]
    assert listed["convstar"] == ["images", "123,594", "99,072", "29", "yes"]
    assert listed["rf"] == ["series", DASH, DASH, "0", "no"]


def test_options_reach_every_model() -> None:
    told = facts("--bands", "4", "--classes", "3", "--dates", "7", "--layers", "2", "--hidden", "8")
    assert [row["name"] for row in told["models"]] == listed_models()
    assert told["left_out"] == {}
    for row in told["models"]:
        assert row["shape"] == {"bands": 4, "classes": 3, "length": 7}
        assert (row["config"]["layers"], row["config"]["hidden"]) == (2, 8)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("convstar", 123_602), ("convlstm", 292_050), ("convgru", 226_258), ("convlstm_forget", 160_466)],
)
def test_the_models_of_the_paper(name: str, parameters: int) -> None:
    options = ["--layers", "4", "--hidden", "32", "--bands", "4", "--classes", "18", "--day-encoding", "none"]
    assert facts(name, *options)["parameters"] == parameters
    assert f"{name}  {parameters:,} parameters" in said(name, *options)


def test_one_model_in_detail() -> None:
    text = said("convstar", "--layers", "4")
    for part in (
        "10 bands, 10 classes, 24 dates; 4 layers of 32; day encoding sincos",
        "h_t = tanh((1 - k_t) * h_{t-1} + k_t * z_t)",
        "2,401,920 multiply-accumulates per pixel and season (24 \u00d7 99,072 + 24,192 once)",
        "29 pixels: the reach of the receptive field after 24 dates",
        "512 bytes per pixel",
        "model.variant paper: one of paper, janet, no-outer-tanh",
        "model.revisit",
        "cropstar train --model convstar --layers 4",
    ):
        assert part in text, part
    assert re.search(r"layer 2 +star +32 \u2192 32 +27,712 +27,648\n", text)
    assert re.search(r"head +image head +32 \u2192 10 +24,266 +24,192 once\n", text)
    assert max(map(len, text.splitlines())) <= 100


def test_composed_names() -> None:
    mixed = said("lstm_forget+star")
    assert re.search(r"layer 1 +lstm_forget", mixed)
    assert re.search(r"layer 4 +star", mixed)
    assert "LSTM w/f" in mixed
    assert "Gating Revisited" in mixed
    both = facts("biconvgru", "--layers", "2", "--dates", "3")
    assert [part["name"] for part in both["parts"]][:2] == ["layer 1 forwards", "layer 2 forwards"]
    assert (both["streams"], both["state_bytes"], both["reads"]) == (False, None, "images")


def test_degree_days_take_the_place_of_the_last_band() -> None:
    told = facts("--day-encoding", "thermal", "--layers", "1", "--hidden", "8")
    assert list(told["left_out"]) == ["hgb", "rf"]
    for row in told["models"]:
        assert row["shape"]["thermal"] == 9
    star = facts("star", "--day-encoding", "thermal", "--layers", "1")
    assert star["parts"][0]["inputs"] == 9 + 8


def test_the_command_trains_the_model_that_was_shown() -> None:
    changes = ["model.normalise=true", "model.revisit=5", "model.day_encoding=none"]
    options = ["--layers", "3", "--hidden", "24", *(word for change in changes for word in ("--set", change))]
    command = said("star", *options).splitlines()[-1].partition("cropstar train ")[2]
    context = train.make_context("train", shlex.split(command))
    assert isinstance(context, click.Context)
    given = context.params
    assert (given["model"], given["layers"], given["hidden"]) == ("star", 3, 24)
    again = facts(
        "star", "--layers", "3", "--hidden", "24", *(word for each in given["settings"] for word in ("--set", each))
    )
    assert again == facts("star", *options)


def test_settings_that_only_some_have_leave_the_others_out() -> None:
    told = facts("--set", "model.variant=no-outer-tanh")
    assert [row["name"] for row in told["models"]] == ["convstar", "star"]
    assert "no variant" in told["left_out"]["gru"]
    assert "left out  convgru, " in said("--set", "model.variant=no-outer-tanh")
    assert isinstance(refusal("--set", "model.variant=none-such"), UsageError)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["convstr"], "did you mean 'convstar'"),
        (["star", "--hidden", "5000"], "model.hidden"),
        (["--layers", "0"], "model.layers"),
        (["--day-encoding", "week"], "model.day_encoding"),
        (["--set", "epochs=3"], "not a setting of the model"),
        (["star", "--set", "model.name=gru"], "not a setting of the model"),
        (["star", "--set", "model.varient=janet"], "model.variant"),
        (["star", "--set", "model.head=video"], "'star' does not use model.head"),
        (["star", "--set", "model.hierarchy=true"], "the classes have no levels"),
        (["--day-encoding", "thermal", "--bands", "1"], "alone show no crop"),
    ],
)
def test_what_is_refused(arguments: list[str], words: str) -> None:
    failure = refusal(*arguments)
    assert isinstance(failure, UsageError)
    assert words in str(failure)


def test_numbers_out_of_bounds_are_usage_errors() -> None:
    for option in ("--bands", "--classes", "--dates"):
        assert run(option, "0").exit_code == 2
        assert run(option, "1000000000").exit_code == 2
