"""--dates and --bands by hand: a file that says nothing of its bands reads as the one that says everything."""

from __future__ import annotations

import json
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from hypothesis import given
from hypothesis import strategies as st

from cropstar.errors import CropstarError, InputError, UsageError
from cropstar.geo.windows import Window
from cropstar.prediction.inputs import MapInput
from cropstar.sources.base import Observations
from cropstar.sources.catalogue import open_raster_series
from cropstar.sources.stack import StackOptions, open_stack
from cropstar.sources.stack.hand_dates import parse_dates
from tests.sources.examples.dated import some_pixels, write_raster
from tests.sources.examples.safe import write_product
from tests.sources.examples.stacks import BANDS, write_stack

WHOLE = Window(0, 0, 20, 30)
DATES = "2023-05-01,2023-06-10"
FOUR = [""] * 4


def read(path: Path, **options: Any) -> tuple[tuple[str, ...], tuple[date, ...], Observations]:
    (series,) = open_stack(path, StackOptions(**options))
    try:
        return series.bands, series.dates, series.read(WHOLE)
    finally:
        series.close()


def refusal(path: Path, kind: type[CropstarError], **options: Any) -> str:
    with pytest.raises(kind) as caught:
        open_stack(path, StackOptions(**options))
    assert caught.value.remedy
    return str(caught.value)


def assert_same(one: tuple[Any, Any, Observations], other: tuple[Any, Any, Observations]) -> None:
    assert one[:2] == other[:2]
    np.testing.assert_array_equal(one[2].values, other[2].values)
    np.testing.assert_array_equal(one[2].valid, other[2].valid)


# --- what is read


def test_a_bare_file_reads_as_the_described_one(small_scene: Path, tmp_path: Path) -> None:
    with (
        rasterio.open(small_scene / "tile.tif") as old,
        rasterio.open(tmp_path / "bare.tif", "w", **old.profile) as new,
    ):
        new.write(old.read())
        new.scales, new.offsets = old.scales, old.offsets
        texts = [(old.tags(index)["DATE"], old.tags(index)["BAND"]) for index in old.indexes]
    days = list(dict.fromkeys(day for day, _ in texts))
    bands = tuple(dict.fromkeys(band for _, band in texts))  # the scene classification among them
    listed = tmp_path / "dates.txt"
    listed.write_text("\n".join(days) + "\n")
    expected = read(small_scene / "tile.tif")
    for dates in (",".join(days), f"@{listed}", listed):
        assert_same(read(tmp_path / "bare.tif", dates=dates, bands=bands), expected)


@given(st.permutations(range(3)), st.booleans())
def test_either_order_and_dates_in_any(
    tmp_path_factory: pytest.TempPathFactory, turn: list[int], by_band: bool
) -> None:
    days = [date(2023, 4, 1) + timedelta(days=20 * place) for place in range(3)]
    pixels = np.random.default_rng(0).integers(1, 10_000, (3, 2, 20, 30)).astype(np.uint16)  # (T, C, H, W)
    stored = pixels[turn]
    flat = (stored.swapaxes(0, 1) if by_band else stored).reshape(6, 20, 30)
    path = write_stack(tmp_path_factory.mktemp("stack") / "a.tif", [""] * 6, flat)
    bands, dates, seen = read(path, dates=[days[place] for place in turn], bands=("B08", "B04"), by_band=by_band)
    assert (bands, dates) == (("B08", "B04"), tuple(days))
    np.testing.assert_array_equal(seen.values, pixels)


def test_bands_with_names_and_no_dates(tmp_path: Path) -> None:
    expected = read(write_stack(tmp_path / "all.tif", BANDS))
    names = write_stack(tmp_path / "names.tif", ["B4", "B8", "B4", "B8"])
    assert_same(read(names, dates=DATES), expected)
    assert_same(read(names, dates=DATES, bands=("B04", "B08")), expected)
    assert read(names, dates=DATES, bands=("B08",))[0] == ("B08",)


@pytest.mark.parametrize("bands", ["B04=red,B08=nir", "red=B04,nir=b8", "B4=RED,B08=nir"])
def test_names_of_the_file_become_the_model_s(tmp_path: Path, bands: str) -> None:
    described = [text.replace("B04", "red").replace("B08", "nir") for text in BANDS]
    expected = read(write_stack(tmp_path / "all.tif", BANDS))
    named = tuple(bands.split(","))
    assert_same(read(write_stack(tmp_path / "named.tif", described), bands=named), expected)
    bare = write_stack(tmp_path / "bare.tif", [text.split()[1] for text in described])
    assert_same(read(bare, bands=named, dates=DATES), expected)


def test_names_can_change_places(tmp_path: Path) -> None:
    path = write_stack(tmp_path / "a.tif", BANDS)
    _, _, plain = read(path)
    bands, _, swapped = read(path, bands=("B04=B08", "B08=B04"))
    assert bands == ("B04", "B08")
    np.testing.assert_array_equal(swapped.values, plain.values[:, ::-1])
    bands, _, one = read(path, bands=("B04=B08",))  # the file's own B04 is not meant
    assert bands == ("B04",)
    np.testing.assert_array_equal(one.values, plain.values[:, 1:])


def test_a_folder_s_names_become_the_model_s(tmp_path: Path) -> None:
    for place, day in enumerate(("2023-05-01", "2023-06-10")):
        for band in ("red", "B08"):
            write_raster(tmp_path / f"S2_{band}_{day}.tif", some_pixels(2 * place + (band == "red")))
    (series,) = open_stack(tmp_path, StackOptions(pattern="S2_{band}_{date}.tif", bands=("red=B04", "B08")))
    assert series.bands == ("B04", "B08")
    (plain,) = open_stack(tmp_path, StackOptions(pattern="S2_{band}_{date}.tif", bands=("RED", "B08")))
    window = Window(0, 0, *series.grid.shape)
    np.testing.assert_array_equal(series.read(window).values, plain.read(window).values)
    series.close()
    plain.close()


def test_the_recipe_tells_what_was_given_by_hand() -> None:
    plain, other = StackOptions(dates=DATES, bands=("B04", "B08")), StackOptions(bands=("B04", "B08"))
    turned = StackOptions(dates=DATES, bands=("B04", "B08"), by_band=True)
    assert len({json.dumps(each.to_json(), sort_keys=True) for each in (plain, other, turned)}) == 3


# --- what is refused


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"dates": "2023-05-01", "bands": ("B04", "B08")}, InputError, ["4 bands are in", "are 2;", "give 2 dates"]),
        ({"dates": DATES, "bands": ("B02", "B04", "B08")}, InputError, ["4 bands are in", "3 bands", "are 6;"]),
        ({"dates": DATES}, InputError, ["unknown bands", "band 1 of 4 has no description", "--bands"]),
        ({"bands": ("B04", "B08")}, InputError, ["unknown bands", "--dates and --bands"]),
        ({"dates": DATES, "bands": ("B04=red",)}, InputError, ["band 1 of 4 has no description"]),
    ],
)
def test_what_does_not_fit_the_file(
    tmp_path: Path, options: dict[str, Any], kind: type[CropstarError], words: list[str]
) -> None:
    said = refusal(write_stack(tmp_path / "a.tif", FOUR), kind, **options)
    assert all(word in said for word in ["a.tif", *words]), said


def test_names_that_come_too_often(tmp_path: Path) -> None:
    path = write_stack(tmp_path / "a.tif", ["B04", "B08", "B04", "B04"])
    assert "3 bands are called B04 and 2 dates are given" in refusal(path, InputError, dates=DATES)


def test_dates_that_the_file_says_otherwise(tmp_path: Path) -> None:
    path = write_stack(tmp_path / "a.tif", BANDS)
    said = refusal(path, InputError, dates="2023-05-01,2023-06-11", bands=("B04", "B08"))
    assert "band 3 is described as '2023-06-10 B04', and --dates makes it one of 2023-06-11" in said
    assert_same(read(path, dates=DATES), read(path))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2023-05-01,2023-05-01", "a date stands twice"),
        ("2023-05-01,", "not a date"),
        ("", "not a date"),
        ("2023-02-30", "not a date"),
        ("1 May", "not a date"),
        ("2023-05-01;2023-06-10", "not a date"),
    ],
)
def test_dates_that_are_none(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=f"{words} in --dates.*one date a line"):
        parse_dates(text)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"2023-05-01\nmaybe\n", "not a date.*'maybe'"),
        (b"2023-05-01\n2023-05-01\n", "twice.*2023-05-01"),
        (b"\n\n", "no dates.*empty"),
        (b"\xff\xfe\x00", "no text in UTF-8"),
        (b"2023-05-01\n" * 200_000, "2200000 bytes"),
    ],
)
def test_lists_that_are_none(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "dates.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"in .*dates\.txt.*{words}|{words}.*dates\.txt"):
        parse_dates(f"@{path}")
    with pytest.raises(InputError, match=r"missing\.txt"):
        parse_dates(f"@{tmp_path}/missing.txt")


@pytest.mark.parametrize("bands", [("B04", "b4"), ("B04=",), ("=red",), ("B04=red=nir",), ("B04=red", "B4=red"), ()])
def test_bands_that_are_none(bands: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="--bands wants names, each once"):
        StackOptions(bands=bands)


def test_bands_that_are_not_there_or_twice(tmp_path: Path) -> None:
    path = write_stack(tmp_path / "a.tif", BANDS)
    assert "no band 'RED'" in refusal(path, UsageError, bands=("B02=red",))
    for bands in (("B02=B04", "B03=B04"), ("B02=B04", "B02=B08")):
        assert "names a band twice" in refusal(path, UsageError, bands=bands)


def test_by_band_wants_both() -> None:
    with pytest.raises(UsageError, match="--by-band needs --dates and --bands"):
        StackOptions(by_band=True, dates=DATES)


def test_dates_are_for_one_file_alone(tmp_path: Path, small_store: Path) -> None:
    write_raster(tmp_path / "tifs" / "S2_B04_2023-05-01.tif", some_pixels())
    assert "--dates is for one file" in refusal(tmp_path / "tifs", UsageError, dates=DATES)
    safe = write_product(tmp_path / "safe")
    given = {"dates": DATES, "bands": ("B02",)}
    with pytest.raises(UsageError, match="--dates is not for Sentinel-2 products"):
        open_raster_series(safe, ("B02",), {}, given)
    with pytest.raises(UsageError, match="--by-band is not for a store"):
        MapInput(small_store, "tile").open(("B02",), {}, {"by_band": True})
