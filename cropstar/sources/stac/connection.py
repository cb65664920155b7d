"""Talking to a STAC API: bounded in time and size, and every failure one readable line."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from cropstar.errors import CropstarError, InputError, UsageError

CONNECT_SECONDS, READ_SECONDS = 10.0, 60.0
REQUEST_SECONDS = 120.0  # for a server that sends a byte now and then
# A page of a hundred Sentinel-2 items has 3 MB.
MAXIMUM_ANSWER_BYTES = 64 * 2**20
RETRIES = 2
BUSY = (429, 502, 503, 504)
REMEDY = "check the address and the network, or try again later"
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


def connect(url: str) -> Any:
    """An open pystac-client `Client` whose requests cannot hang or fill the memory."""
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        remedy = "give one such as https://earth-search.aws.element84.com/v1"
        raise UsageError(f"'{public_address(url)}' is no address of a STAC API", remedy=remedy)
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
    with one_line_errors(url):
        return Client.open(url, stac_io=stac_io, timeout=(CONNECT_SECONDS, READ_SECONDS))


@contextmanager
def one_line_errors(url: str) -> Iterator[None]:
    """Whatever the client library says of a server's answer, as an InputError."""
    from pystac_client.exceptions import APIError

    try:
        yield
    except CropstarError:
        raise
    except APIError as failure:
        status = getattr(failure, "status_code", None)
        if status is None:
            raise _failure("the STAC API cannot be reached", url, _reason(str(failure)), REMEDY) from None
        why = f"HTTP status {status}: {_short(str(failure)) or 'no explanation'}"
        raise _failure("the STAC API refused", url, why, REMEDY) from None
    except Exception as failure:  # the library follows any JSON wherever it leads
        why = f"its answer cannot be understood ({type(failure).__name__}: {_short(str(failure))})"
        raise _failure("not a STAC API", url, why, "give the address of its landing page") from None


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


def _failure(what: str, url: str, why: str, remedy: str) -> InputError:
    return InputError(what, path=public_address(url), why=why, remedy=remedy)


def _reason(text: str) -> str:
    lowered = text.lower()
    return next((reason for sign, reason in REASONS.items() if sign in lowered), _short(text[-200:]))


def _short(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= 160 else words[:160] + "..."
