"""Tiles and companions that are bad: one line each."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cropstar.errors import CropstarError, InputError, UsageError
from cropstar.sources.tum import TumOptions, open_tum
from tests.sources.examples.tum_tiles import (
    an_example,
    features_of,
    framed,
    some_arrays,
    write_collection,
    write_rasters,
    write_tile,
)


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
    assert "nothing of TUM's data" in message(tmp_path / "empty")
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
    assert "a damaged record" in text
    assert "5.tfrecord.gz: the checksum of record 1 does not match" in text
    path.write_bytes(path.read_bytes()[:-2000])
    assert "damaged gzip" in message(root)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda features: features.pop("x20/data"), "'x20/data' is missing"),
        (lambda features: features.pop("dates/doy"), "'dates/doy' is missing"),
        (lambda features: features.update({"x10/shape": (4, 12, 12)}), "x10/shape is (4, 12, 12)"),
        (lambda features: features.update({"x10/shape": (4, 12, 12, -4)}), "not the shape of an array"),
        (lambda features: features.update({"x10/shape": (4, 12, 12, 5)}), "wrong number of bands"),
        (lambda features: features.update({"x10/shape": (2**40, 12, 12, 4)}), "shapes that do not fit"),
        (lambda features: features.update({"x10/data": bytes(8)}), "x10/data has 8 bytes, its shape"),
        (lambda features: features.update({"x20/shape": (4, 13, 6, 6)}), "shapes that do not fit"),
        (lambda features: features.update({"labels/shape": (4, 6, 24)}), "labels have the shape (4, 6, 24)"),
        (lambda features: features.update({"dates/shape": (2**61,)}), "wants 18446744073709551616"),
        (lambda features: features.update({"x10/data": (1, 2)}), "x10/data has no bytes"),
        (lambda features: features.update({"dates/doy": np.array([1, 400, 3, 4]).tobytes()}), "there is 400"),
    ],
)
def test_records_that_do_not_fit(root: Path, change: Callable[[dict[str, Any]], Any], expected: str) -> None:
    write_features(root, change)
    text = message(root)
    assert expected in text
    assert "5.tfrecord.gz" in text


def test_not_an_example(root: Path) -> None:
    (root / "data16" / "5.tfrecord.gz").write_bytes(gzip.compress(framed(b"\x0a\xff\xff\xff\xff\x0f")))
    assert "not an Example in the record" in message(root)


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
    assert "not a reflectance" in message(root)
    write_tile(root / "data16" / "7.tfrecord.gz", some_arrays(side=24))
    assert "a tile of another size" in message(root)
    write_tile(root / "data16" / "7.tfrecord", some_arrays())
    assert "the tile 7 stands twice" in message(root)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("classes.txt", "0|unknown\n", "unusable classes"),
        ("classes.txt", "1|a\n2|a\n", "'a' stands twice"),
        ("classes.txt", "x|a\n", "line 1 is not id|name"),
        ("classes.txt", "1|a\n1|b\n", "the class id 1 stands twice"),
        ("geotransforms.csv", "5,1,10,0,1,0,-10,32632\n", "no geotransform of the tile 7"),
        ("geotransforms.csv", "5,1,10,0\n", "line 1 is not tile"),
        ("geotransforms.csv", f"{'9' * 5000},1,10,0,1,0,-10,32632\n", "line 1 is not tile"),
        ("geotransforms.csv", "5,nan,10,0,1,0,-10,32632\n", "not pixels of 10 m"),
        ("geotransforms.csv", "5,1,10,0,1,0,-10,1e30\n7,1,10,0,1,0,-10,1e30\n", "unknown coordinate system"),
        ("tileids/eval.tileids", f"{'9' * 5000}\n", "not a tile id"),
        ("classes.txt", f"{'9' * 5000}|a\n", "line 1 is not id|name"),
        ("geotransforms.csv", "5,1,20,0,1,0,-20,32632\n", "not pixels of 10 m"),
        ("geotransforms.csv", "5,1,10,0,1,0,-10,32632\n7,1,10,0,1,0,-10,32633\n", "several coordinate systems"),
        ("geotransforms.csv", "5,1,10,0,1,0,-10,1\n7,1,10,0,1,0,-10,1\n", "unknown coordinate system"),
        ("tileids/train_fold0.tileids", "5\nseven\n", "not a tile id"),
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
    assert "rasters of different sizes" in message(tmp_path)
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
    from cropstar.sources.tum import scene as module

    write_collection(tmp_path / "240")
    monkeypatch.setattr(module, "TILE_BYTES", 2 * 3 * 13 * 12 * 12 * 2)
    (scene,) = open_tum(tmp_path)
    assert [piece.window.height for piece in scene.tile_specs()] == [2, 2]


def test_a_file_that_changes_under_way(root: Path) -> None:
    (scene,) = open_tum(root)
    write_tile(root / "data16" / "5.tfrecord.gz", some_arrays(side=24))
    with pytest.raises(InputError, match="a tile has changed"):
        scene.build(scene.tile_specs()[0])
