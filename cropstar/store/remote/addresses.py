"""Remote names: recognising, parsing and showing them, never with a password or a signature."""

from __future__ import annotations

import glob
import hashlib
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from cropstar.errors import UsageError

READABLE, WRITABLE = ("s3", "gs", "https"), ("s3", "gs")
ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
IN_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://[^\s'\"<>]+")
ENDING = re.compile(r"\.(tiff?|zip|csv|tsv|ts|parquet|geoparquet|pq|gz|h5|hdf5|tfrecord)$", re.IGNORECASE)  # of files
# What signs an address or lets its holder in; it changes from one day to the next, the file does not.
SECRET = re.compile(
    r"x-(amz|goog)-.*|.*(signature|token|secret|password|credential|api_?key).*|sig|s[eprtv]|skoid|sktid|skt|ske|sks|skv"
    r"|spr|awsaccesskeyid|googleaccessid|expires|key-pair-id|policy|auth.*|key",
    re.IGNORECASE,
)


def is_remote(text: str) -> bool:
    """Whether a name is one of another machine, whatever its scheme."""
    return ADDRESS.match(text) is not None


def is_catalogue(given: tuple[str, ...], text: str) -> bool:
    """Of the arguments of ingest, an address that is not a file: one of a STAC API."""
    scheme, _, rest = redacted(text).partition("://")
    return scheme.lower() in ("http", "https") and (given[0] == "stac" or not ENDING.search(rest.partition("/")[2]))


def redacted(text: str) -> str:
    """An address as it may be shown and recorded: without user, password, query and fragment."""
    scheme, _, rest = text.partition("://")
    if scheme.lower() not in WRITABLE:  # there ? and # are signs of a key
        rest = rest.partition("?")[0].partition("#")[0]
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def redact_all(text: str) -> str:
    """A text with all of its addresses redacted."""
    return IN_TEXT.sub(lambda found: redacted(found[0]), text)


@dataclass(frozen=True)
class Remote:
    """A file or folder elsewhere. Its text is redacted; the address itself is for the connection alone."""

    url: str = field(repr=False)

    @classmethod
    def parse(cls, text: str, *, written: bool = False) -> Remote:
        """Parse an address; malformed ones are refused."""
        remote, shown = cls(text), redacted(text)
        allowed = WRITABLE if written else READABLE
        if remote.scheme not in allowed:
            why = f"{remote.scheme}:// cannot be {'written' if written else 'read'}"
            raise UsageError("an unknown kind of remote name", path=shown, why=why, remedy=f"use {_listed(allowed)}")
        try:
            parts = urlsplit(text)
            host = parts.hostname
        except ValueError:
            host = None
        if not host:
            raise UsageError("a remote name without a host or bucket", path=shown, remedy="check the name")
        if remote.scheme in WRITABLE and "@" in parts.netloc:
            remedy = "leave it out: credentials come from the environment and the standard files"
            raise UsageError("a user or password in a remote name", path=shown, remedy=remedy)
        if not remote.name:
            raise UsageError("a remote name without a file or folder", path=shown, remedy="check the name")
        return remote

    def __str__(self) -> str:
        return redacted(self.url)

    @property
    def scheme(self) -> str:
        return self.url.partition("://")[0].lower()

    @property
    def name(self) -> str:
        """The last part, which the copy on the disk has as well."""
        _, slash, path = redacted(self.url).partition("://")[2].partition("/")
        return path.rstrip("/").rpartition("/")[2] if slash else ""

    @property
    def is_pattern(self) -> bool:
        return self.scheme in WRITABLE and glob.has_magic(self.url)

    @property
    def key(self) -> str:
        """The identity of a remote file: the address without its signature."""
        if self.scheme in WRITABLE:
            return self.url.rstrip("/")
        query = parse_qsl(urlsplit(self.url).query, keep_blank_values=True)
        kept = urlencode([(name, value) for name, value in query if not SECRET.fullmatch(name)])
        return f"{self}?{kept}" if kept else str(self)


def has_remote(value: Any) -> bool:
    """Whether an argument, or one of several, is remote."""
    return any(isinstance(each, Remote) for each in (value if isinstance(value, tuple) else (value,)))


def digest(*texts: str) -> str:
    """A name for a folder of the scratch."""
    return hashlib.blake2b("\0".join(texts).encode(), digest_size=12).hexdigest()


def _listed(schemes: tuple[str, ...]) -> str:
    return " or ".join(f"{scheme}://" for scheme in schemes)
