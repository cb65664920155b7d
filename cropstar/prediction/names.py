"""The names of the classes where GDAL and QGIS look for them: `<map>.tif.aux.xml`, as GDAL's own PAM writes it.

A GeoTIFF itself has no place for category names or an attribute table; a copy of the file alone keeps the names in
the tags of its band (`CLASS_0`, `CLASS_1`, ...).
"""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np
from numpy.typing import NDArray

from cropstar.store.classes import ClassTable

# GDAL's numbers: field type (0 integer, 1 real, 2 text) and usage (what a GIS takes the column for).
INTEGER, REAL, TEXT = 0, 1, 2
COLUMNS = (
    ("Value", INTEGER, 5),
    ("Class", TEXT, 2),
    ("Count", INTEGER, 1),
    ("Hectares", REAL, 0),
    ("Red", INTEGER, 6),
    ("Green", INTEGER, 7),
    ("Blue", INTEGER, 8),
)


def names_file(path: Path) -> Path:
    """Where GDAL and QGIS look for the names of a raster's values."""
    return path.with_name(f"{path.name}.aux.xml")


def band_tags(classes: ClassTable) -> dict[str, str]:
    """The names in the file itself."""
    return {f"CLASS_{entry.number}": entry.name for entry in classes}


def describe_names(classes: ClassTable, counts: NDArray[np.int64] | None = None, hectares: float | None = None) -> str:
    """Category names and attribute table of the first band; counts are of each value, hectares of a pixel."""
    categories = "\n".join(f"      <Category>{plain(entry.name)}</Category>" for entry in classes)
    return (
        '<PAMDataset>\n  <PAMRasterBand band="1">\n'
        f"    <CategoryNames>\n{categories}\n    </CategoryNames>\n"
        f"{_attribute_table(classes, counts, hectares)}"
        "  </PAMRasterBand>\n</PAMDataset>\n"
    )


def plain(text: str) -> str:
    """Text that may stand in XML: its signs escaped, those that XML cannot hold replaced."""
    held = "".join(sign if _is_allowed(ord(sign)) else "\ufffd" for sign in text)
    return escape(held, {'"': "&quot;"})


def _attribute_table(classes: ClassTable, counts: NDArray[np.int64] | None, hectares: float | None) -> str:
    missing = {"Count"} if counts is None else set()
    missing |= {"Hectares"} if counts is None or hectares is None else set()
    columns = [column for column in COLUMNS if column[0] not in missing]
    lines = ['    <GDALRasterAttributeTable tableType="thematic">']
    for index, (name, kind, usage) in enumerate(columns):
        field = f"<Name>{name}</Name><Type>{kind}</Type><Usage>{usage}</Usage>"
        lines.append(f'      <FieldDefn index="{index}">{field}</FieldDefn>')
    for row, entry in enumerate(classes):
        count = 0 if counts is None else int(counts[entry.number])
        red, green, blue = entry.rgb
        values = {
            "Value": str(entry.number),
            "Class": plain(entry.name),
            "Count": str(count),
            "Hectares": f"{count * (hectares or 0):.4f}",
            "Red": str(red),
            "Green": str(green),
            "Blue": str(blue),
        }
        fields = "".join(f"<F>{values[name]}</F>" for name, _, _ in columns)
        lines.append(f'      <Row index="{row}">{fields}</Row>')
    return "\n".join([*lines, "    </GDALRasterAttributeTable>\n"])


def _is_allowed(code: int) -> bool:
    """The characters of XML 1.0."""
    return code in (9, 10, 13) or 32 <= code <= 0xD7FF or 0xE000 <= code <= 0xFFFD or 0x10000 <= code <= 0x10FFFF
