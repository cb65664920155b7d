"""What a worker of a cluster does for an ingest: look at tiles and make them.

Tiles go into the store's folder, which all machines share: what is finished survives worker, scheduler and client, and
no pixel passes through the scheduler. The client keeps a token in the folder. A worker that does not see it looks at
another file system, or its client is gone; either way it must not write. Every thread has its own copy of the scenes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from cropstar.cluster import require_seen, unpack
from cropstar.holding import Holder
from cropstar.sources.jobs import Job, Make, Part
from cropstar.sources.scene import Scene
from cropstar.sources.workers import bound_gdal, reporting
from cropstar.store.atomic import PARTIAL
from cropstar.store.store import tile_path
from cropstar.store.tile import flush_tiles

REMEDY = "give the worker more memory, or a smaller --tile-size"

_scenes: Holder[Sequence[Scene]] = Holder()


@dataclass(frozen=True)
class RemoteIngest:
    """An ingest, as it is sent to workers."""

    folder: Path  # of the store, as it is called on every machine
    token: str  # of the client that wants it

    @property
    def token_file(self) -> Path:
        """Has the name of a partial file: whoever writes to the store next removes what a killed client left."""
        return self.folder / f".client-{self.token}{PARTIAL}"

    def require_wanted(self) -> None:
        require_seen(self.token_file, "the store", self.folder)


def do_job(ingest: RemoteIngest, job: Job | Part, packed: bytes) -> bool:
    """A job on the packed scenes. Done twice, because a worker died over it, it gives the same files."""
    with reporting(REMEDY):
        ingest.require_wanted()
        with _scenes.held(ingest.token, lambda stack: _unpacked(packed, stack)) as scenes:
            if isinstance(job, Part):
                with closing(job.steps(scenes, ingest.folder, _own_disk())) as steps:
                    for _ in steps:
                        ingest.require_wanted()
                answer = True
            else:
                answer = job.do(scenes, ingest.folder)
        # Here, since on some file systems the client cannot: what another machine holds back is not its to flush.
        pieces = job.pieces if isinstance(job, Part) else (job.piece,) if isinstance(job, Make) else ()
        flush_tiles(tile_path(ingest.folder, piece.name) for piece in pieces)
        return answer


def forget() -> None:
    """Close what no task uses."""
    _scenes.close_idle()


def _unpacked(packed: bytes, stack: ExitStack) -> Sequence[Scene]:
    bound_gdal(threads=1)
    scenes: Sequence[Scene] = unpack(packed)
    for scene in scenes:
        stack.callback(scene.close)
    return scenes


def _own_disk() -> Path:
    """The folder that Dask gives a worker on its machine, and removes after it."""
    from distributed import get_worker

    return Path(get_worker().local_directory)
