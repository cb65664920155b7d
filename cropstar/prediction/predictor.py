"""A model that classifies windows of a series, one date after the other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from cropstar.geo.calendar import to_days
from cropstar.geo.windows import Window
from cropstar.models.stack import StackState
from cropstar.models.weights import restore_model
from cropstar.sources.series import Observations, Series
from cropstar.store.model_file import read_model


class Predictor:
    """A model file made ready to work on one device."""

    def __init__(self, path: Path, device: torch.device) -> None:
        self.path = path
        self.card, weights, self.digest = read_model(path)
        self.model = restore_model(self.card.model, self.card.shape, weights, path).to(device)
        self._device = device

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
        return self.model.radius(len(series.dates))

    @torch.inference_mode()
    def probabilities(self, series: Series, window: Window) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Class probabilities (K, h, w) of a window, and where any date was valid (h, w)."""
        outer = window.expand(self.halo(series), series.grid.shape)
        observations = series.read(outer)
        state = self._run(series, observations)
        scores = self.model.classify(state)
        if not self.model.spatial:  # (h*w, K) -> (1, K, h, w)
            scores = scores.T.reshape(1, -1, outer.height, outer.width)
        rows, columns = window.relative_to(outer).slices
        chosen = torch.softmax(scores[0, :, rows, columns].float(), dim=0)
        seen = np.logical_or.reduce(observations.valid[:, rows, columns], axis=0)
        return chosen.cpu().numpy(), seen

    def _run(self, series: Series, observations: Observations) -> StackState:
        """Step through the dates: only the state is held, not the activations of a whole season."""
        # The model's bands by name: the file may have them in another order, and more of them.
        chosen = [series.bands.index(band) for band in self.card.fingerprint.bands]
        state: StackState | None = None
        for t, day in enumerate(to_days(series.dates)):
            values = observations.values[t : t + 1, chosen]
            x = torch.from_numpy(self.card.normalisation.apply(values, series.scale, series.offset))
            valid = torch.from_numpy(observations.valid[t : t + 1])
            if not self.model.spatial:  # every pixel is a series of its own
                x, valid = x[0].flatten(1).T, valid.flatten()
            days = torch.full((len(x),), int(day))
            state = self.model.step(x.to(self._device), valid.to(self._device), days.to(self._device), state)
        assert state is not None
        return state
