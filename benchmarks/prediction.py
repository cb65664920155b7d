"""How fast and how large prediction is: ConvSTAR 4 x 32 on 24 dates of 4 bands.

    OMP_NUM_THREADS=1 python benchmarks/prediction.py margin      what the margin costs at cores of 256 pixels
    OMP_NUM_THREADS=1 python benchmarks/prediction.py pipeline    reading and writing beside the bare model
    OMP_NUM_THREADS=1 python benchmarks/prediction.py memory      the peak of `cropstar predict` on 4096 x 4096 pixels
    OMP_NUM_THREADS=1 python benchmarks/prediction.py memory --side 10980 --blocks 4
    OMP_NUM_THREADS=1 python benchmarks/prediction.py memory --blocks 0         all of it, which takes long

The raster is sparse but for its upper left 1024 x 1024 pixels, which are noise: nothing is harder to decompress.
Holes are nodata, which costs a model as much as data. `memory` stops after some blocks, says how long all would have
taken, and prints the peak of the resident memory (VmHWM) after each block: it must not grow from one to the next, or
the few blocks say nothing of all.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import rasterio
from rasterio.windows import Window as RasterioWindow
from untrained import write_untrained

DATES, BANDS, NOISY = 24, ("B02", "B03", "B04", "B08"), 1024
SETTINGS = {
    "convstar": {"name": "convstar", "layers": 4, "hidden": 32},
    "star": {"name": "star", "layers": 4, "hidden": 64},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["margin", "pipeline", "memory"])
    parser.add_argument("--model", choices=sorted(SETTINGS), default="convstar")
    parser.add_argument("--side", type=int, default=4096, help="pixels of the raster")
    parser.add_argument("--blocks", type=int, default=4, help="how many are computed; 0 for all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--window", type=int, default=None, help="pixels; `memory` takes what the memory allows")
    parser.add_argument("--memory", default="2GB")
    parser.add_argument("--backend", default="auto", help="of `pipeline`; see models/backends.py")
    choices = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        raster, model = Path(temporary, "tile.tif"), Path(temporary, "model.safetensors")
        write_raster(raster, choices.side)
        write_untrained(model, raster, SETTINGS[choices.model])
        if choices.what == "margin":
            margin(raster, model, choices.window or 256, choices.rounds)
        elif choices.what == "pipeline":
            pipeline(raster, model, choices.window or 256, choices.rounds, choices.blocks, choices.backend)
        else:
            memory(raster, model, choices)


def write_raster(path: Path, side: int) -> None:
    days = [date(2023, 3, 1) + timedelta(days=10 * number) for number in range(DATES)]
    profile = {"driver": "GTiff", "dtype": "uint16", "count": DATES * len(BANDS), "height": side, "width": side}
    blocks = {"tiled": True, "blockxsize": 256, "blockysize": 256, "compress": "deflate", "interleave": "band"}
    place = rasterio.transform.from_origin(600_000, 5_400_000, 10, 10)
    noise = np.random.default_rng(0)
    with rasterio.open(
        path, "w", **profile, **blocks, crs="EPSG:32632", transform=place, SPARSE_OK=True, bigtiff="yes"
    ) as dataset:
        for number, (day, band) in enumerate(((day, band) for day in days for band in BANDS), start=1):
            dataset.set_band_description(number, f"{day} {band}")
            pixels = noise.integers(1, 10_000, (min(NOISY, side),) * 2).astype(np.uint16)
            dataset.write(pixels, number, window=RasterioWindow(0, 0, *pixels.shape))


def margin(raster: Path, model: Path, size: int, rounds: int) -> None:
    """The core alone without a margin, with the shrinking margin, and with the whole margin on every date.

    Processor time of the one thread that computes: other programs on the machine do not count.
    """
    import torch

    from cropstar.geo.windows import Window
    from cropstar.prediction.predictor import Predictor
    from cropstar.runtime import keep_large_buffers
    from cropstar.sources.stack import StackSeries

    keep_large_buffers()
    torch.set_num_threads(1)
    cpu = torch.device("cpu")
    series, window = StackSeries(raster), Window(256, 256, size, size)
    ways = {"none": Predictor(model, cpu, margin=0), "shrinking": Predictor(model, cpu), "whole": Predictor(model, cpu)}
    halo = ways["shrinking"].halo(series)
    ways["whole"].model.radius = lambda _: halo  # type: ignore[assignment,method-assign]  # never less, to the last date
    read = {name: way.read(series, window) for name, way in ways.items()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    found = {}
    for _ in range(rounds + 1):
        for name, way in ways.items():
            started = time.thread_time()
            found[name], _ = way.classify(series, window, read[name])
            times[name].append(time.thread_time() - started)
    # A way that computes less than the window would look fast: all must give the core, both margins the same one.
    assert all(each.shape[1:] == (size, size) for each in found.values())
    assert np.abs(found["shrinking"] - found["whole"]).max() <= 1e-5
    print(f"cores of {size} pixels, margin {halo}, best of {rounds + 1}, processor time of one thread:")
    for name, seconds in times.items():
        share = min(times["none"]) / min(seconds)
        spread = f"{min(seconds):.2f} to {max(seconds):.2f} s"
        print(f"  {name:10} {size**2 / min(seconds):8,.0f} px/s ({spread})  {share:.2f} of the speed without a margin")
    series.close()


def pipeline(raster: Path, model: Path, size: int, rounds: int, count: int, backend: str) -> None:
    """The whole command's computing (reading, model, blocks on the disk) over the bare model, on the same windows."""
    import torch

    from cropstar.execution.local import default_workers
    from cropstar.execution.threads import WriteBehind, read_ahead
    from cropstar.geo.raster import bound_gdal
    from cropstar.geo.windows import split
    from cropstar.prediction.blocks import BlockFolder, BlockResult
    from cropstar.prediction.predictor import Predictor
    from cropstar.runtime import keep_large_buffers
    from cropstar.sources.stack import StackSeries

    keep_large_buffers()
    bound_gdal(threads=default_workers())
    series = StackSeries(raster)
    predictor = Predictor(model, torch.device("cpu"), backend=backend)
    windows = list(split((NOISY, NOISY), size))[: count or None]
    pixels = sum(window.height * window.width for window in windows)

    def bare() -> float:
        """Seconds in the model alone."""
        total = 0.0
        for window in windows:
            observations = predictor.read(series, window)
            started = time.perf_counter()
            predictor.classify(series, window, observations)
            total += time.perf_counter() - started
        return total

    def whole(number: int) -> float:
        folder = BlockFolder(raster.with_name("map.tif"), f"round{number}")
        started = time.perf_counter()
        with WriteBehind(folder.write) as behind, read_ahead(windows, lambda w: predictor.read(series, w)) as ready:
            for window, observations in ready:
                probabilities, _ = predictor.classify(series, window, observations)
                behind.put(BlockResult(window, probabilities.argmax(axis=0).astype(np.uint8)))
        return time.perf_counter() - started

    predictor.classify(series, windows[0], predictor.read(series, windows[0]))
    pairs = [(bare(), whole(number)) for number in range(rounds)]
    for one, other in pairs:
        print(f"  bare {pixels / one:8,.0f} px/s, pipeline {pixels / other:8,.0f} px/s: {one / other:.2f}")
    print(f"median of {rounds}: pipeline over bare model {np.median([one / other for one, other in pairs]):.2f}")
    series.close()


def memory(raster: Path, model: Path, choices: argparse.Namespace) -> None:
    """Run the command in a process of its own and look at the most that it held."""
    output = raster.with_name("map.tif")
    command = [sys.executable, "-m", "cropstar", "predict", str(raster), "-o", str(output), "--model", str(model)]
    command += ["--memory", choices.memory, "--log-json"]
    command += ["--window", str(choices.window)] if choices.window else []
    started, peak, done = time.monotonic(), 0.0, 0
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    first: float | None = None
    while process.poll() is None:
        peak = max(peak, high_water(process.pid))
        before, done = done, len(list(raster.parent.glob(".map.tif.*.blocks/*.npz")))
        if done > before:
            print(f"  {done} blocks: peak {peak / 1e6:,.0f} MB", flush=True)
        first = first or (time.monotonic() if done else None)
        if choices.blocks and done >= choices.blocks:
            process.terminate()
            process.wait()
        time.sleep(0.05)
    seconds = time.monotonic() - started
    assert process.stderr is not None
    said = process.stderr.read()
    print(said.splitlines()[0])
    if process.returncode not in (0, 143):
        raise SystemExit(said)
    print(f"peak {peak / 1e6:,.0f} MB of {choices.memory}; {done} blocks in {seconds:.0f} s, exit {process.returncode}")
    if process.returncode == 143 and first is not None and done > 1:
        sizes = [np.load(path)["classes"].size for path in raster.parent.glob(".map.tif.*.blocks/*.npz")]
        rate = sum(sizes[1:]) / max(time.monotonic() - first, 1e-9)
        hours = choices.side**2 / rate / 3600
        print(f"extrapolated from {done} blocks: {rate:,.0f} px/s, {hours:.1f} h for all {choices.side**2:,} pixels")


def high_water(process: int) -> float:
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return max((float(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), default=0.0)


if __name__ == "__main__":
    main()
