"""Temporal convolutions below the recurrent layers: each date is read together with the dates before it.

A recurrent cell sees one date at a time, so a slope or a sudden drop (a harvest) must be worked out from its memory. A
convolution over the last few observations shows it directly. What counts as "last" are the *valid* observations of the
pixel itself: a cloudy date is neither read nor does it push an earlier one out. In space a stem is a 1x1 product: it
adds nothing to what a map looks at around a pixel.

The streaming form keeps the last `kernel - 1` valid inputs of each layer as its state, so that repeated `step` gives
what `forward` gives. Models that read the season in both directions take a stem that also looks ahead (`centred`),
which has no streaming form.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cropstar.models.cells.cell import State
from cropstar.models.encoding import is_complete
from cropstar.models.normalisation import MaskedBatchNorm
from cropstar.native import available
from cropstar.native.star import StemWindow
from cropstar.native.tensors import Packed, fits, gradients_wanted, is_traced, pack_stem

KERNEL = 5  # observations under a stem's convolution where the configuration names none


class StemLayer(nn.Module):
    """One convolution in time, its normalisation, and a rectifier."""

    def __init__(self, inputs: int, outputs: int, kernel: int, *, centred: bool = False) -> None:
        super().__init__()
        self.inputs, self.outputs, self.kernel = inputs, outputs, kernel
        self.ahead = kernel // 2 if centred else 0  # observations after the date itself
        self.taps = nn.Linear(kernel * inputs, outputs)  # the oldest observation first
        self.norm = MaskedBatchNorm(outputs)

    def forward(self, x: Tensor, present: Tensor) -> Tensor:
        """x (B, N, C, ...) valid observations in order, zeros behind the last; present (B, N, ...)."""
        length = x.shape[1]
        padding = (0, 0) * (x.dim() - 2) + (self.kernel - 1 - self.ahead, self.ahead)
        padded = nn.functional.pad(x, padding)
        seen = torch.cat(
            [padded.narrow(1, tap, length) for tap in range(self.kernel)], dim=2
        )  # (B, N, kernel * C, ...)
        return self._activate(self._product(seen, 2), present.unsqueeze(2), 2)

    def step(self, x: Tensor, valid: Tensor, buffer: Tensor) -> tuple[Tensor, Tensor]:
        """One date: x (B, C, ...), valid (B, ...), `buffer` (B, (kernel - 1) * C, ...) the observations before it."""
        seen = torch.cat([buffer, x], dim=1)
        output = self._activate(self._product(seen, 1), valid.unsqueeze(1), 1)
        return output, torch.where(valid.unsqueeze(1), seen[:, self.inputs :], buffer)

    def empty(self, like: Tensor) -> Tensor:
        """The buffer before the first date, for a batch shaped like one date's input (B, ?, ...)."""
        return like.new_zeros(like.shape[0], (self.kernel - 1) * self.inputs, *like.shape[2:])

    def _product(self, seen: Tensor, axis: int) -> Tensor:
        weight, bias = (self.taps.weight, self.taps.bias) if self.training else self._folded()
        product = nn.functional.linear(seen.movedim(axis, -1), weight, bias)
        return product.movedim(-1, axis)

    def packed(self) -> Packed:
        """For the kernel; packed anew each time, since that takes less than to see whether it must be."""
        return pack_stem(*self._folded())

    def _folded(self) -> tuple[Tensor, Tensor]:
        """Weights and bias at inference: the normalisation is part of them."""
        gain, shift = self.norm.folded()
        return self.taps.weight * gain.unsqueeze(1), self.taps.bias * gain + shift

    def _activate(self, product: Tensor, mask: Tensor, axis: int) -> Tensor:
        """Zeros where nothing was observed: there the next layer sees what it sees beyond the ends of a series."""
        if self.training:
            product = self.norm(product, mask, axis)
        return torch.where(mask, torch.relu(product), product.new_zeros(()))


class Stem(nn.Module):
    """Layers of temporal convolution over the valid observations of every pixel."""

    def __init__(
        self, inputs: int, outputs: int, layers: int, kernel: int, dropout: float = 0.0, *, centred: bool = False
    ) -> None:
        super().__init__()
        widths = [inputs, *[outputs] * layers]
        self.layers = nn.ModuleList(StemLayer(before, outputs, kernel, centred=centred) for before in widths[:-1])
        self.dropout = dropout
        self.centred = centred

    def parts(self) -> list[StemLayer]:
        return [layer for layer in self.layers if isinstance(layer, StemLayer)]

    def forward(self, x: Tensor, valid: Tensor, *, in_front: bool = False) -> Tensor:
        """x (B, T, C, ...), zero where not valid (B, T, ...); the output is in the same places.

        `in_front`: the valid dates of every series come before all others.
        """
        if is_traced() and not self.centred:  # sorting by a mask has no counterpart in ONNX
            return self.follow(x, valid, None)[0]
        order = None if in_front or is_complete(valid) else valid_first(valid)
        if order is not None:
            x, valid = x.gather(1, _like(order, x)), valid.gather(1, order)
        for layer in self.parts():
            x = nn.functional.dropout(layer(x, valid), self.dropout, self.training)
        return x if order is None else torch.zeros_like(x).scatter(1, _like(order, x), x)

    def step(self, x: Tensor, valid: Tensor, state: State | None) -> tuple[Tensor, State]:
        """One date: the output and the buffers of all layers."""
        after = []
        for depth, layer in enumerate(self.parts()):
            x, buffer = layer.step(x, valid, layer.empty(x) if state is None else state[depth])
            x = nn.functional.dropout(x, self.dropout, self.training)
            after.append(buffer)
        return x, tuple(after)

    def follow(self, x: Tensor, valid: Tensor, state: State | None) -> tuple[Tensor, State]:
        """All dates from a state on: x (B, T, C, ...), valid (B, T, ...)."""
        outputs = []
        for t in range(x.shape[1]):
            output, state = self.step(x[:, t], valid[:, t], state)
            outputs.append(output)
        assert state is not None
        return torch.stack(outputs, dim=1), state

    def windows(self, x: Tensor, state: State | None) -> list[StemWindow] | None:
        """The layers as the kernel of the recurrent ones takes them; None where it cannot."""
        weights = [part for layer in self.parts() for part in (layer.taps.weight, layer.taps.bias)]
        before = state or ()
        usable = not self.training and available() and fits(x, *weights, *before)
        if not usable or gradients_wanted(x, *weights, *before):
            return None
        return [
            StemWindow(layer.packed(), layer.kernel, None if state is None else state[depth])
            for depth, layer in enumerate(self.parts())
        ]

    def initial_state(self, like: Tensor) -> State:
        """The buffers before the first date, for a batch shaped like one date's input."""
        return tuple(layer.empty(like) for layer in self.parts())


def valid_first(valid: Tensor) -> Tensor:
    """The places (B, T, ...) of the dates with the valid ones of each pixel in front, in order."""
    return torch.argsort(valid.logical_not().to(torch.uint8), dim=1, stable=True)


def _like(order: Tensor, x: Tensor) -> Tensor:
    """The places (B, T, ...) for every channel of x (B, T, C, ...)."""
    return order.unsqueeze(2).expand(-1, -1, x.shape[2], *order.shape[2:])
