"""Every expected failure: one line, its exit code, and the built-in that it stands for."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cropstar.errors import (
    ArtifactError,
    CropstarError,
    InputError,
    Interrupted,
    MismatchError,
    PartialResult,
    ResourceError,
    UsageError,
    expected_error,
    from_os_error,
)

KINDS: list[tuple[type[CropstarError], int, type[Exception]]] = [
    (CropstarError, 1, Exception),
    (UsageError, 2, ValueError),
    (InputError, 3, ValueError),
    (ArtifactError, 4, RuntimeError),
    (MismatchError, 5, ValueError),
    (ResourceError, 6, RuntimeError),
    (PartialResult, 7, RuntimeError),
]


@pytest.mark.parametrize(("kind", "code", "base"), KINDS)
def test_each_kind_has_its_code_and_base(kind: type[CropstarError], code: int, base: type[Exception]) -> None:
    error = kind("it failed")
    assert error.exit_code == code
    assert isinstance(error, base)
    assert isinstance(error, CropstarError)


def test_the_line_has_all_parts_in_order() -> None:
    error = InputError("no data", path=Path("a/tile.tif"), why="empty", remedy="get the file again")
    assert str(error) == "no data in a/tile.tif: empty; get the file again"
    assert str(InputError("no data", remedy="look")) == "no data; look"
    assert str(InputError("no data")) == "no data"


@given(*[st.text()] * 4)
def test_the_message_is_one_line_whatever_went_in(what: str, path: str, why: str, remedy: str) -> None:
    text = str(CropstarError(what, path=path, why=why, remedy=remedy))
    assert len(text.splitlines()) <= 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_have_the_codes_of_the_shell(number: int, code: int) -> None:
    error = Interrupted(number, "epoch 3 is saved")
    assert error.exit_code == code
    assert "epoch 3 is saved" in str(error)


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, ResourceError),
        (errno.EDQUOT, ResourceError),
        (errno.EACCES, InputError),
        (errno.EROFS, ResourceError),
        (errno.EIO, ResourceError),
        (errno.EMFILE, ResourceError),
        (errno.EFBIG, ResourceError),
        (errno.ENOENT, InputError),
        (errno.EISDIR, InputError),
    ],
)
def test_the_operating_system_in_our_words(number: int, kind: type[CropstarError]) -> None:
    error = from_os_error(OSError(number, os.strerror(number), "place/file"))
    assert type(error) is kind
    assert "place/file" in str(error)
    assert os.strerror(number) in str(error)
    assert error.remedy


def test_a_real_failure_of_the_system_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file") as caught:
        (tmp_path / "absent").read_bytes()
    assert str(from_os_error(caught.value)).startswith(f"cannot read or write in {tmp_path / 'absent'}: No such file")


def test_an_error_without_number_or_name_still_speaks() -> None:
    assert "the disk sighed" in str(from_os_error(OSError("the disk sighed")))


def test_control_characters_of_a_name_do_nothing() -> None:
    line = str(InputError("unreadable", path=Path("a\x1b[31m\nerror: b\udcff.tif"), why="tab\there"))
    assert "\x1b" not in line
    assert "\n" not in line
    assert line == "unreadable in a\\x1b[31m error: b\\udcff.tif: tab here"


def test_a_library_that_finds_no_memory_is_no_bug() -> None:
    failure = ImportError("libtorch_cpu.so: failed to map segment from shared object")
    assert isinstance(expected_error(failure), ResourceError)
