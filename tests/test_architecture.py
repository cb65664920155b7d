"""The rules of the house, held by reading the source: layers, heavy imports, unsafe calls, sizes, help pages."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from cropstar.cli.main import cropstar

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = REPOSITORY / "cropstar"
SOURCES = {path: path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}

# From the ground up; what stands in one row does not know of each other.
LAYERS = [
    {"core"},
    {"geo"},
    {"store"},
    {"datasets", "models", "sources"},
    {"reports"},
    {"training", "prediction"},
    {"benchmarks"},
    {"cli"},
]
HEIGHT = {name: height for height, names in enumerate(LAYERS) for name in names}

FORBIDDEN_IMPORTS = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
FORBIDDEN_CALLS = {
    "eval",
    "exec",
    "print",
    "builtins.eval",
    "builtins.exec",
    "os.system",
    "os.popen",
    "torch.load",
    "torch.save",
    "yaml.load",
    "yaml.load_all",
    "yaml.full_load",
    "yaml.unsafe_load",
    "numpy.load",
}


def each(paths: dict[Path, str]) -> pytest.MarkDecorator:
    files = [pytest.param(path, id=str(path.relative_to(REPOSITORY))) for path in paths]
    return pytest.mark.parametrize("path", files)


def names_of(path: Path) -> tuple[str, str]:
    """A file's module and the layer that it belongs to."""
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    if parts[-1] == "__main__":
        return "cropstar.__main__", "cli"  # it only starts the command line
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
        if layer == "models" and target not in ("core", "models"):
            broken.append(f"models imports {module}")
    return broken


def unsafe(source: str) -> list[str]:
    """What could run code from a file, or write past the logs."""
    tree = ast.parse(source)
    found = [name for name in imports(source) if name.split(".")[0] in FORBIDDEN_IMPORTS]
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            known |= {alias.asname or alias.name.split(".")[0]: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            known |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        head, dot, rest = called.partition(".")
        full = known.get(head, head) + dot + rest
        if full in FORBIDDEN_CALLS or full.endswith((".extractall", ".read_pickle", ".to_pickle")):
            found.append(called)
        if any(word.arg == "shell" and ast.unparse(word.value) != "False" for word in node.keywords):
            found.append(f"{called}(shell=)")
        if any(word.arg == "allow_pickle" and ast.unparse(word.value) != "False" for word in node.keywords):
            found.append(f"{called}(allow_pickle=)")
    return found


def modules_after(code: str) -> set[str]:
    """The top-level modules that a fresh interpreter holds after running some code."""
    script = f"import sys\n{code}\nprint(' '.join(sorted({{name.split('.')[0] for name in sys.modules}})))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
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
    ],
)
def test_a_right_import_is_let_through(layer: str, source: str) -> None:
    assert broken_layers(layer, source) == []


@each({path: text for path, text in SOURCES.items() if names_of(path)[1] in ("sources", "geo", "store")})
def test_data_come_without_torch(path: Path) -> None:
    assert [name for name in imports(SOURCES[path]) if name.split(".")[0] == "torch"] == []


def test_nothing_that_data_need_brings_torch() -> None:
    below = [names_of(path)[0] for path in SOURCES if names_of(path)[1] in ("core", "sources", "geo", "store")]
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


@pytest.mark.parametrize("name", sorted(cropstar.commands))
def test_every_help_page_has_examples(name: str) -> None:
    command = cropstar.commands[name]
    page = command.get_help(click.Context(command, info_name=f"cropstar {name}"))
    _, heading, examples = page.partition("Examples:\n")
    assert heading
    assert f"cropstar {name}" in examples
    assert all(option.help for option in command.params if isinstance(option, click.Option))
    assert (PACKAGE / "cli" / f"{name.replace('-', '_')}.py").is_file()  # one file a command


# --- what is never done


@each(SOURCES)
def test_nothing_unsafe_is_called(path: Path) -> None:
    assert unsafe(SOURCES[path]) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "def late():\n    from pickle import loads",
        "import torch\ntorch.load('m.pt')",
        "import torch as t\nt.load('m.pt')",
        "from torch import load\nload('m.pt')",
        "import yaml\nyaml.load(text, Loader=yaml.SafeLoader)",
        "from yaml import unsafe_load as read\nread(text)",
        "eval('1')",
        "exec(code)",
        "archive.extractall(folder)",
        "import subprocess\nsubprocess.run('ls', shell=True)",
        "import numpy as np\nnp.load('a.npy')",
        "frame.to_pickle('f')",
        "print('hello')",
    ],
)
def test_an_unsafe_call_is_found(source: str) -> None:
    assert len(unsafe(source)) >= 1


@pytest.mark.parametrize(
    "source",
    ["model.eval()", "import yaml\nyaml.safe_load(text)", "import json\njson.load(handle)", "table.print()"],
)
def test_a_harmless_call_is_let_through(source: str) -> None:
    assert unsafe(source) == []


# --- sizes and habits


@each(SOURCES)
def test_files_hold_one_idea(path: Path) -> None:
    lines = len(SOURCES[path].splitlines())
    assert lines < 300
    assert names_of(path)[1] != "cli" or lines <= 120
    assert ast.get_docstring(ast.parse(SOURCES[path]))


TEXT_ENDINGS = {".py", ".md", ".yaml", ".yml", ".toml", ".txt", ".cfg", ".css", ".html", ".j2", ".sh", ".json", ""}
OWN_FOLDERS = ("cropstar", "tests", "benchmarks", "docs", "configs", ".ci", ".github")
# Folders of one machine: of a user, of a work disk, of a temporary one.
LOCAL_PATH = re.compile(r"(?<![\w.<>*-])/(?:home|Users|root|work|mnt|scratch)/\w+|\b[A-Z]:\\\\?Users")


def own_text_files() -> list[Path]:
    top = [path for path in REPOSITORY.iterdir() if path.is_file()]
    below = [path for folder in OWN_FOLDERS for path in (REPOSITORY / folder).rglob("*") if path.is_file()]
    return [
        path
        for path in [*top, *below]
        if path.suffix in TEXT_ENDINGS and "__pycache__" not in path.parts and path != Path(__file__).resolve()
    ]


def test_no_path_of_one_machine_is_written_down() -> None:
    files = own_text_files()
    assert REPOSITORY / "pyproject.toml" in files
    found = [
        f"{path.relative_to(REPOSITORY)}: {match[0]}"
        for path in files
        for match in LOCAL_PATH.finditer(path.read_text(encoding="utf-8", errors="replace"))
    ]
    assert found == []


def test_a_path_of_one_machine_is_found() -> None:
    assert LOCAL_PATH.search("see /work/main and more")
    assert LOCAL_PATH.search('"/home/anna/data"')
    assert not LOCAL_PATH.search("https://example.org/home/page")
    assert not LOCAL_PATH.search("data/work/one and ./home/two")


def test_folders_of_tests_mirror_the_package() -> None:
    folders = {path.name for path in (REPOSITORY / "tests").iterdir() if path.is_dir() and path.name[0] not in "._"}
    assert folders <= set(HEIGHT) | {"faults"}
