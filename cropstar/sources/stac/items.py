"""Items as values: what of a STAC item's JSON is needed to read it, checked."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import lru_cache
from typing import Any

from rasterio.crs import CRS
from rasterio.errors import CRSError

from cropstar.errors import InputError
from cropstar.geo.grid import Grid
from cropstar.geo.sensors import SCENE_CLASSIFICATION
from cropstar.sources.sentinel2.files import MAXIMUM_SIDE
from cropstar.sources.stac.bands import Json, assets_by_band
from cropstar.sources.stac.connection import public_address
from cropstar.sources.stac.hrefs import checked_href
from cropstar.sources.stac.reflectance import REMEDY, Reflectance, baseline_of, check_nodata, reflectance_of

GENERATION = ("s2:generation_time", "processing:datetime", "created")
CHECKSUMS = ("file:checksum", "checksum:multihash")
CODE = re.compile(r"[A-Z]{2,10}:\d{1,9}")
OLDEST = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Asset:
    """One band of one item. `grid` is what the catalogue says of it, if it does."""

    item: str
    key: str
    href: str
    grid: Grid | None
    reflectance: Reflectance
    checksum: str | None

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
    assets: dict[str, Asset]  # by band, and the scene classification

    @property
    def baseline_name(self) -> str:
        return "{:02d}.{:02d}".format(*self.baseline) if self.baseline else "unknown"

    @property
    def age(self) -> tuple[tuple[int, int], datetime, str]:
        """What orders items of one day: processing baseline, then the time it was made, then the name."""
        return self.baseline or (0, 0), self.generation, self.identifier


def read_item(feature: Json, catalogue: str, wanted: Iterable[str]) -> Item:
    """The item with those of the wanted bands that it has, and its scene classification."""
    identifier = str(feature.get("id", ""))[:200]
    properties, assets = feature.get("properties"), feature.get("assets")
    if not identifier or not isinstance(properties, dict) or not isinstance(assets, dict):
        why = f"'{identifier}' lacks its properties or assets"
        raise InputError("not a STAC item", path=public_address(catalogue), why=why, remedy=REMEDY)
    base = _self_address(feature, catalogue)
    found = {}
    for band, (key, asset) in assets_by_band(assets).items():
        if band == SCENE_CLASSIFICATION or band in wanted:
            check_nodata(identifier, key, asset)
            found[band] = Asset(
                item=identifier,
                key=key,
                href=checked_href(asset["href"], base, catalogue, identifier),
                grid=_grid(properties, asset),
                reflectance=reflectance_of(identifier, properties, key, asset),
                checksum=next((str(asset[name]) for name in CHECKSUMS if name in asset), None),
            )
    return Item(
        identifier=identifier,
        day=_day(identifier, properties),
        baseline=baseline_of(identifier, properties),
        generation=next((moment for name in GENERATION if (moment := _moment(properties.get(name)))), OLDEST),
        updated=str(properties["updated"]) if "updated" in properties else None,
        assets=found,
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
            return moment.astimezone(UTC).date()
    why = "it has neither datetime nor start_datetime"
    raise InputError("no date", path=f"the item {identifier}", why=why, remedy=REMEDY)


def _moment(text: Any) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


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
        return str(CRS.from_user_input(code).to_wkt()) if CODE.fullmatch(code) else None
    except CRSError:
        return None


def _numbers(values: Any, lengths: tuple[int, ...]) -> list[float] | None:
    if not isinstance(values, list) or len(values) not in lengths:
        return None
    if not all(isinstance(one, int | float) and math.isfinite(one) and abs(one) < 1e9 for one in values):
        return None
    return [float(one) for one in values]
