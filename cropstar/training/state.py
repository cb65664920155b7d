"""Everything that a run needs to go on from: weights, optimiser, where it is, what it has seen."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cropstar.errors import ArtifactError
from cropstar.models.weights import load_weights, weights_of
from cropstar.runtime import logger
from cropstar.store.model_file import Tensors, read_tensors, write_tensors
from cropstar.training.averaging import WeightAverage
from cropstar.training.precision import Precision
from cropstar.training.runs import Run

MOMENTS = ("exp_avg", "exp_avg_sq", "step")


@dataclass
class Progress:
    """Where a run stands: the next batch to do, and what the epochs so far gave."""

    epoch: int = 0
    batch: int = 0  # batches of this epoch that are done
    step: int = 0  # batches that are done altogether
    loss_sum: float = 0.0  # over this epoch's labelled pixels
    pixels: int = 0
    seconds: float = 0.0  # spent in training so far, over all restarts
    samples: int = 0  # labelled pixels or series that were trained on, over all epochs
    best_score: float = -1.0
    best_epoch: int = 0
    best_loss: float | None = None  # on validation; None: not known, as in checkpoints of older versions
    micro_batch: int | None = None  # samples at once that memory was found to have room for; None: not yet too few
    history: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Trained:
    """What a run changes as it goes."""

    model: nn.Module
    optimiser: torch.optim.Adam
    precision: Precision
    average: WeightAverage | None = None


def save_checkpoint(run: Run, progress: Progress, trained: Trained) -> None:
    """A new file, then the oldest goes: the last good one is never written over."""
    model = trained.model
    names: dict[torch.Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    tensors: Tensors = {f"model.{name}": array for name, array in weights_of(model).items()}
    for parameter, moments in trained.optimiser.state.items():
        for moment in MOMENTS:
            tensors[f"optimiser.{names[parameter]}.{moment}"] = moments[moment].cpu().numpy()
    if trained.average is not None:
        tensors |= {f"average.{name}": array for name, array in trained.average.tensors().items()}
    header = {"progress": vars(progress), "precision": trained.precision.state()}
    write_tensors(run.checkpoint(progress.step), "checkpoint", header, tensors)
    run.drop_old_checkpoints()


def load_newest_checkpoint(run: Run, trained: Trained) -> Progress:
    """Restore the newest checkpoint that can be read; a fresh start where there is none."""
    for path in run.checkpoints():
        try:
            header, tensors = read_tensors(path, "checkpoint")
        except ArtifactError as failure:
            logger.warning("%s; going back to the one before", failure)
            continue
        _restore(path, tensors, trained.model, trained.optimiser)
        if trained.average is not None:
            trained.average.restore(_part(tensors, "average."))
        trained.precision.restore(header.get("precision", {}))
        return Progress(**header["progress"])
    if run.checkpoints():
        raise ArtifactError(
            "no checkpoint can be read", path=run.folder, why="all are damaged", remedy="start anew with --fresh"
        )
    return Progress()


def _restore(path: Path, tensors: Tensors, model: nn.Module, optimiser: torch.optim.Adam) -> None:
    load_weights(model, _part(tensors, "model."), path)
    for name, parameter in model.named_parameters():
        keys = {moment: f"optimiser.{name}.{moment}" for moment in MOMENTS}
        if all(key in tensors for key in keys.values()):
            # The step counter stays on the CPU, where Adam wants it; the moments go to the weights.
            optimiser.state[parameter] = {
                moment: torch.from_numpy(tensors[key]).to("cpu" if moment == "step" else parameter.device)
                for moment, key in keys.items()
            }


def _part(tensors: Tensors, prefix: str) -> Tensors:
    return {name.removeprefix(prefix): array for name, array in tensors.items() if name.startswith(prefix)}
