"""The Penn Treebank: words and spelt-out characters are the same text, and what is damaged is refused."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cropstar.benchmarks.penn import read_penn
from cropstar.errors import InputError

Folder = pytest.TempPathFactory
WORDS = st.sampled_from(["<unk>", "N", "n't", "mr.", "a", "hydro-quebec", "$", "1\\/2"])
LINES = st.lists(st.lists(WORDS, min_size=1, max_size=5), min_size=1, max_size=4)


def as_words(lines: list[list[str]]) -> bytes:
    return "".join(f" {' '.join(words)} \n" for words in lines).encode()


def spelt_out(lines: list[list[str]]) -> bytes:
    return "".join(" ".join("_".join(words)) + "\n" for words in lines).encode()


def write(folder: Path, **contents: bytes) -> None:
    for word in ("train", "valid", "test"):
        (folder / f"ptb.{word}.txt").write_bytes(contents.get(word, b" the <unk> \n"))


def decoded(folder: Path, part: str) -> str:
    codes, alphabet = read_penn(folder)
    return "".join(alphabet[code] for code in codes[part])


@settings(max_examples=25)
@given(lines=LINES, zipped=st.booleans(), spelt=st.booleans())
def test_words_and_characters_are_one_text(
    lines: list[list[str]], zipped: bool, spelt: bool, tmp_path_factory: Folder
) -> None:
    folder = tmp_path_factory.mktemp("penn")
    style, content = ("ptb.char", spelt_out(lines)) if spelt else ("ptb", as_words(lines))
    for word in ("train", "valid", "test"):
        name = f"{style}.{word}.txt" + ".gz" * zipped
        (folder / name).write_bytes(gzip.compress(content) if zipped else content)
    text = "".join(f"{' '.join(words)}\n" for words in lines)
    codes, alphabet = read_penn(folder)
    assert list(codes) == ["train", "validation", "test"]
    assert alphabet == tuple(sorted(set(text)))
    for part in codes.values():
        assert part.dtype == np.uint8
        assert "".join(alphabet[code] for code in part) == text


def test_the_alphabet_is_that_of_training(tmp_path: Path) -> None:
    write(tmp_path, train=b" b a c \n", valid=b" a \n", test=b" c c \n")
    codes, alphabet = read_penn(tmp_path)
    assert alphabet == ("\n", " ", "a", "b", "c")
    assert codes["validation"].tolist() == [2, 0]
    assert codes["test"].tolist() == [4, 1, 4, 0]


@pytest.mark.parametrize("strange", ["z", "!", "€"])  # after the alphabet, before it, and beyond a byte
def test_an_unknown_character_is_named(strange: str, tmp_path: Path) -> None:
    write(tmp_path, test=f" the {strange} \n".encode())
    with pytest.raises(InputError) as caught:
        read_penn(tmp_path)
    assert f"'{strange}' does not occur in ptb.train.txt" in str(caught.value)
    assert str(tmp_path / "ptb.test.txt") in str(caught.value)


def test_blank_lines_and_foreign_line_ends(tmp_path: Path) -> None:
    write(tmp_path, train=b" the <unk> \r\n\r\n \t \n the\n")
    assert decoded(tmp_path, "train") == "the <unk>\nthe\n"


def test_words_go_before_characters(tmp_path: Path) -> None:
    for word in ("train", "valid", "test"):
        (tmp_path / f"ptb.char.{word}.txt").write_bytes(b"c _ c\n")
    assert decoded(tmp_path, "train") == "c c\n"
    (tmp_path / "ptb.train.txt").write_bytes(b" w \n")
    assert decoded(tmp_path, "train") == "c c\n"  # never some parts of one and some of the other
    write(tmp_path)
    assert decoded(tmp_path, "train") == "the <unk>\n"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "an empty text"),
        (b"\n \n", "an empty text"),
        (gzip.compress(b" the \n" * 100, mtime=0)[:-12], "damaged gzip"),
        (gzip.compress(b" the \n" * 100, mtime=0)[:-8] + bytes(8), "damaged gzip"),
        (b"\xff\xfe t h e \n", "UTF-8"),
        (b"the \0 \n", "zero bytes"),
        (b"a" * (2**20 + 1), "line 1 is endless"),
        ("".join(map(chr, range(0x4E00, 0x4F10))).encode(), "273 different characters"),
    ],
)
def test_bad_files(content: bytes, reason: str, tmp_path: Path) -> None:
    write(tmp_path, train=content)
    with pytest.raises(InputError) as caught:
        read_penn(tmp_path)
    assert reason in str(caught.value)
    assert str(tmp_path / "ptb.train.txt") in str(caught.value)


def test_bombs_are_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cropstar.benchmarks.penn.MAXIMUM_CHARACTERS", 1000)
    write(tmp_path, train=gzip.compress(b" the \n" * 2**20))
    with pytest.raises(InputError, match="more than 1,000 characters"):
        read_penn(tmp_path)


def test_missing_files(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(InputError, match=r"put ptb\.train\.txt.*Mikolov"):
            read_penn(folder)
    write(tmp_path)
    (tmp_path / "ptb.test.txt").unlink()
    with pytest.raises(InputError, match=r"ptb\.test\.txt is missing"):
        read_penn(tmp_path)
    with pytest.raises(InputError, match="no folder"):
        read_penn(tmp_path / "ptb.train.txt")
    (tmp_path / "ptb.test.txt").mkdir()
    with pytest.raises(InputError, match="it is a folder"):
        read_penn(tmp_path)


def test_a_text_that_is_not_spelt_out(tmp_path: Path) -> None:
    for word in ("train", "valid", "test"):
        (tmp_path / f"ptb.char.{word}.txt").write_bytes(b"a _ b\nmr. vinken\n")
    with pytest.raises(InputError, match="'vinken' in line 2"):
        read_penn(tmp_path)


def test_real_text(real_data: Path) -> None:
    codes, alphabet = read_penn(real_data / "ptb")
    assert {part: len(code) for part, code in codes.items()} == {
        "train": 5_017_482,
        "validation": 393_042,
        "test": 442_423,
    }
    assert "".join(alphabet) == "\n #$&'*-./0123456789<>N\\abcdefghijklmnopqrstuvwxyz"
    start = "".join(alphabet[code] for code in codes["test"][:32])
    assert start == "no it was n't black monday\nbut w"
