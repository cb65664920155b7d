"""Products of one day merged, days without data dropped, tiles told apart."""

from __future__ import annotations

import shutil
from datetime import date
from pathlib import Path

import pytest

from cropstar.sources.sentinel2 import open_series
from tests.sources.examples.safe import WIDTH, Pixels, band_file, write_product
from tests.sources.sentinel2.reading import WHOLE, constant, read, refusal


def halves(left: int, right: int) -> dict[str, Pixels]:
    """Numbers of two sides of the scene; zero is nodata."""
    pixels = {band: constant(band, left) for band in ("B02", "B05")}
    pixels["B02"][:, WIDTH // 2 :] = right
    pixels["B05"][:, WIDTH // 4 :] = right
    classes = constant("SCL", 4 if left else 0)
    classes[:, WIDTH // 4 :] = 4 if right else 0
    return {**pixels, "SCL": classes}


def test_split_granules_are_merged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    write_product(tmp_path, made="140000", pixels=halves(1000, 0))
    write_product(tmp_path, made="140100", pixels=halves(0, 2000))
    series, observations = read(tmp_path)
    assert len(series.dates) == 1
    assert observations.valid.all()
    assert (observations.values[0, :, :, : WIDTH // 2] == 1000).all()
    assert (observations.values[0, :, :, WIDTH // 2 :] == 2000).all()
    assert "2023-05-01: 2 products merged" in caplog.text
    assert len(series.provenance["products"]) == 2


def test_the_newest_product_comes_first_where_it_is_valid(tmp_path: Path) -> None:
    cloudy = halves(3000, 3000)
    cloudy["SCL"][:, : WIDTH // 4] = 9
    write_product(tmp_path, baseline="05.09", made="100000", offset=-1000, pixels=cloudy)
    write_product(tmp_path, baseline="02.08", made="150000", pixels=halves(700, 700))
    write_product(tmp_path, baseline="02.08", made="160000", pixels=halves(0, 900))
    values = read(tmp_path)[1].values[0]
    assert (values[:, :, : WIDTH // 2] == 700).all()
    assert (values[:, :, WIDTH // 2 :] == 2000).all()
    shutil.rmtree(next(tmp_path.glob("*_N0509_*")))
    values = read(tmp_path)[1].values[0]
    assert (values[:, :, : WIDTH // 2] == 700).all()
    assert (values[:, :, WIDTH // 2 :] == 900).all()


def test_one_product_found_twice_counts_once(tmp_path: Path) -> None:
    safe = write_product(tmp_path / "a")
    shutil.copytree(safe, tmp_path / "b" / safe.name)
    series = read(tmp_path)[0]
    assert len(series.provenance["products"]) == 1
    assert "is there twice" in " ".join(series.notes)


def test_dates_without_data_are_dropped_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_product(tmp_path, day="2023-05-01")
    write_product(tmp_path, day="2023-05-11", pixels=halves(0, 0))
    write_product(tmp_path, day="2023-05-21", pixels={"B02": constant("B02", 0)})
    write_product(tmp_path, day="2023-05-01", made="235959", pixels=halves(0, 0))
    series, observations = read(tmp_path)
    assert series.dates == (date(2023, 5, 1),)
    assert observations.valid.all()
    assert "2 of 3 dates left out, without any data: 2023-05-11, 2023-05-21" in caplog.text
    assert "T235959 left out" in caplog.text
    assert len(series.provenance["without_data"]) == 3
    shutil.rmtree(next(tmp_path.glob("*T140000.SAFE")))
    assert "no usable date" in refusal(tmp_path / next(tmp_path.glob("*20230511*")).name)


def test_tiles_are_series_of_their_own(tmp_path: Path) -> None:
    write_product(tmp_path, tile="T33UUP", epsg=32633)
    write_product(tmp_path, tile="T32UPU")
    write_product(tmp_path, tile="T32UPU", day="2023-06-01")
    opened = open_series(tmp_path)
    assert [(series.name, len(series.dates)) for series in opened] == [("T32UPU-2023", 2), ("T33UUP-2023", 1)]
    for series in opened:
        series.close()


def test_tifs_are_read_too_and_a_cloudy_window_asks_for_no_bands(tmp_path: Path) -> None:
    safe = write_product(tmp_path, ending="tif", pixels={"SCL": constant("SCL", 9)})
    (series,) = open_series(safe)
    path = band_file(safe, "B05", "tif")
    path.write_bytes(b"")
    series.close()
    assert not series.read(WHOLE).valid.any()  # the emptied file was not looked at
    series.close()
