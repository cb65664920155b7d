"""`cropstar bench` on data sets that the tests write, and on the real ones where they are at hand."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from cropstar.cli.bench import bench
from cropstar.errors import InputError, MismatchError, UsageError
from tests.cli.invoking import InProcess

SMALL = ["--layers", "1", "--hidden", "4", "--epochs", "1", "--quiet", "--device", "cpu"]


def ran(runs: Path, *arguments: str | Path) -> dict[str, Any]:
    answer = CliRunner().invoke(bench, [*map(str, arguments), "--runs", str(runs)], obj={})
    assert answer.exit_code == 0, answer.exception
    (file,) = runs.glob("*/*/result.json")
    read: dict[str, Any] = json.loads(file.read_text())
    return read


refusal = InProcess(bench).refusal


def write_clips(folder: Path) -> Path:
    random = np.random.default_rng(0)
    names = ["Swiping Left", "Thumb Up"]
    (folder / "20bn-jester-v1").mkdir(parents=True)
    (folder / "jester-v1-labels.csv").write_text("\n".join(names) + "\n")
    for part, clips in (("train", range(1, 8)), ("validation", range(8, 11))):
        (folder / f"jester-v1-{part}.csv").write_text("".join(f"{clip};{names[clip % 2]}\n" for clip in clips))
        for clip in clips:
            frames = folder / "20bn-jester-v1" / str(clip)
            frames.mkdir()
            for number in range(1, 4):
                pixels = random.integers(0, 256, (12, 16, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(frames / f"{number:05d}.jpg")
    return folder


CLIPS = [*SMALL, "--batch", "4", "--set", "task.frames=2", "--set", "task.size=8"]


def test_clips_of_frames(tmp_path: Path) -> None:
    data = write_clips(tmp_path / "jester")
    result = ran(tmp_path / "runs", "jester", "--data", data, *CLIPS)
    assert result["value"] in (0, pytest.approx(1 / 3), pytest.approx(2 / 3), 1)
    assert result["model"]["head"] == "video"
    failure = refusal("jester", "--data", data, *CLIPS, "--set", "model.head=pixel", "--runs", tmp_path / "none")
    assert isinstance(failure, UsageError)
    assert "model.head=video" in str(failure)
    for frame in (data / "20bn-jester-v1" / "9").iterdir():  # of the test part
        frame.unlink()
    failure = refusal("jester", "--data", data, *CLIPS, "--runs", tmp_path / "more")
    assert isinstance(failure, InputError)
    assert "a clip without frames" in str(failure)
    assert not (tmp_path / "more").exists()  # said before anything is trained


def test_music_of_notes(tmp_path: Path) -> None:
    random = np.random.default_rng(0)

    def pieces(count: int) -> list[list[list[int]]]:
        return [
            [sorted({*map(int, random.integers(21, 109, 3))}) for _ in range(int(random.integers(2, 9)))]
            for _ in range(count)
        ]

    file = tmp_path / "jsb.pickle"
    file.write_bytes(pickle.dumps({"train": pieces(6), "valid": pieces(2), "test": pieces(2)}, protocol=2))
    result = ran(tmp_path / "runs", "jsb", "--data", file, *SMALL)
    folder = Path(result["run"])
    assert result["value"] == pytest.approx(88 * math.log(2), rel=0.5)  # it knows nothing yet
    assert result["paper"] == {"star": "8.09 to 8.13"}
    parts = pickle.loads(file.read_bytes())
    parts["valid"].insert(0, parts["train"].pop())  # the same frames in the same order, in other parts
    file.write_bytes(pickle.dumps(parts, protocol=2))
    (folder / "result.json").unlink()
    assert isinstance(refusal("--resume", folder), MismatchError)


def test_series_of_the_archive(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for part, count in (("TRAIN", 40), ("TEST", 30)):
        labels = random.integers(1, 3, count)
        values = random.normal(size=(count, 8)) + 6 * (labels[:, None] == 2)
        lines = ("\t".join([str(label), *map(str, row)]) for label, row in zip(labels, values, strict=True))
        (tmp_path / f"Made_{part}.tsv").write_text("\n".join(lines) + "\n")
    options = ["--batch", "4", "--epochs", "8", "--learning-rate", "0.05"]
    result = ran(tmp_path / "runs", "ucr", "--data", tmp_path, *SMALL, *options)
    assert result["value"] > 0.9  # as far apart as that, anyone tells them
    assert result["paper"] == {}


@pytest.mark.slow
def test_crops_are_the_ordinary_training(small_store: Path, tmp_path: Path) -> None:
    options = ["--set", "split.name=null", "--set", "patch=12", "--batch", "16"]
    result = ran(tmp_path, "tum-pixel", "--data", small_store, *SMALL, *options)
    assert result["test"]["unit"] == "pixel"
    assert (tmp_path / "tum-pixel" / result["run"] / "report.html").is_file()


CHARACTERS = ["--batch", "8", "--set", "optimiser.warmup=1"]
CHARACTERS += ["--set", "task.limit=20000", "--set", "task.held_out_limit=2000"]


@pytest.mark.parametrize(
    ("task", "folder", "options", "at_most"),
    [
        ("jsb", "music", ["--learning-rate", "0.2"], 20.0),
        pytest.param("piano", "music", ["--learning-rate", "0.2"], 20.0, marks=pytest.mark.slow),
        ("ptb", "ptb", ["--learning-rate", "0.1", *CHARACTERS], 4.8),
    ],
)
def test_the_real_ones(
    task: str, folder: str, options: list[str], at_most: float, real_data: Path, tmp_path: Path
) -> None:
    """What no memory is needed for is learnt in one epoch: which notes and which letters are rare."""
    result = ran(tmp_path, task, "--data", real_data / folder, *SMALL, *options)
    assert 0 < result["value"] < at_most
