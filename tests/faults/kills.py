"""Kill commands that write, hundreds of times, at random moments: part of `make faults`.

Each start goes on from what the killed one left. After every kill the files under final names are the old or the new
ones; whichever run comes through leaves the bytes of an unbroken one.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.forkserver import ForkServer
from tests.faults.writing import COMMANDS, Case, make_case

KILLED = ("ingest-again", "train", "predict", "predict-again", "update")
ENOUGH = 0.2  # of the kills, after which the command may go on to its end


def kill_often(case: Case, server: ForkServer, kills: int, seed: int = 0) -> tuple[int, list[str]]:
    """How often the command came to its end meanwhile, and what was wrong."""
    dice, problems, ended, hits = random.Random(seed), [], 0, 0
    case.restore()
    seconds = case.run(server).seconds
    case.restore()
    while hits < kills:
        answer = case.run(server, limit=dice.uniform(0.01, 1.05) * seconds)
        hits += answer.late
        problems += [f"after kill {hits}: {each}" for each in case.problems()]
        if not answer.late or (dice.random() < ENOUGH and not case.is_done()):
            answer = answer if not answer.late else case.run(server)
            seconds = 0.5 * (seconds + answer.seconds)  # other programs are busy too, now more, now less
            problems += (
                [] if (problem := answer.problem((0,))) is None else [f"after kill {hits}, run again: {problem}"]
            )
            if not case.is_done():
                problems.append(f"after kill {hits}, run again: other files than those of an unbroken run")
        if not answer.late or case.is_done():
            ended += 1
            case.restore()
    return ended, problems


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "cases", nargs="*", help=f"of {', '.join(COMMANDS)}; those that replace or add files by default"
    )
    parser.add_argument("--kills", type=int, default=100, help="of each command")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    started, kills, failures = time.monotonic(), 0, 0
    with tempfile.TemporaryDirectory() as folder, ForkServer("torch._dynamo") as server:
        for name in options.cases or KILLED:
            ended, problems = kill_often(make_case(name, Path(folder), server), server, options.kills, options.seed)
            for problem in problems:
                print(f"{name}, {problem}")
            print(f"{name}: {options.kills} kills, {ended} times at its end, {len(problems)} problems", flush=True)
            kills, failures = kills + options.kills, failures + len(problems)
    print(f"{kills} kills, {failures} problems, {time.monotonic() - started:.0f} s")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
