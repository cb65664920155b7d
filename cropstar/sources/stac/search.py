"""The search: items of one collection over an area and a season, page by page, never without end."""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Iterator
from typing import Any

from cropstar.errors import InputError
from cropstar.logs import logger
from cropstar.registry import did_you_mean
from cropstar.sources.stac.connection import connect, one_line_errors, public_address
from cropstar.sources.stac.options import StacOptions

PAGE = 100
# A year of two satellites over ten granules has some 1,500.
MAXIMUM_ITEMS = 2000
MAXIMUM_PAGES = 500
SEARCH_SECONDS = 900.0
NAMED_COLLECTIONS = 50
CLOUD_COVER = "eo:cloud_cover"


def find_items(url: str, options: StacOptions) -> list[dict[str, Any]]:
    """The items as JSON, each id once; those with more cloud than allowed are left out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library's words on conformance
        client = connect(url)
        method = _search_method(client, url)
        _check_collection(client, url, options.collection)
        with one_line_errors(url):
            found = {str(item["id"]): item for item in _pages(client, url, method, options)}
    if not found:
        season = f"{options.start} to {options.end}"
        why = f"the collection '{options.collection}' has none in the area from {season}"
        raise InputError("no items", path=public_address(url), why=why, remedy="ask for another area or season")
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
    with one_line_errors(url):
        if client.get_collection(collection) is not None:
            return
        known = [one.id for one in itertools.islice(client.get_collections(), NAMED_COLLECTIONS)]
    remedy = did_you_mean(collection, known)
    raise InputError(f"no collection '{collection}'", path=public_address(url), remedy=remedy)


def _pages(client: Any, url: str, method: str, options: StacOptions) -> Iterator[dict[str, Any]]:
    search = client.search(
        method=method,
        collections=[options.collection],
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
    remedy = "ask for a smaller area or a shorter season"
    return InputError("the search finds too much", path=public_address(url), why=why, remedy=remedy)


def _cloud_cover(item: dict[str, Any]) -> float:
    """In percent; an item that does not say passes."""
    cover = (item.get("properties") or {}).get(CLOUD_COVER)
    return float(cover) if isinstance(cover, int | float) else 0.0
