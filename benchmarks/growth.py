"""How the cost of a training step grows with dates, width, depth and samples, and that of a map with its pixels.

    python benchmarks/growth.py              --threads N, --rounds N, --quick for a look

A line says by how much the time grew since the line above, where the size doubled: 2 is proportional. STAR's products
grow with the square of the width: 4 is proportional there. The first layer has few inputs, and is cheaper.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace

import torch
from speed import NATIVE, Series, Way, map_ways, require_kernels, timed, training_ways

from cropstar.runtime import keep_large_buffers

BASE = Series(batch=256, length=32, bands=10, hidden=128, layers=2)
SIZES = {
    "length": (16, 32, 64, 128),
    "hidden": (32, 64, 128, 256),
    "layers": (1, 2, 4, 8),
    "batch": (64, 128, 256, 512),
}
SIDES = (64, 128, 256, 512)
RIVALS = (NATIVE, "naive", "nn.LSTM", "nn.GRU")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="the two smallest sizes")
    choices = parser.parse_args()
    require_kernels()
    keep_large_buffers()
    torch.set_num_threads(choices.threads)
    last = 2 if choices.quick else None
    print(f"{choices.threads} threads, medians of {choices.rounds} interleaved rounds, milliseconds")
    for name, sizes in SIZES.items():
        print(f"\ntraining step, {BASE} but for {name}")
        ways = {size: training_ways(replace(BASE, **{name: size})) for size in sizes[:last]}
        table(name, {size: {rival: ways[size][rival] for rival in RIVALS} for size in ways}, choices.rounds)
    print("\nConvSTAR 4 x 32, a map of 6 dates without the head; pixels grow fourfold a line")
    table("side", {side: _two(map_ways(side)) for side in SIDES[:last]}, choices.rounds)


def table(name: str, ways: dict[int, dict[str, Way]], rounds: int) -> None:
    columns = list(next(iter(ways.values())))
    print(f"{name:>8}" + "".join(f"{column:>12}  grew" for column in columns))
    before: dict[str, float] = {}
    for size, rivals in ways.items():
        now = {column: 1e3 * statistics.median(times) for column, times in timed(rivals, rounds).items()}
        cells = [f"{now[one]:12.1f}" + (f"{now[one] / before[one]:6.2f}" if before else 6 * " ") for one in columns]
        print(f"{size:8}" + "".join(cells), flush=True)
        before = now


def _two(ways: dict[str, Way]) -> dict[str, Way]:
    return {name: ways[name] for name in (NATIVE, "naive")}


if __name__ == "__main__":
    main()
