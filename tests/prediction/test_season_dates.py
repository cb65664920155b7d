"""A map a date, and the day from which a class is sure."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import torch
from hypothesis import given
from hypothesis import strategies as some

from cropstar.errors import UsageError
from cropstar.geo.windows import Window
from cropstar.prediction.job import predict
from cropstar.prediction.layers import BY_DATE, EARLIEST, ClassHistory, Smoothing
from cropstar.prediction.predictor import Predictor
from cropstar.prediction.request import MapRequest
from cropstar.sources.stack import StackSeries
from cropstar.store.classes import NODATA
from tests.prediction.making import untrained
from tests.prediction.seasons import cut, pixels

CPU = torch.device("cpu")
SURE = 0.3  # of four classes, to a model that was never trained
EVERY_DATE: dict[str, Any] = {"picture": False, "stable_confidence": SURE}


@pytest.mark.parametrize(("name", "pool"), [("convstar", "last"), ("convgru", "mean"), ("star", "last")])
def test_each_date_has_the_map_of_the_season_until_then(
    name: str, pool: str, small_scene: Path, tmp_path: Path
) -> None:
    tile = cut(small_scene / "tile.tif", tmp_path / "tile.tif", slice(0, 5), height=50, width=40)
    model = untrained(tmp_path / "model", tile, name, seed=2, pool=pool)
    predict(tile, tmp_path / "map.tif", MapRequest(model=model, device="cpu", window=17, **EVERY_DATE))
    predictor = Predictor(model, CPU)
    series = StackSeries(tile)
    history = ClassHistory(Window(0, 0, 50, 40), series.dates, SURE)
    unclear = np.zeros((50, 40), dtype=bool)
    for number, day in enumerate(series.dates):
        part = StackSeries(cut(tile, tmp_path / "part.tif", slice(0, number + 1)))
        whole, seen = predictor.probabilities(part, Window(0, 0, 50, 40))
        part.close()
        history.add(number, slice(0, 2000), whole.reshape(len(whole), -1), seen.ravel())
        near = np.diff(np.sort(whole, axis=0)[-2:], axis=0)[0] < 2e-5
        unclear |= near | (np.abs(whole.max(axis=0) - SURE) < 2e-5)
        found = pixels(tmp_path / f"map-{day}.tif")[0]
        expected = np.where(seen, whole.argmax(axis=0), NODATA)
        np.testing.assert_array_equal(found[~near], expected[~near])
    series.close()
    assert unclear.mean() < 0.01
    earliest = pixels(tmp_path / "map-earliest.tif")[0]
    np.testing.assert_array_equal(earliest[~unclear], history.layers()[EARLIEST][0][~unclear])
    assert len(np.unique(earliest)) > 1
    np.testing.assert_array_equal(pixels(tmp_path / f"map-{series.dates[-1]}.tif"), pixels(tmp_path / "map.tif"))
    with rasterio.open(tmp_path / "map-earliest.tif") as dataset:
        assert (dataset.dtypes, dataset.nodata) == (("uint16",), 0)
        assert dataset.tags()["CROPSTAR_CONFIDENCE"] == "0.3"
    with rasterio.open(tmp_path / f"map-{series.dates[1]}.tif") as dataset:
        assert dataset.tags()["CROPSTAR_DATES"].split() == [day.isoformat() for day in series.dates[:2]]
        assert dataset.colormap(1)
    assert (tmp_path / f"map-{series.dates[1]}.tif.aux.xml").exists()


@given(data=some.data(), dates=some.integers(1, 6), confidence=some.sampled_from([0.0, 0.4, 0.6, 1.0]))
def test_the_earliest_day_by_its_definition(data: some.DataObject, dates: int, confidence: float) -> None:
    """The first date from which on all dates have the last class, sure and seen."""
    days = [date(2023, 3, 1) + timedelta(days=9 * number) for number in range(dates)]
    steps = some.tuples(some.integers(0, 2), some.sampled_from([0.35, 0.5, 0.7, 1.0]))
    chosen = data.draw(some.lists(steps, min_size=dates, max_size=dates))
    first_seen = data.draw(some.integers(0, dates))
    history = ClassHistory(Window(0, 0, 1, 1), days, confidence)
    for number, (best, likely) in enumerate(chosen):
        probabilities = np.full((3, 1), (1 - likely) / 2, dtype=np.float32)
        probabilities[best] = likely
        history.add(number, slice(0, 1), probabilities, np.array([number >= first_seen]))

    def lasts(start: int) -> bool:
        rest = chosen[start:]
        return start >= first_seen and all(b == rest[-1][0] and np.float32(p) >= confidence for b, p in rest)

    expected = next((days[start].timetuple().tm_yday for start in range(dates) if lasts(start)), 0)
    layers = history.layers()
    assert layers[EARLIEST].tolist() == [[[expected]]]
    assert layers[BY_DATE].ravel().tolist() == [
        best if number >= first_seen else NODATA for number, (best, _) in enumerate(chosen)
    ]


def test_files_that_exist_and_options_that_exclude(small_scene: Path, tmp_path: Path) -> None:
    tile = cut(small_scene / "tile.tif", tmp_path / "tile.tif", slice(0, 2), height=30, width=30)
    model = untrained(tmp_path / "model", tile)
    series = StackSeries(tile)
    series.close()
    (tmp_path / f"map-{series.dates[0]}.tif").write_text("mine")
    options = MapRequest(model=model, device="cpu", **EVERY_DATE)
    with pytest.raises(UsageError, match="the output exists"):
        predict(tile, tmp_path / "map.tif", options)
    assert (tmp_path / f"map-{series.dates[0]}.tif").read_text() == "mine"
    with pytest.raises(UsageError, match="--every-date with --smooth"):
        predict(tile, tmp_path / "m.tif", options.replace(smoothing=Smoothing(method="majority")))
