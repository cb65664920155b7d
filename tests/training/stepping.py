"""Watching, and cutting off, the steps of a training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cropstar.training import trainer

Hook = Callable[[Any, Any, int], None]  # gets the task, the progress, and the number of this step from 1


class Cut(Exception):
    """A power cut."""


@contextmanager
def watched_steps(before: Hook | None = None, after: Hook | None = None) -> Iterator[list[int]]:
    """Within, a list grows with every step that begins. `before` and `after` a step may raise, as a kill would."""
    step, begun = trainer.train_step, list[int]()

    def watched(task: Any, tools: Any, stop: bool, batch: Any, progress: Any, total: int) -> Any:
        begun.append(len(begun) + 1)
        number = begun[-1]
        if before is not None:
            before(task, progress, number)
        outcome = step(task, tools, stop, batch, progress, total)
        if after is not None:
            after(task, progress, number)
        return outcome

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "train_step", watched)
        yield begun


def cut_before(*steps: int) -> Hook:
    """Cut off before these steps."""

    def cut(_: Any, __: Any, number: int) -> None:
        if number in steps:
            raise Cut

    return cut
