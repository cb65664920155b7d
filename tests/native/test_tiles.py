"""Where an image begins in a larger one does not change a bit of what it knows."""

from __future__ import annotations

import pytest
import torch

from cropstar.native.convolution import convolution_step, pack_convolution, tiles_begin
from tests.native.references import make_cell, weights_of

pytestmark = pytest.mark.usefixtures("instruction_set")
REACH = 1  # of a date


@pytest.mark.parametrize("place", [(4, 6), (5, 6), (4, 7), (5, 7)])
@pytest.mark.parametrize("masked", [False, True])
def test_a_part_has_the_bits_of_the_whole(place: tuple[int, int], masked: bool) -> None:
    top, left = place
    packed = pack_convolution(weights_of(make_cell(3, 11, spatial=True)))
    random = torch.Generator().manual_seed(0)
    x = torch.randn(2, 1, 3, 24, 23, generator=random)
    valid = torch.rand(2, 1, 24, 23, generator=random) > 0.3 if masked else None
    first = None if valid is None else valid[0]
    second = None if valid is None else valid[1]
    before = convolution_step(x[0], first, packed)
    whole = convolution_step(x[1], second, packed, before)
    part = (..., slice(top, top + 13), slice(left, left + 12))
    known = None if second is None else second[part]
    with tiles_begin(top, left):
        found = convolution_step(x[1][part], known, packed, before[part])
        out = torch.empty_like(found)
        assert convolution_step(x[1][part], known, packed, before[part], out) is out
    inside = (..., slice(REACH, -REACH), slice(REACH, -REACH))
    assert torch.equal(found[inside], whole[part][inside])
    assert torch.equal(out, found)
    with tiles_begin(top + 2, left + 4):
        assert torch.equal(convolution_step(x[1][part], known, packed, before[part]), found)


def test_at_the_edge_nothing_lies_outside() -> None:
    """An image that begins at an odd pixel is padded with zeros, as any other."""
    packed = pack_convolution(weights_of(make_cell(2, 5, spatial=True)))
    x = torch.randn(1, 2, 7, 8)
    plain = convolution_step(x, None, packed)
    with tiles_begin(1, 1):
        shifted = convolution_step(x, None, packed)
    torch.testing.assert_close(shifted, plain, rtol=0, atol=2e-6)
