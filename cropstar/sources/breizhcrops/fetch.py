"""One file from the network: bounded, with a time limit, and going on where an earlier attempt broke off."""

from __future__ import annotations

import http.client
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from cropstar.errors import InputError
from cropstar.progress import progress_bar

TIMEOUT = 30.0  # seconds without a single byte
BLOCK = 2**18
UNFINISHED = ".download"
AGAIN = "run the same command again: it goes on where it stopped"
RETRY = "check the connection and run the same command again"
RANGE = re.compile(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)", re.ASCII)
PAGE = (b"<!doctype html", b"<html", b"<?xml")


def fetch(url: str, place: Path, most: int, *, resume: bool = True) -> Path:
    """Download to a hidden file beside `place` and answer its path; the caller checks it and moves it there.

    It is kept when the connection breaks, and removed when it cannot be the beginning of the right file.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    unfinished = place.with_name(f".{place.name}{UNFINISHED}")
    have = unfinished.stat().st_size if resume and unfinished.exists() else 0
    with _open(url, have) as reply:
        start, total = _extent(reply, have)
        if start is None:  # what is here is not a beginning of what is there
            if not have:
                raise InputError("cannot download", path=url, why=f"an odd reply: {reply.status}", remedy=RETRY)
            return fetch(url, place, most, resume=False)
        if start == total:
            return unfinished
        if total is not None and total > most:
            raise InputError("too large a file", path=url, why=f"{total} bytes, at most {most} expected")
        got = _receive(reply, unfinished, url, start, total, most)
    if total is not None and got < total:
        why = f"the connection broke after {got} of {total} bytes"
        raise InputError("an incomplete download", path=url, why=why, remedy=AGAIN)
    _refuse_page(unfinished, url)
    return unfinished


def _open(url: str, start: int) -> Any:
    if not url.startswith(("https://", "http://")):  # urllib would open files and ftp as well
        raise InputError("not an address of the web", path=url, remedy="check the package breizhcrops")
    headers = {"User-Agent": "cropstar", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    try:
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)  # noqa: S310
    except urllib.error.HTTPError as failure:
        if failure.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and start:
            return failure  # a reply like any other: it says how long the file is
        why = f"{failure.code} {failure.reason}"
        failure.close()
        raise InputError("cannot download", path=url, why=why, remedy="try again later") from None
    except (OSError, http.client.HTTPException, ValueError) as failure:
        why = str(getattr(failure, "reason", None) or failure)
        raise InputError("cannot download", path=url, why=why, remedy=RETRY) from None


def _extent(reply: Any, have: int) -> tuple[int | None, int | None]:
    """Where the reply starts in the file and how long the file is, where that is told."""
    span = RANGE.fullmatch(reply.headers.get("Content-Range", ""))
    if reply.status == http.HTTPStatus.OK:
        length = reply.headers.get("Content-Length", "")
        return 0, int(length) if length.isdecimal() else None
    if span is None:
        return None, None
    total = int(span[2]) if span[2].isdecimal() else None
    if span[1] is None:  # nothing follows: all of it is here already, or more than that
        return (have, have) if total == have else (None, None)
    return (have, total) if int(span[1]) == have else (None, None)


def _receive(reply: Any, path: Path, url: str, start: int, total: int | None, most: int) -> int:
    """Append what comes and answer how much of the file is here now."""
    got = start
    with path.open("ab" if start else "wb") as handle, progress_bar(total or most, _name(url), "B", scale=True) as bar:
        bar.update(start)
        while got < (total if total is not None else most + 1):
            try:
                block = reply.read1(BLOCK)
            except (OSError, http.client.HTTPException) as failure:
                handle.flush()
                why = f"the connection broke after {got} bytes: {failure}"
                raise InputError("an incomplete download", path=url, why=why, remedy=AGAIN) from None
            if not block:
                break
            handle.write(block)
            got += len(block)
            bar.update(len(block))
    if got > most:
        path.unlink()
        raise InputError("too large a file", path=url, why=f"more than {most} bytes")
    return got


def _refuse_page(path: Path, url: str) -> None:
    """A portal or proxy answers with a page of its own, and says that all is well."""
    with path.open("rb") as handle:
        head = handle.read(1024).removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if head.startswith(PAGE):
        path.unlink()
        raise InputError("not the file", path=url, why="a web page came instead", remedy=RETRY)


def _name(url: str) -> str:
    return url.rpartition("/")[2]
