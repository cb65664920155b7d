"""Radar of the embedded scene: its own dates and pixels, speckle, and crops that it tells apart."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import rasterio

import cropstar
from cropstar.sources.radar import RadarSeries
from cropstar.sources.synthetic.landscape import SceneOptions, make_landscape
from cropstar.sources.synthetic.reflectance import make_surface
from cropstar.sources.synthetic.scene import backscatter, radar_dates, write_radar
from cropstar.store.store import Store

SMALL = SceneOptions(seed=3, size=96, dates=8)


def test_dated_files_in_decibels(tmp_path: Path) -> None:
    place = write_radar(tmp_path, SMALL)
    series = RadarSeries(place)
    assert series.dates == radar_dates(SMALL)
    assert {second - first for first, second in pairwise(series.dates)} == {timedelta(days=12)}
    assert (series.sensor_name, series.bands, series.grid.resolution) == ("S1-ASC", ("VV", "VH"), 20.0)
    stamps = {path: path.stat().st_mtime_ns for path in place.iterdir()}
    write_radar(tmp_path, SMALL)  # nothing is written again
    assert stamps == {path: path.stat().st_mtime_ns for path in place.iterdir()}
    (again,) = list(place.iterdir())[:1]
    with rasterio.open(again) as dataset:
        known = dataset.read()
    again.unlink()
    write_radar(tmp_path, SMALL)
    with rasterio.open(again) as dataset:
        assert np.array_equal(dataset.read(), known)


def test_stems_and_leaves(tmp_path: Path) -> None:
    """In June wheat is darker than rapeseed in VH; speckle is a decibel or so."""
    surface = make_surface(SMALL, make_landscape(SMALL))
    day = next(day for day in radar_dates(SMALL) if day.month == 6)
    vv, vh = backscatter(SMALL, surface, 0, day)
    classes = surface.classes[::2, ::2]
    wheat, rape = classes == 1, classes == 4
    assert vh[rape].mean() - vh[wheat].mean() > 2
    assert 0.5 < vv[wheat].std() < 4
    assert -35 < vh.min() < vv.max() < 5


@pytest.mark.slow
def test_the_demonstration_with_radar(tmp_path: Path) -> None:
    cropstar.ingest(tmp_path, source="synthetic", radar=True, output=tmp_path / "store", workers=1)
    store = Store.open(tmp_path / "store")
    assert [sensor.name for sensor in store.fingerprint.sensors] == ["S2", "S1-ASC"]
    assert store.fingerprint.resolution == 10
    store.close()
