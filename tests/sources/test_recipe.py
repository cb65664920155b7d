"""The digest of many large files: little is read of each, and every file counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cropstar.sources import scene
from cropstar.sources.scene import SAMPLE_BYTES, recipe_of


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Four large files with a hole in them, and a small one."""
    paths = [tmp_path / f"band{number}" for number in range(4)]
    for path in paths:
        with path.open("wb") as handle:
            handle.truncate(40 * SAMPLE_BYTES + 11)
    small = tmp_path / "metadata.xml"
    small.write_bytes(bytes(SAMPLE_BYTES))
    return [*paths, small]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes the digest saw, block by block."""
    blocks: list[int] = []
    sampled = scene._sampled

    def counted(*arguments: Any) -> Any:
        for block in sampled(*arguments):
            blocks.append(len(block))
            yield block

    monkeypatch.setattr(scene, "_sampled", counted)
    return blocks


def put(path: Path, place: int, content: bytes = b"x") -> None:
    with path.open("r+b") as handle:
        handle.seek(place)
        handle.write(content)


def test_below_the_limit_all_is_as_for_one_file(files: list[Path], read: list[int]) -> None:
    recipe_of(files, {})
    assert sum(read) > sum(path.stat().st_size for path in files)


def test_above_the_limit_less_is_read_of_each(
    files: list[Path], read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scene, "MAXIMUM_DIGESTED_BYTES", 20 * SAMPLE_BYTES)
    before = recipe_of(files, {})
    assert sum(read) < 22 * SAMPLE_BYTES
    assert recipe_of(files, {}) == before
    size = files[0].stat().st_size
    recipes = {before}
    changes = [(path, place) for path in files[:4] for place in (0, 100, size - 1)]
    small = [(files[4], place) for place in (0, SAMPLE_BYTES // 2, SAMPLE_BYTES - 1)]  # read whole
    for path, place in [*changes, *small]:
        put(path, place)
        recipes.add(recipe_of(files, {}))
    put(files[2], size)  # one byte longer
    recipes.add(recipe_of(files, {}))
    assert len(recipes) == 1 + len(changes) + len(small) + 1
    files[0].write_bytes(bytes(range(256)) * (size // 256))
    before = recipe_of(files, {})
    step = -(-(files[0].stat().st_size - scene.SMALL_SAMPLE_BYTES) // (20 * SAMPLE_BYTES // 5 // 2**16 - 1))
    put(files[0], step + 5)
    assert recipe_of(files, {}) != before


def test_of_very_many_files_each_is_still_looked_at(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scene, "MAXIMUM_DIGESTED_BYTES", 1)
    before = recipe_of(files, {})
    put(files[3], files[3].stat().st_size - 1)
    assert recipe_of(files, {}) != before
