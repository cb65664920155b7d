"""kill -9 during ingest: the store stays readable, and the rerun completes it to the same bytes."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from cropstar.store.store import Store, read_manifest
from tests.faults.killing import kill_repeatedly, run_to_the_end


def content(folder: Path) -> dict[str, str]:
    """Every file of a store by name and digest."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_ingest_completes_to_the_same_bytes(kills: int, small_scene: Path, tmp_path: Path) -> None:
    tile = str(small_scene / "tile.tif")
    command = ["ingest", tile, "--tile-size", "16", "-o"]  # many small tiles: many moments to be hit in
    _, seconds = run_to_the_end([*command, "unbroken"], tmp_path)
    expected = content(tmp_path / "unbroken")

    def still_readable() -> None:
        if read_manifest(tmp_path / "killed") is not None:
            Store.open(tmp_path / "killed").close()

    kill_repeatedly(
        [*command, "killed"],
        tmp_path,
        kills=kills,
        seconds=seconds,
        seed=kills,
        after_each=still_readable,
        start_over=lambda: shutil.rmtree(tmp_path / "killed"),
    )
    run_to_the_end([*command, "killed"], tmp_path)
    assert content(tmp_path / "killed") == expected


@pytest.mark.slow
@pytest.mark.parametrize("kills", [20])
def test_killed_demonstration_is_made_to_the_same_bytes(kills: int, tmp_path: Path) -> None:
    """The scene itself is written by ingest, too."""
    for place in ("unbroken", "killed"):
        (tmp_path / place).mkdir()
    _, seconds = run_to_the_end(["ingest"], tmp_path / "unbroken")
    kill_repeatedly(
        ["ingest"],
        tmp_path / "killed",
        kills=kills,
        seconds=seconds,
        seed=1,
        after_each=lambda: None,
        start_over=lambda: shutil.rmtree(tmp_path / "killed" / "data"),
    )
    run_to_the_end(["ingest"], tmp_path / "killed")
    assert content(tmp_path / "killed") == content(tmp_path / "unbroken")
