"""The Penn Treebank, character by character, with the state carried from segment to segment."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pydantic import Field

from cropstar.benchmarks.objectives import BITS
from cropstar.benchmarks.penn import REMEDY, read_penn
from cropstar.benchmarks.sequences import PARTS, prepared
from cropstar.benchmarks.tasks.contract import TASKS, BenchTask, Material, Settings
from cropstar.benchmarks.text import Streams, TextModel, TextObjective
from cropstar.config import TrainConfig
from cropstar.errors import UsageError
from cropstar.models.contract import Classifier
from cropstar.models.registry import Shape
from cropstar.models.zoo import build_model


class PennSettings(Settings):
    bptt: int = Field(150, ge=1, le=10_000, description="characters that gradients go back at most")
    limit: int | None = Field(None, ge=2, description="characters of the training part, for a trial; null: all")
    held_out_limit: int | None = Field(None, ge=2, description="likewise of validation and test; null: all")


class Penn(BenchTask):
    name = "ptb"
    about = "the Penn Treebank, the next of its characters"
    metric = BITS
    paper = (("star", "1.30"),)
    folder = "ptb"
    needs = REMEDY
    settings = PennSettings

    def load(self, settings: PennSettings, config: TrainConfig, folder: Path) -> Material:
        if settings.checkpoint is not None:
            why = "its segments are short already: task.bptt"
            raise UsageError("task.checkpoint is not for 'ptb'", why=why, remedy="leave it out")
        codes, alphabet = read_penn(folder)
        digest = hashlib.blake2b(digest_size=8)
        parts = {}
        for part in PARTS:
            digest.update(f"{part} {len(codes[part])} ".encode() + codes[part].tobytes())
            limit = settings.limit if part == "train" else settings.held_out_limit
            parts[part] = prepared(Streams(part, codes[part][:limit], config.series_batch, settings.bptt))
        shape = Shape(len(alphabet), len(alphabet), settings.bptt)
        return Material(parts, shape, TextObjective(), {"text": digest.hexdigest()})

    def build(self, config: TrainConfig, material: Material) -> Classifier:
        streams = material.parts["train"].samples
        assert isinstance(streams, Streams)
        model = build_model(config.model, material.shape)
        return TextModel(model, material.shape.bands, streams.batch_size, streams.stretch)


TASKS.register(Penn.name)(Penn())
