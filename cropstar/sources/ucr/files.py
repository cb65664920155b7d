"""Finding the two files of a data set: NAME_TRAIN and NAME_TEST beside each other, of one format."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cropstar.errors import InputError, UsageError
from cropstar.geo.paths import require_file
from cropstar.sources.naming import short_list

GROUPS = ("train", "test")
FILE = re.compile(r"(?P<name>.+)_(?P<group>train|test)(?P<ending>\.(?:tsv|ts)(?:\.gz)?)", re.IGNORECASE)
NUMBER = re.compile(rb"[-+]?[0-9.]+([eE][-+]?[0-9]+)?(\t|$)")
REMEDY = "give NAME_TRAIN.tsv or NAME_TRAIN.ts, or the folder that holds it and NAME_TEST"


@dataclass(frozen=True)
class Pair:
    """A data set: what it is called and its two files."""

    name: str
    train: Path
    test: Path

    @property
    def files(self) -> dict[str, Path]:
        return {"train": self.train, "test": self.test}

    @property
    def is_tabbed(self) -> bool:
        return ".tsv" in [suffix.lower() for suffix in self.train.suffixes[-2:]]


def looks_like_ucr(path: Path) -> bool:
    """By the names of files; a table of the user's own may be called fields_train.tsv, but begins with a header."""
    if path.is_dir():
        return any(_is_ours(file) for file in _listed(path))
    return _is_ours(path)


def find_pair(path: Path) -> Pair:
    """The data set that a folder holds, or that one of its files belongs to."""
    if path.is_dir():
        found = _listed(path)
        kinds = sorted({_kind(file) for file in found})
        if not kinds:
            raise InputError("no data set of the UCR archive", path=path, why="there is no NAME_TRAIN", remedy=REMEDY)
        if len(kinds) > 1:
            why = f"there is {short_list(f'{name}{ending}' for name, ending in kinds)}"
            raise UsageError("which data set?", path=path, why=why, remedy="give its NAME_TRAIN file")
        chosen, folder = kinds[0], path
    else:
        require_file(path)
        if FILE.fullmatch(path.name) is None:
            why = "its name does not say train or test"
            raise InputError("not a file of the UCR archive", path=path, why=why, remedy=REMEDY)
        chosen, folder = _kind(path), path.parent
    members = {_group(file): file for file in _listed(folder) if _kind(file) == chosen}
    missing = [group for group in GROUPS if group not in members]
    if missing:
        there = next(iter(members.values()))
        why = f"there is no {chosen[0]}_{missing[0].upper()}{chosen[1]} beside it"
        raise InputError(f"the {missing[0]} part is missing", path=there, why=why, remedy="put both into one folder")
    return Pair(chosen[0], members["train"], members["test"])


def _listed(folder: Path) -> Sequence[Path]:
    return sorted(file for file in folder.iterdir() if FILE.fullmatch(file.name) and file.is_file())


def _kind(file: Path) -> tuple[str, str]:
    """What both files of a data set have in common: the name and the ending."""
    match = FILE.fullmatch(file.name)
    assert match is not None
    return match["name"], match["ending"].lower()


def _group(file: Path) -> str:
    match = FILE.fullmatch(file.name)
    assert match is not None
    return match["group"].lower()


def _is_ours(file: Path) -> bool:
    if FILE.fullmatch(file.name) is None or not file.is_file():
        return False
    if file.suffix.lower() != ".tsv":
        return True
    with file.open("rb") as handle:
        start = handle.read(64)
    return not start or NUMBER.match(start.removeprefix(b"\xef\xbb\xbf").lstrip()) is not None
