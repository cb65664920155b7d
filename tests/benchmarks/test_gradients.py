"""`cropstar gradients` through its command: files, refusals, images for input."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from cropstar.benchmarks.gradients import PICTURE, SUMMARY, TABLE
from cropstar.cli.gradients import gradients
from cropstar.errors import CropstarError, InputError, UsageError
from tests.benchmarks.digits import idx_bytes

SMALL = ["--layers", "3", "--steps", "4", "--hidden", "5", "--runs", "3", "--quiet"]


def command(*arguments: str | Path) -> Result:
    """As `main` calls it: failures come as exceptions."""
    return CliRunner().invoke(gradients, list(map(str, arguments)), obj={}, catch_exceptions=True)


def refusal(*arguments: str | Path) -> CropstarError:
    failure = command(*arguments).exception
    assert isinstance(failure, CropstarError), failure
    return failure


def test_three_files_and_a_table(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "lattice"
    answer = command("-o", folder, *SMALL)
    assert answer.exit_code == 0, answer.exception
    assert sorted(path.name for path in folder.iterdir()) == sorted([PICTURE, TABLE, SUMMARY])
    assert (folder / PICTURE).read_bytes().startswith(b"\x89PNG")
    rows = list(csv.DictReader((folder / TABLE).open()))
    assert list(rows[0]) == ["cell", "loss", "layer", "step", "mean", "spread"]
    assert len(rows) == 5 * 2 * 3 * 4
    assert len({(row["cell"], row["loss"], row["layer"], row["step"]) for row in rows}) == len(rows)
    document: dict[str, Any] = json.loads((folder / SUMMARY).read_text())
    assert document["settings"]["runs"] == 3
    assert "Frobenius" in document["definitions"]["magnitude"]
    table = {(row["cell"], row["loss"]): row for row in document["table"]}
    assert next(iter(table)) == ("rnn", "last")
    assert len(answer.stdout.splitlines()) == 1 + 10
    # The summary follows from the long table.
    mean = np.zeros((3, 4))
    for row in rows:
        if (row["cell"], row["loss"]) == ("star", "last"):
            mean[int(row["layer"]) - 1, int(row["step"]) - 1] = float(row["mean"])
    norms = np.sqrt((mean**2).sum(axis=1))
    assert table["star", "last"]["per_layer"] == pytest.approx((norms[0] / norms[2]) ** 0.5, rel=1e-6)
    assert table["star", "last"]["straight_down"] == pytest.approx((mean[0, 3] / mean[2, 3]) ** 0.5, rel=1e-6)


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    for name, seed in (("a", "5"), ("b", "5"), ("c", "6")):
        assert (
            command("-o", tmp_path / name, *SMALL, "--cells", "star", "--loss", "last", "--seed", seed).exit_code == 0
        )
    files = {name: [(tmp_path / name / part).read_bytes() for part in (PICTURE, TABLE)] for name in "abc"}
    assert files["a"] == files["b"]
    assert files["a"][1] != files["c"][1]


def test_a_cell_does_not_depend_on_its_company(tmp_path: Path) -> None:
    command("-o", tmp_path / "alone", *SMALL, "--cells", "star")
    command("-o", tmp_path / "together", *SMALL, "--cells", "gru,star")
    alone = (tmp_path / "alone" / TABLE).read_text().splitlines()[1:]
    assert alone == [row for row in (tmp_path / "together" / TABLE).read_text().splitlines() if row.startswith("star")]


def test_images_for_input(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (6, 3, 5), dtype=np.uint8)
    (tmp_path / "digits").write_bytes(idx_bytes(images))
    options = ["--hidden", "4", "--runs", "3", "--layers", "2", "--cells", "star,indrnn", "--quiet"]
    answer = command("-o", tmp_path / "out", "--data", "mnist", tmp_path / "digits", *options)
    assert answer.exit_code == 0, answer.exception
    rows = list(csv.DictReader((tmp_path / "out" / TABLE).open()))
    assert max(int(row["step"]) for row in rows) == 15
    settings = json.loads((tmp_path / "out" / SUMMARY).read_text())["settings"]
    assert (settings["input"], settings["steps"]) == ("images", 15)


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    (tmp_path / TABLE).write_text("mine")
    failure = refusal("-o", tmp_path, *SMALL)
    assert isinstance(failure, UsageError)
    assert "lattice.csv" in str(failure)
    assert "--overwrite" in str(failure)
    assert [path.name for path in tmp_path.iterdir()] == [TABLE]
    assert (tmp_path / TABLE).read_text() == "mine"
    assert command("-o", tmp_path, *SMALL, "--cells", "rnn", "--overwrite").exit_code == 0
    assert (tmp_path / TABLE).read_text().startswith("cell,")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--cells", "starr"], ["unknown cell 'starr'", "did you mean 'star'"]),
        (["--cells", ""], ["no cells"]),
        (["--data", "mnist", "absent", "--steps", "5"], ["--steps", "pixels"]),
        (["--layers", "100", "--steps", "5000"], ["too large a lattice", "500"]),
        (["--runs", "100000", "--steps", "1000", "--layers", "1"], ["too many runs", "--runs"]),
    ],
)
def test_wrong_wishes(arguments: list[str], parts: list[str], tmp_path: Path) -> None:
    failure = refusal("-o", tmp_path / "out", *arguments)
    assert isinstance(failure, UsageError)
    assert all(part in str(failure) for part in parts), failure
    assert not (tmp_path / "out").exists()


def test_the_output_is_a_file_or_the_images_are_missing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    assert "is a file" in str(refusal("-o", tmp_path / "file", *SMALL))
    failure = refusal("-o", tmp_path / "out", "--data", "mnist", tmp_path / "absent")
    assert isinstance(failure, InputError)
    assert "absent" in str(failure)
