"""Where things go when the user does not say: everything under `data/` of the current folder."""

from __future__ import annotations

from pathlib import Path

DATA = Path("data")
DEMO = DATA / "demo"
STORES = DATA / "stores"
RUNS = DATA / "runs"
