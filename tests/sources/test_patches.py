"""Packing patches: dates filled up, fields numbered alike wherever they are packed, their class by majority."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cropstar.sources.patches import PatchImage, pack
from cropstar.store.classes import UNLABELLED
from cropstar.store.tile import PatchTile
from tests.examples import RECIPE, a_fingerprint

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
    return pack(
        images, first, scene="scene", recipe=RECIPE, fingerprint=a_fingerprint(), crs="", provenance={"source": "test"}
    )


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
