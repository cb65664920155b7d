"""Fail every single call to the disk of every command that writes: `make faults`.

After each: a documented end, one line, nothing lost, nothing half-written; and the same command, run again, ends with
the bytes of an unbroken run.
"""

from __future__ import annotations

import argparse
import errno
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.faults.forkserver import EVERYTHING, ForkServer, Watch
from tests.faults.writing import COMMANDS, Case, make_case

CODES = (0, 6)  # what could not be written is the machine's fault, or did not matter


@dataclass(frozen=True)
class Fault:
    error: int
    kinds: tuple[str, ...]
    from_then_on: bool = False

    def __str__(self) -> str:
        return errno.errorcode[self.error] + (" from then on" if self.from_then_on else "")


FAULTS = (
    Fault(errno.EIO, EVERYTHING),
    Fault(errno.ENOSPC, ("open", "write", "truncate", "mkdir", "rename"), from_then_on=True),
    Fault(errno.EMFILE, ("open",)),
)


def count_calls(case: Case, fault: Fault, server: ForkServer) -> int:
    case.restore()
    answer = case.run(server, Watch(case.place, fault.kinds))
    assert answer.code == 0, answer.stderr
    return answer.seen


def problems_of(case: Case, fault: Fault, number: int, server: ForkServer) -> list[str]:
    """What is wrong after the call with that number has failed, and after the command was run again."""
    case.restore()
    answer = case.run(server, Watch(case.place, fault.kinds, number, fault.error, fault.from_then_on))
    found = [] if (problem := answer.problem(CODES)) is None else [problem]
    found += case.problems()
    done = case.is_done()
    if answer.code == 0 and not done:
        found.append("exit code 0 and not all that was asked for")
    if not done:
        again = case.run(server)
        if problem := again.problem((0,)):
            found.append(f"run again: {problem}")
        if not case.is_done():
            found.append("run again: other files than those of an unbroken run")
    return found


def sample(calls: int, count: int) -> list[int]:
    """Numbers of calls, spread evenly, the last among them."""
    return sorted({max(1, round(calls * (place + 1) / count)) for place in range(count)})


def sweep(case: Case, server: ForkServer, share: float, part: slice) -> Iterator[tuple[int, int]]:
    """For each fault the calls that were failed, and those with problems, which are printed."""
    for fault in FAULTS:
        calls = count_calls(case, fault, server)
        chosen = sample(calls, max(1, round(calls * share)))[part]
        bad = 0
        for number in chosen:
            for problem in (found := problems_of(case, fault, number, server)):
                print(f"{case.name}, call {number} of {calls}, {fault}: {problem}", flush=True)
            bad += bool(found)
        print(f"{case.name}: {len(chosen)} of {calls} calls failed with {fault}, {bad} problems", flush=True)
        yield len(chosen), bad


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", help="of the commands; all by default")
    parser.add_argument("--share", type=float, default=1.0, help="of the calls that are failed")
    parser.add_argument("--part", default="1/1", help="2/5 for the second of five parts")
    options = parser.parse_args()
    first, parts = map(int, options.part.split("/"))
    started, points, failures = time.monotonic(), 0, 0
    with tempfile.TemporaryDirectory() as folder, ForkServer("torch._dynamo") as server:
        for name in options.cases or COMMANDS:
            for done, bad in sweep(
                make_case(name, Path(folder), server), server, options.share, slice(first - 1, None, parts)
            ):
                points, failures = points + done, failures + bad
    print(f"{points} points, {failures} problems, {time.monotonic() - started:.0f} s")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
