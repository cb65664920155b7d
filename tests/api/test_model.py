"""A loaded model: its card, and probabilities of arrays and tables."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray

import cropstar


@pytest.fixture(scope="module")
def model(trained: cropstar.TrainingResult) -> cropstar.CropModel:
    return cropstar.load_model(trained, device="cpu")


@pytest.fixture(scope="module")
def samples(small_store: Path) -> dict[str, NDArray[np.float32]]:
    parcels = cropstar.open_store(small_store).as_torch("test", unit="parcel")
    rows = [parcels[index] for index in range(len(parcels))]
    return {name: torch.stack([row[name] for row in rows]).numpy() for name in ("x", "valid", "days")}


def test_the_card(model: cropstar.CropModel, trained: cropstar.TrainingResult, small_store: Path) -> None:
    store = cropstar.open_store(small_store)
    assert model.card.classes == store.classes
    assert model.card.bands == store.bands
    assert model.card.season.covers(store.dates[0])
    assert model.card.accuracy is not None
    assert model.card.accuracy["parcel"]["macro_f1"] == trained.metrics["parcel"]["macro_f1"]
    assert repr(model).startswith("<star: 9 classes, ")
    assert isinstance(model, torch.nn.Module)
    assert not model.training


def test_a_file_outside_of_its_run(trained: cropstar.TrainingResult, tmp_path: Path) -> None:
    copy = tmp_path / "model.safetensors"
    copy.write_bytes(trained.model.read_bytes())
    assert cropstar.load_model(copy, device="cpu").card.accuracy is None


def test_series(model: cropstar.CropModel, samples: dict[str, NDArray[np.float32]]) -> None:
    likely = model.predict_proba(samples["x"], samples["days"].astype("datetime64[D]"), samples["valid"])
    assert likely.shape == (9, 9)
    assert likely.sum(axis=1) == pytest.approx(np.ones(9), abs=1e-5)
    # The module itself: scores that the temperature makes probabilities of.
    scores = model(*(torch.from_numpy(samples[name]) for name in ("x", "valid", "days")))
    assert torch.softmax(scores / model.temperature, 1).detach().numpy() == pytest.approx(likely, abs=1e-5)
    # NaN is masked, dates may be texts or dates, and be the same for all.
    hidden = np.where(samples["valid"][..., None].astype(bool), samples["x"], np.nan)
    days = samples["days"][0].astype("datetime64[D]")
    assert model.predict_proba(hidden, [str(day) for day in days]) == pytest.approx(likely, abs=1e-5)
    assert model.predict_proba(hidden, days.astype(date).tolist()) == pytest.approx(likely, abs=1e-5)


def test_images(model: cropstar.CropModel, small_store: Path) -> None:
    season = next(iter(cropstar.open_store(small_store).scenes.values())).to_xarray(rows=slice(0, 20))
    values, days = season.reflectance.values, season.time.values
    likely = model.predict_proba(values, days)
    assert likely.shape == (9, 20, 96)
    assert (np.isnan(likely[0]) == np.isnan(values).any(axis=1).all(axis=0)).all()  # never seen clearly
    assert model.predict_proba(values[None], days)[0] == pytest.approx(likely, nan_ok=True)
    series = values[:, :, 3].transpose(2, 0, 1)
    assert model.predict_proba(series, days) == pytest.approx(likely[:, 3].T, abs=1e-5, nan_ok=True)
    # Integers are those of a store.
    integers = np.nan_to_num(np.round(values * 10_000)).astype(np.uint16)
    assert model.predict_proba(integers, days, np.isfinite(values).all(axis=1)) == pytest.approx(
        likely, abs=1e-3, nan_ok=True
    )


def test_an_image_model(small_store: Path, tmp_path: Path) -> None:
    run = cropstar.train(
        store=small_store,
        model="convstar",
        layers=1,
        hidden=4,
        epochs=1,
        settings={"cross_fit": 0},
        runs=tmp_path,
        device="cpu",
    )
    (product,) = cropstar.predict(small_store, model=run, output=tmp_path / "map.tif", probabilities=True)
    assert isinstance(product, cropstar.MapProduct)
    model = cropstar.load_model(run, device="cpu")
    season = next(iter(cropstar.open_store(small_store).scenes.values())).to_xarray()
    likely = model.predict_proba(season.reflectance.values, season.time.values)
    import rasterio

    with rasterio.open(product.raster.with_name("map-probabilities.tif")) as dataset:
        mapped = dataset.read() / 10_000
    seen = np.isfinite(likely[0])
    assert np.abs(mapped - likely)[:, seen].max() < 1e-3
    with pytest.raises(cropstar.UsageError, match="the model needs images"):
        model.predict_proba(season.reflectance.values[:, :, 0].transpose(2, 0, 1), season.time.values)


def test_tables(model: cropstar.CropModel, samples: dict[str, NDArray[np.float32]]) -> None:
    days = samples["days"].astype("datetime64[D]")
    rows = [
        {"parcel_id": f"p{i}", "date": str(days[i, t]), **dict(zip(model.card.bands, samples["x"][i, t], strict=True))}
        for i in range(9)
        for t in range(6)
        if samples["valid"][i, t]
    ]
    table = pd.DataFrame(rows).sample(frac=1, random_state=0)  # in any order
    likely = model.predict_proba(table)
    assert list(likely.columns) == list(model.card.classes)
    assert likely.index.name == "parcel_id"
    expected = model.predict_proba(samples["x"], days, samples["valid"])
    assert likely.loc[[f"p{i}" for i in range(9)]].to_numpy() == pytest.approx(expected, abs=1e-5)
    with pytest.raises(cropstar.MismatchError, match="no column for the band B08"):
        model.predict_proba(table.drop(columns="B08"))
    with pytest.raises(cropstar.InputError, match="no column of the date"):
        model.predict_proba(table.drop(columns="date"))
    with pytest.raises(cropstar.InputError, match="dates of the table cannot be read"):
        model.predict_proba(table.assign(date="soon"))


def test_what_does_not_fit(model: cropstar.CropModel, samples: dict[str, NDArray[np.float32]]) -> None:
    x, days = samples["x"], samples["days"][0].astype("datetime64[D]")
    with pytest.raises(cropstar.MismatchError, match="7 bands, and the model has 8"):
        model.predict_proba(x[:, :, :7], days)
    with pytest.raises(cropstar.UsageError, match="one date for every step"):
        model.predict_proba(x, days[:3])
    with pytest.raises(cropstar.UsageError, match="not a list of dates"):
        model.predict_proba(x, ["May"] * 6)
    with pytest.raises(cropstar.UsageError, match="unknown shape"):
        model.predict_proba(x[0], days)
    with pytest.raises(cropstar.UsageError, match="valid has another shape"):
        model.predict_proba(x, days, np.ones((9, 5)))
    with pytest.raises(cropstar.MismatchError, match="a typical value is"):
        model.predict_proba(x * 10_000, days)
    winter = days - np.timedelta64(90, "D")
    with pytest.raises(cropstar.MismatchError, match="outside the season"):
        model.predict_proba(x, winter)
    assert np.isfinite(model.predict_proba(x, winter, any_dates=True)).all()
    assert model.predict_proba(x[:0], days).shape == (0, 9)
