"""A STAC API on this machine: landing page, collections, search by GET and POST with paging, files by ranges."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

Json = dict[str, Any]
CONFORMANCE = [
    "https://api.stacspec.org/v1.0.0/core",
    "https://api.stacspec.org/v1.0.0/collections",
    "https://api.stacspec.org/v1.0.0/item-search",
    "http://www.opengis.net/spec/ogcapi-features-1/1.0/conf/core",
]
COLLECTION = "sentinel-2-l2a"


class Api:
    """What the server knows. Tests change it before they ask."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.items: list[Json] = []
        self.files: dict[str, Path] = {}
        self.collections = [COLLECTION]
        self.page = 100
        self.methods = ["GET", "POST"]
        self.answers: dict[str, tuple[int, bytes]] = {}  # by path, instead of the real ones
        self.asked: list[str] = []

    def share(self, path: Path, name: str | None = None) -> str:
        """Serve a file; its address."""
        place = f"/files/{len(self.files)}/{name or path.name}"
        self.files[place] = path
        return self.address + place

    def landing(self) -> Json:
        search = [
            {"rel": "search", "href": f"{self.address}/search", "type": "application/geo+json", "method": method}
            for method in self.methods
        ]
        data = {"rel": "data", "href": f"{self.address}/collections", "type": "application/json"}
        root = {"rel": "root", "href": f"{self.address}/", "type": "application/json"}
        return {
            "type": "Catalog",
            "id": "test",
            "description": "test",
            "stac_version": "1.0.0",
            "conformsTo": CONFORMANCE,
            "links": [root, {**root, "rel": "self"}, data, *search],
        }

    def collection(self, name: str) -> Json:
        extent = {
            "spatial": {"bbox": [[-180, -90, 180, 90]]},
            "temporal": {"interval": [["2015-06-27T00:00:00Z", None]]},
        }
        return {
            "type": "Collection",
            "id": name,
            "description": name,
            "license": "proprietary",
            "stac_version": "1.0.0",
            "extent": extent,
            "links": [],
        }

    def search(self, asked: Json, *, by_post: bool) -> Json:
        found = [item for item in self.items if _matches(item, asked)]
        start, count = int(asked.get("token", 0)), min(int(asked.get("limit", 10)), self.page)
        links = []
        if start + count < len(found):
            following = {**asked, "token": start + count}
            link: Json = {"rel": "next", "href": f"{self.address}/search", "type": "application/geo+json"}
            if by_post:
                link |= {"method": "POST", "body": following}
            else:
                texts = {k: ",".join(map(str, v)) if isinstance(v, list) else v for k, v in following.items()}
                link["href"] += "?" + urlencode(texts)
            links.append(link)
        return {"type": "FeatureCollection", "features": found[start : start + count], "links": links}


def _matches(item: Json, asked: Json) -> bool:
    west, south, east, north = asked["bbox"]
    left, bottom, right, top = item["bbox"]
    first, last = asked["datetime"].split("/")
    return (
        item["collection"] in asked["collections"]
        and first <= item["properties"]["datetime"] <= last
        and (left < east and west < right and bottom < north and south < top)
    )


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # each answer would wait 40 ms
    wbufsize = -1
    api: Api

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        place, api = unquote(parts.path), self.api
        api.asked.append(f"{self.command} {place}")
        name = place.removeprefix("/collections/")
        if place in api.answers:
            self._send(*api.answers[place])
        elif place in api.files:
            self._send_file(api.files[place])
        elif place in ("", "/"):
            self._send_json(api.landing())
        elif place == "/collections":
            self._send_json({"collections": [api.collection(name) for name in api.collections], "links": []})
        elif name in api.collections:
            self._send_json(api.collection(name))
        elif place == "/search":
            texts: Json = {key: values[0] for key, values in parse_qs(parts.query).items()}
            texts["bbox"] = [float(number) for number in texts["bbox"].split(",")]
            texts["collections"] = texts["collections"].split(",")
            self._send_json(api.search(texts, by_post=False))
        else:
            self._send(404, b"no such page")

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        self.api.asked.append(f"POST {self.path}")
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path in self.api.answers:
            self._send(*self.api.answers[self.path])
        else:
            self._send_json(self.api.search(body, by_post=True))

    def _send_json(self, data: Json) -> None:
        self._send(200, json.dumps(data).encode(), kind="application/json")

    def _send_file(self, path: Path) -> None:
        content = path.read_bytes()
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if found is None:
            self._send(200, content)
            return
        first, last = int(found[1]), min(int(found[2] or len(content)), len(content) - 1)
        if first >= len(content):
            self._send(416, b"")
            return
        self._send(206, content[first : last + 1], **{"Content-Range": f"bytes {first}-{last}/{len(content)}"})

    def _send(self, status: int, content: bytes, kind: str = "application/octet-stream", **headers: str) -> None:
        self.send_response(status)
        fields = {"Content-Type": kind, "Content-Length": str(len(content)), "Accept-Ranges": "bytes", **headers}
        for name, value in fields.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving() -> Iterator[Api]:
    """A running API; it is gone afterwards."""
    handler = type("OwnHandler", (Handler,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    handler.api = api = Api(f"http://127.0.0.1:{server.server_address[1]}")  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield api
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
