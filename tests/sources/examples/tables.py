"""Small tables of series, as frames and as files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from cropstar.sources.table import TableOptions, TableScene, open_table
from cropstar.store.tile import SeriesTile

Written = Callable[[pd.DataFrame, Path], Path]


def a_frame(**changes: Any) -> pd.DataFrame:
    """Three fields: 2 with two dates, 10 with three, 1 with one. Not sorted; two bands of whole numbers."""
    columns = {
        "field_id": ["f2", "f10", "f10", "f2", "f1", "f10"],
        "date": ["2021-05-11", "2021-04-01", "2021-06-30", "2021-04-03", "2021-04-02", "2021-05-05"],
        "crop": ["maize", "wheat", "wheat", "maize", "wheat", "wheat"],
        "B4": [100, 200, 300, 400, 500, 600],
        "B8": [1100, 1200, 1300, 1400, 1500, 1600],
    }
    return pd.DataFrame({**columns, **changes})


def as_csv(frame: pd.DataFrame, path: Path) -> Path:
    path = path.with_suffix(".csv")
    frame.to_csv(path, index=False)
    return path


def as_parquet(frame: pd.DataFrame, path: Path) -> Path:
    path = path.with_suffix(".parquet")
    frame.to_parquet(path, index=False)
    return path


def scene_of(frame: pd.DataFrame, folder: Path, write: Written = as_csv, **options: Any) -> TableScene:
    (scene,) = open_table(write(frame, folder / "table"), TableOptions(**options))
    return scene


def tile_of(frame: pd.DataFrame, folder: Path, write: Written = as_csv, **options: Any) -> SeriesTile:
    scene = scene_of(frame, folder, write, **options)
    (piece,) = scene.tile_specs()
    return scene.build(piece)
