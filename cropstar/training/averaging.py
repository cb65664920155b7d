"""A running mean of the weights: steadier than the last step's, and often better on what was not trained on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from cropstar.store.model_file import Tensors


class WeightAverage:
    """Every step the mean keeps a share of itself and takes the rest from the weights, statistics of batches too."""

    def __init__(self, model: nn.Module, keep: float) -> None:
        self._model = model
        self._keep = keep
        self._mean = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """After `step` steps. At first it keeps less: the mean of a short past is better than much of the beginning."""
        keep = min(self._keep, (1 + step) / (10 + step))
        for name, tensor in self._model.state_dict().items():
            if tensor.is_floating_point():
                self._mean[name].lerp_(tensor, 1 - keep)
            else:
                self._mean[name].copy_(tensor)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Within, the model has the mean for its weights."""
        trained = {name: tensor.detach().clone() for name, tensor in self._model.state_dict().items()}
        _put(self._model, self._mean)
        try:
            yield
        finally:
            _put(self._model, trained)

    def tensors(self) -> Tensors:
        return {name: tensor.cpu().numpy() for name, tensor in self._mean.items()}

    def restore(self, tensors: Tensors) -> None:
        for name, tensor in self._mean.items():
            tensor.copy_(torch.from_numpy(tensors[name]))


@torch.no_grad()
def _put(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    for name, tensor in model.state_dict().items():
        tensor.copy_(tensors[name])
