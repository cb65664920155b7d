"""The kernels with products of bfloat16 beside those of float32, and trees by their kernel beside numpy.

    OMP_NUM_THREADS=2 python benchmarks/half_precision.py
    OMP_NUM_THREADS=2 python benchmarks/half_precision.py --model RUN/model.safetensors --raster tile.tif

Ratios of medians over interleaved rounds, in one run on an idle machine. With a model and a raster also how many pixels
get the same class in both precisions. `--processor-time` counts the time of the processor, for a machine that is not
idle; with one thread.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import rasterio
import torch

from cropstar.config import ModelConfig
from cropstar.models.backends import half_precision
from cropstar.models.contract import Classifier, Shape
from cropstar.models.networks.trees import Trees
from cropstar.models.zoo import build_model
from cropstar.native.library import library

CPU = torch.device("cpu")
CLASSES = 10


def season(batch: int, length: int, bands: int, *space: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    x = torch.randn(batch, length, bands, *space)
    return x, torch.ones(batch, length, *space, dtype=torch.bool), (19_800 + 5 * torch.arange(length)).expand(batch, -1)


def model_of(name: str, hidden: int, bands: int, length: int) -> Classifier:
    return build_model(ModelConfig(name=name, layers=4, hidden=hidden), Shape(bands, CLASSES, length))


def training(model: Classifier, batch: int, length: int, bands: int, *space: int) -> Callable[[bool], None]:
    inputs, labels = season(batch, length, bands, *space), torch.randint(CLASSES, (batch, *space))
    model.train()

    def step(half: bool) -> None:
        model.zero_grad()
        with half_precision(model, CPU, torch.bfloat16) if half else nullcontext():
            scores = model(*inputs)
        torch.nn.functional.cross_entropy(scores.float(), labels).backward()

    return step


def inference(model: Classifier, batch: int, length: int, bands: int, *space: int) -> Callable[[bool], None]:
    inputs = season(batch, length, bands, *space)
    model.eval()

    @torch.inference_mode()
    def run(half: bool) -> None:
        with half_precision(model, CPU, torch.bfloat16) if half else nullcontext():
            model.classify(model.advance(*inputs))

    return run


def compare(title: str, task: Callable[[bool], None], rounds: int, clock: Callable[[], float]) -> None:
    taken: dict[bool, list[float]] = {False: [], True: []}
    for number in range(rounds + 1):
        for half, times in taken.items():
            start = clock()
            task(half)
            if number:  # the first round warms up
                times.append(clock() - start)
    slow, fast = (statistics.median(times) for times in taken.values())
    print(f"{title:<52} {1e3 * slow:8.1f} ms  {1e3 * fast:8.1f} ms  {slow / fast:5.2f}x", flush=True)


def trees() -> Callable[[bool], None]:
    """300 trees of 1,000 forks over 500 features, 2,048 rows."""
    random = np.random.default_rng(0)
    parts = []
    for _ in range(300):
        forks = 1000
        left, right = np.full(2 * forks + 1, -1), np.zeros(2 * forks + 1, dtype=np.int64)
        left[:forks], right[:forks] = 2 * np.arange(forks) + 1, 2 * np.arange(forks) + 2
        feature = np.where(left >= 0, random.integers(0, 500, len(left)), -1)
        threshold = np.where(left >= 0, random.normal(size=len(left)), 0)
        parts.append((left, right, feature, threshold, random.dirichlet(np.ones(CLASSES), forks + 1)))
    forest, rows = Trees.join(parts), random.normal(size=(2048, 500)).astype(np.float32)

    def ask(kernel: bool) -> None:
        sums = np.zeros((len(rows), CLASSES))
        if kernel:
            forest.sum_leaves(rows, sums)
        else:
            for tree in range(len(forest)):
                sums += forest.leaf_of(rows, tree)

    return ask


def agreement(model: Path, raster: Path) -> None:
    import cropstar

    with tempfile.TemporaryDirectory() as folder:
        maps = []
        for precision in ("float32", "bfloat16"):
            output = Path(folder, f"{precision}.tif")
            cropstar.predict(raster, model=model, output=output, precision=precision)
            with rasterio.open(output) as dataset:
                maps.append(dataset.read(1))
                seen = maps[0] != dataset.nodata
    same = (maps[0] == maps[1])[seen].mean()
    print(f"{model}: {100 * same:.3f} % of {seen.sum():,} pixels have the same class in bfloat16 and in float32")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--processor-time", action="store_true")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--raster", type=Path)
    arguments = parser.parse_args()
    if arguments.model and arguments.raster:
        agreement(arguments.model, arguments.raster)
        return
    clock = time.process_time if arguments.processor_time else time.perf_counter
    print(f"{torch.get_num_threads()} threads, {library().instruction_set}; float32, bfloat16, how many times as fast")
    for title, task in (
        ("STAR 4 x 128, training, B=1024, T=45, C=13", training(model_of("star", 128, 13, 45), 1024, 45, 13)),
        ("STAR 4 x 128, inference, B=8192, T=45, C=10", inference(model_of("star", 128, 10, 45), 8192, 45, 10)),
        (
            "ConvSTAR 4 x 32, maps of 256 x 256, T=6, C=10",
            inference(model_of("convstar", 32, 10, 6), 1, 6, 10, 256, 256),
        ),
        (
            "ConvSTAR 4 x 32, training, 48 x 48, B=4",
            training(model_of("convstar", 32, 10, 12), 4, 12, 10, 48, 48),
        ),
        ("300 trees: numpy, kernel (the same sums)", trees()),
    ):
        compare(title, task, arguments.rounds, clock)


if __name__ == "__main__":
    main()
