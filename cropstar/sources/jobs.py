"""What ingest has done, by itself or by workers: look at a tile, decode a layer, make a tile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cropstar.sources.decoding import Scratch
from cropstar.sources.scene import Piece, RasterScene, Scene
from cropstar.store.store import tile_path
from cropstar.store.tile import is_whole, write_tile


@dataclass(frozen=True)
class Check:
    """Whether a tile is on the disk as it was written."""

    scene: int  # its place in the list that ingest was given
    piece: Piece

    def do(self, scenes: Sequence[Scene | None], folder: Path) -> bool:
        return is_whole(tile_path(folder, self.piece.name), _own(scenes, self.scene).recipe)


@dataclass(frozen=True)
class Decode:
    """One layer of a raster scene into the scratch file; the answer says whether it holds anything."""

    scene: int
    layer: int
    scratch: Scratch

    def do(self, scenes: Sequence[Scene | None], _: Path) -> bool:
        scene = _own(scenes, self.scene)
        assert isinstance(scene, RasterScene)
        assert scene.decoding is not None
        with _naming(self.scratch.path):
            return scene.decoding.decode(self.layer, self.scratch)


@dataclass(frozen=True)
class Make:
    """One tile, built and written."""

    scene: int
    piece: Piece
    scratch: Scratch | None

    def do(self, scenes: Sequence[Scene | None], folder: Path) -> bool:
        scene = _own(scenes, self.scene)
        if isinstance(scene, RasterScene) and scene.decoding is not None:
            scene.decoding.read_from(self.scratch)
        path, tile = tile_path(folder, self.piece.name), scene.build(self.piece)
        with _naming(path):
            write_tile(path, tile)
        return True


Job = Check | Decode | Make


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """A write that finds no room does not say by itself where."""
    try:
        yield
    except OSError as failure:
        failure.filename = failure.filename or str(path)
        raise


def _own(scenes: Sequence[Scene | None], number: int) -> Scene:
    scene = scenes[number]
    assert scene is not None, "a scene that lies in memory is not sent to workers"
    return scene
