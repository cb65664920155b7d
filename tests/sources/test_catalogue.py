"""The sources by name, what a path is taken for, and which parcels belong to it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cropstar.errors import InputError, UsageError
from cropstar.sources.catalogue import SOURCES, IngestRequest, guess_source
from cropstar.store.tile import RasterTile
from tests.sources.examples.stacks import write_four_fields, write_stack


@pytest.fixture
def stack(tmp_path: Path) -> Path:
    return write_stack(tmp_path / "tile.tif")


def recipe(stack: Path, parcels: Path | None = None, tile_size: int = 240, label_column: str | None = None) -> str:
    (scene,) = SOURCES["stack"](IngestRequest(stack, parcels, label_column, tile_size))
    scene.close()
    return scene.recipe


def test_sources_are_known_by_name() -> None:
    assert {"stack", "synthetic"} <= set(SOURCES)
    with pytest.raises(UsageError, match="unknown source 'stak'; did you mean 'stack'"):
        SOURCES["stak"]


def test_what_a_path_is_taken_for(stack: Path) -> None:
    assert guess_source(None) == "synthetic"
    assert guess_source(stack) == "stack"
    other = stack.rename(stack.with_suffix(".TIFF"))
    assert guess_source(other) == "stack"
    with pytest.raises(InputError, match="no such file"):
        guess_source(stack)
    with pytest.raises(UsageError, match="name the source first, one of: "):
        guess_source(stack.parent)


def test_the_one_vector_file_beside_the_raster_is_taken(stack: Path) -> None:
    with pytest.raises(UsageError, match="no parcels given: there is none beside the raster"):
        SOURCES["stack"](IngestRequest(stack))
    fields = write_four_fields(stack.with_name("fields.gpkg"))
    assert recipe(stack) == recipe(stack, fields)
    write_four_fields(stack.with_name("more.geojson"))
    with pytest.raises(UsageError, match="2 lie beside the raster"):
        SOURCES["stack"](IngestRequest(stack))


def test_a_stack_needs_a_path_that_is_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the source 'stack' needs a path"):
        SOURCES["stack"](IngestRequest(None))
    with pytest.raises(InputError, match=r"no such file: .*absent\.tif"):
        SOURCES["stack"](IngestRequest(tmp_path / "absent.tif"))


def test_a_scene_is_what_its_files_say(stack: Path) -> None:
    write_four_fields(stack.with_name("fields.gpkg"))
    (scene,) = SOURCES["stack"](IngestRequest(stack, tile_size=16))
    assert scene.name == "tile"
    assert scene.fingerprint.bands == ("B04", "B08")
    assert scene.fingerprint.classes.names == ["maize", "wheat"]
    assert (scene.fingerprint.resolution, scene.fingerprint.season.start) == (10, 121)
    pieces = scene.tile_specs()
    assert [(piece.window.height, piece.window.width) for piece in pieces] == [(16, 16), (16, 14), (4, 16), (4, 14)]
    assert len({piece.name for piece in pieces}) == 4
    tile = scene.build(pieces[1])
    assert isinstance(tile, RasterTile)
    assert tile.values.shape == (2, 2, 16, 14)
    assert set(tile.table.numbers.tolist()) == set(tile.parcels[tile.parcels > 0].tolist())
    scene.close()


def test_names_of_scenes_are_safe_as_file_names(tmp_path: Path) -> None:
    path = write_stack(tmp_path / "T32 Zürich (1);rm.tif")
    write_four_fields(tmp_path / "fields.gpkg")
    (scene,) = SOURCES["stack"](IngestRequest(path))
    scene.close()
    assert scene.name == "T32_Z_rich_1_rm"


# --- recipes


def test_equal_files_and_options_have_equal_recipes(stack: Path) -> None:
    fields = write_four_fields(stack.with_name("fields.gpkg"))
    first = recipe(stack, fields)
    (elsewhere := stack.parent / "elsewhere").mkdir()
    for path in (stack, fields):
        shutil.copy(path, elsewhere)
    assert recipe(elsewhere / stack.name, elsewhere / fields.name) == first
    others = [recipe(stack, fields, tile_size=48), recipe(stack, fields, label_column="crop")]
    assert len({first, *others}) == 3


@pytest.mark.parametrize("ending", [".dbf", ".DBF"])
def test_corrected_labels_of_a_shapefile_are_another_recipe(stack: Path, ending: str) -> None:
    """The shapes are in the .shp, but the labels are in the .dbf."""
    fields = stack.with_name("fields.shp")
    shapes = write_four_fields(fields).read_bytes()
    fields.with_suffix(".dbf").rename(fields.with_suffix(ending))
    first = recipe(stack, fields)
    fields.with_suffix(ending).unlink()
    write_four_fields(fields, ["wheat", "maize", "maize", "wheat"])
    fields.with_suffix(".dbf").rename(fields.with_suffix(ending))
    assert fields.read_bytes() == shapes
    assert recipe(stack, fields) != first
