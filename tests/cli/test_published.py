"""Published data sets through the command line: recognised by their files, stored, trained on by their own folds."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sources.examples.tum_batches import a_batch, write_batch
from tests.sources.examples.tum_tiles import write_collection
from tests.sources.examples.zuericrop import a_collection

Cli = Callable[..., "subprocess.CompletedProcess[str]"]
SMALL = ["--layers", "1", "--hidden", "4", "--epochs", "1"]


def done(answer: subprocess.CompletedProcess[str]) -> str:
    assert answer.returncode == 0, answer.stderr
    return answer.stderr


@pytest.mark.slow
def test_image_series_of_tum(run_cli: Cli, tmp_path: Path) -> None:
    write_collection(tmp_path / "240")
    said = done(run_cli("ingest", "240", "-o", "store", cwd=tmp_path))
    assert "1 tile, 4 images, 8 parcels, 3 dates" in said
    assert "maize" in said
    said = done(run_cli("train", "--store", "store", "--split", "fold0", *SMALL, cwd=tmp_path))
    assert "the data set's own split 'fold0': 4 for train, 2 for validation, 2 for test" in said
    answer = run_cli("train", "--store", "store", "--split", "fold9", *SMALL, cwd=tmp_path)
    assert answer.returncode == 2
    assert "unknown split 'fold9'" in answer.stderr
    assert "did you mean 'fold0'" in answer.stderr


def test_series_of_tum_with_a_class_on_every_date(run_cli: Cli, tmp_path: Path) -> None:
    for number, part in enumerate(("train", "test", "eval")):
        write_batch(tmp_path / "data" / part / "b0.pkl", a_batch(seed=number))
    said = done(run_cli("ingest", "data", "-o", "store", cwd=tmp_path))
    assert "18 samples" in said
    said = done(run_cli("train", "--store", "store", "--model", "star", "--split", "published", *SMALL, cwd=tmp_path))
    assert "6 for train, 6 for validation, 6 for test" in said


@pytest.mark.slow
def test_zuericrop_keeps_its_levels_and_folds(run_cli: Cli, tmp_path: Path) -> None:
    a_collection(images=10).write(tmp_path)
    said = done(run_cli("ingest", "ZueriCrop.hdf5", "-o", "store", cwd=tmp_path))
    assert "10 images" in said
    assert "--dates" in said  # the file has none, and that is said
    said = done(run_cli("train", "--store", "store", "--split", "fold2", *SMALL, cwd=tmp_path))
    assert "the data set's own split 'fold2'" in said
    shown = run_cli("inspect", "store", "-o", "sheet.png", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "10 images of 24" in shown.stdout
    assert (tmp_path / "sheet.png").stat().st_size > 10_000
    answer = run_cli("ingest", "ZueriCrop.hdf5", "-o", "coarse", "--level", "two", cwd=tmp_path)
    assert answer.returncode == 2
    assert "wrong value of --level" in answer.stderr
