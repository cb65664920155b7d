"""A web server on this machine with the files of BreizhCrops, well-behaved or not, and a package that names them."""

from __future__ import annotations

import importlib
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass
class Site:
    """What is served: bytes by path, and how replies go wrong."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    broken: dict[str, int] = field(default_factory=dict)  # the connection ends after so many bytes of the file
    silent: set[str] = field(default_factory=set)  # length not told
    ranges: bool = True
    requests: list[tuple[str, str]] = field(default_factory=list)  # path, and the range that was asked for


class Handler(BaseHTTPRequestHandler):
    site: Site

    def do_GET(self) -> None:
        site, path = self.site, self.path.lstrip("/")
        asked = self.headers.get("Range", "")
        site.requests.append((path, asked))
        if path not in site.files:
            self.send_error(404)
            return
        content = site.files[path]
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and site.ranges else 0
        if start and start >= len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        if path not in site.silent:
            self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start : site.broken.get(path, len(content))])
        self.close_connection = True

    def log_message(self, *_: Any) -> None:
        """Nothing: the tests look at the site's own list."""


@contextmanager
def serving() -> Iterator[Site]:
    site = Site()
    handler = type("SiteHandler", (Handler,), {"site": site})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        site.address = f"http://127.0.0.1:{server.server_port}"
        try:
            yield site
        finally:
            server.shutdown()
            thread.join()


def install_package(folder: Path, address: str, sizes: dict[str, int], year: int = 2017) -> None:
    """A package with the layout of the real one; importing it fails, as reading its tables must not do that."""
    place = folder / "breizhcrops"
    (place / "datasets").mkdir(parents=True, exist_ok=True)
    (place / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (place / "datasets" / "__init__.py").write_text("raise RuntimeError('imported')\n")

    def table(ending: str, year: int = year) -> dict[int, dict[str, dict[str, str]]]:
        return {year: {"L1C": {region: f"{address}/{year}/L1C/{region}{ending}" for region in sizes}}}

    lines = {
        "RAW_CSV_URL": table(".zip", 2018),
        "INDEX_FILE_URLs": table(".csv"),
        "H5_URLs": table(".h5.tar.gz"),
        "FILESIZES": {year: {"L1C": sizes}},
        "CLASSMAPPINGURL": f"{address}/classmapping.csv",
        "CODESURL": f"{address}/codes.csv",
    }
    text = "".join(f"{name} = {value!r}\n" for name, value in lines.items())
    (place / "datasets" / "urls.py").write_text(f"# addresses\n{text}")
    importlib.invalidate_caches()


def tar_gz(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, content in members.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            tar.addfile(about, io.BytesIO(content))
    return stream.getvalue()


def zipped(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()
