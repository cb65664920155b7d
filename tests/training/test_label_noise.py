"""Suspects, p-values, lights and surveys against naive references."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cropstar.errors import ArtifactError
from cropstar.training.label_noise import (
    ConformalGroups,
    FieldProbabilities,
    choose_survey,
    find_suspects,
    suspicion,
)


def fields(seed: int, count: int = 60, classes: int = 4, skill: float = 2.0) -> FieldProbabilities:
    """Fields whose probabilities favour their label by `skill`."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, classes, count)
    scores = draw.normal(0, 1, (count, classes))
    scores[np.arange(count), labels] += skill
    likely = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    return FieldProbabilities([("scene", n) for n in range(count)], labels, likely, np.ones(count, dtype=bool))


def naive_p_value(known: FieldProbabilities, rate: float, odd: float, crop: int, without: int | None) -> float:
    counts = np.bincount(known.labels, minlength=known.probabilities.shape[1])
    small = [k for k in range(len(counts)) if counts[k] + 1 < 1 / rate - 1e-9]
    group = small if crop in small else [crop]
    others = [
        1 - known.probabilities[row, known.labels[row]]
        for row in range(len(known))
        if known.labels[row] in group and row != without
    ]
    return float((1 + sum(other >= odd - 1e-12 for other in others)) / (1 + len(others)))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([0.02, 0.05, 0.1, 0.3]), st.booleans())
def test_p_values_are_those_of_counting(seed: int, rate: float, own: bool) -> None:
    known = fields(seed, count=40)
    asked = known if own else fields(seed + 1, count=10)
    found = ConformalGroups.of(known, rate).p_values(asked.probabilities, known.labels if own else None)
    for row in range(len(asked)):
        for crop in range(4):
            odd = 1 - asked.probabilities[row, crop]
            assert found[row, crop] == pytest.approx(naive_p_value(known, rate, odd, crop, row if own else None))


@pytest.mark.parametrize("rate", [0.01, 0.05, 0.1])
def test_of_right_crops_no_more_are_red_than_promised(rate: float) -> None:
    """Over many draws of known and new fields, also in every class by itself."""
    red = np.zeros((200, 4))
    for seed in range(len(red)):
        known, new = fields(2 * seed, count=600), fields(2 * seed + 1, count=300)
        groups = ConformalGroups.of(known, rate)
        lights = np.array(groups.lights(new, groups.p_values(new.probabilities)))
        red[seed] = [np.mean(lights[new.labels == crop] == "red") for crop in range(4)]
    error = red.std() / np.sqrt(red.size)
    assert (red.mean(axis=0) <= rate + 4 * 2 * error).all()
    assert red.mean() > 0.6 * rate  # nor is the promise kept by never speaking


def test_lights_say_what_is_possible_and_what_is_probable() -> None:
    groups = ConformalGroups.of(fields(1, 200), 0.1)
    p_values = np.array([[0.5, 0.05, 0.05, 0.05], [0.5, 0.5, 0.05, 0.05], [0.05, 0.5, 0.05, 0.05], [0.05] * 4])
    unsure = replace(fields(2, 4), probabilities=np.full((4, 4), 0.25), labels=np.zeros(4, dtype=np.int64))
    assert groups.lights(unsure, p_values) == ["green", "yellow", "red", "red"]
    sure = replace(unsure, probabilities=np.tile([0.6, 0.4, 0.0, 0.0], (4, 1)))
    assert groups.lights(sure, p_values) == ["green", "green", "red", "red"]  # what is rejected stays red
    # Of the other crop that occurs: rejected in the first and both last rows but one.
    two = replace(unsure, labels=np.array([0, 0, 1, 1]))
    assert groups.lights_if_wrong(two, p_values) == {"red": 0.75, "yellow": 0.25, "green": 0.0}


def test_small_classes_are_one_group_and_never_red_where_they_are_too_few() -> None:
    known = fields(3, 200, classes=3)
    kept = [row for row in range(200) if known.labels[row] == 0 or row % 40 == 0]
    groups = ConformalGroups.of(known.rows(kept), 0.05)
    assert groups.pooled == [1, 2]
    assert groups.undecidable == [1, 2]
    new = fields(4, 100, classes=3, skill=-5.0)
    p_values = groups.p_values(new.probabilities)
    assert (p_values[:, 1:] > 0.05).all()
    assert (p_values[:, 0] <= 0.05).any()


def swapped(seed: int) -> tuple[FieldProbabilities, np.ndarray]:
    whole = fields(seed, 400, skill=3.5)
    draw = np.random.default_rng(seed)
    wrong = draw.random(400) < 0.1
    labels = np.where(wrong, (whole.labels + draw.integers(1, 4, 400)) % 4, whole.labels)
    return FieldProbabilities(whole.parcels, labels, whole.probabilities, whole.in_folds), wrong


@pytest.mark.parametrize("seed", range(3))
def test_swapped_labels_are_found(seed: int) -> None:
    noisy, wrong = swapped(seed)
    suspects = find_suspects(noisy)
    places = [suspect.place for suspect in suspects]
    assert wrong[places].mean() > 0.7
    assert wrong[places].sum() > 0.6 * wrong.sum()
    margins = [suspect.margin for suspect in suspects]
    assert margins == sorted(margins, reverse=True)
    ranks = np.argsort(np.argsort(suspicion(noisy)))
    area = (ranks[wrong].sum() - wrong.sum() * (wrong.sum() - 1) / 2) / (wrong.sum() * (~wrong).sum())
    assert area > 0.95


@pytest.mark.parametrize("seed", range(3))
def test_the_ranking_is_the_normalised_margin_of_cleanlab(seed: int) -> None:
    rank = pytest.importorskip("cleanlab.rank")
    noisy, _ = swapped(seed)
    theirs = rank.get_label_quality_scores(noisy.labels, noisy.probabilities, method="normalized_margin")
    np.testing.assert_allclose(1 - 2 * theirs, suspicion(noisy), atol=1e-9)


def test_a_survey_spreads_in_place_and_doubt() -> None:
    unsure = np.tile([0.5, 0.5, 0.0, 0.0], (50, 1))
    unsure[25:] = [0.0, 0.0, 0.5, 0.5]
    sure = np.tile([0.97, 0.01, 0.01, 0.01], (50, 1))
    every = FieldProbabilities([("s", n) for n in range(100)], np.zeros(100, dtype=np.int64),
                               np.concatenate([unsure, sure]), np.ones(100, dtype=bool))  # fmt: skip
    places = np.stack([np.arange(100) % 25 * 100.0, np.zeros(100)], axis=1)
    chosen = choose_survey(every, places, 6)
    assert len(set(chosen)) == 6
    assert all(place < 50 for place in chosen)
    assert {place < 25 for place in chosen} == {True, False}
    assert min(abs(places[a, 0] - places[b, 0]) for a in chosen for b in chosen if a < b and (a < 25) == (b < 25)) > 100
    assert sorted(choose_survey(every, None, 200)) == list(range(100))


def test_probabilities_are_read_as_they_were_written(tmp_path: Path) -> None:
    whole = fields(5)
    whole.write(tmp_path / "said.safetensors", ["a", "b", "c", "d"])
    back = FieldProbabilities.read(tmp_path / "said.safetensors", ["a", "b", "c", "d"])
    assert back.parcels == whole.parcels
    np.testing.assert_allclose(back.probabilities, whole.probabilities, atol=1e-6)
    with pytest.raises(ArtifactError, match="its classes are not those of the store"):
        FieldProbabilities.read(tmp_path / "said.safetensors", ["a", "b", "c"])


def test_the_only_field_of_a_class_is_never_suspect() -> None:
    likely = np.array([[0.9, 0.1, 0.0], [0.8, 0.2, 0.0], [0.1, 0.9, 0.0], [0.95, 0.05, 0.0], [0.9, 0.1, 0.0]])
    labels = np.array([0, 0, 1, 1, 2])  # the last is of a class that its model has not seen
    parcels = [("scene", number) for number in range(5)]
    fields = FieldProbabilities(parcels, labels, likely, np.ones(5, dtype=bool))
    assert [suspect.place for suspect in find_suspects(fields)] == [3]
    assert {suspect.place for suspect in find_suspects(fields, np.ones(5, dtype=np.int64))} == {3, 4}
