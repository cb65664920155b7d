"""The commands that write, each with the folder it begins with and the files that it must leave.

Whatever happens to a command, `Case.problems` holds it to the same rule: every file under a final name is whole, the
one from before or the new one; nothing from before is lost; and no file stands for others that are not there.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cropstar.errors import CropstarError
from cropstar.sources.synthetic import SceneOptions, write_scene
from cropstar.store.model_file import read_tensors
from tests.faults.forkserver import Answer, ForkServer, Watch
from tests.prediction.making import untrained
from tests.prediction.seasons import cut

Files = dict[str, bytes]
TELLS_THE_TIME = re.compile(r"^runs/.*/(result\.json|metrics\.jsonl|report\.html|checkpoints/.*)$")

INGEST = "ingest whole.tif --parcels parcels.gpkg -o store --workers 1"
TRAIN = (
    "train --store store --model convstar --layers 1 --hidden 4 --epochs 2 --runs runs --checkpoint-seconds 0 "
    "--set split.validation=0.3 --set patch=8"
)
PREDICT = (
    "predict early.tif --model model.safetensors -o maps/map.tif --window 16 --confidence --parcels parcels.gpkg "
    "--html --state maps/season.h5"
)
UPDATE = "update maps/season.h5 late.tif --confidence --any-dates"


@dataclass
class Case:
    """A command in a folder, again and again from the same beginning."""

    name: str
    arguments: list[str]
    before: Path  # the folder that it begins with; copied to `place` each time
    place: Path
    heads: tuple[str, ...]  # files that stand for others: where one is new, all but the later heads are
    listed: bool = False  # whether files count only once the head names them, as tiles do
    old: Files = field(default_factory=dict)
    new: Files = field(default_factory=dict)
    changing: set[str] = field(default_factory=set)  # files that tell the time: whole, but never the same bytes

    def restore(self) -> None:
        shutil.rmtree(self.place, ignore_errors=True)
        shutil.copytree(self.before, self.place)  # with the times of files, which keys of blocks are made of

    def run(self, server: ForkServer, watch: Watch | None = None, **options: Any) -> Answer:
        return server.run(self.arguments, self.place, watch=watch, **options)

    def learn(self, server: ForkServer) -> None:
        """What the command leaves when nothing happens to it, twice: to the byte, but for what tells the time."""
        self.restore()
        self.old = visible(self.place)
        for _ in range(2):
            self.restore()
            answer = self.run(server)
            assert answer.code == 0, answer.stderr
            found = visible(self.place)
            self.changing |= {name for name in self.new if found.get(name) != self.new[name]}
            self.new = found
        # Seconds of a quick training are often the same twice: that a file tells them is not left to chance.
        self.changing |= {name for name in self.new.keys() - self.old.keys() if TELLS_THE_TIME.search(name)}

    def problems(self, found: Mapping[str, bytes] | None = None) -> list[str]:
        """What is wrong with the files that lie there, or with those that are given, which a crash has left."""
        files = visible(self.place) if found is None else found
        unlisted = self.new.keys() - self.old.keys() - {*self.heads} if self.listed and found is not None else set()
        wrong = [
            f"{name} is neither the old nor the new one"
            for name, content in files.items()
            if name not in unlisted and not self._is_good(name, content)
        ]
        for number, head in enumerate(self.heads):
            if self._is_new(head, files):
                rest = set(self.new) - set(self.heads[number + 1 :])
                wrong += [f"{head} is new, {name} is not" for name in rest if not self._is_new(name, files)]
        replaced = any(self._is_new(head, files) for head in self.heads[:1])
        lost = [name for name in self.old if name not in files and not (replaced and name not in self.new)]
        return wrong + [f"{name} is lost" for name in lost]

    def is_done(self, found: Mapping[str, bytes] | None = None) -> bool:
        files = visible(self.place) if found is None else found
        return files.keys() == self.new.keys() and all(self._is_new(name, files) for name in self.new)

    def is_safe(self, found: Mapping[str, bytes] | None = None) -> bool:
        """Whether all that is new is there; what it replaces may be there too."""
        files = visible(self.place) if found is None else found
        return all(self._is_new(name, files) for name in self.new)

    def _is_new(self, name: str, files: Mapping[str, bytes]) -> bool:
        return name in files and (files[name] == self.new.get(name) or (name in self.changing and name not in self.old))

    def _is_good(self, name: str, content: bytes) -> bool:
        if content in (self.old.get(name), self.new.get(name)):
            return True
        return name not in self.old and is_whole(Path(name), content)  # those of a run grow with it


def visible(folder: Path) -> Files:
    """The files under final names; those that begin with a dot are work in progress."""
    return {name: (folder / name).read_bytes() for name in sorted(_names(folder))}


def _names(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*"):
        parts = path.relative_to(folder).parts
        if path.is_file() and not any(part.startswith(".") for part in parts):
            yield "/".join(parts)


def is_whole(path: Path, content: bytes) -> bool:
    """Of files of a run, some of which tell the time and some of which are there only meanwhile."""
    try:
        if path.suffix == ".safetensors":
            with tempfile.NamedTemporaryFile() as copy:
                Path(copy.name).write_bytes(content)
                read_tensors(Path(copy.name), "model" if path.name == "model.safetensors" else "checkpoint")
        elif path.suffix in (".json", ".jsonl"):
            lines = content.splitlines() if path.suffix == ".jsonl" else [content]
            return bool(lines) and all(json.loads(line) for line in lines)
        elif path.suffix == ".html":
            return content.rstrip().endswith(b"</html>")
        else:
            return False
    except (CropstarError, ValueError):
        return False
    return True


HEADS = {"store": ("store/manifest.json",), "map": ("maps/map.tif", "maps/season.h5")}
# By name: the commands that were run before, the command itself, and its heads.
COMMANDS: dict[str, tuple[list[str], str, tuple[str, ...]]] = {
    "ingest": ([], f"{INGEST} --tile-size 16", HEADS["store"]),
    "ingest-again": ([f"{INGEST} --tile-size 16"], f"{INGEST} --tile-size 24 --overwrite", HEADS["store"]),
    "train": ([INGEST, TRAIN.replace("--epochs 2", "--epochs 1")], TRAIN, ()),
    "predict": ([], PREDICT, HEADS["map"]),
    "predict-again": ([PREDICT], PREDICT.replace("model.", "other.") + " --overwrite", HEADS["map"]),
    "update": ([PREDICT], UPDATE, HEADS["map"]),
}


def make_case(name: str, folder: Path, server: ForkServer) -> Case:
    """A case below a folder of its own, on a scene of 16 x 32 pixels."""
    earlier, command, heads = COMMANDS[name]
    place = Path(os.path.realpath(folder)) / name / "place"
    place.mkdir(parents=True)
    tile, parcels = write_scene(place.parent, SceneOptions(size=32, dates=3))
    size = {"width": 16, "blockxsize": 16, "blockysize": 16}
    for stem, dates in {"whole": slice(0, 3), "early": slice(0, 2), "late": slice(2, 3)}.items():
        cut(tile, place / f"{stem}.tif", dates, **size)
    shutil.move(parcels, place / "parcels.gpkg")
    untrained(place / "model.safetensors", place / "early.tif", layers=1, hidden=4)
    untrained(place / "other.safetensors", place / "early.tif", layers=1, hidden=4, seed=1)
    for each in earlier:
        answer = server.run(each.split(), place)
        assert answer.code == 0, answer.stderr
    before = Path(shutil.copytree(place, place.with_name("before")))
    case = Case(name, command.split(), before, place, heads, listed=heads == HEADS["store"])
    case.learn(server)
    return case
