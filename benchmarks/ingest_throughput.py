"""How fast ingest is against plain reading of the same files with rasterio.

    OMP_NUM_THREADS=1 python benchmarks/ingest_throughput.py
    OMP_NUM_THREADS=1 python benchmarks/ingest_throughput.py --side 10980 --dates 2 --keep FOLDER

Writes Sentinel-2 products as ESA's are: lossless JPEG 2000 in blocks of 1024 x 1024 pixels, ten bands at 10 and 20 m
and the scene classification, fields and noise for pixels. Then measures in turn, each in processes of its own:

- plain: every file opened with rasterio and read whole, by one process and by several;
- ingest: from the products and parcels to a store with its manifest, start of the program included, with one worker
  and with several.

MB/s are those of the decoded files, 2 bytes a pixel at native resolution. GDAL decodes with as many threads as there
are processors where a process is alone, and with one in each of several, on both sides. Of several rounds the fastest
counts: other things that the machine does only make it slower. The last ratio is that of processor time, which they
hardly touch.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import rasterio
from safe_products import write_parcels, write_products, write_texture

from cropstar.sources.sentinel2.series import DEFAULT_BANDS

GOAL = 0.60
Best = dict[tuple[str, int], tuple[float, float]]
PLAIN = """
import pathlib, sys
import rasterio

folder, part, parts = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
for path in sorted(folder.rglob("*.jp2"))[part::parts]:
    with rasterio.open(path) as dataset:
        dataset.read(1)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=4096, help="pixels a side of the 10 m bands")
    parser.add_argument("--dates", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--keep", type=Path, help="a folder for the products, used again if it has them")
    choices = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = choices.keep or Path(temporary, "products")
        if not folder.exists():
            write_input(folder, choices.side, choices.dates)
        files = sorted(folder.rglob("*.jp2"))
        megabytes = decoded_megabytes(files)
        stored = sum(path.stat().st_size for path in files) / 1e6
        print(f"{len(files)} files, {stored:.0f} MB, decoded {megabytes:.0f} MB")
        best: Best = {}
        for _ in range(choices.rounds):
            for count in choices.workers:
                for kind in ("plain", "ingest"):
                    now = measure(kind, folder, count, Path(temporary, "store"))
                    before = best.get((kind, count), now)
                    best[kind, count] = min(now[0], before[0]), min(now[1], before[1])
    report(best, choices.workers, megabytes)


def report(best: Best, counts: list[int], megabytes: float) -> None:
    print("| processes | plain MB/s | ingest MB/s | ratio | goal | ratio of processor time |")
    print("| --: | --: | --: | --: | --: | --: |")
    for count in counts:
        (plain, plain_work), (ingest, ingest_work) = best["plain", count], best["ingest", count]
        rates = f"{megabytes / plain:.1f} | {megabytes / ingest:.1f} | {plain / ingest:.2f}"
        print(f"| {count} | {rates} | {GOAL:.2f} | {plain_work / ingest_work:.2f} |")


def write_input(folder: Path, side: int, dates: int) -> None:
    def write(path: Path, band: str, number: int) -> None:
        write_texture(path, band, side, seed=1000 * number + sum(band.encode()))

    started = time.monotonic()
    write_products(folder, dates, (*DEFAULT_BANDS, "SCL"), "jp2", write)
    write_parcels(folder / "parcels.gpkg", side)
    print(f"products written in {time.monotonic() - started:.0f} s")


def decoded_megabytes(files: list[Path]) -> float:
    total = 0
    for path in files:
        with rasterio.open(path) as dataset:
            total += dataset.width * dataset.height * (1 if dataset.dtypes[0] == "uint8" else 2)
    return total / 1e6


def measure(kind: str, folder: Path, count: int, store: Path) -> tuple[float, float]:
    """Seconds of a run by the clock on the wall, and of the processors with all processes counted."""
    shutil.rmtree(store, ignore_errors=True)
    started = time.monotonic()
    if kind == "ingest":
        places = [folder, "--parcels", folder / "parcels.gpkg", "-o", store]
        command = ["-m", "cropstar", "ingest", "sentinel2", *map(str, places), "--workers", str(count), "--quiet"]
        processes = [start(command, None)]
    else:
        parts = [["-c", PLAIN, str(folder), str(part), str(count)] for part in range(count)]
        processes = [start(part, None if count == 1 else 1) for part in parts]
    work = 0.0
    for process in processes:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise SystemExit(f"{kind} failed")
        work += usage.ru_utime + usage.ru_stime
    return time.monotonic() - started, work


def start(arguments: list[str], threads: int | None) -> subprocess.Popen[bytes]:
    settings = {} if threads is None else {"GDAL_NUM_THREADS": str(threads)}
    return subprocess.Popen([sys.executable, *arguments], env={**os.environ, **settings})


if __name__ == "__main__":
    main()
