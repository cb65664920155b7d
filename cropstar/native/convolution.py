"""The ConvSTAR layer: one date for inference, and whole sequences of images, forwards and backwards.

Images keep the shape (N, C, H, W) and lie channels last in memory, where a crop is a view that is taken as it is. An
image in another layout is copied once. The arithmetic is Winograd's F(2x2, 3x3) for all sizes: tiles of 2 x 2 pixels,
and where in its tile a pixel lies decides about its last bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from cropstar.native.library import ConvolutionBackward, ConvolutionForward, ConvolutionStep, library
from cropstar.native.tensors import (
    Forward,
    Gradients,
    Kernels,
    Packed,
    Weights,
    given_gradients,
    inner_contiguous,
    mask_bytes,
    pack,
    pointer,
    require_fit,
    require_shape,
    run_layer,
    strides,
)

TILE = 2
_origin: ContextVar[tuple[int, int]] = ContextVar("origin", default=(0, 0))


@contextmanager
def tiles_begin(row: int, column: int) -> Iterator[None]:
    """Within it, images begin at this pixel of a larger one, in which tiles begin at even pixels.

    Every window that a pixel lies in then gives it the same bits, as far as the window knows its surroundings.
    """
    before = _origin.set((row % TILE, column % TILE))
    try:
        yield
    finally:
        _origin.reset(before)


def pack_convolution(weights: Weights) -> Packed:
    """The kernels, transformed; worth keeping, since this takes as long as a small image."""
    if weights.value_weight.shape[2:] != (3, 3):
        raise ValueError(f"kernels are {tuple(weights.value_weight.shape[2:])}, not 3 x 3")
    return pack(weights, "convolution")


def convolution_step(
    x: Tensor,
    valid: Tensor | None,
    packed: Packed,
    state: Tensor | None = None,
    out: Tensor | None = None,
    *,
    border: Tensor | None = None,
) -> Tensor:
    """The state (N, F, H, W) after a date: x (N, C, H, W), valid (N, H, W).

    `out`, channels last and other memory than x and `state`, is where it goes: two buffers in turn serve a season.
    `border` (C,) is what x is taken to be outside of the image, instead of zeros.
    """
    if border is not None:
        require_fit(border)
        require_shape("border", border, (packed.inputs,))
        border = border.contiguous()
    above, left = _origin.get()
    if (above or left) and x.numel():
        return _shifted(x, valid, packed, state, out, above, left, border)
    images, _, height, width = x.shape
    shape = (images, packed.hidden, height, width)
    require_shape("x", x, (images, packed.inputs, height, width))
    if not x.numel():
        raise ValueError(f"an empty image: {tuple(x.shape)}")
    if state is not None:
        require_shape("the state", state, shape)
    pixels, before = _channels_last(x), None if state is None else _channels_last(state)
    if out is None:
        out = torch.empty(shape, dtype=torch.float32, device="cpu", memory_format=torch.channels_last)
    require_fit(out)
    require_shape("out", out, shape)
    after = out.permute(0, 2, 3, 1)
    if packed.hidden > 1 and after.stride(3) != 1:
        raise ValueError("out is not channels last")
    for name, read in (("x", x), ("the state", state)):
        if read is not None and _overlap(out, read):
            raise ValueError(f"out shares its memory with {name}")
    mask = mask_bytes(valid, (images, height, width))
    task = ConvolutionStep(
        *(images, height, width, packed.inputs, packed.hidden, packed.pointer(), pixels.data_ptr()),
        *(*strides(pixels, 3), pointer(before), *strides(before, 3), pointer(mask), *strides(mask, 3)),
        *(after.data_ptr(), *strides(after, 3)),
        border=pointer(border),
    )
    library().run("convolution_step", task, torch.get_num_threads())
    return out


def _shifted(
    x: Tensor,
    valid: Tensor | None,
    packed: Packed,
    state: Tensor | None,
    out: Tensor | None,
    above: int,
    left: int,
    border: Tensor | None,
) -> Tensor:
    """With a row or column more before the first one, of what lies outside of any image; its state stays zero."""
    images, _, height, width = x.shape
    mask_bytes(valid, (images, height, width))
    if out is not None:
        require_shape("out", out, (images, packed.hidden, height, width))
    known = x.new_zeros(images, height + above, width + left, dtype=torch.bool)
    known[:, above:, left:] = True if valid is None else valid
    with tiles_begin(0, 0):
        wider = None if state is None else _widened(state, above, left)
        larger = _widened(x, above, left, border)
        outputs = convolution_step(larger, known, packed, wider, border=border)[:, :, above:, left:]
    return outputs if out is None else out.copy_(outputs)


def _widened(images: Tensor, above: int, left: int, border: Tensor | None = None) -> Tensor:
    count, channels, height, width = images.shape
    wide = images.new_empty(count, height + above, width + left, channels).permute(0, 3, 1, 2)
    outside = 0 if border is None else border[:, None, None]
    wide[:, :, :above] = outside
    wide[:, :, above:, :left] = outside
    wide[:, :, above:, left:] = images
    return wide


def _channels_last(images: Tensor) -> Tensor:
    """(N, H, W, C) with channels in one piece."""
    require_fit(images)
    return inner_contiguous(images.permute(0, 2, 3, 1))


def _overlap(one: Tensor, other: Tensor) -> bool:
    """Whether the memory between the first and the last pixel of both has anything in common."""
    (start, end), (begin, finish) = _extent(one), _extent(other)
    return start < finish and begin < end


def _extent(tensor: Tensor) -> tuple[int, int]:
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + tensor.element_size() * (last + 1)


# --- all dates


def follow_images(
    x: Tensor, valid: Tensor | None, weights: Weights, initial: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """One layer with gradients where they are wanted: the states (T, B, F, H, W) and the last one (B, F, H, W).

    Dates come first, x (T, B, C, H, W) and valid (T, B, H, W), with any strides. States and gradients lie channels
    last: a layer above takes them as they are. A date that is not valid leaves a pixel's state as it was. NaN is data:
    what lies under the mask should be numbers, since the gradient of a weight is a sum over all pixels (0 * NaN).

    `initial` (B, F, H, W) is the state before the first date. A loss on the last state should take the second result:
    the gradient of the first is as large as the sequence.
    """
    require_fit(x)
    if x.dim() != 5 or not x.numel():
        raise ValueError(f"x is {tuple(x.shape)}, not (T, B, C, H, W)")
    length, images, _, height, width = x.shape
    hidden, inputs = weights.value_weight.shape[:2]
    require_shape("x", x, (length, images, inputs, height, width))
    if initial is not None:
        require_fit(initial)
        require_shape("initial", initial, (images, hidden, height, width))
        initial = initial.permute(0, 2, 3, 1).contiguous()
    mask = mask_bytes(valid, (length, images, height, width))
    kernels = Kernels(_forward, _backward)
    states, last = run_layer(kernels, inner_contiguous(x.permute(0, 1, 3, 4, 2)), mask, weights, initial)
    return states.permute(0, 1, 4, 2, 3), last.permute(0, 3, 1, 2)


def _forward(x: Tensor, mask: Tensor | None, weights: Weights, initial: Tensor | None, *, keep: bool) -> Forward:
    """x (T, B, H, W, C), mask (T, B, H, W), initial (B, H, W, F)."""
    packed = pack_convolution(weights)
    shape = (*x.shape[:4], packed.hidden)
    kept = Forward(x.new_empty(shape), *(x.new_empty(shape) if keep else None for _ in range(2)))
    task = ConvolutionForward(
        *(*x.shape[:4], packed.inputs, packed.hidden, packed.pointer(), x.data_ptr(), *strides(x, 4)),
        *(pointer(mask), *strides(mask, 4), pointer(initial), *(pointer(part) for part in kept)),
    )
    library().run("convolution_forward", task, torch.get_num_threads())
    return kept


def _backward(
    x: Tensor,
    mask: Tensor | None,
    weights: Weights,
    initial: Tensor | None,
    forward: Forward,
    states_gradient: Tensor | None,
    last_gradient: Tensor | None,
    *,
    x_wanted: bool,
    initial_wanted: bool,
) -> Gradients:
    packed = pack(weights, "convolution_backward")
    given, last = given_gradients(states_gradient, last_gradient, (*x.shape[:4], packed.hidden))
    gradients = Gradients.empty(x, weights, x_wanted=x_wanted, initial_wanted=initial_wanted)
    task = ConvolutionBackward(
        *(*x.shape[:4], packed.inputs, packed.hidden, packed.pointer(), x.data_ptr(), *strides(x, 4)),
        *(pointer(mask), *strides(mask, 4), pointer(initial), *(pointer(part) for part in forward)),
        *(pointer(given), *strides(given, 4), pointer(last), pointer(gradients.x), pointer(gradients.initial)),
        **gradients.addresses(),
    )
    library().run("convolution_backward", task, torch.get_num_threads())
    return gradients
