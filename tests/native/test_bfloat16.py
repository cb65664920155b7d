"""Kernels with products of bfloat16: what is rounded, what is not, and that no row depends on its neighbours."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cropstar.errors import ResourceError
from cropstar.models.backends import choose_half
from cropstar.native import available
from cropstar.native.convolution import convolution_step, follow_images, pack_convolution, tiles_begin
from cropstar.native.library import BFLOAT16_SETS, library, using
from cropstar.native.star import pack_star, run_star, star_stack
from cropstar.native.tensors import Weights

FOUND = library().bfloat16_sets() if available() else []
bfloat16_sets = pytest.mark.parametrize(
    "half_set",
    [
        pytest.param(name, marks=pytest.mark.skipif(name not in FOUND, reason=f"no kernels or no instructions: {name}"))
        for name in BFLOAT16_SETS
    ],
)


def random_weights(inputs: int, hidden: int, *kernel: int) -> Weights:
    terms = (inputs * 9) if kernel else inputs
    value, gate = (torch.randn(hidden, inputs, *kernel) / terms**0.5 for _ in range(2))
    state = torch.randn(hidden, hidden, *kernel) / (hidden * (9 if kernel else 1)) ** 0.5
    return Weights(value, torch.randn(hidden), gate, torch.randn(hidden), state)


def rounded(x: Tensor) -> Tensor:
    return x.bfloat16().double()


def reference(x: Tensor, valid: Tensor, weights: Weights) -> Tensor:
    """States (T, B, H) with the factors of every product rounded to bfloat16, and nothing else."""
    value, value_bias, gate, gate_bias, state = (part.double() for part in weights)
    h = x.new_zeros(x.shape[1], len(value), dtype=torch.float64)
    states = []
    for t in range(len(x)):
        z = torch.tanh(rounded(x[t]) @ rounded(value).T + value_bias)
        k = torch.sigmoid(rounded(x[t]) @ rounded(gate).T + gate_bias + rounded(h.float()) @ rounded(state).T)
        h = torch.where(valid[t, :, None], torch.tanh(h + k * (z - h)), h)
        states.append(h)
    return torch.stack(states)


@bfloat16_sets
@settings(max_examples=40, deadline=None)
@given(
    length=st.integers(1, 6),
    batch=st.integers(1, 90),
    inputs=st.integers(1, 40),
    hidden=st.integers(1, 70),
    seed=st.integers(0, 2**31),
)
def test_the_factors_of_products_are_rounded_and_nothing_else(
    half_set: str, length: int, batch: int, inputs: int, hidden: int, seed: int
) -> None:
    torch.manual_seed(seed)
    weights = random_weights(inputs, hidden)
    x, valid = torch.randn(length, batch, inputs), torch.rand(length, batch) > 0.3
    expected = reference(x, valid, weights)
    with using(half_set):
        outputs, _ = run_star(x, valid, weights)
        (final,), _, _ = star_stack(x, valid, [pack_star(weights)], [None])
    # A state that lies between two numbers of bfloat16 may be rounded either way, by its last bit.
    assert (outputs - expected).abs().max() < 5e-3
    assert (outputs - expected).abs().mean() < 1e-4
    assert torch.equal(final, outputs[-1])


@bfloat16_sets
@pytest.mark.parametrize(("inputs", "hidden"), [(13, 128), (5, 33), (64, 64), (1, 1)])
def test_gradients_of_series_are_near_those_of_float32(half_set: str, inputs: int, hidden: int) -> None:
    torch.manual_seed(3)
    weights = Weights(*(part.requires_grad_() for part in random_weights(inputs, hidden)))
    x, valid = torch.randn(9, 75, inputs, requires_grad=True), torch.rand(9, 75) > 0.2
    slope = torch.randn(9, 75, hidden)
    found = {}
    for name in (library().instruction_set, half_set):
        with using(name):
            outputs, _ = run_star(x, valid, weights)
        found[name] = torch.autograd.grad((outputs * slope).sum(), [x, *weights])  # backwards by the same kernels
    exact, half = found.values()
    for one, other in zip(exact, half, strict=True):
        assert not torch.equal(one, other)
        assert (one - other).norm() < 0.02 * one.norm()


@bfloat16_sets
@pytest.mark.parametrize(("inputs", "hidden", "side"), [(10, 32, 24), (5, 9, 7), (33, 40, 9)])
def test_images_and_their_gradients_are_near_those_of_float32(
    half_set: str, inputs: int, hidden: int, side: int
) -> None:
    torch.manual_seed(4)
    weights = Weights(*(part.requires_grad_() for part in random_weights(inputs, hidden, 3, 3)))
    x = torch.randn(3, 2, inputs, side, side + 1, requires_grad=True)
    valid, slope = torch.rand(3, 2, side, side + 1) > 0.2, torch.randn(3, 2, hidden, side, side + 1)
    found = {}
    for name in (library().instruction_set, half_set):
        with using(name):
            states, _ = follow_images(x, valid, weights)
        found[name] = (states.detach(), *torch.autograd.grad((states * slope).sum(), [x, *weights]))
    exact, half = found.values()
    for one, other in zip(exact, half, strict=True):
        assert not torch.equal(one, other)
        assert (one - other).norm() < 0.03 * one.norm()
    hidden_dates = ~valid[0]
    assert not half[0][0].permute(0, 2, 3, 1)[hidden_dates].any()  # a masked first date leaves the state at zero


@bfloat16_sets
def test_a_row_has_the_same_bits_whatever_its_neighbours(half_set: str) -> None:
    torch.manual_seed(5)
    weights = random_weights(10, 48)
    x, valid = torch.randn(5, 200, 10), torch.rand(5, 200) > 0.2
    with using(half_set):
        whole, _ = run_star(x, valid, weights)
        for some in (slice(0, 1), slice(3, 20), slice(77, 200)):
            part, _ = run_star(x[:, some], valid[:, some], weights)
            assert torch.equal(part, whole[:, some])


@bfloat16_sets
def test_a_window_has_the_bits_of_the_whole_image(half_set: str, two_threads: None) -> None:
    torch.manual_seed(6)
    image = torch.randn(1, 6, 40, 41).contiguous(memory_format=torch.channels_last)
    with using(half_set):
        packed = pack_convolution(random_weights(6, 20, 3, 3))
        whole = convolution_step(image, None, packed)
        for row, column in ((0, 0), (5, 8), (12, 3)):
            with tiles_begin(row, column):
                part = convolution_step(image[:, :, row : row + 21, column : column + 18], None, packed)
            inner = (..., slice(1, -1), slice(1, -1))
            assert torch.equal(part[inner], whole[:, :, row : row + 21, column : column + 18][inner])


@bfloat16_sets
def test_weights_of_another_precision_are_refused(half_set: str) -> None:
    weights = random_weights(3, 4)
    packed = pack_star(weights)
    with using(half_set), pytest.raises(ValueError, match="packed for"):
        star_stack(torch.randn(1, 2, 3), None, [packed], [None])


def test_kernels_of_bfloat16_are_never_chosen_unasked() -> None:
    if available():
        assert library().instruction_set not in BFLOAT16_SETS
        assert not set(BFLOAT16_SETS) & set(library().instruction_sets())
        assert library().half in ("", *library().bfloat16_sets())


def test_a_device_without_its_instructions_is_refused() -> None:
    with pytest.raises(ResourceError, match="--precision bfloat16"):
        choose_half("bfloat16", False, torch.device("mps"))
    assert choose_half("auto", True, torch.device("mps")) is None
    assert choose_half("auto", False, torch.device("cpu")) is None
    assert choose_half("auto", True, torch.device("cuda")) == torch.float16
