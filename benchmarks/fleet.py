"""A job of many tiles on many workers, simulated: stragglers, preemption, and one file system for all.

    python benchmarks/fleet.py --rate 26000 --read 150 --workers 16,64,256,1024 --plot fleet.png

What is measured goes in: pixels a second of a worker (`--rate`), megabytes a second that one worker decodes (`--read`),
bytes a pixel of a season, seconds from start to the first block. What is assumed is printed with the result. Two ways
of dealing the blocks out are compared: in advance (`--shard i/n` of array jobs: who is slow holds all up) and on demand
(`--scheduler`: who is free takes the next). A worker that is preempted loses the block that it works on, comes back
after a while and starts again; finished blocks stay. A block takes as long as its slower half, reading or computing,
since the two overlap; all that read at a time share the file system evenly.
"""

from __future__ import annotations

import argparse
import heapq
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

HOUR = 3600.0


@dataclass(frozen=True)
class Fleet:
    """All that the simulation is given; times in seconds, sizes in megabytes."""

    tiles: int = 1500
    side: int = 10980  # pixels of a Sentinel-2 tile
    block: int = 1024
    rate: float = 26_000.0  # pixels a second of one worker
    read: float = 150.0  # megabytes a second that one worker can take
    shared: float = 5_000.0  # megabytes a second of the file system
    pixel: float = 24 * 10 * 2 * 0.6  # bytes of a pixel's season on the disk
    start: float = 60.0  # from the machine's start to the first block: container, model
    away: float = 300.0  # until a preempted worker is replaced
    lifetime: float = 12 * HOUR  # mean time between preemptions of a worker
    slow: float = 0.05  # share of workers that are stragglers
    slowness: float = 3.0  # how much slower these are
    spread: float = 0.1  # of a block's time around its mean
    workers: int = 64
    on_demand: bool = True
    seed: int = 0

    @property
    def blocks_a_tile(self) -> int:
        across = -(-self.side // self.block)
        return across * across

    @property
    def blocks(self) -> int:
        return self.tiles * self.blocks_a_tile

    @property
    def megabytes_a_block(self) -> float:
        return self.side**2 / self.blocks_a_tile * self.pixel / 1e6


@dataclass(frozen=True)
class Outcome:
    hours: float
    worker_hours: float
    preemptions: int
    lost_hours: float  # of work that preemption destroyed


def simulate(fleet: Fleet) -> Outcome:
    """Event by event: the next thing that happens is always the end of a worker's block."""
    random = np.random.default_rng(fleet.seed)
    pace = np.where(random.random(fleet.workers) < fleet.slow, fleet.slowness, 1.0)
    compute = fleet.side**2 / fleet.blocks_a_tile / fleet.rate
    share = np.full(fleet.workers, fleet.blocks // fleet.workers)
    share[: fleet.blocks % fleet.workers] += 1
    left, unfinished = fleet.blocks, fleet.blocks
    ends = random.exponential(fleet.lifetime, fleet.workers)  # when each is preempted next
    queue = [(fleet.start + random.uniform(0, 1), worker) for worker in range(fleet.workers)]  # when each is free
    heapq.heapify(queue)
    busy, finished, preemptions, lost = fleet.workers, 0.0, 0, 0.0
    retired = np.zeros(fleet.workers)
    while queue:
        now, worker = heapq.heappop(queue)
        has_work = left > 0 if fleet.on_demand else share[worker] > 0
        if not has_work:
            busy -= 1
            retired[worker] = now
            continue
        reading = fleet.megabytes_a_block / min(fleet.read, fleet.shared / busy)
        seconds = max(compute * pace[worker], reading) * random.lognormal(0, fleet.spread)
        if now + seconds > ends[worker]:
            lost += max(ends[worker] - now, 0)
            preemptions += 1
            back = max(ends[worker], now) + fleet.away + fleet.start
            ends[worker] = back + random.exponential(fleet.lifetime)
            heapq.heappush(queue, (back, worker))
            continue
        left -= 1
        share[worker] -= 1
        unfinished -= 1
        finished = max(finished, now + seconds)
        heapq.heappush(queue, (now + seconds, worker))
    assert unfinished == 0
    paid = float(retired.sum()) - preemptions * fleet.away
    return Outcome(finished / HOUR, paid / HOUR, preemptions, lost / HOUR)


def table(fleet: Fleet, counts: list[int]) -> list[dict[str, float]]:
    rows = []
    for workers in counts:
        demand = simulate(replace(fleet, workers=workers, on_demand=True))
        shards = simulate(replace(fleet, workers=workers, on_demand=False))
        rows.append(
            {
                "workers": workers,
                "hours_on_demand": demand.hours,
                "hours_in_shards": shards.hours,
                "worker_hours": demand.worker_hours,
                "preemptions": demand.preemptions,
                "lost_hours": demand.lost_hours,
                # Against as many perfect workers: no stragglers, no preemption, no waiting for files.
                "efficiency": fleet.tiles * fleet.side**2 / fleet.rate / HOUR / workers / demand.hours,
            }
        )
    return rows


def draw(path: Path, fleet: Fleet, rows: list[dict[str, float]]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    workers = [row["workers"] for row in rows]
    ideal = [fleet.tiles * fleet.side**2 / fleet.rate / HOUR / count for count in workers]
    axes.loglog(workers, [row["hours_in_shards"] for row in rows], "s--", color="#c2571a", label="dealt in advance")
    axes.loglog(workers, [row["hours_on_demand"] for row in rows], "o-", color="#2f6b3c", label="on demand")
    axes.loglog(workers, ideal, ":", color="0.4", label="perfect workers")
    axes.set(xlabel="workers", ylabel="hours until the last map", title=f"{fleet.tiles:,} tiles, simulated")
    axes.set_xticks(workers, [f"{count:,}" for count in workers])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ("tiles", "rate", "read", "shared", "pixel", "start", "away", "lifetime", "slow", "slowness", "seed")
    for name in names:
        value = getattr(Fleet(), name)
        parser.add_argument(f"--{name}", type=type(value), default=value)
    parser.add_argument("--workers", default="16,64,256,1024")
    parser.add_argument("--plot", type=Path)
    arguments = vars(parser.parse_args())
    counts = [int(text) for text in arguments.pop("workers").split(",")]
    plot = arguments.pop("plot")
    fleet = Fleet(**arguments)
    rows = table(fleet, counts)
    print(json.dumps(asdict(fleet)))
    heads = ("workers", "on demand", "in shards", "paid", "preempted", "lost", "efficiency")
    print(" ".join(f"{head:>{width}}" for head, width in zip(heads, (8, 10, 10, 9, 10, 7, 11), strict=True)))
    for row in rows:
        print(
            f"{row['workers']:8,.0f} {row['hours_on_demand']:8.1f} h {row['hours_in_shards']:8.1f} h "
            f"{row['worker_hours']:7,.0f} h {row['preemptions']:10,.0f} {row['lost_hours']:5.1f} h "
            f"{row['efficiency']:11.2f}"
        )
    if plot is not None:
        draw(plot, fleet, rows)


if __name__ == "__main__":
    main()
