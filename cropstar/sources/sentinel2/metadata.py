"""What a product says of itself in MTD_MSIL2A.xml: dates, tile, baseline and how numbers become reflectance."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import NoReturn
from xml.parsers import expat

from cropstar.errors import InputError
from cropstar.geo.sensors import SENTINEL2, band_name
from cropstar.sources.sentinel2.containers import REMEDY, Place

MAXIMUM_XML_BYTES = 4 * 2**20  # the real ones have 55 kB
MAXIMUM_TEXT = 1000
TILE = re.compile(r"(?:^|_)(T\d{2}[A-Z]{3})(?=_|\.|$)")
TEXTS = {
    "PRODUCT_START_TIME",
    "DATATAKE_SENSING_START",
    "PRODUCT_URI",
    "PRODUCT_URI_2A",  # until baseline 02.06
    "PROCESSING_BASELINE",
    "GENERATION_TIME",
    "BOA_QUANTIFICATION_VALUE",
    "L2A_BOA_QUANTIFICATION_VALUE",  # until baseline 02.06
}
OFFSET = "BOA_ADD_OFFSET"


@dataclass(frozen=True)
class Metadata:
    """reflectance = (number + offset) / quantification; offsets are by band, empty where the product lists none."""

    product: str | None
    tiles: tuple[str, ...]
    day: date | None
    baseline: tuple[int, int]
    generation: datetime
    quantification: float
    offsets: dict[str, float]


def read_metadata(place: Place) -> Metadata:
    if place.size > MAXIMUM_XML_BYTES:
        why = f"{place.size:,} bytes are too many for a product's metadata"
        raise InputError("unreadable metadata", path=place.label, why=why, remedy=REMEDY)
    with place.open() as handle:
        content = handle.read(MAXIMUM_XML_BYTES)
    return parse_metadata(content, place.label)


def parse_metadata(content: bytes, label: str) -> Metadata:
    """Read the XML; one with a document type or entities is refused, since these can grow without bound."""
    found = _collect(content, label)
    texts = found.texts
    product = texts.get("PRODUCT_URI") or texts.get("PRODUCT_URI_2A")
    tiles = {match[1] for granule in found.granules if (match := TILE.search(granule))}
    if not tiles and product and (match := TILE.search(product)):
        tiles = {match[1]}
    return Metadata(
        product=product,
        tiles=tuple(sorted(tiles)),
        day=_day(texts.get("PRODUCT_START_TIME") or texts.get("DATATAKE_SENSING_START"), label),
        baseline=_baseline(texts.get("PROCESSING_BASELINE"), label),
        generation=_generation(texts.get("GENERATION_TIME")),
        quantification=_quantification(texts, label),
        offsets=_offsets(found, label),
    )


@dataclass
class _Found:
    root: str = ""
    texts: dict[str, str] = field(default_factory=dict)  # the first of each
    granules: list[str] = field(default_factory=list)
    offsets: list[tuple[str, str]] = field(default_factory=list)  # band id, number
    bands: dict[str, str] = field(default_factory=dict)  # band id, name


class _Collector:
    """Expat's callbacks; only what is wanted is kept."""

    def __init__(self, label: str) -> None:
        self.found = _Found()
        self._label = label
        self._text: list[str] | None = None
        self._band = ""

    def refuse(self, *_: object) -> NoReturn:
        why = "it declares a document type or entities"
        raise InputError("unsafe metadata", path=self._label, why=why, remedy=REMEDY)

    def start(self, name: str, attributes: dict[str, str]) -> None:
        tag = name.rpartition(":")[2]
        self.found.root = self.found.root or tag
        self._text = [] if tag in TEXTS or tag == OFFSET else None
        self._band = attributes.get("band_id", "")
        if granule := attributes.get("granuleIdentifier"):
            self.found.granules.append(granule)
        if tag == "Spectral_Information" and "physicalBand" in attributes:
            self.found.bands[attributes.get("bandId", "")] = band_name(attributes["physicalBand"])

    def characters(self, text: str) -> None:
        if self._text is not None and len(self._text) < MAXIMUM_TEXT:
            self._text.append(text[:MAXIMUM_TEXT])

    def end(self, name: str) -> None:
        if self._text is None:
            return
        tag, text = name.rpartition(":")[2], "".join(self._text).strip()
        self._text = None
        if tag == OFFSET:
            self.found.offsets.append((self._band, text))
        elif text:
            self.found.texts.setdefault(tag, text)


def _collect(content: bytes, label: str) -> _Found:
    collector = _Collector(label)
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = collector.start
    parser.EndElementHandler = collector.end
    parser.CharacterDataHandler = collector.characters
    parser.StartDoctypeDeclHandler = collector.refuse
    parser.EntityDeclHandler = collector.refuse
    parser.ExternalEntityRefHandler = collector.refuse
    try:
        parser.Parse(content, True)
    except (expat.ExpatError, UnicodeError, LookupError) as failure:
        why = f"not XML that can be read ({failure})" if content else "the file is empty (zero bytes)"
        raise InputError("unreadable metadata", path=label, why=why, remedy=REMEDY) from None
    if not collector.found.root.startswith("Level-2A"):
        why = f"it describes a '{collector.found.root[:60]}'"
        raise InputError("not the metadata of a Level-2A product", path=label, why=why, remedy="give L2A products")
    return collector.found


def _day(text: str | None, label: str) -> date | None:
    try:
        return date.fromisoformat(text[:10]) if text else None
    except ValueError:
        raise InputError("no date", path=label, why=f"the sensing time is '{text}'", remedy=REMEDY) from None


def _baseline(text: str | None, label: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,3})\.(\d{1,3})", text or "")
    if match is None:
        why = f"PROCESSING_BASELINE is {text!r}"
        raise InputError("no processing baseline", path=label, why=why, remedy=REMEDY)
    return int(match[1]), int(match[2])


def _generation(text: str | None) -> datetime:
    """When the product was made; it only orders products of one day, so an odd one counts as the oldest."""
    try:
        moment = datetime.fromisoformat(text or "")
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _quantification(texts: dict[str, str], label: str) -> float:
    text = texts.get("BOA_QUANTIFICATION_VALUE") or texts.get("L2A_BOA_QUANTIFICATION_VALUE") or ""
    value = _number(text)
    if value is None or value <= 0:
        why = f"BOA_QUANTIFICATION_VALUE is '{text}'"
        raise InputError("no quantification value", path=label, why=why, remedy=REMEDY)
    return value


def _offsets(found: _Found, label: str) -> dict[str, float]:
    """BOA_ADD_OFFSET by band; ids mean what the product's spectral information says, or ESA's order."""
    names = {str(number): band for number, band in enumerate(SENTINEL2)} | found.bands
    offsets: dict[str, float] = {}
    for identifier, text in found.offsets:
        value, band = _number(text), names.get(identifier)
        if value is None or band is None or offsets.get(band, value) != value:
            why = f"{OFFSET} of band id '{identifier}' is '{text}'"
            raise InputError("unclear reflectance offset", path=label, why=why, remedy=REMEDY)
        offsets[band] = value
    return offsets


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and abs(value) < 1e9 else None
