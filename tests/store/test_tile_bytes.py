"""The bytes of a tile follow from its content alone, whatever else the process does."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import FrameType

from cropstar.sources.catalogue import SOURCES, IngestRequest
from cropstar.store.tile import write_tile


def test_a_profiler_that_holds_frames_changes_nothing(small_scene: Path, tmp_path: Path) -> None:
    """As Dask's workers have one: what a frame holds is closed later than it would be."""
    scene = SOURCES["stack"](IngestRequest(small_scene / "tile.tif", tile_size=48))[0]
    tile = scene.build(scene.tile_specs()[0])
    scene.close()
    path, over = tmp_path / "tile.h5", threading.Event()
    write_tile(path, tile)
    expected = path.read_bytes()

    def sample() -> None:
        while not over.wait(0.0005):
            held = []
            for frame in sys._current_frames().values():
                below: FrameType | None = frame
                while below is not None:
                    held.append(below)
                    below = below.f_back

    profiler = threading.Thread(target=sample)
    profiler.start()
    try:
        found = []
        for _ in range(60):
            write_tile(path, tile)
            found.append(path.read_bytes() == expected)
    finally:
        over.set()
        profiler.join()
    assert all(found)
