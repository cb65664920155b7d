"""Several inputs of later dates as one series on the grid of a state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from cropstar.errors import MismatchError
from cropstar.geo.resampling import grid_difference
from cropstar.geo.windows import Window
from cropstar.prediction.inputs import MapInput
from cropstar.prediction.predictor import Predictor
from cropstar.prediction.season_card import SeasonCard
from cropstar.sources.base import Bands, Observations, Series


class JoinedSeries:
    """Series of one grid and scale, put together in the order of their dates; the bands are those of the model."""

    def __init__(self, pieces: Sequence[Series], bands: Bands) -> None:
        self._pieces = pieces
        self._order = np.argsort([day.toordinal() for piece in pieces for day in piece.dates], kind="stable")
        days = [day for piece in pieces for day in piece.dates]
        self.name, self.grid = pieces[0].name, pieces[0].grid
        self.dates: tuple[date, ...] = tuple(days[place] for place in self._order)
        self.bands = bands
        self.scale, self.offset = pieces[0].scale, pieces[0].offset
        self.provenance: dict[str, Any] = pieces[0].provenance
        self.files: list[Path] = [path for piece in pieces for path in piece.files]

    def read(self, window: Window) -> Observations:
        read = [piece.read(window) for piece in self._pieces]
        chosen = [[piece.bands.index(band) for band in self.bands] for piece in self._pieces]
        values = np.concatenate([one.values[:, some] for one, some in zip(read, chosen, strict=True)])
        return Observations(values[self._order], np.concatenate([one.valid for one in read])[self._order])

    def close(self) -> None:
        for piece in self._pieces:
            piece.close()


def open_later(
    inputs: Sequence[MapInput], card: SeasonCard, predictor: Predictor, given: Mapping[str, Any], *, any_dates: bool
) -> JoinedSeries:
    """Images that go on where a state ends; anything else is refused before any compute."""
    bands, reading = predictor.card.fingerprint.bands, predictor.card.provenance.get("reading", {})
    pieces: list[Series] = []
    try:
        for each in inputs:
            remembered = card.given if each.scene is None else {}
            series = each.open(bands, reading, {**remembered, **given}, scratch=card.map.parent)
            pieces.append(series)
            predictor.require_fits(series, each.path, any_dates=any_dates)
            _require_goes_on(series, each.path, card)
            if (series.scale, series.offset) != (pieces[0].scale, pieces[0].offset):
                why = f"scale and offset of {inputs[0].path} are others"
                raise MismatchError(
                    "images of another scale", path=each.path, why=why, remedy="update with one after the other"
                )
        joined = JoinedSeries(pieces, bands)
        twice = [day for day, following in zip(joined.dates, joined.dates[1:], strict=False) if day == following]
        if twice:
            raise MismatchError("two images of one date", why=str(twice[0]), remedy="give each date once")
    except BaseException:
        for series in pieces:
            series.close()
        raise
    return joined


def _require_goes_on(series: Series, path: Path, card: SeasonCard) -> None:
    if series.grid != card.grid and (difference := grid_difference(series.grid, card.grid)):
        why = f"{difference} as the state has"
        raise MismatchError("not the grid of the state", path=path, why=why, remedy="give images of the same grid")
    if series.dates[0] <= card.dates[-1]:
        why = f"{series.dates[0]} is not after {card.dates[-1]}, the last date of the state"
        raise MismatchError("not a later date", path=path, why=why, remedy="give only images that came after it")
