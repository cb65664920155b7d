"""Files that are whole or not there, and folders with one writer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cropstar.errors import ArtifactError
from cropstar.store.files import atomic_path, locked, sweep, write_json, write_text

HOLD = """
import sys
from pathlib import Path
from cropstar.store.files import locked
with locked(Path(sys.argv[1]), "the store"):
    sys.stdout.write("held\\n")
    sys.stdout.flush()
    sys.stdin.read()
"""


class Stumble(Exception):
    """What goes wrong in the middle of writing."""


def write_half(final: Path) -> None:
    with atomic_path(final) as partial:
        partial.write_text("half")
        assert partial.parent == final.parent  # the rename stays on one disk
        raise Stumble


def test_success_makes_and_replaces(tmp_path: Path) -> None:
    final = tmp_path / "new" / "folder" / "file.txt"
    write_text(final, "first")
    assert final.read_text() == "first"
    write_text(final, "second ü")
    assert final.read_text(encoding="utf-8") == "second ü"
    assert [path.name for path in final.parent.iterdir()] == ["file.txt"]


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    final = tmp_path / "file.txt"
    final.write_text("old")
    with pytest.raises(Stumble):
        write_half(final)
    assert final.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["file.txt"]


def test_a_failure_leaves_nothing_where_nothing_was(tmp_path: Path) -> None:
    with pytest.raises(Stumble):
        write_half(tmp_path / "file.txt")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_seen_before_the_end(tmp_path: Path) -> None:
    final = tmp_path / "file.txt"
    with atomic_path(final) as partial:
        partial.write_text("whole")
        assert not final.exists()
        assert partial.name.startswith(".")
    assert final.exists()


def test_two_writers_of_one_file_do_not_meet(tmp_path: Path) -> None:
    final = tmp_path / "file.txt"
    with atomic_path(final) as one:
        with atomic_path(final) as two:
            assert one != two
            one.write_text("one")
            two.write_text("two")
        assert final.read_text() == "two"
    assert final.read_text() == "one"


def test_a_folder_in_the_way_is_not_harmed(tmp_path: Path) -> None:
    final = tmp_path / "file.txt"
    final.mkdir()
    with pytest.raises(OSError, match="directory"):
        write_text(final, "text")
    assert [path.name for path in tmp_path.iterdir()] == ["file.txt"]
    assert final.is_dir()


def test_json_is_stable_and_never_holds_nan(tmp_path: Path) -> None:
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    write_json(one, {"b": [1, 2.5], "a": "ü"})
    write_json(two, {"a": "ü", "b": [1, 2.5]})
    assert one.read_bytes() == two.read_bytes()
    assert json.loads(one.read_text(encoding="utf-8")) == {"a": "ü", "b": [1, 2.5]}
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(one, {"a": float("nan")})
    assert one.read_bytes() == two.read_bytes()


def test_sweeping_takes_only_what_killed_writers_left(tmp_path: Path) -> None:
    for name in (".tile.h5.0a1b2c3d.partial", ".manifest.json.99.partial"):
        (tmp_path / name).write_text("half")
    kept = [".lock", "tile.h5", "mine.partial", ".hidden"]
    for name in kept:
        (tmp_path / name).write_text("whole")
    assert sweep(tmp_path) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)
    assert sweep(tmp_path) == 0
    assert sweep(tmp_path / "absent") == 0


def test_a_killed_writer_leaves_the_old_file_and_one_partial(tmp_path: Path) -> None:
    final = tmp_path / "file.txt"
    final.write_text("old")
    code = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom cropstar.store.files import atomic_path\n"
        "with atomic_path(Path(sys.argv[1])) as partial:\n"
        "    partial.write_text('half')\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, final], check=False).returncode == -signal.SIGKILL
    assert final.read_text() == "old"
    assert sweep(tmp_path) == 1
    assert list(tmp_path.iterdir()) == [final]


def test_the_next_writer_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    final, other = tmp_path / "map.tif", tmp_path / "other.tif"
    code = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom cropstar.store.files import atomic_path\n"
        "with atomic_path(Path(sys.argv[1])) as partial:\n"
        "    partial.write_text('half')\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    for path in (final, other):
        subprocess.run([sys.executable, "-c", code, path], check=False)
    with atomic_path(final) as mine:  # of a living process: left alone by the writer inside
        mine.write_text("mine")
        with atomic_path(final) as second:
            second.write_text("second")
            left = [path for path in tmp_path.iterdir() if path not in (mine, second)]
            assert len(left) == 1
            assert left[0].name.startswith(".other.tif.")
    assert final.read_text() == "mine"


def test_a_folder_has_one_writer(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(ArtifactError, match="the store is locked") as caught, locked(tmp_path, "the store"):
            pass
        assert caught.value.exit_code == 4
        os.kill(other.pid, signal.SIGKILL)
        other.wait(timeout=30)
    with locked(tmp_path, "the store"):  # a killed writer frees it
        assert (tmp_path / ".lock").exists()


def test_a_lock_is_given_back(tmp_path: Path) -> None:
    with pytest.raises(Stumble), locked(tmp_path / "new", "the run"):
        raise Stumble
    again = locked(tmp_path / "new", "the run")
    with locked(tmp_path / "new", "the run"), pytest.raises(ArtifactError, match="the run is locked"), again:
        pass
