"""Jester: the gesture that a clip shows, with a convolutional recurrent network over its frames."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
from pydantic import Field

from cropstar.benchmarks.jester import REMEDY, Clips, read_clips
from cropstar.benchmarks.objectives import ACCURACY, SequenceMeasure, SequenceObjective
from cropstar.benchmarks.sequences import PARTS, Sample, Samples, prepared
from cropstar.benchmarks.tasks.contract import TASKS, BenchTask, Material, Settings
from cropstar.config import TrainConfig
from cropstar.datasets.prepared import Prepared
from cropstar.errors import UsageError
from cropstar.models.contract import Classifier
from cropstar.models.registry import Shape


class GestureSettings(Settings):
    frames: int = Field(32, ge=1, le=512, description="frames of a clip, at even distances")
    size: int = Field(112, ge=8, le=512, description="pixels a side")


class Gestures(BenchTask):
    name = "jester"
    about = "gestures in video clips of 32 frames, with a ConvRNN"
    metric = ACCURACY
    paper = (("convstar", "92.3 to 92.7 %"),)
    folder = "jester"
    needs = REMEDY
    settings = GestureSettings
    images = True

    def load(self, settings: GestureSettings, config: TrainConfig, folder: Path) -> Material:
        digest = hashlib.blake2b(digest_size=8)
        parts: dict[str, Prepared] = {}
        classes = 0
        for part in PARTS:
            clips = read_clips(folder, part)
            if part != "train":  # what is missing there shows in the first epoch, but here when all has been trained
                clips.require_frames()
            digest.update("\n".join((*clips.identifiers, *clips.names)).encode() + clips.labels.tobytes())
            parts[part] = prepared(_samples(part, clips, settings, config.batch))
            classes = len(clips.names)
        objective = SequenceObjective(SequenceMeasure("class", by_step=False), self.metric)
        return Material(parts, Shape(3, classes, settings.frames), objective, {"clips": digest.hexdigest()})

    def build(self, config: TrainConfig, material: Material) -> Classifier:
        model = super().build(config, material)
        if not model.spatial or model.makes_maps:
            why = "a clip is to have one class"
            remedy = "take a model such as convstar, with model.head=video"
            raise UsageError(f"'{config.model.name}' cannot read clips so", why=why, remedy=remedy)
        return model


def _samples(part: str, clips: Clips, settings: GestureSettings, batch: int) -> Samples:
    def read(index: int) -> Sample:
        frames = clips.frames(index, settings.frames, settings.size).astype(np.float32)
        return frames / np.float32(127.5) - 1, np.asarray(clips.labels[index])

    return Samples(part, len(clips), batch, read)


TASKS.register(Gestures.name)(Gestures())
