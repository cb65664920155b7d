"""What sources share: names of scenes, recipes of files, packing of patches."""

from __future__ import annotations

import os
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cropstar.registry import short_list
from cropstar.sources import base
from cropstar.sources.base import (
    READ_BYTES,
    PatchImage,
    SampleScene,
    empty_dates_note,
    name_with_years,
    pack_patches,
    recipe_of,
    safe_name,
)
from cropstar.store.classes import UNLABELLED
from cropstar.store.tile import PatchTile
from tests.examples import RECIPE, a_fingerprint


@given(st.text(max_size=30))
def test_a_safe_name_is_a_part_of_a_file_s_name(text: str) -> None:
    name = safe_name(text)
    assert set(name) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-")
    assert safe_name(name) == name
    assert bool(name) == bool(text)


@given(st.lists(st.integers(0, 99), max_size=12), st.integers(1, 12))
def test_a_list_tells_how_many_it_leaves_out(numbers: list[int], most: int) -> None:
    told = short_list(numbers, most)
    listed, _, more = told.partition(" and ")
    assert listed == ", ".join(map(str, numbers[:most]))
    assert more == (f"{len(numbers) - most} more" if len(numbers) > most else "")


def test_the_years_of_a_series() -> None:
    assert name_with_years("T31TEJ", dates=[date(2018, 1, 1), date(2018, 6, 1)]) == "T31TEJ-2018"
    assert name_with_years("a", 7, dates=[date(2018, 1, 1), date(2020, 6, 1)]) == "a-7-2018-2020"


def test_dates_without_data() -> None:
    assert empty_dates_note([], 3) == []
    days = {date(2018, 3, 1), date(2018, 1, 1)}
    assert empty_dates_note(days, 3) == ["2 of 5 dates left out, without any data: 2018-01-01, 2018-03-01"]


# --- Recipes: every byte counts, of small files and of large ones

LARGE = 3 * READ_BYTES


@pytest.fixture(autouse=True)
def _small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "LARGE_FILE_BYTES", LARGE)


def put(path: Path, place: int, content: bytes = b"x") -> None:
    with path.open("r+b") as handle:
        handle.seek(place)
        handle.write(content)


@pytest.mark.parametrize("size", [1, READ_BYTES - 1, READ_BYTES, READ_BYTES + 1, LARGE, LARGE + 1, 5 * READ_BYTES + 7])
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
        path.write_bytes(bytes(4 * READ_BYTES))
    recipes = {recipe_of([one, two], {}), recipe_of([two, one], {}), recipe_of([one], {}), recipe_of([one], {"a": 1})}
    assert len(recipes) == 4
    assert recipe_of([one, two], {}) == recipe_of([one, two], {})


def test_links_to_one_file_are_that_file(tmp_path: Path) -> None:
    (tmp_path / "copies").mkdir()
    (tmp_path / "links").mkdir()
    original = tmp_path / "original"
    original.write_bytes(b"pixels" * READ_BYTES)
    for name in ("a", "b"):
        (tmp_path / "copies" / name).write_bytes(original.read_bytes())
        os.link(original, tmp_path / "links" / name)
    copies, links = ([tmp_path / kind / name for name in ("a", "b")] for kind in ("copies", "links"))
    assert recipe_of(copies, {}) == recipe_of(links, {})
    assert recipe_of([original], {}) != recipe_of(links[:1], {})


# --- Patches

SIZE = 4


def an_image(number: int, dates: int = 3) -> PatchImage:
    random = np.random.default_rng(number)
    fields = random.integers(0, 4, (SIZE, SIZE)).astype(np.int64) * 1000
    return PatchImage(
        name=f"image {number}",
        transform=(10.0, 0.0, 40.0 * number, 0.0, -10.0, 0.0),
        days=np.arange(100, 100 + dates, dtype=np.int32),
        values=random.integers(1, 9000, (dates, 2, SIZE, SIZE)).astype(np.uint16),
        valid=random.random((dates, SIZE, SIZE)) < 0.7,
        labels=random.integers(UNLABELLED, 2, (SIZE, SIZE)).astype(np.int16),
        fields=fields,
        keys={field: f"field {field}" for field in (1000, 2000, 3000)},
        group=f"fold {number % 2}",
    )


def packed(images: list[PatchImage], first: int = 0) -> PatchTile:
    scene = SimpleNamespace(name="s", recipe=RECIPE, fingerprint=a_fingerprint(), provenance={"source": "test"})
    return pack_patches(cast("SampleScene", scene), images, first)


@given(st.lists(st.integers(1, 4), min_size=2, max_size=5), st.integers(1, 4))
def test_an_image_is_packed_alike_in_any_tile(lengths: list[int], cut: int) -> None:
    images = [an_image(number, dates) for number, dates in enumerate(lengths)]
    cut = min(cut, len(images) - 1)
    whole, parts = packed(images), [packed(images[:cut]), packed(images[cut:], first=cut)]
    assert np.array_equal(whole.parcels, np.concatenate([part.parcels for part in parts]))
    assert whole.table.numbers.tolist() == [number for part in parts for number in part.table.numbers.tolist()]
    assert len(set(whole.table.numbers.tolist())) == len(whole.table.numbers)
    assert whole.table.keys == parts[0].table.keys + parts[1].table.keys
    for place, (image, dates) in enumerate(zip(images, lengths, strict=True)):
        assert np.array_equal(whole.values[place, :dates], image.values)
        assert not whole.valid[place, dates:].any()
        assert (whole.days[place, dates:] == image.days[-1]).all()


def test_parcels_are_the_labelled_pixels_of_fields_and_have_the_class_of_most() -> None:
    image = an_image(7)
    tile = packed([image], first=7)
    known = (image.fields != 0) & (image.labels != UNLABELLED)
    assert np.array_equal(tile.parcels[0] != 0, known)
    assert set(tile.table.groups or []) == {"fold 1"}
    for number, key, label in zip(tile.table.numbers, tile.table.keys, tile.table.labels, strict=True):
        pixels = tile.parcels[0] == number
        assert {f"field {field}" for field in image.fields[pixels]} == {key}
        ones = int((image.labels[pixels] == 1).sum())
        assert label == (1 if ones > pixels.sum() - ones else 0)


def test_an_image_without_fields_is_packed_all_the_same() -> None:
    empty = PatchImage(**{**vars(an_image(0)), "fields": np.zeros((SIZE, SIZE), dtype=np.int64)})
    tile = packed([empty, an_image(1)])
    assert not tile.parcels[0].any()
    assert tile.parcels[1].any()
