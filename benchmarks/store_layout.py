"""Random patch reads from HDF5 under different chunk shapes, filters and ways of reading.

    OMP_NUM_THREADS=1 BLOSC_NTHREADS=1 python benchmarks/store_layout.py
    OMP_NUM_THREADS=1 BLOSC_NTHREADS=1 python benchmarks/store_layout.py --safe FOLDER_OF_SAFE_PRODUCTS

Prints the table that docs/store.md shows. A sample is (30 dates, 4 bands, 48, 48) uint16. The files lie in the
page cache and one thread reads them, so CPU time is the time; unlike the wall clock it does not measure what else
the machine does. Rows are measured in turn, in random order, and shares are medians over the rounds.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import rasterio
from hdf5plugin import LZ4, Bitshuffle, Blosc, Blosc2, Zstd
from numpy.typing import NDArray

from cropstar.geo.raster import open_raster
from cropstar.geo.windows import Window
from cropstar.sources.stack import StackSeries
from cropstar.sources.synthetic import SceneOptions, write_scene

DATES, BANDS = 30, ("B02", "B03", "B04", "B08")
PATCH = 48
SIDE = 960  # pixels a side: 221 MB, far more than the processor's caches hold
SAMPLES, BATCH = 16, 8  # of a round
SLOWEST = 0.05  # seconds a row may take in one round, so that the slow rows do not take all the time

Values = NDArray[Any]
Place = tuple[int, int]  # top and left of a patch
Read = Callable[[Place], Values]


@dataclass(frozen=True)
class Row:
    """A file's layout and the way it is read."""

    name: str
    filters: dict[str, Any] = field(default_factory=dict)
    chunk: tuple[int, ...] | bool | None = (DATES, len(BANDS), PATCH, PATCH)  # True: h5py's choice; None: contiguous
    aligned: bool = True  # patches on the chunk grid, or anywhere
    by_name: bool = False  # look the dataset up at every read instead of keeping it open
    cache: int = 0  # bytes of HDF5's chunk cache

    @property
    def file(self) -> tuple[str, ...]:
        """Rows with the same key share one file."""
        return (str(self.chunk), str(sorted(self.filters.items())))


@dataclass(frozen=True)
class Reader:
    values: Read
    mask: Read | None
    aligned: bool


@dataclass
class Result:
    size: float  # share of the uncompressed size
    written: float  # MB/s
    seconds: list[float] = field(default_factory=list)  # a bare read, one entry a round
    training: list[float] = field(default_factory=list)  # values and mask read, normalised and stacked


REFERENCE = "uncompressed, chunk = patch"
MAP_OF_PATCHES, MAP_OF_RASTER = "memory map, patch by patch", "memory map of the raster"
SHUFFLE = {"shuffle": True}
HIGH: dict[str, Any] = dict(Blosc(cname="lz4hc", clevel=5, shuffle=Blosc.SHUFFLE))
ROWS = (
    Row(REFERENCE),
    Row("uncompressed, contiguous", chunk=None),
    Row("gzip 1 + shuffle", {"compression": "gzip", "compression_opts": 1, **SHUFFLE}),
    Row("gzip 4, h5py's automatic chunks", {"compression": "gzip", "compression_opts": 4}, chunk=True),
    Row("lzf + shuffle", {"compression": "lzf", **SHUFFLE}),
    Row("zstd 3 + shuffle", {**Zstd(clevel=3), **SHUFFLE}),
    Row("lz4 + shuffle", {**LZ4(), **SHUFFLE}),
    Row("bitshuffle-lz4", dict(Bitshuffle(cname="lz4"))),
    Row("bitshuffle-zstd 3", dict(Bitshuffle(cname="zstd", clevel=3))),
    Row("blosc 0: copies, compresses nothing", dict(Blosc("lz4", 0, Blosc.NOSHUFFLE))),
    *(Row(f"blosc lz4 {level} + shuffle", dict(Blosc("lz4", level))) for level in (1, 5, 9)),
    Row("blosc lz4 5 + bitshuffle", dict(Blosc("lz4", 5, Blosc.BITSHUFFLE))),
    *(Row(f"blosc lz4hc {level} + shuffle", dict(Blosc("lz4hc", level))) for level in (1, 3, 5, 7, 9)),
    Row("blosc zstd 1 + shuffle", dict(Blosc("zstd", 1))),
    *(Row(f"blosc2 lz4 {level} + shuffle", dict(Blosc2("lz4", level))) for level in (1, 5, 9)),
    Row("blosc2 lz4 9 + bitshuffle", dict(Blosc2("lz4", 9, Blosc2.BITSHUFFLE))),
    Row("blosc2 lz4hc 9 + shuffle", dict(Blosc2("lz4hc", 9))),
    Row("lz4hc 5, chunk (T,C,24,24)", HIGH, chunk=(DATES, len(BANDS), 24, 24)),
    Row("lz4hc 5, chunk (T,C,96,96)", HIGH, chunk=(DATES, len(BANDS), 96, 96)),
    Row("lz4hc 5, chunk (1,1,96,96)", HIGH, chunk=(1, 1, 96, 96)),
    Row("uncompressed, unaligned crops", aligned=False),
    Row("uncompressed, unaligned crops, 8 MiB cache", aligned=False, cache=8 * 2**20),
    Row("lz4hc 5, unaligned crops", HIGH, aligned=False),
    Row("lz4hc 5, unaligned crops, 8 MiB cache", HIGH, aligned=False, cache=8 * 2**20),
    Row("lz4hc 5, 8 MiB chunk cache", HIGH, cache=8 * 2**20),
    Row("uncompressed, dataset looked up at each read", by_name=True),
    Row("lz4hc 5, dataset looked up at each read", HIGH, by_name=True),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--safe", type=Path, help="folder of Sentinel-2 .SAFE products of one place")
    parser.add_argument("--raw", action="store_true", help="the embedded scene with its clouds, not zeroed as stored")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--folder", type=Path, help="where the files are made and removed again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        values = mosaic(season(sentinel2(options.safe) if options.safe else embedded(folder, raw=options.raw)))
        print(f"{values.shape} {values.dtype}, {values.nbytes / 1e6:.0f} MB, {(values == 0).mean():.0%} zeros\n")
        print(table(measure(values, folder, options.rounds)))


# The data


def embedded(folder: Path, *, raw: bool) -> Values:
    """(dates, bands, height, width) of the embedded scene; invalid pixels hold zero unless `raw`."""
    tile, _ = write_scene(folder, SceneOptions())
    if raw:
        with open_raster(tile) as dataset:
            names = [text.split()[-1] for text in dataset.descriptions]
            pixels: Values = dataset.read([index for index, band in enumerate(names, 1) if band in BANDS])
            return pixels.reshape(-1, len(BANDS), *dataset.shape)
    series = StackSeries(tile)
    observations = series.read(Window(0, 0, series.grid.height, series.grid.width))
    series.close()
    return observations.values[:, [series.bands.index(band) for band in BANDS]]


def sentinel2(folder: Path) -> Values:
    """The 10 m bands of every product that holds data, in the order of their dates, as delivered."""
    products = sorted(folder.glob("*.SAFE"), key=lambda path: path.name.split("_")[2])
    if not products:
        raise SystemExit(f"no .SAFE product in {folder}")
    dates = [np.stack([_band(product, band) for band in BANDS]) for product in products]
    return np.stack([date for date in dates if date.any()])


def _band(product: Path, band: str) -> Values:
    (path,) = product.glob(f"GRANULE/*/IMG_DATA/R10m/*_{band}_10m.jp2")
    with rasterio.open(path) as dataset:
        pixels: Values = dataset.read(1)
    return pixels


def season(values: Values) -> Values:
    """Thirty dates: the dates at hand again and again, mirrored so that no two planes are equal."""
    mirrors = (np.s_[:, :, :], np.s_[:, ::-1, :], np.s_[:, :, ::-1], np.s_[:, ::-1, ::-1])
    return np.stack([values[date % len(values)][mirrors[date // len(values) % 4]] for date in range(DATES)])


def mosaic(values: Values) -> Values:
    """Repeat the scene by mirroring at its edges; each chunk is compressed alone, so repeats gain nothing."""
    padding = [(0, 0), (0, 0)] + [(0, max(SIDE - size, 0)) for size in values.shape[2:]]
    return np.ascontiguousarray(np.pad(values, padding, mode="symmetric")[:, :, :SIDE, :SIDE])


# Measuring


def measure(values: Values, folder: Path, rounds: int) -> dict[str, Result]:
    valid = (values != 0).all(axis=1).astype(np.uint8)
    files: dict[tuple[str, ...], tuple[Path, float, float]] = {}
    results: dict[str, Result] = {}
    readers: dict[str, Reader] = {}
    for row in ROWS:
        if row.file not in files:
            files[row.file] = write(folder / f"{len(files)}.h5", row, values, valid)
        path, size, speed = files[row.file]
        results[row.name] = Result(size, speed)
        handle = h5py.File(path, "r", rdcc_nbytes=row.cache)
        readers[row.name] = Reader(of_dataset(handle, "values", row), of_dataset(handle, "valid", row), row.aligned)
    for name, map_values in ((MAP_OF_PATCHES, map_of_patches), (MAP_OF_RASTER, map_of_raster)):
        results[name] = Result(1.0, float("nan"))
        readers[name] = Reader(map_values(values, folder), None, aligned=True)
    for name, reader in readers.items():  # warms the cache and proves that every row reads the same
        place = (PATCH, 2 * PATCH) if reader.aligned else (7, 11)
        if not np.array_equal(reader.values(place), values[_selection(place)]):
            raise SystemExit(f"{name} reads something else")
    random = np.random.default_rng(1)
    for _ in range(rounds):
        aligned = random.integers(0, SIDE // PATCH, (SAMPLES, 2)) * PATCH
        anywhere = random.integers(0, SIDE - PATCH, (SAMPLES, 2))
        for name in random.permutation(list(results)):
            reader, result = readers[name], results[name]
            places = [(int(top), int(left)) for top, left in (aligned if reader.aligned else anywhere)]
            result.seconds.append(bare_read(reader.values, places))
            if reader.mask is not None:
                result.training.append(training_read(reader.values, reader.mask, places[:BATCH]))
    return results


def write(path: Path, row: Row, values: Values, valid: Values) -> tuple[Path, float, float]:
    """The file, its share of the uncompressed size and the speed of writing in MB/s."""
    with h5py.File(path, "w", libver=("v110", "v110")) as handle:
        start = time.thread_time()
        dataset = handle.create_dataset("values", data=values, chunks=row.chunk, **row.filters)
        handle.flush()
        seconds = time.thread_time() - start
        size = dataset.id.get_storage_size() / values.nbytes
        chunk = (row.chunk[0], *row.chunk[2:]) if isinstance(row.chunk, tuple) else row.chunk
        handle.create_dataset("valid", data=valid, chunks=chunk, **row.filters)
    return path, size, values.nbytes / 1e6 / seconds


def of_dataset(handle: Any, name: str, row: Row) -> Read:
    if row.by_name:
        return lambda place: handle[name][_selection(place)]
    dataset = handle[name]
    return lambda place: dataset[_selection(place)]


def map_of_patches(values: Values, folder: Path) -> Read:
    """Samples laid end to end, each contiguous: the fastest that reading can be."""
    count = SIDE // PATCH
    split = values.reshape(DATES, len(BANDS), count, PATCH, count, PATCH).transpose(2, 4, 0, 1, 3, 5)
    np.ascontiguousarray(split).tofile(folder / "patches.bin")
    samples = np.memmap(folder / "patches.bin", values.dtype, "r", shape=split.shape)
    return lambda place: np.array(samples[place[0] // PATCH, place[1] // PATCH])


def map_of_raster(values: Values, folder: Path) -> Read:
    values.tofile(folder / "raster.bin")
    raster = np.memmap(folder / "raster.bin", values.dtype, "r", shape=values.shape)
    return lambda place: np.array(raster[_selection(place)])


def bare_read(read: Read, places: Iterable[Place]) -> float:
    """CPU seconds a sample."""
    start, count = time.thread_time(), 0
    for place in places:
        read(place)
        count += 1
        if time.thread_time() - start > SLOWEST:
            break
    return (time.thread_time() - start) / count


def training_read(read: Read, read_mask: Read, places: list[Place]) -> float:
    """CPU seconds a sample of a batch as training wants it: values and mask, normalised, stacked."""
    start = time.thread_time()
    factor, shift = np.full((len(BANDS), 1, 1), 2e-3, np.float32), np.full((len(BANDS), 1, 1), -2.0, np.float32)
    np.stack([read(place).astype(np.float32) * factor + shift for place in places])
    np.stack([read_mask(place).view(np.bool_) for place in places])
    return (time.thread_time() - start) / len(places)


def _selection(place: Place) -> tuple[Any, ...]:
    return (..., slice(place[0], place[0] + PATCH), slice(place[1], place[1] + PATCH))


# The table


def table(results: dict[str, Result]) -> str:
    lines = [
        "| layout and filter | size | write MB/s | samples/s | of uncompressed | as training reads | of map, patches "
        "| of map, raster |",
        "| --- | --: | --: | --: | --: | --: | --: | --: |",
    ]
    for name, result in results.items():
        bases = (REFERENCE, MAP_OF_PATCHES, MAP_OF_RASTER)
        shares = [_share(results[base].seconds, result.seconds) for base in bases]
        training = _share(results[REFERENCE].training, result.training) if result.training else ""
        written = "" if np.isnan(result.written) else f"{result.written:.0f}"
        rate = 1 / float(np.median(result.seconds))
        cells = [name, f"{result.size:.3f}", written, f"{rate:.0f}", shares[0], training, shares[1], shares[2]]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _share(reference: list[float], measured: list[float]) -> str:
    share = float(np.median(np.array(reference) / np.array(measured)))
    return f"{share:.2f}" if share >= 0.01 else f"{share:.4f}"


if __name__ == "__main__":
    main()
