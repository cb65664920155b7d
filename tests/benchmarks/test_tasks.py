"""The tasks' samples and measures, and widths by the number of parameters."""

from __future__ import annotations

import math
import pickle
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cropstar.benchmarks.running import match_parameters, resolve_bench, shipped_config
from cropstar.benchmarks.tasks import TASKS
from cropstar.benchmarks.tasks.base import (
    LIKELIHOOD,
    BenchTask,
    SequenceLoss,
    SequenceObjective,
    StoreTask,
    TaskData,
    from_arrays,
)
from cropstar.benchmarks.tasks.generated import GeneratedTask
from cropstar.config import AugmentationConfig, ModelConfig, find_config
from cropstar.datasets.batches import Batch
from cropstar.datasets.transforms import Draw
from cropstar.errors import UsageError
from cropstar.models.contract import Classifier, Shape, count_parameters
from cropstar.models.zoo import build_model


def generated(name: str, **own: Any) -> TaskData:
    task = TASKS[name]
    assert isinstance(task, GeneratedTask)
    config, settings = resolve_bench(task, None, {"series_batch": 4, "seed": own.pop("seed", 0)}, (), own, Path("data"))
    return task.load(settings, config, Path("data"))


@given(st.integers(2, 60), st.integers(0, 1000))
def test_adding_marks_one_number_in_each_half(length: int, seed: int) -> None:
    task = TASKS["adding"]
    assert isinstance(task, GeneratedTask)
    x, target = task.sample(np.random.default_rng(seed), length)
    first, second = np.flatnonzero(x[:, 1])
    assert first < length // 2 <= second
    assert target == pytest.approx(x[first, 0] + x[second, 0])


@given(st.integers(2, 60), st.integers(0, 1000))
def test_copy_asks_for_the_word_at_the_end(length: int, seed: int) -> None:
    task = TASKS["copy"]
    assert isinstance(task, GeneratedTask)
    x, wanted = task.sample(np.random.default_rng(seed), length)
    told = x.argmax(axis=1)
    assert len(told) == len(wanted) == length + 20
    assert (x.sum(axis=1) == 1).all()
    assert (told[:10] == wanted[-10:]).all()
    assert set(told[:10]) <= set(range(1, 9))
    assert np.flatnonzero(told == 9).tolist() == [length + 9]
    assert not told[10 : length + 9].any()
    assert not told[-10:].any()
    assert not wanted[:-10].any()


def test_generated_samples_follow_from_seed_epoch_and_number() -> None:
    one, again, other = (generated("adding", length=9, samples=8, seed=seed).parts for seed in (0, 0, 1))
    plain = AugmentationConfig()

    def batch(parts: Any, epoch: int) -> Any:
        return parts["train"].augmented([1, 5], plain, Draw(0, epoch, range(2))).x

    assert torch.equal(batch(one, 3), batch(again, 3))
    assert not torch.equal(batch(one, 3), batch(one, 4))
    assert not torch.equal(batch(one, 3), batch(other, 3))
    for part in ("validation", "test"):  # figures of several seeds are on the same samples
        assert torch.equal(one[part].batch([0, 1]).x, other[part].batch([0, 1]).x)
    assert not torch.equal(one["validation"].batch([0]).x, one["test"].batch([0]).x)


class Silent(Classifier):
    """Says the same whatever it reads."""

    def forward(self, x: torch.Tensor, valid: torch.Tensor, days: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def by_date(self, x: torch.Tensor, valid: torch.Tensor, days: torch.Tensor) -> torch.Tensor:
        return torch.full((*x.shape[:2], 88), 0.3)


def test_notes_are_summed_and_frames_averaged_also_of_pieces_of_different_lengths() -> None:
    random = np.random.default_rng(0)
    pieces = [random.random((length, 88)) < 0.1 for length in (7, 2, 12)]
    data = from_arrays("test", 2, [piece[:-1] for piece in pieces], [piece[1:] for piece in pieces])
    verdict = SequenceObjective(SequenceLoss("notes", by_step=True), LIKELIHOOD).validate(
        Silent(), data, torch.device("cpu")
    )
    sounding = 1 / (1 + math.exp(-0.3))
    frames = np.concatenate([piece[1:] for piece in pieces])
    expected = -np.where(frames, math.log(sounding), math.log(1 - sounding)).sum(axis=1).mean()
    assert verdict.figures == {"nll": pytest.approx(expected, rel=1e-6)}


@given(st.lists(st.integers(2, 40), min_size=1, max_size=4), st.integers(0, 45))
def test_windows_of_training_pieces_foretell_every_frame_once(lengths: list[int], frames: int) -> None:
    random = np.random.default_rng(len(lengths))
    pieces = [random.random((length, 88)) < 0.5 for length in lengths]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "JSB.pickle"
        scores = [[(np.flatnonzero(frame) + 21).tolist() for frame in piece] for piece in pieces]
        file.write_bytes(pickle.dumps(dict.fromkeys(("train", "valid", "test"), scores)))
        task = TASKS["jsb"]
        assert isinstance(task, BenchTask)
        config, settings = resolve_bench(task, None, {"series_batch": 4}, (), {"window": frames}, Path("data"))
        parts = task.load(settings, config, file).parts

    def frames_of(part: str) -> list[Batch]:
        return [parts[part].batch([number]) for number in range(len(parts[part]))]

    for windows in (frames_of("train"), frames_of("test")):
        assert torch.equal(joined([batch.x for batch in windows]), joined([piece[:-1] for piece in pieces]))
        assert torch.equal(joined([batch.labels for batch in windows]), joined([piece[1:] for piece in pieces]))
    assert [batch.x.shape[1] + 1 for batch in frames_of("test")] == lengths
    assert all(batch.x.shape[1] <= (frames or 40) for batch in frames_of("train"))


def joined(arrays: Sequence[Any]) -> torch.Tensor:
    return torch.cat([torch.as_tensor(array).reshape(-1, 88).float() for array in arrays])


@pytest.mark.parametrize("name", ["star", "lstm", "tcn"])
@pytest.mark.parametrize("wanted", [5_000, 100_000])
def test_models_of_equal_size(name: str, wanted: int) -> None:
    def build(config: ModelConfig) -> Classifier:
        return build_model(config, Shape(20, 20, 30))

    start = ModelConfig(name=name, layers=2, day_encoding="none")
    config = match_parameters(start, wanted, build)
    counts = {
        step: count_parameters(build(config.model_copy(update={"hidden": config.hidden + step}))) for step in (-1, 0, 1)
    }
    assert min(counts, key=lambda step: abs(counts[step] - wanted)) == 0
    with pytest.raises(UsageError, match="no width"):
        match_parameters(config, 10**12, build)


@pytest.mark.parametrize("name", list(TASKS))
def test_every_task_has_settings_that_ship(name: str) -> None:
    task = TASKS[name]
    if isinstance(task, StoreTask):
        assert find_config(task.config).is_file()
        return
    assert isinstance(task, BenchTask)
    config, settings = resolve_bench(task, None, {}, (), {}, Path("data"))
    assert config.model.day_encoding == "none"
    assert set(settings.model_dump()) == set(task.settings.model_fields)
    assert shipped_config(name).read_text().startswith("# ")
    assert task.folder is None or task.needs


def test_no_settings_of_a_task_that_is_gone() -> None:
    assert {path.stem for path in shipped_config("adding").parent.glob("*.yaml")} <= {*TASKS, "paper", "short"}
