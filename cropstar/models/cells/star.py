"""The STAR cell of "Gating Revisited: Deep Multi-layer RNNs That Can Be Trained" (Turkoglu et al.).

    z_t = tanh(W_z x_t + b_z)
    k_t = sigmoid(W_x x_t + W_h h_{t-1} + b_k)
    h_t = tanh((1 - k_t) * h_{t-1} + k_t * z_t)

k is the update gate: large k forgets. Only W_h needs the earlier state, so the other two products are
computed for all dates at once. Variants in the wild, to compare weights and results with:

- `paper`: the equations above;
- `janet`: the authors' TensorFlow code, with a gate that keeps, f = sigmoid(W_x x + W_h h + b), and an offset of one
  on the input side: h_t = tanh(f * h_{t-1} + (1 - sigmoid(W_x x + W_h h + b - 1)) * z_t);
- `no-outer-tanh`: the authors' ZueriCrop code, h_t = (1 - k_t) * h_{t-1} + k_t * z_t.

With `revisit` given, k follows the time since the last valid date, k' = 1 - (1 - k) ** (days / revisit): after a long
gap more is forgotten, as if usual dates had lain in between.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cropstar.models.cells.cell import CELLS, Cell, Projected, State, orthogonal_, written_out
from cropstar.models.cells.star_layer import can_fuse, can_run_layer, run_layer
from cropstar.models.normalisation import MaskedBatchNorm
from cropstar.native import available
from cropstar.native.convolution import convolution_step, follow_images
from cropstar.native.star import run_star, star_stack
from cropstar.native.tensors import Packed, Packing, Weights, autocasting, fits, gradients_wanted, is_traced

JANET_OFFSET = 1.0
SMALLEST_GAIN = 1e-6  # of a normalisation: a smaller one has no border value, and lets nothing through anyway


@CELLS.register("star")
class StarCell(Cell):
    variants = ("paper", "janet", "no-outer-tanh")

    def make_weights(self) -> None:
        # The two gates of `janet` have no one k.
        self.dated = self.options.revisit is not None and self.options.variant != "janet"
        self.state_parts = 2 if self.dated else 1
        self.input_value = self.of_input()  # W_z, b_z
        self.input_gate = self.of_input()  # W_x, b_k
        self.state_gate = self.of_state(bias=False)  # W_h
        self._packing = Packing()

    def initialise(self, memory: float) -> None:
        for layer in (self.input_value, self.input_gate, self.state_gate):
            orthogonal_(layer)
        # Chrono initialisation. The sign is minus because k updates, whereas the forget gate that it is
        # usually written for keeps.
        assert self.input_gate.bias is not None
        with torch.no_grad():
            self.input_gate.bias.uniform_(1.0, memory).log_()
            if self.options.variant != "janet":
                self.input_gate.bias.neg_()

    def initial_state(self, like: Tensor) -> State:
        zeros = like.new_zeros(like.shape[0], self.hidden, *like.shape[2:])
        if not self.dated:
            return (zeros,)
        return zeros, like.new_full((like.shape[0], 1, *like.shape[2:]), float("nan"))  # no date seen yet

    def project(self, x: Tensor) -> Projected:
        return torch.tanh(self.input_value(x)), self.input_gate(x)

    def advance(self, projected: Projected, state: State) -> State:
        value, gate_input, *day = projected
        hidden, *seen = state
        logits = gate_input + self.state_gate(hidden)
        if self.options.variant == "janet":
            mixed = torch.sigmoid(logits) * hidden + (1 - torch.sigmoid(logits - JANET_OFFSET)) * value
        elif day:
            mixed = torch.lerp(hidden, value, _stretched(logits, self._elapsed(day[0], seen[0])))
        else:
            mixed = torch.lerp(hidden, value, torch.sigmoid(logits))
        hidden = mixed if self.options.variant == "no-outer-tanh" else torch.tanh(mixed)
        return (hidden, day[0].expand_as(seen[0])) if day else (hidden,)

    def follow(
        self, sequence: Tensor, mask: Tensor, complete: list[bool], day: Tensor, norm: MaskedBatchNorm | None = None
    ) -> tuple[Tensor, State]:
        """By the compiled kernel, where it computes this variant and these tensors; else by the hand-written layer."""
        weights = self._fast_weights()
        images = self.spatial and weights is not None and not gradients_wanted(sequence, *weights)
        if weights is not None and images and self._has_kernel(sequence, weights):
            return self._follow_images(sequence, mask, complete, weights, norm)
        if norm is not None:
            sequence = norm(sequence, mask, 2)
        if weights is None or self.backend == "naive":
            return super().follow(sequence, mask, complete, day)
        known = None if all(complete) else mask
        if self._has_kernel(sequence, weights):
            run = follow_images if self.spatial else run_star
            outputs, final = run(sequence, None if known is None else known.squeeze(2), weights)
            return outputs, (final,)
        if not can_run_layer(sequence, weights):
            return super().follow(sequence, mask, complete, day)
        outputs, final = run_layer(sequence, known, weights, fused=self._has_fused_recurrence(sequence))
        return outputs, (final,)

    def step(
        self,
        x: Tensor,
        mask: Tensor,
        complete: bool,
        day: Tensor,
        before: State | None,
        norm: MaskedBatchNorm | None = None,
    ) -> State:
        weights = self._fast_weights()
        if weights is None or self.backend == "naive" or gradients_wanted(x, *(before or ()), *weights):
            return super().step(x, mask, complete, day, before, norm)
        state = None if before is None else before[0]
        kernel = self._has_kernel(x, weights) and (state is None or fits(state))
        if kernel and self.spatial:
            packed, border = self._packed_images(weights, norm)
            return (convolution_step(x, None if complete else mask.squeeze(1), packed, state, border=border),)
        if norm is not None:
            x = norm(x, mask, 1)
        if kernel:
            valid = None if complete else mask.squeeze(1)
            known = None if valid is None else valid.unsqueeze(0)
            final, _, _ = star_stack(x.unsqueeze(0), known, [self._packing.of(weights, "star")], [state])
            return (final[0],)
        plain = is_traced() or autocasting(x.device.type)
        return super().step(x, mask, complete, day, before) if plain else self._in_place(x, mask, complete, before)

    def packed(self, x: Tensor, norm: MaskedBatchNorm | None = None) -> Packed | None:
        weights = self._fast_weights()
        if weights is None or self.spatial or not self._has_kernel(x, weights) or gradients_wanted(x, *weights):
            return None
        return self._packing.of(weights if norm is None else _folded(weights, *norm.folded()), "star")

    def _packed_images(self, weights: Weights, norm: MaskedBatchNorm | None) -> tuple[Packed, Tensor | None]:
        """Weights that take the input as it is, and what it is outside of the image: there a normalised one is zero."""
        if norm is None:
            return self._packing.of(weights, "convolution"), None
        gain, shift = norm.folded()
        gain = torch.where(gain.abs() < SMALLEST_GAIN, torch.full_like(gain, SMALLEST_GAIN), gain).detach()
        return self._packing.of(_folded(weights, gain, shift), "convolution"), (-shift / gain).detach()

    def _follow_images(
        self,
        sequence: Tensor,
        mask: Tensor,
        complete: list[bool],
        weights: Weights,
        norm: MaskedBatchNorm | None,
    ) -> tuple[Tensor, State]:
        """All dates of an image without gradients; outputs are channels last."""
        packed, border = self._packed_images(weights, norm)
        length, batch, _, height, width = sequence.shape
        outputs = sequence.new_empty(length, batch, height, width, self.hidden).permute(0, 1, 4, 2, 3)
        state: Tensor | None = None
        for t in range(length):
            valid = None if complete[t] else mask[t].squeeze(1)
            state = convolution_step(sequence[t], valid, packed, state, outputs[t], border=border)
        assert state is not None
        return outputs, (state.clone(),)

    def _in_place(self, x: Tensor, mask: Tensor, complete: bool, before: State | None) -> State:
        """One date without gradients in two buffers, as PyTorch has it."""
        (hidden,) = self.initial_state(x) if before is None else before
        gate = self.input_gate(x)
        if before is not None:
            gate = gate.add_(self.state_gate(hidden))
        after = self.input_value(x).tanh_()
        torch.lerp(hidden, after, gate.sigmoid_(), out=after).tanh_()
        return (after if complete else torch.where(mask, after, hidden),)

    def _has_kernel(self, x: Tensor, weights: Weights) -> bool:
        return self.backend in ("auto", "native") and fits(x, *weights) and available()

    def _has_fused_recurrence(self, sequence: Tensor) -> bool:
        wanted = self.backend == "triton" or (self.backend == "auto" and sequence.is_cuda)
        return wanted and can_fuse(sequence, self.hidden)

    @property
    def has_fast_path(self) -> bool:
        """Whether the kernels and the hand-written layer know this variant."""
        return self.options.variant == "paper" and not self.dated

    def _fast_weights(self) -> Weights | None:
        if not self.has_fast_path:
            return None
        assert self.input_value.bias is not None
        assert self.input_gate.bias is not None
        return Weights(
            self.input_value.weight,
            self.input_value.bias,
            self.input_gate.weight,
            self.input_gate.bias,
            self.state_gate.weight,
        )

    def reference(self, x: Tensor, state: State) -> State:
        h = state[0]
        z = torch.tanh(written_out(self.input_value, x))
        s = written_out(self.input_gate, x) + written_out(self.state_gate, h)
        if self.options.variant == "janet":
            return (torch.tanh(torch.sigmoid(s) * h + (1 - torch.sigmoid(s - 1)) * z),)
        k = torch.sigmoid(s)
        mixed = (1 - k) * h + k * z
        return (mixed if self.options.variant == "no-outer-tanh" else torch.tanh(mixed),)

    def _elapsed(self, day: Tensor, seen: Tensor) -> Tensor:
        """The time since the last valid date in units of the usual revisit; one at the first date.

        A series read backwards has the dates before it in the future: it is the distance that counts.
        """
        assert self.options.revisit is not None
        return torch.where(seen.isnan(), torch.ones_like(seen), (day - seen).abs() / self.options.revisit)


@torch.no_grad()
def _folded(weights: Weights, gain: Tensor, shift: Tensor) -> Weights:
    """The weights that do to a raw input what these do to one times `gain` plus `shift`."""
    space = weights.value_weight.dim() - 2
    value, gate = weights.value_weight, weights.gate_weight
    channels = gain.reshape(-1, *(1,) * space)
    over = tuple(range(2, 2 + space))
    return Weights(
        value * channels,
        weights.value_bias + (value.sum(dim=over) if over else value) @ shift,
        gate * channels,
        weights.gate_bias + (gate.sum(dim=over) if over else gate) @ shift,
        weights.state_weight,
    )


def _stretched(logits: Tensor, elapsed: Tensor) -> Tensor:
    """1 - (1 - k) ** elapsed for k = sigmoid(logits), exact also where k is close to 0 or to 1."""
    return -torch.expm1(elapsed * torch.nn.functional.logsigmoid(-logits))
