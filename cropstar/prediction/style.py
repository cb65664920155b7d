"""The style of a map for QGIS, which loads `<map>.qml` beside `<map>.tif` by itself."""

from __future__ import annotations

from pathlib import Path

from cropstar.prediction.names import plain
from cropstar.store.classes import ClassTable


def style_file(path: Path) -> Path:
    return path.with_suffix(".qml")


def describe_style(classes: ClassTable) -> str:
    """A paletted renderer: one colour and one name a value; nodata stays transparent."""
    entries = "\n".join(
        f'        <paletteEntry value="{entry.number}" color="{plain(entry.colour)}" alpha="255"'
        f' label="{plain(entry.name)}"/>'
        for entry in classes
    )
    return (
        "<!DOCTYPE qgis PUBLIC 'http://mrcc.com/qgis.dtd' 'SYSTEM'>\n"
        '<qgis styleCategories="Symbology" version="3.22.0">\n'
        "  <pipe>\n"
        '    <rasterrenderer type="paletted" band="1" opacity="1" alphaBand="-1" nodataColor="">\n'
        "      <rasterTransparency/>\n"
        "      <colorPalette>\n"
        f"{entries}\n"
        "      </colorPalette>\n"
        "    </rasterrenderer>\n"
        '    <brightnesscontrast brightness="0" contrast="0" gamma="1"/>\n'
        '    <huesaturation saturation="0" colorizeOn="0" grayscaleMode="0"/>\n'
        '    <rasterresampler maxOversampling="2"/>\n'
        "  </pipe>\n"
        "  <blendMode>0</blendMode>\n"
        "</qgis>\n"
    )
