"""Finding products: folders, archives, native bands; unsafe archives refused before anything is read from them."""

from __future__ import annotations

import shutil
import struct
import zipfile
from datetime import date
from pathlib import Path

import numpy as np
import pytest

from cropstar.errors import InputError
from cropstar.geo.windows import Window
from cropstar.sources.sentinel2 import containers, find_products, looks_like_sentinel2, open_series
from tests.sources.examples.safe import HEIGHT, WIDTH, band_file, some_pixels, write_band, write_product, zip_product

WHOLE = Window(0, 0, HEIGHT, WIDTH)


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        find_products(path)
    line = str(caught.value)
    assert str(path) in line
    assert "\n" not in line
    assert caught.value.remedy
    return line


@pytest.fixture(scope="module")
def safe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A product to look at, not to change."""
    return write_product(tmp_path_factory.mktemp("safe"))


def test_what_a_product_is(safe: Path) -> None:
    (product,) = find_products(safe)
    assert product.name == safe.name.removesuffix(".SAFE")
    assert (product.tile, product.day, product.baseline_name) == ("T32UPU", date(2023, 5, 1), "02.08")
    assert {band: place.file for band, place in product.files.items()} == {
        band: band_file(safe, band) for band in ("B02", "B05", "SCL")
    }


def test_folders_archives_and_lists_of_them(tmp_path: Path) -> None:
    first = write_product(tmp_path / "deeper", day="2023-05-01")
    second = write_product(tmp_path, day="2023-05-11")
    third = write_product(tmp_path / "apart", day="2023-05-21")
    zip_product(third, tmp_path / "third.zip")
    shutil.rmtree(tmp_path / "apart")
    (tmp_path / "notes.txt").write_text("nothing")
    with zipfile.ZipFile(tmp_path / "parcels.zip", "w") as archive:
        archive.writestr("parcels.shp", b"")
    (tmp_path / ".hidden").mkdir()

    def days(path: Path | list[Path]) -> list[int]:
        return sorted(product.day.day for product in find_products(path))

    assert days(tmp_path) == [1, 11, 21]
    assert days([first, tmp_path / "third.zip"]) == [1, 21]
    assert days(second / "MTD_MSIL2A.xml") == [11]
    assert days(tmp_path / "deeper") == [1]


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("root", [None, "", "a folder/it is in.SAFE"])
def test_an_archive_reads_as_the_folder_does(safe: Path, tmp_path: Path, compression: int, root: str | None) -> None:
    path = zip_product(safe, tmp_path / "pro duct.zip", compression=compression, root=root)
    (packed,), (plain,) = open_series(path), open_series(safe)
    assert packed.files == [path]
    assert packed.provenance == plain.provenance
    assert np.array_equal(packed.read(WHOLE).values, plain.read(WHOLE).values)
    assert plain.read(WHOLE).valid.all()
    packed.close()
    plain.close()
    assert list(tmp_path.iterdir()) == [path]  # nothing was unpacked


def test_native_resolution_and_jp2_come_first(tmp_path: Path) -> None:
    safe = write_product(tmp_path, bands=("B01", "B02", "B05", "SCL"))
    images = band_file(safe, "B02").parent
    for band, coarse in (("B02", 20), ("B02", 60), ("B01", 20), ("SCL", 60)):
        write_band(images / f"T32UPU_20230501T102031_{band}_{coarse}m.jp2", some_pixels("B05"), coarse)
    write_band(images / "T32UPU_20230501T102031_B02_10m.tif", some_pixels("B02"), 10)
    write_band(safe / "GRANULE/L2A_X/QI_DATA/MSK_CLDPRB_20m.jp2", some_pixels("B05"), 20)
    (product,) = find_products(safe)
    names = {band: place.member.rpartition("_")[2] for band, place in product.files.items()}
    assert names == {"B01": "60m.jp2", "B02": "10m.jp2", "B05": "20m.jp2", "SCL": "20m.jp2"}


def test_names_only_stand_in_for_what_the_metadata_lack(tmp_path: Path) -> None:
    safe = write_product(tmp_path)
    xml = safe / "MTD_MSIL2A.xml"
    text = xml.read_text().replace("granuleIdentifier", "other").replace("PRODUCT_", "SOME_")
    xml.write_text(text)
    (product,) = find_products(safe)
    assert (product.tile, product.day) == ("T32UPU", date(2023, 5, 1))
    renamed = safe.rename(tmp_path / "S2A_MSIL2A_20200101T000000_N0500_R001_T01ABC_20200101T000000.SAFE")
    xml = renamed / "MTD_MSIL2A.xml"
    xml.write_text(text.replace("SOME_", "PRODUCT_"))
    (product,) = find_products(renamed)
    assert (product.tile, product.day, product.baseline) == ("T32UPU", date(2023, 5, 1), (2, 8))


def test_a_band_that_stands_twice_is_refused(tmp_path: Path) -> None:
    safe = write_product(tmp_path)
    shutil.copy(band_file(safe, "B02"), safe / "T32UPU_20230501T102031_B02_10m.jp2")
    shutil.copy(band_file(safe, "B05"), safe / "copy_B05_20m.jp2")
    assert len(find_products(safe)) == 2  # outside of the granule it is a granule of its own
    shutil.copy(band_file(safe, "SCL"), band_file(safe, "SCL").with_name("other_SCL_20m.jp2"))
    assert "a band stands twice" in refusal(safe)


def test_what_is_no_product_is_refused(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "absent.SAFE")
    assert "no Sentinel-2 L2A product" in refusal(tmp_path)
    (tmp_path / "a.SAFE").mkdir()
    assert "no MTD_MSIL2A.xml is in it" in refusal(tmp_path / "a.SAFE")
    with pytest.raises(InputError, match="incomplete product"):
        find_products(tmp_path)
    safe = write_product(tmp_path / "b", bands=("B02",))
    band_file(safe, "B02").unlink()
    assert "no band files" in refusal(safe)


def test_level_1c_is_left_out_aloud(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_product(tmp_path)
    (tmp_path / "S2A_MSIL1C_X.SAFE").mkdir()
    (tmp_path / "S2A_MSIL1C_X.SAFE" / "MTD_MSIL1C.xml").write_text("<a/>")
    assert len(find_products(tmp_path)) == 1
    assert "Level-1C" in caplog.text


def test_an_oversized_xml_is_refused(tmp_path: Path) -> None:
    safe = write_product(tmp_path)
    with (safe / "MTD_MSIL2A.xml").open("ab") as handle:
        handle.truncate(10**9)  # sparse
    assert "too many for a product's metadata" in refusal(safe)


def test_which_paths_look_like_sentinel2(safe: Path, tmp_path: Path) -> None:
    archive = zip_product(safe, tmp_path / f"{safe.stem}.zip")
    for path in (safe, safe.parent, safe.parent.parent, safe / "MTD_MSIL2A.xml", archive, tmp_path):
        assert looks_like_sentinel2(path), path
    (tmp_path / "other" / "deep").mkdir(parents=True)
    for path in (tmp_path / "other", tmp_path / "parcels.zip", tmp_path / "tile.tif"):
        assert not looks_like_sentinel2(path), path


# --- archives that mean harm, and broken ones


@pytest.mark.parametrize(
    "name", ["../evil.txt", "/etc/evil", "a/../../evil", "..\\evil", "C:\\evil", "a:b", "x/{}", "\\\\host\\x"]
)
def test_zip_slip_is_refused(safe: Path, tmp_path: Path, name: str) -> None:
    path = zip_product(safe, tmp_path / "a.zip")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(name, "boo")
    assert "unsafe archive" in refusal(path)
    assert sorted(tmp_path.iterdir()) == [path]


def test_a_zip_bomb_is_refused(safe: Path, tmp_path: Path) -> None:
    path = zip_product(safe, tmp_path / "a.zip")
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("more.bin", bytes(4_000_000))
    assert "times its size" in refusal(path)


def test_a_total_too_large_is_refused(safe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = zip_product(safe, tmp_path / "a.zip")
    monkeypatch.setattr(containers, "MAXIMUM_UNPACKED_BYTES", 1000)
    assert "it would unpack to" in refusal(path)


def test_too_many_members_are_refused(safe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = zip_product(safe, tmp_path / "a.zip")
    monkeypatch.setattr(containers, "MAXIMUM_MEMBERS", 3)
    assert "4 members" in refusal(path)
    assert "too many files" in refusal(safe)


def test_a_huge_list_of_members_is_not_loaded(safe: Path, tmp_path: Path) -> None:
    path = zip_product(safe, tmp_path / "a.zip")
    content = bytearray(path.read_bytes())
    content[-10:-6] = struct.pack("<I", 2**31)
    path.write_bytes(content)
    assert "its list of members is too long" in refusal(path)


def test_encrypted_doubled_and_oddly_packed_members_are_refused(safe: Path, tmp_path: Path) -> None:
    path = zip_product(safe, tmp_path / "a.zip")
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr(f"{safe.name}/MTD_MSIL2A.xml", "another")
    assert "stands twice" in refusal(path)
    path = zip_product(safe, tmp_path / "b.zip", compression=zipfile.ZIP_LZMA)
    assert "compressed in an unknown way" in refusal(path)
    path = zip_product(safe, tmp_path / "c.zip")
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(content)
    assert "is encrypted" in refusal(path)


@pytest.mark.parametrize("content", [b"", b"<html>no such product</html>", b"PK\x03\x04" + bytes(200)])
def test_what_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "S2A_MSIL2A_X.zip"
    path.write_bytes(content)
    assert "damaged archive" in refusal(path)


def test_a_cut_archive_is_refused(safe: Path, tmp_path: Path) -> None:
    path = zip_product(safe, tmp_path / "a.zip")
    path.write_bytes(path.read_bytes()[:-100])
    assert "damaged archive" in refusal(path)


def test_a_spoilt_member_is_refused(safe: Path, tmp_path: Path) -> None:
    path = zip_product(safe, tmp_path / "a.zip")
    with zipfile.ZipFile(path) as archive:
        place = archive.getinfo(f"{safe.name}/MTD_MSIL2A.xml").header_offset
    content = bytearray(path.read_bytes())
    content[place + 200 : place + 300] = bytes(100)
    path.write_bytes(content)
    assert "damaged archive" in refusal(path) or "MTD_MSIL2A.xml" in refusal(path)
