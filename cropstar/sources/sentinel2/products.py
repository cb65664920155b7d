"""Finding Sentinel-2 L2A products: .SAFE folders, archives of them, folders of both; what their metadata say.

Archives are read in place and never unpacked.
"""

from __future__ import annotations

import math
import os
import re
import struct
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path, PurePosixPath
from typing import IO, NoReturn
from xml.parsers import expat

from cropstar.errors import InputError
from cropstar.geo.sensors import NATIVE_WITH_CLASSES, SENTINEL2, band_name
from cropstar.inputs import require_file_or_folder
from cropstar.runtime import logger

METADATA_FILE = "MTD_MSIL2A.xml"
LEVEL_1C = "MTD_MSIL1C.xml"
BAND_FILE = re.compile(r"(?:^|_)(B\d\d|B8A|SCL)_(\d{2})m\.(jp2|tif|tiff)$", re.IGNORECASE)
SENSING = re.compile(r"_(\d{4})(\d{2})(\d{2})T\d{6}")
PRODUCT_NAME = re.compile(r"S2[A-Z]_MSIL2A_.*\.(SAFE|zip)$", re.IGNORECASE)


@dataclass(frozen=True)
class Product:
    """One granule of one L2A product: what its metadata say and where its bands are."""

    name: str
    tile: str  # MGRS, such as T31TEJ
    day: date
    baseline: tuple[int, int]
    generation: datetime
    quantification: float
    offsets: dict[str, float]  # BOA_ADD_OFFSET by band; empty: the product lists none
    files: dict[str, ProductFile]  # by band, and the scene classification
    metadata: ProductFile

    @property
    def baseline_name(self) -> str:
        return "{:02d}.{:02d}".format(*self.baseline)

    @property
    def age(self) -> tuple[tuple[int, int], datetime, str]:
        """The sort key of products of one day: processing baseline, generation time, name."""
        return self.baseline, self.generation, self.name


def find_products(path: Path | Sequence[Path]) -> list[Product]:
    """All L2A products of a .SAFE folder, a .zip, a folder of them (also one folder deeper), or a list of such."""
    if not isinstance(path, Path):
        return [product for each in path for product in find_products(each)]
    if not path.exists():
        raise InputError("no such file", path=path, remedy="check the path")
    products = [product for places in _product_folders(path) for product in _products_in(places)]
    if not products:
        remedy = "give a .SAFE folder, its .zip, or a folder of them"
        raise InputError("no Sentinel-2 L2A product", path=path, why=f"no {METADATA_FILE} is there", remedy=remedy)
    return products


def looks_like_sentinel2(path: Path) -> bool:
    """Whether a path is worth asking `find_products`; by names alone, nothing is opened."""
    if path.name == METADATA_FILE or PRODUCT_NAME.match(path.name) or path.suffix.upper() == ".SAFE":
        return True
    if not path.is_dir():
        return False
    near = [entry for entry in path.iterdir() if not entry.name.startswith(".")]
    entries = [*near, *(entry for folder in near if folder.is_dir() for entry in folder.iterdir())]
    return any(entry.name == METADATA_FILE or PRODUCT_NAME.match(entry.name) for entry in entries)


def _product_folders(path: Path, *, depth: int = 2) -> Iterator[list[ProductFile]]:
    """The files of each product or archive at a path; `depth` folders are looked into."""
    require_file_or_folder(path)
    if path.name == METADATA_FILE:
        path = path.parent
    if path.is_file():
        if path.suffix.lower() == ".zip" and any(
            PurePosixPath(info.filename).name == METADATA_FILE for info in _infolist(path)
        ):
            yield _zip_files(path)
        return
    if (path / METADATA_FILE).is_file():
        yield _folder_files(path)
    elif (path / LEVEL_1C).is_file():
        logger.warning("%s is a Level-1C product and is left out: crop maps need Level-2A", path)
    elif path.suffix.upper() == ".SAFE":
        raise InputError("incomplete product", path=path, why=f"no {METADATA_FILE} is in it", remedy=REMEDY)
    elif depth:
        for entry in sorted(path.iterdir()):
            if not entry.name.startswith(".") and (entry.is_dir() or entry.suffix.lower() == ".zip"):
                yield from _product_folders(entry, depth=depth - 1)


def _products_in(places: list[ProductFile]) -> Iterator[Product]:
    for place in places:
        root, _, name = place.member.rpartition("/")
        if name != METADATA_FILE:
            continue
        metadata = _read_metadata(place)
        inside = f"{root}/" if root else ""
        granules: dict[str, list[ProductFile]] = defaultdict(list)
        for other in places:
            if other.member.startswith(inside) and BAND_FILE.search(other.member):
                granules[_granule(other.member.removeprefix(inside))].append(other)
        if not granules:
            raise InputError("no band files", path=place.container / root, why="no *_B02_10m.jp2", remedy=REMEDY)
        for granule, files in sorted(granules.items()):
            yield _make_product(place, root, metadata, granule, files)


def _granule(member: str) -> str:
    parts = PurePosixPath(member).parts
    return parts[1] if len(parts) > 2 and parts[0].upper() == "GRANULE" else ""


def _make_product(place: ProductFile, root: str, metadata: Metadata, granule: str, files: list[ProductFile]) -> Product:
    """Of tile and date alone, what the metadata lack is taken from the names of folders and files."""
    name = metadata.product or PurePosixPath(root).name or place.container.name
    names = [granule, name, *(PurePosixPath(file.member).name for file in files)]
    tiles = metadata.tiles if len(metadata.tiles) == 1 else [match[1] for text in names if (match := TILE.search(text))]
    if not tiles:
        raise InputError("no tile", path=place.label, why="neither metadata nor file names have it", remedy=REMEDY)
    return Product(
        name=name.removesuffix(".SAFE"),
        tile=tiles[0],
        day=metadata.day or _day_by_name(names, place),
        baseline=metadata.baseline,
        generation=metadata.generation,
        quantification=metadata.quantification,
        offsets=metadata.offsets,
        files=_by_band(files),
        metadata=place,
    )


def _day_by_name(names: list[str], place: ProductFile) -> date:
    for text in names[1:]:  # a granule's name has the orbit's time
        if match := SENSING.search(text):
            try:
                return date(int(match[1]), int(match[2]), int(match[3]))
            except ValueError:
                continue
    raise InputError("no date", path=place.label, why="neither metadata nor file names have it", remedy=REMEDY)


def _by_band(files: list[ProductFile]) -> dict[str, ProductFile]:
    """One file per band: that of the native resolution, else the finest; a .jp2 before a .tif made from it."""
    native = NATIVE_WITH_CLASSES
    ranked: dict[str, tuple[tuple[bool, int, bool], ProductFile]] = {}
    for file in files:
        match = BAND_FILE.search(file.member)
        if match is None or "QI_DATA" in PurePosixPath(file.member).parts:
            continue
        band, resolution = match[1].upper(), int(match[2])
        rank = (resolution != native.get(band), resolution, match[3].lower() != "jp2")
        if band in ranked and ranked[band][0] == rank:
            why = f"{file.label} and {PurePosixPath(ranked[band][1].member).name}"
            raise InputError("a band appears twice", path=file.container, why=why, remedy="keep one of them")
        if band in native and (band not in ranked or rank < ranked[band][0]):
            ranked[band] = rank, file
    return {band: file for band, (_, file) in sorted(ranked.items())}


# --- Metadata: MTD_MSIL2A.xml

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


def _read_metadata(place: ProductFile) -> Metadata:
    if place.size > MAXIMUM_XML_BYTES:
        why = f"{place.size:,} bytes are too many for a product's metadata"
        raise InputError("unreadable metadata", path=place.label, why=why, remedy=REMEDY)
    try:
        with place.open() as handle:
            content = handle.read(MAXIMUM_XML_BYTES)
    except (zlib.error, zipfile.BadZipFile, EOFError, OSError, RuntimeError) as failure:  # of a damaged archive
        raise InputError("unreadable metadata", path=place.label, why=str(failure), remedy=REMEDY) from None
    return parse_metadata(content, place.label)


def parse_metadata(content: bytes, label: str) -> Metadata:
    """Read the XML; one with a document type or entities is refused, since these can grow without bound."""
    collected = _collect(content, label)
    texts = collected.texts
    product = texts.get("PRODUCT_URI") or texts.get("PRODUCT_URI_2A")
    tiles = {match[1] for granule in collected.granules if (match := TILE.search(granule))}
    if not tiles and product and (match := TILE.search(product)):
        tiles = {match[1]}
    return Metadata(
        product=product,
        tiles=tuple(sorted(tiles)),
        day=_day(texts.get("PRODUCT_START_TIME") or texts.get("DATATAKE_SENSING_START"), label),
        baseline=_baseline(texts.get("PROCESSING_BASELINE"), label),
        generation=_generation(texts.get("GENERATION_TIME")),
        quantification=_quantification(texts, label),
        offsets=_offsets(collected, label),
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
    except (expat.ExpatError, LookupError, ValueError) as failure:  # encodings that expat does not have among them
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


# --- Files in a folder or inside a .zip archive

# A product has about a hundred files and, unpacked, 1.2 GB; an archive may hold several products.
MAXIMUM_MEMBERS = 10_000
MAXIMUM_UNPACKED_BYTES = 64 * 2**30
# JPEG 2000 hardly shrinks and XML shrinks by twenty; small members may be anything.
MAXIMUM_RATIO = 200
SMALL_MEMBER = 2**20
MAXIMUM_DIRECTORY_BYTES = 8 * 2**20  # an archive's own list of its members
REMEDY = "get the product again from where it was downloaded"


@dataclass(frozen=True, order=True)
class ProductFile:
    """A file of a product: below a folder, or a member of an archive."""

    container: Path
    member: str  # with forward slashes
    size: int
    zipped: bool

    @property
    def label(self) -> str:
        """How messages name the file."""
        return f"{self.container}/{self.member}"

    @property
    def file(self) -> Path:
        """The file on the disk that holds it."""
        return self.container if self.zipped else self.container / self.member

    @property
    def gdal_name(self) -> str:
        absolute = self.container.absolute()
        return f"/vsizip/{{{absolute}}}/{self.member}" if self.zipped else str(absolute / self.member)

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        if not self.zipped:
            with self.file.open("rb") as handle:
                yield handle
            return
        try:
            with zipfile.ZipFile(self.container) as archive, archive.open(self.member) as member:
                yield member
        except (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, EOFError) as failure:
            raise InputError("damaged archive", path=self.label, why=str(failure), remedy=REMEDY) from None


def _folder_files(folder: Path) -> list[ProductFile]:
    """The files below a folder, hidden ones left out, in one order on every machine."""
    places = []
    for directory, below, names in os.walk(folder):
        below[:] = sorted(name for name in below if not name.startswith("."))
        for name in sorted(names):
            path = Path(directory, name)
            if not name.startswith(".") and path.is_file():
                places.append(ProductFile(folder, path.relative_to(folder).as_posix(), path.stat().st_size, False))
        if len(places) > MAXIMUM_MEMBERS:
            raise InputError("too many files for a product", path=folder, remedy="give the .SAFE folder itself")
    return places


def _zip_files(path: Path) -> list[ProductFile]:
    """The files of an archive, once every name and size in it is known to be harmless."""
    infos = _infolist(path)
    seen: set[str] = set()
    for info in infos:
        if why := _why_unsafe(info, seen):
            raise InputError("unsafe archive", path=path, why=why, remedy=REMEDY)
        seen.add(info.filename)
    total = sum(info.file_size for info in infos)
    if total > MAXIMUM_UNPACKED_BYTES:
        why = f"it would unpack to {total / 2**30:,.0f} GB"
        raise InputError("unsafe archive", path=path, why=why, remedy=REMEDY)
    files = [info for info in infos if not info.is_dir() and not _is_hidden(info.filename)]
    return sorted(ProductFile(path, info.filename, info.file_size, True) for info in files)


def _infolist(path: Path) -> list[zipfile.ZipInfo]:
    try:
        if _directory_size(path) > MAXIMUM_DIRECTORY_BYTES:
            raise InputError("unsafe archive", path=path, why="its list of members is too long", remedy=REMEDY)
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, struct.error) as failure:
        raise InputError("damaged archive", path=path, why=str(failure), remedy=REMEDY) from None
    if len(infos) > MAXIMUM_MEMBERS:
        raise InputError("unsafe archive", path=path, why=f"{len(infos)} members", remedy=REMEDY)
    return infos


def _directory_size(path: Path) -> int:
    """Bytes of the list of members, from the record at the archive's end, before zipfile loads it all."""
    with path.open("rb") as handle:
        size = handle.seek(0, os.SEEK_END)
        start = max(size - 22 - 2**16, 0)
        handle.seek(start)
        tail = handle.read()
        end = tail.rfind(b"PK\x05\x06")
        if end < 0 or len(tail) < end + 22:
            raise zipfile.BadZipFile("not a zip file, or not a whole one" if size else "the file is empty (zero bytes)")
        (length,) = struct.unpack_from("<I", tail, end + 12)
        if tail[max(end - 20, 0) : end][:4] == b"PK\x06\x07":  # a zip64 archive keeps the true size elsewhere
            (record,) = struct.unpack_from("<Q", tail, end - 12)
            handle.seek(min(record, size))
            (length,) = struct.unpack_from("<Q", handle.read(56), 40)
    return int(length)


def _why_unsafe(info: zipfile.ZipInfo, seen: set[str]) -> str | None:
    name = info.orig_filename
    parts = PurePosixPath(name).parts
    if name.startswith(("/", "\\")) or ".." in parts or "..\\" in name:
        return f"the member {name!r} points out of it"
    if not name or any(sign in name for sign in "\\:{}\0"):
        return f"the member {name!r} has a name that is not a plain path"
    if info.filename in seen:
        return f"the member {name!r} appears twice"
    if info.flag_bits & 1:
        return f"the member {name!r} is encrypted"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return f"the member {name!r} is compressed in an unknown way"
    if info.file_size > SMALL_MEMBER and info.file_size > MAXIMUM_RATIO * max(info.compress_size, 1):
        return f"the member {name!r} unpacks to {info.file_size / max(info.compress_size, 1):,.0f} times its size"
    return None


def _is_hidden(name: str) -> bool:
    """Side files that some systems add to archives."""
    return any(part.startswith((".", "__MACOSX")) for part in PurePosixPath(name).parts)
