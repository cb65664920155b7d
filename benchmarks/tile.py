"""A Sentinel-2 tile from end to end: 24 dates of 10 bands to a cloud-optimised map, and where the time goes.

    OMP_NUM_THREADS=2 python benchmarks/tile.py                      a part of 1536 x 1536 pixels: some 6 minutes
    OMP_NUM_THREADS=2 python benchmarks/tile.py --side 2745 --models star

The part is mapped by `predict` as any raster would be. What a whole tile of 10,980 x 10,980 pixels takes is reckoned
from it, in proportion to the pixels but for "the rest", which is opening and planning. Images are fields with noise,
compressed to about seven tenths. Seconds are of the clock and add up; reading and writing go on beside the model in
threads of their own, whose processor seconds are given.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from untrained import write_untrained

DATES, TILE = 24, 10_980
BANDS = ("B02", "B03", "B04", "B05", "B06", "B07", "B08", "B8A", "B11", "B12")
MODELS: dict[str, dict[str, Any]] = {
    "star": {"name": "star", "layers": 2, "hidden": 64},
    "convstar": {"name": "convstar", "layers": 4, "hidden": 32},
    "rf": {"name": "rf"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=1536, help="pixels of the part that is mapped")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--precisions", default="float32,bfloat16")
    parser.add_argument("--memory", default="2GB")
    choices = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        started = time.perf_counter()
        images = write_images(folder / "season", choices.side)
        size = sum(path.stat().st_size for path in images)
        share = size / (2 * DATES * len(BANDS) * choices.side**2)
        taken = time.perf_counter() - started
        print(f"{len(images)} files, {size / 1e9:.2f} GB, {share:.2f} of the values; made in {taken:.0f} s")
        columns = ("seconds", *PHASES, "reading (cpu)", "writing (cpu)", "px/s", "a whole tile, reckoned")
        print("| model | " + " | ".join(columns) + " |\n| --- |" + " --: |" * len(columns))
        for name in choices.models.split(","):
            write_untrained(folder / name, folder / "season", MODELS[name])
            for precision in choices.precisions.split(",") if name != "rf" else ["float32"]:
                measure(folder, name, precision, choices)


def write_images(folder: Path, side: int) -> list[Path]:
    """A file a date; fields of 64 pixels with noise of 2 %, tiled and compressed as Sentinel-2 stacks usually are."""
    folder.mkdir()
    random = np.random.default_rng(0)
    fields = (
        random.integers(300, 5000, (side // 64 + 1, side // 64 + 1)).repeat(64, axis=0).repeat(64, axis=1)[:side, :side]
    )
    profile = {"driver": "GTiff", "dtype": "uint16", "count": len(BANDS), "height": side, "width": side, "nodata": 0}
    layout = {"tiled": True, "blockxsize": 512, "blockysize": 512, "compress": "deflate", "predictor": 2, "zlevel": 1}
    layout |= {"interleave": "band", "num_threads": "all_cpus"}
    place = rasterio.transform.from_origin(600_000, 5_400_000, 10, 10)
    paths = []
    for number in range(DATES):
        day = date(2023, 3, 1) + timedelta(days=10 * number)
        paths.append(folder / f"S2_{day:%Y%m%d}.tif")
        with rasterio.open(paths[-1], "w", **profile, **layout, crs="EPSG:32632", transform=place) as new:
            for band, name in enumerate(BANDS, start=1):
                noise = random.normal(1 + 0.1 * np.sin(number / 4 + band), 0.02, (side, side)).astype(np.float32)
                new.write((fields * noise).astype(np.uint16), band)
                new.set_band_description(band, f"{day} {name}")
    return paths


PHASES = ("model", "numbers to inputs", "waiting for images", "putting the map together", "the rest")


def measure(folder: Path, name: str, precision: str, choices: argparse.Namespace) -> None:
    from cropstar.prediction.blocks import BlockFolder
    from cropstar.prediction.job import MapJob, predict
    from cropstar.prediction.predictor import Predictor
    from cropstar.prediction.request import MapRequest, parse_memory

    clock: defaultdict[str, float] = defaultdict(float)
    timed(Predictor, "read", clock, "reading (cpu)", time.thread_time)
    timed(BlockFolder, "write", clock, "writing (cpu)", time.thread_time)
    timed(Predictor, "inputs", clock, "numbers to inputs", time.perf_counter)
    timed(Predictor, "answer", clock, "answer", time.perf_counter)
    timed(MapJob, "_compute", clock, "windows", time.perf_counter)
    timed(MapJob, "assemble", clock, "putting the map together", time.perf_counter)
    given = {"model": folder / name, "device": "cpu", "overwrite": True, "memory": parse_memory(choices.memory)}
    request = MapRequest.model_validate(given | {"precision": precision})
    started = time.perf_counter()
    try:
        predict(folder / "season", folder / f"{name}.tif", request)
    finally:
        for owner, method, original in reversed(REPLACED):
            setattr(owner, method, original)
        REPLACED.clear()
    seconds = time.perf_counter() - started
    clock["model"] = clock["answer"] - clock["numbers to inputs"]
    clock["waiting for images"] = clock["windows"] - clock["answer"]
    clock["the rest"] = seconds - clock["windows"] - clock["putting the map together"]
    settings = MODELS[name]
    size = f" {settings['layers']} x {settings['hidden']}" if "layers" in settings else ""
    cells = [f"{seconds:.1f}", *(f"{clock[phase]:.1f}" for phase in (*PHASES, "reading (cpu)", "writing (cpu)"))]
    minutes = (clock["the rest"] + (seconds - clock["the rest"]) * (TILE / choices.side) ** 2) / 60
    cells += [f"{choices.side**2 / seconds:,.0f}", f"{minutes:.0f} min"]
    print(f"| {name}{size}, {precision} | " + " | ".join(cells) + " |", flush=True)


REPLACED: list[tuple[Any, str, Any]] = []


def timed(owner: Any, method: str, clock: dict[str, float], phase: str, now: Callable[[], float]) -> None:
    """Add up the time of a method under the name of a phase."""
    original = getattr(owner, method)

    def measured(*given: Any, **named: Any) -> Any:
        start = now()
        try:
            return original(*given, **named)
        finally:
            clock[phase] += now() - start

    REPLACED.append((owner, method, original))
    setattr(owner, method, measured)


if __name__ == "__main__":
    main()
