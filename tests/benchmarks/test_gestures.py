"""Jester's clips: parts, frames from real JPEG files, and damaged lists and folders."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from cropstar.benchmarks.tasks.gestures import Clips, read_clips
from cropstar.errors import InputError, UsageError

NAMES = ("Swiping Left", "Doing other things", "No gesture")
REMEDY = r"get 20BN-Jester.*jester-v1-\{train,validation,labels\}\.csv"


def jpeg(level: int = 128, width: int = 176, height: int = 100, mode: str = "RGB") -> bytes:
    stream = io.BytesIO()
    channels: dict[str, int | tuple[int, ...]] = {"L": level, "RGB": (level,) * 3, "CMYK": (0, 0, 0, 255 - level)}
    Image.new(mode, (width, height), channels[mode]).save(stream, "JPEG", quality=95)
    return stream.getvalue()


def write_clip(folder: Path, levels: list[int]) -> None:
    """A clip of plain frames, each of one grey."""
    folder.mkdir(parents=True)
    for number, level in enumerate(levels, start=1):
        (folder / f"{number:05}.jpg").write_bytes(jpeg(level))


def write_lists(folder: Path, train: int = 20, validation: int = 5, root: str = "20bn-jester-v1") -> None:
    """Lists of clips, with folders that are empty."""
    (folder / "jester-v1-labels.csv").write_text("".join(f"{name}\n" for name in NAMES))
    first = 1
    for part, count in (("train", train), ("validation", validation), ("test", 3)):
        ids = range(first, first + count)
        lines = [f"{clip}" if part == "test" else f"{clip};{NAMES[clip % 3]}" for clip in ids]
        (folder / f"jester-v1-{part}.csv").write_text("".join(f"{line}\n" for line in lines))
        for clip in ids:
            (folder / root / str(clip)).mkdir(parents=True)
        first += count


def one_clip(folder: Path) -> Clips:
    return Clips(folder, ("7",), np.array([0]), NAMES)


def test_parts_without_labels_of_the_test_clips(tmp_path: Path) -> None:
    write_lists(tmp_path)
    parts = {part: read_clips(tmp_path, part) for part in ("train", "validation", "test")}
    assert [len(clips) for clips in parts.values()] == [18, 2, 5]
    assert set(parts["train"].identifiers) | set(parts["validation"].identifiers) == set(map(str, range(1, 21)))
    assert parts["test"].identifiers == ("21", "22", "23", "24", "25")
    # Fixed for good: figures of one version are compared with those of the next.
    assert parts["validation"].identifiers == ("6", "18")
    for clips in parts.values():
        assert clips.names == NAMES
        assert clips.labels.dtype == np.int64
        assert clips.labels.tolist() == [int(clip) % 3 for clip in clips.identifiers]
    (tmp_path / "jester-v1-test.csv").unlink()
    assert read_clips(tmp_path, "validation").identifiers == parts["validation"].identifiers


def test_parts_with_labels_of_the_test_clips(tmp_path: Path) -> None:
    write_lists(tmp_path, root=".")  # and the numbered folders beside the lists
    (tmp_path / "jester-v1-test.csv").write_text("\n".join(f"{clip};No gesture" for clip in (26, 27, 28)))
    assert [len(read_clips(tmp_path, part)) for part in ("train", "validation", "test")] == [20, 5, 3]
    assert read_clips(tmp_path, "test").labels.tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    ("there", "count", "chosen"),
    [
        (4, 4, [1, 2, 3, 4]),
        (9, 3, [2, 5, 8]),
        (10, 2, [3, 8]),
        (2, 5, [1, 1, 2, 2, 2]),
        (1, 3, [1, 1, 1]),
        (5, 1, [3]),
    ],
)
def test_frames_are_evenly_spaced(there: int, count: int, chosen: list[int], tmp_path: Path) -> None:
    write_clip(tmp_path / "7", [20 * number for number in range(1, there + 1)])
    frames = one_clip(tmp_path).frames(0, count, 16)
    assert frames.shape == (count, 3, 16, 16)
    assert frames.dtype == np.uint8
    assert (frames.mean(axis=(1, 2, 3)) / 20).round().tolist() == chosen


def test_the_usual_size(tmp_path: Path) -> None:
    write_lists(tmp_path, train=2, validation=1)
    (clip,) = (tmp_path / "20bn-jester-v1").glob("3")
    clip.rmdir()
    write_clip(clip, list(range(0, 200, 10)))
    clips: Clips = pickle.loads(pickle.dumps(read_clips(tmp_path, "test")))  # as a worker gets it
    assert clips.frames(0).shape == (32, 3, 112, 112)


def test_frames_come_in_the_order_of_numbers_with_gaps(tmp_path: Path) -> None:
    folder = tmp_path / "7"
    folder.mkdir()
    for number, name in enumerate(("2.jpg", "00010.JPG", "00100.jpeg", "1000.jpg"), start=1):
        (folder / name).write_bytes(jpeg(40 * number))
    (folder / "thumbnail.jpg").write_bytes(b"no frame")
    (folder / "00003.txt").write_bytes(b"no frame")
    means = one_clip(tmp_path).frames(0, 4, 8).mean(axis=(1, 2, 3))
    assert (means / 40).round().tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("upright", [False, True])
def test_a_frame_is_scaled_and_then_cut(upright: bool, tmp_path: Path) -> None:
    shape = (120, 40, 3) if upright else (40, 120, 3)
    (tmp_path / "7").mkdir()
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))
    noise.save(tmp_path / "7" / "00001.jpg", quality=95)
    with Image.open(tmp_path / "7" / "00001.jpg") as stored:
        whole = stored.resize((20, 60) if upright else (60, 20), Image.Resampling.BILINEAR)
    middle = whole.crop((0, 20, 20, 40) if upright else (20, 0, 40, 20))
    (frame,) = one_clip(tmp_path).frames(0, 1, 20)
    np.testing.assert_array_equal(frame.transpose(1, 2, 0), np.asarray(middle))


@settings(max_examples=15)
@given(width=st.integers(1, 300), height=st.integers(1, 300), size=st.integers(1, 130), data=st.data())
def test_any_shape_fits(
    width: int, height: int, size: int, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("clips")
    (folder / "7").mkdir()
    mode = data.draw(st.sampled_from(["RGB", "L", "CMYK"]))
    (folder / "7" / "1.jpg").write_bytes(jpeg(90, width, height, mode))
    frames = one_clip(folder).frames(0, 2, size)
    assert frames.shape == (2, 3, size, size)
    assert np.abs(frames.astype(int) - 90).max() <= 3


@settings(max_examples=60)
@given(places=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=5))
def test_changed_bytes_end_in_one_line(places: list[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory) -> None:
    content = bytearray(jpeg(width=24, height=16))
    for place, value in places:
        content[place % len(content)] = value
    folder = tmp_path_factory.mktemp("clips")
    (folder / "7").mkdir()
    (folder / "7" / "1.jpg").write_bytes(content)
    with contextlib.suppress(InputError):  # changed pixels are still pixels
        assert one_clip(folder).frames(0, 1, 8).shape == (1, 3, 8, 8)


def claims_size(width: int, height: int) -> bytes:
    content = jpeg()
    place = content.index(b"\xff\xc0") + 5  # height and width in the frame's header
    return content[:place] + height.to_bytes(2, "big") + width.to_bytes(2, "big") + content[place + 4 :]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "a broken frame"),
        (b"GIF89a" + bytes(100), "a broken frame"),
        (jpeg()[:-200], "a broken frame"),
        (jpeg()[:300], "a broken frame"),
        (claims_size(65_500, 65_500), "exceeds limit"),
        (claims_size(176, 0), "a broken frame"),
    ],
)
def test_bad_frames(content: bytes, reason: str, tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    (tmp_path / "7").mkdir()
    file = tmp_path / "7" / "00001.jpg"
    file.write_bytes(content)
    with pytest.raises(InputError) as caught:
        one_clip(tmp_path).frames(0, 2, 8)
    assert reason in str(caught.value)
    assert str(file) in str(caught.value)
    assert len(recwarn) == 0


def test_clips_without_frames(tmp_path: Path) -> None:
    for missing in (tmp_path / "absent", tmp_path / "7", tmp_path / "7" / "thumbnail.jpg"):
        if missing.name != "absent":
            missing.touch() if missing.suffix else missing.mkdir()
        with pytest.raises(InputError, match=r"a clip without frames in .*7"):
            one_clip(tmp_path).frames(0)
    os.mkfifo(tmp_path / "7" / "00001.jpg")  # reading it would never end
    with pytest.raises(InputError, match="pipe or device"):
        one_clip(tmp_path).frames(0)


def _set(name: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / f"jester-v1-{name}.csv").write_text(text)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda folder: (folder / "jester-v1-train.csv").unlink(), rf"train\.csv is missing; {REMEDY}"),
        (lambda folder: (folder / "jester-v1-labels.csv").unlink(), rf"labels\.csv is missing; {REMEDY}"),
        (lambda folder: (folder / "20bn-jester-v1" / "4").rmdir(), "1 of 18 are missing, the first is 4"),
        (lambda folder: (folder / "20bn-jester-v1").rename(folder / "clips"), "18 of 18 are missing"),
        (_set("train", ""), r"empty list of clips in .*train\.csv"),
        (_set("validation", "\n"), r"empty list of clips in .*validation\.csv"),
        (_set("labels", ""), r"not a list of classes in .*labels\.csv"),
        (_set("labels", "No gesture\nNo gesture\n"), "2 lines, of which 1 differ"),
        (_set("labels", "".join(f"{n}\n" for n in range(256))), "256 lines"),
        (_set("train", "1;No gesture\n2;Swiping Lef\n"), "line 2 is not a new id and a known label: '2;Swiping Lef'"),
        (_set("train", "1;No gesture\n1;No gesture\n"), "line 2 is not a new id"),
        (_set("train", "1;No gesture\n25;No gesture\n"), "clip 25 is in the lists of train and validation"),
        (_set("train", "1;No gesture\n"), "none are left for 'train'"),
        (_set("train", "../7;No gesture\n"), "line 1 is not a new id"),
        (_set("train", "1,No gesture\n"), "line 1 is not a new id"),
        (_set("train", "1;\n"), "line 1 is not a new id"),
        (_set("test", "26;No gesture\n27\n"), "line 2 is not a new id"),
    ],
)
def test_bad_lists(spoil: Callable[[Path], object], reason: str, tmp_path: Path) -> None:
    write_lists(tmp_path)
    assert len(read_clips(tmp_path, "train")) == 18
    spoil(tmp_path)
    with pytest.raises(InputError, match=reason):
        read_clips(tmp_path, "train")


def test_missing_data(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(InputError, match=REMEDY):
            read_clips(folder, "train")
    with pytest.raises(UsageError, match="known: train, validation, test"):
        read_clips(tmp_path, "valid")
