"""Text in streams: every character is foretold once, and states go on from segment to segment."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from cropstar.benchmarks.objectives import BITS
from cropstar.benchmarks.text import Streams, TextModel, TextObjective
from cropstar.config import ModelConfig
from cropstar.datasets.batch import Batch
from cropstar.errors import InputError
from cropstar.models.registry import Shape
from cropstar.models.zoo import build_model
from cropstar.training.accumulation import cut

CPU = torch.device("cpu")
LETTERS = 5


def text_of(length: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.random.default_rng(length).integers(0, LETTERS, length).astype(np.uint8)


def segments(streams: Streams) -> list[Batch]:
    rows = streams.batch_size
    return [streams.batch(list(range(start, start + rows))) for start in range(0, len(streams), rows)]


def a_model(streams: Streams, name: str = "star") -> TextModel:
    torch.manual_seed(2)
    config = ModelConfig(name=name, layers=2, hidden=6, day_encoding="none")
    return TextModel(build_model(config, Shape(LETTERS, LETTERS, 10)), LETTERS, streams.batch_size, streams.stretch)


@given(st.integers(2, 200), st.integers(1, 12), st.integers(1, 40))
def test_every_character_but_the_first_is_foretold_once(length: int, rows: int, segment: int) -> None:
    codes = text_of(length)
    if length < 2 * rows:
        with pytest.raises(InputError, match="too short"):
            Streams("train", codes, rows, segment)
        return
    seen = np.zeros(length, dtype=int)
    for batch in segments(Streams("train", codes, rows, segment)):
        places = batch.days.numpy()[batch.valid.numpy()]
        assert (codes[places] == batch.x.numpy()[:, :, 0][batch.valid.numpy()]).all()
        assert (codes[places + 1] == batch.labels.numpy()[batch.valid.numpy()]).all()
        seen[places + 1] += 1
        assert batch.x.shape[1] <= segment
    assert seen.tolist() == [0, *[1] * (length - 1)]


@pytest.mark.parametrize("name", ["star", "lstm"])
def test_states_go_on_between_segments_and_begin_anew_with_the_text(name: str) -> None:
    streams = Streams("train", text_of(91), 3, 7)
    whole = Streams("train", text_of(91), 3, 1000)
    model = a_model(streams, name)
    (everything,) = segments(whole)
    with torch.no_grad():
        expected = model.by_date(everything.x, everything.valid, everything.days)
        for _ in range(2):  # the second time over, nothing of the first is left
            found = [model.by_date(batch.x, batch.valid, batch.days) for batch in segments(streams)]
            assert torch.allclose(torch.cat(found, dim=1), expected, atol=1e-6)
        cut_off = model.read(everything.x[:, 7:], everything.valid[:, 7:], everything.days[:, 7:], None)[0]
    assert (cut_off - expected[:, 7:]).abs().max() > 1e-3  # so the test above can fail


def test_micro_batches_find_their_own_rows() -> None:
    streams = Streams("train", text_of(64), 5, 4)
    one, other = a_model(streams), a_model(streams)
    with torch.no_grad():
        for batch in segments(streams):
            whole = one.by_date(batch.x, batch.valid, batch.days)
            pieces = [other.by_date(piece.x, piece.valid, piece.days) for piece in cut(batch, 2)]
            assert torch.allclose(torch.cat(pieces), whole, atol=1e-6)


def test_bits_per_character_by_hand_and_training_states_are_left_alone() -> None:
    codes = text_of(50)
    streams = Streams("validation", codes, 1, 6)
    model = a_model(streams)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    verdict = TextObjective().judge(model, streams, CPU)
    with torch.no_grad():
        x = torch.from_numpy(codes[None, :-1, None])
        scores, _ = model.read(x, torch.ones(1, 49, dtype=torch.bool), torch.zeros(1, 49), None)
        expected = functional.cross_entropy(scores[0], torch.from_numpy(codes[1:].astype(np.int64))) / math.log(2)
    assert verdict.figures[BITS.name] == pytest.approx(float(expected), rel=1e-5)
    assert verdict.score == -verdict.figures[BITS.name]
    assert before
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
