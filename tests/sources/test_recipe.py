"""The digest of a scene's files: every byte counts, of small files and of large ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cropstar.sources import scene
from cropstar.sources.scene import BLOCK, recipe_of

LARGE = 3 * BLOCK


@pytest.fixture(autouse=True)
def _small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scene, "LARGE", LARGE)


def put(path: Path, place: int, content: bytes = b"x") -> None:
    with path.open("r+b") as handle:
        handle.seek(place)
        handle.write(content)


@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK, BLOCK + 1, LARGE, LARGE + 1, 5 * BLOCK + 7])
def test_every_byte_counts(tmp_path: Path, size: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(size))
    recipes = {recipe_of([path], {})}
    places = {0, size // 2, size // 3, size - 1}
    for place in places:
        put(path, place)
        recipes.add(recipe_of([path], {}))
    put(path, size)  # one byte longer
    recipes.add(recipe_of([path], {}))
    assert len(recipes) == 1 + len(places) + 1


def test_names_order_and_options_count(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for path in (one, two):
        path.write_bytes(bytes(4 * BLOCK))
    recipes = {recipe_of([one, two], {}), recipe_of([two, one], {}), recipe_of([one], {}), recipe_of([one], {"a": 1})}
    assert len(recipes) == 4
    assert recipe_of([one, two], {}) == recipe_of([one, two], {})


def test_links_to_one_file_are_that_file(tmp_path: Path) -> None:
    (tmp_path / "copies").mkdir()
    (tmp_path / "links").mkdir()
    original = tmp_path / "original"
    original.write_bytes(b"pixels" * BLOCK)
    for name in ("a", "b"):
        (tmp_path / "copies" / name).write_bytes(original.read_bytes())
        os.link(original, tmp_path / "links" / name)
    copies, links = ([tmp_path / kind / name for name in ("a", "b")] for kind in ("copies", "links"))
    assert recipe_of(copies, {}) == recipe_of(links, {})
    assert recipe_of([original], {}) != recipe_of(links[:1], {})
