"""Areas from maps and tables, and what is refused with one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio

from cropstar.errors import CropstarError, InputError, MismatchError
from cropstar.training.areas import read_mapped
from tests.examples import a_grid

NAMES = ["maize", "wheat", "rye"]


def a_map(path: Path, values: Any, names: dict[int, str] | None = None, **changes: Any) -> Path:
    grid = a_grid(*values.shape)
    profile = {"crs": grid.rasterio_crs, "transform": grid.affine, "nodata": 255, "dtype": values.dtype, **changes}
    with rasterio.open(path, "w", driver="GTiff", count=1, height=grid.height, width=grid.width, **profile) as dataset:
        dataset.write(values, 1)
        dataset.update_tags(1, **{f"CLASS_{value}": name for value, name in (names or {}).items()})
        dataset.update_tags(CROPSTAR_MODEL="digest")
    return path


def test_pixels_of_a_map_by_name(tmp_path: Path) -> None:
    values = np.full((1100, 30), 255, dtype=np.uint8)  # more rows than are read at once
    values[:7, 0], values[1090:, 1] = 1, 0
    found = read_mapped(a_map(tmp_path / "map.tif", values, {0: "wheat", 1: "maize", 2: "hemp"}), NAMES)
    assert found.hectares == pytest.approx((0.07, 0.10, 0.0))  # pixels of 10 m
    assert found.model == "digest"


def test_a_table(tmp_path: Path) -> None:
    table = tmp_path / "areas.csv"
    table.write_bytes(b"\xef\xbb\xbfclass,note,hectares\r\nwheat,a,12.5\r\n rye ,b,0\r\n")
    assert read_mapped(table, NAMES).hectares == (0.0, 12.5, 0.0)
    assert read_mapped(table, NAMES).model is None


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("class,hectares\nhemp,3\n", MismatchError, "does not know the classes [hemp]"),
        ("class,hectares\nrye,3\nrye,4\n", InputError, "'rye' stands twice"),
        ("class,hectares\nrye,many\n", InputError, "'many' in line 2 is no area"),
        ("class,hectares\nrye,-1\n", InputError, "'-1' in line 2"),
        ("class,hectares\nrye,nan\n", InputError, "'nan' in line 2"),
        ("class,hectares\nrye\n", InputError, "'' in line 2"),
        ("crop,ha\nrye,1\n", InputError, "its columns are crop, ha"),
        ("class,hectares\n", InputError, "no rows"),
        ("", InputError, "no rows"),
        ("class,hectares\nr\udce4,1\n", InputError, "cannot be read"),
        ("x" * 1_100_000, InputError, "too large"),
    ],
)
def test_tables_that_are_refused(text: str, kind: type[CropstarError], words: str, tmp_path: Path) -> None:
    table = tmp_path / "areas.csv"
    table.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(kind) as caught:
        read_mapped(table, NAMES)
    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_maps_that_are_refused(tmp_path: Path) -> None:
    values = np.ones((4, 5), dtype=np.uint8)
    cases = {
        "no class names": a_map(tmp_path / "nameless.tif", values),
        "have no name": a_map(tmp_path / "unnamed.tif", values, {0: "rye"}),
        "no metres": a_map(tmp_path / "degrees.tif", values, {1: "rye"}, crs="EPSG:4326"),
        "not know the classes [hemp]": a_map(tmp_path / "hemp.tif", values, {1: "hemp"}),
        "as a map of cropstar has": a_map(tmp_path / "wide.tif", values.astype(np.uint16), {1: "rye"}, nodata=None),
        "neither .tif nor .csv": Path(__file__),
        "no such file": tmp_path / "none.tif",
    }
    (tmp_path / "text.tif").write_text("no raster")
    cases["not a GeoTIFF"] = tmp_path / "text.tif"
    for words, path in cases.items():
        with pytest.raises((InputError, MismatchError)) as caught:
            read_mapped(path, NAMES)
        assert words in str(caught.value)


def test_a_map_cut_short(tmp_path: Path) -> None:
    whole = a_map(tmp_path / "map.tif", np.ones((900, 900), dtype=np.uint8), {1: "rye"}).read_bytes()
    (tmp_path / "cut.tif").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError):
        read_mapped(tmp_path / "cut.tif", NAMES)
