"""Optional records of a training: `--diagnose` and `--tensorboard`.

A diagnosis has one line per batch of the first epoch in diagnosis.jsonl: for each layer the norm of the gradient before
clipping, the norm of the weights before the step, and the mean |h| of the outputs over all samples, pixels and dates.
It changes nothing in the training. TensorBoard's event files are shown by `tensorboard --logdir data/runs`.
"""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cropstar.errors import UsageError
from cropstar.models.cells.cell import Cell
from cropstar.models.contract import Classifier
from cropstar.models.description import layers_of
from cropstar.reports.figures import draw_diagnosis
from cropstar.runtime import event, logger
from cropstar.store.files import write_text
from cropstar.training.runs import Run

# --- diagnosis


Row = dict[str, Any]


class Diagnosis:
    """Follows the layers of one model and writes what it sees to the folder of the run."""

    def __init__(self, model: Classifier, folder: Path) -> None:
        self.file = folder / "diagnosis.jsonl"
        self.figure = folder / "diagnosis.png"
        self._layers = layers_of(model)
        self._sizes: dict[str, Tensor] = {}  # mean |h| of the last forward pass
        self._unhooks: list[Callable[[], None]] = []

    def begin(self, epoch: int, step: int) -> None:
        """Go on after `step` batches. What a killed run wrote beyond its checkpoint is dropped: it comes again."""
        if epoch > 0:
            logger.info("the first epoch is over: there is nothing to diagnose")
            return
        kept = [row for row in read_rows(self.file) if row["step"] <= step]
        write_text(self.file, "".join(_line(row) for row in kept))
        self._unhooks = [self._watch(name, layer) for name, layer in self._layers.items()]

    def record(self, step: int) -> None:
        """After the backward pass of a batch, before the gradient is bounded."""
        if not self._unhooks:
            return
        layers = self._layers.values()
        row = {
            "step": step,
            "layers": list(self._layers),
            "gradient_norm": [_norm(each.grad for each in layer.parameters()) for layer in layers],
            "weight_norm": [_norm(layer.parameters()) for layer in layers],
            "mean_state": [_number(self._sizes.get(name)) for name in self._layers],
        }
        with self.file.open("a", encoding="utf-8") as lines:
            lines.write(_line(row))

    def end(self) -> None:
        """At the end of an epoch: after the first one, draw it and let go of the model."""
        if not self._unhooks:
            return
        for unhook in self._unhooks:
            unhook()
        self._unhooks = []
        rows = read_rows(self.file)
        if rows:
            draw_diagnosis(self.figure, rows)
            event(f"diagnosis {self.figure}", diagnosis=str(self.figure))

    def _watch(self, name: str, layer: nn.Module) -> Callable[[], None]:
        def note(outputs: Tensor) -> None:
            if torch.is_grad_enabled():  # in training: validation must not be mixed in
                self._sizes[name] = outputs.detach().abs().mean()

        if not isinstance(layer, Cell):
            return layer.register_forward_hook(lambda _, __, outputs: note(outputs)).remove
        follow = layer.follow  # a cell is led by its stack and never called, so that a forward hook would see nothing

        def watched(*args: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
            outputs, state = follow(*args)
            note(outputs)
            return outputs, state

        layer.__dict__["follow"] = watched
        return lambda: layer.__dict__.pop("follow")


def read_rows(file: Path) -> list[Row]:
    """The whole lines of a diagnosis; a kill may have cut the last one."""
    if not file.exists():
        return []
    rows = []
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            break
        if not isinstance(row, dict) or not isinstance(row.get("step"), int):
            break
        rows.append(row)
    return rows


def _line(row: Row) -> str:
    return json.dumps(row, allow_nan=False) + "\n"


def _norm(tensors: Iterable[Tensor | None]) -> float | None:
    norms = [each.detach().norm() for each in tensors if each is not None]
    return _number(torch.stack(norms).norm()) if norms else None


def _number(value: Tensor | None) -> float | None:
    """JSON knows no infinity."""
    number = math.nan if value is None else float(value)
    return number if math.isfinite(number) else None


# --- TensorBoard


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
        """Continue after `step` steps."""
        from torch.utils.tensorboard import SummaryWriter  # here: it takes a second

        self._writer = SummaryWriter(str(self._folder), purge_step=step + 1 if step else None)

    def add(self, step: int, **values: float) -> None:
        """Values by name; the part before the first underscore is the group that it is shown in."""
        for name, value in values.items():
            self._writer.add_scalar(name.replace("_", "/", 1), value, step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
