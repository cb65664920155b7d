"""A model that was trained for a moment, through the API."""

from __future__ import annotations

from pathlib import Path

import pytest

import cropstar

PLAIN = {"cross_fit": 0}  # one training


@pytest.fixture(scope="session")
def trained(small_store: Path, tmp_path_factory: pytest.TempPathFactory) -> cropstar.TrainingResult:
    runs = tmp_path_factory.mktemp("runs")
    return cropstar.train(
        store=small_store,
        model="star",
        layers=1,
        hidden=8,
        epochs=2,
        settings={"cross_fit": 0},
        runs=runs,
        device="cpu",
    )
