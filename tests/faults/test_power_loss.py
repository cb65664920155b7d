"""The power fails: the old or the new files are there and whole, and what ended well stays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.forkserver import ForkServer
from tests.faults.power_loss import Call, Disk, crash_states
from tests.faults.replay import replay
from tests.faults.writing import Case


@pytest.mark.parametrize(
    ("name", "reruns"),
    [
        ("ingest", 5),
        ("ingest-again", 5),
        ("predict", 3),
        ("update", 3),
        pytest.param("predict-again", 5, marks=pytest.mark.slow),
        pytest.param("train", 5, marks=pytest.mark.slow),
    ],
)
def test_every_crash_leaves_old_or_new(
    name: str, reruns: int, case_of: Callable[[str], Case], server: ForkServer, tmp_path: Path
) -> None:
    states, problems = replay(case_of(name), server, tmp_path, reruns)
    assert states > 30
    assert list(dict.fromkeys(problems)) == []


# --- the model itself: it must lose what may be lost, or it would find nothing


def replacing(*, file_synced: bool, folder_synced: bool) -> list[Call]:
    """The calls of a file that replaces another."""
    calls = [
        Call("create", 7, 0, "new.partial", "", b""),
        Call("write", 7, 0, "new.partial", "", b"new content"),
        Call("sync", 7, 0, "new.partial", "", b"") if file_synced else None,
        Call("rename", 7, 0, "new.partial", "file", b""),
        Call("sync", 1, 0, ".", "", b"") if folder_synced else None,
    ]
    return [call for call in calls if call is not None]


def found(folder: Path, calls: list[Call]) -> tuple[set[bytes | None], set[bytes | None]]:
    """What the file may hold after a crash at any moment, and after one at the end."""
    (folder / "file").write_bytes(b"old")
    states = list(crash_states(Disk(folder), calls))
    return {files.get("file") for _, files in states}, {files.get("file") for at, files in states if at == len(calls)}


def test_with_both_syncs_only_old_or_new(tmp_path: Path) -> None:
    ever, at_the_end = found(tmp_path, replacing(file_synced=True, folder_synced=True))
    assert ever == {b"old", b"new content"}
    assert at_the_end == {b"new content"}


def test_without_the_sync_of_the_file_it_may_be_empty_or_torn(tmp_path: Path) -> None:
    ever, _ = found(tmp_path, replacing(file_synced=False, folder_synced=True))
    assert {b"", b"\0" * 11} <= ever


def test_without_the_sync_of_the_folder_the_old_one_may_come_back(tmp_path: Path) -> None:
    _, at_the_end = found(tmp_path, replacing(file_synced=True, folder_synced=False))
    assert at_the_end == {b"old", b"new content"}
