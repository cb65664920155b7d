"""Shards: everything is covered, nothing twice, and what a scheduler or a user says wrongly is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from cropstar.errors import UsageError
from cropstar.geo.windows import split
from cropstar.prediction.request import Shard


@given(height=some.integers(1, 300), width=some.integers(1, 300), count=some.integers(1, 40), turn=some.integers(0, 50))
def test_shards_cover_everything_once(height: int, width: int, count: int, turn: int) -> None:
    windows = list(split((height, width), 32))
    parts = [Shard(number, count).of(windows, turn) for number in range(count)]
    assert sorted(window for part in parts for window in part) == sorted(windows)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


def test_many_small_inputs_are_dealt_out() -> None:
    windows = list(split((10, 10), 32))
    owners = [number for turn in range(6) for number in range(3) if Shard(number, 3).of(windows, turn)]
    assert sorted(owners) == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"JOB_COMPLETION_INDEX": "2"}, 2),
        ({"AWS_BATCH_JOB_ARRAY_INDEX": "0"}, 0),
        ({"SLURM_ARRAY_TASK_ID": "3"}, 3),
        ({"SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_TASK_MIN": "1"}, 0),
    ],
)
def test_numbers_of_schedulers(environment: dict[str, str], expected: int) -> None:
    assert Shard.parse("auto/4", environment) == Shard(expected, 4)


@pytest.mark.parametrize("text", ["3/3", "7/3", "0/0", "-1/3", "1", "a/3", "1/3/5", "1.5/3", "", "²/3", "0/999999999"])
def test_what_is_no_shard(text: str) -> None:
    with pytest.raises(UsageError, match="--shard"):
        Shard.parse(text, {})


@pytest.mark.parametrize(
    "environment", [{}, {"JOB_COMPLETION_INDEX": "x"}, {"SLURM_ARRAY_TASK_ID": "4"}, {"JOB_COMPLETION_INDEX": ""}]
)
def test_no_number_from_the_scheduler(environment: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="--shard auto"):
        Shard.parse("auto/4", environment)
