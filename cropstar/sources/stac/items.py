"""STAC items as values: what of their JSON is needed to read them, checked."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import lru_cache
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

from rasterio.errors import CRSError

from cropstar.errors import InputError
from cropstar.geo.grid import Grid, parse_crs
from cropstar.geo.sensors import (
    COMMON_NAMES,
    HLS_FMASK,
    HLS_L30,
    HLS_S30,
    LANDSAT_QA,
    LANDSAT_RADIOMETRY,
    OLI,
    SCALE,
    SCENE_CLASSIFICATION,
    TM,
    sentinel2_band,
)
from cropstar.geo.sensors import NATIVE_WITH_CLASSES as NATIVE
from cropstar.sources.sentinel2.series import MAXIMUM_SIDE
from cropstar.sources.stac.search import finite, public_address

GENERATION = ("s2:generation_time", "processing:datetime", "created")
CHECKSUMS = ("file:checksum", "checksum:multihash")
CODE = re.compile(r"[A-Z]{2,10}:\d{1,9}")
OLDEST = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Asset:
    """One band of one item, with its `grid` if the catalogue has one."""

    item: str
    key: str
    href: str
    grid: Grid | None
    reflectance: _Reflectance
    checksum: str | None
    nodata: int = 0
    quality: str | None = None  # of a mask: a band of bits, see `geo.sensors.clear_bits`

    @property
    def label(self) -> str:
        """How messages name it."""
        return f"{public_address(self.href)} (item {self.item})"


@dataclass(frozen=True)
class Item:
    """One granule of one date."""

    identifier: str
    day: date
    baseline: tuple[int, int] | None
    generation: datetime
    updated: str | None
    assets: dict[str, Asset]  # by band, and the mask as the scene classification
    product: ProductKind | None = None  # None: Sentinel-2

    @property
    def baseline_name(self) -> str:
        return "{:02d}.{:02d}".format(*self.baseline) if self.baseline else "unknown"

    @property
    def age(self) -> tuple[tuple[int, int], datetime, str]:
        """The sort key of items of one day: processing baseline, generation time, name."""
        return self.baseline or (0, 0), self.generation, self.identifier


def read_item(feature: Json, catalogue: str, wanted: Iterable[str]) -> Item:
    """The item with those of the wanted bands that it has, and its mask."""
    identifier = str(feature.get("id", ""))[:200]
    properties, assets = feature.get("properties"), feature.get("assets")
    if not identifier or not isinstance(properties, dict) or not isinstance(assets, dict):
        why = f"'{identifier}' lacks its properties or assets"
        raise InputError("not a STAC item", path=public_address(catalogue), why=why, remedy=REMEDY)
    base = _self_address(feature, catalogue)
    product = product_of(identifier, str(feature.get("collection", "")), properties)
    found = {}
    for band, (key, asset) in assets_by_band(assets, product).items():
        if band == SCENE_CLASSIFICATION or band in wanted:
            quality = product.quality if product and band == SCENE_CLASSIFICATION else None
            nodata = EMPTY_BITS[quality] if quality else product.nodata if product else 0
            if quality is None:
                _check_nodata(identifier, key, asset, nodata)
            found[band] = Asset(
                item=identifier,
                key=key,
                href=checked_href(asset["href"], base, catalogue, identifier),
                grid=_grid(properties, asset),
                reflectance=_reflectance_of(identifier, properties, key, asset, product),
                checksum=next((str(asset[name]) for name in CHECKSUMS if name in asset), None),
                nodata=nodata,
                quality=quality,
            )
    return Item(
        identifier=identifier,
        day=_day(identifier, properties),
        baseline=_baseline_of(identifier, properties),
        generation=next((moment for name in GENERATION if (moment := _moment(properties.get(name)))), OLDEST),
        updated=str(properties["updated"]) if "updated" in properties else None,
        assets=found,
        product=product,
    )


def _self_address(feature: Json, catalogue: str) -> str:
    links = feature.get("links")
    for link in links if isinstance(links, list) else []:
        if isinstance(link, dict) and link.get("rel") == "self" and isinstance(link.get("href"), str):
            return str(link["href"])
    return catalogue


def _day(identifier: str, properties: Json) -> date:
    for name in ("datetime", "start_datetime"):
        if moment := _moment(properties.get(name)):
            return moment.date()
    why = "it has neither datetime nor start_datetime"
    raise InputError("no date", path=f"the item {identifier}", why=why, remedy=REMEDY)


def _moment(text: Any) -> datetime | None:
    """A time in UTC; None of what is none."""
    try:
        moment = datetime.fromisoformat(text)
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (TypeError, ValueError, OverflowError):  # the last of the first and the last day that there is
        return None


def _grid(properties: Json, asset: Json) -> Grid | None:
    """From the projection extension; what is missing or odd there is left to the file's own header."""
    stated = {**properties, **{name: value for name, value in asset.items() if value is not None}}
    transform, shape = _numbers(stated.get("proj:transform"), (6, 9)), _numbers(stated.get("proj:shape"), (2,))
    crs = _crs(stated)
    if not transform or not shape:
        return None
    height, width = map(int, shape)
    a, b, c, d, e, f = transform[:6]
    if crs is None or not (0 < height <= MAXIMUM_SIDE and 0 < width <= MAXIMUM_SIDE) or a <= 0 or e >= 0 or b or d:
        return None
    return Grid(crs, (a, b, c, d, e, f), height, width)


def _crs(stated: Json) -> str | None:
    for name in ("proj:code", "proj:epsg"):
        value = stated.get(name)
        if isinstance(value, int | str) and (wkt := _wkt(f"EPSG:{value}" if isinstance(value, int) else value)):
            return wkt
    return None


@lru_cache(maxsize=256)
def _wkt(code: str) -> str | None:
    try:
        return str(parse_crs(code).to_wkt()) if CODE.fullmatch(code) else None
    except CRSError:
        return None


def _numbers(values: Any, lengths: tuple[int, ...]) -> list[float] | None:
    if not isinstance(values, list) or len(values) not in lengths:
        return None
    numbers = [number for one in values if (number := finite(one)) is not None and abs(number) < 1e9]
    return numbers if len(numbers) == len(values) else None


# --- Landsat and HLS
#
# Their bands get the names of Sentinel-2's of the same wavelengths. The product must be known before the bands are:
# B5 is Sentinel-2's red edge and Landsat's near infrared.

HLS_NAME = re.compile(r"HLS\d?[._-]?(?:v\d[._-])?(?P<part>[SL])30(?![0-9])", re.ASCII | re.IGNORECASE)
LANDSAT_NAME = re.compile(r"L[COTEM]0?(?P<satellite>[1-9])_(?P<level>L[12]\w\w)_", re.ASCII)
LANDSAT_PLATFORM = re.compile(r"landsat[-_ ]?(?P<satellite>[1-9])", re.ASCII | re.IGNORECASE)
LANDSAT_BAND = re.compile(r"(?:(?:SR|OLI|ETM|TM)_)?(B\d)", re.ASCII | re.IGNORECASE)
EMPTY_BITS = {LANDSAT_QA: 1, HLS_FMASK: 255}  # as their files have it: Landsat's bit of fill, no Fmask at all


@dataclass(frozen=True)
class ProductKind:
    """What all items of one product share: Landsat 8, HLS from Sentinel-2, ..."""

    bands: Mapping[str, str]  # by the product's own names
    quality: str  # the band of bits that masks clouds
    scale: float  # and offset, where the item does not say
    offset: float
    nodata: int

    def band(self, names: Iterable[str], common_names: Iterable[str]) -> str | None:
        """The band that one of the names means, or the mask."""
        for name in names:
            if name.upper() == self.quality:
                return SCENE_CLASSIFICATION
            match = LANDSAT_BAND.fullmatch(name)
            if band := self.bands.get(name.upper()) or self.bands.get(match[1].upper() if match else ""):
                return band
        for name in (*common_names, *names):
            band = COMMON_NAMES.get("nir08" if name.lower() == "nir" else name.lower())
            if band in self.bands.values():
                return band
        return None


HLS_PRODUCTS = {
    part: ProductKind(bands, HLS_FMASK, SCALE, 0.0, -9999) for part, bands in (("S", HLS_S30), ("L", HLS_L30))
}
LANDSAT_8 = ProductKind(OLI, LANDSAT_QA, *LANDSAT_RADIOMETRY, 0)  # and 9
LANDSAT_4 = ProductKind(TM, LANDSAT_QA, *LANDSAT_RADIOMETRY, 0)  # to 7


def product_of(identifier: str, collection: str, properties: Json) -> ProductKind | None:
    """Landsat Collection 2 or HLS; None of anything else, which is taken for Sentinel-2."""
    if match := HLS_NAME.search(identifier) or HLS_NAME.search(collection):
        return HLS_PRODUCTS[match["part"].upper()]
    name = LANDSAT_NAME.match(identifier)
    match = name or LANDSAT_PLATFORM.fullmatch(str(properties.get("platform", "")))
    if match is None:
        return None
    level = name["level"] if name else str(properties.get("landsat:correction", "L2"))
    if not level.startswith("L2"):
        why = f"it is of level {level[:10]}, before the correction of the atmosphere"
        remedy = "choose a collection of Level-2, such as landsat-c2-l2"
        raise InputError("not surface reflectance", path=f"the item {identifier}", why=why, remedy=remedy)
    return LANDSAT_8 if match["satellite"] in "89" else LANDSAT_4


# --- Which asset is which band: catalogues call B04 also red, B04_10m or red-jp2

RESOLUTION = re.compile(r"_(\d{2})m(?:$|[-_])")
NO_DATA_ROLES = {"thumbnail", "overview", "visual", "metadata"}

Json = dict[str, Any]


def assets_by_band(assets: Json, product: ProductKind | None = None) -> dict[str, tuple[str, Json]]:
    """Key and asset of each band: the native resolution before others, then GeoTIFF before JPEG 2000.

    A GeoTIFF is the easier one to read piece by piece over a network.
    """
    ranked: dict[str, tuple[tuple[bool, float, bool, str], Json]] = {}
    for key, asset in sorted(assets.items()):
        if (
            not isinstance(asset, dict)
            or not _has_pixels(asset)
            or (band := _band_of_asset(key, asset, product)) is None
        ):
            continue
        resolution = _asset_resolution(key, asset) or float(NATIVE[band])
        rank = (resolution != NATIVE[band], resolution, _is_jpeg_2000(asset), key)
        if band not in ranked or rank < ranked[band][0]:
            ranked[band] = rank, asset
    return {band: (rank[3], asset) for band, (rank, asset) in sorted(ranked.items())}


def _described_bands(asset: Json, field: str) -> list[Json]:
    """The bands of an asset in a field such as `eo:bands`."""
    bands = asset.get(field)
    return [band for band in bands if isinstance(band, dict)] if isinstance(bands, list) else []


def _band_of_asset(key: str, asset: Json, product: ProductKind | None) -> str | None:
    """The band of an asset, by the name of its one band, its key, or the common name of the band."""
    described = [*_described_bands(asset, "eo:bands"), *_described_bands(asset, "bands")]
    if max(len(_described_bands(asset, field)) for field in ("eo:bands", "bands", "raster:bands")) > 1:
        return None  # a picture of several bands
    names = [*(name for band in described if isinstance(name := band.get("name"), str)), key]
    spelled = [band.get(field) for field in ("common_name", "eo:common_name") for band in described]
    common = [name for name in spelled if isinstance(name, str)]
    if product:
        return product.band(names, common)
    return next((band for name in (*names, *common) if (band := sentinel2_band(name, common_names=True))), None)


def _has_pixels(asset: Json) -> bool:
    roles = asset.get("roles")
    media = asset.get("type")
    if isinstance(roles, list) and NO_DATA_ROLES.intersection(map(str, roles)):
        return False
    return isinstance(asset.get("href"), str) and (not isinstance(media, str) or media.startswith("image/"))


def _is_jpeg_2000(asset: Json) -> bool:
    return "jp2" in str(asset.get("type", "")) or str(asset["href"]).partition("?")[0].lower().endswith(".jp2")


def _asset_resolution(key: str, asset: Json) -> float | None:
    transform = asset.get("proj:transform")
    if isinstance(transform, list) and transform and (size := finite(transform[0])) is not None:
        return abs(size)
    if match := RESOLUTION.search(key):
        return float(match[1])
    listed = [band.get("spatial_resolution") for band in _described_bands(asset, "raster:bands")]
    for value in (*listed, asset.get("raster:spatial_resolution"), asset.get("gsd")):
        if (size := finite(value)) is not None:
            return size
    return None


# --- Reflectance, from what the item says of itself and never from its date
#
# In this order:
# 1. A property `...:boa_offset_applied` that is true: the offset is already in the numbers, whatever else is listed.
# 2. `offset` of the asset's band (`raster:bands`, `bands` or the asset itself).
# 3. The processing baseline: -1000 since 04.00, none before.
# 4. None of these: no offset, with a warning.
# The scale is that of the asset's band, else 1e-4.
#
# Of Landsat and HLS scale and offset are those of the asset's band, else the product's.

APPLIED = ("earthsearch:boa_offset_applied", "sentinel:boa_offset_applied", "s2:boa_offset_applied")
BASELINES = ("s2:processing_baseline", "sentinel2:processing_baseline", "sentinel:processing_baseline")
VERSION = "processing:version"
PRODUCTS = ("s2:product_uri", "sentinel:product_id", "sentinel2:product_uri")
BASELINE_IN_NAME = re.compile(r"_N(\d{2})(\d{2})_")
SMALLEST_SCALE = 1e-9
OFFSET_BASELINE, BASELINE_OFFSET = (4, 0), -1000.0
REMEDY = "report it to the operator of the catalogue"


@dataclass(frozen=True)
class _Reflectance:
    """value = (number + offset) * gain, in the scale of the series."""

    offset: float
    gain: float
    assumed: bool  # the item says nothing of an offset


def _baseline_of(identifier: str, properties: Json) -> tuple[int, int] | None:
    """The processing baseline, of properties or of the product's name."""
    for name in (*BASELINES, VERSION):
        if match := re.fullmatch(r"(\d{1,2})\.(\d{1,2})", str(properties.get(name, ""))):
            return int(match[1]), int(match[2])
    for text in (*(str(properties.get(name, "")) for name in PRODUCTS), identifier):
        if match := BASELINE_IN_NAME.search(text):
            return int(match[1]), int(match[2])
    return None


def _reflectance_of(
    identifier: str, properties: Json, key: str, asset: Json, product: ProductKind | None
) -> _Reflectance:
    scale = _listed(asset, "scale", f"{identifier}, asset {key}")
    offset = _listed(asset, "offset", f"{identifier}, asset {key}")
    if product:
        scale = product.scale if scale is None else scale
        offset = product.offset if offset is None else offset
    scale = SCALE if scale is None else scale
    if not SMALLEST_SCALE <= scale <= 1:
        raise _unclear(f"{identifier}, asset {key}", f"its scale is {scale:g}")
    baseline = _baseline_of(identifier, properties)
    assumed = False
    if any(properties.get(name) is True for name in APPLIED):
        numbers = 0.0
    elif offset is not None:
        numbers = _whole(offset / scale)
    elif baseline is not None:
        numbers = BASELINE_OFFSET * SCALE / scale if baseline >= OFFSET_BASELINE else 0.0
    else:
        numbers, assumed = 0.0, True
    return _Reflectance(_whole(numbers), _whole(scale / SCALE), assumed)


def _check_nodata(identifier: str, key: str, asset: Json, usual: int) -> None:
    """Zero is nodata in Sentinel-2 and Landsat; a catalogue that changed it would be read wrongly."""
    nodata = _find(asset, "nodata")
    if nodata not in (None, usual, str(usual)):
        raise _unclear(f"{identifier}, asset {key}", f"its nodata is {str(nodata)[:20]} instead of {usual}")


def _listed(asset: Json, name: str, where: str) -> float | None:
    value = _find(asset, name)
    if value is None:
        return None
    number = finite(value)
    if number is None or abs(number) > 1e6:
        raise _unclear(where, f"its {name} is {value!r:.20}")
    return number


def _find(asset: Json, name: str) -> Any:
    places = [*_described_bands(asset, "raster:bands"), *_described_bands(asset, "bands"), asset]
    return next((place[word] for place in places for word in (name, f"raster:{name}") if word in place), None)


def _whole(number: float) -> float:
    """Round off the error of decimals: -0.1 / 0.0001 is -1000."""
    return float(round(number)) if abs(number - round(number)) < 1e-6 else number


def _unclear(where: str, why: str) -> InputError:
    return InputError("unclear reflectance", path=f"the item {where}", why=why, remedy=REMEDY)


# --- Addresses of pixels: they come from a remote server, and GDAL would open anything

HREF_REMEDY = "use a catalogue whose files can be read over https"
UNPRINTABLE = re.compile(r"[\x00-\x20\x7f\"<>\\^`{|}]")


def checked_href(href: str, base: str, catalogue: str, item: str) -> str:
    """The absolute address: http or https; of a catalogue on this very machine also a file.

    `base` is where the item itself lies, which relative addresses start from.
    """
    if UNPRINTABLE.search(href) or "/vsi" in unquote(href).lower():
        raise _refused(href, item, "it is not a plain address")
    local = _is_this_machine(urlsplit(catalogue).hostname)
    try:
        absolute = urljoin(base, href)
        parts = urlsplit(absolute)
        host = parts.hostname
        absolute.encode()
    except ValueError:  # also of halves of characters
        raise _refused(href, item, "it is not a plain address") from None
    if unquote(parts.path).lower().endswith(".vrt"):
        raise _refused(href, item, "a VRT could lead to any other file")
    if parts.scheme in ("http", "https") and host:
        if not local and (_is_this_machine(host) or _is_link_local(host)):
            raise _refused(href, item, "a catalogue elsewhere points to this machine")
        return absolute
    if parts.scheme == "file" and local and host in (None, "localhost"):
        return absolute
    raise _refused(href, item, f"its scheme is '{parts.scheme}', only http and https are followed")


def gdal_name(href: str) -> str:
    """How GDAL is asked for a checked address."""
    parts = urlsplit(href)
    return unquote(parts.path) if parts.scheme == "file" else f"/vsicurl/{href}"


def _is_this_machine(host: str | None) -> bool:
    address = _address(host)
    if address is None:
        return (host or "").lower().rstrip(".") == "localhost"
    return address.is_loopback or address.is_unspecified


def _is_link_local(host: str) -> bool:
    """Whether an address is link-local, where cloud machines get their credentials."""
    address = _address(host)
    return address is not None and address.is_link_local


def _address(host: str | None) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host or "")
    except ValueError:
        return None


def _refused(href: str, item: str, why: str) -> InputError:
    shown = public_address(href)[:120]
    return InputError("refused address", path=f"the item {item}", why=f"{shown!r}: {why}", remedy=HREF_REMEDY)
