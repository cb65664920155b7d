"""How early crops are known: against a plain reading sample by sample, and against the judgement at the end."""

from __future__ import annotations

import json
from datetime import date
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from numpy.typing import NDArray

from cropstar.config import ModelConfig
from cropstar.geo.calendar import Season, to_days
from cropstar.models.contract import Shape
from cropstar.models.zoo import build_model
from cropstar.training.evaluation import MOST_DAYS, Earliness, EarlinessTally, season_days
from cropstar.training.metrics import confusion, macro_f1, overall_accuracy

Samples = tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.int64], NDArray[np.int64]]
SEASON = Season(60, 200)


def drawn(seed: int, count: int, dates: int, classes: int) -> Samples:
    """Scores, valid, days and labels; some samples are never seen, some end in padding as batches do."""
    generator = np.random.default_rng(seed)
    first = int(to_days([date(2023, 3, 1)])[0])
    days = first + np.sort(generator.integers(0, 201, (count, dates)), axis=1)
    valid = generator.random((count, dates)) < 0.5
    padded = generator.integers(0, dates, count)[:, None] <= np.arange(dates)
    days = np.where(padded, np.take_along_axis(days, padded.argmax(axis=1)[:, None], axis=1), days)
    return generator.random((count, dates, classes)), valid & ~padded, days, generator.integers(0, classes, count)


def tallied(samples: Samples, season: Season = SEASON, batches: int = 1) -> Earliness:
    tally = EarlinessTally(season, samples[0].shape[2])
    for part in np.array_split(np.arange(len(samples[3])), batches):
        tally.add(samples[0][part], samples[1][part], samples[2][part], samples[3][part])
    return tally.result()


@settings(max_examples=25, deadline=None)
@given(seed=some.integers(0, 9999), count=some.integers(1, 30), dates=some.integers(1, 12))
def test_every_day_equals_a_plain_reading(seed: int, count: int, dates: int) -> None:
    scores, valid, days, labels = drawn(seed, count, dates, 3)
    found = tallied((scores, valid, days, labels), batches=3)
    start = int(to_days([date(2023, 3, 1)])[0])
    seen = [row for row in range(count) if valid[row].any()]
    assert found.samples == len(seen)
    for place, day in enumerate(found.days):
        said = []
        for row in seen:
            known = [column for column in range(dates) if days[row, column] - start <= day]
            said.append(int(scores[row, known[-1]].argmax()) if any(valid[row, known]) else -1)
        right = [word == labels[row] for word, row in zip(said, seen, strict=True)]
        assert found.accuracy[place] == (pytest.approx(np.mean(right)) if seen else None)
        for number in range(3):
            named = [labels[row] for row in seen].count(number) + said.count(number)
            hits = sum(word == labels[row] == number for word, row in zip(said, seen, strict=True))
            assert found.class_f1[number][place] == (pytest.approx(2 * hits / named) if named else None)


def test_the_end_is_what_the_model_says_in_the_end() -> None:
    """Of a real network with clouds: the last day equals `forward`, the first says nothing."""
    torch.manual_seed(1)
    model = build_model(ModelConfig.model_validate({"name": "star", "layers": 2, "hidden": 8}), Shape(3, 4, 12)).eval()
    _, valid, days, labels = drawn(7, 60, 12, 4)
    inputs = (torch.randn(60, 12, 3), torch.from_numpy(valid), torch.from_numpy(days).int())
    with torch.no_grad():
        by_date, last = model.by_date(*inputs).numpy(), model(*inputs).numpy()
    found = tallied((by_date, valid, days, labels))
    seen = valid.any(axis=1)
    matrix = confusion(labels[seen], last.argmax(axis=1)[seen], 4)
    assert found.accuracy[-1] == pytest.approx(overall_accuracy(matrix))
    assert found.macro_f1[-1] == pytest.approx(macro_f1(matrix))
    assert found.support == tuple(matrix.sum(axis=1))
    words = EarlinessTally(SEASON, 4)
    words.add(by_date.argmax(axis=2), valid, days, labels)
    assert words.result() == found


def test_the_day_from_which_a_crop_stays_known() -> None:
    """Class 0 is right from day 50, wrong once more on day 80 and right again from day 120; class 1 never is."""
    start = int(to_days([date(2022, 3, 1)])[0])
    days = start + np.tile([50, 80, 120, 190], (10, 1))
    said = np.tile([0, 1, 0, 0], (10, 1))
    said[5:] = 2
    tally = EarlinessTally(SEASON, 3)
    tally.add(said, np.ones((10, 4), dtype=bool), days, np.repeat([0, 1], 5))
    found = tally.result()
    assert found.known_from == (120, None, None)
    assert found.accurate_from == 120
    assert found.accuracy[: found.days.index(50)] == (0.0,) * 5
    assert found.class_f1[0][found.days.index(50)] == pytest.approx(1.0)
    assert found.class_f1[2][0] is None  # neither there nor said
    assert found.support == (5, 5, 0)
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["known_from"] == [120, None, None]


@pytest.mark.parametrize(
    ("season", "dates", "expected"),
    [
        (Season(60, 200), [date(2023, 3, 1), date(2023, 3, 11)], [0, 10]),
        (Season(60, 200), [date(2024, 2, 20), date(2024, 3, 1)], [-9, 1]),  # a little before it; a leap year
        (Season(300, 250), [date(2022, 10, 27), date(2023, 1, 5)], [0, 70]),  # over New Year
        (Season(300, 250), [date(2023, 1, 5), date(2023, 4, 1)], [70, 156]),
        (Season(10, 200), [date(2022, 12, 28), date(2023, 1, 10)], [-13, 0]),
        (Season(1, 364), [date(2022, 12, 20)], [353]),  # a season of a whole year holds December
        (Season(60, 600), [date(2022, 3, 1), date(2023, 3, 1)], [0, 365]),  # the first date decides
    ],
)
def test_days_of_the_season(season: Season, dates: list[date], expected: list[int]) -> None:
    assert season_days(to_days(dates)[None], season).tolist() == [expected]


def test_years_share_one_season() -> None:
    samples = drawn(3, 40, 8, 3)
    scores, valid, days, labels = samples
    later = np.where(np.arange(40)[:, None] % 2, days + 365, days)  # 2024 has its leap day before 1 March
    assert tallied((scores, valid, later, labels), Season(60, 202)).accuracy[-1] == tallied(samples).accuracy[-1]


@pytest.mark.parametrize(("length", "last"), [(0, 0), (5, 5), (10, 10), (95, 95), (10**9, 10**9)])
def test_the_grid_ends_with_the_season_and_stays_small(length: int, last: int) -> None:
    days = EarlinessTally(Season(1, length), 2).days
    assert days[0] == 0
    assert days[-1] == last
    assert len(days) <= MOST_DAYS + 1
    assert (np.diff(days) > 0).all()


def test_nothing_to_judge() -> None:
    samples: Any = drawn(1, 5, 4, 2)
    found = tallied((samples[0], np.zeros((5, 4), dtype=bool), samples[2], samples[3]))
    assert found.samples == 0
    assert set(found.accuracy) == {None}
    assert found.known_from == (None, None)
    assert found.accurate_from is None
