"""Kill commands that write, or send them signals, hundreds of times at random moments: part of `make faults`.

Each start goes on from what the last one left. After every kill the files under final names are the old or the new
ones; whichever run comes through leaves the bytes of an unbroken one.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.forkserver import Answer, ForkServer
from tests.faults.writing import COMMANDS, Case, make_case

KILLED = ("ingest-again", "train", "predict", "predict-again", "update")
SIGNALS = (signal.SIGINT, signal.SIGTERM)
STOPPED = (130, 143)
ENOUGH = 0.2  # of the kills, after which the command may go on to its end


def kill_often(
    case: Case, server: ForkServer, kills: int, seed: int = 0, *, politely: bool = False
) -> tuple[int, list[str]]:
    """How often the command came to its end meanwhile, and what was wrong. Politely is by SIGINT and SIGTERM."""
    problems: list[str] = []
    dice, ended, hits = random.Random(seed), 0, 0
    case.restore()
    seconds = case.run(server).seconds
    case.restore()

    def note(*found: str | None) -> None:
        problems.extend(f"after hit {hits}: {each}" for each in found if each is not None)

    while hits < kills:
        moment = dice.uniform(0.0 if politely else 0.01, 1.05) * seconds
        answer = _signalled(case, server, moment, dice) if politely else case.run(server, limit=moment)
        was_hit = answer.code in STOPPED if politely else answer.late
        hits += was_hit
        note(*case.problems(), answer.problem((0, *STOPPED)) if politely else None)
        if politely and was_hit and (left := [path.name for path in case.place.rglob("*.partial")]):
            note(f"{left[0]} is left")
        if not was_hit or (dice.random() < ENOUGH and not case.is_done()):
            last = answer if not was_hit else case.run(server)
            seconds = 0.5 * (seconds + last.seconds)  # other programs are busy too, now more, now less
            note(last.problem((0,)), None if case.is_done() else "other files than those of an unbroken run")
            was_hit = False
        if not was_hit or case.is_done():
            ended += 1
            case.restore()
    return ended, problems


def _signalled(case: Case, server: ForkServer, moment: float, dice: random.Random) -> Answer:
    """Half of the signals are followed by another one."""
    second = [(dice.choice([0, 0.001, 0.01, 0.1]), dice.choice(SIGNALS))] if dice.random() < 0.5 else []
    return case.run(server, signals=[(moment, dice.choice(SIGNALS)), *second])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(COMMANDS)}")
    parser.add_argument("--kills", type=int, default=100, help="of each command")
    parser.add_argument("--politely", action="store_true", help="by SIGINT and SIGTERM, some of them twice")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    started, kills, failures = time.monotonic(), 0, 0
    with tempfile.TemporaryDirectory() as folder, ForkServer("torch._dynamo") as server:
        for name in options.cases or KILLED:
            case = make_case(name, Path(folder), server)
            ended, problems = kill_often(case, server, options.kills, options.seed, politely=options.politely)
            for problem in problems:
                print(f"{name}, {problem}")
            print(f"{name}: {options.kills} hits, {ended} times at its end, {len(problems)} problems", flush=True)
            kills, failures = kills + options.kills, failures + len(problems)
    print(f"{kills} hits, {failures} problems, {time.monotonic() - started:.0f} s")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
