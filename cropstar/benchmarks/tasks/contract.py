"""What a task of `cropstar bench` is: data, target, metric, the paper's settings and the paper's figures."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from cropstar.benchmarks.objectives import Metric
from cropstar.config import Section, TrainConfig
from cropstar.datasets.prepared import Prepared
from cropstar.errors import InputError
from cropstar.models.contract import Classifier
from cropstar.models.registry import Shape
from cropstar.models.zoo import build_model
from cropstar.registry import Registry
from cropstar.training.objective import Objective

BLOCK = 2**20
Figures = tuple[tuple[str, str], ...]  # what the paper reports, by model


class Settings(Section):
    """The section `task` of a benchmark's configuration; tasks add to it."""

    checkpoint: int | None = Field(
        None, ge=1, description="steps between states that are kept for the backward pass; null: all are kept"
    )


@dataclass(frozen=True)
class Material:
    """What a task is trained and judged on."""

    parts: dict[str, Prepared]  # train, validation, test
    shape: Shape  # inputs a step, outputs, steps
    objective: Objective
    identity: dict[str, Any]  # tells these data from others: a run goes on with its own alone


class BenchTask(ABC):
    """One of the sequence tasks."""

    name: str
    about: str
    metric: Metric
    paper: Figures
    folder: str | None = None  # under data/; None where samples are generated
    needs: str = ""  # where to get the files, and what to put there
    settings: type[Settings] = Settings
    images: bool = False  # whether a step is one

    @abstractmethod
    def load(self, settings: Any, config: TrainConfig, folder: Path) -> Material: ...

    def build(self, config: TrainConfig, material: Material) -> Classifier:
        return build_model(config.model, material.shape)

    def require_data(self, folder: Path) -> None:
        if self.folder is not None and not folder.exists():
            why = "there is no such file or folder"
            raise InputError(
                f"no data for '{self.name}'", path=folder, why=why, remedy=f"{self.needs}; or name it with --data"
            )


@dataclass(frozen=True)
class StoreTask:
    """A task that is the ordinary training on an ingested store, with a configuration that ships with cropstar."""

    name: str
    about: str
    config: str
    metric: Metric
    paper: Figures
    folder: str
    needs: str
    unit: str  # what the paper's figure counts: the pixel's or the parcel's


TASKS: Registry[BenchTask | StoreTask] = Registry("task")


def digest_of(files: Iterable[Path]) -> dict[str, str]:
    """What each file holds, in a few letters."""
    found = {}
    for file in files:
        digest = hashlib.blake2b(digest_size=8)
        with file.open("rb") as handle:
            while block := handle.read(BLOCK):
                digest.update(block)
        found[file.name] = digest.hexdigest()
    return found
