"""Figures of the coarser levels against a plain count over all pixels and parcels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cropstar.config import ModelConfig, TrainConfig
from cropstar.datasets.samples import open_parts
from cropstar.datasets.splits import split_parcels
from cropstar.models.contract import Shape
from cropstar.models.zoo import build_model
from cropstar.sources.zuericrop import read_labels
from cropstar.store.classes import ClassTable
from cropstar.store.store import Store
from cropstar.training.evaluation import evaluate, score
from cropstar.training.metrics import Level, levels_of
from tests.examples import a_raster_tile, store_of

CPU = torch.device("cpu")
LINEAGES = {
    "barley": ("arable", "cereal"),
    "maize": ("arable", "coarse grain"),
    "meadow": ("grass", "other"),
    "oat": ("arable", "cereal"),
    "pasture": ("grass", "other"),
    "potato": ("arable", "other"),
}
TABLE = ClassTable.from_names(LINEAGES).with_lineages(LINEAGES)


def test_levels_of_a_table() -> None:
    coarse, middle = levels_of(TABLE)
    assert [coarse.name, middle.name] == ["level 1", "level 2"]
    assert [coarse.classes[node] for node in coarse.nodes] == [LINEAGES[name][0] for name in TABLE.names]
    assert [middle.classes[node] for node in middle.nodes] == [LINEAGES[name][1] for name in TABLE.names]
    assert len(coarse.classes) == 2
    assert sorted(middle.classes) == ["cereal", "coarse grain", "other", "other"]  # of grass, and of arable land
    assert middle.nodes[TABLE.number_of("meadow")] != middle.nodes[TABLE.number_of("potato")]
    assert levels_of(ClassTable.from_names(["maize", "wheat"])) == ()


def test_the_likeliest_coarse_class_need_not_hold_the_likeliest_class() -> None:
    level = Level("level 1", ("wheat", "maize"), np.array([0, 0, 0, 1]))
    assert level.answers(np.array([[0.2, 0.2, 0.2, 0.4], [0.1, 0.1, 0.1, 0.7]])).tolist() == [0, 1]


def test_a_real_table_of_three_levels(real_data: Path) -> None:
    classes = read_labels(real_data / "zuericrop" / "labels.csv", 3).classes
    levels = levels_of(classes)
    assert len(levels) == classes.levels - 1 == 2
    sizes = [len(level.classes) for level in levels]
    assert sizes == sorted(sizes)
    for depth, level in enumerate(levels):
        assert [level.classes[node] for node in level.nodes] == [entry.lineage[depth] for entry in classes]


def test_figures_of_each_level_are_those_of_a_plain_count(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    parcels = np.kron(np.arange(1, 61).reshape(6, 10), np.ones((4, 4))).astype(np.int32)
    tile = a_raster_tile((3, 2, 24, 40), parcels=parcels)
    own = random.integers(0, len(TABLE), 61).astype(np.int16)
    tile = replace(
        tile,
        fingerprint=replace(tile.fingerprint, classes=TABLE),
        labels=own[parcels],
        table=replace(tile.table, labels=own[tile.table.numbers]),
    )
    store = Store.open(store_of(tmp_path, {"tile": tile}))
    config = TrainConfig.model_validate({"store": tmp_path, "model": {"name": "star", "layers": 1, "hidden": 8}})
    dataset = open_parts(store, split_parcels(store, config.split, 0), config, spatial=False)[0]["train"]
    torch.manual_seed(0)
    model = build_model(ModelConfig(name="star", layers=1, hidden=8), Shape(2, len(TABLE), 3))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.8)
    levels = levels_of(TABLE)
    result = evaluate(model, dataset, len(TABLE), CPU, levels=levels).to_json()
    assert result["unit"] == "pixel"
    assert [found["name"] for found in result["levels"]] == ["level 1", "level 2"]

    with torch.no_grad():
        scored = score(model, dataset.batch(list(range(len(dataset)))), CPU)
    seen = scored.seen
    probabilities, labels = scored.scores.double().softmax(dim=1)[seen].numpy(), scored.labels[seen].numpy()
    numbers = scored.parcels[seen].numpy()
    rows = {number: np.flatnonzero(numbers == number) for number in np.unique(numbers)}
    moved = 0
    for level, found in zip(levels, result["levels"], strict=True):
        assert found["classes"] == list(level.classes)
        size = len(level.classes)
        summed = np.stack([probabilities[:, level.nodes == node].sum(axis=1) for node in range(size)], axis=1)
        moved += int((level.nodes[probabilities.argmax(axis=1)] != summed.argmax(axis=1)).sum())
        pixel, parcel = np.zeros((size, size), dtype=int), np.zeros((size, size), dtype=int)
        for truth, said in zip(labels, summed.argmax(axis=1), strict=True):
            pixel[level.nodes[truth], said] += 1
        for inside in rows.values():
            parcel[level.nodes[labels[inside[0]]], summed[inside].sum(axis=0).argmax()] += 1
        assert found["pixel"]["confusion"] == pixel.tolist()
        assert found["parcel"]["confusion"] == parcel.tolist()
        assert found["pixel"]["overall_accuracy"] == pytest.approx(pixel.trace() / pixel.sum())
        assert found["parcel"]["intervals"]["parcels"] == len(rows)
    assert moved  # else the test could not tell the two readings apart
    store.close()
