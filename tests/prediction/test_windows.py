"""Exact windows: sizes, raster edges, partial blocks, the margin that shrinks, and the one that is too small."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from numpy.typing import NDArray

from cropstar.geo.windows import Window, split
from cropstar.models.cells.cell import CELLS
from cropstar.prediction.predictor import Predictor
from cropstar.sources.stack import StackSeries
from cropstar.sources.synthetic import SceneOptions, write_scene
from tests.prediction.making import untrained

CPU = torch.device("cpu")
Probabilities = NDArray[np.float32]


@pytest.fixture(scope="module")
def raster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """270 x 270 pixels, five dates: more than a block of 256 and no multiple of anything."""
    folder = tmp_path_factory.mktemp("scene")
    write_scene(folder, SceneOptions(size=270, dates=5))
    return folder / "tile.tif"


@pytest.fixture(scope="module", params=["convstar", "convgru", "star"])
def predicted(
    request: pytest.FixtureRequest, raster: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Predictor, StackSeries, Probabilities]:
    predictor = Predictor(untrained(tmp_path_factory.mktemp("model") / "m", raster, request.param), CPU)
    series = StackSeries(raster)
    whole, _ = predictor.probabilities(series, Window(0, 0, *series.grid.shape))
    return predictor, series, whole


@pytest.mark.parametrize("size", [64, 100, 256])
def test_any_window_size(predicted: tuple[Predictor, StackSeries, Probabilities], size: int) -> None:
    predictor, series, whole = predicted
    pieced = np.full_like(whole, np.nan)
    for window in split(series.grid.shape, size):
        pieced[:, *window.slices] = predictor.probabilities(series, window)[0]
    np.testing.assert_allclose(pieced, whole, rtol=0, atol=1e-5)
    first, second = np.sort(whole, axis=0)[-2:][::-1]
    clear = first - second > 2e-5
    assert clear.mean() > 0.99
    np.testing.assert_array_equal(pieced.argmax(axis=0)[clear], whole.argmax(axis=0)[clear])


@settings(max_examples=12)
@given(data=some.data())
def test_any_place(predicted: tuple[Predictor, StackSeries, Probabilities], data: some.DataObject) -> None:
    predictor, series, whole = predicted
    top, left = (data.draw(some.integers(0, 269)) for _ in range(2))
    height, width = (data.draw(some.integers(1, min(40, 270 - start))) for start in (top, left))
    part, _ = predictor.probabilities(series, Window(top, left, height, width))
    np.testing.assert_allclose(part, whole[:, top : top + height, left : left + width], rtol=0, atol=1e-5)


class Watched(Predictor):
    """Remembers the sizes of the images that the model was given."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.sizes: list[int] = []
        step = self.model.step

        def watched(x: Any, *rest: Any) -> Any:
            self.sizes.append(x.shape[-1])
            return step(x, *rest)

        self.model.step = watched  # type: ignore[assignment,method-assign]


def test_the_margin_shrinks_as_time_passes(raster: Path, tmp_path: Path) -> None:
    predictor = Watched(untrained(tmp_path / "m", raster), CPU)  # two layers, five dates, a head of two
    series = StackSeries(raster)
    predictor.probabilities(series, Window(100, 100, 20, 20))
    series.close()
    # 2 + 5 - 1 + 2 pixels on either side at first; at the last date two layers and the head.
    assert predictor.sizes == [20 + 2 * margin for margin in (8, 7, 6, 5, 4)]


def test_a_bounded_margin_leaves_seams_only_near_edges(raster: Path, tmp_path: Path) -> None:
    """Each date would need its own margin, and gets at most three pixels: inside all is as it should be."""
    path = untrained(tmp_path / "m", raster)
    exact, quick = Predictor(path, CPU), Predictor(path, CPU, margin=3)
    series = StackSeries(raster)
    window = Window(60, 60, 40, 40)
    difference = np.abs(exact.probabilities(series, window)[0] - quick.probabilities(series, window)[0]).max(axis=0)
    series.close()
    assert (quick.halo(series), quick.exact_halo(series)) == (3, 8)
    assert difference[0].max() > 1e-6
    assert difference[5:-5, 5:-5].max() < 1e-6


@pytest.mark.parametrize("name", sorted(CELLS))
def test_no_cell_reads_its_state_further_than_its_input(name: str) -> None:
    """What the shrinking margin rests on."""
    cell = CELLS[name](3, 4, spatial=True)
    assert cell.state_reach <= cell.input_reach
