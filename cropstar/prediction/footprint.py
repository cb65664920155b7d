"""How much memory a model takes for each pixel, found by running it on a few."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cropstar.models.contract import Classifier, ModelState

SIDE = 48  # pixels of the image that is tried
SERIES = 256


class PeakMemory(TorchDispatchMode):
    """Adds up the tensors that live at the same time, and remembers the most."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0
        self.peak = 0
        self._living: dict[int, int] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and to skip the compiler it would be imported: some seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        for result in tree_leaves(results):
            if isinstance(result, torch.Tensor):
                self._note(result.untyped_storage())
        return results

    def _note(self, storage: Any) -> None:
        key = storage._cdata
        if key in self._living:
            return
        self._living[key] = storage.nbytes()
        self.bytes += storage.nbytes()
        self.peak = max(self.peak, self.bytes)
        weakref.finalize(storage, self._forget, key)

    def _forget(self, key: int) -> None:
        self.bytes -= self._living.pop(key, 0)


@torch.inference_mode()
def bytes_per_pixel(model: Classifier, bands: int, dates: int, *, by_date: bool) -> float:
    """The most that lives at once, a pixel of an image or a series; the input is a part of it."""
    device = next(iter(model.parameters()), torch.zeros(0)).device
    place = (1, SIDE, SIDE) if model.spatial else (SERIES,)
    batch, *image = place
    length = min(dates, 3) if by_date else dates  # after some steps the next ones take as much
    days = torch.arange(18_000, 18_000 + 10 * length, 10, dtype=torch.int32, device=device).expand(batch, -1)
    peak = PeakMemory()
    with peak:
        x = torch.zeros(batch, length, bands, *image, device=device)
        valid = torch.ones(batch, length, *image, dtype=torch.bool, device=device)
        valid[:, ::2] = False  # a mask that is not all true takes the longer way, with both states alive
        if by_date:
            state: ModelState | None = None
            for t in range(length):
                state = model.step(x[:, t], valid[:, t], days[:, t], state)
            assert state is not None
            scores = model.classify(state)
        else:
            scores = model(x, valid, days)
        del scores
    pixels = SIDE * SIDE if model.spatial else SERIES
    return peak.peak / pixels
