"""Flip single bits in all that cropstar reads back, and count what goes unnoticed.

    python benchmarks/flips.py --flips 10000

A store of tiles and its manifest, a model, the state of a season and the blocks of an unfinished map are made. Then one
random bit after the other is flipped, in a kind chosen by turns, and everything in the file is read. A flip is
*refused* by one of cropstar's errors, *harmless* where what is read is the same to the last bit (a date in a zip
header, an unused byte of HDF5), and *silent* otherwise. The cost of checking is the time of reading patches with and
without it.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cropstar.api.commands import ingest
from cropstar.errors import CropstarError
from cropstar.geo.windows import Window, split
from cropstar.prediction.blocks import BlockFolder, BlockResult
from cropstar.prediction.job import predict
from cropstar.prediction.predictor import WindowResult
from cropstar.prediction.request import MapRequest
from cropstar.prediction.season import SeasonReader
from cropstar.sources.synthetic import SceneOptions, write_scene
from cropstar.store.model_file import read_model
from cropstar.store.reader import TileReader
from cropstar.store.store import Store, tile_path

Read = Callable[[Path], str]  # a digest of everything that a file says


def digest(*parts: Any) -> str:
    total = hashlib.blake2b(digest_size=16)
    for part in parts:
        total.update(np.ascontiguousarray(part).tobytes() if isinstance(part, np.ndarray) else repr(part).encode())
    return total.hexdigest()


def read_tile(path: Path) -> str:
    tile = TileReader(path)
    try:
        height, width = tile.shape
        whole = Window(0, 0, height, width)
        table = tile.table
        arrays = [tile.values(whole), tile.valid(whole), tile.labels(), tile.parcels(), tile.days]
        words = [tile.fingerprint.dumps(), tile.grid, tile.scene, tile.provenance, table.keys]
        return digest(*arrays, *words, table.numbers, table.labels)
    finally:
        tile.close()


def read_manifest(path: Path) -> str:
    with Store.open(path.parent) as store:
        return digest(store.manifest)


def read_weights(path: Path) -> str:
    card, tensors, named = read_model(path)
    return digest(card, named, *(part for name in sorted(tensors) for part in (name, tensors[name])))


def read_state(path: Path) -> str:
    reader = SeasonReader(path)
    try:
        found = [reader.read(window) for window in split(reader.card.grid.shape, 64)]
        return digest(reader.card, *(part for one in found for part in (one.counts, *one.state)))
    finally:
        reader.close()


class Blocks:
    """A folder with one block and its state."""

    def __init__(self, folder: Path) -> None:
        random = np.random.default_rng(0)
        self.folder, self.window = BlockFolder(folder / "map.tif", "key"), Window(0, 0, 64, 64)
        classes = random.integers(0, 9, (64, 64), dtype=np.uint8)
        dates = random.integers(0, 9, (64, 64), dtype=np.uint16)
        state = WindowResult(np.zeros((9, 64, 64), np.float32), dates, [random.normal(size=(64, 64, 8)).astype("f4")])
        self.folder.write(BlockResult(self.window, classes, {"valid-dates": dates[None]}), state)

    def read_block(self, _: Path) -> str:
        (found,) = self.folder.read([self.window], {"valid-dates": (1, np.dtype(np.uint16))})
        return digest(found.classes, found.layers["valid-dates"])

    def read_state(self, path: Path) -> str:
        ((*_, counts, parts),) = self.folder.read_states([self.window], ((8,),))
        return digest(counts, *parts)


def flip(path: Path, read: Read, before: str, content: bytes, bit: int) -> str:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << (bit % 8)
    path.write_bytes(changed)
    try:
        return "harmless" if read(path) == before else "SILENT"
    except CropstarError:
        return "refused"
    except Exception as failure:
        return f"UNDOCUMENTED {type(failure).__name__}"


def cost(tile: Path, passes: int, rounds: int = 9) -> float:
    """The best time of some passes over all patches of a tile with checksums, in that without.

    A chunk is looked at when it is first read from an open file: trainings read it in every epoch.
    """
    best: dict[bool, float] = {}
    for _ in range(rounds):
        for checked in (True, False):
            reader = TileReader(tile)
            reader.has_checksums = checked
            windows = list(split(reader.shape, 48))
            started = time.perf_counter()
            for window in windows * passes:
                reader.values(window)
                reader.valid(window)
            best[checked] = min(best.get(checked, 1e9), time.perf_counter() - started)
            reader.close()
    return best[True] / best[False]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--flips", type=int, default=1000)
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as name:
        results, ratio = run(Path(name), given.flips, given.seed)
    bad = 0
    for kind, ends in results.items():
        bad += sum(count for end, count in ends.items() if end.isupper() or end.startswith("UNDOCUMENTED"))
        print(f"{kind:<12} {dict(ends)}")
    for passes, share in ratio.items():
        print(f"{passes} passes over the patches of a tile take {share:.3f} of the time without checksums")
    sys.exit(1 if bad else 0)


def run(place: Path, flips: int, seed: int) -> tuple[dict[str, Counter[str]], dict[int, float]]:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.prediction.making import untrained  # of a model that need not have learnt anything

    scene = place / "scene"
    write_scene(scene, SceneOptions(size=96, dates=6))
    ingest(scene / "tile.tif", output=place / "store", tile_size=48, progress=False)
    model = untrained(place / "model.safetensors", scene / "tile.tif")
    request = MapRequest(model=model, device="cpu", state=place / "season.h5")
    torch.set_num_threads(1)
    predict(scene / "tile.tif", place / "map.tif", request)
    blocks = Blocks(place)
    with Store.open(place / "store") as store:
        tile = tile_path(place / "store", store.manifest.tiles[0].name)
    kinds: dict[str, tuple[Path, Read]] = {
        "tile": (tile, read_tile),
        "manifest": (place / "store" / "manifest.json", read_manifest),
        "model": (model, read_weights),
        "state": (place / "season.h5", read_state),
        "block": (blocks.folder.path(blocks.window), blocks.read_block),
        "block state": (blocks.folder.state_path(blocks.window), blocks.read_state),
    }
    random = np.random.default_rng(seed)
    known = {kind: (path.read_bytes(), read(path)) for kind, (path, read) in kinds.items()}
    ends: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
    for turn in range(flips):
        kind = list(kinds)[turn % len(kinds)]
        (path, read), (content, before) = kinds[kind], known[kind]
        ends[kind][flip(path, read, before, content, int(random.integers(8 * len(content))))] += 1
        for other, (own, _) in kinds.items():  # a damaged block is removed with its state
            if other == kind or not own.exists():
                own.write_bytes(known[other][0])
    write_scene(place / "large-scene", SceneOptions(size=240, dates=24))
    ingest(place / "large-scene" / "tile.tif", output=place / "large", tile_size=240, progress=False)
    (large,) = (place / "large" / "tiles").glob("*.h5")
    return ends, {passes: cost(large, passes) for passes in (1, 20)}


if __name__ == "__main__":
    main()
