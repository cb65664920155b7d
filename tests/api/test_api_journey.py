"""A season in a notebook, through the API alone: ingest, train, evaluate, predict, inspect, update."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import numpy as np
import pytest
import rasterio
from torch.utils.data import DataLoader

import cropstar
from tests.api.conftest import PLAIN


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def dates_apart(scene: Path, folder: Path) -> tuple[Path, Path]:
    """The season up to its last date but one, and the last one, as two files."""
    with rasterio.open(scene) as dataset:
        names = dataset.descriptions
        days = sorted({name.split()[0] for name in names})
        parts = []
        for file, some in (("season.tif", days[:-1]), ("new.tif", days[-1:])):
            bands = [index for index, name in enumerate(names, start=1) if name.split()[0] in some]
            with rasterio.open(folder / file, "w", **{**dataset.profile, "count": len(bands)}) as part:
                part.write(dataset.read(bands))
                part.descriptions = [names[index - 1] for index in bands]
            parts.append(folder / file)
    return parts[0], parts[1]


def test_a_season(here: Path, small_scene: Path, capfd: pytest.CaptureFixture[str]) -> None:
    # Ingest
    tile = str(small_scene / "tile.tif")
    store = cropstar.ingest(tile, parcels=small_scene / "parcels.gpkg", tile_size=48, output="stores/tile", workers=1)
    assert repr(store).startswith("<cropstar store stores/tile: 1 scenes, 6 dates, 9 classes, bands B02 ")
    assert list(store.scenes) == ["tile"]
    assert len(store.dates) == 6
    assert "maize" in store.classes

    # Look at it
    season = store.scenes["tile"].to_xarray()
    assert season.reflectance.dims == ("time", "band", "y", "x")
    maize = season.reflectance.where(season.labels == store.classes.index("maize"))
    assert 0 < float(maize.sel(band="B08").mean()) < 1

    # Train and evaluate
    run = cropstar.train(
        store=store, model="star", layers=1, hidden=8, epochs=2, settings=PLAIN, runs="runs", device="cpu"
    )
    assert run.model.is_file()
    assert run.report.is_file()
    assert 0 <= run.metrics["parcel"]["overall_accuracy"] <= 1
    again = cropstar.evaluate(run, device="cpu", output="figures.json")
    assert again.metrics["parcel"]["overall_accuracy"] == pytest.approx(run.metrics["parcel"]["overall_accuracy"])
    assert again.part == "test"
    assert "by parcel" in str(again)

    # Predict, with the state of the season
    before, new = dates_apart(small_scene / "tile.tif", here)
    (product,) = cropstar.predict(
        before, model=run, output="map.tif", state="season.h5", confidence=True, any_dates=True, device="cpu"
    )
    with rasterio.open("map.tif") as dataset:
        classes = dataset.read(1)
        assert dataset.crs.to_epsg() == 32632
    assert classes.shape == season.labels.shape
    assert set(product.files) >= {Path("map.tif"), Path("map-confidence.tif"), Path("map.png"), Path("season.h5")}
    assert all(path.is_file() for path in product.files)

    # The model itself gives the same map
    model = cropstar.load_model(run, device="cpu")
    part = season.isel(time=slice(0, -1))
    likely = model.predict_proba(part.reflectance.values, part.time.values, any_dates=True)
    seen = np.isfinite(likely[0])
    assert (seen == (classes != 255)).all()
    assert (likely.argmax(axis=0) == classes)[seen].mean() > 0.999

    # Update with the last date: the map of a whole run
    updated = cropstar.update("season.h5", new, any_dates=True, device="cpu")
    assert updated.raster == (here / "map.tif").resolve()
    cropstar.predict(tile, model=run, output="whole.tif", device="cpu")
    with rasterio.open("map.tif") as one, rasterio.open("whole.tif") as other:
        assert (one.read(1) == other.read(1)).all()

    assert capfd.readouterr() == ("", "")  # a notebook stays as it is


def test_a_torch_loop(small_store: Path) -> None:
    store = cropstar.open_store(str(small_store))
    loader = DataLoader(store.as_torch("training", unit="parcel"), batch_size=4, shuffle=True)
    batch = next(iter(loader))
    assert batch["x"].shape == (4, 6, 8)
    assert batch["labels"].shape == (4,)


def test_what_is_said_can_be_heard(small_store: Path, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    with caplog.at_level(logging.INFO, logger="cropstar"):
        cropstar.train(
            store=small_store,
            model="star",
            settings={"model.layers": 1, "model.hidden": 4, "epochs": 1, "cross_fit": 0},
            runs=tmp_path,
            device="cpu",
        )
    assert any(record.getMessage().startswith("model  ") for record in caplog.records)


def test_progress_where_it_is_asked_for(
    small_store: Path, trained: cropstar.TrainingResult, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    cropstar.predict(small_store, model=trained, output=tmp_path / "a.tif", progress=True)
    assert "px" in capfd.readouterr().err


# --- errors are cropstar's own


def test_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_store: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(cropstar.InputError, match=r"no store in .*manifest"):
        cropstar.open_store(tmp_path)
    with pytest.raises(cropstar.InputError, match="no such file"):
        cropstar.ingest("nothing.tif")
    with pytest.raises(cropstar.UsageError, match="is remote; give --allow-remote"):
        cropstar.ingest("s3://bucket/tile.tif")
    with pytest.raises(cropstar.UsageError, match="is not a date"):
        cropstar.ingest("https://stac.example.org", start="May", end="2023-10-01")
    with pytest.raises(cropstar.UsageError, match="unknown key 'epoch'"):
        cropstar.train(store=small_store, settings={"epoch": 3})
    with pytest.raises(cropstar.ArtifactError, match="no model yet"):
        cropstar.predict("tile.tif")
    with pytest.raises(cropstar.CropstarError):
        cropstar.load_model("nothing.safetensors")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder").chmod(0)
    with pytest.raises(cropstar.CropstarError):
        cropstar.evaluate("folder/model.safetensors", store=small_store)


def test_xarray_is_an_extra(small_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xarray", None)
    scene = next(iter(cropstar.open_store(small_store).scenes.values()))
    with pytest.raises(cropstar.UsageError, match=r"xarray is not installed; pip install 'cropstar\[xarray\]'"):
        scene.to_xarray()
