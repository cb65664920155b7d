"""Maps, confidence and parcels as QGIS itself opens them: style, names, colours and what is drawn.

QGIS brings its own Python: the system's, where `import qgis.core` works (Debian: python3-qgis).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

import geopandas
import pytest

from cropstar.prediction.request import MapOptions
from tests.prediction.maps import CLASSES, a_landscape, square, write

pytest.importorskip("exactextract")
pytestmark = pytest.mark.slow

INSIDE = textwrap.dedent(
    """
    import json, sys
    from qgis.core import *
    from qgis.PyQt.QtCore import QSize, Qt
    from qgis.PyQt.QtGui import QColor

    app = QgsApplication([], False)
    app.initQgis()
    answers = {}
    for path in sys.argv[1:]:
        layer = QgsRasterLayer(path) if path.endswith(".tif") else QgsVectorLayer(path)
        _, styled = layer.loadDefaultStyle()
        tree = QgsLayerTree()
        entry, legend = tree.addLayer(layer), QgsLayerTreeModel(tree)
        names = [node.data(Qt.DisplayRole) for node in legend.layerLegendNodes(entry)]
        settings = QgsMapSettings()
        settings.setLayers([layer])
        settings.setOutputSize(QSize(300, 300))
        settings.setBackgroundColor(QColor("white"))
        settings.setDestinationCrs(layer.crs())
        settings.setExtent(layer.extent())
        job = QgsMapRendererParallelJob(settings)
        job.start()
        job.waitForFinished()
        image = job.renderedImage()
        drawn = {image.pixelColor(x, y).name() for x in range(300) for y in range(300)}
        answers[path] = {
            "styled": styled, "renderer": layer.renderer().type(), "names": [str(name) for name in names],
            "drawn": sorted(drawn), "errors": [error.message for error in job.errors()],
        }
    print(json.dumps(answers))
    """
)


@cache
def python_of_qgis() -> str | None:
    for found in ("/usr/bin/python3", shutil.which("python3")):
        if found and not subprocess.run([found, "-c", "import qgis.core"], capture_output=True, check=False).returncode:
            return found
    return None


def opened(*paths: Path) -> dict[str, Any]:
    python = python_of_qgis()
    if python is None:
        pytest.skip("no QGIS here")
    settings = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    ran = subprocess.run(
        [python, "-c", INSIDE, *map(str, paths)],
        env={**settings, "QT_QPA_PLATFORM": "offscreen"},
        capture_output=True,
        text=True,
        check=True,
    )
    answers = json.loads(ran.stdout.splitlines()[-1])
    return {path.name: answers[str(path)] for path in paths}


@pytest.fixture
def products(tmp_path: Path) -> Path:
    """A map with its confidence and parcels."""
    landscape = a_landscape()
    shapes = [square(8 * row, 8 * column, 8, landscape.grid) for row in range(1, 4) for column in range(1, 4)]
    given = tmp_path / "fields.gpkg"
    geopandas.GeoDataFrame(geometry=shapes, crs=landscape.grid.rasterio_crs).to_file(given)
    write(tmp_path, landscape, MapOptions(parcels=given, layers=("confidence",), picture=False))
    return tmp_path


def test_qgis_shows_names_and_colours(products: Path) -> None:
    found = opened(*(products / name for name in ("map.tif", "map-confidence.tif", "map-parcels.gpkg")))
    for answer in found.values():
        assert answer["styled"]
        assert not answer["errors"]
    colours = {entry.colour for entry in CLASSES}
    crops, sure, parcels = found["map.tif"], found["map-confidence.tif"], found["map-parcels.gpkg"]
    assert crops["renderer"] == "paletted"
    assert crops["names"][1:] == CLASSES.names  # the first is the band's
    assert colours <= set(crops["drawn"]) <= colours | {"#ffffff"}
    assert sure["renderer"] == "singlebandpseudocolor"
    assert any(len({colour[1:3], colour[3:5], colour[5:]}) > 1 for colour in sure["drawn"]), "grey: no ramp"
    assert parcels["renderer"] == "categorizedSymbol"
    assert parcels["names"] == [*CLASSES.names, "no class"]
    assert len(colours & set(parcels["drawn"])) > 1


def test_the_style_of_parcels_stays_with_the_file(products: Path, tmp_path: Path) -> None:
    """Where the GeoPackage is sent to somebody without the file beside it."""
    alone = tmp_path / "elsewhere"
    alone.mkdir()
    shutil.copy(products / "map-parcels.gpkg", alone / "renamed.gpkg")
    answer = opened(alone / "renamed.gpkg")["renamed.gpkg"]
    assert answer["styled"]
    assert answer["names"] == [*CLASSES.names, "no class"]
