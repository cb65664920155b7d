"""idx files: what numpy wrote comes back, and what is damaged or hostile is refused."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cropstar.benchmarks.lattice import pixel_by_pixel
from cropstar.benchmarks.running import resolve_bench
from cropstar.benchmarks.tasks import TASKS
from cropstar.benchmarks.tasks.base import BenchTask
from cropstar.benchmarks.tasks.digits import read_idx, read_images
from cropstar.errors import InputError
from tests.benchmarks.digits import idx_bytes


@given(shape=st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(1, 6)), zipped=st.booleans())
def test_round_trip(shape: tuple[int, int, int], zipped: bool, tmp_path_factory: pytest.TempPathFactory) -> None:
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    path = tmp_path_factory.mktemp("idx") / "images"
    path.write_bytes(gzip.compress(idx_bytes(images)) if zipped else idx_bytes(images))
    np.testing.assert_array_equal(read_images(path), images)


def test_labels_have_one_dimension(tmp_path: Path) -> None:
    path = tmp_path / "labels"
    path.write_bytes(idx_bytes(np.arange(7, dtype=np.uint8)))
    np.testing.assert_array_equal(read_idx(path, dimensions=1), np.arange(7))
    with pytest.raises(InputError, match="not an idx file"):
        read_images(path)


GOOD = idx_bytes(np.zeros((2, 3, 4), dtype=np.uint8))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not an idx file"),
        (GOOD[:9], "not an idx file"),
        (b"P5 28 28 255\n" + bytes(30), "not an idx file"),
        (GOOD[:2] + b"\x0d" + GOOD[3:], "not an idx file"),  # floats
        (GOOD[:-1], "array of size 23"),
        (GOOD + b"\0", "array of size 25"),
        (GOOD[:4] + struct.pack(">3I", 0, 28, 28), "it is empty"),
        (gzip.compress(GOOD, mtime=0)[:-12], "a damaged one"),
        (gzip.compress(GOOD, mtime=0)[:-8] + bytes(8), "CRC check failed"),
    ],
)
def test_bad_files(content: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "images"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_images(path)
    assert reason in str(caught.value)
    assert str(path) in str(caught.value)
    assert "; " in str(caught.value)


def test_folders(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no images of MNIST"):
        read_images(tmp_path)
    with pytest.raises(InputError, match="no such file"):
        read_images(tmp_path / "absent")
    (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(GOOD))
    assert len(read_images(tmp_path)) == 2
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx_bytes(np.zeros((5, 2, 2), dtype=np.uint8)))
    assert len(read_images(tmp_path)) == 5  # training images come first


def test_pixels_come_row_by_row(tmp_path: Path) -> None:
    path = tmp_path / "images"
    path.write_bytes(idx_bytes(np.arange(24, dtype=np.uint8).reshape(2, 3, 4)))
    series = pixel_by_pixel(path, 2, seed=0)
    assert series.shape == (2, 12, 1)
    rows = sorted((series[:, :, 0] * 255).round().int().tolist())
    assert rows == [list(range(12)), list(range(12, 24))]
    with pytest.raises(InputError, match="too few images"):
        pixel_by_pixel(path, 3, seed=0)


def test_standardised_pixels_have_the_scale_of_the_training_images(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for kind, count, brightest in (("train", 40, 100), ("t10k", 30, 256)):
        images = rng.integers(0, brightest, (count, 4, 4), dtype=np.uint8)
        (tmp_path / f"{kind}-images-idx3-ubyte").write_bytes(idx_bytes(images))
        (tmp_path / f"{kind}-labels-idx1-ubyte").write_bytes(idx_bytes(np.arange(count, dtype=np.uint8) % 10))
    task = TASKS["mnist"]
    assert isinstance(task, BenchTask)
    parts = {}
    options = {"series_batch": 30, "model.hidden": 9}
    for wanted in (False, True):
        own = {"validation": 10, "standardise": wanted}
        config, settings = resolve_bench(task, None, options, (), own, tmp_path)
        parts[wanted] = task.load(settings, config, tmp_path).parts
    plain, scaled = (parts[wanted]["train"].batch(list(range(30))).x for wanted in (False, True))
    assert scaled.dtype == plain.dtype
    assert scaled.mean().item() == pytest.approx(0, abs=1e-5)
    assert scaled.var(correction=0).item() == pytest.approx(9, rel=1e-5)
    tested, scaled_test = (parts[wanted]["test"].batch(list(range(30))).x for wanted in (False, True))
    same = (tested - plain.mean()) * 3 / plain.std(correction=0)
    np.testing.assert_allclose(scaled_test, same, rtol=1e-4, atol=1e-5)


def test_real_digits(real_data: Path) -> None:
    images = read_images(real_data / "mnist")
    assert images.shape == (60_000, 28, 28)
    labels = read_idx(real_data / "mnist" / "train-labels-idx1-ubyte.gz", dimensions=1)
    assert labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert images.mean() == pytest.approx(33.318, abs=0.001)  # the published mean, 0.1307 of 255
