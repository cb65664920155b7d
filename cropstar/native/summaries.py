"""Batch normalisation over valid observations, and means of states by bins of the season, with their gradients.

Sums are formed of fixed chunks and added in their order: the number of threads changes no bit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from cropstar.native.library import Normalise, NormaliseBackward, SeasonMeans, library
from cropstar.native.tensors import mask_bytes, pointer, refuse_second_derivative, require_fit, require_shape, strides


class RunningStatistics(NamedTuple):
    """The running mean (C,) and variance (C,) of a normalisation for inference, updated in place with a momentum."""

    mean: Tensor
    variance: Tensor
    momentum: float


def normalise(
    x: Tensor, valid: Tensor, scale: Tensor, shift: Tensor, running: RunningStatistics, epsilon: float
) -> Tensor:
    """Rows (N, C) normalised over those that are valid (N,)."""
    return _Normalise.apply(x, valid, scale, shift, running, epsilon)  # type: ignore[no-untyped-call, no-any-return]


def season_means(outputs: Tensor, bins: Tensor, valid: Tensor, count: int) -> Tensor:
    """Means (B, count, H) of states (T, B, H) by the bins (T, B) of their dates; of bins without any, that of all."""
    return _SeasonMeans.apply(outputs, bins, valid, count)  # type: ignore[no-untyped-call, no-any-return]


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, valid: Tensor, scale: Tensor, shift: Tensor, running: RunningStatistics, epsilon: float
    ) -> Tensor:
        require_fit(x, scale, shift, running.mean, running.variance)
        rows, channels = x.shape
        x, valid, scale, shift = x.contiguous(), valid.contiguous(), scale.contiguous(), shift.contiguous()
        for name, tensor in (
            ("scale", scale),
            ("shift", shift),
            ("mean", running.mean),
            ("variance", running.variance),
        ):
            require_shape(name, tensor, (channels,))
            if not tensor.is_contiguous():
                raise ValueError(f"{name} is not contiguous")
        numbers = torch.tensor([epsilon, running.momentum])
        y, (mean, inverse), count = torch.empty_like(x), x.new_empty(2, channels), x.new_empty(())
        task = Normalise(
            *(rows, channels, *map(pointer, (x, mask_bytes(valid, (rows,)), scale, shift, numbers[0], numbers[1]))),
            *map(pointer, (running.mean, running.variance, None, mean, inverse, count, y)),
        )
        library().run("normalise", task, torch.get_num_threads())
        ctx.save_for_backward(x, valid, scale, mean, inverse, count)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        x, valid, scale, mean, inverse, count = ctx.saved_tensors
        gradient, (rows, channels) = gradient.contiguous(), x.shape
        x_gradient, scale_gradient, shift_gradient = (torch.empty_like(each) for each in (x, mean, mean))
        given = (x, mask_bytes(valid, (rows,)), gradient, scale, mean, inverse, count, None)
        made = (scale_gradient, shift_gradient, x_gradient)
        task = NormaliseBackward(rows, channels, *map(pointer, (*given, *made)))
        library().run("normalise_backward", task, torch.get_num_threads())
        return x_gradient, None, scale_gradient, shift_gradient, None, None


class _SeasonMeans(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, outputs: Tensor, bins: Tensor, valid: Tensor, count: int) -> Tensor:
        require_fit(outputs)
        outputs = outputs.contiguous()
        length, batch, hidden = outputs.shape
        require_shape("bins", bins, (length, batch))
        lowest, highest = bins.aminmax()
        if bins.dtype != torch.int32 or not 0 <= int(lowest) <= int(highest) < count:
            raise ValueError(f"bins are not int32 from 0 to {count - 1}")
        features, counts = outputs.new_empty(batch, count, hidden), outputs.new_empty(batch, count)
        task = _season_task(outputs, bins, valid, features, counts)
        library().run("season_means", task, torch.get_num_threads())
        ctx.save_for_backward(bins, valid, counts)
        return features

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        bins, valid, counts = ctx.saved_tensors
        gradient = gradient.contiguous()
        made = gradient.new_empty(*bins.shape, gradient.shape[2])
        task = _season_task(made, bins, valid, gradient, counts)
        task.outputs_gradient = made.data_ptr()
        library().run("season_means_backward", task, torch.get_num_threads())
        return made, None, None, None


def _season_task(outputs: Tensor, bins: Tensor, valid: Tensor, features: Tensor, counts: Tensor) -> SeasonMeans:
    mask = mask_bytes(valid, bins.shape)
    return SeasonMeans(
        *(*outputs.shape, counts.shape[1], bins.data_ptr(), *strides(bins, 2), pointer(mask), *strides(mask, 2)),
        *map(pointer, (outputs, features, counts)),
    )
