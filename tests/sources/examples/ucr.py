"""Small data sets as the archives have them."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

HEADER = """# a comment
@problemName Small
@timeStamps false
@missing true
@univariate {univariate}
@classLabel true {classes}
@data
"""


def write_text(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def tsv(labels: Sequence[str], values: NDArray[np.float64]) -> str:
    """Values (N, T)."""
    rows = zip(labels, values, strict=True)
    return "".join("\t".join([label, *(repr(float(value)) for value in row)]) + "\n" for label, row in rows)


def ts(labels: Sequence[str], series: Sequence[NDArray[np.float64]], header: str = HEADER) -> str:
    """Series (T, C), each of its own length."""
    head = header.format(univariate=str(series[0].shape[1] == 1).lower(), classes=" ".join(sorted(set(labels))))
    rows = [
        ":".join([*(",".join(_text(value) for value in column) for column in one.T), label])
        for label, one in zip(labels, series, strict=True)
    ]
    return head + "\n".join(rows) + "\n"


def _text(value: float) -> str:
    return "?" if np.isnan(value) else repr(float(value))


def write_pair(folder: Path, train: str, test: str, name: str = "Small", ending: str = ".tsv") -> Path:
    write_text(folder / f"{name}_TEST{ending}", test)
    return write_text(folder / f"{name}_TRAIN{ending}", train)


def a_pair(folder: Path, ending: str = ".tsv", train: int = 12, test: int = 6) -> Path:
    """Three classes of noise around a level of their own, 5 steps."""
    random = np.random.default_rng(0)
    texts = []
    for count in (train, test):
        labels = [str(1 + place % 3) for place in range(count)]
        texts.append(tsv(labels, random.normal(size=(count, 5)) + np.array(labels, dtype=float)[:, None]))
    return write_pair(folder, texts[0], texts[1], ending=ending)
