"""Where samples of images lie."""

from __future__ import annotations

from dataclasses import dataclass

from cropstar.geo.windows import Window
from cropstar.store.images import Image
from cropstar.store.store import Store


@dataclass(frozen=True)
class Place:
    """A window of an image of a tile."""

    tile: str
    number: int  # of the image in its tile
    window: Window

    def image(self, store: Store) -> Image:
        return store.reader(self.tile).images[self.number]
