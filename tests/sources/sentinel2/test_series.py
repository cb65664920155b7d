"""Products of one tile as a series: grid, scale, clouds, merged days, bad band files."""

from __future__ import annotations

import os
import pickle
import shutil
import struct
import tracemalloc
from datetime import date
from pathlib import Path

import numpy as np
import pytest
import rasterio
from rasterio.transform import Affine

from cropstar.errors import InputError, UsageError
from cropstar.geo.windows import Window, split
from cropstar.sources import base
from cropstar.sources.base import Observations, Series
from cropstar.sources.sentinel2 import Sentinel2Options, Sentinel2Series, find_products, open_sentinel2
from cropstar.sources.sentinel2 import series as module
from cropstar.sources.sentinel2.series import DEFAULT_BANDS, BandFiles
from tests.sources.examples.safe import (
    CORNER,
    FEW,
    HEIGHT,
    WIDTH,
    Pixels,
    band_file,
    some_pixels,
    write_band,
    write_product,
    zip_product,
)

WHOLE = Window(0, 0, HEIGHT, WIDTH)


def read(path: Path, options: Sentinel2Options | None = None) -> tuple[Sentinel2Series, Observations]:
    (series,) = open_sentinel2(path, options)
    observations = series.read(WHOLE)
    series.close()
    return series, observations


def refusal(path: Path, options: Sentinel2Options | None = None) -> str:
    with pytest.raises(InputError) as caught:
        open_sentinel2(path, options)
    assert "\n" not in str(caught.value)
    assert caught.value.remedy
    return str(caught.value)


def constant(band: str, value: int) -> Pixels:
    return np.full_like(some_pixels(band), value)


def spread(pixels: Pixels, ratio: int = 2) -> Pixels:
    """Coarse pixels repeated on the 10 m grid."""
    return pixels.repeat(ratio, axis=0).repeat(ratio, axis=1)[:HEIGHT, :WIDTH]


def test_it_is_a_series(tmp_path: Path) -> None:
    write_product(tmp_path, day="2023-06-10", bands=(*DEFAULT_BANDS, "SCL"))
    write_product(tmp_path, day="2023-05-01", bands=("B01", *DEFAULT_BANDS, "SCL"))
    found, observations = read(tmp_path)
    series: Series = found
    assert (series.name, series.dates) == ("T32UPU-2023", (date(2023, 5, 1), date(2023, 6, 10)))
    assert series.bands == DEFAULT_BANDS
    assert (series.grid.shape, series.grid.resolution) == ((HEIGHT, WIDTH), 10)
    assert (series.scale, series.offset) == (1e-4, 0.0)
    assert observations.values.shape == (2, 10, HEIGHT, WIDTH)
    assert observations.values.dtype == np.uint16
    assert observations.valid.all()
    assert found.notes == []
    assert series.provenance["source"] == "sentinel2"
    assert series.provenance["baselines"] == ["02.08", "02.08"]
    assert series.provenance["resampling"] == "bilinear"
    assert series.provenance["scene_classes"] == [2, 4, 5, 6, 7]
    assert found.files == sorted(path for path in tmp_path.rglob("*") if path.is_file() and "_B01_" not in path.name)


def test_bands_of_10_20_and_60_metres_by_name(tmp_path: Path) -> None:
    write_product(tmp_path, bands=("B01", "B02", "B05", "SCL"))
    series, observations = read(tmp_path, Sentinel2Options(bands=("b5", "B1", "B02"), resampling="nearest"))
    assert series.bands == ("B05", "B01", "B02")
    wanted = [spread(some_pixels("B05")), spread(some_pixels("B01"), 6), some_pixels("B02")]
    assert np.array_equal(observations.values[0], wanted)


def test_coarse_bands_alone_make_a_coarse_grid(tmp_path: Path) -> None:
    write_product(tmp_path)
    (series,) = open_sentinel2(tmp_path, Sentinel2Options(bands=("B05",)))
    assert (series.grid.resolution, series.grid.shape) == (20, (13, 10))
    assert np.array_equal(series.read(Window(0, 0, 13, 10)).values[0, 0], some_pixels("B05"))
    series.close()


def test_bilinear_between_the_centres(tmp_path: Path) -> None:
    pixels = some_pixels("B05")
    pixels[:2, :2] = [[100, 200], [300, 500]]
    write_product(tmp_path, pixels={"B05": pixels})
    values = read(tmp_path)[1].values[0, 1]
    assert values[0, 0] == 100
    assert values[1, 1] == round((9 * 100 + 3 * 200 + 3 * 300 + 500) / 16)
    assert values[0, 1] == 125


@pytest.mark.parametrize("resampling", ["nearest", "bilinear", "cubic"])
def test_windows_put_together_are_the_whole(tmp_path: Path, resampling: str) -> None:
    holes = some_pixels("B05") * (np.random.default_rng(1).random((13, 10)) > 0.2)
    write_product(
        tmp_path, bands=("B01", *FEW), pixels={"B05": holes.astype(np.uint16)}, baseline="05.00", offset=-1000
    )
    (series,) = open_sentinel2(tmp_path, Sentinel2Options(bands=("B01", "B02", "B05"), resampling=resampling))
    whole = series.read(WHOLE)
    assert 0.5 < whole.valid.mean() < 1
    for size in (1, 3, 7):
        for window in split((HEIGHT, WIDTH), size):
            part, (rows, columns) = series.read(window), window.slices
            assert np.array_equal(part.values, whole.values[:, :, rows, columns])
            assert np.array_equal(part.valid, whole.valid[:, rows, columns])
    series.close()


def test_scene_classes_by_option(tmp_path: Path) -> None:
    classes = (np.arange(130) % 12).astype(np.uint8).reshape(13, 10)
    write_product(tmp_path, pixels={"SCL": classes})
    usual, chosen = read(tmp_path)[1], read(tmp_path, Sentinel2Options(clear=(11, 4)))[1]
    assert np.array_equal(usual.valid[0], np.isin(spread(classes), [2, 4, 5, 6, 7]))
    assert np.array_equal(chosen.valid[0], np.isin(spread(classes), [4, 11]))
    assert (usual.values[:, :, ~usual.valid[0]] == 0).all()


def test_nodata_of_any_band_is_invalid_and_does_not_darken_its_neighbours(tmp_path: Path) -> None:
    fine, coarse = constant("B02", 500), constant("B05", 800)
    fine[3, 4] = 0
    coarse[6, 5] = 0
    write_product(tmp_path, pixels={"B02": fine, "B05": coarse})
    for resampling in ("nearest", "bilinear", "cubic"):
        observations = read(tmp_path, Sentinel2Options(resampling=resampling))[1]
        invalid = np.argwhere(~observations.valid[0]).tolist()
        assert invalid == [[3, 4], [12, 10], [12, 11], [13, 10], [13, 11]]
        assert set(np.unique(observations.values[0, 0])) == {0, 500}
        assert set(np.unique(observations.values[0, 1])) == {0, 800}


def test_without_scene_classification_it_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_product(tmp_path, bands=("B02",))
    series, observations = read(tmp_path)
    assert observations.valid.all()
    assert "clouds are not masked" in " ".join(series.notes)
    assert "clouds are not masked" in caplog.text
    assert "no date has B03" in caplog.text


# --- reflectance


def test_the_offset_of_newer_baselines(tmp_path: Path) -> None:
    numbers = constant("B02", 3000)
    numbers[0, :5] = [0, 1, 1000, 1001, 65_535]
    write_product(tmp_path, baseline="04.00", offset=-1000, pixels={"B02": numbers})
    series, observations = read(tmp_path)
    assert observations.values[0, 0, 0, :6].tolist() == [0, 1, 1, 1, 64_535, 2000]
    assert observations.valid[0, 0, :6].tolist() == [False, True, True, True, True, True]
    assert series.provenance["reflectance_offsets"] == [[-1000.0, -1000.0]]


@pytest.mark.parametrize("resampling", ["nearest", "bilinear"])
def test_mixed_baselines_give_equal_reflectance(tmp_path: Path, resampling: str) -> None:
    ground = {"B02": some_pixels("B02"), "B05": some_pixels("B05")}
    write_product(tmp_path, day="2023-05-01", baseline="03.01", pixels=ground)
    lifted = {band: pixels + np.uint16(1000) for band, pixels in ground.items()}
    write_product(tmp_path, day="2023-05-11", baseline="05.09", offset=-1000, pixels=lifted)
    odd = {band: pixels + np.uint16(777) for band, pixels in ground.items()}
    write_product(tmp_path, day="2023-05-21", baseline="05.10", offset=-777, pixels=odd)
    doubled = {band: 2 * pixels for band, pixels in ground.items()}
    write_product(tmp_path, day="2023-05-31", baseline="03.01", quantification="20000", pixels=doubled)
    series, observations = read(tmp_path, Sentinel2Options(resampling=resampling))
    first, *others = observations.values
    assert np.array_equal(first[0], ground["B02"])
    for other in others:
        assert np.array_equal(other, first)
    assert series.provenance["quantification"] == [10_000, 10_000, 10_000, 20_000]


def test_the_offset_is_the_metadatas_not_the_dates_nor_the_baselines(tmp_path: Path) -> None:
    write_product(tmp_path, day="2025-05-01", baseline="05.11", pixels={"B02": constant("B02", 3000)})
    write_product(tmp_path, day="2016-05-01", baseline="02.01", offset=-1000, pixels={"B02": constant("B02", 3000)})
    series, observations = read(tmp_path)
    assert observations.values[:, 0, 0, 0].tolist() == [2000, 3000]
    assert "no BOA_ADD_OFFSET is listed" in " ".join(series.notes)
    assert series.name == "T32UPU-2016-2025"


def test_a_list_of_offsets_without_the_band_is_refused(tmp_path: Path) -> None:
    safe = write_product(tmp_path, baseline="04.00", offset=-1000)
    xml = safe / "MTD_MSIL2A.xml"
    xml.write_text(xml.read_text().replace('<BOA_ADD_OFFSET band_id="4">-1000</BOA_ADD_OFFSET>', ""))
    line = refusal(safe)
    assert "and not for B05" in line
    assert str(xml) in line


# --- Several products of one day


def halves(left: int, right: int) -> dict[str, Pixels]:
    """Numbers of two sides of the scene; zero is nodata."""
    pixels = {band: constant(band, left) for band in ("B02", "B05")}
    pixels["B02"][:, WIDTH // 2 :] = right
    pixels["B05"][:, WIDTH // 4 :] = right
    classes = constant("SCL", 4 if left else 0)
    classes[:, WIDTH // 4 :] = 4 if right else 0
    return {**pixels, "SCL": classes}


def test_split_granules_are_merged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    write_product(tmp_path, made="140000", pixels=halves(1000, 0))
    write_product(tmp_path, made="140100", pixels=halves(0, 2000))
    series, observations = read(tmp_path)
    assert len(series.dates) == 1
    assert observations.valid.all()
    assert (observations.values[0, :, :, : WIDTH // 2] == 1000).all()
    assert (observations.values[0, :, :, WIDTH // 2 :] == 2000).all()
    assert "2023-05-01: 2 products merged" in caplog.text
    assert len(series.provenance["products"]) == 2


def test_the_newest_product_comes_first_where_it_is_valid(tmp_path: Path) -> None:
    cloudy = halves(3000, 3000)
    cloudy["SCL"][:, : WIDTH // 4] = 9
    write_product(tmp_path, baseline="05.09", made="100000", offset=-1000, pixels=cloudy)
    write_product(tmp_path, baseline="02.08", made="150000", pixels=halves(700, 700))
    write_product(tmp_path, baseline="02.08", made="160000", pixels=halves(0, 900))
    values = read(tmp_path)[1].values[0]
    assert (values[:, :, : WIDTH // 2] == 700).all()
    assert (values[:, :, WIDTH // 2 :] == 2000).all()
    shutil.rmtree(next(tmp_path.glob("*_N0509_*")))
    values = read(tmp_path)[1].values[0]
    assert (values[:, :, : WIDTH // 2] == 700).all()
    assert (values[:, :, WIDTH // 2 :] == 900).all()


def test_one_product_found_twice_counts_once(tmp_path: Path) -> None:
    safe = write_product(tmp_path / "a")
    shutil.copytree(safe, tmp_path / "b" / safe.name)
    series = read(tmp_path)[0]
    assert len(series.provenance["products"]) == 1
    assert "is there twice" in " ".join(series.notes)


def test_dates_without_data_are_dropped_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_product(tmp_path, day="2023-05-01")
    write_product(tmp_path, day="2023-05-11", pixels=halves(0, 0))
    write_product(tmp_path, day="2023-05-21", pixels={"B02": constant("B02", 0)})
    write_product(tmp_path, day="2023-05-01", made="235959", pixels=halves(0, 0))
    series, observations = read(tmp_path)
    assert series.dates == (date(2023, 5, 1),)
    assert observations.valid.all()
    assert "2 of 3 dates left out, without any data: 2023-05-11, 2023-05-21" in caplog.text
    assert "T235959 left out" in caplog.text
    assert len(series.provenance["without_data"]) == 3
    shutil.rmtree(next(tmp_path.glob("*T140000.SAFE")))
    assert "no usable date" in refusal(tmp_path / next(tmp_path.glob("*20230511*")).name)


def test_tiles_are_series_of_their_own(tmp_path: Path) -> None:
    write_product(tmp_path, tile="T33UUP", epsg=32633)
    write_product(tmp_path, tile="T32UPU")
    write_product(tmp_path, tile="T32UPU", day="2023-06-01")
    opened = open_sentinel2(tmp_path)
    assert [(series.name, len(series.dates)) for series in opened] == [("T32UPU-2023", 2), ("T33UUP-2023", 1)]
    for series in opened:
        series.close()


def test_tifs_are_read_too_and_a_cloudy_window_asks_for_no_bands(tmp_path: Path) -> None:
    safe = write_product(tmp_path, ending="tif", pixels={"SCL": constant("SCL", 9)})
    (series,) = open_sentinel2(safe)
    path = band_file(safe, "B05", "tif")
    path.write_bytes(b"")
    series.close()
    assert not series.read(WHOLE).valid.any()  # the emptied file was not looked at
    series.close()


# --- Products that do not fit

NEAREST = Sentinel2Options(resampling="nearest")


@pytest.mark.parametrize("band", ["B02", "B05", "SCL"])
def test_a_band_missing_on_one_date(tmp_path: Path, band: str) -> None:
    write_product(tmp_path, day="2023-05-01")
    safe = write_product(tmp_path, day="2023-05-11")
    band_file(safe, band).unlink()
    line = refusal(tmp_path)
    assert "2023-05-11" in line
    assert f"has no {band}" in line
    assert "2023-05-01" not in line


def test_a_band_that_is_asked_for_and_nowhere(tmp_path: Path) -> None:
    write_product(tmp_path)
    assert "has no B11" in refusal(tmp_path, Sentinel2Options(bands=("B02", "B11")))


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"corner": (CORNER[0] + 10, CORNER[1])}, "a shift of 10 x 0 m (1 x 0 pixels)"),
        ({"corner": (CORNER[0], CORNER[1] - 3)}, "a shift of 0 x -3 m (0 x -0.3 pixels)"),
        ({"epsg": 32633}, "EPSG:32633 instead of EPSG:32632"),
        ({"pixels": {"B02": np.ones((24, 20), np.uint16)}}, "20 x 24 pixels instead of 20 x 25"),
    ],
)
def test_grids_that_differ_between_dates(tmp_path: Path, other: dict[str, object], words: str) -> None:
    write_product(tmp_path, day="2023-05-01")
    write_product(tmp_path, day="2023-05-11", **other)  # type: ignore[arg-type]
    line = refusal(tmp_path)
    assert words in line
    assert "S2A_MSIL2A_20230501T102031" in line
    assert "S2A_MSIL2A_20230511T102031" in line


@pytest.mark.parametrize(
    ("band", "resolution", "corner", "epsg", "words"),
    [
        ("B05", 20, (CORNER[0] + 3, CORNER[1]), 32632, "shifted by 0.3 x 0 pixels"),
        ("SCL", 20, (CORNER[0], CORNER[1] + 5), 32632, "shifted by 0 x -0.5 pixels"),
        ("B05", 15, CORNER, 32632, "its pixels are 1.5 x 1.5"),
        ("B05", 20, CORNER, 32631, "EPSG:32631 instead of EPSG:32632"),
        ("B05", 20, (CORNER[0] + 40, CORNER[1]), 32632, "does not cover"),
        ("B03", 10, (CORNER[0] - 10, CORNER[1]), 32632, "does not cover"),
    ],
)
def test_bands_that_do_not_fit_the_grid(
    tmp_path: Path, band: str, resolution: float, corner: tuple[float, float], epsg: int, words: str
) -> None:
    safe = write_product(tmp_path, bands=("B02", "B03", "B05", "SCL"))
    file = band_file(safe, band)
    file.unlink()
    write_band(file, some_pixels(band), resolution, epsg=epsg, corner=corner)
    line = refusal(safe)
    assert words in line
    assert file.name in line


def test_a_band_of_the_finest_resolution_has_the_very_grid(tmp_path: Path) -> None:
    larger = np.ones((HEIGHT + 1, WIDTH), dtype=np.uint16)
    safe = write_product(tmp_path, bands=("B02", "B03", "SCL"), pixels={"B03": larger})
    assert "20 x 26 pixels instead of 20 x 25 as the grid has" in refusal(safe)


def test_a_coarse_grid_half_a_pixel_off_is_placed_right(tmp_path: Path) -> None:
    safe = write_product(tmp_path)
    file = band_file(safe, "B05")
    file.unlink()
    pixels = np.arange(1, 155, dtype=np.uint16).reshape(14, 11)
    write_band(file, pixels, 20, corner=(CORNER[0] - 10, CORNER[1] + 10))
    values = read(safe, NEAREST)[1].values[0, 1]
    assert np.array_equal(values, pixels.repeat(2, axis=0).repeat(2, axis=1)[1 : HEIGHT + 1, 1 : WIDTH + 1])


@pytest.mark.parametrize(
    ("bands", "resampling", "clear", "words"),
    [
        (("B02", "XY"), "bilinear", (4,), "unknown Sentinel-2 L2A band 'XY'"),
        (("SCL",), "bilinear", (4,), "unknown Sentinel-2 L2A band 'SCL'"),
        (("B02", "B13"), "bilinear", (4,), "unknown Sentinel-2 L2A band 'B13'"),
        (("B10",), "bilinear", (4,), "unknown Sentinel-2 L2A band 'B10'"),
        ((), "bilinear", (4,), "no band is named"),
        (None, "bilinaer", (4,), "did you mean 'bilinear'"),
        (None, "bilinear", (0, 4), "scene classes are 1 to 11: got 0"),
        (None, "bilinear", (), "scene classes are 1 to 11"),
    ],
)
def test_wrong_options(bands: tuple[str, ...] | None, resampling: str, clear: tuple[int, ...], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Sentinel2Options(bands=bands, resampling=resampling, clear=clear)


def test_a_series_of_no_products_is_refused() -> None:
    assert find_products([]) == []
    assert open_sentinel2([]) == []


# --- Band files


def open_and_read(path: Path) -> None:
    for series in open_sentinel2(path):
        try:
            series.read(WHOLE)
        finally:
            series.close()


def refusal_of_file(path: Path, named: str) -> str:
    """The one line for a product that must not be read, whether it shows when opened or when read."""
    with pytest.raises(InputError) as caught:
        open_and_read(path)
    line = str(caught.value)
    assert named in line
    assert "\n" not in line
    assert caught.value.exit_code == 3
    assert caught.value.remedy
    held = {str(Path(link).resolve()) for link in Path("/proc/self/fd").iterdir() if link.exists()}
    assert not any(str(path) in name for name in held)
    return line


@pytest.mark.parametrize("share", [0.02, 0.2, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("band", ["B02", "B05", "SCL"])
def test_a_cut_jp2(tmp_path: Path, band: str, share: float) -> None:
    safe = write_product(tmp_path)
    file = band_file(safe, band)
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * share)])
    assert "cut off" in refusal_of_file(safe, file.name)
    packed = zip_product(safe, tmp_path / "a.zip")
    refusal_of_file(packed, file.name)


def test_a_cut_that_only_reading_can_find(tmp_path: Path) -> None:
    """The length of the image box may be left open; inside an archive only GDAL looks at its end."""
    safe = write_product(tmp_path)
    file = band_file(safe, "B05")
    content = bytearray(file.read_bytes())
    start = content.index(b"jp2c")
    content[start - 4 : start] = bytes(4)
    file.write_bytes(content)
    open_sentinel2(safe)[0].close()  # an open length is fine
    file.write_bytes(content[:-200])
    assert "the end of the image is missing" in refusal_of_file(safe, file.name)
    line = refusal_of_file(zip_product(safe, tmp_path / "a.zip"), file.name)
    assert "the pixels cannot be read" in line


def test_a_spoilt_tif_is_found_when_read(tmp_path: Path) -> None:
    safe = write_product(tmp_path, ending="tif")
    file = band_file(safe, "B05", "tif")
    content = file.read_bytes()
    file.write_bytes(content[: len(content) - 200])
    assert "damaged band file" in refusal_of_file(safe, file.name) or "unreadable band file" in refusal_of_file(
        safe, file.name
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file is empty (zero bytes)"),
        (b"<!DOCTYPE html><html><body>Please log in</body></html>", "a web page or XML"),
        (b"\xef\xbb\xbf\n <html>", "a web page or XML"),
        (b'<VRTDataset rasterXSize="20" rasterYSize="25"><SRS>EPSG:4326</SRS></VRTDataset>', "a web page or XML"),
        (b"II*\x00" + bytes(100), "not a JPEG 2000 file"),
        (b"http://127.0.0.1/a.jp2", "not a JPEG 2000 file"),
        (module.JP2_SIGNATURE, "cut off in its header"),
        (module.JP2_SIGNATURE + struct.pack(">I4s", 8, b"free") * 200, "holds no JPEG 2000 image"),
        (module.JP2_SIGNATURE + struct.pack(">I4s", 3, b"free"), "cut off"),
        (module.JP2_SIGNATURE + struct.pack(">I4s", 0, b"jp2c") + bytes(60), "holds no JPEG 2000 image"),
    ],
)
def test_what_is_no_jp2(tmp_path: Path, content: bytes, words: str) -> None:
    safe = write_product(tmp_path)
    file = band_file(safe, "B02")
    file.write_bytes(content)
    assert words in refusal_of_file(safe, file.name)


@pytest.mark.parametrize("content", [b"", b"<VRTDataset/>", b"SIMPLE  = T", b"/vsicurl/http://127.0.0.1/a.tif"])
def test_what_is_no_tif(tmp_path: Path, content: bytes) -> None:
    safe = write_product(tmp_path, ending="tif")
    file = band_file(safe, "B02", "tif")
    file.write_bytes(content)
    assert "unreadable band file" in refusal_of_file(safe, file.name)


@pytest.mark.parametrize("size", [1_000_000, 2**32 - 1, 12_001])
def test_a_header_that_claims_too_much_is_refused_without_allocating(tmp_path: Path, size: int) -> None:
    safe = write_product(tmp_path)
    file = band_file(safe, "B02")
    content = bytearray(file.read_bytes())
    header, image = content.index(b"ihdr") + 4, content.index(b"\xff\x4f\xff\x51") + 8
    content[header : header + 8] = struct.pack(">2I", size, size)
    content[image : image + 8] = struct.pack(">2I", size, size)
    file.write_bytes(content)
    tracemalloc.start()
    assert f"{size} x {size} pixels" in refusal_of_file(safe, file.name)
    assert tracemalloc.get_traced_memory()[1] < 20_000_000
    tracemalloc.stop()


def test_a_tif_header_that_claims_too_much(tmp_path: Path) -> None:
    safe = write_product(tmp_path, ending="tif")
    file = band_file(safe, "B02", "tif")
    options = {
        "driver": "GTiff",
        "transform": Affine(10, 0, 0, 0, -10, 0),
        "count": 1,
        "dtype": "uint16",
        "crs": "EPSG:32632",
        "sparse_ok": True,
        "tiled": True,
    }
    with rasterio.open(
        file, "w", width=1_000_000, height=1_000_000, blockxsize=4096, blockysize=4096, bigtiff="YES", **options
    ):
        pass
    assert "too large to be a granule" in refusal_of_file(safe, file.name)


def test_bands_of_other_kinds_are_refused(tmp_path: Path) -> None:
    safe = write_product(tmp_path, ending="tif")
    file = band_file(safe, "B02", "tif")
    write_band(file, some_pixels("B02").astype(np.float32), 10)
    assert "1 bands of float32" in refusal_of_file(safe, file.name)


def test_a_lossy_scene_classification_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    safe = write_product(tmp_path)
    Sentinel2Series(find_products([safe])).close()
    assert "lossy" not in caplog.text
    path = band_file(safe, "SCL")
    with rasterio.open(path) as dataset:
        names = ("driver", "dtype", "count", "height", "width", "crs", "transform")
        profile, pixels = {name: dataset.profile[name] for name in names}, dataset.read()
    with rasterio.open(path, "w", **profile, REVERSIBLE="NO", QUALITY="50") as dataset:
        dataset.write(pixels)
    Sentinel2Series(find_products([safe])).close()
    assert "1 of 1 products store the scene classification lossy" in caplog.text


def test_side_files_are_not_looked_at(tmp_path: Path) -> None:
    safe = write_product(tmp_path)
    file = band_file(safe, "B02")
    moved = "<PAMDataset><SRS>EPSG:3035</SRS><GeoTransform>1, 2, 0, 3, 0, -2</GeoTransform></PAMDataset>"
    file.with_name(file.name + ".aux.xml").write_text(moved)
    file.with_suffix(".j2w").write_text("5\n0\n0\n-5\n0\n0\n")
    (series,) = open_sentinel2(safe)
    assert series.grid.transform == (10, 0, 600_000, 0, -10, 5_400_000)
    series.close()


def open_images() -> int:
    """The JPEG 2000 files that this process has open."""
    return sum(str(link.resolve()).endswith(".jp2") for link in Path("/proc/self/fd").iterdir())


def test_no_more_files_are_open_than_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "MAXIMUM_OPEN", 4)
    for day in ("2023-05-01", "2023-05-11", "2023-05-21"):
        write_product(tmp_path, day=day, seed=int(day[-2:]))
    (series,) = open_sentinel2(tmp_path)
    first, second = series.read(WHOLE), series.read(WHOLE)
    assert open_images() <= 4
    series.close()
    assert np.array_equal(first.values, second.values)
    assert (first.values[:, 0] == [some_pixels("B02", seed) for seed in (1, 11, 21)]).all()


def test_after_a_fork_files_are_opened_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (product,) = find_products(write_product(tmp_path))
    files, place = BandFiles(), product.files["B02"]
    before = files.dataset(place)
    child = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: child)
    assert files.dataset(place) is not before
    assert not before.closed  # the parent still reads it
    assert np.array_equal(files.read(place, WHOLE), before.read(1))
    files.close()
    before.close()


def test_a_copy_for_another_process_opens_its_own_files(tmp_path: Path) -> None:
    (series,) = open_sentinel2(write_product(tmp_path))
    copy = pickle.loads(pickle.dumps(series))
    series.close()
    assert np.array_equal(copy.read(WHOLE).values, series.read(WHOLE).values)  # a closed one opens again
    copy.close()
    series.close()
