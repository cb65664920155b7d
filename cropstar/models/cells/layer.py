"""A layer of STAR over a whole sequence in PyTorch, with a backward pass written by hand.

    s_t = W_x x_t + b_k + W_h h_{t-1},  k_t = sigmoid(s_t),  z_t = tanh(W_z x_t + b_z)
    h_t = tanh(m_t),  m_t = h_{t-1} + k_t (z_t - h_{t-1})

Forwards, the products with the input are computed for all dates at once and the gates in their memory: what is kept is
k, z and h. Backwards, only what goes through the recurrence is computed date by date; the gradients of the weights and
of the input are one large product each. On any device and in any precision, for series and for images alike.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.grad import conv2d_weight

from cropstar.native.tensors import Weights, refuse_second_derivative, watched


def can_run(sequence: Tensor, weights: Weights) -> bool:
    """Under tracing, `vmap` or autocast the plain loop says all that is asked for; this function would hide it."""
    same = all(part.dtype == sequence.dtype for part in weights)
    return same and not watched() and not torch.is_autocast_enabled(sequence.device.type) and sequence.numel() > 0


def run_layer(
    sequence: Tensor, mask: Tensor | None, weights: Weights, initial: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The outputs (T, B, H, ...) and the last state (B, H, ...).

    `sequence` (T, B, C, ...), `mask` (T, B, 1, ...) or None where every date is valid, `initial` (B, H, ...) or zeros.
    """
    outputs, final = _Layer.apply(sequence, mask, initial, *weights)  # type: ignore[no-untyped-call]
    return outputs, final


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        sequence: Tensor,
        mask: Tensor | None,
        initial: Tensor | None,
        *parts: Tensor,
    ) -> tuple[Tensor, Tensor]:
        weights = Weights(*parts)
        length = len(sequence)
        flat = sequence.flatten(0, 1)
        value = _product(flat, weights.value_weight, weights.value_bias).tanh_().unflatten(0, (length, -1))
        gate = _product(flat, weights.gate_weight, weights.gate_bias).unflatten(0, (length, -1))
        outputs = torch.empty_like(value)
        before = torch.zeros_like(value[0]) if initial is None else initial
        for t in range(length):
            k = _add_product(gate[t], before, weights.state_weight).sigmoid_()
            torch.lerp(before, value[t], k, out=outputs[t]).tanh_()
            if mask is not None:
                torch.where(mask[t], outputs[t], before, out=outputs[t])
            before = outputs[t]
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
            return (None,) * 8
        weights, (gate, value, outputs) = Weights(*rest[:5]), rest[5:]
        x_wanted, _, initial_wanted, *wanted = ctx.needs_input_grad  # type: ignore[attr-defined]
        start = torch.zeros_like(value[0]) if initial is None else initial
        logits, proposals = torch.empty_like(gate), torch.empty_like(value)  # gradients before the nonlinearities
        back = torch.zeros_like(start) if final_gradient is None else final_gradient
        for t in reversed(range(len(sequence))):
            if outputs_gradient is not None:
                back = back + outputs_gradient[t]
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
            back = kept + _transposed(logits[t], weights.state_weight) if t or initial_wanted else kept
        found = _sums(sequence, start, outputs, logits, proposals, weights, wanted)
        x_gradient = None
        if x_wanted:
            x_gradient = _transposed(proposals.flatten(0, 1), weights.value_weight)
            x_gradient += _transposed(logits.flatten(0, 1), weights.gate_weight)
            x_gradient = x_gradient.reshape(sequence.shape)
        return (x_gradient, None, back if initial_wanted else None, *found)


def _sums(
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
    found: list[Tensor | None] = [
        _outer(values, flat, weights.value_weight) if wanted[0] else None,
        values.sum(dim=others) if wanted[1] else None,
        _outer(gates, flat, weights.gate_weight) if wanted[2] else None,
        gates.sum(dim=others) if wanted[3] else None,
        None,
    ]
    if wanted[4]:
        total = _outer(logits[0], start, weights.state_weight)
        if len(outputs) > 1:  # without a copy of all states
            total = total + _outer(logits[1:].flatten(0, 1), outputs[:-1].flatten(0, 1), weights.state_weight)
        found[4] = total
    return found


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Of channels: a matrix, or a convolution that keeps the size."""
    if weight.dim() == 2:
        return functional.linear(x, weight, bias)
    return functional.conv2d(x, weight, bias, padding=weight.shape[-1] // 2)


def _add_product(total: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """`total` with the product in it."""
    return total.addmm_(x, weight.T) if weight.dim() == 2 else total.add_(_product(x, weight, None))


def _transposed(gradient: Tensor, weight: Tensor) -> Tensor:
    """Back through a product to its input."""
    if weight.dim() == 2:
        return gradient @ weight
    return functional.conv_transpose2d(gradient, weight, padding=weight.shape[-1] // 2)


def _outer(gradient: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """The gradient of a product's weight."""
    if weight.dim() == 2:
        return gradient.T @ x
    found: Tensor = conv2d_weight(x, list(weight.shape), gradient, padding=weight.shape[-1] // 2)
    return found
