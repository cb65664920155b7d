"""What the tests of commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cropstar.training.trainer import Clock


@pytest.fixture
def an_hour_a_batch(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Once called, every batch of a training takes an hour: budgets end it at a known one."""
    note = Clock.note

    def noted(self: Clock, progress: Any) -> None:
        note(self, progress)
        progress.seconds = 3600.0 * progress.step

    return lambda: monkeypatch.setattr(Clock, "note", noted)
