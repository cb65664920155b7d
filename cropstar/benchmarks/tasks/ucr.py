"""A data set of the UCR or UEA archive, on its published halves; a share of the training half chooses the epoch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from cropstar.benchmarks.tasks.base import (
    ACCURACY,
    BenchTask,
    SequenceLoss,
    SequenceObjective,
    Settings,
    TaskData,
    from_arrays,
    register,
)
from cropstar.config import TrainConfig
from cropstar.datasets.splits import PARTS
from cropstar.errors import InputError
from cropstar.models.contract import Shape
from cropstar.sources.ucr import UcrScene

Series = list[NDArray[np.float32]]


class UcrSettings(Settings):
    validation: float = Field(0.15, gt=0, lt=1, description="share of the training half used for validation")


@register
class Ucr(BenchTask):
    name = "ucr"
    about = "a data set of the UCR archive, on its published halves"
    metric = ACCURACY
    paper = ()
    folder = "ucr"
    needs = "put NAME_TRAIN and NAME_TEST (.tsv or .ts, also as .gz) of https://timeseriesclassification.com there"
    settings = UcrSettings

    def load(self, settings: UcrSettings, config: TrainConfig, folder: Path) -> TaskData:
        scene = UcrScene(folder)
        series: dict[str, Series] = {"train": [], "test": []}
        labels: dict[str, list[int]] = {"train": [], "test": []}
        for piece in scene.tile_specs():
            tile = scene.build(piece)
            assert tile.table.groups is not None
            for place, group in enumerate(tile.table.groups):
                rows = slice(int(tile.starts[place]), int(tile.starts[place + 1]))
                seen = np.asarray(tile.valid[rows], dtype=bool)
                series[group].append(np.asarray(tile.values[rows], dtype=np.float32)[seen])  # gaps are left out
                labels[group].append(int(tile.table.labels[place]))
        # The same lot for every seed: what is chosen on stays apart from what is varied.
        lot = np.random.default_rng(len(series["train"])).permutation(len(series["train"]))
        held = max(1, round(settings.validation * len(lot)))
        if held >= len(lot):
            why = f"{len(lot)} series, of which {held} are for validation"
            raise InputError("too few series to train on", path=folder, why=why, remedy="use a larger data set")
        chosen = {"train": np.sort(lot[held:]), "validation": np.sort(lot[:held])}
        known = np.concatenate([series["train"][number] for number in chosen["train"]])
        mean, deviation = known.mean(axis=0), np.maximum(known.std(axis=0), 1e-6)
        parts = {}
        for part in PARTS:
            half = "test" if part == "test" else "train"
            numbers = chosen.get(part, np.arange(len(series["test"])))
            inputs = [(series[half][number] - mean) / deviation for number in numbers]
            parts[part] = from_arrays(part, config.series_batch, inputs, [labels[half][number] for number in numbers])
        longest = max(len(one) for one in series["train"])
        shape = Shape(known.shape[1], len(scene.fingerprint.classes), longest)
        objective = SequenceObjective(SequenceLoss("class", by_step=False), self.metric)
        return TaskData(parts, shape, objective, {"name": scene.name, "recipe": scene.recipe})
