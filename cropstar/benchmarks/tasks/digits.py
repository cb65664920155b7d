"""MNIST pixel by pixel, in rows (`mnist`) or in a fixed random order (`pmnist`), and the reader of its idx files."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from cropstar.benchmarks.tasks.base import (
    ACCURACY,
    BenchTask,
    SequenceLoss,
    SequenceObjective,
    Settings,
    TaskData,
    digest_of,
    from_arrays,
    register,
)
from cropstar.config import TrainConfig
from cropstar.errors import InputError, UsageError
from cropstar.inputs import reading, require_file
from cropstar.models.contract import Shape

CLASSES = 10
SMALLEST_DEVIATION = 1e-3  # of pixels between 0 and 1: images without any contrast are left as they are
PERMUTATION = "pmnist_permutation_mask.npy"
NEEDS = (
    "put train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz and the two t10k-... files of MNIST there, "
    "e.g. from https://github.com/cvdfoundation/mnist"
)


class DigitSettings(Settings):
    pool: int = Field(1, ge=1, le=14, description="side of the squares of pixels that are averaged to one step")
    order: Literal["rows", "seed", "authors"] = Field(
        "rows",
        description=f"order of the pixels; seed: random, by `seed`; authors: as in {PERMUTATION} beside the images",
    )
    standardise: bool = Field(
        False,
        description="shift pixels to mean 0 and scale them to the width as variance: every unit of an orthogonal first "
        "layer then gets a signal of unit size",
    )
    validation: int = Field(5_000, ge=1, description="training images used for validation")
    limit: int | None = Field(None, ge=1, description="training images, without those for validation; null: all")
    test_limit: int | None = Field(None, ge=1, description="test images, for a trial; null: all")


class Digits(BenchTask):
    metric = ACCURACY
    folder = "mnist"
    needs = NEEDS
    settings = DigitSettings

    def load(self, settings: DigitSettings, config: TrainConfig, folder: Path) -> TaskData:
        files = {
            kind: (_find(folder, kind, "images", 3), _find(folder, kind, "labels", 1)) for kind in ("train", "t10k")
        }
        images, labels = _read_pair(*files["train"])
        test_images, test_labels = _read_pair(*files["t10k"])
        if images.shape[1:] != test_images.shape[1:]:
            raise InputError("training and test images differ in size", path=folder, remedy="get the files again")
        pooled, tested = (_pooled(each, settings.pool, folder) for each in (images, test_images))
        used = [file for pair in files.values() for file in pair]
        steps = pooled.shape[1]
        if settings.order != "rows":
            order = np.random.default_rng([config.seed, steps]).permutation(steps)
            if settings.order == "authors":
                used.append(folder / PERMUTATION)
                order = read_permutation(folder / PERMUTATION, steps)
            pooled, tested = pooled[:, order], tested[:, order]
        if settings.validation >= len(pooled):
            why = f"{settings.validation} of {len(pooled)} images"
            raise UsageError("task.validation leaves nothing to train on", why=why, remedy="lower it")
        # The same lot for every seed: what is chosen on stays apart from what is varied.
        lot = np.random.default_rng(len(pooled)).permutation(len(pooled))
        chosen = {
            "validation": lot[: settings.validation],
            "train": lot[settings.validation :][: settings.limit],
        }
        if settings.standardise:
            learnt = pooled[chosen["train"]]
            mean = learnt.mean()
            factor = np.float32(np.sqrt(config.model.hidden) / max(learnt.std(), SMALLEST_DEVIATION))
            pooled, tested = (pooled - mean) * factor, (tested - mean) * factor
        parts = {
            part: from_arrays(part, config.series_batch, list(pooled[numbers, :, None]), list(labels[numbers]))
            for part, numbers in chosen.items()
        }
        last = settings.test_limit
        parts["test"] = from_arrays("test", config.series_batch, list(tested[:last, :, None]), list(test_labels[:last]))
        objective = SequenceObjective(SequenceLoss("class", by_step=False), self.metric)
        return TaskData(parts, Shape(1, CLASSES, steps), objective, digest_of(used))


def read_permutation(file: Path, steps: int) -> NDArray[np.int64]:
    """The authors' order of the 784 pixels, an array of their numbers."""
    if not file.is_file():
        remedy = "put it beside the images, or set task.order=seed"
        raise InputError("no permutation", path=file, why="there is no such file", remedy=remedy)
    with reading("not a permutation", file, "give an array of numbers as .npy"):
        mapped = np.load(file, mmap_mode="r", allow_pickle=False)  # a header may claim more than the file has
        order: NDArray[np.int64] = mapped.ravel().astype(np.int64, casting="same_kind")
    if not np.array_equal(np.sort(order), np.arange(steps)):
        why, remedy = f"it does not order {steps} pixels", "with --pool set task.order=seed"
        raise InputError("not a permutation of the pixels", path=file, why=why, remedy=remedy)
    return order


def _find(folder: Path, kind: str, what: str, dimensions: int) -> Path:
    stems = (f"{kind}-{what}-idx{dimensions}-ubyte", f"{kind}-{what}.idx{dimensions}-ubyte")
    for name in (f"{stem}{ending}" for stem in stems for ending in ("", ".gz")):
        if (folder / name).is_file():
            return folder / name
    raise InputError("a file of MNIST is missing", path=folder, why=f"there is no {stems[0]}", remedy=NEEDS)


def _read_pair(images_file: Path, labels_file: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    images, labels = read_idx(images_file, dimensions=3), read_idx(labels_file, dimensions=1)
    if len(images) != len(labels) or labels.max() >= CLASSES:
        why = f"{len(labels)} labels up to {labels.max()} for {len(images)} images"
        raise InputError("the labels do not fit the images", path=labels_file, why=why, remedy="get the files again")
    return images, labels.astype(np.int64)


def _pooled(images: NDArray[np.uint8], side: int, folder: Path) -> NDArray[np.float32]:
    """(N, steps) between 0 and 1: means of side x side pixels, row by row."""
    count, height, width = images.shape
    if height % side or width % side:
        why = f"{height} x {width} pixels cannot be cut into squares of {side}"
        raise UsageError(f"--pool {side} does not fit", path=folder, why=why, remedy="use a divisor, such as 2, 4 or 7")
    cut = images.reshape(count, height // side, side, width // side, side)
    means: NDArray[np.float32] = cut.mean(axis=(2, 4), dtype=np.float32) / np.float32(255)
    return means.reshape(count, -1)


@register
class DigitsInRows(Digits):
    name = "mnist"
    about = "handwritten digits, one pixel per step"
    paper = (("star", "99.2 to 99.4 %"),)


@register
class PermutedDigits(Digits):
    name = "pmnist"
    about = "handwritten digits in a fixed random order of pixels"
    paper = (("star", "94.7 to 95.4 %"),)


# --- idx files, gzipped or not: a magic number, the sizes, the bytes

GZIP = b"\x1f\x8b"
UNSIGNED_BYTES = 0x08
NAMES = ("train-images-idx3-ubyte", "train-images.idx3-ubyte", "t10k-images-idx3-ubyte", "t10k-images.idx3-ubyte")
REMEDY = "give MNIST's folder or one of its image files, such as train-images-idx3-ubyte.gz"


def read_images(path: Path) -> NDArray[np.uint8]:
    """(N, rows, columns) of a file, or of the first image file in a folder, training images before test images."""
    if path.is_dir():
        candidates = [path / f"{name}{ending}" for name in NAMES for ending in ("", ".gz")]
        file = next((candidate for candidate in candidates if candidate.is_file()), None)
        if file is None:
            raise InputError("no images of MNIST", path=path, remedy=REMEDY)
        path = file
    return read_idx(path, dimensions=3)


def read_idx(path: Path, *, dimensions: int) -> NDArray[np.uint8]:
    """The array of unsigned bytes in an idx file."""
    require_file(path)
    with reading("not an idx file, or a damaged one", path, REMEDY):
        content = path.read_bytes()
        content = gzip.decompress(content) if content.startswith(GZIP) else content
        if not content.startswith(bytes((0, 0, UNSIGNED_BYTES, dimensions))):
            raise ValueError(f"it does not begin as unsigned bytes in {dimensions} dimensions do")
        shape = struct.unpack_from(f">{dimensions}I", content, 4)
        if 0 in shape:
            raise ValueError("it is empty")
        return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * dimensions).reshape(shape)
