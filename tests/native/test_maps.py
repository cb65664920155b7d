"""Maps by every backend: the same whatever the window, and after an update the bits of the full run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from cropstar.geo.windows import Window, split
from cropstar.native import available, why_not
from cropstar.prediction.blocks import job_key
from cropstar.prediction.predictor import EarlierState, Predictor, WindowPlan, advance
from cropstar.sources.stack import StackSeries
from tests.prediction.making import untrained
from tests.prediction.seasons import cut

CPU = torch.device("cpu")
SHAPE = (52, 41)
WHOLE = Window(0, 0, *SHAPE)
BACKENDS = ["naive", "torch", "native", "onnx"]


@pytest.fixture(scope="module")
def parts(small_scene: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, StackSeries]]:
    folder = tmp_path_factory.mktemp("parts")
    dates = {"early": slice(0, 5), "last": slice(5, 6), "all": slice(0, 6)}
    cuts = {
        name: cut(small_scene / "tile.tif", folder / f"{name}.tif", some, height=SHAPE[0], width=SHAPE[1])
        for name, some in dates.items()
    }
    opened = {name: StackSeries(path) for name, path in cuts.items()}
    yield opened
    for series in opened.values():
        series.close()


def made(backend: str, name: str, parts: dict[str, StackSeries], folder: Path) -> Predictor:
    if backend == "native" and not available():
        pytest.skip(why_not())
    if backend == "onnx":
        pytest.importorskip("onnxruntime")
    path = untrained(folder / "model", parts["all"].files[0], name, seed=2)
    return Predictor(path, CPU, backend=backend)


@pytest.mark.parametrize("name", ["star", "convstar"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_window_gives_the_same_map(
    backend: str, name: str, parts: dict[str, StackSeries], tmp_path: Path
) -> None:
    predictor = made(backend, name, parts, tmp_path)
    assert predictor.backend == backend
    reference = made("naive", name, parts, tmp_path).probabilities(parts["all"], WHOLE)[0]
    found = np.full_like(reference, np.nan)
    for window in split(SHAPE, 19):
        found[:, *window.slices] = predictor.probabilities(parts["all"], window)[0]
    np.testing.assert_allclose(found, reference, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["star", "convstar"])
@pytest.mark.parametrize("size", [16, 19])
def test_an_update_has_the_bits_of_the_full_run(
    name: str, size: int, parts: dict[str, StackSeries], tmp_path: Path
) -> None:
    """In windows of other sizes, at even and odd pixels."""
    predictor = made("native", name, parts, tmp_path)
    full = advance(predictor, parts["all"], WHOLE, predictor.read(parts["all"], WHOLE))
    states: list[NDArray[np.float32]] = [np.zeros_like(part) for part in full.state]
    counts = np.zeros(SHAPE, dtype=np.uint16)

    for window in split(SHAPE, size):
        found = advance(predictor, parts["early"], window, predictor.read(parts["early"], window))
        counts[window.slices] = found.counts
        for whole, some in zip(states, found.state, strict=True):
            whole[window.slices] = some
    layout = tuple((each.shape[-1],) for each in states)
    last = parts["last"]
    for window in split(SHAPE, size + 4):
        outer = window.expand(predictor.halo(last), SHAPE)
        earlier = EarlierState([each[outer.slices] for each in states], layout, counts[outer.slices])
        found = advance(predictor, last, window, predictor.read(last, window), earlier=earlier)
        for one, other in zip(found.state, full.state, strict=True):
            np.testing.assert_array_equal(one, other[window.slices])


def test_blocks_of_two_backends_never_mix(parts: dict[str, StackSeries], tmp_path: Path) -> None:
    plan = WindowPlan(16, 64, 0)
    keys = {job_key(made(backend, "star", parts, tmp_path), parts["all"], plan, []) for backend in ("naive", "torch")}
    assert len(keys) == 2
