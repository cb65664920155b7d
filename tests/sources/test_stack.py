"""GeoTIFF stacks: what rasterio reads, in order and masked; anything unclear is refused."""

from __future__ import annotations

import warnings
from datetime import date
from pathlib import Path

import numpy as np
import pytest
import rasterio
from rasterio.errors import NotGeoreferencedWarning

from cropstar.errors import InputError
from cropstar.geo.windows import Window, split
from cropstar.sources.base import Observations
from cropstar.sources.stack import StackSeries
from tests.sources.examples.stacks import BANDS, write_stack

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
        (["2023-05-01 B04", "2023-05-01 b04"], "a band stands twice"),
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


def test_floats_are_refused(tmp_path: Path) -> None:
    path = write_stack(tmp_path / "a.tif", BANDS, np.full((4, 20, 30), 0.3, dtype=np.float32))
    assert "values are float32" in refusal(path)


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
