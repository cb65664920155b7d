"""Cut the power at every moment of every command that writes, and look at what is left: part of `make faults`."""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tests.faults.forkserver import ForkServer, Watch
from tests.faults.power_loss import Call, Disk, crash_states, read_log
from tests.faults.writing import COMMANDS, Case, make_case

MOST_RUNS = 12  # of a command after a crash: a damaged block is removed, and its message says to run it again


def logged_run(case: Case, server: ForkServer, log: Path) -> tuple[Disk, list[Call]]:
    """The disk as it was before the command, and all that it did to it."""
    case.restore()
    disk = Disk(case.place)
    answer = case.run(server, Watch(case.place, (), log=log))
    assert answer.code == 0, answer.stderr
    return disk, read_log(log, case.place)


def replay(case: Case, server: ForkServer, folder: Path, reruns: int) -> tuple[int, list[str]]:
    """How many states were looked at, and what is wrong with them. In some of them the command is run again."""
    disk, calls = logged_run(case, server, folder / "calls.log")
    problems: list[str] = []
    candidates: list[tuple[int, dict[str, bytes]]] = []
    count = 0
    dice = random.Random(1)
    for number, files in crash_states(disk, calls):
        count += 1
        shown = {name: data for name, data in files.items() if "." not in {part[0] for part in Path(name).parts}}
        found = case.problems(shown)
        if number == len(calls) and not case.is_safe(shown):
            missing = [name for name in case.new if shown.get(name) != case.new[name]]
            found.append(f"the command had ended well, and {missing[0]} is not there")
        problems += [f"{case.name}, after call {number} of {len(calls)}: {each}" for each in found]
        if len(candidates) < reruns:  # every state has the same chance to be among them
            candidates.append((number, files))
        elif (place := dice.randrange(count)) < reruns:
            candidates[place] = number, files
    for number, files in candidates:
        found = run_again(case, files, server)
        problems += [f"{case.name}, after call {number} of {len(calls)}, run again: {each}" for each in found]
    return count, problems


def run_again(case: Case, files: Mapping[str, bytes], server: ForkServer) -> list[str]:
    """Whether the command ends with its files from a state of the disk on."""
    lay_out(case, files)
    if case.is_safe():
        return []
    for _ in range(MOST_RUNS):
        answer = case.run(server)
        if answer.code != 4 or answer.problem() is not None:
            break
    found = [] if (problem := answer.problem((0,))) is None else [problem]
    return found + ([] if case.is_safe() else ["other files than those of an unbroken run"])


def lay_out(case: Case, files: Mapping[str, bytes]) -> None:
    """Make the folder hold these files; those that are as they were keep their times."""
    case.restore()
    for path in [path for path in case.place.rglob("*") if path.is_file()]:
        if str(path.relative_to(case.place)) not in files:
            path.unlink()
    for name, content in files.items():
        path = case.place / name
        if not path.is_file() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def main() -> None:
    started, states, failures = time.monotonic(), 0, 0
    with tempfile.TemporaryDirectory() as name, ForkServer("torch._dynamo") as server:
        for case in (make_case(each, Path(name), server) for each in sys.argv[1:] or COMMANDS):
            count, problems = replay(case, server, Path(name), reruns=40)
            for problem in dict.fromkeys(problems):
                print(problem)
            print(f"{case.name}: {count} states of the disk, {len(problems)} problems", flush=True)
            states, failures = states + count, failures + len(problems)
    print(f"{states} states, {failures} problems, {time.monotonic() - started:.0f} s")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
