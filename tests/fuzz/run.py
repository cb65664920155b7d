"""Fuzz the command line for some minutes: `make fuzz MINUTES=10`.

Every end must be a documented exit code with one line: no traceback, no crash, no hang, no gigabytes, no socket, no
file elsewhere. Inputs that break this are made smaller and kept in `--keep`; one of each kind belongs into
tests/fuzz/corpus, which `make test` replays.
"""

from __future__ import annotations

import argparse
import random
import re
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.forkserver import ForkServer
from tests.fuzz.targets import FLIPS, TARGETS, Target, Workshop, problem_of

MOST_TRIALS = 40  # to make one input smaller


@dataclass
class Findings:
    keep: Path
    runs: Counter[str] = field(default_factory=Counter)
    codes: Counter[int] = field(default_factory=Counter)
    problems: Counter[tuple[str, str]] = field(default_factory=Counter)
    peak: int = 0
    slowest: float = 0.0


def fuzz_once(workshop: Workshop, target: Target, dice: random.Random, findings: Findings) -> None:
    file, command = dice.choice(workshop.files(target)), dice.choice(target.commands)
    workshop.restore()
    workshop.mutate(target, file, dice)
    changed = (workshop.place / file).read_bytes()
    answer = workshop.run(target, file, command)
    findings.runs[target.name] += 1
    findings.codes[answer.code] += 1
    findings.peak, findings.slowest = max(findings.peak, answer.peak), max(findings.slowest, answer.seconds)
    problem = problem_of(answer, workshop)
    if problem is None:
        return
    kind = (target.name, signature(problem))
    findings.problems[kind] += 1
    if findings.problems[kind] > 1:
        return
    print(f"{target.name}: {command.replace('{}', file)}: {problem}", flush=True)
    smaller = changed if answer.late else minimise(workshop, target, file, command, changed, kind[1])
    place = findings.keep / target.name
    place.mkdir(parents=True, exist_ok=True)
    name = f"{len(list(place.iterdir())):03d}-{Path(file).name}"
    (place / name).write_bytes(smaller)
    with (findings.keep / "why.txt").open("a") as notes:
        notes.write(f"{target.name}/{name}\t{file}\t{command}\t{problem[:300]}\n")


def signature(problem: str) -> str:
    """The problem without what differs from file to file."""
    return re.sub(r"'[^']*'|/\S+|\d+", "*", problem)[:80]


def minimise(workshop: Workshop, target: Target, file: str, command: str, changed: bytes, wanted: str) -> bytes:
    """The good file with as few of the changed bytes as give the same problem; of others lengths, the file as it is."""
    good = (workshop.good / file).read_bytes()
    if len(good) != len(changed):
        return changed
    spans = [place for place in range(len(good)) if good[place] != changed[place]]
    trials, step = 0, max(1, len(spans) // 2)
    while trials < MOST_TRIALS and len(spans) > 1:
        for start in range(0, len(spans), step):
            fewer = spans[:start] + spans[start + step :]
            trials += 1
            if fewer and _problem_with(workshop, target, file, command, good, changed, fewer) == wanted:
                spans = fewer
                break
        else:
            if step == 1:
                break
            step = max(1, step // 2)
    return _with(good, changed, spans)


def _problem_with(
    workshop: Workshop, target: Target, file: str, command: str, good: bytes, changed: bytes, spans: list[int]
) -> str | None:
    workshop.restore()
    (workshop.place / file).write_bytes(_with(good, changed, spans))
    if target.repair is not None:
        target.repair(workshop.place, workshop.place / file)
    problem = problem_of(workshop.run(target, file, command), workshop)
    return None if problem is None else signature(problem)


def _with(good: bytes, changed: bytes, places: list[int]) -> bytes:
    content = bytearray(good)
    for place in places:
        content[place] = changed[place]
    return bytes(content)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", help="kinds of files; all by default")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None, help="the time by default")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-findings"))
    options = parser.parse_args()
    seed = time.time_ns() if options.seed is None else options.seed
    chosen = [target for target in (*TARGETS, *FLIPS) if target.name in options.targets] or list(TARGETS)
    findings, started = Findings(options.keep), time.monotonic()
    folder = Path(tempfile.mkdtemp()).resolve()
    try:
        with ForkServer("torch._dynamo") as server:
            workshop = Workshop(folder, server)
            number = 0
            while time.monotonic() < started + 60 * options.minutes:
                target = chosen[number % len(chosen)]
                fuzz_once(workshop, target, random.Random(f"{seed} {number}"), findings)
                number += 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        report(findings, seed)
    sys.exit(1 if findings.problems else 0)


def report(findings: Findings, seed: int) -> None:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    hours = sum(each.ru_utime + each.ru_stime for each in used) / 3600
    print(f"seed {seed}: {sum(findings.runs.values()):,} runs, {hours:.2f} processor hours")
    print("  runs:", ", ".join(f"{name} {count}" for name, count in findings.runs.items()))
    print("  exit codes:", ", ".join(f"{code}: {count}" for code, count in sorted(findings.codes.items())))
    print(f"  peak {findings.peak / 1e6:,.0f} MB, slowest {findings.slowest:.1f} s")
    for (target, problem), count in findings.problems.items():
        print(f"  {count} times, {target}: {problem}")


if __name__ == "__main__":
    main()
