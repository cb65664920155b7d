"""The recurrence of a STAR layer as Triton kernels, for NVIDIA GPUs.

PyTorch runs a date as a row of small launches, which take longer than their arithmetic. Here the whole sequence is one
launch, forwards and backwards: programs share out the rows of the batch, and the recurrent matrix stays on the chip.
What needs no earlier state, the products with the input and the gradients of the weights, is left to PyTorch's large
products (star_layer.py). Of images, the convolution is PyTorch's too, and the gate arithmetic around it is one launch a
date.

Importing this file needs triton, which comes with torch's CUDA builds. TRITON_INTERPRET=1 runs the kernels on a
processor, to check them: slowly.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

WIDEST = 128  # units whose recurrent matrix fits on the chip
NARROWEST = 16  # that Triton multiplies
ROWS = 16  # of the batch for each program
ELEMENTS = 1024  # for each program of the gate arithmetic of images
# Without software pipelining, whose buffers would take the room of the recurrent matrix.
LAUNCH = {"num_warps": 4, "num_stages": 1}


def shared_bytes(hidden: int, precision: str) -> int:
    """Of the chip's memory that a program needs for the recurrent matrix and its rows; of tf32x3 both in two parts."""
    width = _sizes(hidden)["WIDTH"]
    return (width + ROWS) * width * 4 * (2 if precision == "tf32x3" else 1)


def precision() -> str:
    """The precision of products, as in PyTorch: float32 by three tf32 products, unless the user allows tf32."""
    return "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"


# --- kernels


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _update(before, value, logits, valid):
    """The gate and the state after a date."""
    gate = tl.sigmoid(logits)
    after = _tanh(before + gate * (value - before))
    return gate, tl.where(valid, after, before)


@triton.jit
def _update_backward(back, before, after, value, gate, valid):
    """Gradients of the gate's and the value's arguments, and what of the state's needs no product."""
    mixed = tl.where(valid, back * (1 - after * after), 0.0)
    through = mixed * gate
    logits = through * (1 - gate) * (value - before)
    proposal = through * (1 - value * value)
    return logits, proposal, tl.where(valid, mixed - through, back)


@triton.jit
def _forward_kernel(
    value, gate, weight, valid, initial, outputs, steps, batch,
    HIDDEN: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, MASKED: tl.constexpr, STARTED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, WIDTH)
    inside = (rows[:, None] < batch) & (columns[None, :] < HIDDEN)
    square = (columns[:, None] < HIDDEN) & (columns[None, :] < HIDDEN)
    # (from, to): W_h is (to, from)
    w = tl.load(weight + columns[None, :] * HIDDEN + columns[:, None], mask=square, other=0.0)
    places = rows[:, None] * HIDDEN + columns[None, :]
    if STARTED:
        h = tl.load(initial + places, mask=inside, other=0.0)
    else:
        h = tl.zeros((ROWS, WIDTH), tl.float32)
    step = batch * HIDDEN
    for t in range(steps):
        at = places.to(tl.int64) + t * step
        logits = tl.load(gate + at, mask=inside, other=0.0) + tl.dot(h, w, input_precision=PRECISION)
        known = rows[:, None] < batch
        if MASKED:
            known = tl.load(valid + t * batch + rows[:, None], mask=known, other=0) != 0
        k, h = _update(h, tl.load(value + at, mask=inside, other=0.0), logits, known)
        tl.store(gate + at, k, mask=inside)
        tl.store(outputs + at, h, mask=inside)


@triton.jit
def _backward_kernel(
    value, gate, weight, valid, initial, outputs, given, back, logits, proposals, steps, batch,
    HIDDEN: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, MASKED: tl.constexpr, STARTED: tl.constexpr,
    GIVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`back` holds the gradient of the last state, and in the end that of the initial one."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, WIDTH)
    inside = (rows[:, None] < batch) & (columns[None, :] < HIDDEN)
    square = (columns[:, None] < HIDDEN) & (columns[None, :] < HIDDEN)
    w = tl.load(weight + columns[:, None] * HIDDEN + columns[None, :], mask=square, other=0.0)
    places = rows[:, None] * HIDDEN + columns[None, :]
    d = tl.load(back + places, mask=inside, other=0.0)
    step = batch * HIDDEN
    for backwards in range(steps):
        t = steps - 1 - backwards
        at = places.to(tl.int64) + t * step
        if GIVEN:
            d += tl.load(given + at, mask=inside, other=0.0)
        if t > 0:
            before = tl.load(outputs + at - step, mask=inside, other=0.0)
        else:
            before = tl.zeros((ROWS, WIDTH), tl.float32)
            if STARTED:
                before = tl.load(initial + places, mask=inside, other=0.0)
        after = tl.load(outputs + at, mask=inside, other=0.0)
        known = rows[:, None] < batch
        if MASKED:
            known = tl.load(valid + t * batch + rows[:, None], mask=known, other=0) != 0
        z, k = tl.load(value + at, mask=inside, other=0.0), tl.load(gate + at, mask=inside, other=0.0)
        da, dz, rest = _update_backward(d, before, after, z, k, known)
        tl.store(logits + at, da, mask=inside)
        tl.store(proposals + at, dz, mask=inside)
        d = rest + tl.dot(da, w, input_precision=PRECISION)
    tl.store(back + places, d, mask=inside)


@triton.jit
def _pixels_before(
    valid, before, at, inside, pixels, HIDDEN: tl.constexpr, MASKED: tl.constexpr, STARTED: tl.constexpr,
    ELEMENTS: tl.constexpr,
):  # fmt: skip
    """Whether pixels of images (B, H, ...) are valid, and their state before the date."""
    known = inside
    if MASKED:
        pixel = at // (HIDDEN * pixels) * pixels + at % pixels
        known = tl.load(valid + pixel, mask=inside, other=0) != 0
    if STARTED:
        h = tl.load(before + at, mask=inside, other=0.0)
    else:
        h = tl.zeros((ELEMENTS,), tl.float32)
    return known, h


@triton.jit
def _update_kernel(
    value, gate, valid, before, after, count, pixels, HIDDEN: tl.constexpr, MASKED: tl.constexpr,
    STARTED: tl.constexpr, ELEMENTS: tl.constexpr,
):  # fmt: skip
    """One date of images (B, H, ...): `gate` holds the logits, then the gate."""
    at = tl.program_id(0).to(tl.int64) * ELEMENTS + tl.arange(0, ELEMENTS)
    inside = at < count
    known, h = _pixels_before(valid, before, at, inside, pixels, HIDDEN, MASKED, STARTED, ELEMENTS)
    z, logits = tl.load(value + at, mask=inside, other=0.0), tl.load(gate + at, mask=inside, other=0.0)
    k, h = _update(h, z, logits, known)
    tl.store(gate + at, k, mask=inside)
    tl.store(after + at, h, mask=inside)


@triton.jit
def _update_backward_kernel(
    value, gate, valid, before, after, back, logits, proposals, count, pixels, HIDDEN: tl.constexpr,
    MASKED: tl.constexpr, STARTED: tl.constexpr, ELEMENTS: tl.constexpr,
):  # fmt: skip
    """The same backwards: `back` holds the gradient of the state, then what of the earlier one's needs no product."""
    at = tl.program_id(0).to(tl.int64) * ELEMENTS + tl.arange(0, ELEMENTS)
    inside = at < count
    known, h = _pixels_before(valid, before, at, inside, pixels, HIDDEN, MASKED, STARTED, ELEMENTS)
    z, k = tl.load(value + at, mask=inside, other=0.0), tl.load(gate + at, mask=inside, other=0.0)
    d = tl.load(back + at, mask=inside, other=0.0)
    da, dz, rest = _update_backward(d, h, tl.load(after + at, mask=inside, other=0.0), z, k, known)
    tl.store(logits + at, da, mask=inside)
    tl.store(proposals + at, dz, mask=inside)
    tl.store(back + at, rest, mask=inside)


# --- series: the whole sequence at once


def run_forward(value: Tensor, gate: Tensor, weight: Tensor, mask: Tensor | None, initial: Tensor | None) -> Tensor:
    """The states (T, B, H), given z and what of the gate's logits needs no state, both (T, B, H).

    `gate` becomes the gate itself. `mask` is (T, B, 1), `initial` (B, H).
    """
    steps, batch, hidden = value.shape
    outputs = torch.empty_like(value)
    valid = _bytes(mask)
    _forward_kernel[(triton.cdiv(batch, ROWS),)](
        *(value, gate, weight.contiguous(), _or(valid, value), _or(initial, value), outputs, steps, batch),
        **_sizes(hidden), MASKED=valid is not None, STARTED=initial is not None, PRECISION=precision(), **LAUNCH,
    )  # fmt: skip
    return outputs


def run_backward(
    value: Tensor,
    gate: Tensor,
    weight: Tensor,
    mask: Tensor | None,
    initial: Tensor | None,
    outputs: Tensor,
    given: Tensor | None,
    back: Tensor,
) -> tuple[Tensor, Tensor]:
    """Gradients (T, B, H) of the gate's and the value's arguments, for those of the outputs and of the last state.

    `back` (B, H), the gradient of the last state, becomes that of the initial one.
    """
    steps, batch, hidden = value.shape
    logits, proposals = torch.empty_like(gate), torch.empty_like(value)
    valid, given = _bytes(mask), None if given is None else given.contiguous()
    _backward_kernel[(triton.cdiv(batch, ROWS),)](
        *(value, gate, weight.contiguous(), _or(valid, value), _or(initial, value), outputs, _or(given, value)),
        *(back, logits, proposals, steps, batch),
        **_sizes(hidden), MASKED=valid is not None, STARTED=initial is not None, GIVEN=given is not None,
        PRECISION=precision(), **LAUNCH,
    )  # fmt: skip
    return logits, proposals


# --- images: one date


def update(value: Tensor, gate: Tensor, mask: Tensor | None, before: Tensor | None, after: Tensor) -> None:
    """The state `after` a date, all (B, H, ...) and in one piece; `gate` holds the logits and becomes the gate."""
    valid = _bytes(mask)
    _update_kernel[(triton.cdiv(value.numel(), ELEMENTS),)](
        *(value, gate, _or(valid, value), _or(before, value), after, value.numel(), value[0, 0].numel()),
        HIDDEN=value.shape[1], MASKED=valid is not None, STARTED=before is not None, ELEMENTS=ELEMENTS,
    )  # fmt: skip


def update_backward(
    value: Tensor,
    gate: Tensor,
    mask: Tensor | None,
    before: Tensor | None,
    after: Tensor,
    back: Tensor,
    logits: Tensor,
    proposals: Tensor,
) -> None:
    """The same backwards, into `logits` and `proposals`; `back` becomes what needs no product."""
    valid = _bytes(mask)
    _update_backward_kernel[(triton.cdiv(value.numel(), ELEMENTS),)](
        *(value, gate, _or(valid, value), _or(before, value), after, back, logits, proposals),
        *(value.numel(), value[0, 0].numel()),
        HIDDEN=value.shape[1], MASKED=valid is not None, STARTED=before is not None, ELEMENTS=ELEMENTS,
    )  # fmt: skip


def _bytes(mask: Tensor | None) -> Tensor | None:
    return None if mask is None else mask.contiguous().view(torch.uint8)


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    """A kernel takes no null: where there is nothing to read it gets another tensor, and leaves it alone."""
    return other if tensor is None else tensor


def _sizes(hidden: int) -> dict[str, int]:
    width = max(1 << (hidden - 1).bit_length(), NARROWEST)
    return {"HIDDEN": hidden, "WIDTH": width, "ROWS": ROWS}
