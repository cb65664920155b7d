"""Kills at random moments: nothing is lost, and the next run ends with the bytes of an unbroken one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.faults.forkserver import ForkServer
from tests.faults.kills import KILLED, kill_often
from tests.faults.writing import Case


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("name", "kills"),
    [("ingest-again", 3), ("update", 3), *(pytest.param(name, 100, marks=pytest.mark.slow) for name in KILLED)],
)
@pytest.mark.parametrize("politely", [False, True], ids=["SIGKILL", "SIGINT or SIGTERM"])
def test_kills_lose_nothing(
    name: str, kills: int, politely: bool, case_of: Callable[[str], Case], server: ForkServer
) -> None:
    _, problems = kill_often(case_of(name), server, kills, politely=politely)
    assert problems == []
