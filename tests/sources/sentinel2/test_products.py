"""Finding products in folders and archives; their metadata; hostile archives."""

from __future__ import annotations

import shutil
import struct
import zipfile
from datetime import UTC, date, datetime
from pathlib import Path

import numpy as np
import pytest

from cropstar.errors import InputError
from cropstar.geo.windows import Window
from cropstar.sources.sentinel2 import find_products, looks_like_sentinel2, open_sentinel2, products
from cropstar.sources.sentinel2.products import Metadata, parse_metadata
from tests.sources.examples.safe import (
    HEIGHT,
    WIDTH,
    band_file,
    metadata_xml,
    some_pixels,
    write_band,
    write_product,
    zip_product,
)

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
    (packed,), (plain,) = open_sentinel2(path), open_sentinel2(safe)
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
    assert "a band appears twice" in refusal(safe)


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
    monkeypatch.setattr(products, "MAXIMUM_UNPACKED_BYTES", 1000)
    assert "it would unpack to" in refusal(path)


def test_too_many_members_are_refused(safe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = zip_product(safe, tmp_path / "a.zip")
    monkeypatch.setattr(products, "MAXIMUM_MEMBERS", 3)
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
    assert "appears twice" in refusal(path)
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


# --- Metadata

URI = "S2A_MSIL2A_20230501T102031_N0509_R065_T32UPU_20230501T140000.SAFE"
ENTITY_BOMB = (
    '<!DOCTYPE lolz [<!ENTITY a "lol">'
    + "".join(f'<!ENTITY {name} "{10 * f"&{before};"}">' for before, name in zip("abcdefghi", "bcdefghij", strict=True))
    + "]>"
)


def parse(text: str) -> Metadata:
    return parse_metadata(text.encode(), "a.SAFE/MTD_MSIL2A.xml")


def metadata_refusal(content: bytes) -> str:
    with pytest.raises(InputError) as caught:
        parse_metadata(content, "a.SAFE/MTD_MSIL2A.xml")
    line = str(caught.value)
    assert "a.SAFE/MTD_MSIL2A.xml" in line
    assert "\n" not in line
    assert caught.value.remedy
    return line


@pytest.mark.parametrize("baseline", ["02.06", "02.08"])
def test_both_eras(baseline: str) -> None:
    found = parse(metadata_xml(uri=URI, baseline=baseline))
    assert found.product == URI
    assert (found.tiles, found.day) == (("T32UPU",), date(2023, 5, 1))
    assert found.baseline == (2, int(baseline[-1]))
    assert found.generation == datetime(2023, 5, 1, 14, tzinfo=UTC)
    assert (found.quantification, found.offsets) == (10_000, {})


def test_offsets_by_band() -> None:
    found = parse(metadata_xml(uri=URI, baseline="05.09", offsets={1: -1000, 8: -900.5, 12: 0}))
    assert found.offsets == {"B02": -1000, "B8A": -900.5, "B12": 0}


def test_band_ids_mean_what_the_product_says() -> None:
    text = metadata_xml(uri=URI, offsets={3: -1000}).replace(
        'bandId="3" physicalBand="B4"', 'bandId="3" physicalBand="B8A"'
    )
    assert parse(text).offsets == {"B8A": -1000}


def test_without_spectral_information_the_usual_order_holds() -> None:
    text = metadata_xml(uri=URI, offsets={9: -7, 10: -8, 11: -9})
    start, end = text.index("<Spectral_Information_List>"), text.index("</Spectral_Information_List>")
    assert parse(text[:start] + text[end + 28 :]).offsets == {"B09": -7, "B10": -8, "B11": -9}


def test_the_tile_by_uri_where_no_granule_tells() -> None:
    text = metadata_xml(uri=URI, tile="T33TWN").replace("granuleIdentifier", "other")
    assert parse(text).tiles == ("T32UPU",)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("10000</BOA", "</BOA", "no quantification value"),
        ("10000</BOA", "0</BOA", "no quantification value"),
        ("10000</BOA", "nan</BOA", "no quantification value"),
        ("10000</BOA", "ten thousand</BOA", "ten thousand"),
        ("-1000</BOA_ADD_OFFSET>", "inf</BOA_ADD_OFFSET>", "unclear reflectance offset"),
        ("-1000</BOA_ADD_OFFSET>", "</BOA_ADD_OFFSET>", "unclear reflectance offset"),
        ('band_id="1"', 'band_id="17"', "BOA_ADD_OFFSET of band id '17'"),
        ('band_id="1"', 'band_id="2"', "unclear reflectance offset"),
        ("2023-05-01T10", "2023-02-30T10", "no date"),
        ("<PROCESSING_BASELINE>04.00", "<PROCESSING_BASELINE>new", "no processing baseline"),
        ("Level-2A_User_Product", "Level-1C_User_Product", "not the metadata of a Level-2A product"),
        ("</n1:General_Info>", "", "not XML that can be read"),
        ('encoding="UTF-8"', 'encoding="klingon"', "not XML that can be read"),
    ],
)
def test_unclear_metadata_are_refused(old: str, new: str, words: str) -> None:
    text = metadata_xml(uri=URI, baseline="04.00", offsets={1: -1000, 2: -999})
    assert old in text
    assert words in metadata_refusal(text.replace(old, new).encode())


@pytest.mark.parametrize(
    "head",
    [
        ENTITY_BOMB,
        "<!DOCTYPE a>",
        '<!DOCTYPE a SYSTEM "file:///etc/passwd">',
        '<!DOCTYPE a [<!ENTITY x SYSTEM "http://127.0.0.1/x">]>',
        '<!DOCTYPE a [<!ENTITY % x "y"> %x;]>',
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_document_types_and_entities_are_refused(head: str, encoding: str) -> None:
    text = metadata_xml(uri=URI, head=head).replace("UTF-8", encoding).replace(f">{URI}<", ">&j;<")
    assert "it declares a document type or entities" in metadata_refusal(text.encode(encoding))


def test_an_undeclared_entity_is_refused() -> None:
    assert "undefined entity" in metadata_refusal(metadata_xml(uri="&j;").encode())


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"<html><body>Please log in</body></html>", b"PK\x03\x04"])
def test_other_files_are_refused(content: bytes) -> None:
    assert metadata_refusal(content)
