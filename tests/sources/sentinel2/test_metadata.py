"""MTD_MSIL2A.xml: numbers from the product itself, unclear or unsafe XML refused in one line."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest

from cropstar.errors import InputError
from cropstar.sources.sentinel2.metadata import Metadata, parse_metadata
from tests.sources.examples.safe import metadata_xml

URI = "S2A_MSIL2A_20230501T102031_N0509_R065_T32UPU_20230501T140000.SAFE"
ENTITY_BOMB = (
    '<!DOCTYPE lolz [<!ENTITY a "lol">'
    + "".join(f'<!ENTITY {name} "{10 * f"&{before};"}">' for before, name in zip("abcdefghi", "bcdefghij", strict=True))
    + "]>"
)


def parse(text: str) -> Metadata:
    return parse_metadata(text.encode(), "a.SAFE/MTD_MSIL2A.xml")


def refusal(content: bytes) -> str:
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
    assert words in refusal(text.replace(old, new).encode())


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
    assert "it declares a document type or entities" in refusal(text.encode(encoding))


def test_an_undeclared_entity_is_refused() -> None:
    assert "undefined entity" in refusal(metadata_xml(uri="&j;").encode())


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"<html><body>Please log in</body></html>", b"PK\x03\x04"])
def test_other_files_are_refused(content: bytes) -> None:
    assert refusal(content)
