"""Series tiles as batches: ragged lengths, the part's samples alone, and training on them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas
import pytest
import torch

from cropstar.config import SplitConfig, resolve_config
from cropstar.datasets.samples import SeriesDataset, measure_series, open_parts
from cropstar.datasets.splits import PARTS, split_parcels
from cropstar.errors import UsageError
from cropstar.sources.catalogue import SOURCES, IngestRequest
from cropstar.sources.ingest import ingest
from cropstar.store.store import Store
from cropstar.training.train import TrainOptions, train

CROPS = ("wheat", "maize")


@pytest.fixture(scope="module")
def series_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 fields of two crops that peak in different months, with 6 to 10 dates each."""
    random = np.random.default_rng(3)
    rows = []
    for field in range(60):
        crop = field % 2
        for month in sorted(random.choice(np.arange(1, 13), size=random.integers(6, 11), replace=False)):
            red = 3000 - 2500 * np.exp(-(((month - (5, 8)[crop]) / 2) ** 2)) + random.normal(0, 50)
            rows.append((f"f{field}", f"2023-{month:02d}-11", CROPS[crop], int(red), 3000))
    folder = tmp_path_factory.mktemp("series")
    frame = pandas.DataFrame(rows, columns=["field_id", "date", "crop", "B04", "B08"])
    frame.to_csv(folder / "fields.csv", index=False)
    ingest(SOURCES["table"](IngestRequest(folder / "fields.csv")), folder / "store")
    return folder / "store"


def test_batches_pad_short_series_as_invalid(series_store: Path) -> None:
    store = Store.open(series_store)
    split = split_parcels(store, SplitConfig(), 0)
    dataset = SeriesDataset(store, split, "train", measure_series(store, split), 8)
    batch = dataset.batch(list(range(len(dataset))))
    lengths = batch.valid.sum(dim=1)
    assert batch.x.shape == (len(dataset), int(lengths.max()), 2)
    assert int(lengths.min()) < int(lengths.max())
    for row, length in enumerate(lengths.tolist()):
        assert batch.valid[row, :length].all()
        assert not batch.x[row, length:].any()
        assert (batch.days[row, 1:length] > batch.days[row, : length - 1]).all()
    clear = batch.x[batch.valid]
    assert clear.mean(dim=0).numpy() == pytest.approx(np.zeros(2), abs=1e-5)
    store.close()


def test_every_sample_is_in_exactly_one_part(series_store: Path) -> None:
    store = Store.open(series_store)
    split = split_parcels(store, SplitConfig(), 0)
    normalisation = measure_series(store, split)
    parcels = [
        int(number)
        for part in PARTS
        for dataset in [SeriesDataset(store, split, part, normalisation, 8)]
        for number in dataset.batch(list(range(len(dataset)))).parcels
    ]
    assert sorted(parcels) == list(range(60))
    store.close()


def test_a_series_model_learns_from_a_table(series_store: Path, tmp_path: Path) -> None:
    """Gates must be opened for the length of a series, not of a whole tile, or nothing is learnt at all."""
    options = {"store": series_store, "model.name": "star", "model.layers": 2, "model.hidden": 16, "epochs": 25}
    config = resolve_config(None, {**options, "series_batch": 12, "optimiser.learning_rate": 0.01})
    _, result = train(config, TrainOptions(tmp_path, torch.device("cpu")))
    assert result["test"]["parcel"]["overall_accuracy"] >= 0.85


def test_an_image_model_is_refused(series_store: Path) -> None:
    store = Store.open(series_store)
    split = split_parcels(store, SplitConfig(), 0)
    config = resolve_config(None, {"store": series_store})
    with pytest.raises(UsageError, match="--model star"):
        open_parts(store, split, config, spatial=True)
    store.close()
