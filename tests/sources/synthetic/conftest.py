"""Scenes that several of these tests look at."""

from __future__ import annotations

import pytest

from cropstar.sources.synthetic import SceneOptions, SyntheticScene, make_scene


@pytest.fixture(scope="module")
def scene() -> SyntheticScene:
    return make_scene(SceneOptions(seed=2, size=97, dates=9))  # an odd size: 20 m blocks do not fit


@pytest.fixture(scope="module")
def season() -> SyntheticScene:
    return make_scene(SceneOptions(seed=1, size=200, dates=20))
