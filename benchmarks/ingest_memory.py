"""How much memory ingest takes for a whole Sentinel-2 tile: 10980 x 10980 pixels, 13 files a date, 70 dates.

    OMP_NUM_THREADS=1 python benchmarks/ingest_memory.py                 the first 16 tiles of 240 pixels
    OMP_NUM_THREADS=1 python benchmarks/ingest_memory.py --spread        16 tiles all over: every part is decoded
    OMP_NUM_THREADS=1 python benchmarks/ingest_memory.py --tiles 2116    all of it, which takes long

L2A products have 12 reflectance bands and the scene classification, 13 files; all are of full size. Their pixels are
a hole in a sparse GeoTIFF that reads as one value, but for the upper left 1024 x 1024 pixels of each, which are
random 16-bit numbers: nothing is harder to compress. Ingest runs with one process and with two workers, and the
peak of the resident memory of each process (VmHWM) is printed.
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

import numpy as np
import rasterio
from rasterio.windows import Window
from safe_products import profile, write_parcels, write_products

from cropstar.geo.sensors import NATIVE_RESOLUTION
from cropstar.sources.base import RasterScene, TileSpec

SIDE, DATES, NOISY = 10_980, 70, 1024
BANDS = tuple(band for band in NATIVE_RESOLUTION if band != "B10")  # which L2A products do not have
VARIANTS = 8  # of the noise; dates share files as hard links, far enough apart for no compression to notice
LIMIT = 2e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiles", type=int, default=16, help="how many of the 2116 tiles are made")
    parser.add_argument("--spread", action="store_true", help="tiles from all over the scene instead of the corner")
    parser.add_argument("--dates", type=int, default=DATES)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    choices = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder, store = Path(temporary, "products"), Path(temporary, "store")
        write_input(folder, choices.dates, Path(temporary))
        print(f"{choices.dates} dates, {len(BANDS)} bands and SCL, {SIDE} x {SIDE} pixels; limit {LIMIT / 1e9:g} GB")
        for count in choices.workers:
            shutil.rmtree(store, ignore_errors=True)
            peaks = run(["inside", str(folder), str(store), str(count), str(choices.tiles), str(int(choices.spread))])
            for name, peak in peaks.items():
                verdict = "within" if peak < LIMIT else "ABOVE"
                print(f"workers {count}: {name}: peak {peak / 1e6:.0f} MB, {verdict} the limit", flush=True)


def write_input(folder: Path, dates: int, temporary: Path) -> None:
    originals: dict[tuple[str, int], Path] = {}

    def write(path: Path, band: str, number: int) -> None:
        key = band, number % VARIANTS
        if key not in originals:
            originals[key] = temporary / f"{band}-{number}.tif"
            write_sparse(originals[key], band, seed=number)
        os.link(originals[key], path)

    write_products(folder, dates, (*BANDS, "SCL"), "tif", write)
    write_parcels(folder / "parcels.gpkg", SIDE)


def write_sparse(path: Path, band: str, seed: int) -> None:
    fill, blocks = (4 if band == "SCL" else 3000), {"tiled": True, "blockxsize": 1024, "blockysize": 1024}
    settings = profile(band, SIDE, driver="GTiff", SPARSE_OK=True, nodata=fill, **blocks)
    with rasterio.open(path, "w", **settings) as dataset:
        if band != "SCL":
            noise = np.random.default_rng([seed, *band.encode()]).integers(1, 65_536, (NOISY, NOISY))
            dataset.write(noise.astype(np.uint16), 1, window=Window(0, 0, NOISY, NOISY))


def run(arguments: list[str]) -> dict[str, float]:
    """The peak of each process that has anything to do with it, in bytes."""
    process = subprocess.Popen([sys.executable, __file__, *arguments])
    peaks: dict[str, float] = {}
    while process.poll() is None:
        note(process.pid, "the ingest itself", peaks)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        for child in children.read_text().split() if children.exists() else ():
            note(int(child), f"process {child}", peaks)
        time.sleep(0.05)
    if process.returncode:
        raise SystemExit("ingest failed")
    return {name: peak for name, peak in peaks.items() if peak > 50e6}  # not Python's own helper


def note(number: int, name: str, peaks: dict[str, float]) -> None:
    try:
        status = Path(f"/proc/{number}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            peaks[name] = float(line.split()[1]) * 1024


# In the measured process


class SomeTiles(RasterScene):
    """A scene of which only some tiles are made."""

    wanted: int
    spread: bool

    def tile_specs(self) -> list[TileSpec]:
        pieces = super().tile_specs()
        if self.spread:
            return pieces[:: -(-len(pieces) // self.wanted)]
        return sorted(pieces, key=lambda piece: max(piece.window.top, piece.window.left))[: self.wanted]


def inside(folder: Path, store: Path, workers: int, tiles: int, spread: bool) -> None:
    """What `cropstar ingest FOLDER --parcels ... --workers N` does, for some of the tiles."""
    from cropstar.geo.raster import bound_gdal
    from cropstar.reports.contents import summarise
    from cropstar.sources.catalogue import SOURCES, IngestRequest
    from cropstar.sources.ingest import ingest

    bound_gdal()
    started = time.monotonic()
    (scene,) = SOURCES["sentinel2"](IngestRequest(folder, folder / "parcels.gpkg", special={"bands": BANDS}))
    assert isinstance(scene, RasterScene)
    total = len(scene.tile_specs())
    scene.__class__ = SomeTiles
    scene.wanted, scene.spread = tiles, spread  # type: ignore[attr-defined]
    opened = time.monotonic()
    result = ingest([scene], store, workers=workers)
    made = time.monotonic()
    summarise(store)
    scene.close()
    print(
        f"workers {workers}: opened and digested in {opened - started:.0f} s; {result.written} of {total} tiles in "
        f"{made - opened:.0f} s; summary {time.monotonic() - made:.0f} s"
    )
    if not spread:  # of tiles that lie far apart much more is decoded than they need
        whole = opened - started + (made - opened) * total / result.written
        print(f"workers {workers}: all tiles would take about {whole / 3600:.1f} h", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["inside"]:
        inside(Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]), sys.argv[6] == "1")
    else:
        main()
