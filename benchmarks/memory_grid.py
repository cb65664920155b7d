"""Whether `cropstar predict --memory` holds: the peak of random jobs, each in a process of its own.

    python benchmarks/memory_grid.py --jobs 100

Models, sizes, dates, bands, layers, files and the memory that is asked for are drawn at random, of jobs that take some
seconds: `--first 40 --jobs 20` runs those with the numbers 40 to 59. A job is *within* if
its peak resident memory is at most what was asked for, *refused* if it ended with exit code 6 before it computed
anything, and *beyond* otherwise.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from rasterio.transform import from_origin

MODELS = ("star", "convstar", "bistar", "lstm", "convgru", "gru", "tcn", "transformer")
FILES: tuple[list[str], ...] = (
    [],
    [],
    ["--probabilities", "--confidence"],
    ["--parcels", "parcels.gpkg"],
    ["--html"],
    ["--smooth", "bayesian", "--probabilities"],
    ["--uncertainty", "entropy", "--html", "--parcels", "parcels.gpkg"],
)
OF_STATES = (["--state", "season.h5"], ["--every-date"])
MOST_PRODUCTS = 2e10  # of numbers in a job: some seconds
BOUNDS = (520, 640, 700, 800, 1000, 1300, 2000)  # megabytes


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--jobs", type=int, default=20)
    options.add_argument("--first", type=int, default=0)
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    ends: Counter[str] = Counter()
    for number in range(given.first, given.first + given.jobs):
        with tempfile.TemporaryDirectory() as folder:
            end, line = try_job(Path(folder), random.Random(1000 * given.seed + number))
        ends[end] += 1
        print(f"{number:3d} {end:8} {line}", flush=True)
    print(dict(ends))
    sys.exit(1 if ends["beyond"] or ends["failed"] else 0)


def try_job(folder: Path, chance: random.Random) -> tuple[str, str]:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.prediction.making import untrained

    cost = MOST_PRODUCTS + 1
    while cost > MOST_PRODUCTS:
        side, dates, bands = chance.choice([64, 200, 500, 900]), chance.choice([3, 8, 20]), chance.choice([2, 4, 8])
        name = chance.choice(MODELS)
        settings: dict[str, Any] = {"layers": chance.choice([1, 2, 4]), "hidden": chance.choice([8, 16, 32, 64])}
        reach = 9 if name.startswith("conv") else 1
        cost = side**2 * dates * settings["layers"] * settings["hidden"] ** 2 * 4 * reach
    write_stack(folder / "tile.tif", side, dates, bands)
    write_parcels(folder / "parcels.gpkg", side)
    untrained(folder / "model.safetensors", folder / "tile.tif", name, **settings)
    files = chance.choice(FILES)
    if chance.random() < 0.25 and name in ("star", "convstar", "lstm", "gru", "convgru"):
        files = chance.choice(OF_STATES)
    bound = chance.choice(BOUNDS)
    command = ["predict", "tile.tif", "--model", "model.safetensors", "-o", "map.tif", "--memory", f"{bound}MB"]
    code, peak, said = run([*command, *files], folder)
    facts = f"{bound} MB, peak {peak:4.0f}: {side}x{side} {dates}x{bands} {name} {settings} {' '.join(files)}"
    if code == 6 and re.search(r"error: [\d.]+ GB are not enough", said):
        return "refused", facts
    if code != 0:
        return "failed", f"{facts}: {said.strip().splitlines()[-1]}"
    return "within" if peak <= bound else "beyond", facts


def run(command: list[str], folder: Path) -> tuple[int, float, str]:
    """Exit code, peak in megabytes (of a million bytes, as --memory has them) and messages."""
    with (folder / "said").open("w+") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "cropstar", *command],
            cwd=folder,
            stdout=said,
            stderr=said,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        return process.returncode, usage.ru_maxrss * 1024 / 1e6, said.read()


def write_stack(path: Path, side: int, dates: int, bands: int) -> None:
    days = [f"2023-{3 + number // 4:02d}-{1 + 7 * (number % 4):02d}" for number in range(dates)]
    profile = {"driver": "GTiff", "dtype": "uint16", "count": dates * bands, "height": side, "width": side}
    place = {"crs": "EPSG:32632", "transform": from_origin(600_000, 5_300_000, 10, 10), "nodata": 0}
    stored = {"tiled": True, "blockxsize": 256, "blockysize": 256, "compress": "deflate"}
    values = np.random.default_rng(0).integers(1, 10_000, (side, side), dtype=np.uint16)
    with rasterio.open(path, "w", **profile, **place, **stored) as dataset:
        for number in range(dates * bands):
            dataset.write(values, number + 1)
            dataset.set_band_description(number + 1, f"{days[number // bands]} B{number % bands + 1:02d}")


def write_parcels(path: Path, side: int) -> None:
    import geopandas
    from shapely import box

    corners = range(0, side * 10, max(side, 100))
    fields = [box(600_000 + x, 5_300_000 - y - 80, 600_080 + x, 5_300_000 - y) for x in corners for y in corners]
    geopandas.GeoDataFrame({"id": range(len(fields))}, geometry=fields, crs="EPSG:32632").to_file(path)


if __name__ == "__main__":
    main()
