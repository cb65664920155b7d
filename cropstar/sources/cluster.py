"""Tiles made on a Dask cluster: this process plans and counts, workers read and write.

A store is the same to the byte whoever made its tiles; either way of making it goes on where the other was stopped.
Local workers share one large scratch file. Workers on other machines get parts of a scene instead, each decoded into a
file on the worker's own disk: nothing decoded crosses the network, and a part whose worker dies is gone on with by
another, from the tiles that are there.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from cropstar.cluster import Cluster, Task, pack
from cropstar.errors import CropstarError, UsageError
from cropstar.sources.decoding import around, decoded_bytes
from cropstar.sources.jobs import Job, Part
from cropstar.sources.remote import RemoteIngest, do_job, forget
from cropstar.sources.scene import Piece, RasterScene, Scene

PART_BYTES = 2**30  # of a part's scratch file at most: every thread of a worker has one
PARTS = 3  # a thread, of a scene large enough: the last ones end at about the same time
REMEDY = "leave --scheduler out"


class ClusterCrew:
    """Does jobs on scenes, as `Crew` does. The scenes were opened by paths that are right on every machine."""

    def __init__(self, cluster: Cluster, scenes: Sequence[Scene], folder: Path) -> None:
        self._cluster = cluster
        self._ingest = RemoteIngest(folder.absolute(), secrets.token_hex(8))
        self._packed = _packed(scenes)
        self._shared: Any = None

    def __enter__(self) -> ClusterCrew:
        self._shared = self._cluster.share("scenes", self._packed)
        self._ingest.token_file.touch()
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self._ingest.token_file.unlink(missing_ok=True)  # workers leave the rest alone
        if kind is None:
            self._cluster.on_all(forget)

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, bool]]:
        """All jobs with their answers."""
        return self._through(jobs)

    def make_parts(self, number: int, scene: RasterScene, pieces: Sequence[Piece]) -> Iterator[Part]:
        """Tiles of a scene that is worth decoding in parts; each part when it is done."""
        for part, _ in self._through([Part(number, tuple(cell)) for cell in self._cells(scene, pieces)]):
            yield part

    def _cells(self, scene: RasterScene, pieces: Sequence[Piece]) -> list[list[Piece]]:
        if scene.decoding is None or not pieces:
            return []
        whole = decoded_bytes(scene.decoding.decoded_places(around([piece.window for piece in pieces])))
        return scene.cells(pieces, min(PART_BYTES, whole // (self._cluster.threads * PARTS)))

    def _through(self, jobs: Sequence[Any]) -> Iterator[tuple[Any, bool]]:
        tasks = (Task(type(job).__name__.lower(), job, do_job, (self._ingest, job), self._shared) for job in jobs)
        for job, answer in self._cluster.through(tasks):
            if isinstance(answer, CropstarError):
                raise answer
            yield job, answer


def _packed(scenes: Sequence[Scene]) -> bytes:
    """The scenes as they are sent; one that lies in the memory of this process is refused."""
    for scene in scenes:
        if not getattr(scene, "volume", 0):
            why = "it lies in the memory of this process, and its tiles are quickly made there"
            raise UsageError(f"the scene '{scene.name}' is not for a cluster", why=why, remedy=REMEDY)
    try:
        return pack(scenes)
    except Exception as failure:  # something in a scene, told in many ways
        why = f"it cannot be sent ({type(failure).__name__}: {failure})"
        raise UsageError(f"the scene '{scenes[0].name}' is not for a cluster", why=why, remedy=REMEDY) from None
