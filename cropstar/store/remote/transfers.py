"""Remote inputs brought to a scratch folder, and remote outputs made there and uploaded.

<scratch>/objects/<digest>              an input's file by its address and version, whole or not there
<scratch>/views/<digest>/<name>/...     the files of one input under their own names, as links
<scratch>/outputs/<digest>/<name>       the map and what stands beside it, or a folder of them, or a store
<scratch>/outputs/<digest>/.finished    all of it is there: a job that is killed while it uploads only uploads again

A version is the ETag, the generation, the time of change and the size, as far as the server tells them. A file that has
changed is another object, and its input another view; a server that tells no version is asked for the file every time.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import ssl
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path, PurePosixPath
from typing import Any

from cropstar.errors import CropstarError, InputError, PartialResult, ResourceError, UsageError, from_os_error
from cropstar.inputs import is_geotiff
from cropstar.runtime import event, progress_bar
from cropstar.store.files import atomic_path, locked, write_text
from cropstar.store.remote.addresses import Remote, digest
from cropstar.store.store import MANIFEST

MOST_FILES = 1_000_000  # of one input
VERSION = ("ETag", "etag", "generation", "VersionId", "md5Hash", "LastModified", "Last-Modified", "mtime", "updated")
CHANGED = ("LastModified", "mtime", "Last-Modified")
LONG_AGO = 946_684_800.0  # for files without a time; the same on every machine, since blocks are found again by it
SLOW_SECONDS, SLOW_BYTES = 120.0, 1000.0  # after so long, fewer bytes per second are no answer
ROOM = 2**26  # bytes that stay free
AGAIN = "run the same command again"
OUTPUTS, FINISHED = "outputs", ".finished"
TAKEN_REMEDY = "choose another with -o, or give --overwrite"


@dataclass(frozen=True)
class RemoteFile:
    """One file of an input."""

    source: str  # as the file system calls it
    place: PurePosixPath  # in the view
    key: str
    version: str  # empty where the server tells none
    size: int | None
    changed: float

    @property
    def object_name(self) -> str:
        return digest(self.key, self.version)


def fetch(remote: Remote, scratch: Path) -> list[Path]:
    """The local copies of a file or folder, or of all that fit a pattern."""
    system = connect(remote)
    with one_line_errors(remote):
        inputs = list(_find_inputs(system, remote))
    if not inputs:
        raise InputError("no such file or folder", path=str(remote), why="nothing matches", remedy="check the name")
    _fetch_missing(system, remote, [file for files in inputs for file in files], scratch)
    return [_link_view(files, scratch) for files in inputs]


def _find_inputs(system: Any, remote: Remote) -> Iterator[list[RemoteFile]]:
    """The files of each remote input."""
    if remote.scheme == "https":
        info = system.info(remote.url)
        if not str(info.get("url", remote.url)).startswith("https://"):
            raise InputError("refused address", path=str(remote), why="it leads away from https", remedy="check it")
        yield [_remote_file(info, remote.url, PurePosixPath(remote.name), remote.key)]
        return
    if remote.is_pattern:
        listed = system.glob(remote.url, detail=True)
        roots = [listed[name] for name in sorted(listed)]
    else:
        roots = [system.info(remote.url.rstrip("/"))]
    for root in roots:
        name = str(root["name"]).rstrip("/")
        if root["type"] != "directory":
            yield [_file_of(remote, info, name.rpartition("/")[0]) for info in _with_companions(system, root)]
            continue
        infos = system.find(name, detail=True)
        if len(infos) > MOST_FILES:
            raise InputError(
                "a folder that is too large", path=str(remote), why=f"{len(infos):,} files", remedy="give a part"
            )
        files = [info for key, info in sorted(infos.items()) if not key.endswith("/")]
        if not files:
            raise InputError("no such file or folder", path=str(remote), why="it is empty", remedy="check the name")
        yield [_file_of(remote, info, name.rpartition("/")[0]) for info in files]


def _with_companions(system: Any, info: dict[str, Any]) -> list[dict[str, Any]]:
    """A file, and the other files of a shapefile."""
    name = str(info["name"])
    if not name.lower().endswith(".shp"):
        return [info]
    folder, _, own = name.rpartition("/")
    beside = [other for other in system.ls(folder, detail=True) if other["type"] == "file"]
    stem = own[: -len("shp")]
    others = [other for other in beside if str(other["name"]).rpartition("/")[2].startswith(stem)]
    return [info, *(other for other in others if other["name"] != name)]


def _file_of(remote: Remote, info: dict[str, Any], folder: str) -> RemoteFile:
    name = str(info["name"])
    place = PurePosixPath(name.removeprefix(f"{folder}/") if folder else name)
    if place.is_absolute() or ".." in place.parts or not place.parts or "\0" in name:
        raise InputError(
            "a name that leads out of its folder", path=str(remote), why=f"'{place}'", remedy="rename the object"
        )
    return _remote_file(info, name, place, f"{remote.scheme}://{name}")


def _remote_file(info: dict[str, Any], source: str, place: PurePosixPath, key: str) -> RemoteFile:
    told = [f"{name}={info[name]}" for name in VERSION if info.get(name)]
    size = info.get("size")
    version = " ".join([*told, f"size={size}"]) if told else ""
    return RemoteFile(source, place, key, version, None if size is None else int(size), _changed(info))


def _changed(info: dict[str, Any]) -> float:
    for name in CHANGED:
        value = info.get(name)
        try:
            if isinstance(value, str):
                value = parsedate_to_datetime(value)
            if isinstance(value, datetime):
                return value.timestamp()
        except (ValueError, OverflowError):
            continue
    return LONG_AGO


def _fetch_missing(system: Any, remote: Remote, files: Sequence[RemoteFile], scratch: Path) -> None:
    objects = scratch / "objects"
    missing = [file for file in files if not file.version or not _is_whole(objects / file.object_name, file)]
    if not missing:
        event(f"{remote}: in {scratch} already", remote=str(remote), files=len(files), fetched=0)
        return
    total = sum(file.size or 0 for file in missing)
    objects.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(objects).free
    if total + ROOM > free:
        why = f"{total / 1e9:,.2f} GB are needed and {free / 1e9:,.2f} GB are free"
        raise ResourceError("the disk is too small for the input", path=scratch, why=why, remedy="choose --scratch")
    started = time.monotonic()
    with progress_bar(total, remote.name, "B", scale=True) as bar:
        for file in missing:
            _fetch(system, remote, file, objects / file.object_name, bar, free - ROOM)
    seconds = time.monotonic() - started
    event(
        f"{remote}: {len(missing)} of {len(files)} files fetched in {seconds:.1f} s",
        remote=str(remote),
        files=len(files),
        fetched=len(missing),
        bytes=total,
    )


def _fetch(system: Any, remote: Remote, file: RemoteFile, final: Path, bar: Any, most: int) -> None:
    meter = _meter(remote, bar, most if file.size is None else min(most, 4 * file.size + ROOM))
    with atomic_path(final) as partial:
        with one_line_errors(remote):
            system.get_file(file.source, str(partial), callback=meter)
        got = partial.stat().st_size
        if file.size is not None and got != file.size:
            why = f"{got} of {file.size} bytes came"
            raise InputError("an incomplete download", path=str(remote), why=why, remedy=AGAIN)
        os.utime(partial, (file.changed, file.changed))


def _meter(remote: Remote, bar: Any, most: int) -> Any:
    """Moves the bar, and ends what never ends: a stream of any length, a byte now and then."""
    from fsspec.callbacks import Callback

    class Meter(Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.began, self.got = time.monotonic(), 0

        def relative_update(self, inc: int = 1) -> None:
            self._take(inc)

        def absolute_update(self, value: int) -> None:
            self._take(value - self.got)

        def _take(self, count: int) -> None:
            self.got += count
            bar.update(count)
            seconds = time.monotonic() - self.began
            if self.got > most:
                raise InputError(
                    "a file that is too large", path=str(remote), why=f"more than {most:,} bytes", remedy=AGAIN
                )
            if seconds > SLOW_SECONDS and self.got < SLOW_BYTES * seconds:
                raise InputError("no answer in time", path=str(remote), why="the connection stalled", remedy=AGAIN)

    return Meter()


def _is_whole(path: Path, file: RemoteFile) -> bool:
    return path.is_file() and (file.size is None or path.stat().st_size == file.size)


def _link_view(files: Sequence[RemoteFile], scratch: Path) -> Path:
    """The files of one input under their names; links cost nothing and keep the time of change."""
    view = scratch / "views" / digest(*(part for file in files for part in (file.key, file.version, str(file.place))))
    for file in files:
        place, found = view / file.place, scratch / "objects" / file.object_name
        if place.exists() and place.samefile(found):
            continue
        with atomic_path(place, flush=False) as partial:
            try:
                os.link(found, partial)
            except OSError:  # a file system without links
                shutil.copy2(found, partial)
    return view / files[0].place.parts[0]


# --- arguments of a command with local copies in the place of remote names


def with_copies(arguments: Mapping[str, Any], scratch: Path) -> dict[str, Any]:
    """A pattern among several becomes all that fits it."""
    replaced: dict[str, Any] = {}
    for name, value in arguments.items():
        several = isinstance(value, tuple)
        copies = [copy for each in (value if several else (value,)) for copy in _copies(each, scratch)]
        if not several and len(copies) > 1:
            raise UsageError(
                f"a pattern where one {name} is expected", path=str(value), remedy="give one file or folder"
            )
        replaced[name] = tuple(copies) if several else copies[0]
    return replaced


def _copies(value: Any, scratch: Path) -> list[Any]:
    return [*fetch(value, scratch)] if isinstance(value, Remote) else [value]


# --- the folder for copies


def scratch_folder(given: Path | None) -> Path:
    """The folder that is given, or one under the system's temporary folder that nobody else can write to.

    Its name is always the same, so that a restarted job finds what it has fetched.
    """
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        return given.resolve()
    folder = Path(tempfile.gettempdir()) / f"cropstar-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o022:
        why = "others can write to it"  # and put files where we look for our own
        raise InputError("not a safe place for copies", path=folder, why=why, remedy="give another with --scratch")
    return folder.resolve()


# --- outputs: what the others belong to is uploaded last


@dataclass(frozen=True)
class Delivery:
    """An output on its way to a remote name. A name that ends in .tif is a file, any other a folder."""

    remote: Remote
    folder: Path
    overwrite: bool

    @classmethod
    @contextmanager
    def opened(cls, remote: Remote, scratch: Path, signature: str, *, overwrite: bool) -> Iterator[Delivery]:
        """Held by one process; its place is made. Jobs of another `signature` have a place of their own."""
        delivery = cls(remote, scratch / OUTPUTS / f"{digest(remote.key)}-{signature}", overwrite)
        with locked(delivery.folder, "the output"):
            if not delivery.is_file:
                delivery.local.mkdir(exist_ok=True)
            yield delivery

    @property
    def is_file(self) -> bool:
        return is_geotiff(Path(self.remote.name))

    @property
    def local(self) -> Path:
        """The local path at which it is made."""
        return self.folder / self.remote.name

    @property
    def is_finished(self) -> bool:
        """Whether the very same job was done with everything but the upload."""
        return (self.folder / FINISHED).exists()

    def require_free(self, paths: Sequence[Path]) -> None:
        """Refuse, before anything is computed, names that are taken; `paths` are the local ones."""
        if not self.overwrite:
            self._refuse_taken(connect(self.remote), paths)

    def deliver(self) -> None:
        """Upload all files; after that nothing of them is left here."""
        system = connect(self.remote)
        files = self._files()
        if not self.is_finished:
            if not self.overwrite:
                self._refuse_taken(system, files)
            write_text(self.folder / FINISHED, "")
        with progress_bar(sum(path.stat().st_size for path in files), "upload", "B", scale=True) as bar:
            for path in files:
                with one_line_errors(self.remote):
                    system.put_file(str(path), self._address(path))
                bar.update(path.stat().st_size)
        event(f"uploaded {self.remote}: {len(files)} files", remote=str(self.remote), files=len(files))
        (self.folder / FINISHED).unlink()
        for path in self.folder.iterdir():  # all but the lock, which is held
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != ".lock":
                path.unlink()

    def _refuse_taken(self, system: Any, paths: Sequence[Path]) -> None:
        for path in paths:
            address = self._address(path)
            with one_line_errors(self.remote):
                taken = system.exists(address)
            if taken:
                raise UsageError("the output exists", path=address, remedy=TAKEN_REMEDY)

    def _files(self) -> list[Path]:
        """All that was made, but no work in progress. What readers look for first comes last."""
        root = self.folder if self.is_file else self.local
        files = [path for path in sorted(root.rglob("*")) if path.is_file() and not _is_hidden(path.relative_to(root))]
        if not files:
            raise UsageError("nothing was made", path=str(self.remote), remedy="see the messages above")
        names = {str(path) for path in files}
        return sorted(files, key=lambda path: path.name == MANIFEST or f"{path}.aux.xml" in names)

    def _address(self, path: Path) -> str:
        url = self.remote.url.rstrip("/")
        if self.is_file:
            return f"{url.rpartition('/')[0]}/{path.relative_to(self.folder).as_posix()}"
        return f"{url}/{path.relative_to(self.local).as_posix()}"


def make_and_deliver(
    make: Callable[[Delivery, dict[str, Any]], None],
    arguments: dict[str, Any],
    output: str,
    head: str,
    scratch: Path,
) -> None:
    """Have a command make its output here and upload it; a job that was stopped in the upload is not done again."""
    remote, overwrite = Remote.parse(arguments[output].url, written=True), bool(arguments["overwrite"])
    begun = any((scratch / OUTPUTS).glob(f"{digest(remote.key)}-*/{FINISHED}"))
    asked = Delivery(remote, scratch, overwrite)
    early = [asked.local / head] if asked.is_file or head else []
    if not begun:  # before anything is fetched
        asked.require_free(early)
    copies = with_copies({name: value for name, value in arguments.items() if name != output}, scratch)
    signature = digest(*(f"{name}={value}" for name, value in sorted(copies.items())))
    with Delivery.opened(remote, scratch, signature, overwrite=overwrite) as delivery:
        if not delivery.is_finished:
            delivery.require_free([delivery.local / head] if early else [])
            try:  # what is here is ours to replace
                make(delivery, {**copies, output: delivery.local, "overwrite": True})
            except PartialResult:
                delivery.deliver()
                raise
        delivery.deliver()


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


# --- connections


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
    """Turn errors of the libraries into our own, without their text: it may hold a signed address."""
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
