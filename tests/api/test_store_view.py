"""A store as xarray and as torch samples: the values of its tiles."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import rasterio
import torch
from torch.utils.data import DataLoader

import cropstar
from tests.examples import a_patch_tile, a_series_tile, store_of


def test_xarray_has_the_values_of_the_raster(small_scene: Path, small_store: Path) -> None:
    with cropstar.open_store(small_store) as store:
        scene = next(iter(store.scenes.values()))
        found = scene.to_xarray()
        part = scene.to_xarray(rows=slice(40, 60), columns=slice(-10, None))
    with rasterio.open(small_scene / "tile.tif") as dataset:
        index = list(dataset.descriptions).index("2023-06-23 B08")
        expected = dataset.read(index + 1) * 1e-4
        x, y = dataset.xy(0, 0)
    image = found.reflectance.sel(time="2023-06-23", band="B08").squeeze()
    seen = np.isfinite(image.values)
    assert seen.any()
    assert not seen.all()  # clouds
    assert image.values[seen] == pytest.approx(expected[seen], abs=1e-6)
    assert (float(found.x[0]), float(found.y[0])) == (x, y)
    assert found.attrs["crs"] == "EPSG:32632"
    assert found.spatial_ref.attrs["crs_wkt"].startswith("PROJCS")
    assert part.equals(found.isel(y=slice(40, 60), x=slice(86, 96)))
    labelled = found.labels.values >= 0
    assert (labelled == (found.parcels.values > 0)).all()
    assert found.labels.attrs["flag_meanings"].split()[1] == "maize"


def test_odc_geo_finds_the_grid(small_store: Path) -> None:
    odc = pytest.importorskip("odc.geo.xr")
    scene = next(iter(cropstar.open_store(small_store).scenes.values()))
    box = odc.ODCExtensionDs(scene.to_xarray()).geobox
    assert box.crs.epsg == 32632
    assert tuple(box.affine)[:6] == scene.grid.transform


def test_wrong_rows(small_store: Path) -> None:
    scene = next(iter(cropstar.open_store(small_store).scenes.values()))
    with pytest.raises(cropstar.UsageError, match="no such rows or columns"):
        scene.to_xarray(rows=slice(200, 300))


def test_parts_are_those_of_training(small_store: Path, trained: cropstar.TrainingResult) -> None:
    store = cropstar.open_store(small_store)
    parts = {part: store.as_torch(part, unit="parcel") for part in ("training", "validation", "test")}
    counts = {part: len(samples) for part, samples in parts.items()}
    assert sum(counts.values()) == len(store.as_torch(unit="parcel")) == 36
    assert counts["test"] == cropstar.evaluate(trained, device="cpu").parcels
    own = {part: len(store.as_torch(part, unit="parcel", run=trained)) for part in ("training", "validation", "test")}
    assert own["test"] == counts["test"]
    assert sum(own.values()) == 36


def test_units_agree(small_store: Path) -> None:
    """A pixel of an image is the pixel, and a parcel's mean is that of its pixels."""
    store = cropstar.open_store(small_store)
    images, pixels, parcels = (store.as_torch("test", unit=unit) for unit in ("image", "pixel", "parcel"))
    labelled = [sample["labels"] >= 0 for sample in (images[i] for i in range(len(images)))]
    assert sum(int(mask.sum()) for mask in labelled) == len(pixels)
    image, pixel = images[0], pixels[0]
    row, column = (int(place[0]) for place in torch.nonzero(labelled[0], as_tuple=True))
    assert torch.equal(pixel["x"][pixel["valid"]], image["x"][:, :, row, column][pixel["valid"]])
    assert torch.equal(pixel["valid"], image["valid"][:, row, column])
    assert pixel["labels"] == image["labels"][row, column]
    assert {int(sample["labels"]) for sample in pixels} == {int(sample["labels"]) for sample in parcels}
    assert pixels[-1]["x"].shape == (6, 8)
    with pytest.raises(IndexError):
        pixels[len(pixels)]


def test_workers_of_a_loader(small_store: Path) -> None:
    samples = cropstar.open_store(small_store).as_torch(unit="image")
    alone = [sample["x"] for sample in samples]
    copy = pickle.loads(pickle.dumps(samples))
    assert torch.equal(copy[1]["x"], alone[1])
    loaded = [batch["x"][0] for batch in DataLoader(samples, batch_size=1, num_workers=1)]
    assert all(torch.equal(one, other) for one, other in zip(alone, loaded, strict=True))


def test_series_of_different_length_stack(tmp_path: Path) -> None:
    folder = store_of(tmp_path, {"t": a_series_tile([3, 5, 2, 4])})
    store = cropstar.open_store(folder)
    samples = store.as_torch()
    assert samples.classes == store.classes == ("maize", "wheat")
    batch = next(iter(DataLoader(samples, batch_size=4)))
    assert batch["x"].shape == (4, 5, 2)
    assert not batch["valid"][0, 3:].any()
    with pytest.raises(cropstar.UsageError, match="no images"):
        store.as_torch(unit="image")
    with pytest.raises(cropstar.UsageError, match="has no grid"):
        store.scenes["table"].to_xarray()


def test_small_images(tmp_path: Path) -> None:
    store = cropstar.open_store(store_of(tmp_path, {"p": a_patch_tile([2, 3])}))
    samples = store.as_torch(patch=6)
    assert len(samples) == 2
    assert samples[0]["x"].shape == (3, 2, 6, 6)
    with pytest.raises(cropstar.UsageError, match="small images"):
        store.scenes["patches"].to_xarray()


@pytest.mark.parametrize(("given", "why"), [({"part": "tests"}, "no part"), ({"unit": "field"}, "no unit")])
def test_unknown_words(small_store: Path, given: dict[str, str], why: str) -> None:
    with pytest.raises(cropstar.UsageError, match=why):
        cropstar.open_store(small_store).as_torch(**given)  # type: ignore[arg-type]
