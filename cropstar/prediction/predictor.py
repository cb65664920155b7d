"""A model that classifies windows of a series, one date after the other.

A window is read with the margin that the model looks at. Of models that step through the dates the margin shrinks on
the way: the input of a date matters only as far as the dates that are still to come can carry it towards the core.
With n dates to come, its own among them, that is `model.radius(n)`; the state before it is never read from further
away, since no cell reads its state further than its input. So both are cropped before every step, and the map stays
the one of a single pass over the whole raster.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cropstar.config import RegularConfig
from cropstar.datasets.transforms import count_periods, regularise
from cropstar.errors import ArtifactError
from cropstar.geo.calendar import to_days
from cropstar.geo.windows import Window
from cropstar.models.backends import half_precision, half_type, use_backend
from cropstar.models.contract import ModelState
from cropstar.models.zoo import restore_model
from cropstar.native.convolution import tiles_begin
from cropstar.sources.base import Observations, Series
from cropstar.store.model_file import ModelCard, read_model

SERIES_AT_ONCE = 8192  # of a model of series: more only take memory

Inputs = tuple[Tensor, Tensor, Tensor]  # x (B, T, C, ...), valid (B, T, ...), days (B, T)


class Predictor:
    """A model file made ready to work on one device.

    `margin` bounds the margin of a window below what the model looks at: faster, and with seams. With `half`, products
    are computed in half precision: faster on GPUs, and not exact.
    """

    def __init__(
        self,
        path: Path,
        device: torch.device,
        *,
        margin: int | None = None,
        backend: str = "auto",
        half: bool = False,
    ) -> None:
        self.path = path
        self.card, weights, self.digest = read_model(path)
        model = restore_model(self.card.model, self.card.shape, weights, path).to(device)
        self.model, self.backend = use_backend(model, backend, device, bands=len(self.card.fingerprint.bands))
        self.series_at_once = SERIES_AT_ONCE
        self.device = device
        self.half = half
        self._margin = margin
        self._regular = RegularConfig.model_validate(self.card.provenance.get("regular", {}))
        self._temperature = temperature_of(self.card, path)

    @property
    def by_date(self) -> bool:
        """Whether it steps through the dates: only the state is held, not the activations of a whole season."""
        return self.model.streaming and self._regular.every is None

    def require_fits(self, series: Series, path: Path, *, any_dates: bool) -> None:
        """Refuse a series that the model does not understand, before any compute."""
        self.card.fingerprint.require_fits(
            bands=series.bands,
            resolution=series.grid.resolution,
            dates=series.dates,
            path=path,
            any_dates=any_dates,
        )

    def exact_halo(self, series: Series) -> int:
        """The margin with which a windowed map equals the map of one pass over the whole raster."""
        return self.model.radius(self.length(series))

    def halo(self, series: Series) -> int:
        """The margin that windows are read with."""
        exact = self.exact_halo(series)
        return exact if self._margin is None else min(exact, self._margin)

    def length(self, series: Series) -> int:
        """How many dates the model gets to see."""
        every = self._regular.every
        return len(series.dates) if every is None else count_periods(self.card.fingerprint.season, every)

    def read(self, series: Series, window: Window) -> Observations:
        """All that the map of a window depends on."""
        return series.read(window.expand(self.halo(series), series.grid.shape))

    def probabilities(self, series: Series, window: Window) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Calibrated probabilities (K, h, w) of a window, and where any date was valid (h, w)."""
        return self.classify(series, window, self.read(series, window))

    @torch.inference_mode()
    def classify(
        self, series: Series, window: Window, observations: Observations
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """The same of a window that was `read` before."""
        compute = self._images if self.model.spatial else self._series
        with half_precision(self.device, half_type(self.device)) if self.half else nullcontext():
            scores, seen = compute(series, window, observations)
        return self.calibrated(scores), seen.cpu().numpy()

    def calibrated(self, scores: Tensor) -> NDArray[np.float32]:
        """Probabilities of scores, classes first."""
        chosen: NDArray[np.float32] = torch.softmax(scores.float() / self._temperature, dim=0).cpu().numpy()
        return chosen

    def _images(self, series: Series, window: Window, observations: Observations) -> tuple[Tensor, Tensor]:
        """Scores (K, h, w) and where anything was seen (h, w); the window is one image."""
        outer = window.expand(self.halo(series), series.grid.shape)
        if self.by_date:
            for state, place in self.images_by_date(series, window, observations):  # noqa: B007  # the last one counts
                pass
            scores = self.model.classify(state)
            seen = torch.from_numpy(observations.valid[:, *window.relative_to(outer).slices].any(axis=0))
        else:
            inputs = regularise(*self.inputs(series, observations), self.card.fingerprint.season, self._regular)
            scores, place = self.model(*inputs), outer
            seen = inputs[1][0, :, *window.relative_to(outer).slices].any(dim=0)
        return scores[0, :, *window.relative_to(place).slices], seen

    def images_by_date(
        self, series: Series, window: Window, observations: Observations, state: ModelState | None = None
    ) -> Iterator[tuple[ModelState, Window]]:
        """The state after each date, of the window and a margin, and where that lies.

        `state` is the one before the first date, of the window with the whole margin. After every date the state is
        exact within the window and as far around it as the head looks.
        """
        outer = place = window.expand(self.halo(series), series.grid.shape)
        for t, remaining in enumerate(range(len(series.dates), 0, -1)):
            smaller = window.expand(min(self.halo(series), self.model.radius(remaining)), series.grid.shape)
            if state is not None and smaller != place:
                state = _cropped(state, smaller.relative_to(place))
            place = smaller
            x, valid, days = self.inputs(series, _part(observations, t, place.relative_to(outer)), slice(t, t + 1))
            with tiles_begin(place.top, place.left):  # a pixel has the same bits in every window
                state = self.model.step(x[:, 0], valid[:, 0], days[:, 0], state)
            yield state, place

    def _series(self, series: Series, window: Window, observations: Observations) -> tuple[Tensor, Tensor]:
        """Scores (K, h, w) and where anything was seen (h, w); every pixel is a series, some of them at a time."""
        flat = Observations(observations.values.reshape(*observations.values.shape[:2], -1), _flat(observations.valid))
        scores, seen = [], []
        for start in range(0, window.height * window.width, self.series_at_once):
            some = slice(start, start + self.series_at_once)
            inputs = self.inputs(series, Observations(flat.values[:, :, some], flat.valid[:, some]))
            x, valid, days = regularise(*inputs, self.card.fingerprint.season, self._regular)
            scores.append(self._scores_of_series(x, valid, days))
            seen.append(valid.any(dim=1))
        return torch.cat(scores).T.unflatten(1, (window.height, window.width)), torch.cat(seen).unflatten(
            0, (window.height, window.width)
        )

    def _scores_of_series(self, x: Tensor, valid: Tensor, days: Tensor) -> Tensor:
        if self.by_date:
            return self.model.classify(self.model.advance(x, valid, days))
        scores: Tensor = self.model(x, valid, days)
        return scores

    def inputs(self, series: Series, observations: Observations, dates: slice = slice(None)) -> Inputs:
        """Of images (T, C, h, w) the one sample of a batch, of series (T, C, N) a batch of N; on the device."""
        # The model's bands by name: the file may have them in another order, and more of them.
        chosen = [series.bands.index(band) for band in self.card.fingerprint.bands]
        values = observations.values if chosen == list(range(len(series.bands))) else observations.values[:, chosen]
        x = torch.from_numpy(self.card.normalisation.apply(values, series.scale, series.offset))
        valid = torch.from_numpy(np.ascontiguousarray(observations.valid))
        x, valid = (x.unsqueeze(0), valid.unsqueeze(0)) if self.model.spatial else (x.permute(2, 0, 1), valid.T)
        days = torch.from_numpy(to_days(series.dates)[dates]).expand(len(x), -1)
        return x.to(self.device), valid.to(self.device), days.to(self.device)


def temperature_of(card: ModelCard, path: Path) -> float:
    """What scores are divided by before they become probabilities; 1 of a model that was never calibrated."""
    if card.calibration is None:
        return 1.0
    try:
        temperature = float(card.calibration["temperature"]["temperature"])
        if not 0 < temperature < float("inf"):
            raise ValueError(f"a temperature of {temperature}")
    except (KeyError, TypeError, ValueError) as failure:
        why = f"its calibration cannot be understood ({failure})"
        raise ArtifactError("the model file cannot be used", path=path, why=why, remedy="train again") from None
    return temperature


def _part(observations: Observations, date: int, place: Window) -> Observations:
    rows, columns = place.slices
    return Observations(
        observations.values[date : date + 1, :, rows, columns], observations.valid[date : date + 1, rows, columns]
    )


def _flat(valid: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return valid.reshape(len(valid), -1)


def _cropped(state: ModelState, place: Window) -> ModelState:
    rows, columns = place.slices
    return tuple(tuple(part[..., rows, columns] for part in layer) for layer in state)
