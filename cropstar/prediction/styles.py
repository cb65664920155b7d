"""Styles for QGIS, which loads `<file>.qml` beside `<file>.tif` or `<file>.gpkg` by itself."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from cropstar.store.classes import UNKNOWN, ClassTable

Colour = tuple[int, int, int, int]  # red, green, blue, opacity

HEAD = "<!DOCTYPE qgis PUBLIC 'http://mrcc.com/qgis.dtd' 'SYSTEM'>\n"
Ramp = tuple[tuple[float, str], ...]  # rising values, as QGIS shows them, and their colours
CONFIDENCE_RAMP: Ramp = ((0, "#7b3294"), (50, "#c2a5cf"), (70, "#f7f7f7"), (85, "#a6dba0"), (100, "#008837"))  # percent
DOUBT_RAMP: Ramp = ((0, "#008837"), (15, "#a6dba0"), (30, "#f7f7f7"), (50, "#c2a5cf"), (100, "#7b3294"))  # the reverse
SHARE_RAMP: Ramp = ((0, "#ffffff"), (0.25, "#c7e9c0"), (0.5, "#74c476"), (0.75, "#238b45"), (1, "#00441b"))
COUNT_RAMP: Ramp = ((0, "#000000"), (1, "#a50026"), (5, "#fdae61"), (10, "#ffffbf"), (20, "#74add1"), (40, "#313695"))
DAY_COLOURS = ("#440154", "#3b528b", "#21918c", "#5ec962", "#fde725")  # viridis: early is dark


def describe_style(classes: ClassTable) -> str:
    """A paletted renderer: one colour and one name a value; nodata stays transparent."""
    entries = "\n".join(
        f'        <paletteEntry value="{entry.number}" color="{plain(entry.colour)}" alpha="255"'
        f' label="{plain(entry.name)}"/>'
        for entry in classes
    )
    return (
        f"{HEAD}"
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


def ramp_style(ramp: Ramp, unit: str = "") -> str:
    """A smooth ramp through the colours of some values of the first band; nodata stays transparent."""
    items = "\n".join(
        f'          <item value="{value:g}" color="{colour}" alpha="255" label="{value:g}{plain(unit)}"/>'
        for value, colour in ramp
    )
    lowest, highest = ramp[0][0], ramp[-1][0]
    return (
        f"{HEAD}"
        '<qgis styleCategories="Symbology" version="3.22.0">\n'
        "  <pipe>\n"
        '    <rasterrenderer type="singlebandpseudocolor" band="1" opacity="1" alphaBand="-1" nodataColor=""'
        f' classificationMin="{lowest:g}" classificationMax="{highest:g}">\n'
        "      <rastershader>\n"
        '        <colorrampshader colorRampType="INTERPOLATED" classificationMode="1" clip="0"'
        f' minimumValue="{lowest:g}" maximumValue="{highest:g}">\n'
        f"{items}\n"
        "        </colorrampshader>\n"
        "      </rastershader>\n"
        "    </rasterrenderer>\n"
        "  </pipe>\n"
        "  <blendMode>0</blendMode>\n"
        "</qgis>\n"
    )


def day_ramp(days: Sequence[int]) -> Ramp:
    """Colours from the first to the last date, given as days of the year: after a new year they begin again at 1."""
    steps = len(DAY_COLOURS) - 1
    colours = {days[(len(days) - 1) * place // steps]: colour for place, colour in enumerate(DAY_COLOURS)}
    return tuple(sorted(colours.items()))


def parcel_style(classes: ClassTable, *, unknown: bool = False) -> str:
    """Parcels in the colours of the map, by the column `mapped`; those without a class are grey outlines."""
    shown = classes.with_marks([UNKNOWN]) if unknown else classes
    rows = [(entry.name, entry.name, (*entry.rgb, 255)) for entry in shown]
    rows.append(("", "no class", (255, 255, 255, 0)))
    return categorised_style("mapped", rows)


def categorised_style(column: str, rows: Sequence[tuple[str, str, Colour]]) -> str:
    """Areas in colours by the text of a column; each row is a value, its label and its colour."""
    categories = "\n".join(
        f'      <category value="{plain(value)}" symbol="{place}" label="{plain(label)}" render="true" type="string"/>'
        for place, (value, label, _) in enumerate(rows)
    )
    symbols = "\n".join(_fill_symbol(place, colour) for place, (_, _, colour) in enumerate(rows))
    return (
        f"{HEAD}"
        '<qgis styleCategories="Symbology" version="3.22.0">\n'
        f'  <renderer-v2 type="categorizedSymbol" attr="{column}" enableorderby="0" forceraster="0" symbollevels="0">\n'
        f"    <categories>\n{categories}\n    </categories>\n"
        f"    <symbols>\n{symbols}\n    </symbols>\n"
        "  </renderer-v2>\n"
        "  <blendMode>0</blendMode>\n"
        "  <layerGeometryType>2</layerGeometryType>\n"
        "</qgis>\n"
    )


def _fill_symbol(place: int, colour: Colour) -> str:
    rgba = ",".join(map(str, colour))
    options = {"color": rgba, "outline_color": "60,60,60,255", "outline_width": "0.2", "style": "solid"}
    rows = "".join(f'<Option name="{name}" value="{value}" type="QString"/>' for name, value in options.items())
    return (
        f'      <symbol type="fill" name="{place}" alpha="1" clip_to_extent="1" force_rhr="0">'
        f'<layer class="SimpleFill" enabled="1" locked="0" pass="0"><Option type="Map">{rows}</Option></layer></symbol>'
    )


def plain(text: str) -> str:
    """Text that may stand in XML: its signs escaped, those that XML cannot hold replaced."""
    held = "".join(sign if _is_allowed(ord(sign)) else "\ufffd" for sign in text)
    return escape(held, {'"': "&quot;"})


def _is_allowed(code: int) -> bool:
    """The characters of XML 1.0."""
    return code in (9, 10, 13) or 32 <= code <= 0xD7FF or 0xE000 <= code <= 0xFFFD or 0x10000 <= code <= 0x10FFFF
