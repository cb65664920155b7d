"""How fast the compiled STAR and ConvSTAR are beside what one would take instead.

    python benchmarks/speed.py                 everything, some minutes
    python benchmarks/speed.py --quick         small sizes: whether it works, not how fast it is
    python benchmarks/speed.py training        one part: training, images (training on them), inference or map

With one thread (--threads 1) it is processor time that is measured, which other programs disturb less.

All ways of a case run in one process, one after the other in each round; a ratio is the median of the rounds' own
ratios, so that a machine that slows down for a while slows all of them. `products` are the bare matrix products of
STAR's multiplications, as large as they can be made: the limit of what PyTorch's library gives. `naive`, `torch`,
`native` and `onnx` are what --backend calls so. The allocator is tuned
for all alike (CROPSTAR_ALLOCATOR=system leaves it). Other programs spoil the figures: the load is printed.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cropstar.config import ModelConfig
from cropstar.errors import CropstarError
from cropstar.models.backends import use_backend
from cropstar.models.cells.star import StarCell
from cropstar.models.contract import Classifier, Shape
from cropstar.models.stack import RecurrentStack
from cropstar.models.zoo import build_model
from cropstar.native import available, library, why_not
from cropstar.runtime import keep_large_buffers

NATIVE = "native"
PARTS = ["training", "images", "inference", "map"]
Way = Callable[[], object]


@dataclass(frozen=True)
class Series:
    batch: int
    length: int
    bands: int
    hidden: int = 128
    layers: int = 4

    def __str__(self) -> str:
        return f"{self.layers} x {self.hidden}, B={self.batch}, T={self.length}, C={self.bands}"


TRAINING = [Series(1024, 45, 13), Series(500, 26, 54), Series(100, 784, 1)]
INFERENCE = [Series(8192, 45, 10)]
QUICK = [Series(96, 9, 13, hidden=64, layers=2)]
MAPS, QUICK_MAPS = (256, 512), (48,)


def require_kernels() -> None:
    """Without them, what is called native would be PyTorch."""
    if not available():
        raise SystemExit(f"error: {why_not()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, "all"], default="all")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    choices = parser.parse_args()
    require_kernels()
    keep_large_buffers()
    torch.set_num_threads(choices.threads)
    used = library.library()
    print(f"{processor()}, {choices.threads} threads, {used.instruction_set}, torch {torch.__version__}")
    print(f"load of the machine before: {os.getloadavg()[0]:.1f} of {os.cpu_count()} processors")
    parts = PARTS if "all" in choices.parts else choices.parts
    if "training" in parts:
        for series in QUICK if choices.quick else TRAINING:
            compare(f"training, {series}", training_ways(series), choices.rounds)
    if "images" in parts:
        side, length = (12, 4) if choices.quick else (48, 30)
        title = f"training ConvSTAR 4 x 32, {side} x {side}, B=4, T={length}"
        compare(title, image_training_ways(side, length), choices.rounds)
    if "inference" in parts:
        for series in QUICK if choices.quick else INFERENCE:
            compare(f"inference, {series}", inference_ways(series), choices.rounds, series.batch)
    if "map" in parts:
        for side in QUICK_MAPS if choices.quick else MAPS:
            compare(f"ConvSTAR 4 x 32, {side} x {side}, 6 dates", map_ways(side), choices.rounds)


def processor() -> str:
    """Its name, where the system tells."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def timed(ways: dict[str, Way], rounds: int) -> dict[str, list[float]]:
    """Seconds of every round but the first, which warms up."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            started = clock()
            way()
            if number:
                times[name].append(clock() - started)
    return times


def compare(title: str, ways: dict[str, Way], rounds: int, samples: int | None = None) -> None:
    times = timed(ways, rounds)
    first = next(iter(ways))
    print(f"\n{title}: median of {rounds} interleaved rounds")
    for name, seconds in times.items():
        ratio = statistics.median(one / ours for one, ours in zip(seconds, times[first], strict=True))
        rate = f"  {samples / statistics.median(seconds):12,.0f} series/s" if samples else ""
        print(f"  {name:12} {statistics.median(seconds) * 1e3:10.1f} ms  {first} is {ratio:5.2f} times as fast{rate}")


def on(cells: list[StarCell], backend: str) -> None:
    for cell in cells:
        cell.backend = backend


def models_on(name: str, series: Series, length: int) -> dict[str, Classifier]:
    """The same untrained model on every backend that can be had."""
    config = ModelConfig.model_validate(
        {"name": name, "layers": series.layers, "hidden": series.hidden, "day_encoding": "none"}
    )
    made: dict[str, Classifier] = {}
    for backend in (NATIVE, "naive", "torch", "onnx"):
        torch.manual_seed(0)
        model = build_model(config, Shape(series.bands, 10, length)).eval()
        try:
            made[backend], _ = use_backend(model, backend, torch.device("cpu"), bands=series.bands)
        except CropstarError as error:
            print(f"without {backend}: {error}")
    return made


def make_cells(layers: int, bands: int, hidden: int, *, spatial: bool) -> list[StarCell]:
    cells = [StarCell(bands if depth == 0 else hidden, hidden, spatial=spatial) for depth in range(layers)]
    for cell in cells:
        cell.initialise(30.0)
    return cells


def step_by(backend: str, cells: list[StarCell], inputs: tuple[Tensor, Tensor, Tensor]) -> Way:
    """Forwards, and backwards from the last state."""
    stack = RecurrentStack(cells)

    def run() -> None:
        on(cells, backend)
        _, state = stack(*inputs)
        state[-1][0].sum().backward()

    return run


def training_ways(series: Series) -> dict[str, Way]:
    """One step without its optimiser: forwards, and backwards from the last state."""
    torch.manual_seed(0)
    x = torch.randn(series.batch, series.length, series.bands)
    valid = torch.ones(series.batch, series.length, dtype=torch.bool)
    days = torch.zeros(series.batch, series.length)
    cells = make_cells(series.layers, series.bands, series.hidden, spatial=False)

    def other(kind: Callable[..., nn.RNNBase]) -> Way:
        network = kind(series.bands, series.hidden, series.layers, batch_first=True)

        def run() -> None:
            outputs, _ = network(x)
            outputs[:, -1].sum().backward()

        return run

    return {
        **{backend: step_by(backend, cells, (x, valid, days)) for backend in (NATIVE, "naive", "torch")},
        "nn.LSTM": other(nn.LSTM),
        "nn.GRU": other(nn.GRU),
        "nn.RNN": other(nn.RNN),
        "products": products(series),
    }


def products(series: Series) -> Way:
    """The multiplications of training STAR: three products forwards, twice as many backwards.

    The first layer needs no gradient of its input. Results go to buffers that are there.
    """
    rows, hidden = series.length * series.batch, series.hidden
    sequence, result = torch.randn(rows, hidden), torch.empty(rows, hidden)
    first, square = torch.randn(rows, series.bands), torch.randn(hidden, hidden)
    narrow, gradient = torch.randn(series.bands, hidden), torch.empty(hidden, hidden)
    narrow_gradient = torch.empty(hidden, series.bands)

    def run() -> None:
        for _ in range(2):
            torch.mm(first, narrow, out=result)
            torch.mm(sequence.T, first, out=narrow_gradient)
        for _ in range(2 * (series.layers - 1)):
            torch.mm(sequence, square, out=result)
            torch.mm(sequence, square, out=result)
            torch.mm(sequence.T, sequence, out=gradient)
        for _ in range(series.layers):  # of the state
            torch.mm(sequence, square, out=result)
            torch.mm(sequence, square, out=result)
            torch.mm(sequence.T, sequence, out=gradient)

    return run


def image_training_ways(side: int, length: int, batch: int = 4, bands: int = 4) -> dict[str, Way]:
    """`auto` is what training takes."""
    torch.manual_seed(0)
    x = torch.randn(batch, length, bands, side, side)
    valid = torch.rand(batch, length, side, side) > 0.2
    days = torch.zeros(batch, length)
    cells = make_cells(4, bands, 32, spatial=True)

    return {backend: step_by(backend, cells, (x, valid, days)) for backend in ("auto", "naive", "torch")}


def inference_ways(series: Series) -> dict[str, Way]:
    """Scores after the last date, as maps of series are made."""
    torch.manual_seed(0)
    x = torch.randn(series.batch, series.length, series.bands)
    valid = torch.ones(series.batch, series.length, dtype=torch.bool)
    days = torch.zeros(series.batch, series.length, dtype=torch.int32)

    def ours(model: Classifier) -> Way:
        return torch.inference_mode()(lambda: model.classify(model.advance(x, valid, days)))

    def other(kind: Callable[..., nn.RNNBase]) -> Way:
        network = kind(series.bands, series.hidden, series.layers, batch_first=True).eval()
        return torch.inference_mode()(lambda: network(x))

    models = models_on("star", series, series.length)
    ways = {backend: ours(model) for backend, model in models.items()}
    return {**ways, "nn.LSTM": other(nn.LSTM), "nn.GRU": other(nn.GRU)}


def map_ways(side: int, length: int = 6, bands: int = 4, hidden: int = 32) -> dict[str, Way]:
    """Without the head, which a season asks once: with so few dates it would weigh too much."""
    torch.manual_seed(0)
    x = torch.randn(1, length, bands, side, side)
    valid = torch.rand(1, length, side, side) > 0.2
    days = torch.zeros(1, length, dtype=torch.int32)

    def ours(model: Classifier) -> Way:
        return torch.inference_mode()(lambda: model.advance(x, valid, days))

    models = models_on("convstar", Series(1, length, bands, hidden), length)
    return {backend: ours(model) for backend, model in models.items()}


if __name__ == "__main__":
    main()
