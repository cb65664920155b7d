"""What `import cropstar` offers, how fast, and that the command line and the API have the same options."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from typing import Any

import click
import pytest

import cropstar
from cropstar.cli.main import cropstar as command_line
from tests.test_architecture import REPOSITORY, modules_after

FUNCTIONS = {"check", "evaluate", "ingest", "load_model", "open_store", "predict", "train", "update"}
COMMANDS = ("ingest", "train", "evaluate", "check", "predict", "update")
# How the command speaks, and what it only prints: not part of a function.
SPEECH = {"quiet", "verbose", "debug", "log_json", "as_json", "print_config"}
# Of the API alone. `source` and `path` are the arguments of `cropstar ingest`.
OWN = {"progress", "source", "path"}


def test_all_names_are_there() -> None:
    assert sorted(cropstar.__all__) == cropstar.__all__
    assert {name for name in cropstar.__all__ if name.islower() and name[0] != "_"} == FUNCTIONS
    for name in cropstar.__all__:
        assert getattr(cropstar, name) is not None
        assert name in dir(cropstar)
    assert issubclass(cropstar.MismatchError, cropstar.CropstarError)
    with pytest.raises(AttributeError, match="no attribute 'preditc'"):
        _ = cropstar.preditc


def test_public_things_are_documented() -> None:
    for name in cropstar.__all__:
        thing = getattr(cropstar, name)
        if callable(thing):
            assert thing.__doc__, name


def test_the_import_is_light() -> None:
    held = modules_after("import cropstar")
    assert held & {"torch", "rasterio", "numpy", "pydantic", "click", "pandas", "h5py"} == set()
    # Of the processor: the machine may have other things to do.
    code = "import time; s = time.process_time(); import cropstar; print(time.process_time() - s)"
    command = [sys.executable, "-c", code]
    done = [subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True) for _ in range(3)]
    assert min(float(each.stdout) for each in done) < 0.1


def parameters_of(name: str) -> dict[str, click.Parameter]:
    command = command_line.get_command(click.Context(command_line), name)
    assert command is not None
    return {str(each.name): each for each in command.params if each.name not in SPEECH}


@pytest.mark.parametrize("name", COMMANDS)
def test_command_and_function_have_the_same_options(name: str) -> None:
    signature = inspect.signature(getattr(cropstar, name)).parameters
    options = parameters_of(name)
    arguments = {each for each, parameter in options.items() if isinstance(parameter, click.Argument)}
    assert set(options) - {"what"} == set(signature) - OWN
    for each, parameter in options.items():
        if each in arguments:
            continue
        given = parameter.to_info_dict()
        default: Any = () if given["multiple"] else given["default"]
        default = False if default is None and given.get("is_flag") and signature[each].default is False else default
        assert signature[each].default == default, f"--{each}"
        assert signature[each].kind is inspect.Parameter.KEYWORD_ONLY


@pytest.mark.parametrize("name", COMMANDS)
def test_keywords_have_the_names_of_options(name: str) -> None:
    """But for words that Python keeps for itself."""
    renamed = {"--from": "start", "--to": "end", "--set": "settings"}
    for each, parameter in parameters_of(name).items():
        if isinstance(parameter, click.Option):
            option = max(parameter.opts, key=len)
            assert each == renamed.get(option, option.removeprefix("--").replace("-", "_"))


def test_the_page_of_the_api_names_what_is_there() -> None:
    """Its examples are Python, and call what exists with keywords that exist."""
    page = (REPOSITORY / "docs" / "python.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    calls = [
        node
        for block in blocks
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("cropstar.")
    ]
    assert {ast.unparse(call.func).removeprefix("cropstar.") for call in calls} == FUNCTIONS
    for call in calls:
        signature = inspect.signature(getattr(cropstar, ast.unparse(call.func).removeprefix("cropstar.")))
        signature.bind(*call.args, **{str(word.arg): None for word in call.keywords})
