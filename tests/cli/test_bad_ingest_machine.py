"""A full disk, another ingest at the same moment, and an error among workers: the store is whole, before and after."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import rasterio
from rasterio.windows import Window

from tests.cli.refusing import Answer, digests, error_line, write_sparse
from tests.faults.killing import start
from tests.processes import run_process
from tests.sources.examples.granules import write_fields

Cli = Callable[..., Answer]
# In a mount namespace of its own, which takes the small disk with it when it ends.
ON_A_SMALL_DISK = """
set -e
mount -t tmpfs -o size="$1" none disk
cp -r good disk/store
shift
status=0
"$@" || status=$?
rm -rf after
cp -r disk/store after
exit $status
"""


def unshared(*command: str | Path, cwd: Path) -> Answer:
    """A command that may mount, as the superuser or as one who seems to be."""
    alone = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
    return run_process(*alone, *command, cwd=cwd, timeout=120)


def test_a_disk_that_is_full(run_cli: Cli, small_scene: Path, tmp_path: Path) -> None:
    """A store of one season, and no room for another one in its place."""
    (tmp_path / "disk").mkdir()
    tried = unshared("mount", "-t", "tmpfs", "-o", "size=1m", "none", "disk", cwd=tmp_path)
    if tried.returncode:
        pytest.skip(f"no small disk can be mounted here: {tried.stderr.strip()}")
    tile = small_scene / "tile.tif"
    assert run_cli("ingest", tile, "--tile-size", "48", "-o", "good", cwd=tmp_path).returncode == 0
    good = digests(tmp_path / "good")
    taken = sum(path.stat().st_size for path in (tmp_path / "good").rglob("*") if path.is_file())
    command = [sys.executable, "-m", "cropstar", "ingest", str(tile), "--tile-size", "32", "-o", "disk/store"]
    answer = unshared("sh", "-c", ON_A_SMALL_DISK, "sh", str(taken * 3 // 2), *command, "--overwrite", cwd=tmp_path)
    error_line(answer, 6, "cannot write", "disk/store", "No space left", "free some disk space")
    after = digests(tmp_path / "after")
    assert {name: after.get(name) for name in good} == good
    assert not [name for name in after if name.endswith(".partial")]


def test_two_ingests_into_one_store(run_cli: Cli, small_scene: Path, tmp_path: Path) -> None:
    command = ["ingest", str(small_scene / "tile.tif"), "--tile-size", "16", "-o", "store"]
    first = start(command, tmp_path)
    try:
        while not list((tmp_path / "store" / "tiles").glob("*.h5")):
            assert first.poll() is None
            time.sleep(0.001)
        first.send_signal(signal.SIGSTOP)  # so that it is still at it when the second one comes
        assert not (tmp_path / "store" / "manifest.json").exists()
        before = digests(tmp_path)
        error_line(run_cli(*command, cwd=tmp_path), 4, "the store is locked in store", "another cropstar", "wait")
        assert digests(tmp_path) == before
        first.send_signal(signal.SIGCONT)
        _, said = first.communicate(timeout=120)
    finally:
        first.kill()
        first.wait()
    assert first.returncode == 0, said
    assert "store store: 36 tiles written, 0 kept" in said


# --- workers


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stack large enough for workers: where it is looked for data all is well, and its last block is not."""
    folder = tmp_path_factory.mktemp("damaged")
    tile, side, block = folder / "tile.tif", 1808, 256
    write_sparse(tile, [f"2023-{month:02d}-01 B04" for month in range(1, 13)], (side, side), (block, block))
    with rasterio.open(tile, "r+") as dataset:
        last = Window(1792, 1792, 16, 16)
        for band in dataset.indexes:
            dataset.write(np.ones((1, side), "u2"), band, window=Window(0, 4 * block, side, 1))
            dataset.write(np.random.default_rng(band).integers(1, 9999, (16, 16)).astype("u2"), band, window=last)
    with rasterio.open(tile) as dataset:
        place, size = (int(dataset.get_tag_item(f"BLOCK_{what}_7_7", "TIFF", bidx=12)) for what in ("OFFSET", "SIZE"))
    content = bytearray(tile.read_bytes())
    content[place : place + size] = b"\xff" * size
    tile.write_bytes(content)
    write_fields(folder / "parcels.gpkg", 60)
    return folder


def test_an_error_among_workers_reads_the_same(run_cli: Cli, damaged: Path, small_store: Path, tmp_path: Path) -> None:
    """Found after tiles were written: the store that was to be replaced is still there, and no half of the new one."""
    good = digests(small_store)
    lines = set()
    for case, options in {"one": ["1"], "two": ["2"], "told": ["2", "--debug"]}.items():
        store = shutil.copytree(small_store, tmp_path / case)
        command = ["ingest", damaged / "tile.tif", "--tile-size", "904", "--overwrite", "-o", case]
        answer = run_cli(*command, "--workers", *options, cwd=tmp_path)
        assert ("In a worker" in answer.stderr) == (case == "told")  # there was one
        if case != "told":
            error_line(answer, 3, "damaged raster in ", "tile.tif: the pixels cannot be read", "get the file")
        lines.add(answer.stderr.splitlines()[-1])
        after = digests(store)
        assert {name: after.get(name) for name in good} == good
        assert not [name for name in after if name.endswith(".partial")]
    assert len(lines) == 1
