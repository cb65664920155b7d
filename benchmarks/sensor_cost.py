"""What a second sensor costs: a model of optical dates alone beside one of optical and radar dates, by number of dates.

    OMP_NUM_THREADS=1 python benchmarks/sensor_cost.py

Inference of untrained models on noise, 24 optical dates of 10 bands, and 0, 12, 24 and 48 radar dates of 2 bands among
them. All of a model's cases run one after the other in each round; a ratio is the median of the rounds' own ratios of
processor time. `dates` is what the cost would be in proportion to the number of dates.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from cropstar.config import ModelConfig
from cropstar.models.backends import use_backend
from cropstar.models.contract import Classifier, Shape
from cropstar.models.zoo import build_model
from cropstar.runtime import keep_large_buffers

OPTICAL, BANDS, RADAR = 24, 10, 2
RADAR_DATES = (0, 12, 24, 48)
CASES = {"star": (ModelConfig(name="star", layers=2, hidden=64), (4096,)),
         "convstar": (ModelConfig(name="convstar", layers=2, hidden=32), (1, 128, 128))}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    keep_large_buffers()
    for name, (config, shape) in CASES.items():
        models = {count: build(config, count) for count in RADAR_DATES}
        seconds: dict[int, list[float]] = {count: [] for count in RADAR_DATES}
        for turn in range(rounds + 1):
            for count, model in models.items():
                spent = timed(model, count, shape)
                if turn:  # the first is a warm-up
                    seconds[count].append(spent)
        for count in RADAR_DATES:
            ratio = statistics.median(own / alone for own, alone in zip(seconds[count], seconds[0], strict=True))
            proportion = (OPTICAL + count) / OPTICAL
            print(f"{name:<9} {OPTICAL} optical, {count:>2} radar dates: {ratio:.2f}x; dates {proportion:.2f}x")


def build(config: ModelConfig, radar: int) -> Classifier:
    sensors = (BANDS, RADAR) if radar else None
    channels = BANDS + RADAR + 2 if radar else BANDS
    model = build_model(config, Shape(channels, 6, OPTICAL + radar, sensors=sensors)).eval()
    use_backend(model, "auto", torch.device("cpu"))
    return model


@torch.inference_mode()
def timed(model: Classifier, radar: int, shape: tuple[int, ...]) -> float:
    dates, channels = OPTICAL + radar, BANDS + RADAR + 2 if radar else BANDS
    x = torch.randn(shape[0], dates, channels, *shape[1:])
    valid = torch.ones(shape[0], dates, *shape[1:], dtype=torch.bool)
    days = torch.arange(dates, dtype=torch.int32).expand(shape[0], dates) + 17_600
    started = time.process_time()
    model.classify(model.advance(x, valid, days))
    return time.process_time() - started


if __name__ == "__main__":
    main()
