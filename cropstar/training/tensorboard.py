"""What TensorBoard draws: `cropstar train --tensorboard`, then `tensorboard --logdir data/runs`."""

from __future__ import annotations

import importlib.util
from typing import Any

from cropstar.errors import UsageError
from cropstar.training.runs import Run


def require_tensorboard() -> None:
    """Refuse, before a run is made, where the package is missing."""
    if importlib.util.find_spec("tensorboard") is None:
        why = "tensorboard is not installed"
        raise UsageError("--tensorboard cannot be used", why=why, remedy="pip install 'cropstar[tensorboard]'")


class EventFiles:
    """Curves by step in the run folder. What a killed run wrote beyond its checkpoint is hidden: it comes again."""

    def __init__(self, run: Run) -> None:
        self._folder = run.folder / "tensorboard"
        self._writer: Any = None

    def begin(self, step: int) -> None:
        """Go on after so many steps."""
        from torch.utils.tensorboard import SummaryWriter  # here: it takes a second

        self._writer = SummaryWriter(str(self._folder), purge_step=step + 1 if step else None)

    def add(self, step: int, **values: float) -> None:
        """Values by name; the part before the first underscore is the group that it is shown in."""
        for name, value in values.items():
            self._writer.add_scalar(name.replace("_", "/", 1), value, step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
