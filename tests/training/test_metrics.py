"""Figures of confusion matrices, their bootstrap intervals, and coarser levels of classes."""

from __future__ import annotations

import time
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from numpy.typing import NDArray
from sklearn import metrics as oracle

from cropstar.config import ModelConfig, TrainConfig
from cropstar.datasets.samples import open_parts
from cropstar.datasets.splits import split_parcels
from cropstar.models.contract import Shape
from cropstar.models.zoo import build_model
from cropstar.sources.zuericrop import read_labels
from cropstar.store.classes import ClassTable
from cropstar.store.store import Store
from cropstar.training import metrics as module
from cropstar.training.accuracy import evaluate, score
from cropstar.training.metrics import (
    Level,
    ParcelTally,
    bootstrap,
    class_f1,
    count_parcels,
    kappa,
    levels_of,
    macro_f1,
    overall_accuracy,
    summary,
    weighted_f1,
)
from tests.examples import a_raster_tile, store_of

# --- every figure against scikit-learn's


@settings(max_examples=40, deadline=None)
@given(seed=some.integers(0, 10_000), classes=some.integers(2, 7), size=some.integers(1, 80))
def test_figures_equal_scikit_learn(seed: int, classes: int, size: int) -> None:
    generator = np.random.default_rng(seed)
    truth = generator.integers(0, classes, size)
    prediction = np.where(generator.random(size) < 0.6, truth, generator.integers(0, classes, size))
    matrix = oracle.confusion_matrix(truth, prediction, labels=np.arange(classes))
    present = np.union1d(truth, prediction)

    assert overall_accuracy(matrix) == pytest.approx(oracle.accuracy_score(truth, prediction))
    assert macro_f1(matrix) == pytest.approx(oracle.f1_score(truth, prediction, labels=present, average="macro"))
    assert weighted_f1(matrix) == pytest.approx(
        oracle.f1_score(truth, prediction, average="weighted", zero_division=0.0)
    )
    if len(present) > 1:
        assert kappa(matrix) == pytest.approx(oracle.cohen_kappa_score(truth, prediction))
    rows = summary(matrix)["classes"]
    precision, recall, f1, support = oracle.precision_recall_fscore_support(
        truth, prediction, labels=np.arange(classes), zero_division=np.nan
    )
    for number in range(classes):
        assert rows[number]["support"] == support[number]
        for name, expected in (("precision", precision), ("recall", recall)):
            own = rows[number][name]
            assert own == pytest.approx(expected[number]) if own is not None else np.isnan(expected[number])
        if rows[number]["f1"] is not None:
            assert rows[number]["f1"] == pytest.approx(f1[number])


def test_nothing_to_judge_gives_no_figures() -> None:
    empty = np.zeros((3, 3), dtype=np.int64)
    figures = summary(empty)
    assert figures["overall_accuracy"] is None
    assert figures["macro_f1"] is None
    assert figures["kappa"] is None
    assert all(row["f1"] is None and row["support"] == 0 for row in figures["classes"])


# --- intervals by parcel: equal to the plain loop, honest about luck, quick and small


Integers = NDArray[np.int64]


def pixels(
    generator: np.random.Generator, parcels: int, classes: int, longest: int
) -> tuple[Integers, Integers, Integers]:
    """Parcels of different sizes, each of one class, some pixels of each wrong."""
    sizes = generator.integers(1, longest + 1, parcels)
    truth = np.repeat(generator.integers(0, classes, parcels), sizes)
    wrong = generator.random(len(truth)) < 0.3
    return (
        np.repeat(np.arange(parcels), sizes),
        truth,
        np.where(wrong, generator.integers(0, classes, len(truth)), truth),
    )


def by_loop(parcels: Integers, truth: Integers, prediction: Integers, classes: int, draws: int, seed: int) -> Any:
    """Every draw puts its pixels together and asks the figures of one confusion matrix."""
    numbers = np.unique(parcels)
    generator = np.random.default_rng(seed)
    rows: dict[str, list[float | None]] = {name: [] for name in ("oa", "kappa", "macro", "weighted")}
    by_class: list[list[float | None]] = [[] for _ in range(classes)]
    for _ in range(draws):
        drawn = numbers[generator.integers(0, len(numbers), len(numbers))]
        chosen = np.concatenate([np.flatnonzero(parcels == number) for number in drawn])
        matrix = oracle.confusion_matrix(truth[chosen], prediction[chosen], labels=np.arange(classes))
        rows["oa"].append(overall_accuracy(matrix))
        rows["kappa"].append(kappa(matrix))
        rows["macro"].append(macro_f1(matrix))
        rows["weighted"].append(weighted_f1(matrix))
        for number, value in enumerate(class_f1(matrix)):
            by_class[number].append(value)
    return rows, by_class


def ends(values: list[float | None]) -> Any:
    defined = [value for value in values if value is not None]
    if not defined or np.ptp(defined) < 1e-12:
        return None
    return pytest.approx(tuple(np.quantile(defined, [0.025, 0.975])))


@settings(max_examples=25, deadline=None)
@given(seed=some.integers(0, 9999), parcels=some.integers(1, 12), classes=some.integers(1, 4))
def test_draws_equal_the_plain_loop(seed: int, parcels: int, classes: int) -> None:
    data = pixels(np.random.default_rng(seed), parcels, classes, longest=6)
    found = bootstrap(count_parcels(*data, classes), draws=40, seed=seed)
    rows, by_class = by_loop(*data, classes, draws=40, seed=seed)
    assert found.overall_accuracy == ends(rows["oa"])
    assert found.kappa == ends(rows["kappa"])
    assert found.macro_f1 == ends(rows["macro"])
    assert found.weighted_f1 == ends(rows["weighted"])
    assert list(found.class_f1) == [ends(values) for values in by_class]


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = count_parcels(*pixels(np.random.default_rng(1), 50, 3, 9), 3)
    whole = bootstrap(counts, draws=100)
    monkeypatch.setattr(module, "PARCELS_AT_ONCE", 7)
    monkeypatch.setattr(module, "WEIGHTS_AT_ONCE", 150)
    assert bootstrap(counts, draws=100) == whole
    assert bootstrap(counts, draws=100, seed=1) != whole


def test_batches_add_up() -> None:
    parcels, truth, prediction = pixels(np.random.default_rng(2), 30, 4, 9)
    tally = ParcelTally(4)
    for part in np.array_split(np.random.default_rng(3).permutation(len(parcels)), 7):
        tally.add(parcels[part], truth[part], prediction[part])
    whole = count_parcels(parcels, truth, prediction, 4)
    np.testing.assert_array_equal(tally.counts().count, whole.count)
    np.testing.assert_array_equal(whole.matrix(), oracle.confusion_matrix(truth, prediction, labels=np.arange(4)))
    assert bootstrap(tally.counts(), draws=20) == bootstrap(whole, draws=20)


def test_the_true_accuracy_lies_inside_as_often_as_promised() -> None:
    """Parcels with an accuracy of their own around 0.8: 95 in 100 intervals hold it, and far fewer by pixel."""
    generator = np.random.default_rng(5)
    held, held_by_pixel, runs, parcels, each = 0, 0, 250, 120, 25
    for run in range(runs):
        shares = generator.beta(1.6, 0.4, parcels)
        truth = np.repeat(generator.integers(0, 2, parcels), each)
        right = generator.random(parcels * each) < np.repeat(shares, each)
        prediction = np.where(right, truth, 1 - truth)
        numbers = np.repeat(np.arange(parcels), each)
        found = bootstrap(count_parcels(numbers, truth, prediction, 2), draws=200, seed=run).overall_accuracy
        assert found is not None
        held += found[0] <= 0.8 <= found[1]
        spread = 1.96 * np.sqrt(right.mean() * (1 - right.mean()) / right.size)
        held_by_pixel += abs(right.mean() - 0.8) <= spread
    assert 0.91 <= held / runs <= 0.98
    assert held_by_pixel / runs < 0.6


def test_one_level_for_parcels() -> None:
    """At the level of parcels the interval is that of a share: 160 of 200."""
    truth = np.zeros(200, dtype=np.int64)
    prediction = (np.arange(200) >= 160).astype(np.int64)
    found = bootstrap(count_parcels(np.arange(200), truth, prediction, 2), draws=4000).overall_accuracy
    assert found == pytest.approx((0.8 - 1.96 * 0.0283, 0.8 + 1.96 * 0.0283), abs=0.01)
    narrower = bootstrap(count_parcels(np.arange(200), truth, prediction, 2), level=0.5).overall_accuracy
    assert found is not None
    assert narrower is not None
    assert found[0] < narrower[0] < narrower[1] < found[1]


@pytest.mark.parametrize(
    ("parcels", "truth", "prediction"),
    [([7, 7, 7], [0, 0, 0], [0, 1, 0]), ([1, 2, 3], [0, 0, 0], [0, 0, 0]), ([], [], [])],
    ids=["one parcel", "not one mistake", "no parcel"],
)
def test_no_spread_is_no_certainty(parcels: list[int], truth: list[int], prediction: list[int]) -> None:
    numbers, own, said = (np.array(values, dtype=np.int64) for values in (parcels, truth, prediction))
    found = bootstrap(count_parcels(numbers, own, said, 2), draws=50)
    assert found.parcels == len(set(parcels))
    figures = (found.overall_accuracy, found.kappa, found.macro_f1, found.weighted_f1, *found.class_f1)
    assert figures == (None,) * 6
    assert found.to_json()["class_f1"] == [None, None]


def test_a_class_that_is_nowhere_has_no_interval() -> None:
    found = bootstrap(count_parcels(*pixels(np.random.default_rng(4), 40, 2, 5), 3), draws=50)
    assert found.class_f1[2] is None
    assert found.class_f1[0] is not None
    assert found.macro_f1 is not None


def test_many_parcels_of_many_classes_are_quick_and_small() -> None:
    counts = count_parcels(*pixels(np.random.default_rng(6), 20_000, 60, 20), 60)
    start = time.process_time()
    bootstrap(counts)
    seconds = time.process_time() - start
    tracemalloc.start()
    bootstrap(counts, draws=300)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200e6
    assert seconds < 6  # about one on a free core


# --- figures of the coarser levels against a plain count over all pixels and parcels


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
