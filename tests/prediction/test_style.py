"""The style that QGIS loads: every class with its colour and its name."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from cropstar.prediction.outputs import describe_style
from cropstar.prediction.request import MapOptions, style_file
from cropstar.store.classes import ClassTable, CropClass
from tests.prediction.maps import CLASSES, a_landscape, write


def entries_of(text: str) -> list[ElementTree.Element]:
    root = ElementTree.fromstring(text)
    assert root.tag == "qgis"
    renderer = root.find("pipe/rasterrenderer")
    assert renderer is not None
    assert (renderer.get("type"), renderer.get("band")) == ("paletted", "1")
    return list(renderer.iterfind("colorPalette/paletteEntry"))


def test_the_style_lies_beside_the_map(tmp_path: Path) -> None:
    finished = write(tmp_path, a_landscape(), MapOptions(picture=False))
    assert style_file(finished.files.map) == tmp_path / "map.qml"
    entries = entries_of((tmp_path / "map.qml").read_text(encoding="utf-8"))
    assert [entry.get("label") for entry in entries] == CLASSES.names
    assert [entry.get("color") for entry in entries] == [entry.colour for entry in CLASSES]
    assert [entry.get("value") for entry in entries] == [str(entry.number) for entry in CLASSES]
    assert "255" not in [entry.get("value") for entry in entries]  # nodata is no class


@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=20))
def test_any_name_is_one_label(name: str) -> None:
    (entry,) = entries_of(describe_style(ClassTable([CropClass(0, name, "#123456")])))
    label = entry.get("label")
    assert label is not None
    if name.isprintable():
        assert label == name
