"""Bad input: one line each, with the file and the reason."""

from __future__ import annotations

import gzip
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cropstar.errors import CropstarError, InputError, UsageError
from cropstar.sources.catalogue import SOURCES
from cropstar.sources.request import Request
from cropstar.sources.ucr import lines, open_ucr, scene
from tests.sources.ucr.archives import HEADER, a_pair, ts, write_pair, write_text

Cli = Callable[..., "subprocess.CompletedProcess[str]"]
GOOD = "1\t0.5\t1.5\n2\t0.1\t0.2\n"
GOOD_TS = ts(["a", "b"], [np.ones((2, 2)), np.zeros((2, 2))])
HEAD = HEADER.format(univariate="true", classes="a b")


def refusal(path: Path, kind: type[CropstarError] = InputError) -> str:
    with pytest.raises(CropstarError) as caught:
        open_ucr(path)
    assert isinstance(caught.value, kind)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "no series in"),
        ("\n\n", "no series in"),
        ("1\t0.5\t1.5\n2\t0.1\n", "lines of different length"),
        ("1\t0.5\t1.5\n2\t0.1\t0.2\t3\n", "line 2 has 3 values, the first has 2"),
        ("1\t0.5\t1.5\n2\t0.1\tcloud\n", "'cloud' in line 2"),
        ("1\t0.5\t1_0\n", "'1_0' in line 1"),
        ("label\tt1\tt2\n1\t0.5\t0.7\n", "text among the numbers"),
        ("1\n2\n", "not a label and its values"),
        ("1,0.5,0.7\n", "not a label and its values"),
        ("\t0.5\t0.7\n", "no label"),
        ("1\t1e300\t0\n", "an infinite value"),
        ("1\tinf\t0\n", "an infinite value"),
        ("1\tNaN\tNaN\n", "no series in"),
        ("1\t\0\t0\n", "zero bytes"),
    ],
)
def test_tab_separated(tmp_path: Path, text: str, expected: str) -> None:
    train = write_pair(tmp_path, text, GOOD)
    assert expected in refusal(train)
    assert str(train) in refusal(train)
    write_pair(tmp_path, GOOD, text)
    assert "Small_TEST.tsv" in refusal(train)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "there is no @data"),
        (HEAD.replace("@data\n", ""), "there is no @data"),
        (HEAD, "no series in"),
        ("1,2:a\n", "line 1 comes before @data"),
        (HEAD + "1,2:c\n", "a label that the header does not name"),
        (HEAD + "1,x:a\n", "'x' in line 8"),
        (HEAD + "1,2:a\n1,2:3,4:b\n", "dimensions that do not fit"),
        (HEAD + "1,2:3:a\n", "dimensions of different length"),
        (HEAD + "1,2\n", "dimensions that do not fit"),
        (HEAD + "1,2:?\n", "no label"),
        (HEAD + "?,?:a\n", "no series in"),
        (HEAD.replace("true a b", "false") + "1,2:0.5\n", "series without classes"),
        (HEAD.replace("@timeStamps false", "@timeStamps True") + "(0,1),(1,2):a\n", "series with time stamps"),
    ],
)
def test_ts(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in refusal(write_pair(tmp_path, text, GOOD_TS, ending=".ts"))


def test_parts_of_different_dimensions(tmp_path: Path) -> None:
    train = write_pair(tmp_path, HEAD + "1,2:a\n", GOOD_TS, ending=".ts")
    assert "the parts do not fit" in refusal(train)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.95])
def test_truncated_gzip(tmp_path: Path, share: float) -> None:
    train = a_pair(tmp_path, ".tsv.gz", train=200)
    whole = train.read_bytes()
    train.write_bytes(whole[: int(len(whole) * share)])
    assert "damaged gzip file" in refusal(train)
    broken = bytearray(whole)
    broken[len(whole) // 2] ^= 0xFF
    train.write_bytes(broken)
    assert str(train) in refusal(train)


def test_gzip_of_something_else_and_bytes_that_are_no_text(tmp_path: Path) -> None:
    train = a_pair(tmp_path)
    train.write_bytes(gzip.compress(b"\xff\xfe\x00"))
    assert "not a text in UTF-8" in refusal(train)
    train.write_bytes(b"\x1f\x8bnot gzip at all")
    assert "damaged gzip file" in refusal(train)


def test_what_unpacks_without_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = a_pair(tmp_path, ".tsv.gz")
    train.write_bytes(gzip.compress(b"1\t" + b"0\t" * 10**6 + b"0\n"))
    monkeypatch.setattr(lines, "LONGEST_LINE", 10**5)
    assert "too large a text" in refusal(train)
    monkeypatch.undo()
    monkeypatch.setattr(lines, "MOST_BYTES", 10**5)
    assert "too large a text" in refusal(train)
    monkeypatch.undo()
    monkeypatch.setattr(scene, "MOST_BYTES", 10**5)
    assert "too large a data set" in refusal(train)


def test_too_many_classes(tmp_path: Path) -> None:
    text = "".join(f"{number}\t1\t2\n" for number in range(300))
    assert "too many classes" in refusal(write_pair(tmp_path, text, GOOD))


def test_which_files(tmp_path: Path) -> None:
    assert "there is no NAME_TRAIN" in refusal(tmp_path)
    train = write_pair(tmp_path, GOOD, GOOD)
    (tmp_path / "Small_TEST.tsv").unlink()
    for path in (tmp_path, train):
        assert "the test part is missing" in refusal(path)
        assert "there is no Small_TEST.tsv beside it" in refusal(path)
    write_pair(tmp_path, GOOD, GOOD, name="Other")
    assert "there is Other.tsv, Small.tsv" in refusal(tmp_path, UsageError)
    assert "does not say train or test" in refusal(write_text(tmp_path / "Small.tsv", GOOD))
    assert "no such file" in refusal(tmp_path / "absent_TRAIN.tsv")


def test_through_the_command_line(run_cli: Cli, tmp_path: Path) -> None:
    train = a_pair(tmp_path, ".tsv.gz")
    train.write_bytes(train.read_bytes()[:60])
    answer = run_cli("ingest", train.name, "-o", "store", cwd=tmp_path)
    assert answer.returncode == 3
    (line,) = answer.stderr.splitlines()
    assert line.startswith("error: damaged gzip file in ")
    assert not (tmp_path / "store").exists()
    with pytest.raises(UsageError, match="--year is not for the source 'ucr'"):
        SOURCES["ucr"](Request(train, special={"year": 2017}))
