"""One date of ConvSTAR: the naive reference on images of any size and layout."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from torch import Tensor

from cropstar.native.convolution import convolution_step, pack_convolution
from tests.native.references import OUTPUTS, in_double, make_cell, run_naively, weights_of

pytestmark = pytest.mark.usefixtures("instruction_set")


def season(shape: tuple[int, int, int, int, int], seed: int = 0) -> tuple[Tensor, Tensor]:
    """x (T, N, C, H, W) and valid (T, N, H, W)."""
    generator = torch.Generator().manual_seed(seed)
    length, images, _, height, width = shape
    x = torch.randn(shape, generator=generator)
    return x, torch.rand(length, images, height, width, generator=generator) < 0.7


@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    images=some.integers(1, 3),
    height=some.integers(1, 9),
    width=some.integers(1, 60),
    channels=some.integers(1, 35),
    hidden=some.integers(1, 35),
    masked=some.booleans(),
    last=some.booleans(),
    seed=some.integers(0, 2**16),
)
def test_steps_of_the_reference(
    images: int, height: int, width: int, channels: int, hidden: int, masked: bool, last: bool, seed: int
) -> None:
    cell = make_cell(channels, hidden, spatial=True, seed=seed)
    x, mask = season((3, images, channels, height, width), seed)
    with torch.no_grad():
        expected = run_naively(in_double(cell), x.double(), mask if masked else None)
    packed = pack_convolution(weights_of(cell))
    state: Tensor | None = None
    for t in range(3):
        pixels = x[t].contiguous(memory_format=torch.channels_last) if last else x[t]
        state = convolution_step(pixels, mask[t] if masked else None, packed, state)
        assert (state - expected[t]).abs().max() <= OUTPUTS


def test_crops_are_taken_as_they_are() -> None:
    cell = make_cell(6, 32, spatial=True)
    packed = pack_convolution(weights_of(cell))
    x, valid = season((2, 1, 6, 20, 31))
    large = convolution_step(x[0], valid[0], packed)
    crop = (..., slice(3, 16), slice(5, 28))
    found = convolution_step(x[1][crop], valid[1][crop], packed, large[crop])
    copied = convolution_step(x[1][crop].contiguous(), valid[1][crop].contiguous(), packed, large[crop].contiguous())
    assert torch.equal(found, copied)
    with torch.no_grad():
        expected = in_double(cell).reference(x[1][crop].double(), (large[crop].double(),))[0]
    expected = torch.where(valid[1][crop].unsqueeze(1), expected, large[crop].double())
    assert (found - expected).abs().max() <= OUTPUTS


def test_an_invalid_pixel_keeps_its_state_to_the_bit() -> None:
    packed = pack_convolution(weights_of(make_cell(3, 10, spatial=True)))
    x, valid = season((2, 2, 3, 7, 8))
    before = convolution_step(x[0], None, packed)
    after = convolution_step(x[1], valid[1], packed, before)
    kept = ~valid[1].unsqueeze(1).expand_as(after)
    assert torch.equal(after[kept], before[kept])
    assert not torch.equal(after, before)


@pytest.mark.usefixtures("two_threads")
def test_threads_images_and_runs_do_not_matter() -> None:
    packed = pack_convolution(weights_of(make_cell(4, 32, spatial=True)))
    x, valid = season((2, 3, 4, 33, 50))
    before = convolution_step(x[0], valid[0], packed)
    found = convolution_step(x[1], valid[1], packed, before)
    assert torch.equal(found, convolution_step(x[1], valid[1], packed, before))
    assert torch.equal(found[1:2], convolution_step(x[1, 1:2], valid[1, 1:2], packed, before[1:2]))
    torch.set_num_threads(1)
    assert torch.equal(found, convolution_step(x[1], valid[1], packed, before))


def test_buffers_in_turn() -> None:
    packed = pack_convolution(weights_of(make_cell(4, 16, spatial=True)))
    x, valid = season((4, 1, 4, 12, 12))
    buffers = [torch.empty(1, 16, 12, 12).contiguous(memory_format=torch.channels_last) for _ in range(2)]
    plain: Tensor | None = None
    turned: Tensor | None = None
    for t in range(4):
        plain = convolution_step(x[t], valid[t], packed, plain)
        turned = convolution_step(x[t], valid[t], packed, turned, buffers[t % 2])
        assert turned is buffers[t % 2]
    assert plain is not None
    assert turned is not None
    assert torch.equal(plain, turned)
    with pytest.raises(ValueError, match="shares its memory"):
        convolution_step(x[0], None, packed, turned, turned)
    with pytest.raises(ValueError, match="not channels last"):
        convolution_step(x[0], None, packed, turned, torch.empty(1, 16, 12, 12))


def test_a_border_is_what_a_padded_image_has_there() -> None:
    cell = make_cell(5, 16, spatial=True)
    packed = pack_convolution(weights_of(cell))
    x, valid = season((2, 2, 5, 7, 8))
    border = torch.randn(5)
    for part in x[0], x[0][:, :, 1:, 2:]:
        padded = torch.cat([part, border.reshape(1, 5, 1, 1).expand(2, 5, 1, part.shape[3])], dim=2)
        padded = torch.cat([padded, border.reshape(1, 5, 1, 1).expand(2, 5, padded.shape[2], 1)], dim=3)
        known = torch.zeros(2, part.shape[2] + 1, part.shape[3] + 1, dtype=torch.bool)
        known[:, :-1, :-1] = True
        expected = convolution_step(padded, known, packed, border=border)[:, :, :-1, :-1]
        found = convolution_step(part, None, packed, border=border)
        assert (found - expected).abs().max() <= OUTPUTS
    with pytest.raises(ValueError, match="border"):
        convolution_step(x[0], valid[0], packed, border=torch.zeros(4))
