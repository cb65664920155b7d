"""What a newcomer types first."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from cropstar import __version__

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
    *("predict", "update", "export", "gradients"),
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
