"""Throughput of `cropstar predict --scheduler` against one process, on the same tiles.

    OMP_NUM_THREADS=1 python benchmarks/cluster.py --workers 2 --tiles 12 --side 512

A scheduler and workers of one thread are started on the loopback. A first small map lets every worker import torch
and load the model, which a long job does once; then the tiles are timed, from the first plan to the last map. The maps
of both ways are compared byte by byte.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from prediction import SETTINGS, write_raster
from untrained import write_untrained

WORKER = "from distributed.cli.dask_worker import main; main()"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--tiles", type=int, default=12)
    parser.add_argument("--side", type=int, default=512, help="pixels of a tile")
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--model", choices=sorted(SETTINGS), default="convstar")
    choices = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        measure(Path(temporary), choices)


def measure(folder: Path, choices: argparse.Namespace) -> None:
    from distributed import LocalCluster

    from cropstar.prediction.job import predict_all
    from cropstar.prediction.request import MapInput, MapRequest

    tiles = [folder / f"tile{number}.tif" for number in range(choices.tiles)]
    for tile in tiles:
        write_raster(tile, choices.side)
    model = folder / "model.safetensors"
    write_untrained(model, tiles[0], SETTINGS[choices.model])
    options = MapRequest(model=model, device="cpu", window=choices.window)

    def timed(name: str, scheduler: str | None, some: list[Path]) -> float:
        chosen = options.replace(scheduler=scheduler)
        started = time.perf_counter()
        predict_all([MapInput(tile) for tile in some], [folder / name / tile.name for tile in some], chosen)
        return float(len(some) * choices.side**2 / (time.perf_counter() - started))

    timed("warm", None, tiles[:1])
    serial = timed("serial", None, tiles)
    with (
        LocalCluster(n_workers=0, processes=False, protocol="tcp", dashboard_address=None) as scheduler,  # type: ignore[no-untyped-call]
        ExitStack() as started,
    ):
        for _ in range(choices.workers):
            started.callback(start_worker(scheduler.scheduler_address).kill)
        while len(scheduler.scheduler.workers) < choices.workers:
            time.sleep(0.1)
        address = scheduler.scheduler_address
        timed("first", address, tiles[: choices.workers])
        shared = timed("shared", address, tiles)
    equal = all((folder / "serial" / t.name).read_bytes() == (folder / "shared" / t.name).read_bytes() for t in tiles)
    print(f"serial              {serial:12,.0f} px/s")
    print(f"{choices.workers} workers           {shared:12,.0f} px/s, {shared / serial:.2f} times as fast")
    print("maps are equal" if equal else "MAPS DIFFER")


def start_worker(address: str) -> subprocess.Popen[bytes]:
    arguments = [address, "--no-nanny", "--nthreads", "1", "--no-dashboard", "--memory-limit", "0"]
    return subprocess.Popen([sys.executable, "-c", WORKER, *arguments], stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
