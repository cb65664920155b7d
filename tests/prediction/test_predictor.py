"""Windows: exact whatever their size, planned by memory, for every model, and in half precision."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from numpy.typing import NDArray

from cropstar.config import TrainConfig
from cropstar.errors import ArtifactError, ResourceError, UsageError
from cropstar.geo.windows import Window, split
from cropstar.models.backends import half_type, has_bfloat16
from cropstar.models.cells.cell import CELLS
from cropstar.models.zoo import known_models
from cropstar.prediction.job import load_predictor, open_job, predict
from cropstar.prediction.predictor import PeakMemory, Predictor, bytes_per_pixel, plan_windows
from cropstar.prediction.request import MapInput, MapRequest, parse_memory
from cropstar.sources.stack import StackSeries
from cropstar.sources.synthetic import SceneOptions, write_scene
from cropstar.store.model_file import read_model, write_model
from cropstar.training.train import TrainOptions, train
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


# --- planned by memory


CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("2GB", 2 * 10**9), ("1.5 gb", 1_500_000_000), ("800M", 800_000_000), ("2GiB", 2**31), ("4096", 4096)],
)
def test_amounts_of_memory(text: str, expected: int) -> None:
    assert parse_memory(text) == expected


@pytest.mark.parametrize("text", ["", "much", "-2GB", "2XB", "1e9", "2 G B", "nan"])
def test_what_is_no_amount(text: str) -> None:
    with pytest.raises(UsageError, match="--memory"):
        parse_memory(text)


def test_peak_memory_is_what_lives_at_once() -> None:
    peak = PeakMemory()
    with peak:
        first = torch.zeros(1000)  # 4000 bytes
        second = first + 1
        view = second[10:]  # no memory of its own
        del first
        third = view * 2  # the first one is gone: two live
    assert peak.peak == 8000
    assert peak.bytes == second.nbytes + third.nbytes


@pytest.fixture
def large(small_scene: Path, tmp_path: Path) -> tuple[Predictor, StackSeries]:
    raster = small_scene / "tile.tif"
    model = untrained(tmp_path / "m", raster, layers=4, hidden=32)
    series = StackSeries(raster)
    grid = series.grid
    series.grid = type(grid)(grid.crs, grid.transform, 10_980, 10_980)  # as if it were a whole tile
    return Predictor(model, CPU), series


def test_more_memory_makes_larger_windows(large: tuple[Predictor, StackSeries]) -> None:
    plans = [plan_windows(*large, int(memory * 1e9), None, 256) for memory in (1, 2, 4, 16)]
    sides = [plan.window for plan in plans]
    assert sides == sorted(sides)
    assert sides[0] < sides[-1] == 1024
    assert all(side % 64 == 0 for side in sides)
    for plan, memory in zip(plans, (1, 2, 4, 16), strict=True):
        assert plan.bytes <= memory * 1e9


@pytest.mark.parametrize("weight", [np.nan, np.inf])
def test_weights_that_are_no_numbers(small_scene: Path, tmp_path: Path, weight: float) -> None:
    path = untrained(tmp_path / "m", small_scene / "tile.tif", "star")
    predictor = Predictor(path, CPU)
    with pytest.raises(ArtifactError, match="what it computes is not finite"):  # as weights may be that overflow
        predictor.calibrated(torch.full((len(predictor.card.fingerprint.classes), 2, 2), weight))
    card, weights, _ = read_model(path)
    name = min(name for name in weights if name.startswith("head"))
    write_model(path, card, {**weights, name: np.full_like(weights[name], weight)})
    with pytest.raises(ArtifactError, match="some of its weights are not finite numbers"):
        Predictor(path, CPU)


def test_a_model_of_an_unknown_name(small_scene: Path, tmp_path: Path) -> None:
    """Of a later version, perhaps: the command is not wrong, its file is."""
    card, weights, _ = read_model(untrained(tmp_path / "m", small_scene / "tile.tif", "star"))
    write_model(tmp_path / "m", replace(card, model={**card.model, "name": "comet"}), weights)
    with pytest.raises(ArtifactError, match=r"its description cannot be understood .unknown model 'comet'"):
        Predictor(tmp_path / "m", CPU)


def test_a_model_without_a_margin_gets_whole_blocks(small_scene: Path, tmp_path: Path) -> None:
    raster = small_scene / "tile.tif"
    series = StackSeries(raster)
    predictor = Predictor(untrained(tmp_path / "m", raster, "star"), CPU)
    sides = {block: plan_windows(predictor, series, 4 * 10**9, None, block).window for block in (256, 240, 1024, None)}
    series.close()
    assert sides == {256: 512, 240: 480, 1024: 512, None: 512}


def test_another_start_plans_the_same(large: tuple[Predictor, StackSeries]) -> None:
    assert plan_windows(*large, 2 * 10**9, None, 256) == plan_windows(*large, 2 * 10**9, None, 256)


def test_too_little_memory_is_refused(large: tuple[Predictor, StackSeries]) -> None:
    with pytest.raises(ResourceError, match=r"not enough.*margin of 11.*--memory"):
        plan_windows(*large, 300_000_000, None, 256)
    with pytest.raises(ResourceError, match=r"windows of 4096 pixels.*smaller --window"):
        plan_windows(*large, 2 * 10**9, 4096, 256)


def test_a_wider_model_takes_more(small_scene: Path, tmp_path: Path) -> None:
    raster = small_scene / "tile.tif"
    narrow, wide = (
        Predictor(untrained(tmp_path / str(hidden), raster, "star", hidden=hidden), CPU).model for hidden in (16, 64)
    )
    assert 2 < bytes_per_pixel(wide, 8, 6, by_date=True) / bytes_per_pixel(narrow, 8, 6, by_date=True) < 5


def test_the_compiler_is_not_imported_for_it() -> None:
    code = (
        "import sys, torch; from cropstar.prediction.predictor import PeakMemory\n"
        "with PeakMemory(): torch.zeros(3) + 1\n"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0


# --- every model


CPU = torch.device("cpu")
COMPOSED = ["biconvgru", "convlstm+star", "convstar+gru", "lstm_forget+star"]
MEMBERS = sorted({*known_models(), *COMPOSED})
TRAINED = ["ltae", "tcn"]  # the others are slow tests


def assert_seamless(predictor: Predictor, raster: Path, size: int) -> None:
    series = StackSeries(raster)
    try:
        whole, seen = predictor.probabilities(series, Window(0, 0, *series.grid.shape))
        for window in split(series.grid.shape, size):
            part, clear = predictor.probabilities(series, window)
            assert np.abs(part - whole[:, *window.slices]).max() <= 1e-5
            assert np.array_equal(clear, seen[window.slices])
    finally:
        series.close()


@pytest.mark.parametrize("name", MEMBERS)
def test_windows_give_the_map_of_one_pass(name: str, small_scene: Path, tmp_path: Path) -> None:
    raster = small_scene / "tile.tif"
    predictor = Predictor(untrained(tmp_path / "model", raster, name), CPU)
    assert_seamless(predictor, raster, 37)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in TRAINED else pytest.mark.slow) for name in MEMBERS]
)
def test_trained_and_mapped(name: str, small_store: Path, small_scene: Path, tmp_path: Path) -> None:
    config = TrainConfig.model_validate(
        {"store": small_store, "model": {"name": name, "layers": 2, "hidden": 8}, "epochs": 1, "batch": 4, "patch": 24}
    )
    run, result = train(config, TrainOptions(tmp_path, CPU))
    assert 0 <= result["test"]["pixel"]["overall_accuracy"] <= 1
    assert_seamless(Predictor(run.model, CPU), small_scene / "tile.tif", 37)


# --- half precision


CPU = torch.device("cpu")


@pytest.mark.skipif(not has_bfloat16(CPU), reason="this processor has no instructions for bfloat16")
@pytest.mark.parametrize("name", ["convstar", "star", "tempcnn"])
def test_probabilities_are_nearly_those_of_single_precision(name: str, small_scene: Path, tmp_path: Path) -> None:
    tile = small_scene / "tile.tif"
    model = untrained(tmp_path / "model", tile, name=name)
    found, keys = [], set()
    for half in (False, True):
        options = MapRequest(model=model, device="cpu", half=half, window=32)
        predictor = load_predictor(options)
        with open_job(MapInput(tile), tmp_path / "map.tif", options, predictor) as job:
            found.append(predictor.probabilities(job.series, Window(0, 0, 24, 24))[0])
            keys.add(job.key)
    assert found[1].dtype == np.float32
    assert 0 < np.abs(found[0] - found[1]).max() < 0.03
    assert len(keys) == 2  # blocks of one are never those of the other


def test_backends_of_single_precision_are_refused(small_scene: Path, tmp_path: Path) -> None:
    model = untrained(tmp_path / "model", small_scene / "tile.tif")
    with pytest.raises(UsageError, match="--half with --backend onnx"):
        load_predictor(MapRequest(model=model, device="cpu", half=True, backend="onnx"))


def test_half_precision_by_name(small_scene: Path, tmp_path: Path) -> None:
    model = untrained(tmp_path / "model", small_scene / "tile.tif")
    request = MapRequest(model=model, device="cpu", precision="bfloat16")
    if not has_bfloat16(CPU):
        with pytest.raises(ResourceError, match="--precision bfloat16"):
            load_predictor(request)
        return
    assert load_predictor(request).half == torch.bfloat16
    with pytest.raises(UsageError, match="--half with --precision float32"):
        load_predictor(MapRequest(model=model, device="cpu", half=True, precision="float32"))


def test_no_state_of_it(small_scene: Path, tmp_path: Path) -> None:
    tile = small_scene / "tile.tif"
    model = untrained(tmp_path / "model", tile)
    chosen: tuple[dict[str, Any], ...] = ({"state": tmp_path / "season.h5"}, {"stable_confidence": 0.5})
    for more in chosen:
        with pytest.raises(UsageError, match="--half with --state"):
            predict(tile, tmp_path / "map.tif", MapRequest(model=model, device="cpu", half=True, **more))
    assert not (tmp_path / "map.tif").exists()


def test_what_a_device_computes_fast() -> None:
    assert half_type(CPU) == torch.bfloat16
    assert half_type(torch.device("cuda")) == torch.float16
