"""The ConvSTAR layer over whole sequences of images, forwards and backwards.

Dates come first, x (T, B, C, H, W) and valid (T, B, H, W), with any strides. Inside, images lie channels last, as do
the states and gradients that come out: a layer above takes them as they are, an image in another layout is copied
once. A date that is not valid leaves a pixel's state as it was. NaN is data: what lies under the mask should be
numbers, since the gradient of a weight is a sum over all pixels (0 * NaN).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cropstar.native.convolution import pack_convolution
from cropstar.native.library import ConvolutionBackward, ConvolutionForward, library, using
from cropstar.native.tensors import (
    Weights,
    gradients_wanted,
    inner_contiguous,
    mask_bytes,
    pack,
    pointer,
    refuse_second_derivative,
    require_fit,
    require_shape,
    strides,
)


class ForwardStates(NamedTuple):
    """What the backward pass needs of every date, (T, B, H, W, F) each; gate and value are undefined under the mask."""

    outputs: Tensor
    gate: Tensor | None
    value: Tensor | None


class _Sequence(NamedTuple):
    """The arguments as the kernels want them: channels in one piece, the mask as bytes."""

    x: Tensor  # (T, B, H, W, C)
    mask: Tensor | None  # (T, B, H, W)
    initial: Tensor | None  # (B, H, W, F)


def follow_images(
    x: Tensor, valid: Tensor | None, weights: Weights, initial: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """One layer with gradients where they are wanted: the states (T, B, F, H, W) and the last one (B, F, H, W).

    `initial` (B, F, H, W) is the state before the first date. A loss on the last state should take the second result:
    the gradient of the first is as large as the sequence.
    """
    if gradients_wanted(x, *weights, *(() if initial is None else (initial,))):
        states, last = _ImageLayer.apply(x, valid, initial, *weights)  # type: ignore[no-untyped-call]
    else:
        states = _forward(_arranged(x, valid, initial, weights), weights, keep=False).outputs
        last = states[-1].clone()
    return states.permute(0, 1, 4, 2, 3), last.permute(0, 3, 1, 2)


class _ImageLayer(torch.autograd.Function):
    """Its results are channels last: turning them is left to autograd."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        x: Tensor,
        valid: Tensor | None,
        initial: Tensor | None,
        *parts: Tensor,
    ) -> tuple[Tensor, Tensor]:
        weights = Weights(*parts)
        sequence = _arranged(x, valid, initial, weights)
        kept = _forward(sequence, weights, keep=True)
        ctx.save_for_backward(*sequence, *parts, *kept)  # type: ignore[arg-type]
        ctx.set_materialize_grads(False)
        ctx.instruction_set = library().instruction_set  # type: ignore[attr-defined]
        return kept.outputs, kept.outputs[-1].clone()

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, states_gradient: Tensor | None, last_gradient: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        if states_gradient is None and last_gradient is None:
            return (None,) * 8
        saved = ctx.saved_tensors  # type: ignore[attr-defined]
        sequence, weights, kept = _Sequence(*saved[:3]), Weights(*saved[3:8]), ForwardStates(*saved[8:])
        x_wanted, _, initial_wanted, *wanted = ctx.needs_input_grad  # type: ignore[attr-defined]
        with using(ctx.instruction_set):  # type: ignore[attr-defined]
            x_gradient, initial_gradient, gradients = _backward(
                *(sequence, weights, kept, states_gradient, last_gradient),
                x_wanted=x_wanted,
                initial_wanted=initial_wanted,
            )
        parts = (part if needed else None for part, needed in zip(gradients, wanted, strict=True))
        return (x_gradient, None, initial_gradient, *parts)


def _arranged(x: Tensor, valid: Tensor | None, initial: Tensor | None, weights: Weights) -> _Sequence:
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
    return _Sequence(inner_contiguous(x.permute(0, 1, 3, 4, 2)), mask, initial)


def _forward(sequence: _Sequence, weights: Weights, *, keep: bool) -> ForwardStates:
    x, mask, initial = sequence
    packed = pack_convolution(weights)
    shape = (*x.shape[:4], packed.hidden)
    kept = ForwardStates(x.new_empty(shape), *(x.new_empty(shape) if keep else None for _ in range(2)))
    task = ConvolutionForward(
        *(*x.shape[:4], packed.inputs, packed.hidden, packed.pointer(), x.data_ptr(), *strides(x, 4)),
        *(pointer(mask), *strides(mask, 4), pointer(initial), *(pointer(part) for part in kept)),
    )
    library().run("convolution_forward", task, torch.get_num_threads())
    return kept


def _backward(
    sequence: _Sequence,
    weights: Weights,
    kept: ForwardStates,
    states_gradient: Tensor | None,
    last_gradient: Tensor | None,
    *,
    x_wanted: bool,
    initial_wanted: bool,
) -> tuple[Tensor | None, Tensor | None, Weights]:
    """The gradients of x, of the initial state and of the weights."""
    x, mask, initial = sequence
    packed = pack(weights, "convolution_backward")
    given = last = None
    if states_gradient is not None:
        require_fit(states_gradient)
        given = inner_contiguous(states_gradient)
    if last_gradient is not None:
        require_fit(last_gradient)
        last = last_gradient.contiguous()
    x_gradient = x.new_empty(x.shape) if x_wanted else None
    initial_gradient = x.new_empty(*x.shape[1:4], packed.hidden) if initial_wanted else None
    gradients = Weights(*(x.new_empty(part.shape) for part in weights))
    task = ConvolutionBackward(
        *(*x.shape[:4], packed.inputs, packed.hidden, packed.pointer(), x.data_ptr(), *strides(x, 4)),
        *(pointer(mask), *strides(mask, 4), pointer(initial), *(pointer(part) for part in kept)),
        *(pointer(given), *strides(given, 4), pointer(last), pointer(x_gradient), pointer(initial_gradient)),
        **{f"{name}_gradient": part.data_ptr() for name, part in gradients._asdict().items()},
    )
    library().run("convolution_backward", task, torch.get_num_threads())
    return (
        None if x_gradient is None else x_gradient.permute(0, 1, 4, 2, 3),
        None if initial_gradient is None else initial_gradient.permute(0, 3, 1, 2),
        gradients,
    )
