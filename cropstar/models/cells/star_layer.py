"""A STAR layer over a whole sequence in PyTorch, with a backward pass written by hand.

On any device and in any precision, for series and for images alike; on NVIDIA GPUs the recurrence is computed by
Triton's kernels (star_triton.py) where they fit.
"""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.grad import conv2d_weight

from cropstar.native.tensors import Weights, autocasting, is_traced, refuse_second_derivative


def can_run_layer(sequence: Tensor, weights: Weights) -> bool:
    """Whether `run_layer` can be used: not under tracing, `vmap` or autocast, which need the plain operations."""
    same = all(part.dtype == sequence.dtype for part in weights)
    return same and not is_traced() and not autocasting(sequence.device.type) and sequence.numel() > 0


def run_layer(
    sequence: Tensor, mask: Tensor | None, weights: Weights, initial: Tensor | None = None, *, fused: bool = False
) -> tuple[Tensor, Tensor]:
    """The outputs (T, B, H, ...) and the last state (B, H, ...).

    `sequence` (T, B, C, ...), `mask` (T, B, 1, ...) or None where every date is valid, `initial` (B, H, ...) or zeros.
    With `fused` the recurrence is computed by Triton's kernels.
    """
    outputs, final = _StarInTorch.apply(fused, sequence, mask, initial, *weights)  # type: ignore[no-untyped-call]
    return outputs, final


class _StarInTorch(torch.autograd.Function):
    """A layer of STAR over a whole sequence in PyTorch, with a backward pass written by hand.

        s_t = W_x x_t + b_k + W_h h_{t-1},  k_t = sigmoid(s_t),  z_t = tanh(W_z x_t + b_z)
        h_t = tanh(m_t),  m_t = h_{t-1} + k_t (z_t - h_{t-1})

    Forwards, the products with the input are computed for all dates at once and the gates in their memory: what is
    kept is k, z and h. Backwards, only what goes through the recurrence is computed date by date; the gradients of the
    weights and of the input are one large product each. On any device and in any precision, for series and for images
    alike.
    """

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        fused: bool,
        sequence: Tensor,
        mask: Tensor | None,
        initial: Tensor | None,
        *parts: Tensor,
    ) -> tuple[Tensor, Tensor]:
        weights = Weights(*parts)
        length = len(sequence)
        initial = None if initial is None else initial.contiguous()
        flat = sequence.flatten(0, 1)
        value = _channel_product(flat, weights.value_weight, weights.value_bias).tanh_().unflatten(0, (length, -1))
        gate = _channel_product(flat, weights.gate_weight, weights.gate_bias).unflatten(0, (length, -1))
        if fused:  # the kernels take tensors in one piece, and write the gate where the logits were
            value, gate = value.contiguous(), gate.contiguous()
        run = _fused_recurrence if fused else _plain_recurrence
        outputs = run(value, gate, weights.state_weight, mask, initial)
        ctx.fused = fused  # type: ignore[attr-defined]
        if any(ctx.needs_input_grad):  # type: ignore[attr-defined]
            ctx.save_for_backward(sequence, mask, initial, *parts, gate, value, outputs)  # type: ignore[arg-type]
            ctx.set_materialize_grads(False)
        return outputs, outputs[-1].clone()

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, outputs_gradient: Tensor | None, final_gradient: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        sequence, mask, initial, *rest = ctx.saved_tensors  # type: ignore[attr-defined]
        if outputs_gradient is None and final_gradient is None:
            return (None,) * 9
        weights, (gate, value, outputs) = Weights(*rest[:5]), rest[5:]
        _, x_wanted, _, initial_wanted, *wanted = ctx.needs_input_grad  # type: ignore[attr-defined]
        start = torch.zeros_like(value[0]) if initial is None else initial
        back = torch.zeros_like(start) if final_gradient is None else final_gradient
        computed = _Computed(value, gate, weights.state_weight, mask, start, outputs)
        run = _fused_return if ctx.fused else _plain_return  # type: ignore[attr-defined]
        logits, proposals, back = run(computed, outputs_gradient, back, onward=initial_wanted)
        gradients = _weight_gradients(sequence, start, outputs, logits, proposals, weights, wanted)
        x_gradient = None
        if x_wanted:
            x_gradient = _input_gradient(proposals.flatten(0, 1), weights.value_weight)
            x_gradient += _input_gradient(logits.flatten(0, 1), weights.gate_weight)
            x_gradient = x_gradient.reshape(sequence.shape)
        return (None, x_gradient, None, back if initial_wanted else None, *gradients)


def _plain_recurrence(
    value: Tensor, gate: Tensor, weight: Tensor, mask: Tensor | None, initial: Tensor | None
) -> Tensor:
    """The states, given z and what of s needs no state; `gate` becomes k."""
    outputs = torch.empty_like(value)
    before = torch.zeros_like(value[0]) if initial is None else initial
    for t in range(len(value)):
        k = _add_channel_product(gate[t], before, weight).sigmoid_()
        torch.lerp(before, value[t], k, out=outputs[t]).tanh_()
        if mask is not None:
            torch.where(mask[t], outputs[t], before, out=outputs[t])
        before = outputs[t]
    return outputs


class _Computed(NamedTuple):
    """Results of the forward pass that the backward pass needs."""

    value: Tensor  # z
    gate: Tensor  # k
    weight: Tensor  # W_h
    mask: Tensor | None
    start: Tensor  # the state before the first date
    outputs: Tensor


def _plain_return(
    computed: _Computed, given: Tensor | None, back: Tensor, *, onward: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of s and of the argument of z at every date, and of the initial state if that goes `onward`.

    `given` are the gradients of the outputs, `back` is that of the last state.
    """
    value, gate, weight, mask, start, outputs = computed
    logits, proposals = torch.empty_like(gate), torch.empty_like(value)
    for t in reversed(range(len(value))):
        if given is not None:
            back = back + given[t]
        before = outputs[t - 1] if t else start
        mixed = torch.addcmul(back, back * outputs[t], outputs[t], value=-1)  # of m
        if mask is not None:
            mixed = torch.where(mask[t], mixed, mixed.new_zeros(()))
        through = mixed * gate[t]
        torch.addcmul(through, through * value[t], value[t], value=-1, out=proposals[t])
        # of s: mixed (z - h) k (1 - k)
        torch.mul(torch.addcmul(through, through, gate[t], value=-1), value[t] - before, out=logits[t])
        kept = mixed - through
        if mask is not None:  # a date that is not valid passes its gradient on
            kept = torch.where(mask[t], kept, back)
        back = kept + _input_gradient(logits[t], weight) if t or onward else kept
    return logits, proposals, back


def _fused_recurrence(
    value: Tensor, gate: Tensor, weight: Tensor, mask: Tensor | None, initial: Tensor | None
) -> Tensor:
    """`_plain_recurrence` by Triton's kernels."""
    from cropstar.models.cells import star_triton

    if weight.dim() == 2:
        return star_triton.run_forward(value, gate, weight, mask, initial)
    outputs = torch.empty_like(value)
    before = initial
    for t in range(len(value)):
        if before is not None:
            _add_channel_product(gate[t], before, weight)
        star_triton.update(value[t], gate[t], None if mask is None else mask[t], before, outputs[t])
        before = outputs[t]
    return outputs


def _fused_return(
    computed: _Computed, given: Tensor | None, back: Tensor, *, onward: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """`_plain_return` by Triton's kernels."""
    from cropstar.models.cells import star_triton

    value, gate, weight, mask, start, outputs = computed
    back = back.clone(memory_format=torch.contiguous_format)
    if weight.dim() == 2:
        return *star_triton.run_backward(*computed, given, back), back
    logits, proposals = torch.empty_like(gate), torch.empty_like(value)
    for t in reversed(range(len(value))):
        if given is not None:
            back += given[t]
        before = outputs[t - 1] if t else start
        known = None if mask is None else mask[t]
        star_triton.update_backward(value[t], gate[t], known, before, outputs[t], back, logits[t], proposals[t])
        if t or onward:
            back += _input_gradient(logits[t], weight)
    return logits, proposals, back


def _weight_gradients(
    sequence: Tensor,
    start: Tensor,
    outputs: Tensor,
    logits: Tensor,
    proposals: Tensor,
    weights: Weights,
    wanted: list[bool],
) -> list[Tensor | None]:
    """The gradients of the weights, sums over all dates."""
    flat, gates, values = sequence.flatten(0, 1), logits.flatten(0, 1), proposals.flatten(0, 1)
    others = [0, *range(2, gates.dim())]
    gradients: list[Tensor | None] = [
        _weight_gradient(values, flat, weights.value_weight) if wanted[0] else None,
        values.sum(dim=others) if wanted[1] else None,
        _weight_gradient(gates, flat, weights.gate_weight) if wanted[2] else None,
        gates.sum(dim=others) if wanted[3] else None,
        None,
    ]
    if wanted[4]:
        total = _weight_gradient(logits[0], start, weights.state_weight)
        if len(outputs) > 1:  # without a copy of all states
            total = total + _weight_gradient(logits[1:].flatten(0, 1), outputs[:-1].flatten(0, 1), weights.state_weight)
        gradients[4] = total
    return gradients


def _channel_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The product over channels: a matrix, or a convolution that keeps the size."""
    if weight.dim() == 2:
        return functional.linear(x, weight, bias)
    return functional.conv2d(x, weight, bias, padding=weight.shape[-1] // 2)


def _add_channel_product(total: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """`total` with the product in it."""
    return total.addmm_(x, weight.T) if weight.dim() == 2 else total.add_(_channel_product(x, weight, None))


def _input_gradient(gradient: Tensor, weight: Tensor) -> Tensor:
    """Back through a product to its input."""
    if weight.dim() == 2:
        return gradient @ weight
    return functional.conv_transpose2d(gradient, weight, padding=weight.shape[-1] // 2)


def _weight_gradient(gradient: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """The gradient of a product's weight."""
    if weight.dim() == 2:
        return gradient.T @ x
    result: Tensor = conv2d_weight(x, list(weight.shape), gradient, padding=weight.shape[-1] // 2)
    return result


# --- Triton's kernels, where they can be used


INTERPRET = "TRITON_INTERPRET"


def why_not_fused(device: torch.device) -> str:
    """Why Triton's kernels cannot be used on a device; empty where they can."""
    interpreted = os.environ.get(INTERPRET) == "1"
    if device.type != "cuda" and not interpreted:
        return f"Triton computes on CUDA devices, and the device is {device.type}"
    if find_spec("triton") is None:
        return "triton is not installed; it comes with the CUDA builds of torch"
    if not interpreted and torch.cuda.get_device_capability(device) < (8, 0):
        return "the kernels are made for GPUs of compute capability 8.0 and later"
    return ""


def can_fuse(sequence: Tensor, hidden: int) -> bool:
    """Whether they can compute this layer: float32, series of widths that fit on the chip, or images of any width."""
    if sequence.dtype != torch.float32 or why_not_fused(sequence.device):
        return False
    if sequence.dim() > 3:
        return True
    from cropstar.models.cells import star_triton

    if hidden > star_triton.WIDEST or sequence.device.type != "cuda":
        return hidden <= star_triton.WIDEST
    return star_triton.shared_bytes(hidden, star_triton.precision()) <= _shared_memory(sequence.device)


@cache
def _shared_memory(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).shared_memory_per_block_optin)  # type: ignore[attr-defined]
