"""The embedded scene: a season of invented farmland, so that everything can be tried without a download."""

from __future__ import annotations

from cropstar.sources.synthetic.files import write_scene
from cropstar.sources.synthetic.options import SceneOptions
from cropstar.sources.synthetic.scene import Scene, make_scene

__all__ = ["Scene", "SceneOptions", "make_scene", "write_scene"]
