"""ConvSTAR over sequences: the naive reference's states and gradients on images of any size and layout."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from torch import Tensor

from cropstar.models.cells.star import StarCell
from cropstar.native.convolution import follow_images
from tests.native.references import OUTPUTS, in_double, make_cell, require_close, run_naively, weights_of
from tests.native.test_convolution import season

pytestmark = pytest.mark.usefixtures("instruction_set")


class Found(NamedTuple):
    states: Tensor
    x: Tensor
    initial: Tensor
    weights: tuple[Tensor, ...]


def follow_back(
    cell: StarCell, x: Tensor, valid: Tensor | None, initial: Tensor, pull: Tensor | None = None
) -> tuple[Found, Tensor]:
    """What the kernel finds with a loss on all states, and that loss's gradient, which `pull` may give."""
    x, initial = x.detach().requires_grad_(), initial.detach().requires_grad_()
    states, last = follow_images(x, valid, weights_of(cell), initial)
    pull = torch.randn(states.shape, generator=torch.Generator().manual_seed(1)) if pull is None else pull
    parts = torch.autograd.grad([states, last], [x, initial, *cell.parameters()], [pull, pull[0]])
    return Found(states.detach(), parts[0], parts[1], parts[2:]), pull


def require_equal(one: Found, other: Found) -> None:
    assert torch.equal(one.states, other.states)
    assert torch.equal(one.x, other.x)
    assert torch.equal(one.initial, other.initial)
    for left, right in zip(one.weights, other.weights, strict=True):
        assert torch.equal(left, right)


def require_reference(
    x: Tensor, valid: Tensor | None, initial: Tensor | None, hidden: int, *, on_states: bool, on_last: bool, seed: int
) -> None:
    cell = make_cell(x.shape[2], hidden, spatial=True, seed=seed)
    double = in_double(cell)
    pull = torch.randn(x.shape[0], x.shape[1], hidden, *x.shape[3:], generator=torch.Generator().manual_seed(seed))
    pulls = [float(on_states) * pull, float(on_last) * pull[0]]

    x = x.requires_grad_()
    start = None if initial is None else initial.requires_grad_()
    states, last = follow_images(x, valid, weights_of(cell), start)
    chosen = [number for number, wanted in enumerate((on_states, on_last)) if wanted]
    torch.autograd.backward([(states, last)[number] for number in chosen], [pulls[number] for number in chosen])

    wide = x.detach().double().requires_grad_()
    wide_start = None if initial is None else initial.detach().double().requires_grad_()
    expected = run_naively(double, wide, valid, wide_start)
    torch.autograd.backward([expected, expected[-1]], [pull.double() for pull in pulls])

    assert (states - expected).abs().max() <= OUTPUTS
    assert torch.equal(last, states[-1])
    require_close(x.grad, wide.grad)
    if start is not None and wide_start is not None:
        require_close(start.grad, wide_start.grad)
    for found, right in zip(weights_of(cell), weights_of(double), strict=True):
        require_close(found.grad, right.grad)


@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shape=some.tuples(*(some.integers(1, most) for most in (4, 3, 35, 9, 60))),
    hidden=some.integers(1, 35),
    masked=some.booleans(),
    started=some.booleans(),
    loss=some.sampled_from(["states", "last", "both"]),
    seed=some.integers(0, 2**16),
)
def test_states_and_gradients_of_the_reference(
    shape: tuple[int, int, int, int, int], hidden: int, masked: bool, started: bool, loss: str, seed: int
) -> None:
    x, mask = season(shape, seed)
    initial = torch.randn(shape[1], hidden, *shape[3:], generator=torch.Generator().manual_seed(seed)).tanh()
    on_states, on_last = loss != "last", loss != "states"
    require_reference(
        *(x, mask if masked else None, initial if started else None, hidden),
        on_states=on_states,
        on_last=on_last,
        seed=seed,
    )


@pytest.mark.slow
@pytest.mark.usefixtures("two_threads")
def test_long_sums_keep_their_digits() -> None:
    x, mask = season((30, 4, 4, 48, 48))
    require_reference(x, mask, None, 32, on_states=True, on_last=True, seed=0)


def test_an_invalid_pixel_keeps_its_state_and_passes_its_gradient_on() -> None:
    cell = make_cell(3, 10, spatial=True)
    x, valid = season((3, 2, 3, 7, 8))
    valid[1, :, 2:5] = False
    initial = torch.randn(2, 10, 7, 8).tanh()
    found, _ = follow_back(cell, x, valid, initial)
    before = torch.cat([initial.unsqueeze(0), found.states[:-1]])
    kept = ~valid.unsqueeze(2).expand_as(before)
    assert torch.equal(found.states[kept], before[kept])
    assert not torch.equal(found.states, before)
    nowhere, pull = follow_back(cell, x, torch.zeros_like(valid), initial)
    assert torch.equal(nowhere.states, initial.expand_as(nowhere.states))
    assert torch.allclose(nowhere.initial, pull.sum(0) + pull[0], atol=1e-6)
    assert not any(part.any() for part in (nowhere.x, *nowhere.weights))


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("images", [1, 2, 3])  # rows or whole images to a thread
def test_threads_images_and_runs_do_not_matter(images: int) -> None:
    cell = make_cell(4, 32, spatial=True)
    x, valid = season((3, images, 4, 23, 30))
    initial = torch.randn(images, 32, 23, 30).tanh()
    found, pull = follow_back(cell, x, valid, initial)
    require_equal(found, follow_back(cell, x, valid, initial)[0])
    alone, _ = follow_back(cell, x[:, -1:], valid[:, -1:], initial[-1:], pull[:, -1:])
    assert torch.equal(found.states[:, -1:], alone.states)
    assert torch.equal(found.x[:, -1:], alone.x)
    torch.set_num_threads(1)
    one, _ = follow_back(cell, x, valid, initial)
    assert torch.equal(found.states, one.states)
    assert torch.equal(found.x, one.x)  # only the weights' gradients are sums over parts
    assert torch.equal(found.initial, one.initial)
    for left, right in zip(found.weights, one.weights, strict=True):
        require_close(left, right.double())


def test_layouts_do_not_matter() -> None:
    cell = make_cell(6, 16, spatial=True)
    x, valid = season((3, 2, 6, 11, 14))
    initial = torch.randn(2, 16, 11, 14).tanh()
    found, pull = follow_back(cell, x, valid, initial)
    channels_last = x.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
    samples_first = x.transpose(0, 1).contiguous().transpose(0, 1)
    margin = torch.full((3, 2, 13, 18, 6), 9.0)
    margin[:, :, 1:12, 2:16] = x.permute(0, 1, 3, 4, 2)
    crop = margin[:, :, 1:12, 2:16].permute(0, 1, 4, 2, 3)
    turned_mask = valid.permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1)
    turned_pull = pull.permute(4, 3, 2, 1, 0).contiguous().permute(4, 3, 2, 1, 0)
    turned_initial = initial.contiguous(memory_format=torch.channels_last)
    for other in (channels_last, samples_first, crop):
        require_equal(found, follow_back(cell, other, turned_mask, turned_initial, turned_pull)[0])


def test_gradients_that_nobody_wants_are_left_out() -> None:
    cell = make_cell(4, 8, spatial=True)
    x, valid = season((3, 2, 4, 6, 6))
    with torch.no_grad():
        states, _ = follow_images(x, valid, weights_of(cell))
    assert not states.requires_grad
    _, last = follow_images(x, valid, weights_of(cell))
    last.sum().backward()
    wanted = [part.grad.clone() for part in cell.parameters() if part.grad is not None]
    assert len(wanted) == 5
    cell.requires_grad_(False)
    x.requires_grad_()
    again, last = follow_images(x, valid, weights_of(cell))
    last.sum().backward()
    assert torch.equal(states, again)
    assert x.grad is not None
    assert x.grad.abs().sum() > 0


def test_what_it_cannot_do_is_refused() -> None:
    weights = weights_of(make_cell(4, 8, spatial=True))
    x, valid = season((3, 2, 4, 6, 6))
    states, last = follow_images(x, valid, weights)
    with pytest.raises(RuntimeError, match="second derivative"):
        torch.autograd.grad(last.sum(), weights[0], create_graph=True)
    states.mul_(2)  # the way back needs them as they were
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        last.sum().backward()
    with pytest.raises(ValueError, match=r"x is \(3, 2, 3, 6, 6\), not \(3, 2, 4, 6, 6\)"):
        follow_images(x[:, :, 1:], valid, weights)
    with pytest.raises(ValueError, match="not \\(T, B, C, H, W\\)"):
        follow_images(x[..., :0], valid[..., :0], weights)
    with pytest.raises(ValueError, match="valid is"):
        follow_images(x, valid[1:], weights)
    with pytest.raises(ValueError, match="initial is"):
        follow_images(x, valid, weights, torch.zeros(2, 8, 6, 5))
    with pytest.raises(ValueError, match="float32"):
        follow_images(x.double(), valid, weights)
    with pytest.raises(ValueError, match="not 3 x 3"):
        follow_images(x, valid, weights._replace(value_weight=torch.zeros(8, 4, 1, 1)))
