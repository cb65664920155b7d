"""Following a window through the season: the class after every date, and the state after the last.

The state of a window is exact without any margin of its own: the margin that its map needs lets the last layer be
right as far around the window as the head looks, and the layers below further still. What is kept is the window alone;
one more date then reads it with the margin of one date.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cropstar.errors import UsageError
from cropstar.geo.windows import Window
from cropstar.models.contract import Classifier, ModelState
from cropstar.prediction.predictor import Predictor
from cropstar.sources.base import Observations, Series

# The parts of all layers, from the first to the last, (h, w, C) each: how series have them, and the kernels' images.
Parts = list[NDArray[np.float32]]
Layout = tuple[tuple[int, ...], ...]  # channels of each part of each layer


class Follower(Protocol):
    """Told of every date: its number, which pixels (of the window's, row by row), their probabilities (K, n)
    and which of them were seen by then (n,)."""

    def follow(self, date: int, pixels: slice, probabilities: NDArray[np.float32], seen: NDArray[np.bool_]) -> None: ...


@dataclass(frozen=True)
class Advanced:
    """A window after the last date."""

    probabilities: NDArray[np.float32]  # (K, h, w)
    counts: NDArray[np.uint16]  # (h, w) valid dates, those before among them
    state: Parts

    @property
    def seen(self) -> NDArray[np.bool_]:
        return self.counts > 0


@dataclass(frozen=True)
class Before:
    """What is known of a window and its margin from earlier dates."""

    state: Parts
    layout: Layout
    counts: NDArray[np.integer[Any]]


def require_streaming(predictor: Predictor, option: str) -> None:
    """Refuse a model that has no state between two dates."""
    if predictor.by_date:
        return
    why = "it sees the season at once" if not predictor.model.streaming else "it brings dates to regular ones"
    remedy = "use a model that steps through the dates, such as convstar or star"
    raise UsageError(f"{option} is not for this model", path=predictor.path, why=why, remedy=remedy)


@torch.inference_mode()
def layout_of(model: Classifier, bands: int) -> Layout:
    """How many channels the state has, found by one step of a single pixel."""
    device = next(iter(model.parameters()), torch.zeros(0)).device
    place = (1, 1) if model.spatial else ()
    x, valid = torch.zeros(1, bands, *place, device=device), torch.ones(1, *place, dtype=torch.bool, device=device)
    state = model.step(x, valid, torch.zeros(1, dtype=torch.int32, device=device), None)
    return tuple(tuple(part.shape[1] for part in layer) for layer in state)


@torch.inference_mode()
def advance(
    predictor: Predictor,
    series: Series,
    window: Window,
    observations: Observations,
    *,
    before: Before | None = None,
    follower: Follower | None = None,
    keep: bool = True,
) -> Advanced:
    """A window that was `read`, and `before` of the same pixels, through all dates of the series.

    Where the state is not to be kept it is empty.
    """
    outer = window.expand(predictor.halo(series), series.grid.shape)
    inner = window.relative_to(outer).slices
    valid = observations.valid[:, *inner]
    every = follower is not None
    counts = np.cumsum(valid, axis=0, dtype=np.uint16) if every else valid.sum(axis=0, dtype=np.uint16)[None]
    if before is not None:
        counts += before.counts[inner].astype(np.uint16)
    walk = _images if predictor.model.spatial else _series
    size = window.height * window.width
    classes = predictor.card.shape["classes"]
    probabilities = np.empty((classes, size), dtype=np.float32)
    kept: Parts = []
    last = len(series.dates) - 1
    for date, pixels, state, scores in walk(predictor, series, window, observations, before, every):
        found = predictor.calibrated(scores)
        if follower is not None:
            follower.follow(date, pixels, found, counts[date].ravel()[pixels] > 0)
        if date < last:
            continue
        probabilities[:, pixels] = found
        if keep and predictor.model.spatial:
            # A view, in whatever order of memory: the writer's thread copies it.
            kept = [part.permute(1, 2, 0).float().cpu().numpy() for part in state]
        elif keep and pixels == slice(0, size):
            kept = [part.float().cpu().numpy() for part in state]
        elif keep:
            kept = kept or [np.empty((size, part.shape[1]), dtype=np.float32) for part in state]
            for whole, part in zip(kept, state, strict=True):
                whole[pixels] = part.float().cpu().numpy()
    shape = (window.height, window.width)
    if not predictor.model.spatial:
        kept = [part.reshape(*shape, -1) for part in kept]
    return Advanced(probabilities.reshape(classes, *shape), counts[-1], kept)


Step = tuple[int, slice, list[Tensor], Tensor]  # date, pixels, parts of the state, scores (K, n)


def _images(
    predictor: Predictor,
    series: Series,
    window: Window,
    observations: Observations,
    before: Before | None,
    every: bool,
) -> Iterator[Step]:
    state = None if before is None else _model_state(predictor, before.state, before.layout)
    last = len(series.dates) - 1
    everything = slice(0, window.height * window.width)
    for date, (after, place) in enumerate(predictor.images_by_date(series, window, observations, state)):
        if not every and date < last:
            continue
        rows, columns = window.relative_to(place).slices
        parts = [part[0, :, rows, columns] for layer in after for part in layer]
        yield date, everything, parts, predictor.model.classify(after)[0, :, rows, columns].flatten(1)


def _series(
    predictor: Predictor,
    series: Series,
    window: Window,
    observations: Observations,
    before: Before | None,
    every: bool,
) -> Iterator[Step]:
    """Every pixel is a series; some of them at a time, so that only their states live at once."""
    values = observations.values.reshape(*observations.values.shape[:2], -1)
    valid = observations.valid.reshape(len(observations.valid), -1)
    last = len(series.dates) - 1
    for start in range(0, window.height * window.width, predictor.series_at_once):
        pixels = slice(start, min(start + predictor.series_at_once, window.height * window.width))
        x, mask, days = predictor.inputs(series, Observations(values[:, :, pixels], valid[:, pixels]))
        state = None
        if before is not None:
            flat = [part.reshape(-1, part.shape[-1])[pixels] for part in before.state]
            state = _model_state(predictor, flat, before.layout)
        # Where nobody asks for the dates in between, all of them at once.
        for date, dates in [(t, slice(t, t + 1)) for t in range(last + 1)] if every else [(last, slice(None))]:
            state = predictor.model.advance(x[:, dates], mask[:, dates], days[:, dates], state)
            yield date, pixels, [part for layer in state for part in layer], predictor.model.classify(state).T


def _model_state(predictor: Predictor, parts: Sequence[NDArray[np.float32]], layout: Layout) -> ModelState:
    """Arrays, (h, w, C) of an image or (N, C) of series, as the model takes them."""
    tensors = (torch.from_numpy(part).to(predictor.device) for part in parts)
    if predictor.model.spatial:
        tensors = (tensor.permute(2, 0, 1)[None] for tensor in tensors)
        if predictor.backend != "native":  # in the order that a run over all dates has it, or PyTorch rounds otherwise
            tensors = (tensor.contiguous() for tensor in tensors)
    return tuple(tuple(islice(tensors, len(layer))) for layer in layout)
