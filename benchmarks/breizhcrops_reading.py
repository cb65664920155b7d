"""Parcels of BreizhCrops in random order: the package's loader against a store.

Parcels are generated with the lengths and magnitudes of real ones (no real h5 file is needed), written as the package
keeps them, one float64 data set a parcel, and ingested. Then the same parcels are read in the same random order:

    breizhcrops     `BreizhCrops.__getitem__`: opens the file, reads the rows, looks the class up
    sample          `TileReader.sample` and the label of the tile's table
    batches         `SeriesDataset.batch` as training reads: normalised, filled up to one length and stacked

Each delivers all 13 bands of all dates as a float32 tensor of reflectances, the days and the label. The package's own
transform, which draws 45 dates and drops their days, is replaced by one that keeps them.

Everything is in the page cache, one core does the work, and its time is counted: other work on the machine does not
change the ratio much.

    OMP_NUM_THREADS=1 python benchmarks/breizhcrops_reading.py
"""

from __future__ import annotations

import argparse
import importlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from cropstar.config import SplitConfig
from cropstar.datasets.samples import SeriesDataset, measure_series
from cropstar.datasets.splits import split_parcels
from cropstar.sources.breizhcrops import open_breizhcrops
from cropstar.sources.ingest import ingest
from cropstar.store.store import Store

REGION, YEAR, LEVEL = "frh04", 2017, "L1C"
SHORTEST, LONGEST = 49, 102  # dates of a parcel of 2017
CLASSES = {
    **{"ORH": "barley", "BTH": "wheat", "CZH": "rapeseed", "MIS": "corn", "TRN": "sunflower"},
    **{"VRG": "orchards", "NOX": "nuts", "PPH": "permanent meadows", "RGA": "temporary meadows"},
}
FIRST_DAY, DAY = 17_167, 86_400e9  # 2017-01-01, nanoseconds
TYPICAL = (1300, 1000, 950, 800, 1200, 2500, 3000, 3100, 3300, 900, 15, 2000, 1200)  # B1 to B12, as B8A follows B8
ROUNDS = 5

Sample = tuple[torch.Tensor, NDArray[np.int32], int]  # reflectance (T, 13), days (T,), class


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parcels", type=int, default=20_000)
    parser.add_argument("--draws", type=int, default=1_000, help="parcels that the package reads in a round")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--folder", type=Path, help="where the files are made and removed again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        root, store_folder = Path(name) / "data", Path(name) / "store"
        write_region(root, options.parcels)
        h5 = root / str(YEAR) / LEVEL / f"{REGION}.h5"
        start = time.perf_counter()
        ingest(open_breizhcrops(root), store_folder)
        seconds = time.perf_counter() - start
        size = sum(path.stat().st_size for path in store_folder.rglob("*.h5"))
        print(f"{options.parcels} parcels, h5 {h5.stat().st_size / 1e6:.0f} MB, store {size / 1e6:.0f} MB,", end=" ")
        print(f"ingested in {seconds:.0f} s\n")
        print(table(measure(root, Store.open(store_folder), options.draws, options.batch)))


# The data


def write_region(root: Path, count: int) -> None:
    folder = root / str(YEAR) / LEVEL
    folder.mkdir(parents=True)
    random = np.random.default_rng(1)
    codes = random.choice(list(CLASSES), count)
    keys = 6_000_000 + random.permutation(count)
    lengths = random.integers(SHORTEST, LONGEST + 1, count)
    paths = [f"csv/{REGION}/{key}.csv" for key in keys]
    with h5py.File(folder / f"{REGION}.h5", "w") as handle:
        for path, length in zip(paths, lengths, strict=True):
            handle.create_dataset(path, data=a_series(random, int(length)))
    names = list(dict.fromkeys(CLASSES.values()))
    pd.DataFrame(
        {
            "idx": np.arange(count),
            "id": keys,
            "CODE_CULTU": codes,
            "path": paths,
            "meanCLD": 0.5,
            "sequencelength": lengths,
            "classid": [names.index(CLASSES[code]) for code in codes],
            "classname": [CLASSES[code] for code in codes],
            "region": REGION,
        }
    ).to_csv(folder / f"{REGION}.csv", index=False)
    mapping = [(number, name, code) for code, name in CLASSES.items() for number in [names.index(name)]]
    pd.DataFrame(mapping, columns=["id", "classname", "code"]).to_csv(root / "classmapping.csv")
    (root / "codes.csv").write_text("Code Culture;Libellé Culture\nBTH;Blé tendre d'hiver\n", encoding="utf-8")


def a_series(random: np.random.Generator, length: int) -> NDArray[np.float64]:
    """(T, 17): means over parcels are fractions; clouds raise all bands; QA10, QA20, QA60, doa."""
    dates = FIRST_DAY + np.sort(random.choice(365, length, replace=False))
    cloud = np.where(random.random(length) < 0.4, random.uniform(0, 6000, length), 0.0)
    season = 1 + 0.4 * np.sin((dates - FIRST_DAY) / 365 * 2 * np.pi + random.uniform(0, 6))
    bands = np.array(TYPICAL) * season[:, None] * random.normal(1, 0.05, (length, 13)) + cloud[:, None]
    quality = np.stack([np.zeros(length), np.zeros(length), np.where(cloud > 0, 1024.0, 0.0)], axis=1)
    return np.concatenate([bands, quality, dates[:, None] * DAY], axis=1)


# Measuring


def measure(root: Path, store: Store, draws: int, batch: int) -> dict[str, tuple[float, int]]:
    """The median of samples a second, and the samples of a round."""
    theirs = open_package(root)
    split = split_parcels(store, SplitConfig(), seed=1)
    ours = SeriesDataset(store, split, "train", measure_series(store, split), batch)
    readers = [(reader, place) for _, reader in store.readers() for place in range(len(reader.table.keys))]
    random, scale = np.random.default_rng(2), np.float32(store.fingerprint.scale)
    require_same(theirs, {reader.table.keys[place]: (reader, place) for reader, place in readers})

    def of_package(index: int) -> Sample:
        (reflectance, days), label, _ = theirs[index]
        return reflectance, days, label

    def of_store(index: int) -> Sample:
        reader, place = readers[index]
        values, _, days = reader.sample(place)
        return torch.from_numpy(values * scale), days, int(reader.table.labels[place])

    def by_package(order: NDArray[np.int64]) -> None:
        for index in order[:draws].tolist():
            of_package(index)

    def by_sample(order: NDArray[np.int64]) -> None:
        for index in order.tolist():
            of_store(index)

    def by_batch(order: NDArray[np.int64]) -> None:
        for indexes in _batches(order[order < len(ours)], batch):
            ours.batch(indexes)

    count = len(readers)
    tasks: dict[str, tuple[Callable[[NDArray[np.int64]], None], int]] = {
        "breizhcrops.BreizhCrops.__getitem__": (by_package, min(draws, count)),
        "TileReader.sample": (by_sample, count),
        f"SeriesDataset.batch of {batch}": (by_batch, len(ours)),
    }
    speeds: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(ROUNDS):
        order = random.permutation(count)
        for name, (task, samples) in tasks.items():
            start = time.process_time()
            task(order)
            speeds[name].append(samples / (time.process_time() - start))
    return {name: (float(np.median(speed)), tasks[name][1]) for name, speed in speeds.items()}


def open_package(root: Path) -> Any:
    """The package's data set; the length of the h5 file must be the one it knows."""
    package = importlib.import_module("breizhcrops.datasets.breizhcrops")
    size = (root / str(YEAR) / LEVEL / f"{REGION}.h5").stat().st_size
    package.FILESIZES[YEAR] = {LEVEL: {REGION: size}}
    return package.BreizhCrops(REGION, str(root), YEAR, LEVEL, transform=keep_all, target_transform=int)


def keep_all(rows: NDArray[np.float64]) -> tuple[torch.Tensor, NDArray[np.int32]]:
    return torch.from_numpy(rows[:, :13].astype(np.float32) * np.float32(1e-4)), (rows[:, -1] // DAY).astype(np.int32)


def require_same(theirs: Any, ours: dict[str, Any]) -> None:
    """Both deliver the same, or there is nothing to compare."""
    if len(theirs) != len(ours):
        raise SystemExit(f"{len(theirs)} parcels there, {len(ours)} here")
    for index in range(0, len(theirs), max(len(theirs) // 50, 1)):
        (reflectance, moments), label, key = theirs[index]
        reader, place = ours[str(key)]
        values, _, days = reader.sample(place)
        same = np.array_equal(values * np.float32(1e-4), reflectance.numpy()) and np.array_equal(days, moments)
        if not same or reader.table.labels[place] != label:
            raise SystemExit(f"the parcel {key} differs")


def _batches(order: NDArray[np.int64], size: int) -> Iterator[list[int]]:
    for start in range(0, len(order), size):
        yield order[start : start + size].tolist()


# The table


def table(results: dict[str, tuple[float, int]]) -> str:
    base = next(iter(results.values()))[0]
    lines = ["| random order | samples of a round | samples/s | ratio |", "| --- | --: | --: | --: |"]
    lines += [
        f"| {name} | {samples} | {speed:,.0f} | {speed / base:.1f} |" for name, (speed, samples) in results.items()
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
