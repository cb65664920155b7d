"""Calls to the disk that fail, some of each command that writes; `make faults` fails every single one."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.forkserver import ForkServer, Watch
from tests.faults.sweep import FAULTS, Fault, count_calls, problems_of, sample
from tests.faults.writing import Case


@pytest.mark.parametrize("fault", FAULTS, ids=str)
@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("ingest", 4),
        ("ingest-again", 3),
        ("predict", 2),
        ("update", 2),
        pytest.param("predict-again", 3, marks=pytest.mark.slow),
        pytest.param("train", 3, marks=pytest.mark.slow),
    ],
)
def test_a_failed_call_loses_nothing(
    name: str, count: int, fault: Fault, case_of: Callable[[str], Case], server: ForkServer
) -> None:
    case = case_of(name)
    calls = count_calls(case, fault, server)
    assert calls >= count
    for number in sample(calls, count):
        assert problems_of(case, fault, number, server) == [], f"call {number} of {calls}"


def test_the_shim_sees_streams_of_stdio_too(case_of: Callable[[str], Case], server: ForkServer) -> None:
    """GDAL writes maps through them: were they missed, no write of a map could fail."""
    case = case_of("predict")
    case.restore()
    answer = case.run(server, Watch(case.place, log=case.place.parent / "calls.log"))
    log = (case.place.parent / "calls.log").read_bytes()
    assert b"draft-map.tif" in log
    assert answer.seen > 100


def test_the_command_is_told_of_the_error(case_of: Callable[[str], Case], server: ForkServer, tmp_path: Path) -> None:
    case = case_of("ingest")
    case.restore()
    answer = case.run(server, Watch(case.place, ("write",), 1, errno.ENOSPC))
    assert (answer.code, answer.failed) == (6, 1)
    assert "No space left on device" in answer.line
