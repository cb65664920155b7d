"""What ingest has done, by itself or by workers: look at a tile, decode a layer, make a tile or a part of a scene."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from cropstar.sources.decoding import Scratch, around, scratch_file
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


@dataclass(frozen=True)
class Part:
    """Neighbouring tiles with a scratch file of their own: for workers of other machines, which share no local disk."""

    scene: int
    pieces: tuple[Piece, ...]

    def steps(self, scenes: Sequence[Scene | None], folder: Path, place: Path) -> Generator[None]:
        """What is missing of it, one step after each yield; the scratch file lies in `place` meanwhile."""
        scene = _own(scenes, self.scene)
        assert isinstance(scene, RasterScene)
        assert scene.decoding is not None
        missing = [piece for piece in self.pieces if not Check(self.scene, piece).do(scenes, folder)]
        if not missing:
            return
        window = around([piece.window for piece in missing])
        with TemporaryDirectory(dir=place) as own, scratch_file(Path(own), scene.decoding, window) as scratch:
            for chain in scene.decoding.decoding_chains():
                for layer in chain:
                    yield
                    if not Decode(self.scene, layer, scratch).do(scenes, folder) and layer == chain[0]:
                        break
            for piece in missing:
                yield
                Make(self.scene, piece, scratch).do(scenes, folder)


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
