"""Something that leads elsewhere at every path that a command writes to: part of `make faults`.

Links, hard links, pipes and devices are laid out before the command runs. It may refuse them or replace them, but what
they lead to stays as it was, and nothing waits for a pipe.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.faults.forkserver import ForkServer, Watch
from tests.faults.power_loss import read_log
from tests.faults.writing import COMMANDS, Case, make_case

LIMIT = 30  # seconds: a command takes less than one
PRECIOUS = b"precious"


def _laid_out(victim: Path) -> dict[str, Callable[[Path], object]]:
    """By name: what lies at the path of a file, or of a folder."""
    return {
        "link": lambda path: path.symlink_to(victim / "file"),
        "link to nothing": lambda path: path.symlink_to(victim / "new"),
        "link to a folder": lambda path: path.symlink_to(victim),
        "hard link": lambda path: os.link(victim / "file", path),
        "pipe": os.mkfifo,
        "folder": lambda path: path.mkdir(),
        "link to a device": lambda path: path.symlink_to("/dev/zero"),
    }


def written_paths(case: Case, server: ForkServer, log: Path) -> list[str]:
    """All paths that the command writes to and their folders, but for those that it is told and those made by chance.

    With the file that GDAL would look for beside each raster.
    """
    case.restore()
    answer = case.run(server, Watch(case.place, (), log=log))
    assert answer.code == 0, answer.stderr
    logged = [Path(path) for call in read_log(log, case.place) for path in (call.path, call.second) if path]
    found = {path for each in logged for path in (each, *each.parents) if len(path.parts) > 1}
    found |= {path.with_name(path.name + ".aux.xml") for path in found if path.suffix == ".tif"}
    return sorted(str(path) for path in found if ".partial" not in str(path))


def plants(case: Case, server: ForkServer, folder: Path) -> Iterator[tuple[str, str]]:
    """Paths, and what can be laid out there."""
    for path in written_paths(case, server, folder / "calls.log"):
        for kind in _laid_out(folder):
            yield path, kind


def problem_with(case: Case, path: str, kind: str, server: ForkServer, folder: Path) -> str | None:
    victim = folder / "victim"
    shutil.rmtree(victim, ignore_errors=True)
    victim.mkdir()
    (victim / "file").write_bytes(PRECIOUS)
    os.utime(victim / "file", (1e9, 1e9))
    case.restore()
    place = case.place / path
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    _laid_out(victim)[kind](place)
    answer = case.run(server, Watch(case.place, ()), limit=LIMIT)
    if (problem := answer.problem()) is not None:
        return problem
    there = {each.name: (each.read_bytes(), each.stat().st_mtime) for each in victim.iterdir() if each.is_file()}
    left = {"file": (PRECIOUS, 1e9)}
    return None if there == left and len(list(victim.iterdir())) == 1 else "it changed what lies elsewhere"


def main() -> None:
    tried = failures = 0
    with tempfile.TemporaryDirectory() as name, ForkServer("torch._dynamo") as server:
        for case in (make_case(each, Path(name), server) for each in sys.argv[1:] or COMMANDS):
            for path, kind in list(plants(case, server, Path(name))):
                tried += 1
                if (problem := problem_with(case, path, kind, server, Path(name))) is not None:
                    failures += 1
                    print(f"{case.name}, {kind} at {path}: {problem}", flush=True)
            print(f"{case.name}: {tried} places so far, {failures} problems", flush=True)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
