"""The tiles of one scene: what is whole is kept, what is missing is made, a decoded part after the other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cropstar.logs import logger
from cropstar.progress import progress_bar
from cropstar.sources.cluster import ClusterCrew
from cropstar.sources.decoding import DecodedSeries, Scratch, around, scratch_bytes, scratch_file
from cropstar.sources.jobs import Check, Decode, Make
from cropstar.sources.scene import Piece, RasterScene, Scene
from cropstar.sources.workers import Crew
from cropstar.store.store import TILES, tile_path


def make_tiles(crew: Crew | ClusterCrew, number: int, scene: Scene, folder: Path) -> tuple[int, int]:
    """Make what is missing of the scene with that number; how many tiles were written and kept."""
    pieces = scene.pieces()
    with progress_bar(len(pieces), f"ingest {scene.name}", "tile") as bar:
        present = _present(folder)
        there = [piece for piece in pieces if piece.name in present]
        whole: set[str] = set()
        for check, good in crew.run([Check(number, piece) for piece in there]):
            assert isinstance(check, Check)
            if good:
                whole.add(check.piece.name)
                bar.update()
            else:
                path = tile_path(folder, check.piece.name)
                logger.warning("the tile %s was damaged and is made anew", path)
        missing = [piece for piece in pieces if piece.name not in whole]
        if not isinstance(scene, RasterScene) or scene.decoding is None:
            _make(crew, number, missing, None, bar)
        elif isinstance(crew, ClusterCrew):
            for part in crew.make_parts(number, scene, missing):
                bar.update(len(part.pieces))
        else:
            for cell in scene.cells(missing, scratch_bytes(folder)):
                window = around([piece.window for piece in cell])
                with scratch_file(folder / TILES, scene.decoding, window) as scratch:
                    _decode(crew, number, scene.decoding, scratch, scene.name)
                    _make(crew, number, cell, scratch, bar)
    return len(missing), len(whole)


def _present(folder: Path) -> set[str]:
    """What lies there, by one listing: a network's file system remembers for a while what it was asked for in vain."""
    return {path.stem for path in (folder / TILES).glob("*.h5")}


def _decode(crew: Crew, number: int, series: DecodedSeries, scratch: Scratch, name: str) -> None:
    chains = series.decoding_chains()
    with progress_bar(sum(map(len, chains)), f"decode {name}", "file") as bar:
        seen = set()
        for job, found in crew.run([Decode(number, chain[0], scratch) for chain in chains]):
            bar.update()
            if found and isinstance(job, Decode):
                seen.add(job.layer)
        rest = [layer for chain in chains if chain[0] in seen for layer in chain[1:]]
        for _ in crew.run([Decode(number, layer, scratch) for layer in rest]):
            bar.update()


def _make(crew: Crew | ClusterCrew, number: int, pieces: Sequence[Piece], scratch: Scratch | None, bar: Any) -> None:
    for _ in crew.run([Make(number, piece, scratch) for piece in pieces]):
        bar.update()
