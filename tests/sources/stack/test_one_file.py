"""One GeoTIFF with dates x bands: described bands, or dates and bands given by hand."""

from __future__ import annotations

import json
import subprocess
import warnings
from collections.abc import Callable, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from hypothesis import given
from hypothesis import strategies as st
from rasterio.errors import NotGeoreferencedWarning

from cropstar.errors import CropstarError, InputError, UsageError
from cropstar.geo.windows import Window, split
from cropstar.prediction.request import MapInput
from cropstar.sources.base import Observations
from cropstar.sources.catalogue import open_raster_series
from cropstar.sources.stack import StackOptions, StackSeries, open_stack
from cropstar.sources.stack.names import parse_dates
from cropstar.sources.stack.rasters import OpenRasters
from cropstar.store.store import Store
from tests.sources.examples.dated import Pixels, some_pixels, write_raster
from tests.sources.examples.safe import write_product
from tests.sources.examples.stacks import BANDS, write_four_fields, write_stack

WHOLE = Window(0, 0, 20, 30)


def read(path: Path, window: Window = WHOLE) -> Observations:
    series = StackSeries(path)
    try:
        return series.read(window)
    finally:
        series.close()


def about(path: Path) -> StackSeries:
    series = StackSeries(path)
    series.close()
    return series


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        StackSeries(path)
    assert str(path) in str(caught.value)
    assert caught.value.remedy
    return str(caught.value)


# --- what is read


def test_the_small_scene_as_rasterio_reads_it(small_scene: Path) -> None:
    path = small_scene / "tile.tif"
    series, window = StackSeries(path), Window(10, 20, 30, 40)
    observations = series.read(window)
    with rasterio.open(path) as dataset:
        raw = dataset.read()[:, 10:40, 20:60].reshape(len(series.dates), -1, 30, 40)  # (T, bands + SCL, H, W)
        named = [dataset.tags(index)["BAND"] for index in range(1, raw.shape[1] + 1)]
        days = [date.fromisoformat(dataset.tags(index)["DATE"]) for index in dataset.indexes]
        assert (series.grid.shape, series.grid.bounds) == (dataset.shape, tuple(dataset.bounds))
        assert (series.scale, series.offset) == (dataset.scales[0], dataset.offsets[0])
    series.close()
    assert (*series.bands, "SCL") == tuple(named)
    assert series.dates == tuple(sorted(set(days)))
    clear = np.isin(raw[:, -1], [2, 4, 5, 6, 7]) & (raw[:, :-1] != 0).all(axis=1)
    assert np.array_equal(observations.valid, clear)
    assert 0.2 < clear.mean() < 1
    assert np.array_equal(observations.values, np.where(clear[:, None], raw[:, :-1], 0))
    assert observations.values.dtype == np.uint16


def test_windows_put_together_are_the_whole(tmp_path: Path) -> None:
    series = StackSeries(write_stack(tmp_path / "a.tif", nodata=0))
    whole = series.read(WHOLE)
    for window in split((20, 30), 7):
        part, (rows, columns) = series.read(window), window.slices
        assert np.array_equal(part.values, whole.values[:, :, rows, columns])
        assert np.array_equal(part.valid, whole.valid[:, rows, columns])
    series.close()


@pytest.mark.parametrize(
    "form", ["{day} {band}", "{plain}_{band}", "{plain}:{band}", "{day}  {lower}", " {day} {band} ", "{plain}_{lower}"]
)
def test_bands_by_description_alone(tmp_path: Path, form: str) -> None:
    described = []
    for text in BANDS:
        day, band = text.split()
        described.append(form.format(day=day, plain=day.replace("-", ""), band=band, lower=band.lower()))
    series = about(write_stack(tmp_path / "a.tif", described))
    assert series.bands == ("B04", "B08")
    assert series.dates == (date(2023, 5, 1), date(2023, 6, 10))


def test_tags_are_believed_before_descriptions(tmp_path: Path) -> None:
    tags = [{"DATE": "2020-01-0" + str(1 + index // 2), "BAND": f"B0{2 + index % 2}"} for index in range(4)]
    series = about(write_stack(tmp_path / "a.tif", ["anything"] * 4, tags=tags))
    assert series.dates == (date(2020, 1, 1), date(2020, 1, 2))
    assert series.bands == ("B02", "B03")


def test_bands_in_any_order_are_put_in_order(tmp_path: Path) -> None:
    shuffled = [3, 0, 2, 1]
    pixels = np.random.default_rng(0).integers(1, 10_000, (4, 20, 30)).astype(np.uint16)
    write_stack(tmp_path / "a.tif", [BANDS[index] for index in shuffled], pixels[shuffled])
    series = StackSeries(tmp_path / "a.tif")
    assert series.bands == ("B04", "B08")
    assert np.array_equal(series.read(WHOLE).values, pixels.reshape(2, 2, 20, 30))
    series.close()


def test_the_scene_classification_becomes_the_mask(tmp_path: Path) -> None:
    classes = np.tile(np.arange(12, dtype=np.uint16), 50).reshape(1, 20, 30)
    pixels = np.concatenate([np.full((1, 20, 30), 500, dtype=np.uint16), classes])
    observations = read(write_stack(tmp_path / "a.tif", ["2023-05-01 B04", "2023-05-01 SCL"], pixels))
    assert np.array_equal(observations.valid, np.isin(classes, [2, 4, 5, 6, 7]))
    assert (observations.values[:, 0][observations.valid] == 500).all()
    assert (observations.values[:, 0][~observations.valid] == 0).all()


def test_nodata_without_scene_classification(tmp_path: Path) -> None:
    pixels = np.full((4, 20, 30), 700, dtype=np.uint16)
    pixels[1, 3, 4] = 9
    observations = read(write_stack(tmp_path / "a.tif", BANDS, pixels, nodata=9))
    assert np.argwhere(~observations.valid).tolist() == [[0, 3, 4]]
    assert observations.values[0, :, 3, 4].tolist() == [0, 0]
    assert observations.values[1, :, 3, 4].tolist() == [700, 700]


def test_without_nodata_black_is_what_the_swath_missed(tmp_path: Path) -> None:
    pixels = np.zeros((4, 20, 30), dtype=np.uint16)
    pixels[0, :, 5:] = pixels[3, 7, 8] = 9  # one band of a date is enough to have seen something
    valid = read(write_stack(tmp_path / "a.tif", BANDS, pixels)).valid
    assert valid[0, :, 5:].all()
    assert not valid[0, :, :5].any()
    assert np.argwhere(valid[1]).tolist() == [[7, 8]]


def test_dark_pixels_of_a_signed_stack_do_not_turn_bright(tmp_path: Path) -> None:
    pixels = np.full((4, 20, 30), 300, dtype=np.int16)
    pixels[0, 0, :3] = [-25, -9999, 32_767]
    observations = read(write_stack(tmp_path / "a.tif", BANDS, pixels, nodata=-9999))
    assert observations.values[0, 0, 0, :4].tolist() == [0, 0, 32_767, 300]
    assert observations.valid[0, 0, :4].tolist() == [True, False, True, True]
    wide = np.full((4, 20, 30), 70_000, dtype=np.int32)
    assert (read(write_stack(tmp_path / "b.tif", BANDS, wide)).values == 65_535).all()


@pytest.mark.parametrize(
    ("scales", "offsets", "expected"),
    [
        (None, None, (1e-4, 0.0)),
        ([1e-4] * 4, [-0.1] * 4, (1e-4, -0.1)),
        ([0.001] * 4, None, (0.001, 0.0)),
    ],
)
def test_scale_and_offset(
    tmp_path: Path, scales: list[float] | None, offsets: list[float] | None, expected: tuple[float, float]
) -> None:
    series = about(write_stack(tmp_path / "a.tif", scales=scales, offsets=offsets))
    assert (series.scale, series.offset) == expected


def test_the_scale_of_the_mask_does_not_count(tmp_path: Path) -> None:
    bands = ["2023-05-01 B04", "2023-05-01 SCL"]
    assert about(write_stack(tmp_path / "a.tif", bands, scales=[0.01, 1.0])).scale == 0.01


# --- what is refused


@pytest.mark.parametrize(
    ("bands", "words"),
    [
        (["2023-05-01 B04", "2023-05-01 B08", "2023-06-10 B04"], "2023-06-10 has no B08"),
        (["2023-05-01 B04", "2023-05-01 SCL", "2023-06-10 B04"], "2023-06-10 has no SCL"),
        (["2023-05-01 B04", "2023-05-01 b04"], "a band appears twice"),
        (["2023-05-01 SCL", "2023-06-10 SCL"], "no reflectance bands"),
        (["B04", "B08"], "band 1 is described as 'B04'"),
        (["2023-05-01 B04", ""], "band 2 is described as ''"),
        (["2023-02-30 B04"], "band 1 is described as '2023-02-30 B04'"),
        (["2023-05-01"], "unknown bands"),
        (["2023-05-01 04"], "unknown bands"),
    ],
)
def test_unclear_bands_are_refused(tmp_path: Path, bands: list[str], words: str) -> None:
    assert words in refusal(write_stack(tmp_path / "a.tif", bands))


def test_bands_of_different_scale_are_refused(tmp_path: Path) -> None:
    path = write_stack(tmp_path / "a.tif", scales=[1e-4, 1e-4, 1e-3, 1e-4])
    assert "bands differ in scale or offset" in refusal(path)
    path = write_stack(tmp_path / "b.tif", offsets=[0, 0, -0.1, -0.1])
    assert "bands differ in scale or offset" in refusal(path)


def test_a_stack_without_coordinate_system_is_refused(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        path = write_stack(tmp_path / "a.tif", crs=None)
        assert "no coordinate system" in refusal(path)


@pytest.mark.parametrize("compress", ["none", "deflate"])
def test_a_cut_file_is_found_when_it_is_read(tmp_path: Path, compress: str) -> None:
    path = write_stack(tmp_path / "a.tif", compress=compress)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) - 2000])
    with pytest.raises(InputError) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert caught.value.exit_code == 3


def test_a_spoilt_block_is_found_when_it_is_read(small_scene: Path, tmp_path: Path) -> None:
    path = tmp_path / "tile.tif"
    content = bytearray((small_scene / "tile.tif").read_bytes())
    middle = len(content) // 2
    content[middle : middle + 2000] = bytes(2000)
    path.write_bytes(content)
    with pytest.raises(InputError, match="damaged raster") as caught:
        read(path, Window(0, 0, 96, 96))
    assert "get the file again" in str(caught.value)


def test_a_refused_file_is_not_held_open(tmp_path: Path) -> None:
    path = write_stack(tmp_path / "a.tif", ["B04"])
    assert "unknown bands" in refusal(path)
    held = {Path(link).resolve() for link in Path("/proc/self/fd").iterdir() if link.exists()}
    assert path.resolve() not in held


# --- --dates and --bands

DATES = "2023-05-01,2023-06-10"
FOUR_BANDS = [""] * 4


def read_by_hand(path: Path, **options: Any) -> tuple[tuple[str, ...], tuple[date, ...], Observations]:
    (series,) = open_stack(path, StackOptions(**options))
    try:
        return series.bands, series.dates, series.read(WHOLE)
    finally:
        series.close()


def refusal_by_hand(path: Path, kind: type[CropstarError], **options: Any) -> str:
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
    expected = read_by_hand(small_scene / "tile.tif")
    for dates in (",".join(days), f"@{listed}", listed):
        assert_same(read_by_hand(tmp_path / "bare.tif", dates=dates, bands=bands), expected)


@given(st.permutations(range(3)), st.booleans())
def test_either_order_and_dates_in_any(
    tmp_path_factory: pytest.TempPathFactory, turn: list[int], by_band: bool
) -> None:
    days = [date(2023, 4, 1) + timedelta(days=20 * place) for place in range(3)]
    pixels = np.random.default_rng(0).integers(1, 10_000, (3, 2, 20, 30)).astype(np.uint16)  # (T, C, H, W)
    stored = pixels[turn]
    flat = (stored.swapaxes(0, 1) if by_band else stored).reshape(6, 20, 30)
    path = write_stack(tmp_path_factory.mktemp("stack") / "a.tif", [""] * 6, flat)
    bands, dates, seen = read_by_hand(
        path, dates=[days[place] for place in turn], bands=("B08", "B04"), by_band=by_band
    )
    assert (bands, dates) == (("B08", "B04"), tuple(days))
    np.testing.assert_array_equal(seen.values, pixels)


def test_bands_with_names_and_no_dates(tmp_path: Path) -> None:
    expected = read_by_hand(write_stack(tmp_path / "all.tif", BANDS))
    names = write_stack(tmp_path / "names.tif", ["B4", "B8", "B4", "B8"])
    assert_same(read_by_hand(names, dates=DATES), expected)
    assert_same(read_by_hand(names, dates=DATES, bands=("B04", "B08")), expected)
    assert read_by_hand(names, dates=DATES, bands=("B08",))[0] == ("B08",)


@pytest.mark.parametrize("bands", ["B04=red,B08=nir", "red=B04,nir=b8", "B4=RED,B08=nir"])
def test_names_of_the_file_become_the_model_s(tmp_path: Path, bands: str) -> None:
    described = [text.replace("B04", "red").replace("B08", "nir") for text in BANDS]
    expected = read_by_hand(write_stack(tmp_path / "all.tif", BANDS))
    named = tuple(bands.split(","))
    assert_same(read_by_hand(write_stack(tmp_path / "named.tif", described), bands=named), expected)
    bare = write_stack(tmp_path / "bare.tif", [text.split()[1] for text in described])
    assert_same(read_by_hand(bare, bands=named, dates=DATES), expected)


def test_names_can_change_places(tmp_path: Path) -> None:
    path = write_stack(tmp_path / "a.tif", BANDS)
    _, _, plain = read_by_hand(path)
    bands, _, swapped = read_by_hand(path, bands=("B04=B08", "B08=B04"))
    assert bands == ("B04", "B08")
    np.testing.assert_array_equal(swapped.values, plain.values[:, ::-1])
    bands, _, one = read_by_hand(path, bands=("B04=B08",))  # the file's own B04 is not meant
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
    said = refusal_by_hand(write_stack(tmp_path / "a.tif", FOUR_BANDS), kind, **options)
    assert all(word in said for word in ["a.tif", *words]), said


def test_names_that_come_too_often(tmp_path: Path) -> None:
    path = write_stack(tmp_path / "a.tif", ["B04", "B08", "B04", "B04"])
    assert "3 bands are called B04 and 2 dates are given" in refusal_by_hand(path, InputError, dates=DATES)


def test_dates_that_the_file_says_otherwise(tmp_path: Path) -> None:
    path = write_stack(tmp_path / "a.tif", BANDS)
    said = refusal_by_hand(path, InputError, dates="2023-05-01,2023-06-11", bands=("B04", "B08"))
    assert "band 3 is described as '2023-06-10 B04', and --dates makes it one of 2023-06-11" in said
    assert_same(read_by_hand(path, dates=DATES), read_by_hand(path))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2023-05-01,2023-05-01", "a date appears twice"),
        ("2023-05-01,", "not a date"),
        ("", "not a date"),
        ("2023-02-30", "not a date"),
        ("1 May", "not a date"),
        ("2023-05-01;2023-06-10", "not a date"),
    ],
)
def test_dates_that_are_none(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=f"{words} in --dates.*one date per line"):
        parse_dates(text)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"2023-05-01\nmaybe\n", "not a date.*'maybe'"),
        (b"2023-05-01\n2023-05-01\n", "twice.*2023-05-01"),
        (b"\n\n", "no dates.*empty"),
        (b"\xff\xfe\x00", "not a text in UTF-8"),
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
    with pytest.raises(UsageError, match="--bands needs names, each once"):
        StackOptions(bands=bands)


def test_bands_that_are_not_there_or_twice(tmp_path: Path) -> None:
    path = write_stack(tmp_path / "a.tif", BANDS)
    assert "no band 'RED'" in refusal_by_hand(path, UsageError, bands=("B02=red",))
    for bands in (("B02=B04", "B03=B04"), ("B02=B04", "B02=B08")):
        assert "names a band twice" in refusal_by_hand(path, UsageError, bands=bands)


def test_by_band_wants_both() -> None:
    with pytest.raises(UsageError, match="--by-band needs --dates and --bands"):
        StackOptions(by_band=True, dates=DATES)


def test_dates_are_for_one_file_alone(tmp_path: Path, small_store: Path) -> None:
    write_raster(tmp_path / "tifs" / "S2_B04_2023-05-01.tif", some_pixels())
    assert "--dates is for one file" in refusal_by_hand(tmp_path / "tifs", UsageError, dates=DATES)
    safe = write_product(tmp_path / "safe")
    given = {"dates": DATES, "bands": ("B02",)}
    with pytest.raises(UsageError, match="--dates does not apply to Sentinel-2 products"):
        open_raster_series(safe, ("B02",), {}, given)
    with pytest.raises(UsageError, match="--by-band does not apply to a store"):
        MapInput(small_store, "tile").open(("B02",), {}, {"by_band": True})


# --- As a folder of the same bands

SHORT = [f"{day} {band}" for day in ("2023-04-01", "2023-05-01") for band in ("B8", "SCL", "b4")]
UNMASKED = "neither scene classification (SCL) nor masks are there: clouds are not masked"


def pixels_of(count: int, *, empty: tuple[int, ...] = (), nodata: int = 0) -> Pixels:
    pixels = some_pixels(3, (count, 20, 30), "uint16")
    for band in empty:
        pixels[band] = nodata
    return pixels


# --- names and order


@pytest.mark.parametrize(
    ("given", "bands"),
    [
        (None, ("B04", "B08")),
        (("B4", "B8"), ("B04", "B08")),
        (("B04", "B08"), ("B04", "B08")),
        (("b8", "B004"), ("B08", "B04")),
        (("b4",), ("B04",)),
    ],
)
def test_bands_have_one_name(tmp_path: Path, given: tuple[str, ...] | None, bands: tuple[str, ...]) -> None:
    pixels = pixels_of(6)
    pixels[[1, 4]] = 4
    path = write_stack(tmp_path / "a.tif", SHORT, pixels)
    for series in open_stack(path, StackOptions(bands=given)):
        assert series.bands == bands
        place = {"B08": 0, "B04": 2}
        expected = pixels.reshape(2, 3, 20, 30)[:, [place[band] for band in bands]]
        assert np.array_equal(series.read(WHOLE).values, expected)
        series.close()


def test_one_band_in_two_spellings_stands_twice(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a band appears twice .* 2023-05-01 B8A"):
        StackSeries(write_stack(tmp_path / "a.tif", ["2023-05-01 B8A", "2023-05-01 B08A"]))


def test_one_file_and_a_folder_of_the_same_images_are_one_series(tmp_path: Path) -> None:
    days, names = ("2023-04-01", "2023-05-01", "2023-06-01"), ("SCL", "NDVI", "B12", "B2", "b8a")
    pixels = pixels_of(15, empty=(5, 6, 7, 8, 9))  # nothing on the second date
    pixels[[0, 10]] %= 12
    described = [f"{day} {name}" for day in days for name in names]
    (one,) = open_stack(write_stack(tmp_path / "a.tif", described, pixels, nodata=0))
    for number, day in enumerate(days):
        part = pixels[5 * number : 5 * number + 5]
        write_raster(tmp_path / "dated" / f"S2_{day}.tif", part, names=names, nodata=0)
    (several,) = open_stack(tmp_path / "dated")
    assert one.bands == several.bands == ("B02", "B8A", "B12", "NDVI")
    assert one.dates == several.dates == (date(2023, 4, 1), date(2023, 6, 1))
    assert one.notes == several.notes
    assert (one.scale, one.offset) == (several.scale, several.offset)
    mine, its = one.read(WHOLE), several.read(WHOLE)
    assert np.array_equal(mine.values, its.values)
    assert np.array_equal(mine.valid, its.valid)
    assert 0.2 < mine.valid.mean() < 0.9
    one.close()
    several.close()


# --- dates without data, clouds without masks

FOUR = [f"2023-0{month}-01 {band}" for month in (4, 5, 6, 7) for band in ("B04", "B08")]


@pytest.mark.parametrize("nodata", [0, None, 9999])
@pytest.mark.parametrize("interleave", ["band", "pixel"])
def test_dates_without_data_are_dropped_and_named(
    tmp_path: Path, nodata: int | None, interleave: str, caplog: pytest.LogCaptureFixture
) -> None:
    pixels = pixels_of(8, empty=(2, 3, 6, 7), nodata=nodata or 0)
    series = StackSeries(write_stack(tmp_path / "a.tif", FOUR, pixels, nodata=nodata, interleave=interleave))
    assert series.dates == (date(2023, 4, 1), date(2023, 6, 1))
    assert np.array_equal(series.read(WHOLE).values, pixels.reshape(4, 2, 20, 30)[::2])
    assert series.notes == ["2 of 4 dates left out, without any data: 2023-05-01, 2023-07-01", UNMASKED]
    assert all(f"a: {note}" in caplog.text for note in series.notes)
    assert series.provenance["without_data"] == ["2023-05-01", "2023-07-01"]
    series.close()


def test_a_date_with_one_pixel_of_data_is_kept(tmp_path: Path) -> None:
    pixels = pixels_of(8, empty=(2, 3))
    pixels[2:4, 0, 29] = 5
    series = StackSeries(write_stack(tmp_path / "a.tif", FOUR, pixels, nodata=0))
    assert len(series.dates) == 4
    assert np.argwhere(series.read(WHOLE).valid[1]).tolist() == [[0, 29]]
    assert "without_data" not in series.provenance
    series.close()


@pytest.mark.parametrize("seed", range(12))
def test_few_pixels_anywhere_are_found(tmp_path: Path, seed: int) -> None:
    """Tiles or strips, bands apart or together, nodata known or not: as looking at all pixels tells."""
    random = np.random.default_rng(seed)
    pixels = np.zeros((8, 300, 290), dtype=np.uint16)
    for band in np.flatnonzero(random.random(8) < 0.8):
        pixels[band, random.integers(300), random.integers(290)] = 7
    pixels[:2, 299, 0] = 7
    nodata = [0, None][seed % 2]
    form: dict[str, Any] = [{"tiled": True, "blockxsize": 64, "blockysize": 64}, {"blockysize": 3}][seed // 2 % 2]
    path = write_stack(
        tmp_path / "a.tif", FOUR, pixels, nodata=nodata, interleave=["band", "pixel"][seed // 4 % 2], **form
    )
    series = StackSeries(path)
    there = pixels.any(axis=(1, 2)).reshape(4, 2)
    kept = there.all(axis=1) if nodata == 0 else there.any(axis=1)
    assert [day.month - 4 for day in series.dates] == np.flatnonzero(kept).tolist()
    series.close()


def test_where_there_is_data_one_block_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    form: dict[str, Any] = {"tiled": True, "blockxsize": 256, "blockysize": 256}
    path = write_stack(tmp_path / "a.tif", FOUR, some_pixels(3, (8, 800, 800), "uint16"), nodata=0, **form)
    looks, plain = [], OpenRasters.read

    def counting(self: OpenRasters, path: Path, indexes: Sequence[int], window: Window, *, raw: bool = False) -> Pixels:
        looks.append((len(indexes), window))
        return plain(self, path, indexes, window, raw=raw)

    monkeypatch.setattr(OpenRasters, "read", counting)
    StackSeries(path).close()
    assert [(count, window.height, window.width) for count, window in looks] == [(8, 256, 256)]


def test_a_scene_classification_of_zeros_is_a_date_without_data(tmp_path: Path) -> None:
    pixels = pixels_of(6)
    pixels[[1, 4]] = [[[0]], [[4]]]
    series = StackSeries(write_stack(tmp_path / "a.tif", SHORT, pixels))
    assert series.dates == (date(2023, 5, 1),)
    assert series.notes == ["1 of 2 dates left out, without any data: 2023-04-01"]
    assert series.read(WHOLE).valid.all()
    series.close()


def test_no_date_with_data_is_no_series(tmp_path: Path) -> None:
    path = write_stack(tmp_path / "a.tif", FOUR, np.zeros((8, 20, 30), dtype=np.uint16), nodata=0)
    with pytest.raises(InputError, match=r"no usable date in .*a.tif: none of 4 dates has any data"):
        StackSeries(path)


def test_the_demonstration_scene_has_nothing_to_tell(small_scene: Path, caplog: pytest.LogCaptureFixture) -> None:
    series = StackSeries(small_scene / "tile.tif")
    assert series.bands == ("B02", "B03", "B04", "B05", "B07", "B08", "B11", "B12")
    assert series.notes == []
    assert not caplog.text
    assert series.provenance == {"source": "stack", "file": "tile.tif"}
    series.close()


# --- through the command line


def test_by_command(tmp_path: Path, run_cli: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    path = write_stack(tmp_path / "a.tif", SHORT, np.maximum(pixels_of(6) % 12, 1))
    parcels, store = write_four_fields(tmp_path / "parcels.gpkg"), tmp_path / "store"
    known = ["ingest", path, "--parcels", parcels, "-o", store]
    refused = run_cli(*known, "--resampling", "nearest", cwd=tmp_path)
    assert refused.returncode == UsageError("").exit_code
    assert "--resampling is for a folder of dated files" in refused.stderr
    done = run_cli(*known, "--bands", "B8,b4", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert Store.open(store).fingerprint.bands == ("B08", "B04")
