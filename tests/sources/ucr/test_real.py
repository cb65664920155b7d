"""The archive's own Crop, and a data set through the command line."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np

from cropstar.sources.ucr import open_ucr
from tests.sources.ucr.archives import a_pair

Cli = Callable[..., "subprocess.CompletedProcess[str]"]


def test_crop_is_stored_value_by_value(real_data: Path) -> None:
    (scene,) = open_ucr(real_data / "ucr-crop")
    about = scene.describe()
    assert (about["samples"], about["observations"], len(about["dates"])) == (23_999, 23_999 * 46, 46)
    assert scene.fingerprint.classes.names == [str(number) for number in range(1, 25)]
    tiles = [scene.build(piece) for piece in scene.pieces()]
    groups = [group for tile in tiles for group in tile.table.groups or []]
    assert (groups.count("train"), groups.count("test")) == (7_200, 16_799)
    files = [real_data / "ucr-crop" / f"Crop_{part}.tsv.gz" for part in ("TRAIN", "TEST")]
    expected = np.concatenate([np.loadtxt(file, delimiter="\t") for file in files])  # it unpacks by itself
    assert np.array_equal(np.concatenate([tile.table.labels for tile in tiles]) + 1, expected[:, 0])
    values = np.concatenate([tile.values for tile in tiles]).reshape(-1, 46)
    assert np.array_equal(values, expected[:, 1:].astype(np.float32))
    assert all(tile.valid.all() for tile in tiles)


def test_a_small_one_through_the_command_line(run_cli: Cli, tmp_path: Path) -> None:
    a_pair(tmp_path / "Small", train=30, test=9)
    answer = run_cli("ingest", "Small", "-o", "store", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert "30 series to train and 9 series to test, 5 steps, 3 classes" in answer.stderr
    assert "warning: Small has no dates: its 5 steps are taken as spread evenly over 1970" in answer.stderr
    assert "39 samples, 5 dates from 1970-01-01 to 1970-12-31, bands value, 100% of the observations" in answer.stderr
