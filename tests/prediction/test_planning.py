"""Windows by memory: whole blocks, never above the limit, refused where nothing fits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cropstar.errors import ResourceError, UsageError
from cropstar.prediction.predictor import PeakMemory, Predictor, bytes_per_pixel, plan_windows
from cropstar.prediction.request import parse_memory
from cropstar.sources.stack import StackSeries
from tests.prediction.making import untrained

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
