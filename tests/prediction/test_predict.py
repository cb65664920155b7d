"""Maps: exact whatever the window, nodata where nothing was seen, refused where the model does not fit."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import rasterio
import torch
from rasterio.transform import Affine

from cropstar.config import resolve_config
from cropstar.errors import InputError, MismatchError, UsageError
from cropstar.geo.windows import Window, split
from cropstar.prediction.job import predict
from cropstar.prediction.predictor import Predictor
from cropstar.prediction.request import MapInput, MapRequest, find_outputs
from cropstar.sources.base import Series
from cropstar.sources.stack import StackSeries
from cropstar.training.train import TrainOptions, train

CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=["convstar", "star"])
def model(request: pytest.FixtureRequest, small_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = {"store": small_store, "model.name": request.param, "model.layers": 2, "model.hidden": 5, "epochs": 1}
    config = resolve_config(None, {**options, "batch": 8, "split.validation": 0.3, "split.test": 0.3})
    run, _ = train(config, TrainOptions(tmp_path_factory.mktemp("runs"), CPU))
    return run.model


def change(source: Path, target: Path, **profile_changes: object) -> Path:
    """A copy of a stack with another profile; its bands keep their descriptions and tags."""
    keep = profile_changes.pop("bands", None)
    with rasterio.open(source) as old:
        indexes = [i for i in old.indexes if keep is None or old.tags(i)["BAND"] in keep]  # type: ignore[operator]
        with rasterio.open(target, "w", **{**old.profile, "count": len(indexes), **profile_changes}) as new:
            for position, index in enumerate(indexes, 1):
                new.write(old.read(index), position)
                new.set_band_description(position, old.descriptions[index - 1])
                new.update_tags(position, **old.tags(index))
            new.scales = [old.scales[i - 1] for i in indexes]
    return target


@pytest.mark.parametrize("size", [17, 32, 50])
def test_windows_give_the_map_of_one_pass(model: Path, small_scene: Path, size: int) -> None:
    predictor = Predictor(model, CPU)
    series = StackSeries(small_scene / "tile.tif")
    height, width = series.grid.shape
    whole, seen = predictor.probabilities(series, Window(0, 0, height, width))
    for window in split((height, width), size):
        part, part_seen = predictor.probabilities(series, window)
        rows, columns = window.slices
        np.testing.assert_allclose(part, whole[:, rows, columns], rtol=0, atol=1e-5)
        np.testing.assert_array_equal(part_seen, seen[rows, columns])
    series.close()


def test_a_margin_too_small_would_leave_seams(model: Path, small_scene: Path) -> None:
    """The test above can fail: without the margin the probabilities at a window's edge differ."""

    class Marginless(Predictor):
        def halo(self, series: Series) -> int:
            return 0

    predictor = Marginless(model, CPU)
    series = StackSeries(small_scene / "tile.tif")
    whole, _ = predictor.probabilities(series, Window(0, 0, *series.grid.shape))  # needs no margin
    part, _ = predictor.probabilities(series, Window(20, 20, 30, 30))
    series.close()
    difference = np.abs(part - whole[:, 20:50, 20:50]).max()
    assert difference > 1e-4 if predictor.model.spatial else difference < 1e-6


def test_the_map_is_what_a_gis_expects(model: Path, small_scene: Path, tmp_path: Path) -> None:
    result = predict(small_scene / "tile.tif", tmp_path / "map.tif", MapRequest(model=model, device="cpu", window=40))
    classes = Predictor(model, CPU).card.fingerprint.classes
    with rasterio.open(result.raster) as dataset, rasterio.open(small_scene / "tile.tif") as source:
        assert dataset.dtypes == ("uint8",)
        assert dataset.nodata == 255
        assert (dataset.crs, dataset.transform, dataset.shape) == (source.crs, source.transform, source.shape)
        colours = dataset.colormap(1)
        assert all(colours[entry.number][:3] == entry.rgb for entry in classes)
        assert [dataset.tags(1)[f"CLASS_{entry.number}"] for entry in classes] == classes.names
        assert "B08" in dataset.tags()["CROPSTAR_FINGERPRINT"]
        values = dataset.read(1)
    assert set(np.unique(values)) <= {*range(len(classes)), 255}
    assert result.picture.read_bytes().startswith(b"\x89PNG")
    np.testing.assert_array_equal(result.pixels, np.bincount(values[values != 255], minlength=len(classes)))
    assert not list(tmp_path.glob(".*"))


def test_a_pixel_never_seen_is_nodata(model: Path, small_scene: Path, tmp_path: Path) -> None:
    tile = tmp_path / "tile.tif"
    shutil.copy(small_scene / "tile.tif", tile)
    with rasterio.open(tile, "r+") as dataset:
        pixels = dataset.read()
        pixels[:, 10:30, 40:60] = 0  # nodata on every date, also in the scene classification
        dataset.write(pixels)
    result = predict(tile, tmp_path / "map.tif", MapRequest(model=model, device="cpu"))
    with rasterio.open(result.raster) as dataset:
        values = dataset.read(1)
    assert (values[10:30, 40:60] == 255).all()
    assert result.unseen == (values == 255).sum()
    assert (values != 255).any()


def test_bands_are_found_by_name(model: Path, small_scene: Path, tmp_path: Path) -> None:
    """A file with its bands in another order gives the same map."""
    shuffled = tmp_path / "shuffled.tif"
    with rasterio.open(small_scene / "tile.tif") as old:
        order = list(old.indexes)[::-1]
        with rasterio.open(shuffled, "w", **old.profile) as new:
            for position, index in enumerate(order, 1):
                new.write(old.read(index), position)
                new.set_band_description(position, old.descriptions[index - 1])
            new.scales = [old.scales[index - 1] for index in order]
    first = predict(small_scene / "tile.tif", tmp_path / "a.tif", MapRequest(model=model, device="cpu"))
    second = predict(shuffled, tmp_path / "b.tif", MapRequest(model=model, device="cpu"))
    with rasterio.open(first.raster) as one, rasterio.open(second.raster) as two:
        np.testing.assert_array_equal(one.read(1), two.read(1))


def test_a_model_of_other_bands_is_refused_before_anything_is_written(
    model: Path, small_scene: Path, tmp_path: Path
) -> None:
    fewer = change(small_scene / "tile.tif", tmp_path / "fewer.tif", bands=("B02", "B03", "B04", "SCL"))
    with pytest.raises(MismatchError, match=r"bands \[.*B08.*\] are missing"):
        predict(fewer, tmp_path / "map.tif", MapRequest(model=model, device="cpu"))
    assert not (tmp_path / "map.tif").exists()


def test_pixels_of_another_size_are_refused(model: Path, small_scene: Path, tmp_path: Path) -> None:
    with rasterio.open(small_scene / "tile.tif") as old:
        coarser = Affine(20, 0, old.transform.c, 0, -20, old.transform.f)
    coarse = change(small_scene / "tile.tif", tmp_path / "coarse.tif", transform=coarser)
    with pytest.raises(MismatchError, match="pixels of 20 m"):
        predict(coarse, tmp_path / "map.tif", MapRequest(model=model, device="cpu"))


def test_nothing_is_overwritten_unless_asked(model: Path, small_scene: Path, tmp_path: Path) -> None:
    output = tmp_path / "map.tif"
    output.write_text("precious")
    with pytest.raises(UsageError, match="--overwrite"):
        predict(small_scene / "tile.tif", output, MapRequest(model=model, device="cpu"))
    assert output.read_text() == "precious"
    predict(small_scene / "tile.tif", output, MapRequest(model=model, device="cpu", overwrite=True))
    with rasterio.open(output) as dataset:
        assert dataset.count == 1


def test_the_input_is_never_the_output(model: Path, small_scene: Path, tmp_path: Path) -> None:
    tile = tmp_path / "tile.tif"
    shutil.copy(small_scene / "tile.tif", tile)
    before = tile.read_bytes()
    with pytest.raises(UsageError, match="the output is the input"):
        predict(tile, tile, MapRequest(model=model, device="cpu", overwrite=True))
    assert tile.read_bytes() == before


@pytest.mark.parametrize("kind", ["model", "mask", "next input"])
def test_no_file_that_is_read_is_written(kind: str, model: Path, small_scene: Path, tmp_path: Path) -> None:
    """Not by another of its names either, and not as the state, a picture or the map of another input."""
    tile, taken = Path(shutil.copy(small_scene / "tile.tif", tmp_path)), tmp_path / "tile-crops.tif"
    os.link(shutil.copy(model if kind == "model" else tile, tmp_path / "other"), taken)
    before = taken.read_bytes()
    if kind == "next input":
        with pytest.raises(UsageError, match="the output is the input"):
            find_outputs([MapInput(tile), MapInput(tmp_path / "other")], None)
    else:
        request = MapRequest(model=model, device="cpu", overwrite=True).replace(**{kind: tmp_path / "other"})
        for output, state in ((taken, None), (tmp_path / "map.tif", taken)):
            with pytest.raises(UsageError, match="the output is the input"):
                predict(tile, output, request.replace(state=state))
    assert taken.read_bytes() == before


def test_names_that_differ_in_capitals_are_one_name(tmp_path: Path) -> None:
    for name in ("a", "A"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.tif").touch()
    with pytest.raises(UsageError, match="two maps of one name"):
        find_outputs([MapInput(tmp_path / name / f"{name}.tif") for name in ("a", "A")], tmp_path)


def test_gdal_finds_the_names_of_the_classes(model: Path, small_scene: Path, tmp_path: Path) -> None:
    result = predict(small_scene / "tile.tif", tmp_path / "map.tif", MapRequest(model=model, device="cpu"))
    names = ElementTree.parse(f"{result.raster}.aux.xml").findall("PAMRasterBand/CategoryNames/Category")
    assert [name.text for name in names] == Predictor(model, CPU).card.fingerprint.classes.names


def test_a_truncated_raster_loses_nothing(model: Path, small_scene: Path, tmp_path: Path) -> None:
    tile = tmp_path / "tile.tif"
    whole = (small_scene / "tile.tif").read_bytes()
    tile.write_bytes(whole[: len(whole) // 2])
    output = tmp_path / "map.tif"
    output.write_text("the old map")
    with pytest.raises(InputError):
        predict(tile, output, MapRequest(model=model, device="cpu", overwrite=True))
    assert output.read_text() == "the old map"
    assert not list(tmp_path.glob(".*"))
