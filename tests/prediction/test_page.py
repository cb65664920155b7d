"""The map as a page: it asks nobody for anything, names are only ever text, and a click is answered."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
import subprocess
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import geopandas
import numpy as np
import pytest
from PIL import Image

from cropstar.prediction import page
from cropstar.prediction.layers import CONFIDENCE, compute_layers
from cropstar.prediction.request import MapOptions
from tests.prediction.maps import CLASSES, EVIL, Landscape, a_landscape, square, write

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
QUIET += ["--disable-background-networking", "--disable-component-update", "--virtual-time-budget=10000"]
# Comes twice as close around a pixel and presses on it, as a hand would.
HAND = """<script>
const wait = setInterval(() => {
  if (document.body.dataset.ready !== "yes") return;
  clearInterval(wait);
  const box = map.getBoundingClientRect();
  const spot = () => ({
    clientX: box.left + (COLUMN + 0.5 - view.x) / view.width * box.width,
    clientY: box.top + (ROW + 0.5 - view.y) / view.height * box.height,
  });
  const before = view.width;
  map.dispatchEvent(new WheelEvent("wheel", { ...spot(), deltaY: -300 * Math.log(2), cancelable: true }));
  document.body.dataset.closer = before / view.width;
  const hit = document.elementFromPoint(spot().clientX, spot().clientY);
  for (const kind of ["pointerdown", "pointerup"]) {
    hit.dispatchEvent(new PointerEvent(kind, { ...spot(), pointerId: 7, bubbles: true }));
  }
}, 20);
</script></body>"""


class Reader(HTMLParser):
    """The elements of a page, and the text in each kind of them."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._open and data.strip():
            self.texts.setdefault(self._open[-1], []).append(data.strip())


def read(html: str) -> tuple[Reader, dict[str, Any]]:
    reader = Reader()
    reader.feed(html)
    data = next(text for text in reader.texts["script"] if text.startswith("{"))
    return reader, json.loads(data)


def unpacked(text: str, data: dict[str, Any]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    content = zlib.decompress(base64.b64decode(text))
    return np.frombuffer(content, dtype=np.uint8).reshape(data["height"], data["width"])


def make_page(folder: Path, landscape: Landscape, shapes: list[Any] | None = None) -> Path:
    given = None
    if shapes is not None:
        pytest.importorskip("exactextract")
        given = folder / "fields.gpkg"
        names = [f"<b>field {row}</b>" for row in range(len(shapes))]
        frame = geopandas.GeoDataFrame({"parcel_id": names}, geometry=shapes, crs=landscape.grid.rasterio_crs)
        frame.to_crs(4326).to_file(given, driver="GPKG")
    return write(folder, landscape, MapOptions(parcels=given, page=True, picture=False), size=256).files.page


def test_picture_and_numbers_are_those_of_the_map(tmp_path: Path) -> None:
    landscape = a_landscape()
    reader, data = read(make_page(tmp_path, landscape).read_text(encoding="utf-8"))
    np.testing.assert_array_equal(unpacked(data["values"], data), landscape.classes)
    confidence = compute_layers(landscape.pixels, [CONFIDENCE])[CONFIDENCE][0]
    np.testing.assert_array_equal(unpacked(data["confidence"], data), confidence)
    address = next(attributes["href"] for tag, attributes in reader.elements if tag == "image")
    assert address is not None
    picture = Image.open(io.BytesIO(base64.b64decode(address.removeprefix("data:image/png;base64,"))))
    painted = np.asarray(picture.convert("RGBA"))
    assert (painted[..., 3] == np.where(landscape.seen, 255, 0)).all()
    for entry in CLASSES:
        assert (painted[landscape.classes == entry.number][:, :3] == entry.rgb).all()
    assert data["parcels"] == []


def test_the_page_needs_nothing_else_and_names_are_text(tmp_path: Path) -> None:
    grid = a_landscape().grid
    shapes = [square(8, 16, 9, grid), square(30, 30, 8, grid)]
    html = make_page(tmp_path, a_landscape(), shapes).read_text(encoding="utf-8")
    reader, data = read(html)
    for _, attributes in reader.elements:
        for name in ("src", "href", "action", "data"):
            assert (attributes.get(name) or "data:").startswith("data:")
    policy = [attributes["content"] for tag, attributes in reader.elements if "http-equiv" in attributes]
    assert policy
    assert "default-src 'none'" in str(policy[0])
    addresses = set(re.findall(r"https?://[^\"' <)]+", html))
    assert addresses <= {"http://www.w3.org/2000/svg"}  # the name of a language, nothing is fetched from it
    assert "alert(" in html
    assert "<script>alert" not in html
    assert EVIL in [each["name"] for each in data["classes"].values()]
    assert EVIL in reader.texts["span"]
    assert data["parcels"][0]["key"] == "<b>field 0</b>"
    assert "b" not in {tag for tag, _ in reader.elements}


def test_the_legend_has_hectares(tmp_path: Path) -> None:
    landscape = a_landscape()
    reader, _ = read(make_page(tmp_path, landscape).read_text(encoding="utf-8"))
    cells, names = reader.texts["td"], reader.texts["span"]
    counts = np.bincount(landscape.classes.ravel(), minlength=256)
    order = sorted(CLASSES, key=lambda entry: -counts[entry.number])
    assert names == [*(entry.name for entry in order), "no data"]
    for entry in order:
        assert f"{counts[entry.number] * 0.01:.2f}" in cells
    assert cells[-1] == "0.35"


def test_a_large_map_is_thinned_and_parcels_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cropstar.prediction.outputs.DISPLAY", 50)
    monkeypatch.setattr(page, "MAXIMUM_PARCELS", 3)
    landscape = a_landscape(80, 200)
    shapes = [square(20, 10 * column, 4 + column, landscape.grid) for column in range(1, 9)]
    html = make_page(tmp_path, landscape, shapes).read_text(encoding="utf-8")
    _, data = read(html)
    assert (data["height"], data["width"], data["step"]) == (20, 50, [4, 4])
    assert "a part of the map's pixels" in html
    assert [each["key"] for each in data["parcels"]] == [f"<b>field {row}</b>" for row in (7, 6, 5)]
    assert "The 5 smallest parcels are not drawn" in html
    corners = np.array(re.findall(r"[-\d.]+", data["parcels"][0]["path"]), dtype=float).reshape(-1, 2)
    assert corners.min(axis=0) == pytest.approx([80 / 4, 20 / 4], abs=0.2)
    assert corners.max(axis=0) == pytest.approx([92 / 4, 32 / 4], abs=0.2)


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")
def test_a_browser_answers(tmp_path: Path) -> None:
    landscape = a_landscape()
    path = make_page(tmp_path, landscape, [square(8, 16, 8, landscape.grid), square(30, 30, 9, landscape.grid)])
    confidence = compute_layers(landscape.pixels, [CONFIDENCE])[CONFIDENCE][0]
    # By an address that names a pixel, and by hand.
    named = answered(f"{path.as_uri()}#0,0", tmp_path / "profile")
    assert named.texts["span"][:2] == ["no data", "no valid date"]
    assert not any("parcel <b>" in line for line in named.texts["span"])
    path.write_text(path.read_text().replace("</body>", HAND.replace("ROW", "33").replace("COLUMN", "35")))
    pressed = answered(path.as_uri(), tmp_path / "profile")
    body = next(attributes for tag, attributes in pressed.elements if tag == "body")
    assert float(body["data-closer"] or 0) == pytest.approx(2, rel=1e-3)
    number = int(landscape.classes[33, 35])
    assert pressed.texts["span"][:2] == [CLASSES.names[number], f"confidence {confidence[33, 35]} %"]
    assert any("parcel <b>field 1</b>" in line for line in pressed.texts["span"])


def answered(address: str, profile: Path) -> Reader:
    """The page as a browser shows it once everything has happened."""
    assert CHROMIUM is not None
    done = subprocess.run(
        [CHROMIUM, *QUIET, f"--user-data-dir={profile}", "--window-size=1000,700", "--dump-dom", address],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    reader = Reader()
    reader.feed(done.stdout)
    body = next(attributes for tag, attributes in reader.elements if tag == "body")
    assert body.get("data-ready") == "yes"
    return reader
