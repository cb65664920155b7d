"""What a state of a season says of itself, as plain facts that print as text or as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cropstar.prediction.season_card import state_bytes
from cropstar.prediction.season_file import SeasonReader
from cropstar.reports.contents import crs_name


def season_facts(path: Path) -> dict[str, Any]:
    """Model, dates, grid and size of a state whose layout was checked."""
    reader = SeasonReader(path)
    reader.close()
    card = reader.card
    fingerprint = card.fingerprint.to_json()
    return {
        "kind": "season",
        "path": str(path),
        "bytes": path.stat().st_size,
        "model": card.model,
        "model_path": str(card.model_path),
        "model_is_there": card.model_path.is_file(),
        "map": str(card.map),
        "dates": [day.isoformat() for day in card.dates],
        "shape": list(card.grid.shape),
        "crs": crs_name(card.grid.crs),
        "bounds": list(card.grid.bounds),
        "spatial": card.spatial,
        "layers": [list(layer) for layer in card.layout],
        "bytes_per_pixel": state_bytes(card.layout),
        "given": card.given,
        **{name: fingerprint[name] for name in ("bands", "resolution", "season", "classes")},
        "scale": card.scale,
        "offset": card.offset,
    }
