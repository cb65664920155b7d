"""The Penn Treebank: its files, its rows of text, and the state carried along them."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from cropstar.benchmarks.tasks.base import BITS
from cropstar.benchmarks.tasks.penn import Streams, TextModel, TextObjective, read_penn
from cropstar.config import ModelConfig
from cropstar.datasets.batches import Batch
from cropstar.errors import InputError
from cropstar.models.contract import Shape
from cropstar.models.zoo import build_model
from cropstar.training.optimisation import cut

# --- files

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
        (gzip.compress(b" the \n" * 100, mtime=0)[:-12], "not a text in UTF-8, or damaged"),
        (gzip.compress(b" the \n" * 100, mtime=0)[:-8] + bytes(8), "not a text in UTF-8, or damaged"),
        (b"\xff\xfe t h e \n", "UTF-8"),
        ("".join(map(chr, range(0x4E00, 0x4F10))).encode(), "273 different characters"),
    ],
)
def test_bad_files(content: bytes, reason: str, tmp_path: Path) -> None:
    write(tmp_path, train=content)
    with pytest.raises(InputError) as caught:
        read_penn(tmp_path)
    assert reason in str(caught.value)
    assert str(tmp_path / "ptb.train.txt") in str(caught.value)


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


# --- rows of text

CPU = torch.device("cpu")
LETTERS = 5


def text_of(length: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.random.default_rng(length).integers(0, LETTERS, length).astype(np.uint8)


def segments(streams: Streams) -> list[Batch]:
    rows = streams.batch_size
    return [streams.batch(list(range(start, start + rows))) for start in range(0, len(streams), rows)]


def a_model(streams: Streams, name: str = "star") -> TextModel:
    torch.manual_seed(2)
    config = ModelConfig(name=name, layers=2, hidden=6, day_encoding="none")
    return TextModel(build_model(config, Shape(LETTERS, LETTERS, 10)), LETTERS, streams.batch_size, streams.row_length)


@given(st.integers(2, 200), st.integers(1, 12), st.integers(1, 40))
def test_every_character_but_the_first_is_foretold_once(length: int, rows: int, segment: int) -> None:
    codes = text_of(length)
    if length < 2 * rows:
        with pytest.raises(InputError, match="too short"):
            Streams("train", codes, rows, segment)
        return
    seen = np.zeros(length, dtype=int)
    for batch in segments(Streams("train", codes, rows, segment)):
        places = batch.days.numpy()[batch.valid.numpy()]
        assert (codes[places] == batch.x.numpy()[:, :, 0][batch.valid.numpy()]).all()
        assert (codes[places + 1] == batch.labels.numpy()[batch.valid.numpy()]).all()
        seen[places + 1] += 1
        assert batch.x.shape[1] <= segment
    assert seen.tolist() == [0, *[1] * (length - 1)]


@pytest.mark.parametrize("name", ["star", "lstm"])
def test_states_go_on_between_segments_and_begin_anew_with_the_text(name: str) -> None:
    streams = Streams("train", text_of(91), 3, 7)
    whole = Streams("train", text_of(91), 3, 1000)
    model = a_model(streams, name)
    (everything,) = segments(whole)
    with torch.no_grad():
        expected = model.by_date(everything.x, everything.valid, everything.days)
        for _ in range(2):  # the second time over, nothing of the first is left
            found = [model.by_date(batch.x, batch.valid, batch.days) for batch in segments(streams)]
            assert torch.allclose(torch.cat(found, dim=1), expected, atol=1e-6)
        cut_off = model.read(everything.x[:, 7:], everything.valid[:, 7:], everything.days[:, 7:], None)[0]
    assert (cut_off - expected[:, 7:]).abs().max() > 1e-3  # so the test above can fail


def test_micro_batches_find_their_own_rows() -> None:
    streams = Streams("train", text_of(64), 5, 4)
    one, other = a_model(streams), a_model(streams)
    with torch.no_grad():
        for batch in segments(streams):
            whole = one.by_date(batch.x, batch.valid, batch.days)
            pieces = [other.by_date(piece.x, piece.valid, piece.days) for piece in cut(batch, 2)]
            assert torch.allclose(torch.cat(pieces), whole, atol=1e-6)


def test_bits_per_character_by_hand_and_training_states_are_left_alone() -> None:
    codes = text_of(50)
    streams = Streams("validation", codes, 1, 6)
    model = a_model(streams)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    verdict = TextObjective().validate(model, streams, CPU)
    with torch.no_grad():
        x = torch.from_numpy(codes[None, :-1, None])
        scores, _ = model.read(x, torch.ones(1, 49, dtype=torch.bool), torch.zeros(1, 49), None)
        expected = functional.cross_entropy(scores[0], torch.from_numpy(codes[1:].astype(np.int64))) / math.log(2)
    assert verdict.figures[BITS.name] == pytest.approx(float(expected), rel=1e-5)
    assert verdict.score == -verdict.figures[BITS.name]
    assert before
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
