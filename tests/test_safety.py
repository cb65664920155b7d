"""What the package never does, held by reading its source: run code from files, write past the logs, name a machine."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.test_architecture import REPOSITORY, SOURCES, each, imports

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
FORBIDDEN_METHODS = (".extractall", ".read_pickle", ".to_pickle", ".from_user_input")


def unsafe(source: str) -> list[str]:
    """What could run code from a file, or write past the logs."""
    tree = ast.parse(source)
    found = [name for name in imports(source) if name.split(".")[0] in FORBIDDEN_IMPORTS]
    if "class _Unpickler(pickle._Unpickler)" in source:  # the one reader that refuses every name but those of arrays
        found = [*(name for name in found if name != "pickle"), *re.findall(r"pickle\.(?!_Unpickler\b)\w+\(", source)]
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
        if full == "numpy.load" and any(word.arg == "allow_pickle" for word in node.keywords):
            pass  # what it allows is looked at below
        elif full.endswith(".from_user_input") and "def parse_crs" in source:
            pass  # the one place that keeps addresses and files from it
        elif full in FORBIDDEN_CALLS or full.endswith(
            (".extractall", ".read_pickle", ".to_pickle", ".from_user_input")
        ):
            found.append(called)
        if any(word.arg == "shell" and ast.unparse(word.value) != "False" for word in node.keywords):
            found.append(f"{called}(shell=)")
        if any(word.arg == "allow_pickle" and ast.unparse(word.value) != "False" for word in node.keywords):
            found.append(f"{called}(allow_pickle=)")
    return found


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
        "from rasterio.crs import CRS\nCRS.from_user_input(text)",
        "exec(code)",
        "archive.extractall(folder)",
        "import subprocess\nsubprocess.run('ls', shell=True)",
        "import numpy as np\nnp.load('a.npy')",
        "import numpy as np\nnp.load('a.npy', allow_pickle=True)",
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
