"""Tables of fields whose curves tell their crop, some with a wrong label: written as CSV and ingested as users do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

import cropstar

PEAKS = {"wheat": 140, "maize": 210, "beet": 240, "rapeseed": 115, "oats": 165, "peas": 185}  # days of the year


def write_table(
    path: Path, counts: Mapping[str, int], *, swapped: Mapping[int, str] | None = None, seed: int = 0, year: int = 2021
) -> Path:
    """So many fields of each crop, 12 dates each; `swapped` gives the label of some fields, by running number."""
    draw = np.random.default_rng(seed)
    lines, number = ["id,date,crop,B04,B08"], 0
    for crop, count in counts.items():
        for _ in range(count):
            label = (swapped or {}).get(number, crop)
            peak = PEAKS[crop] + draw.normal(0, 4)
            for day in range(60, 300, 20):
                ndvi = 0.15 + 0.7 * np.exp(-0.5 * ((day - peak) / 25) ** 2) + draw.normal(0, 0.02)
                red = 1200 * (1 - ndvi)
                date = np.datetime64(f"{year}-01-01") + day
                lines.append(f"f{number},{date},{label},{red:.0f},{red * (1 + ndvi) / (1 - ndvi):.0f}")
            number += 1
    path.write_text("\n".join(lines) + "\n")
    return path


def table_store(folder: Path, counts: Mapping[str, int], **how: object) -> Path:
    """The table ingested."""
    folder.mkdir(parents=True, exist_ok=True)
    table = write_table(folder / "fields.csv", counts, **how)  # type: ignore[arg-type]
    return Path(cropstar.ingest(table, output=folder / "store"))


FAST = {
    "model.layers": 1,
    "model.hidden": 16,
    "model.pool": "season",
    "epochs": 8,
    "series_batch": 8,
    "optimiser.learning_rate": 0.01,
    "optimiser.warmup": 2,
}
