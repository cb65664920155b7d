"""A model that classifies windows of a series, one date after the other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cropstar.config import RegularConfig
from cropstar.datasets.regular import count_periods, regularise
from cropstar.geo.calendar import to_days
from cropstar.geo.windows import Window
from cropstar.models.contract import ModelState
from cropstar.models.weights import restore_model
from cropstar.sources.series import Observations, Series
from cropstar.store.model_file import read_model

SERIES_AT_ONCE = 8192  # of a model that needs all dates at once


class Predictor:
    """A model file made ready to work on one device."""

    def __init__(self, path: Path, device: torch.device) -> None:
        self.path = path
        self.card, weights, self.digest = read_model(path)
        self.model = restore_model(self.card.model, self.card.shape, weights, path).to(device)
        self._device = device
        self._regular = RegularConfig.model_validate(self.card.provenance.get("regular", {}))

    def require_fits(self, series: Series, path: Path, *, any_dates: bool) -> None:
        """Refuse a series that the model does not understand, before any compute."""
        self.card.fingerprint.require_fits(
            bands=series.bands,
            resolution=series.grid.resolution,
            dates=series.dates,
            path=path,
            any_dates=any_dates,
        )

    def halo(self, series: Series) -> int:
        """The margin with which a windowed map equals the map of one pass over the whole raster."""
        return self.model.radius(self._length(series))

    def _length(self, series: Series) -> int:
        """How many dates the model gets to see."""
        every = self._regular.every
        return len(series.dates) if every is None else count_periods(self.card.fingerprint.season, every)

    @torch.inference_mode()
    def probabilities(self, series: Series, window: Window) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Class probabilities (K, h, w) of a window, and where any date was valid (h, w)."""
        outer = window.expand(self.halo(series), series.grid.shape)
        observations = series.read(outer)
        by_date = self.model.streaming and self._regular.every is None
        scores, seen = (self._stream if by_date else self._whole)(series, observations)
        if not self.model.spatial:  # (h*w, K) -> (1, K, h, w)
            scores = scores.T.reshape(1, -1, outer.height, outer.width)
        rows, columns = window.relative_to(outer).slices
        chosen = torch.softmax(scores[0, :, rows, columns].float(), dim=0)
        return chosen.cpu().numpy(), seen.reshape(outer.height, outer.width).cpu().numpy()[rows, columns]

    def _stream(self, series: Series, observations: Observations) -> tuple[Tensor, Tensor]:
        """Step through the dates: only the state is held, not the activations of a whole season."""
        state: ModelState | None = None
        for t in range(len(series.dates)):
            x, valid, days = self._inputs(series, observations, slice(t, t + 1))
            state = self.model.step(x[:, 0], valid[:, 0], days[:, 0], state)
        assert state is not None
        return self.model.classify(state), torch.from_numpy(observations.valid.any(axis=0))

    def _whole(self, series: Series, observations: Observations) -> tuple[Tensor, Tensor]:
        """All dates at once; many series are taken some at a time."""
        inputs = self._inputs(series, observations, slice(None))
        scores, seen = [], []
        for start in range(0, len(inputs[0]), SERIES_AT_ONCE):
            x, valid, days = (part[start : start + SERIES_AT_ONCE] for part in inputs)
            x, valid, days = regularise(x, valid, days, self.card.fingerprint.season, self._regular)
            scores.append(self.model(x, valid, days))
            seen.append(valid.any(dim=1))
        return torch.cat(scores), torch.cat(seen)

    def _inputs(self, series: Series, observations: Observations, dates: slice) -> tuple[Tensor, Tensor, Tensor]:
        """x (B, T, C, ...), valid and days of some dates; an image is one sample, of series every pixel is one."""
        # The model's bands by name: the file may have them in another order, and more of them.
        chosen = [series.bands.index(band) for band in self.card.fingerprint.bands]
        values = observations.values[dates][:, chosen]
        x = torch.from_numpy(self.card.normalisation.apply(values, series.scale, series.offset)).unsqueeze(0)
        valid = torch.from_numpy(observations.valid[dates]).unsqueeze(0)
        if not self.model.spatial:
            x, valid = x[0].flatten(2).permute(2, 0, 1), valid[0].flatten(1).T
        days = torch.from_numpy(to_days(series.dates)[dates]).expand(len(x), -1)
        return x.to(self._device), valid.to(self._device), days.to(self._device)
