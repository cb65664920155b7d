"""Searching a STAC API: items of collections over an area and a season, bounded in time and size."""

from __future__ import annotations

import itertools
import math
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

from pydantic import field_validator, model_validator
from rasterio.errors import CRSError

from cropstar.errors import CropstarError, InputError, UsageError
from cropstar.geo.grid import parse_crs
from cropstar.registry import did_you_mean
from cropstar.runtime import logger
from cropstar.sources.sentinel2.series import Sentinel2Options
from cropstar.sources.vectors import open_vector

Box = tuple[float, float, float, float]


class StacOptions(Sentinel2Options):
    """Collections (separated by commas), area (west, south, east, north in degrees), season with both ends.

    The rest is as for SAFE products.
    Without a resolution the grid is that of the finest band, without a CRS that of most items.
    """

    collection: str
    bbox: Box
    start: date
    end: date
    max_cloud: float = 100.0
    resolution: float | None = None
    crs: str | None = None

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        if not all(self.collections):
            raise UsageError("no collection given", remedy="name it with --collection, such as sentinel-2-l2a")
        if self.end < self.start:
            raise UsageError(f"the season ends on {self.end} before it starts on {self.start}", remedy="swap them")
        if not 0 <= self.max_cloud <= 100:
            raise UsageError("the cloud cover is a percentage", why=f"got {self.max_cloud:g}", remedy="give 0 to 100")
        if self.resolution is not None and not 1 <= self.resolution <= 10_000:
            why = f"got {self.resolution:g}"
            raise UsageError("the resolution is the side of a pixel in metres", why=why, remedy="give 10 or 20")
        return self

    @field_validator("bbox", mode="before")
    @classmethod
    def _box(cls, given: Any) -> Box:
        return _checked_box(given)

    @field_validator("crs")
    @classmethod
    def _crs(cls, given: str | None) -> str | None:
        return None if given is None else _metric_crs(given)

    @property
    def collections(self) -> list[str]:
        return [name.strip() for name in self.collection.split(",")]

    def to_json(self) -> dict[str, Any]:
        return {
            "collection": self.collection,
            "bbox": list(self.bbox),
            "season": [self.start.isoformat(), self.end.isoformat()],
            "bands": self.bands,
            "scene_classes": list(self.clear),
            "max_cloud": self.max_cloud,
            "resolution": self.resolution,
            "crs": self.crs,
            "resampling": self.resampling,
        }


def _checked_box(numbers: Box) -> Box:
    remedy = "give west,south,east,north in degrees, such as 3.2,43.6,3.4,43.7"
    if len(numbers) != 4 or not all(math.isfinite(number) for number in numbers):
        raise UsageError("the area is not a box of four numbers", remedy=remedy)
    west, south, east, north = map(float, numbers)
    if not (-180 <= west < east <= 180 and -90 <= south < north <= 90):
        why = f"got {west:g},{south:g},{east:g},{north:g}"
        raise UsageError("the area is not a box in degrees", why=why, remedy=remedy)
    return west, south, east, north


def _metric_crs(text: str) -> str:
    try:
        crs = parse_crs(text)
        if crs.is_projected and crs.linear_units_factor[1] == 1:
            return text
        why = "its unit is not the metre"
    except CRSError as failure:
        why = str(failure)
    raise UsageError(f"no usable coordinate system '{text}'", why=why, remedy="give one such as EPSG:32631")


# --- The search: page by page, never without end

PAGE = 100
# A year of two satellites over ten granules has some 1,500.
MAXIMUM_ITEMS = 2000
MAXIMUM_PAGES = 500
SEARCH_SECONDS = 900.0
NAMED_COLLECTIONS = 50
CLOUD_COVER = "eo:cloud_cover"


def find_items(url: str, options: StacOptions) -> list[dict[str, Any]]:
    """The items as JSON, each id of a collection once; those with more cloud than allowed are left out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library's words on conformance
        client = _connect(url)
        method = _search_method(client, url)
        for collection in options.collections:
            _check_collection(client, url, collection)
        with _one_line_errors(url):
            found = {
                (str(item.get("collection")), str(item["id"])): item for item in _pages(client, url, method, options)
            }
    if not found:
        season = f"{options.start} to {options.end}"
        why = f"the collection '{options.collection}' has none in the area from {season}"
        raise InputError("no items", path=public_address(url), why=why, remedy="choose another area or season")
    kept = [item for item in found.values() if _cloud_cover(item) <= options.max_cloud]
    cloudy = len(found) - len(kept)
    if not kept:
        why = f"all {cloudy} items have more than {options.max_cloud:g} % cloud"
        raise InputError("no items", path=public_address(url), why=why, remedy="allow more with --max-cloud")
    if cloudy:
        logger.info("%d of %d items left out: more than %g %% cloud", cloudy, len(found), options.max_cloud)
    return kept


def _search_method(client: Any, url: str) -> str:
    """POST where the API offers it, else GET; a catalogue without search is refused."""
    links = [link for link in client.get_links("search") if link.href]
    if not links:
        why = "it offers no search; perhaps it is a static catalogue"
        raise InputError("not a STAC API", path=public_address(url), why=why, remedy="give the address of an API")
    client.add_conforms_to("ITEM_SEARCH")  # the link says so even where the list of conformance does not
    methods = {str(link.extra_fields.get("method", "GET")).upper() for link in links}
    return "POST" if "POST" in methods else "GET"


def _check_collection(client: Any, url: str, collection: str) -> None:
    """An unknown collection is named with those that exist; an API that lists none is not asked."""
    if not (client.conforms_to("COLLECTIONS") or client.conforms_to("FEATURES")):
        return
    with _one_line_errors(url):
        if client.get_collection(collection) is not None:
            return
        known = [one.id for one in itertools.islice(client.get_collections(), NAMED_COLLECTIONS)]
    remedy = did_you_mean(collection, known)
    raise InputError(f"no collection '{collection}'", path=public_address(url), remedy=remedy)


def _pages(client: Any, url: str, method: str, options: StacOptions) -> Iterator[dict[str, Any]]:
    search = client.search(
        method=method,
        collections=options.collections,
        bbox=options.bbox,
        datetime=f"{options.start}/{options.end}",
        limit=PAGE,
        max_items=MAXIMUM_ITEMS + 1,
    )
    deadline, items = time.monotonic() + SEARCH_SECONDS, 0
    for number, page in enumerate(search.pages_as_dicts(), 1):
        items += len(page["features"])
        yield from page["features"]
        if items > MAXIMUM_ITEMS:
            raise _too_much(url, f"more than {MAXIMUM_ITEMS:,} items")
        if number == MAXIMUM_PAGES or time.monotonic() > deadline:
            raise _too_much(url, f"no end after {number} pages with {items} items")


def _too_much(url: str, why: str) -> InputError:
    remedy = "choose a smaller area or a shorter season"
    return InputError("the search finds too much", path=public_address(url), why=why, remedy=remedy)


def _cloud_cover(item: dict[str, Any]) -> float:
    """The cloud cover in percent; zero if the item has none."""
    properties = item.get("properties")
    return finite(properties.get(CLOUD_COVER) if isinstance(properties, dict) else None) or 0.0


LARGEST = 1e15  # number that means something in an item


def finite(value: Any) -> float | None:
    """A number of JSON; None of anything else, of one that is not finite, and of one beyond all bounds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not -LARGEST < value < LARGEST:
        return None
    return float(value)


# --- Talking to the API: every failure is one readable line

CONNECT_SECONDS, READ_SECONDS = 10.0, 60.0
REQUEST_SECONDS = 120.0  # for a server that sends a byte now and then
# A page of a hundred Sentinel-2 items has 3 MB.
MAXIMUM_ANSWER_BYTES = 64 * 2**20
RETRIES = 2
BUSY = (429, 502, 503, 504)
CONNECTION_REMEDY = "check the address and the network, or try again later"
REASONS = {
    "timed out": "no answer in time",
    "connection refused": "the connection was refused",
    "name resolution": "the host is unknown",
    "name or service not known": "the host is unknown",
    "nodename nor servname": "the host is unknown",
    "failed to resolve": "the host is unknown",
    "certificate verify failed": "its certificate is not trusted",
    "proxy": "the proxy does not let it through",
}


def public_address(url: str) -> str:
    """An address without passwords and signatures, for messages, provenance and recipes."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        return urlunsplit((parts.scheme, host, parts.path, "", ""))
    except ValueError:
        return url.partition("?")[0]


def _connect(url: str) -> Any:
    """An open pystac-client `Client` whose requests cannot hang or fill the memory."""
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        remedy = "give one such as https://earth-search.aws.element84.com/v1"
        raise UsageError(f"'{public_address(url)}' is not the address of a STAC API", remedy=remedy)
    try:
        from pystac_client import Client
        from pystac_client.stac_api_io import StacApiIO
        from urllib3 import Retry
    except ImportError as failure:
        why = f"the package {failure.name or 'pystac_client'} is not installed"
        raise UsageError("STAC needs an extra", why=why, remedy="pip install 'cropstar[stac]'") from None
    # A server's Retry-After may say hours: it is not asked.
    retries = Retry(RETRIES, backoff_factor=0.2, status_forcelist=BUSY, respect_retry_after_header=False)
    stac_io = StacApiIO(max_retries=None)
    for scheme in ("http://", "https://"):
        stac_io.session.mount(scheme, _bounded_adapter(retries))
    with _one_line_errors(url):
        return Client.open(url, stac_io=stac_io, timeout=(CONNECT_SECONDS, READ_SECONDS))


@contextmanager
def _one_line_errors(url: str) -> Iterator[None]:
    """Turn any error of the client library into an InputError."""
    from pystac_client.exceptions import APIError

    try:
        yield
    except CropstarError:
        raise
    except APIError as failure:
        status = getattr(failure, "status_code", None)
        if status is None:
            raise _input_error(
                "the STAC API cannot be reached", url, _reason(str(failure)), CONNECTION_REMEDY
            ) from None
        why = f"HTTP status {status}: {_short(str(failure)) or 'no explanation'}"
        raise _input_error("the STAC API refused", url, why, CONNECTION_REMEDY) from None
    except Exception as failure:  # the library follows any JSON wherever it leads
        why = f"its answer cannot be understood ({type(failure).__name__}: {_short(str(failure))})"
        raise _input_error("not a STAC API", url, why, "give the address of its landing page") from None


def _bounded_adapter(retries: Any) -> Any:
    from requests import RequestException
    from requests.adapters import HTTPAdapter

    class BoundedAdapter(HTTPAdapter):  # type: ignore[misc]
        def send(self, request: Any, *arguments: Any, **options: Any) -> Any:
            deadline = time.monotonic() + REQUEST_SECONDS
            response = super().send(request, *arguments, **{**options, "stream": True})
            content = bytearray()
            for part in response.iter_content(2**16):
                content += part
                if len(content) > MAXIMUM_ANSWER_BYTES:
                    raise RequestException(f"the answer is longer than {MAXIMUM_ANSWER_BYTES:,} bytes")
                if time.monotonic() > deadline:
                    raise RequestException("timed out in the middle of the answer")
            response._content = bytes(content)
            return response

    return BoundedAdapter(max_retries=retries)


def _input_error(what: str, url: str, why: str, remedy: str) -> InputError:
    return InputError(what, path=public_address(url), why=why, remedy=remedy)


def _reason(text: str) -> str:
    lowered = text.lower()
    return next((reason for sign, reason in REASONS.items() if sign in lowered), _short(text[-200:]))


def _short(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= 160 else words[:160] + "..."


def lonlat_extent(parcels: Path) -> Box:
    """West, south, east and north of a vector file in degrees."""
    frame = open_vector(parcels)
    west, south, east, north = (float(number) for number in frame.geometry.to_crs("EPSG:4326").total_bounds)
    if not all(map(math.isfinite, (west, south, east, north))):
        raise InputError("no area", path=parcels, why="it has no geometries", remedy="give --bbox or other parcels")
    return west, south, east, north
