"""What the stronger STAR of the recipe costs beside the plain stack of the same layers and width.

    OMP_NUM_THREADS=2 python benchmarks/recipe_cost.py

Ratios of medians over interleaved rounds, in one run on an idle machine: a training step of 32 series, and pixels a
second at inference, for series (2 x 64, 24 dates, 10 bands) and images (ConvSTAR 2 x 32). `plain` has the last state
and nothing else; `normalised` shows what folding leaves of the price of normalisation.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from cropstar.config import ModelConfig
from cropstar.models.contract import Classifier, Shape
from cropstar.models.zoo import build_model
from cropstar.runtime import keep_large_buffers

DATES, BANDS, CLASSES = 24, 10, 8
SHAPE = Shape(BANDS, CLASSES, DATES, season=(60, 240))
SERIES: dict[str, dict[str, object]] = {
    "plain": {},
    "normalised": {"normalise": True},
    "recipe": {"normalise": True, "pool": "season", "bins": 12, "dense": 128},
    "with a stem": {"normalise": True, "pool": "season", "bins": 12, "dense": 128, "stem": 1},
}
IMAGES: dict[str, dict[str, object]] = {
    "plain": {},
    "normalised": {"normalise": True},
    "recipe": {"normalise": True, "pool": "mean"},
}


def make(name: str, hidden: int, settings: dict[str, object]) -> Classifier:
    torch.manual_seed(0)
    return build_model(ModelConfig.model_validate({"name": name, "layers": 2, "hidden": hidden, **settings}), SHAPE)


def season(batch: int, *space: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x = torch.randn(batch, DATES, BANDS, *space)
    valid = torch.rand(batch, DATES, *space) > 0.2
    return x, valid, (19_800 + 10 * torch.arange(DATES)).expand(batch, DATES)


def training(model: Classifier, batch: int, *space: int) -> Callable[[], None]:
    inputs = season(batch, *space)
    labels = torch.randint(CLASSES, (batch, *space))
    model.train()

    def step() -> None:
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(*inputs), labels).backward()

    return step


def inference(model: Classifier, batch: int, *space: int) -> Callable[[], None]:
    inputs = season(batch, *space)
    model.eval()

    @torch.inference_mode()
    def run() -> None:
        model.classify(model.advance(*inputs))

    return run


def compare(title: str, tasks: dict[str, Callable[[], None]], rounds: int) -> None:
    taken: dict[str, list[float]] = {name: [] for name in tasks}
    for number in range(rounds + 1):
        for name, task in tasks.items():
            start = time.perf_counter()
            task()
            if number:  # the first round warms up
                taken[name].append(time.perf_counter() - start)
    plain = statistics.median(taken["plain"])
    for name, seconds in taken.items():
        median = statistics.median(seconds)
        print(f"{title:32} {name:12} {1000 * median:9.2f} ms   {median / plain:5.2f} x plain")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    series = {name: make("star", 64, settings) for name, settings in SERIES.items()}
    images = {name: make("convstar", 32, settings) for name, settings in IMAGES.items()}
    keep_large_buffers()
    print(f"{torch.get_num_threads()} threads")
    compare("STAR 2 x 64, training", {name: training(model, 32) for name, model in series.items()}, rounds)
    compare("STAR 2 x 64, 8192 pixels", {name: inference(model, 8192) for name, model in series.items()}, rounds)
    compare("ConvSTAR 2 x 32, training", {name: training(model, 8, 12, 12) for name, model in images.items()}, rounds)
    compare(
        "ConvSTAR 2 x 32, 256 x 256", {name: inference(model, 1, 256, 256) for name, model in images.items()}, rounds
    )


if __name__ == "__main__":
    main()
