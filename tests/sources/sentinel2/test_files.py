"""Band files that are not what they should be: one line naming the file, nothing allocated, nothing held open."""

from __future__ import annotations

import pickle
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import rasterio
from rasterio.transform import Affine

from cropstar.errors import InputError
from cropstar.geo.windows import Window
from cropstar.sources import base
from cropstar.sources.sentinel2 import files as module
from cropstar.sources.sentinel2 import open_series
from tests.sources.examples.safe import HEIGHT, WIDTH, band_file, some_pixels, write_band, write_product, zip_product

WHOLE = Window(0, 0, HEIGHT, WIDTH)


def open_and_read(path: Path) -> None:
    for series in open_series(path):
        try:
            series.read(WHOLE)
        finally:
            series.close()


def refusal(path: Path, named: str) -> str:
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
    assert "cut off" in refusal(safe, file.name)
    packed = zip_product(safe, tmp_path / "a.zip")
    refusal(packed, file.name)


def test_a_cut_that_only_reading_can_find(tmp_path: Path) -> None:
    """The length of the image box may be left open; inside an archive only GDAL looks at its end."""
    safe = write_product(tmp_path)
    file = band_file(safe, "B05")
    content = bytearray(file.read_bytes())
    start = content.index(b"jp2c")
    content[start - 4 : start] = bytes(4)
    file.write_bytes(content)
    open_series(safe)[0].close()  # an open length is fine
    file.write_bytes(content[:-200])
    assert "the end of the image is missing" in refusal(safe, file.name)
    line = refusal(zip_product(safe, tmp_path / "a.zip"), file.name)
    assert "the pixels cannot be read" in line


def test_a_spoilt_tif_is_found_when_read(tmp_path: Path) -> None:
    safe = write_product(tmp_path, ending="tif")
    file = band_file(safe, "B05", "tif")
    content = file.read_bytes()
    file.write_bytes(content[: len(content) - 200])
    assert "damaged band file" in refusal(safe, file.name) or "unreadable band file" in refusal(safe, file.name)


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
    assert words in refusal(safe, file.name)


@pytest.mark.parametrize("content", [b"", b"<VRTDataset/>", b"SIMPLE  = T", b"/vsicurl/http://127.0.0.1/a.tif"])
def test_what_is_no_tif(tmp_path: Path, content: bytes) -> None:
    safe = write_product(tmp_path, ending="tif")
    file = band_file(safe, "B02", "tif")
    file.write_bytes(content)
    assert "unreadable band file" in refusal(safe, file.name)


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
    assert f"{size} x {size} pixels" in refusal(safe, file.name)
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
    assert "too large to be a granule" in refusal(safe, file.name)


def test_bands_of_other_kinds_are_refused(tmp_path: Path) -> None:
    safe = write_product(tmp_path, ending="tif")
    file = band_file(safe, "B02", "tif")
    write_band(file, some_pixels("B02").astype(np.float32), 10)
    assert "1 bands of float32" in refusal(safe, file.name)


def test_side_files_are_not_looked_at(tmp_path: Path) -> None:
    safe = write_product(tmp_path)
    file = band_file(safe, "B02")
    moved = "<PAMDataset><SRS>EPSG:3035</SRS><GeoTransform>1, 2, 0, 3, 0, -2</GeoTransform></PAMDataset>"
    file.with_name(file.name + ".aux.xml").write_text(moved)
    file.with_suffix(".j2w").write_text("5\n0\n0\n-5\n0\n0\n")
    (series,) = open_series(safe)
    assert series.grid.transform == (10, 0, 600_000, 0, -10, 5_400_000)
    series.close()


def test_no_more_files_are_open_than_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "MAXIMUM_OPEN", 4)
    for day in ("2023-05-01", "2023-05-11", "2023-05-21"):
        write_product(tmp_path, day=day, seed=int(day[-2:]))
    (series,) = open_series(tmp_path)
    first, second = series.read(WHOLE), series.read(WHOLE)
    held = [link for link in Path("/proc/self/fd").iterdir() if str(link.resolve()).endswith(".jp2")]
    assert len(held) <= 4
    series.close()
    assert np.array_equal(first.values, second.values)
    assert (first.values[:, 0] == [some_pixels("B02", seed) for seed in (1, 11, 21)]).all()


def test_after_a_fork_files_are_opened_anew(tmp_path: Path) -> None:
    (series,) = open_series(write_product(tmp_path))
    before, parents = series.read(WHOLE), dict(series._files._open)
    series._files._process = -1
    after, own = series.read(WHOLE), series._files._open
    assert len(own) == len(parents) == 3
    assert all(own[place][0] is not parents[place][0] for place in own)
    assert np.array_equal(before.values, after.values)
    series.close()


def test_a_copy_for_another_process_opens_its_own_files(tmp_path: Path) -> None:
    (series,) = open_series(write_product(tmp_path))
    copy = pickle.loads(pickle.dumps(series))
    series.close()
    assert np.array_equal(copy.read(WHOLE).values, series.read(WHOLE).values)  # a closed one opens again
    copy.close()
    series.close()
