"""Series of small products: bands, windows, masks, and reflectance that is the same for every baseline."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import numpy as np
import pytest

from cropstar.geo.windows import Window, split
from cropstar.sources.base import Series
from cropstar.sources.sentinel2 import Sentinel2Options, open_series
from cropstar.sources.sentinel2.options import DEFAULT_BANDS
from tests.sources.examples.safe import FEW, HEIGHT, WIDTH, some_pixels, write_product
from tests.sources.sentinel2.reading import WHOLE, constant, read, refusal, spread


def test_it_is_a_series(tmp_path: Path) -> None:
    write_product(tmp_path, day="2023-06-10", bands=(*DEFAULT_BANDS, "SCL"))
    write_product(tmp_path, day="2023-05-01", bands=("B01", *DEFAULT_BANDS, "SCL"))
    found, observations = read(tmp_path)
    series: Series = found
    assert (series.name, series.dates) == ("T32UPU-2023", (date(2023, 5, 1), date(2023, 6, 10)))
    assert series.bands == DEFAULT_BANDS
    assert (series.grid.shape, series.grid.resolution) == ((HEIGHT, WIDTH), 10)
    assert (series.scale, series.offset) == (1e-4, 0.0)
    assert observations.values.shape == (2, 10, HEIGHT, WIDTH)
    assert observations.values.dtype == np.uint16
    assert observations.valid.all()
    assert found.notes == []
    assert series.provenance["source"] == "sentinel2"
    assert series.provenance["baselines"] == ["02.08", "02.08"]
    assert series.provenance["resampling"] == "bilinear"
    assert series.provenance["scene_classes"] == [2, 4, 5, 6, 7]
    assert found.files == sorted(path for path in tmp_path.rglob("*") if path.is_file() and "_B01_" not in path.name)


def test_bands_of_10_20_and_60_metres_by_name(tmp_path: Path) -> None:
    write_product(tmp_path, bands=("B01", "B02", "B05", "SCL"))
    series, observations = read(tmp_path, Sentinel2Options(("b5", "B1", "B02"), "nearest"))
    assert series.bands == ("B05", "B01", "B02")
    wanted = [spread(some_pixels("B05")), spread(some_pixels("B01"), 6), some_pixels("B02")]
    assert np.array_equal(observations.values[0], wanted)


def test_coarse_bands_alone_make_a_coarse_grid(tmp_path: Path) -> None:
    write_product(tmp_path)
    (series,) = open_series(tmp_path, Sentinel2Options(("B05",)))
    assert (series.grid.resolution, series.grid.shape) == (20, (13, 10))
    assert np.array_equal(series.read(Window(0, 0, 13, 10)).values[0, 0], some_pixels("B05"))
    series.close()


def test_bilinear_between_the_centres(tmp_path: Path) -> None:
    pixels = some_pixels("B05")
    pixels[:2, :2] = [[100, 200], [300, 500]]
    write_product(tmp_path, pixels={"B05": pixels})
    values = read(tmp_path)[1].values[0, 1]
    assert values[0, 0] == 100
    assert values[1, 1] == round((9 * 100 + 3 * 200 + 3 * 300 + 500) / 16)
    assert values[0, 1] == 125


@pytest.mark.parametrize("resampling", ["nearest", "bilinear", "cubic"])
def test_windows_put_together_are_the_whole(tmp_path: Path, resampling: str) -> None:
    holes = some_pixels("B05") * (np.random.default_rng(1).random((13, 10)) > 0.2)
    write_product(
        tmp_path, bands=("B01", *FEW), pixels={"B05": holes.astype(np.uint16)}, baseline="05.00", offset=-1000
    )
    (series,) = open_series(tmp_path, Sentinel2Options(("B01", "B02", "B05"), resampling))
    whole = series.read(WHOLE)
    assert 0.5 < whole.valid.mean() < 1
    for size in (1, 3, 7):
        for window in split((HEIGHT, WIDTH), size):
            part, (rows, columns) = series.read(window), window.slices
            assert np.array_equal(part.values, whole.values[:, :, rows, columns])
            assert np.array_equal(part.valid, whole.valid[:, rows, columns])
    series.close()


def test_scene_classes_by_option(tmp_path: Path) -> None:
    classes = (np.arange(130) % 12).astype(np.uint8).reshape(13, 10)
    write_product(tmp_path, pixels={"SCL": classes})
    usual, chosen = read(tmp_path)[1], read(tmp_path, Sentinel2Options(clear=(11, 4)))[1]
    assert np.array_equal(usual.valid[0], np.isin(spread(classes), [2, 4, 5, 6, 7]))
    assert np.array_equal(chosen.valid[0], np.isin(spread(classes), [4, 11]))
    assert (usual.values[:, :, ~usual.valid[0]] == 0).all()


def test_nodata_of_any_band_is_invalid_and_does_not_darken_its_neighbours(tmp_path: Path) -> None:
    fine, coarse = constant("B02", 500), constant("B05", 800)
    fine[3, 4] = 0
    coarse[6, 5] = 0
    write_product(tmp_path, pixels={"B02": fine, "B05": coarse})
    for resampling in ("nearest", "bilinear", "cubic"):
        observations = read(tmp_path, Sentinel2Options(resampling=resampling))[1]
        invalid = np.argwhere(~observations.valid[0]).tolist()
        assert invalid == [[3, 4], [12, 10], [12, 11], [13, 10], [13, 11]]
        assert set(np.unique(observations.values[0, 0])) == {0, 500}
        assert set(np.unique(observations.values[0, 1])) == {0, 800}


def test_without_scene_classification_it_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_product(tmp_path, bands=("B02",))
    series, observations = read(tmp_path)
    assert observations.valid.all()
    assert "clouds are not masked" in " ".join(series.notes)
    assert "clouds are not masked" in caplog.text
    assert "no date has B03" in caplog.text


# --- reflectance


def test_the_offset_of_newer_baselines(tmp_path: Path) -> None:
    numbers = constant("B02", 3000)
    numbers[0, :5] = [0, 1, 1000, 1001, 65_535]
    write_product(tmp_path, baseline="04.00", offset=-1000, pixels={"B02": numbers})
    series, observations = read(tmp_path)
    assert observations.values[0, 0, 0, :6].tolist() == [0, 1, 1, 1, 64_535, 2000]
    assert observations.valid[0, 0, :6].tolist() == [False, True, True, True, True, True]
    assert series.provenance["reflectance_offsets"] == [[-1000.0, -1000.0]]


@pytest.mark.parametrize("resampling", ["nearest", "bilinear"])
def test_mixed_baselines_give_equal_reflectance(tmp_path: Path, resampling: str) -> None:
    ground = {"B02": some_pixels("B02"), "B05": some_pixels("B05")}
    write_product(tmp_path, day="2023-05-01", baseline="03.01", pixels=ground)
    lifted = {band: pixels + np.uint16(1000) for band, pixels in ground.items()}
    write_product(tmp_path, day="2023-05-11", baseline="05.09", offset=-1000, pixels=lifted)
    odd = {band: pixels + np.uint16(777) for band, pixels in ground.items()}
    write_product(tmp_path, day="2023-05-21", baseline="05.10", offset=-777, pixels=odd)
    doubled = {band: 2 * pixels for band, pixels in ground.items()}
    write_product(tmp_path, day="2023-05-31", baseline="03.01", quantification="20000", pixels=doubled)
    series, observations = read(tmp_path, Sentinel2Options(resampling=resampling))
    first, *others = observations.values
    assert np.array_equal(first[0], ground["B02"])
    for other in others:
        assert np.array_equal(other, first)
    assert series.provenance["quantification"] == [10_000, 10_000, 10_000, 20_000]


def test_the_offset_is_the_metadatas_not_the_dates_nor_the_baselines(tmp_path: Path) -> None:
    write_product(tmp_path, day="2025-05-01", baseline="05.11", pixels={"B02": constant("B02", 3000)})
    write_product(tmp_path, day="2016-05-01", baseline="02.01", offset=-1000, pixels={"B02": constant("B02", 3000)})
    series, observations = read(tmp_path)
    assert observations.values[:, 0, 0, 0].tolist() == [2000, 3000]
    assert "no BOA_ADD_OFFSET is listed" in " ".join(series.notes)
    assert series.name == "T32UPU-2016-2025"


def test_a_list_of_offsets_without_the_band_is_refused(tmp_path: Path) -> None:
    safe = write_product(tmp_path, baseline="04.00", offset=-1000)
    xml = safe / "MTD_MSIL2A.xml"
    xml.write_text(xml.read_text().replace('<BOA_ADD_OFFSET band_id="4">-1000</BOA_ADD_OFFSET>', ""))
    line = refusal(safe)
    assert "and not for B05" in line
    assert str(xml) in line
