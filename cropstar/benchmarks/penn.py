"""The Penn Treebank as a text of characters, in Mikolov's preparation.

Lower case, numbers as `N`, rare words as `<unk>`. A line's words are joined by one space and every line ends in a
newline; the spaces at both ends of a line, which the files have, are left out. `<unk>` stays the five characters that
it is written in. So there are 50 characters, 5,017 thousand of them in training, 393 in validation and 442 in test.
(Where 5,059, 396 and 446 thousand are counted, one more space was left in every line: it is certain, and makes about
a hundredth of a bit per character.)

`ptb.char.*.txt`, the same text spelt out with spaces between characters and `_` between words, gives the same.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import InputError
from cropstar.geo.paths import require_file
from cropstar.sources.texts import read_lines

PARTS = {"train": "train", "validation": "valid", "test": "test"}
STYLES = ("ptb", "ptb.char")  # words before characters where both are there
MAXIMUM_CHARACTERS = 2**26  # a dozen times the training part
MAXIMUM_LINE = 2**20  # cut into words it takes many times its length
MAXIMUM_ALPHABET = 256  # a code is a byte
REMEDY = (
    "put ptb.train.txt, ptb.valid.txt and ptb.test.txt there (or ptb.char.*; .gz will do), "
    "from the folder data of Mikolov's simple-examples.tgz"
)


def read_penn(folder: Path) -> tuple[dict[str, NDArray[np.uint8]], tuple[str, ...]]:
    """The codes of "train", "validation" and "test", and the alphabet that they point into: the training part's
    characters, sorted. A character that training has not is refused: there is no code for it."""
    files, spelt = _files(folder)
    texts = {part: _characters(file, spelt) for part, file in files.items()}
    alphabet = np.unique(texts["train"])
    if len(alphabet) > MAXIMUM_ALPHABET:
        why = f"{len(alphabet)} different characters, at most {MAXIMUM_ALPHABET} can be told apart"
        raise InputError("no Penn Treebank", path=files["train"], why=why, remedy=REMEDY)
    codes = {}
    for part, text in texts.items():
        places = np.searchsorted(alphabet, text).clip(max=len(alphabet) - 1)
        strange = text[alphabet[places] != text]
        if len(strange):
            why = f"{chr(strange[0])!r} does not occur in {files['train'].name}"
            raise InputError("an unknown character", path=files[part], why=why, remedy="take all parts from one source")
        codes[part] = places.astype(np.uint8)
    return codes, tuple(map(chr, alphabet))


def _files(folder: Path) -> tuple[dict[str, Path], bool]:
    """The file of each part, all of one style, and whether they are spelt out."""
    if folder.exists() and not folder.is_dir():
        raise InputError("no folder", path=folder, why="the Penn Treebank is three files", remedy=REMEDY)
    missing = ""
    for style in STYLES:
        found: dict[str, Path] = {}
        for part, word in PARTS.items():
            candidates = (folder / f"{style}.{word}.txt{ending}" for ending in ("", ".gz"))
            file = next((candidate for candidate in candidates if candidate.exists()), None)
            if file is not None:
                require_file(file)
                found[part] = file
            elif found and not missing:
                missing = f"{style}.{word}.txt is missing"
        if len(found) == len(PARTS):
            return found, style != STYLES[0]
    raise InputError("no Penn Treebank", path=folder, why=missing or None, remedy=REMEDY)


def _characters(file: Path, spelt: bool) -> NDArray[np.uint32]:
    lines, total = [], 0
    for number, line in read_lines(file):
        if len(line) > MAXIMUM_LINE:
            raise InputError("no Penn Treebank", path=file, why=f"line {number} is endless", remedy=REMEDY)
        words = line.split()
        if not words:
            continue
        if spelt and max(map(len, words)) > 1:
            why = f"'{max(words, key=len)[:20]}' in line {number} is more than one character"
            raise InputError("a text that is not spelt out", path=file, why=why, remedy="name the file ptb.*.txt")
        text = ("".join(words).replace("_", " ") if spelt else " ".join(words)) + "\n"
        total += len(text)
        if total > MAXIMUM_CHARACTERS:
            why = f"more than {MAXIMUM_CHARACTERS:,} characters"
            raise InputError("no Penn Treebank", path=file, why=why, remedy=REMEDY)
        lines.append(text)
    if not lines:
        raise InputError("an empty text", path=file, remedy=REMEDY)
    return np.frombuffer("".join(lines).encode("utf-32-le"), dtype="<u4")
