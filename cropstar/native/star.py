"""The STAR layer over whole sequences: forwards, backwards, and several layers at once for inference.

Dates come first, x (T, B, C) and valid (T, B), with any strides: a transposed view is taken as it is. A date that is
not valid leaves the state as it was. NaN is data: what lies under the mask should be numbers, since the gradient of a
weight is a sum over all dates (0 * NaN).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from cropstar.native.library import StarBackward, StarForward, StarStack, library
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


class BinSums(NamedTuple):
    """Sums of states by the bin of their date."""

    bins: Tensor  # (T, B) int32
    sums: Sequence[Tensor]  # (B, H) of each bin, added to in place

    def checked(self, length: int, batch: int, hidden: int) -> Tensor:
        """The bins, once no date can be added to anything but a sum that is there."""
        require_shape("bins", self.bins, (length, batch))
        if self.bins.dtype != torch.int32:
            raise ValueError(f"bins are {self.bins.dtype}, not int32")
        for number in self.bins.unique().tolist():
            if not 0 <= number < len(self.sums):
                raise ValueError(f"there is no sum of bin {number}")
        for tensor in self.sums:
            require_fit(tensor)
            require_shape("a sum", tensor, (batch, hidden))
            if not tensor.is_contiguous():
                raise ValueError("a sum is not contiguous")
        return self.bins


class StemWindow(NamedTuple):
    """One convolution in time below the layers, and the valid dates before the first one, the oldest first."""

    packed: Packed  # of `pack_stem`
    taps: int
    before: Tensor | None  # (B, (taps - 1) * C); None: zeros

    @property
    def inputs(self) -> int:
        return self.packed.inputs // self.taps

    def kept(self, like: Tensor, batch: int) -> Tensor:
        """Memory for the window after the last date."""
        shape = (batch, self.packed.inputs - self.inputs)
        if self.before is not None:
            require_fit(self.before)
            require_shape("a window", self.before, shape)
        return like.new_empty(shape)


def pack_star(weights: Weights) -> Packed:
    """The weights as `star_forward` and `star_stack` want them; good for as long as they do not change."""
    return pack(weights, "star")


def star_forward(
    x: Tensor, valid: Tensor | None, packed: Packed, initial: Tensor | None = None, *, keep: bool = False
) -> Forward:
    """One layer; `keep` for `star_backward`. `initial` (B, H) is the state before the first date."""
    x, mask, initial = _checked(x, valid, packed.inputs, initial, packed.hidden)
    length, batch, inputs = x.shape
    outputs, gate, value = (
        x.new_empty(length, batch, packed.hidden) if wanted else None for wanted in (True, keep, keep)
    )
    assert outputs is not None
    task = StarForward(
        *(length, batch, inputs, packed.hidden, packed.pointer(), x.data_ptr(), *strides(x, 2)),
        *(pointer(mask), *strides(mask, 2), pointer(initial), pointer(outputs), pointer(gate), pointer(value)),
    )
    library().run("star_forward", task, torch.get_num_threads())
    return Forward(outputs, gate, value)


def star_backward(
    x: Tensor,
    valid: Tensor | None,
    weights: Weights,
    initial: Tensor | None,
    forward: Forward,
    outputs_gradient: Tensor | None,
    final_gradient: Tensor | None,
    *,
    x_wanted: bool = True,
    initial_wanted: bool = True,
) -> Gradients:
    """The gradients, given those of the outputs (T, B, H) and of the last state (B, H)."""
    packed = pack(weights, "star_backward")
    x, mask, initial = _checked(x, valid, packed.inputs, initial, packed.hidden)
    length, batch, inputs = x.shape
    hidden = packed.hidden
    for name, tensor in zip(Forward._fields, forward, strict=True):
        if tensor is None:
            raise ValueError(f"{name} was not kept")
        require_fit(tensor)
        require_shape(name, tensor, (length, batch, hidden))
    forward = Forward(*(tensor.contiguous() for tensor in forward if tensor is not None))
    given, last = given_gradients(outputs_gradient, final_gradient, (length, batch, hidden))
    gradients = Gradients.empty(x, weights, x_wanted=x_wanted, initial_wanted=initial_wanted)
    task = StarBackward(
        *(length, batch, inputs, hidden, packed.pointer(), x.data_ptr(), *strides(x, 2)),
        *(pointer(mask), *strides(mask, 2), pointer(initial), *(pointer(part) for part in forward)),
        *(pointer(given), *strides(given, 2), pointer(last), pointer(gradients.x), pointer(gradients.initial)),
        **gradients.addresses(),
    )
    library().run("star_backward", task, torch.get_num_threads())
    return gradients


def star_stack(
    x: Tensor,
    valid: Tensor | None,
    layers: Sequence[Packed],
    initial: Sequence[Tensor | None] | None = None,
    *,
    outputs: bool = False,
    bin_sums: BinSums | None = None,
    stems: Sequence[StemWindow] = (),
) -> tuple[list[Tensor], Tensor | None, list[Tensor]]:
    """Layers on top of each other, without gradients: each one's last state (B, H), and the outputs if asked for.

    With one date, x (1, B, C), this is `step`. The last layer's states of valid dates are added to `bin_sums`. Below
    the layers may be `stems`; their windows after the last date are the third that is returned.
    """
    widths = [*(stem.inputs for stem in stems), layers[0].inputs]
    for stem, width in zip(stems, widths[1:], strict=True):
        if stem.packed.hidden != width:
            raise ValueError(f"a stem gives {stem.packed.hidden} channels, and {width} are read")
    x, mask, _ = _checked(x, valid, widths[0], None)
    length, batch, inputs = x.shape
    before: list[Tensor | None] = list(initial) if initial is not None else [None] * len(layers)
    for number, (layer, state) in enumerate(zip(layers, before, strict=True)):
        if number and layer.inputs != layers[number - 1].hidden:
            raise ValueError(f"layer {number + 1} takes {layer.inputs} channels")
        if state is not None:
            require_fit(state)
            require_shape("the state", state, (batch, layer.hidden))
            before[number] = state.contiguous()
    final = [x.new_empty(batch, layer.hidden) for layer in layers]
    sequence = x.new_empty(length, batch, layers[-1].hidden) if outputs else None
    bins = None if bin_sums is None else bin_sums.checked(length, batch, layers[-1].hidden)
    windows = [None if stem.before is None else stem.before.contiguous() for stem in stems]
    kept = [stem.kept(x, batch) for stem in stems]
    # Arrays that must outlive the call.
    taps, stem_outputs = (
        (ctypes.c_int64 * len(stems))(*numbers)
        for numbers in ([stem.taps for stem in stems], [stem.packed.hidden for stem in stems])
    )
    stem_panels, windows_before, windows_after = (
        (ctypes.c_void_p * len(stems))(*pointers)
        for pointers in ([stem.packed.pointer() for stem in stems], map(pointer, windows), map(pointer, kept))
    )
    sums = (ctypes.c_void_p * len(bin_sums.sums))(*map(pointer, bin_sums.sums)) if bin_sums is not None else None
    hidden = (ctypes.c_int64 * len(layers))(*(layer.hidden for layer in layers))
    panels, starts, ends = (
        (ctypes.c_void_p * len(layers))(*pointers)
        for pointers in (
            [layer.pointer() for layer in layers],
            [pointer(state) for state in before],
            [state.data_ptr() for state in final],
        )
    )
    task = StarStack(
        *(length, batch, inputs, len(layers), ctypes.addressof(hidden), ctypes.addressof(panels), x.data_ptr()),
        *(*strides(x, 2), pointer(mask), *strides(mask, 2)),
        *(ctypes.addressof(starts), ctypes.addressof(ends), pointer(sequence), pointer(bins), *strides(bins, 2)),
        *(None if sums is None else ctypes.addressof(sums), len(stems), ctypes.addressof(taps)),
        *(ctypes.addressof(each) for each in (stem_outputs, stem_panels, windows_before, windows_after)),
    )
    library().run("star_stack", task, torch.get_num_threads())
    return final, sequence, kept


def run_star(x: Tensor, valid: Tensor | None, weights: Weights, initial: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """One layer with gradients where they are wanted: the outputs (T, B, H) and the last state (B, H)."""

    def forward(x: Tensor, valid: Tensor | None, weights: Weights, initial: Tensor | None, *, keep: bool) -> Forward:
        return star_forward(x, valid, pack_star(weights), initial, keep=keep)

    return run_layer(Kernels(forward, star_backward), x, valid, weights, initial)


def _checked(
    x: Tensor, valid: Tensor | None, inputs: int, initial: Tensor | None, hidden: int = 0
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    require_fit(x)
    length, batch, _ = x.shape
    require_shape("x", x, (length, batch, inputs))
    if not length or not batch:
        raise ValueError(f"an empty sequence: {tuple(x.shape)}")
    if initial is not None:
        require_fit(initial)
        require_shape("initial", initial, (batch, hidden))
        initial = initial.contiguous()
    return inner_contiguous(x), mask_bytes(valid, (length, batch)), initial
