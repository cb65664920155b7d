"""Class names where GDAL looks for them, whatever they are, and in the file itself."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import rasterio
from hypothesis import given
from hypothesis import strategies as st

from cropstar.geo.grid import hectares_per_pixel
from cropstar.prediction.outputs import describe_names
from cropstar.prediction.request import MapOptions, names_file
from cropstar.store.classes import ClassTable, CropClass
from tests.prediction.gdal import names_and_table
from tests.prediction.maps import CLASSES, a_landscape, write

ODD = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


def test_gdal_lists_names_and_table(tmp_path: Path) -> None:
    landscape = a_landscape()
    finished = write(tmp_path, landscape, MapOptions(picture=False))
    names, rows, usages = names_and_table(finished.files.map)
    assert names == CLASSES.names
    assert [row["Class"] for row in rows] == CLASSES.names
    assert [int(row["Value"]) for row in rows] == [entry.number for entry in CLASSES]
    assert [tuple(int(row[part]) for part in ("Red", "Green", "Blue")) for row in rows] == [
        entry.rgb for entry in CLASSES
    ]
    assert [int(row["Count"]) for row in rows] == finished.counts[: len(CLASSES)].tolist()
    hectares = hectares_per_pixel(landscape.grid)
    assert hectares == pytest.approx(0.01)
    assert [float(row["Hectares"]) for row in rows] == pytest.approx(finished.counts[: len(CLASSES)] * 0.01)
    # The numbers of GDALRATFieldUsage: value, name, pixel count, red, green and blue.
    assert usages == {"Value": 5, "Class": 2, "Count": 1, "Hectares": 0, "Red": 6, "Green": 7, "Blue": 8}


def test_a_copy_without_its_companion_has_the_names(tmp_path: Path) -> None:
    finished = write(tmp_path, a_landscape(), MapOptions(picture=False))
    names_file(finished.files.map).unlink()
    assert names_and_table(finished.files.map)[0] == []  # the test above looks at that file
    with rasterio.open(finished.files.map) as dataset:
        assert [dataset.tags(1)[f"CLASS_{entry.number}"] for entry in CLASSES] == CLASSES.names


@given(st.lists(ODD, min_size=1, max_size=5, unique=True))
def test_any_name_makes_sound_xml(names: list[str]) -> None:
    classes = ClassTable(CropClass(number, name, "#0a0b0c") for number, name in enumerate(names))
    counts = np.arange(256)
    band = ElementTree.fromstring(describe_names(classes, counts, None)).find("PAMRasterBand")
    assert band is not None
    read = [category.text for category in band.iterfind("CategoryNames/Category")]
    assert len(read) == len(names)
    for found, name in zip(read, names, strict=True):
        if name.isprintable() and name.isascii():
            assert found == name
    table = band.find("GDALRasterAttributeTable")
    assert table is not None
    fields = [field.findtext("Name") for field in table.iterfind("FieldDefn")]
    assert fields == ["Value", "Class", "Count", "Red", "Green", "Blue"]  # no hectares where none are known
    assert [len(row) for row in table.iterfind("Row")] == [len(fields)] * len(names)


def test_without_counts_there_is_no_column_for_them() -> None:
    assert "Count" not in describe_names(CLASSES)
    assert "Hectares" not in describe_names(CLASSES)
