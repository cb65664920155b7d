"""Ragged tables of any kind go into tiles and come back, from CSV and from Parquet."""

from __future__ import annotations

import tempfile
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from cropstar.geo.calendar import from_days
from cropstar.sources.table import TableOptions, TableScene, open_table
from cropstar.store.reader import TileReader
from cropstar.store.tile import write_tile
from tests.sources.examples.tables import as_csv, as_parquet

PANDAS_MISSING = {"na", "n/a", "nan", "-nan", "null", "none", "<na>", "#na", "#n/a"}  # what a CSV cannot call a field
LETTERS: st.SearchStrategy[str] = st.characters(codec="utf-8", exclude_categories=["C", "Z"])


def can_be_a_key(text: str) -> bool:
    return text.lower() not in PANDAS_MISSING and not text.endswith(".0")


KEYS = st.text(LETTERS, min_size=1, max_size=6).filter(can_be_a_key)
DATES = st.sets(st.integers(0, 800).map(lambda days: date(2020, 1, 1) + timedelta(days)), min_size=1, max_size=6)
WHOLE = st.integers(0, 65534)
FRACTION = st.floats(0.0, 20_000.0, width=32)


@st.composite
def ragged(draw: st.DrawFn) -> tuple[pd.DataFrame, dict[str, tuple[str, dict[date, list[float | None]]]]]:
    """A shuffled table, and what must come back: for each key its label and the values of its dates."""
    kind, bands = draw(st.sampled_from([WHOLE, FRACTION])), draw(st.integers(1, 3))
    series: dict[str, tuple[str, dict[date, list[float | None]]]] = {}
    for key in draw(st.sets(KEYS, min_size=1, max_size=5)):
        label = draw(st.sampled_from(["maize", "rye", "winter wheat"]))
        row = st.lists(st.one_of(kind, st.none()) if draw(st.booleans()) else kind, min_size=bands, max_size=bands)
        series[key] = (label, {day: draw(row) for day in sorted(draw(DATES))})
    rows = [(key, label, day, *values) for key, (label, days) in series.items() for day, values in days.items()]
    names = [f"B{band}" for band in range(2, 2 + bands)]
    frame = pd.DataFrame(draw(st.permutations(rows)), columns=["id", "crop", "date", *names])
    frame[names] = frame[names].astype(np.float64)
    return frame, series


def is_seen(values: list[float | None]) -> bool:
    return None not in values and (len(values) == 1 or any(values))


@given(ragged())
def test_any_ragged_table_comes_back(
    table: tuple[pd.DataFrame, dict[str, tuple[str, dict[date, list[float | None]]]]],
) -> None:
    frame, series = table
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = [as_csv(frame, folder / "table"), as_parquet(frame, folder / "table")]
        if not any(is_seen(values) for _, days in series.values() for values in days.values()):
            return
        for path in paths:
            (scene,) = open_table(path, TableOptions(scale=1e-4, samples_per_tile=2))
            samples = _samples(scene, folder)
            assert sorted(samples) == sorted(series)
            for key, (label, values, valid, days) in samples.items():
                expected_label, expected = series[key]
                assert label == expected_label
                assert from_days(days) == tuple(sorted(expected))
                for day, row, good in zip(from_days(days), values, valid, strict=True):
                    assert good == is_seen(expected[day])
                    assert row.tolist() == (expected[day] if good else [0] * len(row))


def _samples(scene: TableScene, folder: Path) -> dict[str, tuple[str, Any, Any, Any]]:
    """All samples of a scene, written to tiles and read again."""
    found: dict[str, tuple[str, Any, Any, Any]] = {}
    for piece in scene.tile_specs():
        path = folder / f"{piece.name}.h5"
        write_tile(path, scene.build(piece))
        reader = TileReader(path)
        for index, key in enumerate(reader.table.keys):
            found[key] = (scene.fingerprint.classes.names[reader.table.labels[index]], *reader.sample(index))
        reader.close()
    return found
