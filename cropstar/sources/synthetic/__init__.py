"""The embedded scene: a season of invented farmland, so that everything can be tried without a download."""

from __future__ import annotations

from cropstar.sources.synthetic.landscape import SceneOptions
from cropstar.sources.synthetic.scene import SyntheticScene, make_scene, write_scene

__all__ = ["SceneOptions", "SyntheticScene", "make_scene", "write_scene"]
