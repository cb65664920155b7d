"""What a newcomer types first."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from cropstar import __version__
from cropstar.cli.main import COMMAND_HABITS, OPTION_HABITS, cropstar
from cropstar.cli.main import COMMANDS as MAIN
from cropstar.config_keys import OTHER_NAMES, SCHEMA, config_keys, config_sections, schema_text

Cli = Callable[..., "subprocess.CompletedProcess[str]"]


def test_version(run_cli: Cli, tmp_path: Path) -> None:
    assert run_cli("--version", cwd=tmp_path).stdout.strip() == f"cropstar, version {__version__}"


def test_help_names_the_three_commands_and_the_exit_codes(run_cli: Cli, tmp_path: Path) -> None:
    answer = run_cli("--help", cwd=tmp_path)
    assert answer.returncode == 0
    for text in ("cropstar ingest", "cropstar train --model convstar --layers 4", "cropstar predict", "Exit codes"):
        assert text in answer.stdout


COMMANDS = (
    *("ingest", "inspect", "models", "train", "tune", "evaluate", "check", "compare"),
    *("predict", "update", "export", "gradients", "config", "demo"),
)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_shows_an_example(command: str, run_cli: Cli, tmp_path: Path) -> None:
    answer = run_cli(command, "--help", cwd=tmp_path)
    assert "Examples:" in answer.stdout
    assert f"cropstar {command}" in answer.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["trian"], "trian"),
        (["train", "--layer", "4"], "--layer"),
        (["predict"], "RASTER"),
        (["ingest", "--tile-size", "many"], "--tile-size"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    arguments: list[str], expected: str, run_cli: Cli, tmp_path: Path
) -> None:
    answer = run_cli(*arguments, cwd=tmp_path)
    assert answer.returncode == 2
    assert answer.stderr.startswith("error: ")
    assert len(answer.stderr.splitlines()) == 1
    assert expected in answer.stderr
    assert "--help" in answer.stderr


def test_no_arguments_greet_with_three_lines(run_cli: Cli, tmp_path: Path) -> None:
    answer = run_cli(cwd=tmp_path)
    assert answer.returncode == 0
    assert len(answer.stdout.splitlines()) == 3
    assert "cropstar demo" in answer.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["train", "--lr", "1e-3"], "did you mean --learning-rate? "),
        (["train", "--batch-size", "8"], "did you mean --batch? "),
        (["train", "--weight-decay", "0.1"], "did you mean --set optimiser.weight_decay=...? "),
        (["predict", "tile.tif", "--gpu"], "did you mean --device cuda? "),
        (["ingest", "tile.tif", "--shapefile", "p.shp"], "did you mean --parcels? "),
        (["fit"], "did you mean 'cropstar train'? "),
        (["trian"], "did you mean 'cropstar train'? "),
        (["train", "--store", ".", "--set", "lr=1"], "did you mean 'optimiser.learning_rate'? "),
        (["config", "lr"], "did you mean 'optimiser.learning_rate'? "),
        (["config", "model.layer"], "did you mean 'model.layers'? "),
    ],
)
def test_the_words_of_other_programs_are_understood(
    arguments: list[str], meant: str, run_cli: Cli, tmp_path: Path
) -> None:
    answer = run_cli(*arguments, cwd=tmp_path)
    assert answer.returncode == 2
    assert meant in answer.stderr
    assert len(answer.stderr.splitlines()) == 1


def test_the_names_that_habits_lead_to_exist() -> None:
    every = {name for command in MAIN for parameter in options_of(command) for name in parameter.opts}
    for meant in OPTION_HABITS.values():
        assert not meant.startswith("--") or meant.split()[0] in every, meant
    assert {meant for meant in COMMAND_HABITS.values() if not meant.startswith("--")} <= set(MAIN)
    assert set(OTHER_NAMES.values()) <= {*config_keys(), *config_sections()}
    assert not set(COMMAND_HABITS) & set(MAIN)
    assert not set(OTHER_NAMES) & set(config_keys())


def options_of(name: str) -> list[click.Parameter]:
    command = cropstar.get_command(click.Context(cropstar), name)
    assert command is not None
    return command.params


def test_every_key_of_the_configuration_is_explained(run_cli: Cli, tmp_path: Path) -> None:
    listed = run_cli("config", cwd=tmp_path).stdout.splitlines()
    assert [line.split()[0] for line in listed] == list(config_keys())
    for key in config_keys().values():
        assert key.meaning, key.name
        assert key.meaning[0].islower() or not key.meaning[0].isalpha(), key.name
    one = run_cli("config", "model.layers", cwd=tmp_path).stdout
    for text in ("model.layers: layers of the model", "whole number", "1 to 64", "--set model.layers=4", "--layers"):
        assert text in one
    section = run_cli("config", "loss", "--json", cwd=tmp_path).stdout
    assert {entry["name"] for entry in json.loads(section)} == {
        name for name in config_keys() if name.startswith("loss.")
    }


def test_the_shipped_schema_is_current(run_cli: Cli, tmp_path: Path) -> None:
    assert SCHEMA.read_text(encoding="utf-8") == schema_text(), "run 'python -m cropstar.config_keys'"
    assert run_cli("config", "--schema", cwd=tmp_path).stdout == schema_text()


@pytest.mark.slow
def test_the_demonstration_runs_anywhere_and_says_what_is_next(run_cli: Cli, tmp_path: Path) -> None:
    answer = run_cli("demo", "here", "--quick", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    commands = [line for line in answer.stderr.splitlines() if line.startswith("$ ")]
    assert commands == [
        "$ cropstar ingest",
        "$ cropstar train --model rf",
        "$ cropstar predict data/demo/tile.tif",
    ]
    assert "cropstar ingest FOLDER --parcels parcels.gpkg" in answer.stderr
    named = [line.split()[0] for line in answer.stderr.partition("Done. In here:")[2].splitlines()[1:4]]
    assert len(named) == 3
    assert all((tmp_path / "here" / name).is_file() for name in named)
    (tmp_path / "file").touch()
    assert run_cli("demo", "file", cwd=tmp_path).returncode == 2
