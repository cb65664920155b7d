"""A store of series with a class a date, as fieldRNN's: clouds are bright, crops differ by when they are green."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from cropstar.geo.calendar import Season
from cropstar.store.classes import UNLABELLED, ClassTable
from cropstar.store.tile import ParcelTable, SeriesTile
from tests.examples import RECIPE, a_fingerprint, store_of

CLOUD, MAIZE, WHEAT = range(3)
CLASSES = ClassTable.from_names(["cloud", "maize", "wheat"])
JANUARY = 17_897  # 2019-01-01


def a_dated_tile(samples: int = 60, seed: int = 0) -> SeriesTile:
    """Sample i grows maize or wheat by turns, on 6 to 12 dates; every third date or so is cloud, which is valid.

    One date of each is hidden and called cloud, one has no label; the last sample has nothing but clouds.
    """
    random = np.random.default_rng(seed)
    days, values, valid, labels, lengths, crops = [], [], [], [], [], []
    for sample in range(samples):
        crop = MAIZE if sample % 2 else WHEAT
        own = np.sort(random.choice(np.arange(0, 330, 10), int(random.integers(6, 13)), replace=False))
        cloudy = random.random(len(own)) < 0.35
        cloudy[:2] = False, sample == samples - 1
        cloudy |= sample == samples - 1
        green = np.exp(-(((own - (200 if crop == MAIZE else 120)) / 50) ** 2))
        red = np.where(cloudy, 7000, 2500 - 2000 * green) + random.normal(0, 60, len(own))
        infrared = np.where(cloudy, 7500, 2500 + 2500 * green) + random.normal(0, 60, len(own))
        said = np.where(cloudy, CLOUD, crop)
        seen = np.ones(len(own), dtype=bool)
        seen[2], said[2] = False, CLOUD
        said[3] = UNLABELLED
        days.append(JANUARY + own)
        values.append(np.stack([red, infrared], axis=1).clip(0))
        valid.append(seen)
        labels.append(said)
        lengths.append(len(own))
        crops.append(UNLABELLED if sample == samples - 1 else crop)
    numbers = np.arange(1, samples + 1, dtype=np.int32)
    return SeriesTile(
        scene="dated",
        recipe=RECIPE,
        fingerprint=a_fingerprint(classes=CLASSES, resolution=0.0, season=Season(1, 364)),
        starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        days=np.concatenate(days).astype(np.int32),
        values=np.concatenate(values).astype(np.uint16),
        valid=np.concatenate(valid),
        table=ParcelTable(numbers, [f"point {number}" for number in numbers], np.array(crops, dtype=np.int16)),
        date_labels=np.concatenate(labels).astype(np.int16),
    )


def without_parcel_labels(tile: SeriesTile) -> SeriesTile:
    labels = np.full_like(tile.table.labels, UNLABELLED)
    return replace(tile, table=ParcelTable(tile.table.numbers, tile.table.keys, labels))


def a_dated_store(folder: Path, samples: int = 60) -> Path:
    return store_of(folder, {"dated-n0": a_dated_tile(samples)})
