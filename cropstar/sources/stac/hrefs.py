"""Which addresses of pixels are followed. They come from a remote server, and GDAL would open anything."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import unquote, urljoin, urlsplit

from cropstar.errors import InputError
from cropstar.sources.stac.connection import public_address

REMEDY = "use a catalogue whose files can be read over https"
UNPRINTABLE = re.compile(r"[\x00-\x20\x7f\"<>\\^`{|}]")


def checked_href(href: str, base: str, catalogue: str, item: str) -> str:
    """The absolute address: http or https; of a catalogue on this very machine also a file.

    `base` is where the item itself lies, which relative addresses start from.
    """
    if UNPRINTABLE.search(href) or "/vsi" in unquote(href).lower():
        raise _refused(href, item, "it is no plain address")
    local = _is_this_machine(urlsplit(catalogue).hostname)
    try:
        absolute = urljoin(base, href)
        parts = urlsplit(absolute)
        host = parts.hostname
    except ValueError:
        raise _refused(href, item, "it is no plain address") from None
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
    """Where machines in a cloud are told their secrets."""
    address = _address(host)
    return address is not None and address.is_link_local


def _address(host: str | None) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host or "")
    except ValueError:
        return None


def _refused(href: str, item: str, why: str) -> InputError:
    shown = public_address(href)[:120]
    return InputError("refused address", path=f"the item {item}", why=f"{shown!r}: {why}", remedy=REMEDY)
