"""Talking to buckets and web servers through fsspec: bounded in time, and every failure one line without secrets."""

from __future__ import annotations

import errno
import logging
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cropstar.errors import CropstarError, InputError, UsageError, from_os_error
from cropstar.store.remote.addresses import Remote

CONNECT_SECONDS, READ_SECONDS = 10.0, 60.0  # to be let in; without a single byte
RETRIES = 1  # of one request by botocore: s3fs tries several times by itself, as gcsfs does
LOCAL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)  # of the disk here
NEEDED = {"s3": "s3fs", "gs": "gcsfs", "https": "aiohttp"}
CHATTY = ("aiobotocore", "aiohttp", "asyncio", "botocore", "fsspec", "gcsfs", "google", "s3fs", "urllib3")
CREDENTIALS = {
    "s3": "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS, or run 'gcloud auth application-default login'",
    "https": "check the address and what signs it",
}
NETWORK = "check the name and the network, or try again later"

# By the names of classes: those of packages that may not be installed.
NO_CREDENTIALS = {"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "ProfileNotFound"}
NO_CREDENTIALS |= {"DefaultCredentialsError", "RefreshError", "NoAuthTokenError", "TokenRetrievalError"}
TOO_LATE = {"TimeoutError", "FSTimeoutError", "ConnectTimeoutError", "ReadTimeoutError", "ServerTimeoutError"}
TOO_LATE |= {"ConnectionTimeoutError", "SocketTimeoutError"}
UNREACHABLE = {"EndpointConnectionError", "ConnectionClosedError", "ProxyConnectionError", "SSLError", "TransportError"}
UNREACHABLE |= {"ClientConnectorError", "ClientConnectorDNSError", "ClientOSError", "ServerDisconnectedError"}
UNREACHABLE |= {"ConnectionError", "ConnectionRefusedError", "ConnectionResetError", "HTTPClientError"}
BROKEN_OFF = {"ClientPayloadError", "IncompleteRead", "ResponseStreamingError", "IncompleteReadError", "ChecksumError"}


def connect(remote: Remote) -> Any:
    """The fsspec file system of a remote name. Credentials are what the libraries find by themselves."""
    for name in CHATTY:  # they log addresses with all that is in them, and tracebacks
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    try:
        import aiohttp
        import fsspec

        patience = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=READ_SECONDS)
        options: dict[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False}
        if remote.scheme == "s3":
            timeouts = {"connect_timeout": CONNECT_SECONDS, "read_timeout": READ_SECONDS}
            options["config_kwargs"] = {**timeouts, "retries": {"max_attempts": RETRIES}}
        elif remote.scheme == "gs":
            options["requests_timeout"] = patience
        else:
            options["client_kwargs"] = {"timeout": patience, "trust_env": True}
            options["headers"] = {"User-Agent": "cropstar", "Accept-Encoding": "identity"}
            options["ssl"] = ssl.create_default_context()  # what SSL_CERT_FILE says now
            options["encoded"] = "%" in remote.url  # a signature holds for the very address
        with one_line_errors(remote):
            if remote.scheme == "gs":
                return _google(options)
            return fsspec.filesystem(remote.scheme, **options)
    except ImportError as failure:
        why = f"the package {failure.name or NEEDED[remote.scheme]} is not installed"
        remedy = "pip install 'cropstar[remote]'"
        raise UsageError("remote names need an extra", path=str(remote), why=why, remedy=remedy) from None


def _google(options: dict[str, Any]) -> Any:
    """With the standard credentials or, for what is public, none; never with a cache that is a pickle."""
    # Not what `fsspec.filesystem` gives: that asks for the kind of each bucket over gRPC, which proxies do not know.
    from gcsfs.core import GCSFileSystem
    from google.auth.exceptions import DefaultCredentialsError

    try:
        return GCSFileSystem(token="google_default", **options)  # noqa: S106
    except DefaultCredentialsError:
        return GCSFileSystem(token="anon", **options)  # noqa: S106


@contextmanager
def one_line_errors(remote: Remote) -> Iterator[None]:
    """Whatever the libraries raise, in our words alone: theirs may hold a signed address."""
    try:
        yield
    except (CropstarError, ImportError):
        raise
    except OSError as failure:
        if failure.errno in LOCAL:
            raise from_os_error(failure) from None
        raise _translated(failure, remote) from None
    except Exception as failure:
        raise _translated(failure, remote) from None


def _translated(failure: BaseException, remote: Remote) -> InputError:
    chain = list(_chain(failure))
    names = {kind.__name__ for each in chain for kind in type(each).__mro__}
    status = next((found for found in map(_status, chain) if found), 0)
    text = " ".join(str(each).lower() for each in chain)
    credentials = CREDENTIALS[remote.scheme]

    def error(what: str, why: str | None, remedy: str) -> InputError:
        return InputError(what, path=str(remote), why=why, remedy=remedy)

    if names & NO_CREDENTIALS or "anonymous caller" in text:
        return error("no credentials", "none that are valid were found", credentials)
    if status in (401, 403) or isinstance(failure, PermissionError) or text.startswith("forbidden"):
        return error("access denied", f"HTTP status {status}" if status else None, credentials)
    if "certificateerror" in text or "ClientConnectorCertificateError" in names or "certificate verify" in text:
        return error("the server is not trusted", "its certificate cannot be verified", "check the name")
    if names & TOO_LATE:
        return error("no answer in time", None, NETWORK)
    if names & BROKEN_OFF:
        return error("an incomplete download", "the connection broke", "run the same command again")
    if names & UNREACHABLE:
        return error("no connection to the server", None, NETWORK)
    if status == 404 or (isinstance(failure, FileNotFoundError) and not status):
        bucket = "bucket" in text and "exist" in text
        return error("no such bucket" if bucket else "no such file or folder", None, "check the name")
    why = f"HTTP status {status}" if status else type(failure).__name__
    return error("the transfer failed", why, NETWORK)


def _chain(failure: BaseException | None) -> Iterator[BaseException]:
    """A failure and what it came from: fsspec says 'not found' of whatever a web server answers."""
    for _ in range(8):
        if failure is None:
            return
        yield failure
        failure = failure.__cause__ or failure.__context__


def _status(failure: BaseException) -> int:
    """The HTTP status that a failure of any of the libraries knows."""
    reply = getattr(failure, "response", None)
    known = reply.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(reply, dict) else None
    if known is None:  # one of aiohttp's says that its `code` is out of date
        known = getattr(failure, "status", None) if hasattr(failure, "status") else getattr(failure, "code", None)
    return known if isinstance(known, int) and 400 <= known < 600 else 0
