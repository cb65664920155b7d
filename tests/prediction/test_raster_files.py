"""The rasters of a map: cloud-optimised, whole or not there, the same bytes whatever the blocks."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import rasterio

from cropstar.errors import ResourceError, UsageError
from cropstar.prediction.layers import LAYERS, PROBABILITIES, VALID_DATES, compute_layers
from cropstar.prediction.outputs import read_thinned
from cropstar.prediction.request import MapFiles, MapOptions
from cropstar.store.classes import ClassTable
from tests.prediction.maps import CLASSES, TAGS, Landscape, a_landscape, write

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
    from cropstar.prediction.outputs import write_outputs

    landscape = a_landscape(1, 1, classes=1)
    seen = Landscape(landscape.grid, landscape.probabilities, np.ones_like(landscape.counts))
    files = MapFiles(tmp_path / "map.tif", EVERYTHING)
    blocks = seen.blocks(EVERYTHING.layers_of_blocks)
    only = ClassTable.from_names(["maize"])
    counts = write_outputs(blocks, files, seen.grid, only, tags={}, title="One", work=tmp_path / ".work")
    assert counts[0] == 1
