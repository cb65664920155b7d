"""Finding products: .SAFE folders, archives of them, folders of both; and their band files by name."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path, PurePosixPath

from cropstar.errors import InputError
from cropstar.geo.paths import require_file_or_folder
from cropstar.logs import logger
from cropstar.sources.sentinel2.containers import REMEDY, Place, folder_places, zip_names, zip_places
from cropstar.sources.sentinel2.metadata import TILE, Metadata, read_metadata
from cropstar.sources.sentinel2.options import NATIVE_WITH_CLASSES

METADATA = "MTD_MSIL2A.xml"
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
    files: dict[str, Place]  # by band, and the scene classification
    metadata: Place

    @property
    def baseline_name(self) -> str:
        return "{:02d}.{:02d}".format(*self.baseline)

    @property
    def age(self) -> tuple[tuple[int, int], datetime, str]:
        """What orders products of one day: processing baseline, then the time it was made, then the name."""
        return self.baseline, self.generation, self.name


def find_products(path: Path | Sequence[Path]) -> list[Product]:
    """All L2A products of a .SAFE folder, a .zip, a folder of them (also one folder deeper), or a list of such."""
    if not isinstance(path, Path):
        return [product for each in path for product in find_products(each)]
    if not path.exists():
        raise InputError("no such file", path=path, remedy="check the path")
    products = [product for places in _containers(path) for product in _products_in(places)]
    if not products:
        remedy = "give a .SAFE folder, its .zip, or a folder of them"
        raise InputError("no Sentinel-2 L2A product", path=path, why=f"no {METADATA} is there", remedy=remedy)
    return products


def looks_like_sentinel2(path: Path) -> bool:
    """Whether a path is worth asking `find_products`; by names alone, nothing is opened."""
    if path.name == METADATA or PRODUCT_NAME.match(path.name) or path.suffix.upper() == ".SAFE":
        return True
    if not path.is_dir():
        return False
    near = [entry for entry in path.iterdir() if not entry.name.startswith(".")]
    entries = [*near, *(entry for folder in near if folder.is_dir() for entry in folder.iterdir())]
    return any(entry.name == METADATA or PRODUCT_NAME.match(entry.name) for entry in entries)


def _containers(path: Path, *, depth: int = 2) -> Iterator[list[Place]]:
    """The files of each product or archive at a path; `depth` folders are looked into."""
    require_file_or_folder(path)
    if path.name == METADATA:
        path = path.parent
    if path.is_file():
        if path.suffix.lower() == ".zip" and any(PurePosixPath(name).name == METADATA for name in zip_names(path)):
            yield zip_places(path)
        return
    if (path / METADATA).is_file():
        yield folder_places(path)
    elif (path / LEVEL_1C).is_file():
        logger.warning("%s is a Level-1C product and is left out: crop maps need Level-2A", path)
    elif path.suffix.upper() == ".SAFE":
        raise InputError("incomplete product", path=path, why=f"no {METADATA} is in it", remedy=REMEDY)
    elif depth:
        for entry in sorted(path.iterdir()):
            if not entry.name.startswith(".") and (entry.is_dir() or entry.suffix.lower() == ".zip"):
                yield from _containers(entry, depth=depth - 1)


def _products_in(places: list[Place]) -> Iterator[Product]:
    for place in places:
        root, _, name = place.member.rpartition("/")
        if name != METADATA:
            continue
        metadata = read_metadata(place)
        inside = f"{root}/" if root else ""
        granules: dict[str, list[Place]] = defaultdict(list)
        for other in places:
            if other.member.startswith(inside) and BAND_FILE.search(other.member):
                granules[_granule(other.member.removeprefix(inside))].append(other)
        if not granules:
            raise InputError("no band files", path=place.container / root, why="no *_B02_10m.jp2", remedy=REMEDY)
        for granule, files in sorted(granules.items()):
            yield _product(place, root, metadata, granule, files)


def _granule(member: str) -> str:
    parts = PurePosixPath(member).parts
    return parts[1] if len(parts) > 2 and parts[0].upper() == "GRANULE" else ""


def _product(place: Place, root: str, metadata: Metadata, granule: str, files: list[Place]) -> Product:
    """Of tile and date alone, what the metadata lack is taken from the names of folders and files."""
    name = metadata.product or PurePosixPath(root).name or place.container.name
    names = [granule, name, *(PurePosixPath(file.member).name for file in files)]
    tiles = metadata.tiles if len(metadata.tiles) == 1 else [found[1] for text in names if (found := TILE.search(text))]
    if not tiles:
        raise InputError("no tile", path=place.label, why="neither metadata nor names tell", remedy=REMEDY)
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


def _day_by_name(names: list[str], place: Place) -> date:
    for text in names[1:]:  # a granule's name has the orbit's time
        if found := SENSING.search(text):
            try:
                return date(int(found[1]), int(found[2]), int(found[3]))
            except ValueError:
                continue
    raise InputError("no date", path=place.label, why="neither metadata nor names tell", remedy=REMEDY)


def _by_band(files: list[Place]) -> dict[str, Place]:
    """One file a band: that of the native resolution, else the finest; a .jp2 before a .tif made from it."""
    native = NATIVE_WITH_CLASSES
    ranked: dict[str, tuple[tuple[bool, int, bool], Place]] = {}
    for file in files:
        found = BAND_FILE.search(file.member)
        if found is None or "QI_DATA" in PurePosixPath(file.member).parts:
            continue
        band, resolution = found[1].upper(), int(found[2])
        rank = (resolution != native.get(band), resolution, found[3].lower() != "jp2")
        if band in ranked and ranked[band][0] == rank:
            why = f"{file.label} and {PurePosixPath(ranked[band][1].member).name}"
            raise InputError("a band stands twice", path=file.container, why=why, remedy="keep one of them")
        if band in native and (band not in ranked or rank < ranked[band][0]):
            ranked[band] = rank, file
    return {band: file for band, (_, file) in sorted(ranked.items())}
