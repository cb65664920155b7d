"""The files of a map: rasters that read back whole, names and colours that GIS programs find."""

from __future__ import annotations

import logging
import resource
import signal
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import rasterio
from hypothesis import given
from hypothesis import strategies as st

from cropstar.errors import ResourceError, UsageError
from cropstar.geo.grid import hectares_per_pixel
from cropstar.geo.windows import Window
from cropstar.prediction.layers import LAYERS, PROBABILITIES, VALID_DATES, Layer, compute_layers
from cropstar.prediction.outputs import (
    MapWriter,
    RasterKind,
    describe_names,
    drafting,
    publish,
    raising_gdal_errors,
    read_thinned,
    require_cloud_optimised,
)
from cropstar.prediction.request import MapFiles, MapOptions, names_file, style_file
from cropstar.prediction.styles import DAY_COLOURS, day_ramp, describe_style
from cropstar.store.classes import ClassTable, CropClass
from tests.prediction.gdal import names_and_table
from tests.prediction.maps import CLASSES, TAGS, Landscape, a_landscape, write

TILE_OFFSETS = 324  # a tag of TIFF
EVERYTHING = MapOptions(layers=tuple(LAYERS), picture=False)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Writing fails as on a full disk once a file has so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_the_files_are_cloud_optimised(tmp_path: Path) -> None:
    cogeo = pytest.importorskip("rio_cogeo.cogeo")
    finished = write(tmp_path, a_landscape(700, 530), EVERYTHING, size=200)
    for path in (finished.files.map, *map(finished.files.layer, LAYERS)):
        valid, errors, warnings = cogeo.cog_validate(path, strict=True)
        assert (valid, errors, warnings) == (True, [], []), path.name
        with rasterio.open(path) as dataset:
            assert dataset.overviews(1) == [2, 4]
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".") and path.is_file()]
    assert list((tmp_path / ".work").iterdir()) == []


def test_a_gis_finds_what_it_expects(tmp_path: Path) -> None:
    landscape = a_landscape()
    finished = write(tmp_path, landscape, MapOptions(layers=tuple(LAYERS)))
    with rasterio.open(finished.files.map) as dataset:
        assert (dataset.dtypes, dataset.nodata, dataset.shape) == (("uint8",), 255, landscape.grid.shape)
        assert dataset.crs == landscape.grid.rasterio_crs
        assert dataset.transform == landscape.grid.affine
        assert TAGS.items() <= dataset.tags().items()
        colours = dataset.colormap(1)
        assert all(colours[entry.number][:3] == entry.rgb for entry in CLASSES)
        np.testing.assert_array_equal(dataset.read(1), landscape.classes)
    wanted = compute_layers(landscape.pixels, LAYERS)
    for name, layer in LAYERS.items():
        with rasterio.open(finished.files.layer(name)) as dataset:
            np.testing.assert_array_equal(dataset.read(), wanted[name])
            assert dataset.nodata == layer.nodata
            assert list(dataset.descriptions) == layer.bands(CLASSES)
            assert dataset.scales == (layer.scale,) * dataset.count
            assert dataset.units == (layer.unit or None,) * dataset.count
            assert dataset.tags()["CROPSTAR_MODEL"] == TAGS["CROPSTAR_MODEL"]
            assert dataset.tags()["CROPSTAR_LAYER"] == layer.meaning
    assert finished.files.picture.read_bytes().startswith(b"\x89PNG")


def test_overviews_show_the_class_that_most_pixels_have(tmp_path: Path) -> None:
    landscape = a_landscape(600, 600)
    probabilities = np.zeros_like(landscape.probabilities)
    probabilities[0] = 1
    # Of every four pixels three have class 3: a mean would say 2, the nearest pixel 0.
    probabilities[0, 0::2, 1::2] = probabilities[0, 1::2] = 0
    probabilities[3] = 1 - probabilities[0]
    odd = Landscape(landscape.grid, probabilities, np.ones_like(landscape.counts))
    finished = write(tmp_path, odd, MapOptions(picture=False), size=256)
    with rasterio.open(finished.files.map) as dataset:
        assert (dataset.read(1) == 0).mean() == 0.25
    with rasterio.open(finished.files.map, overview_level=0) as dataset:
        assert dataset.shape == (300, 300)
        assert (dataset.read(1) == 3).all()


@pytest.mark.parametrize("size", [17, 90])
def test_the_bytes_do_not_depend_on_the_blocks(size: int, tmp_path: Path) -> None:
    landscape = a_landscape()
    contents = []
    for name, side in (("one", 23), ("other", size)):
        (tmp_path / name).mkdir()
        finished = write(
            tmp_path / name, landscape, MapOptions(layers=(PROBABILITIES, VALID_DATES), picture=False), size=side
        )
        contents.append([path.read_bytes() for path in finished.files.all()])
    assert contents[0] == contents[1]


@pytest.mark.parametrize("largest", [3_000, 20_000, 100_000])
def test_a_full_disk_leaves_the_old_map(largest: int, tmp_path: Path) -> None:
    landscape = a_landscape(500, 500)
    (tmp_path / "map.tif").write_text("the old map")
    with largest_file(largest), pytest.raises(ResourceError, match="free some disk space"):
        write(tmp_path, landscape, MapOptions(layers=(PROBABILITIES,), picture=False), size=200, overwrite=True)
    assert (tmp_path / "map.tif").read_text() == "the old map"
    assert not list(tmp_path.rglob("*.partial"))
    assert list((tmp_path / ".work").iterdir()) == []


@pytest.mark.filterwarnings("ignore")
def test_a_directory_behind_the_pixels_is_a_write_that_failed(tmp_path: Path) -> None:
    """libtiff goes on after such a failure: it writes the directory at the end, and the file can be read."""
    path = write(tmp_path, a_landscape(), MapOptions(picture=False)).files.map
    require_cloud_optimised(path, path)
    with rasterio.open(path, "r+", IGNORE_COG_LAYOUT_BREAK="YES") as dataset:
        dataset.update_tags(LONG="a tag that makes the directory longer " * 20)
    with pytest.raises(ResourceError, match="did not reach the disk at once"):
        require_cloud_optimised(path, path)


def test_a_directory_that_was_written_again_before_the_pixels_is_one_too(tmp_path: Path) -> None:
    """As above, where the disk failed before there were pixels: the first directory is not where it was to be."""
    path = write(tmp_path, a_landscape(), MapOptions(picture=False)).files.map
    content = path.read_bytes()
    (directory,) = struct.unpack_from("<I", content, 4)
    (entries,) = struct.unpack_from("<H", content, directory)
    moved, end = len(content) + len(content) % 2, directory + 2 + 12 * entries + 4
    with rasterio.open(path) as dataset:
        pixels = int(dataset.get_tag_item("BLOCK_OFFSET_0_0", "TIFF", bidx=1))
    copy = bytearray(content[directory:end])
    for entry in range(2, 2 + 12 * entries, 12):  # the pixels come last again
        if struct.unpack_from("<H", copy, entry)[0] == TILE_OFFSETS:
            struct.pack_into("<I", copy, entry + 8, moved + len(copy) + 4)
    again = content.ljust(moved, b"\0") + copy + content[pixels - 4 :]
    path.write_bytes(again[:4] + struct.pack("<I", moved) + again[8:])
    with rasterio.open(path) as dataset:
        assert int(dataset.get_tag_item("BLOCK_OFFSET_0_0", "TIFF", bidx=1)) == moved + len(copy) + 4
    with pytest.raises(ResourceError, match="did not reach the disk at once"):
        require_cloud_optimised(path, path)


def test_the_directory_of_an_overview_behind_the_pixels_is_one_too(tmp_path: Path) -> None:
    path = write(tmp_path, a_landscape(700, 530), MapOptions(picture=False), size=200).files.map
    require_cloud_optimised(path, path)
    content = bytearray(path.read_bytes())
    pointer = 4
    (directory,) = struct.unpack_from("<I", content, pointer)
    pointer = directory + 2 + 12 * struct.unpack_from("<H", content, directory)[0]
    (second,) = struct.unpack_from("<I", content, pointer)
    length = 2 + 12 * struct.unpack_from("<H", content, second)[0] + 4
    struct.pack_into("<I", content, pointer, len(content) + len(content) % 2)
    path.write_bytes(content.ljust(len(content) + len(content) % 2, b"\0") + content[second : second + length])
    with pytest.raises(ResourceError, match="did not reach the disk at once"):
        require_cloud_optimised(path, path)


def test_a_draft_that_reads_back_otherwise_is_refused(tmp_path: Path) -> None:
    grid = a_landscape(20, 20).grid
    values = np.zeros((1, 20, 20), dtype=np.uint8)
    with pytest.raises(ResourceError), drafting(tmp_path / "draft.tif", grid, RasterKind.of_map(CLASSES)) as draft:  # noqa: PT012
        draft.write(Window(0, 0, 20, 20), values)
        draft.written[0] = draft.written[0][0], draft.written[0][1] ^ 1  # as if other values had been written


def test_what_gdal_only_logs_is_raised(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="a block could not be written"), raising_gdal_errors(tmp_path / "map.tif"):
        logging.getLogger("rasterio._env").error("a block could not be written")


@pytest.mark.parametrize("taken", ["map.tif", "map.qml", "map.png", "map.tif.aux.xml", "map-valid-dates.tif"])
def test_no_file_of_the_map_is_overwritten_unless_asked(taken: str, tmp_path: Path) -> None:
    (tmp_path / taken).write_text("precious")
    files = MapFiles(tmp_path / "map.tif", MapOptions(layers=(VALID_DATES,)))
    with pytest.raises(UsageError, match="--overwrite"):
        files.require_new(overwrite=False)
    files.require_new(overwrite=True)
    assert (tmp_path / taken).read_text() == "precious"


def test_a_name_that_is_no_geotiff_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"ends in \.tif"):
        MapFiles(tmp_path / "map.png", MapOptions()).require_apart([])


def test_two_rasters_are_thinned_to_the_same_pixels(tmp_path: Path) -> None:
    landscape = a_landscape(300, 700)
    finished = write(tmp_path, landscape, MapOptions(layers=(VALID_DATES,), picture=False), size=256)
    classes, counts = (read_thinned(path, 100) for path in (finished.files.map, finished.files.layer(VALID_DATES)))
    assert classes.shape == counts.shape == (43, 100)
    rows, columns = ((np.arange(43) + 0.5) * 300 / 43).astype(int), ((np.arange(100) + 0.5) * 7).astype(int)
    np.testing.assert_array_equal(classes, landscape.classes[np.ix_(rows, columns)])
    np.testing.assert_array_equal(counts, landscape.counts[np.ix_(rows, columns)])


def test_one_class_and_one_pixel(tmp_path: Path) -> None:
    landscape = a_landscape(1, 1, classes=1)
    seen = Landscape(landscape.grid, landscape.probabilities, np.ones_like(landscape.counts))
    files = MapFiles(tmp_path / "map.tif", EVERYTHING)
    blocks = seen.blocks(EVERYTHING.layers_of_blocks)
    only = ClassTable.from_names(["maize"])
    contents = MapWriter(files, seen.grid, only, tags={}, title="One", work=tmp_path / ".work").write(blocks)
    assert contents.counts[0] == 1


# --- names of the classes


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


# --- colours


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


def test_every_layer_has_a_style_over_its_values(tmp_path: Path) -> None:
    finished = write(tmp_path, a_landscape(), MapOptions(picture=False, layers=tuple(LAYERS)))
    for name, layer in LAYERS.items():
        path = finished.files.layer(name)
        assert {path, style_file(path)} <= set(finished.files.all())
        renderer = ElementTree.fromstring(style_file(path).read_text(encoding="utf-8")).find("pipe/rasterrenderer")
        assert renderer is not None
        assert (renderer.get("type"), renderer.get("band")) == ("singlebandpseudocolor", "1")
        values = [float(item.get("value", "nan")) for item in renderer.iter("item")]
        assert values == sorted(values)
        highest = {"uint16": 1.0 if layer.scale < 1 else 40.0, "uint8": 100.0}[layer.dtype]
        assert (values[0], values[-1]) == (0.0, highest)


def test_early_days_are_dark_also_where_a_season_begins_in_autumn() -> None:
    dark, *_, bright = DAY_COLOURS
    assert [colour for _, colour in day_ramp([100, 120, 140, 160, 180])] == list(DAY_COLOURS)
    autumn = day_ramp([290, 320, 20, 60, 100])
    assert [day for day, _ in autumn] == [20, 60, 100, 290, 320]
    assert (dict(autumn)[290], dict(autumn)[100]) == (dark, bright)
    assert day_ramp([150]) == ((150, bright),)


@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=20))
def test_any_name_is_one_label(name: str) -> None:
    (entry,) = entries_of(describe_style(ClassTable([CropClass(0, name, "#123456")])))
    label = entry.get("label")
    assert label is not None
    if name.isprintable():
        assert label == name


# --- layers of classes


def test_a_layer_of_classes_is_never_averaged(tmp_path: Path) -> None:
    landscape = a_landscape(300, 300)
    layer = Layer("second", "uint8", 255, 1.0, "", "second best class", (), lambda pixels: pixels.classes[None], True)
    with drafting(tmp_path / "draft.tif", landscape.grid, RasterKind.of_layer(layer, CLASSES)) as draft:
        draft.write(Window(0, 0, 300, 300), layer.compute(landscape.pixels))
    publish(draft, tmp_path / "second.tif", {})
    with rasterio.open(tmp_path / "second.tif") as dataset:
        assert dataset.descriptions == ("second best class",)
        assert dataset.colormap(1)[0][:3] == next(iter(CLASSES)).rgb
        assert dataset.tags(1)["CLASS_1"] == CLASSES.names[1]
        smaller = dataset.read(1, out_shape=(150, 150))
    assert set(np.unique(smaller)) <= {*range(len(CLASSES)), 255}


def test_a_layer_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="no layer is called 'certainty'"):
        MapOptions(layers=("certainty",))
