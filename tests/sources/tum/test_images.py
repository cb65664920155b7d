"""Image series as TFRecords and GeoTIFFs: values, fields, folds, years; bad tiles."""

from __future__ import annotations

import gzip
import pickle
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from numpy.typing import NDArray

from cropstar.errors import CropstarError, InputError, UsageError
from cropstar.geo.calendar import to_days
from cropstar.geo.windows import Window
from cropstar.sources.base import Scene
from cropstar.sources.ingest import ingest
from cropstar.sources.tum import TumOptions, looks_like_tum, open_tum
from cropstar.sources.tum.images import connected_regions
from cropstar.store.classes import UNLABELLED
from cropstar.store.reader import Patch
from cropstar.store.store import Store
from tests.sources.examples.tum_tiles import (
    an_example,
    features_of,
    framed,
    some_arrays,
    write_collection,
    write_rasters,
    write_tile,
)

WHOLE = Window(0, 0, 12, 12)


def one(path: Path, **options: object) -> Scene:
    (scene,) = open_tum(path, TumOptions(**options))  # type: ignore[arg-type]
    return scene


@pytest.mark.parametrize("ending", [".tfrecord", ".tfrecord.gz"])
def test_a_store_gives_back_the_tiles(tmp_path: Path, ending: str) -> None:
    written = write_collection(tmp_path / "240", ending=ending)
    scene = one(tmp_path / "240", images_per_tile=3)
    assert scene.name == "240-data16-2016"
    assert [piece.name.rpartition("-")[2] for piece in scene.tile_specs()] == ["n0000000", "n0000003"]
    ingest([scene], tmp_path / "store")
    store = Store.open(tmp_path / "store")
    assert store.fingerprint.classes.names == ["sugar beet", "summer oat", "meadow", "winter wheat", "maize"]
    assert store.fingerprint.bands[:5] == ("B04", "B03", "B02", "B08", "B05")
    assert (store.fingerprint.resolution, store.fingerprint.scale, len(store.fingerprint.bands)) == (10.0, 1e-4, 13)
    images = [image for _, reader in store.readers() for image in reader.images if isinstance(image, Patch)]
    assert [image.name for image in images] == ["5", "7", "16", "101"]
    numbers: list[int] = []
    for image in images:
        raw = written[2016, int(image.name)]
        assert image.days.tolist() == to_days([date(2016, 1, 30), date(2016, 3, 30), date(2016, 7, 18)]).tolist()
        values = image.values(WHOLE)
        for place, source in enumerate((1, 0, 2)):  # by date
            assert np.array_equal(values[place, :4], raw["x10"][source].transpose(2, 0, 1))
            coarse = raw["x20"][source].repeat(2, axis=0).repeat(2, axis=1)
            assert np.array_equal(values[place, 4:10], coarse.transpose(2, 0, 1))
            coarsest = raw["x60"][source].repeat(6, axis=0).repeat(6, axis=1)
            assert np.array_equal(values[place, 10:], coarsest.transpose(2, 0, 1))
        assert image.valid(WHOLE).all()
        expected = np.full((12, 12), UNLABELLED)
        expected[:, :5], expected[:, 7:] = 2, 4
        assert np.array_equal(image.labels(), expected)
        assert image.table.keys == [image.name] * 2
        assert image.table.groups == [image.name] * 2
        assert image.table.labels.tolist() == [2, 4]
        assert image.grid.transform == (10.0, 0.0, 650000.0 + 240 * int(image.name), 0.0, -10.0, 5350000.0)
        assert image.grid.rasterio_crs.to_epsg() == 32632
        numbers += image.table.numbers.tolist()
    assert len(set(numbers)) == 8
    store.close()


def test_the_manifest_has_the_folds(tmp_path: Path) -> None:
    write_collection(tmp_path / "240", (2016, 2017))
    first, second = open_tum(tmp_path)
    assert (first.name, second.name) == ("240-data16-2016", "240-data17-2017")
    about = first.describe()
    assert about["splits"] == {"fold0": {"train": ["5", "7"], "validation": ["16"], "test": ["101"]}}
    assert about["dates"] == ["2016-01-30", "2016-03-30", "2016-07-18"]
    assert about["images"] == 4
    assert second.describe()["dates"] == ["2017-01-30", "2017-03-31", "2017-07-19"]
    assert about["origin"] == second.describe()["origin"]  # the same ground
    (tmp_path / "240" / "tileids" / "eval.tileids").unlink()
    (second,) = open_tum(tmp_path, TumOptions(year=2017))
    assert second.describe()["splits"] == {"fold0": {"train": ["5", "7"], "validation": [], "test": ["16"]}}
    ingest(open_tum(tmp_path), tmp_path / "store")
    assert ingest(open_tum(tmp_path), tmp_path / "store").written == 0


def test_invalid_pixels_and_odd_values(tmp_path: Path) -> None:
    write_collection(tmp_path / "240", tiles=(1,))
    raw = some_arrays()
    raw["x10"][0, 2, 3, 1] = 0  # one band of one pixel
    raw["x10"][2] = -1
    raw["x20"][1, 0, 0, 0] = -5  # valid all the same: bands of 10 m decide
    raw["doy"][:] = [366, 30, 30, -1]  # of equal days the first counts
    write_tile(tmp_path / "240" / "data16" / "1.tfrecord.gz", raw)
    scene = one(tmp_path)
    tile = scene.build(scene.tile_specs()[0])
    assert scene.describe()["dates"] == ["2016-01-30", "2016-12-31"]
    assert tile.lengths.tolist() == [2]  # type: ignore[union-attr]
    assert tile.valid[0, 0].all()
    assert not tile.valid[0, 1, 2, 3]
    assert tile.valid[0, 1].sum() == 143
    assert (tile.values[0, 1, :, 2, 3] == 0).all()
    assert tile.values[0, 0, 4, 0, 0] == 0


def test_worker_processes_build_the_same(tmp_path: Path) -> None:
    write_collection(tmp_path / "240")
    scene = one(tmp_path)
    copy = pickle.loads(pickle.dumps(scene))
    (piece,) = copy.tile_specs()
    mine, theirs = scene.build(piece), copy.build(piece)
    for name, array in mine.arrays().items():
        assert np.array_equal(array, theirs.arrays()[name])
    assert one(tmp_path).recipe == scene.recipe
    write_tile(tmp_path / "240" / "data16" / "5.tfrecord.gz", some_arrays(seed=99))
    assert one(tmp_path).recipe != scene.recipe


@pytest.mark.parametrize("nested", [False, True])
def test_geotiffs_give_the_same_images(tmp_path: Path, nested: bool) -> None:
    written = write_collection(tmp_path / "records" / "240", tiles=(5, 7))
    expected = one(tmp_path / "records")
    days = ["20160330", "20160130", "20160718"]
    if nested:  # the converter writes the records' year, which is wrong
        days = ["20170331", "20170130", "20170719"]
    root = tmp_path / "rasters" / "data16"
    for tile in (5, 7):
        write_rasters((root if nested else root / "data") / str(tile), written[2016, tile], days, nested=nested)
    (root / "classes.txt").write_text((tmp_path / "records" / "240" / "classes.txt").read_text())
    scene = one(tmp_path / "rasters")
    assert scene.name == ("data16-2016" if nested else "data16-data-2016")
    assert scene.describe()["dates"] == expected.describe()["dates"]
    ours, theirs = scene.build(scene.tile_specs()[0]), expected.build(expected.tile_specs()[0])
    for name in ("values", "valid", "labels", "parcels"):
        assert np.array_equal(ours.arrays()[name], theirs.arrays()[name])
    assert ours.crs.startswith("PROJCS")  # type: ignore[union-attr]
    assert ours.transforms[0].tolist() == [10.0, 0.0, 650000.0, 0.0, -10.0, 5350000.0]  # type: ignore[union-attr]
    ingest([scene], tmp_path / "store")


def test_years_of_geotiffs(tmp_path: Path) -> None:
    arrays = some_arrays()
    write_rasters(tmp_path / "tif" / "5", arrays, ["20151220", "20160130"], nested=False)
    scene = one(tmp_path / "tif")
    assert scene.describe()["dates"] == ["2015-12-20", "2016-01-30"]  # names of two years are meant
    write_rasters(tmp_path / "other" / "5", arrays, ["20170130"], nested=True)
    assert one(tmp_path / "other").describe()["dates"] == ["2017-01-30"]
    assert one(tmp_path / "other", year=2016).describe()["dates"] == ["2016-01-30"]


def test_choosing_among_folders(tmp_path: Path) -> None:
    write_collection(tmp_path / "full" / "240", (2016, 2017), tiles=(5,))
    write_collection(tmp_path / "full" / "480", (2016,), tiles=(5,))
    with pytest.raises(UsageError, match=r"several collections.*240/data16, 240/data17, 480/data16"):
        open_tum(tmp_path)
    assert [scene.name for scene in open_tum(tmp_path, TumOptions(data="240"))] == [
        "240-data16-2016",
        "240-data17-2017",
    ]
    assert one(tmp_path, data="480/data16").name == "480-data16-2016"
    assert one(tmp_path, data="480").name == "480-data16-2016"
    assert one(tmp_path, data="data17").name == "240-data17-2017"
    assert one(tmp_path, data="240", year=2017).name == "240-data17-2017"
    assert one(tmp_path / "full" / "240" / "data16").name == "240-data16-2016"
    with pytest.raises(UsageError, match=r"no data 'data18'.*there is 240/data16"):
        open_tum(tmp_path, TumOptions(data="data18"))
    with pytest.raises(UsageError, match="no data of 2018"):
        open_tum(tmp_path, TumOptions(year=2018))


def test_what_looks_like_it(tmp_path: Path) -> None:
    assert not looks_like_tum(tmp_path)
    assert not looks_like_tum(tmp_path / "nowhere")
    (tmp_path / "5").mkdir()
    (tmp_path / "other.tfrecord").touch()
    assert not looks_like_tum(tmp_path)
    (tmp_path / "5" / "y.tif").touch()
    assert looks_like_tum(tmp_path)
    write_collection(tmp_path / "a" / "b" / "240", tiles=(1,))
    assert looks_like_tum(tmp_path / "a")


def test_without_companions(tmp_path: Path) -> None:
    write_tile(tmp_path / "tiles" / "3.tfrecord", some_arrays())
    with pytest.raises(UsageError, match=r"the year is not known"):
        open_tum(tmp_path / "tiles")
    scene = one(tmp_path / "tiles", year=2016)
    assert len(scene.fingerprint.classes) == 17
    assert scene.fingerprint.classes.names[2] == "meadow"
    tile = scene.build(scene.tile_specs()[0])
    assert tile.crs == ""  # type: ignore[union-attr]
    assert scene.describe()["splits"] == {}


@given(arrays_of.arrays(np.int16, st.tuples(st.integers(1, 9), st.integers(1, 9)), elements=st.integers(0, 2)))
def test_regions_are_those_of_a_flood(labels: NDArray[np.int16]) -> None:
    found = connected_regions(labels)
    flooded = np.zeros(labels.shape, dtype=int)
    for number, start in enumerate(np.ndindex(labels.shape), start=1):
        waiting = [start] if not flooded[start] else []
        while waiting:
            row, column = waiting.pop()
            if not flooded[row, column]:
                flooded[row, column] = number
                for place in ((row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)):
                    inside = 0 <= place[0] < labels.shape[0] and 0 <= place[1] < labels.shape[1]
                    if inside and labels[place] == labels[start]:
                        waiting.append(place)
    assert np.array_equal(found, flooded)  # both number by the first pixel


# --- Bad input


def build_all(root: Path, options: TumOptions) -> None:
    for scene in open_tum(root, options):
        for piece in scene.tile_specs():
            scene.build(piece)


def message(root: Path, **options: Any) -> str:
    with pytest.raises(CropstarError) as caught:
        build_all(root, TumOptions(**options))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_collection(tmp_path / "240", tiles=(5, 7))
    return tmp_path / "240"


def write_features(root: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    features: dict[str, Any] = features_of(some_arrays())
    change(features)
    (root / "data16" / "5.tfrecord.gz").write_bytes(gzip.compress(framed(an_example(features))))


def test_empty_folders(tmp_path: Path, root: Path) -> None:
    assert "no such folder" in message(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "no TUM data" in message(tmp_path / "empty")
    for tile in (5, 7):
        write_tile(root / "data16" / f"{tile}.tfrecord.gz", {**some_arrays(), "doy": np.array([0, -1, -1, 0])})
    assert "no image" in message(root)
    assert "2 tiles, none of them with a date" in message(root)


def test_a_tile_without_a_date_is_left_out(root: Path) -> None:
    write_tile(root / "data16" / "5.tfrecord.gz", {**some_arrays(), "doy": np.array([0, -1, -1, 0])})
    (scene,) = open_tum(root)
    assert scene.describe()["images"] == 1
    assert scene.describe()["left_out"] == {"without dates": 1}
    assert scene.build(scene.tile_specs()[0]).names == ["7"]  # type: ignore[union-attr]


def test_a_damaged_record_names_file_and_record(root: Path) -> None:
    path = root / "data16" / "5.tfrecord.gz"
    content = bytearray(gzip.decompress(path.read_bytes()))
    content[5000] ^= 4
    path.write_bytes(gzip.compress(bytes(content)))
    text = message(root)
    assert "5.tfrecord.gz: the checksum of its record does not match" in text
    path.write_bytes(path.read_bytes()[:-2000])
    assert "not a TFRecord, or a damaged one" in message(root)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda features: features.pop("x20/data"), "'x20/data' is missing"),
        (lambda features: features.pop("dates/doy"), "'dates/doy' is missing"),
        (lambda features: features.update({"x10/shape": (4, 12, 12)}), "not enough values to unpack"),
        (lambda features: features.update({"x60/shape": (4, 3, 1, 6), "x60/data": bytes(8 * 72)}), "not the bands B04"),
        (lambda features: features.update({"x10/data": bytes(8)}), "cannot reshape array"),
        (lambda features: features.update({"labels/shape": (4, 6, 24)}), "not of one size"),
        (lambda features: features.update({"dates/shape": (2**61,)}), "cannot reshape array"),
        (lambda features: features.update({"x10/data": (1, 2)}), "a bytes-like object is required"),
    ],
)
def test_records_that_do_not_fit(root: Path, change: Callable[[dict[str, Any]], Any], expected: str) -> None:
    write_features(root, change)
    text = message(root)
    assert expected in text
    assert "5.tfrecord.gz" in text


def test_not_an_example(root: Path) -> None:
    (root / "data16" / "5.tfrecord.gz").write_bytes(gzip.compress(framed(b"\x0a\xff\xff\xff\xff\x0f")))
    assert "not a tile of MTLCC, or a damaged one" in message(root)


def test_tiles_that_do_not_fit(root: Path) -> None:
    raw = some_arrays()
    raw["labels"][:, 0, 0] = 99
    write_tile(root / "data16" / "5.tfrecord.gz", raw)
    text = message(root)
    assert "an unknown class" in text
    assert "the id 99 is not among 1, 2, 3, 22, 26; add it to classes.txt" in text
    raw = some_arrays()
    raw["x20"][0, 0, 0, 0] = 70_000
    write_tile(root / "data16" / "5.tfrecord.gz", raw)
    assert "cannot be ten thousand times a reflectance" in message(root)
    write_tile(root / "data16" / "7.tfrecord.gz", some_arrays(side=24))
    assert "a tile of another size" in message(root)
    write_tile(root / "data16" / "7.tfrecord", some_arrays())
    assert "the tile 7 appears twice" in message(root)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("classes.txt", "0|unknown\n", "unusable classes"),
        ("classes.txt", "1|a\n2|a\n", "1 different names of 2 ids"),
        ("classes.txt", "x|a\n", "unusable classes"),
        ("geotransforms.csv", "5,1,10,0,1,0,-10,32632\n", "no geotransform of the tile 7"),
        ("geotransforms.csv", "5,1,10,0\n", "a line is not a tile"),
        ("geotransforms.csv", "5,nan,10,0,1,0,-10,32632\n", "a line is not a tile"),
        ("geotransforms.csv", "5,1,10,0,1,0,-10,1e30\n7,1,10,0,1,0,-10,1e30\n", "unknown coordinate system"),
        ("geotransforms.csv", "5,1,20,0,1,0,-20,32632\n", "the pixels are not 10 m"),
        ("geotransforms.csv", "5,1,10,0,1,0,-10,32632\n7,1,10,0,1,0,-10,32633\n", "several coordinate systems"),
        ("geotransforms.csv", "5,1,10,0,1,0,-10,1\n7,1,10,0,1,0,-10,1\n", "unknown coordinate system"),
        ("tileids/train_fold0.tileids", "5\nseven\n", "not a list of tile ids"),
        ("dataset.ini", "datadir = without a section\n", "not a settings file"),
    ],
)
def test_bad_companions(root: Path, name: str, text: str, expected: str) -> None:
    (root / name).write_text(text)
    found = message(root)
    assert expected in found
    assert Path(name).name in found
    (root / name).write_bytes(b"\xff\xfe\x00")
    assert "not a text in UTF-8" in message(root)


def test_bad_rasters(tmp_path: Path) -> None:
    folder = tmp_path / "data16" / "5"
    write_rasters(folder, some_arrays(), ["20160130", "20160330"], nested=False)
    (folder / "20160330_20m.tif").rename(folder / "away.tif")
    assert "no raster of 20 m on 2016-03-30" in message(tmp_path)
    (folder / "20160130_20m.tif").rename(folder / "20160330_20m.tif")
    (folder / "20160330_10m.tif").rename(folder / "20160130_20m.tif")
    (folder / "away.tif").rename(folder / "20160330_10m.tif")
    assert "must have the same shape" in message(tmp_path)
    (folder / "20160330_10m.tif").write_bytes(b"II*\x00 nothing")
    assert "unreadable raster" in message(tmp_path)
    (folder / "20161399_10m.tif").touch()
    assert "not a date in a file's name" in message(tmp_path)


def test_options() -> None:
    with pytest.raises(UsageError):
        TumOptions(year=1999)
    with pytest.raises(UsageError):
        TumOptions(images_per_tile=0)


def test_large_images_make_small_tiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cropstar.sources.tum import images as module

    write_collection(tmp_path / "240")
    monkeypatch.setattr(module, "TILE_BYTES", 2 * 3 * 13 * 12 * 12 * 2)
    (scene,) = open_tum(tmp_path)
    assert [piece.window.height for piece in scene.tile_specs()] == [2, 2]


def test_a_file_that_changes_under_way(root: Path) -> None:
    (scene,) = open_tum(root)
    write_tile(root / "data16" / "5.tfrecord.gz", some_arrays(side=24))
    with pytest.raises(InputError, match="it changed since it was first read"):
        scene.build(scene.tile_specs()[0])
