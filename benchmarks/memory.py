"""The most memory that a training step takes, beyond torch itself: each way in a process of its own.

    python benchmarks/memory.py              STAR 4 x 128, B=1024, T=45, C=13; --quick for a look

A peak belongs to a process and never falls, hence the processes. What was there before the first step, torch and the
inputs, is subtracted.
"""

from __future__ import annotations

import argparse
import multiprocessing

import torch
from speed import NATIVE, QUICK, TRAINING, Series, require_kernels, training_ways

from cropstar.runtime import keep_large_buffers, peak_memory_megabytes

WAYS = (NATIVE, "torch", "naive", "nn.LSTM", "nn.GRU", "nn.RNN")
STEPS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    choices = parser.parse_args()
    require_kernels()
    for series in QUICK if choices.quick else TRAINING:
        print(f"\nthe peak of training, {series}, in MB")
        for way in WAYS:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(f"  {way:12} {pool.apply(peak, (series, way, choices.threads)):8.0f}", flush=True)


def peak(series: Series, way: str, threads: int) -> float:
    keep_large_buffers()
    torch.set_num_threads(threads)
    run = training_ways(series)[way]
    before = peak_memory_megabytes()
    for _ in range(STEPS):
        run()
    return peak_memory_megabytes() - before


if __name__ == "__main__":
    main()
