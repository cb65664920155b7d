"""The rules of the house, held by reading the source: layers, heavy imports, help pages."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from cropstar.cli.main import COMMANDS, cropstar
from tests.processes import run_python

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = REPOSITORY / "cropstar"
SOURCES = {path: path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}

# From the ground up; what stands in one row does not know of each other.
LAYERS = [
    {"core"},
    {"geo", "native"},
    {"store"},
    {"execution"},
    {"datasets", "models", "sources"},
    {"reports"},
    {"training", "prediction"},
    {"benchmarks", "api"},
    {"cli"},
]
HEIGHT = {name: height for height, names in enumerate(LAYERS) for name in names}


def each(paths: dict[Path, str]) -> pytest.MarkDecorator:
    files = [pytest.param(path, id=str(path.relative_to(REPOSITORY))) for path in paths]
    return pytest.mark.parametrize("path", files)


def names_of(path: Path) -> tuple[str, str]:
    """A file's module and the layer that it belongs to."""
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    if parts[-1] == "__main__":
        return "cropstar.__main__", "cli"  # it only starts the command line
    if parts == ("cropstar", "__init__"):
        return "cropstar", "api"  # it only names the API
    return ".".join(part for part in parts if part != "__init__"), parts[1] if len(parts) > 2 else "core"


def layer_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and (PACKAGE / parts[1]).is_dir() else "core"


def imports(source: str) -> Iterator[str]:
    """Every module that a source imports, at any level, `from a import b` as `a.b`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            prefix = "." * node.level + (node.module or "")
            yield from (f"{prefix}.{alias.name}" for alias in node.names)


def broken_layers(layer: str, source: str) -> list[str]:
    """The imports of a source that its layer may not have."""
    broken = []
    for module in imports(source):
        if module.startswith("."):
            broken.append(f"{module} is relative")
        if module.split(".")[0] != "cropstar":
            continue
        target = layer_of(module)
        if target != layer and HEIGHT[target] >= HEIGHT[layer]:
            broken.append(f"{layer} imports {module}")
        if layer == "models" and target not in ("core", "models", "native"):
            broken.append(f"models imports {module}")
    return broken


def modules_after(code: str) -> set[str]:
    """The top-level modules that a fresh interpreter holds after running some code."""
    script = f"import sys\n{code}\nprint(' '.join(sorted({{name.split('.')[0] for name in sys.modules}})))"
    done = run_python(script, cwd=REPOSITORY, timeout=120, check=True)
    return set(done.stdout.splitlines()[-1].split())


# --- layers


def test_every_package_has_its_layer() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert packages <= set(HEIGHT)
    assert {"cli", "training", "prediction", "reports", "datasets", "models", "sources", "store", "geo"} <= packages


@each(SOURCES)
def test_imports_go_down(path: Path) -> None:
    module, layer = names_of(path)
    assert broken_layers(layer, SOURCES[path]) == [], module


@pytest.mark.parametrize(
    ("layer", "source"),
    [
        ("geo", "from cropstar.store.store import Store"),
        ("core", "import cropstar.geo.grid"),
        ("datasets", "def late():\n    from cropstar.models.zoo import build_model"),
        ("training", "from cropstar.prediction import predict"),
        ("reports", "from cropstar.cli.options import speech"),
        ("models", "from cropstar.store.classes import UNLABELLED"),
        ("models", "from cropstar.geo import grid"),
        ("store", "from .tile import Tile"),
        ("store", "from cropstar import sources"),
        ("store", "from cropstar.execution.pool import WorkerPool"),
        ("execution", "from cropstar.sources.base import Scene"),
        ("training", "from cropstar.api.commands import train"),
        ("api", "from cropstar.cli.options import PATH"),
    ],
)
def test_a_wrong_import_is_found(layer: str, source: str) -> None:
    assert len(broken_layers(layer, source)) >= 1


@pytest.mark.parametrize(
    ("layer", "source"),
    [
        ("geo", "from cropstar.geo.windows import Window\nfrom cropstar.errors import InputError\nimport numpy"),
        ("core", "from cropstar import __version__"),
        ("prediction", "from cropstar.models import zoo\nfrom cropstar.sources import stack"),
        ("models", "import torch\nfrom cropstar.config import ModelConfig"),
        ("cli", "from cropstar.training.runs import Run"),
        ("sources", "from cropstar.execution.pool import WorkerPool"),
    ],
)
def test_a_right_import_is_let_through(layer: str, source: str) -> None:
    assert broken_layers(layer, source) == []


@each({path: text for path, text in SOURCES.items() if names_of(path)[1] in ("sources", "geo", "store")})
def test_data_come_without_torch(path: Path) -> None:
    assert [name for name in imports(SOURCES[path]) if name.split(".")[0] == "torch"] == []


def test_nothing_that_data_need_brings_torch() -> None:
    layers = ("core", "sources", "execution", "geo", "store")
    below = [names_of(path)[0] for path in SOURCES if names_of(path)[1] in layers]
    held = modules_after(f"import importlib\nfor name in {below}: importlib.import_module(name)")
    assert {"rasterio", "h5py"} <= held
    assert "torch" not in held


# --- the start


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["--version"]])
def test_help_is_light(arguments: list[str]) -> None:
    code = (
        "from cropstar.cli.main import cropstar\n"
        f"cropstar.main({arguments}, prog_name='cropstar', standalone_mode=False)"
    )
    held = modules_after(code)
    assert "click" in held
    heavy = {"torch", "rasterio", "geopandas", "pandas", "shapely", "h5py", "numpy", "pydantic", "yaml", "matplotlib"}
    assert held & heavy == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_page_has_examples(name: str) -> None:
    command = cropstar.get_command(click.Context(cropstar), name)
    assert command is not None
    assert command.help is not None
    assert COMMANDS[name].rstrip(".") in " ".join(command.help.split())  # what `cropstar --help` says of it
    page = command.get_help(click.Context(command, info_name=f"cropstar {name}"))
    _, heading, examples = page.partition("Examples:\n")
    assert heading
    assert f"cropstar {name}" in examples
    assert all(option.help for option in command.params if isinstance(option, click.Option))
    assert (PACKAGE / "cli" / f"{name.replace('-', '_')}.py").is_file()  # one file a command


# --- habits


@each(SOURCES)
def test_every_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(SOURCES[path]))


def test_folders_of_tests_mirror_the_package() -> None:
    folders = {path.name for path in (REPOSITORY / "tests").iterdir() if path.is_dir() and path.name[0] not in "._"}
    assert folders <= set(HEIGHT) | {"faults", "fuzz"}
