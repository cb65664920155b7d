"""Batch jobs that are taken away again and again: shards, restarted by the same command, end with the unbroken map."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cropstar.sources.synthetic import SceneOptions, write_scene
from tests.faults.killing import start
from tests.prediction.making import untrained

SHARDS = 3
KILLS = 20
SIDE, WINDOW = 512, 16
BLOCKS = (SIDE // WINDOW) ** 2
MOST_FURTHER = 8  # blocks from a start to its end: kills go by progress, for clocks differ from machine to machine
EXIT_CODES = {signal.SIGTERM: 128 + signal.SIGTERM, signal.SIGKILL: -signal.SIGKILL}


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("job")
    write_scene(folder, SceneOptions(size=SIDE, dates=6))
    model = untrained(folder / "model.safetensors", folder / "tile.tif", layers=3, hidden=24)
    named = [str(folder / "tile.tif"), "--model", str(model), "-o", "maps/map.tif", "--window", str(WINDOW)]
    return ["predict", *named, "--confidence", "--log-json"]


@dataclass
class Blocks:
    """Every finished block that was ever seen: it stays the very file until the map is put together."""

    folder: Path
    seen: dict[str, tuple[int, int]] = field(default_factory=dict)

    def of_shard(self, number: int) -> int:
        """How many of a shard's were seen: neighbours, in the order of the rows."""
        across = SIDE // WINDOW
        places = (int(name[:8]) // WINDOW * across + int(name[9:17]) // WINDOW for name in self.seen)
        return sum(place * SHARDS // BLOCKS == number for place in places)

    def look(self) -> None:
        for path in self.folder.glob("maps/.map.tif.*.blocks/*.npz"):
            try:
                status = path.stat()
            except FileNotFoundError:  # the map was put together meanwhile
                continue
            identity = (status.st_ino, status.st_mtime_ns)
            assert self.seen.setdefault(path.name, identity) == identity, f"{path.name} was computed again"


@dataclass
class BatchJob:
    """One shard under a system that starts it again until it says that all is well."""

    command: list[str]
    folder: Path
    process: subprocess.Popen[str] | None = None
    moment: float = 0.0  # at which it is taken away, if it has not come so far
    blocks: int = 0  # with which it is taken away
    starts: int = 0
    done: bool = False
    last_word: str = ""  # when it was said

    def begin(self, seconds: float, blocks: int) -> None:
        self.process = start(self.command, self.folder)
        self.moment, self.blocks = time.monotonic() + seconds, blocks
        self.starts += 1

    def hit(self, number: signal.Signals) -> int:
        """Send the signal, and the code that it ends with; only a process on its way out may end well."""
        assert self.process is not None
        if number == signal.SIGTERM:
            wait_until_it_listens(self.process)
        sent = datetime.now(UTC)
        self.process.send_signal(number)
        code = self.end()
        assert code != 0 or datetime.fromisoformat(self.last_word) <= sent, "it went on after the signal"
        return code

    def end(self) -> int:
        """Its code, once every line that it said was found to be JSON."""
        assert self.process is not None
        _, said = self.process.communicate(timeout=100)
        lines = [json.loads(line) for line in said.splitlines()[: None if said.endswith("\n") else -1]]
        code = self.process.returncode
        assert code in (0, *EXIT_CODES.values()), said
        if code == EXIT_CODES[signal.SIGTERM]:
            assert lines[-1]["level"] == "error"
            assert lines[-1]["message"].startswith("stopped by a signal: "), said
        self.done = code == 0
        self.last_word = max((line["time"] for line in lines if "time" in line), default="")
        return code


def wait_until_it_listens(process: subprocess.Popen[str]) -> None:
    """Before the interpreter runs cropstar, SIGTERM ends it as it ends any program."""
    wanted, status = 1 << (signal.SIGTERM - 1), Path(f"/proc/{process.pid}/status")
    while process.poll() is None:
        caught = next((line for line in status.read_text().splitlines() if line.startswith("SigCgt")), "SigCgt: 0")
        if int(caught.split()[1], 16) & wanted:
            return
        time.sleep(0.005)


def unbroken(command: list[str], folder: Path) -> float:
    """Run it to the end; how many seconds until the first block."""
    folder.mkdir()
    begun = time.monotonic()
    process = start(command, folder)
    while process.poll() is None and not list(folder.glob("maps/.map.tif.*.blocks/*.npz")):
        time.sleep(0.005)
    first = time.monotonic()
    _, said = process.communicate(timeout=280)
    assert process.returncode == 0, said
    return first - begun


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="looks at signals as Linux shows them")
def test_shards_that_are_taken_away_twenty_times_end_with_the_unbroken_map(command: list[str], tmp_path: Path) -> None:
    starting = unbroken(command, tmp_path / "unbroken")
    place = tmp_path / "taken"
    place.mkdir()
    blocks, chance = Blocks(place), random.Random(1)
    jobs = [BatchJob([*command, "--shard", f"{number}/{SHARDS}"], place) for number in range(SHARDS)]
    codes: Counter[int] = Counter()
    late, begun = 0, time.monotonic()
    while not all(job.done for job in jobs):
        hits = codes.total()
        for shard, job in enumerate(jobs):
            if job.done:
                continue
            made = blocks.of_shard(shard)
            if job.process is None:  # a third is taken away before the first block, or soon after it
                early = chance.random() < 1 / 3
                seconds = chance.uniform(0.2, 1.2) * starting if early else 100
                job.begin(seconds, made + chance.randint(1, MOST_FURTHER))
            elif job.process.poll() is not None:
                assert job.end() == 0
            elif hits < KILLS and (time.monotonic() > job.moment or made >= job.blocks):
                number = chance.choice(list(EXIT_CODES))
                code = job.hit(number)
                job.process = None
                if code == 0:  # it was on its way out
                    late += 1
                else:
                    assert code == EXIT_CODES[number]
                    codes[code] += 1
                    hits += 1
        blocks.look()
        time.sleep(0.002)
    seconds, starts = time.monotonic() - begun, [job.starts for job in jobs]
    report = f"{dict(codes)} in {seconds:.0f} s, {late} too late, starts {starts}, {len(blocks.seen)} blocks seen"
    sys.stderr.write(f"{report}\n")
    assert codes.total() == KILLS, report
    assert len(codes) == len(EXIT_CODES), report
    assert len(blocks.seen) > BLOCKS // 2, report
    taken, whole = (
        {os.fspath(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for folder in (place / "maps", tmp_path / "unbroken" / "maps")
    )
    assert taken == whole  # the same files, no work folder among them
