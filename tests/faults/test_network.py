"""No file makes cropstar open a connection: a listener that links lead to is never asked."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import geopandas
import pytest
from shapely import box

from cropstar.errors import InputError
from cropstar.sources.vectors import open_vector


class Listener(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.asked: list[str] = []
        self.address = f"http://127.0.0.1:{self.server_port}/crs"


class Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Listener)
        self.server.asked.append(self.path)
        self.send_error(404)

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def listener() -> Iterator[Listener]:
    with Listener() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def parcels(tmp_path: Path) -> dict[str, Any]:
    frame = geopandas.GeoDataFrame({"crop": ["wheat"]}, geometry=[box(0, 0, 1, 1)], crs="EPSG:4326")
    frame.to_file(tmp_path / "parcels.gpkg", driver="GPKG")
    frame.to_file(tmp_path / "parcels.shp")
    content: dict[str, Any] = json.loads(frame.to_json(drop_id=True))
    content.pop("crs", None)
    return content


def link(address: str, kind: str = "link", key: str = "href") -> dict[str, Any]:
    return {"type": kind, "properties": {key: address, "type": "ogcwkt"}}


def in_a_geometry(content: dict[str, Any], address: str) -> str:
    content["features"][0]["geometry"]["crs"] = link(address)
    return json.dumps(content)


HOSTILE: dict[str, Callable[[dict[str, Any], str], str]] = {
    "link": lambda content, address: json.dumps({**content, "crs": link(address)}),
    "url": lambda content, address: json.dumps({**content, "crs": link(address, "url", "url")}),
    "capitals": lambda content, address: json.dumps({**content, "CRS": link(address, "LINK", "HREF")}),
    "without http": lambda content, address: json.dumps({**content, "crs": link(address.partition("://")[2])}),
    "vsicurl": lambda content, address: json.dumps({**content, "crs": link(f"/vsicurl/{address}", "url", "url")}),
    "in a geometry": in_a_geometry,
    "twice, the link first": lambda content, address: (
        json.dumps({**content, "crs": link(address)})[:-1] + ', "crs": null}'
    ),
    "twice, the link last": lambda content, address: (
        '{"crs": null, ' + json.dumps({**content, "crs": link(address)})[1:]
    ),
    "escaped": lambda content, address: json.dumps({**content, "crs": link(address)}).replace('"crs"', '"\\u0063rs"'),
}


@pytest.mark.parametrize("how", HOSTILE)
def test_links_of_geojson_are_refused(how: str, parcels: dict[str, Any], listener: Listener, tmp_path: Path) -> None:
    path = tmp_path / "parcels.geojson"
    path.write_text(HOSTILE[how](parcels, listener.address))
    with pytest.raises(InputError, match="the coordinate system is a link"):
        open_vector(path)
    assert listener.asked == []


@pytest.mark.parametrize(
    "name", ["EPSG:4326", "urn:ogc:def:crs:OGC:1.3:CRS84", "http://www.opengis.net/def/crs/EPSG/0/4326"]
)
def test_names_of_geojson_are_read(name: str, parcels: dict[str, Any], tmp_path: Path) -> None:
    parcels["features"][0]["properties"]["crs"] = "a column"
    path = tmp_path / "parcels.geojson"
    path.write_text(json.dumps({**parcels, "crs": {"type": "name", "properties": {"name": name}}}))
    assert open_vector(path).crs.to_epsg() in (4326, None)


def test_other_formats_fetch_nothing(parcels: dict[str, Any], listener: Listener, tmp_path: Path) -> None:
    for text in (listener.address, f"/vsicurl/{listener.address}"):
        (tmp_path / "parcels.prj").write_text(text)
        with pytest.raises(InputError, match="no coordinate system"):
            open_vector(tmp_path / "parcels.shp")
    copy = Path(shutil.copy(tmp_path / "parcels.gpkg", tmp_path / "copy.gpkg"))
    with sqlite3.connect(copy) as database:
        database.execute("UPDATE gpkg_spatial_ref_sys SET definition = ?, organization = 'x'", [listener.address])
    database.close()
    with pytest.raises(InputError):
        open_vector(copy)
    copy = Path(shutil.copy(tmp_path / "parcels.gpkg", tmp_path / "view.gpkg"))
    with sqlite3.connect(copy) as database:
        database.execute("ALTER TABLE parcels RENAME TO hidden")
        database.execute("CREATE VIEW parcels AS SELECT fid, geom, ogr_geocode('Paris') AS crop FROM hidden")
    database.close()
    with pytest.raises(InputError):
        open_vector(copy)
    assert listener.asked == []


WATCHED = """
import sys
sys.addaudithook(lambda event, _: event == "socket.__new__" and print("a socket", flush=True))
"""


def test_libraries_open_no_socket_either(small_scene: Path, tmp_path: Path) -> None:
    """rasterio imports boto3 where it is installed, and that opens one; it is needed for buckets alone."""
    (tmp_path / "sitecustomize.py").write_text(WATCHED)
    (tmp_path / "boto3.py").write_text("import socket\nsocket.socket().close()\n")

    def said(*command: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        return subprocess.run(
            [sys.executable, *command], env=environment, stdout=subprocess.PIPE, text=True, check=True
        ).stdout

    assert "a socket" in said("-c", "import rasterio")
    assert "a socket" not in said("-m", "cropstar", "inspect", str(small_scene / "tile.tif"))
