"""A GeoTIFF of dates x bands is read as a folder of dated files would be: names, order, empty dates, warnings."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cropstar.errors import InputError, UsageError
from cropstar.geo.windows import Window
from cropstar.sources.stack import StackOptions, StackSeries, open_stack
from cropstar.sources.stack.handles import OpenRasters
from cropstar.store.store import Store
from tests.sources.examples.dated import Pixels, some_pixels, write_raster
from tests.sources.examples.stacks import write_four_fields, write_stack

WHOLE = Window(0, 0, 20, 30)
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
    for series in (*open_stack(path, StackOptions(bands=given)), StackSeries(path, bands=given)):
        assert series.bands == bands
        place = {"B08": 0, "B04": 2}
        expected = pixels.reshape(2, 3, 20, 30)[:, [place[band] for band in bands]]
        assert np.array_equal(series.read(WHOLE).values, expected)
        series.close()


def test_one_band_in_two_spellings_stands_twice(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a band stands twice .* 2023-05-01 B8A"):
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

    def counting(self: OpenRasters, path: Path, indexes: Sequence[int], window: Window) -> Pixels:
        looks.append((len(indexes), window))
        return plain(self, path, indexes, window)

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
