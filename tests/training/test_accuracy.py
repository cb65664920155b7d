"""Evaluation by date, earliness in the season, and the error map."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from numpy.typing import NDArray
from sklearn.metrics import confusion_matrix

from cropstar.config import ModelConfig, SplitConfig, TrainConfig
from cropstar.datasets.samples import open_parts
from cropstar.datasets.splits import Split, split_parcels
from cropstar.errors import UsageError
from cropstar.geo.calendar import Season, season_days, to_days
from cropstar.geo.grid import Grid
from cropstar.models.contract import Classifier, Shape
from cropstar.models.zoo import build_model
from cropstar.reports.figures import LONGEST_CANVAS, NOTHING, OTHER, RIGHT, UNSEEN, WRONG, unpack_codes
from cropstar.store.classes import UNLABELLED
from cropstar.store.store import Store
from cropstar.store.tile import RasterTile
from cropstar.training.accuracy import (
    MOST_DAYS,
    MOST_SCENES,
    Earliness,
    EarlinessTally,
    Evaluation,
    error_map_facts,
    evaluate,
    score,
)
from cropstar.training.metrics import count_parcels, macro_f1, overall_accuracy
from cropstar.training.setup import Setup
from cropstar.training.train import TrainOptions, train
from tests.datasets.dated import CLOUD, a_dated_store, a_dated_tile
from tests.examples import UTM, a_patch_tile, a_raster_tile, a_series_tile, store_of

# --- every date with a class of its own: scored, judged, trained, and refused where a model cannot


CPU = torch.device("cpu")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(a_dated_store(tmp_path / "store"))
    yield opened
    opened.close()


def config(store: Store, name: str = "star", **changes: Any) -> TrainConfig:
    usual = {"store": store.folder, "model": {"name": name, "layers": 1, "hidden": 16}, "target": "date"}
    return TrainConfig.model_validate({**usual, **changes})


def a_model(store: Store, name: str = "star") -> Classifier:
    torch.manual_seed(0)
    return build_model(config(store, name).model, Shape(2, 3, 12)).eval()


def required(store: Store, own: TrainConfig, model: Classifier) -> str:
    setup = Setup.of(store, own, CPU)
    setup.require(own, model)
    return setup.target


def part(store: Store, name: str = "train") -> Any:
    split = split_parcels(store, config(store).split, 0, target="date")
    return open_parts(store, split, config(store), spatial=False)[0][name]


@torch.no_grad()
def test_the_score_of_a_date_is_what_is_said_after_it(store: Store) -> None:
    model, batch = a_model(store), part(store).batch([0, 1, 2, 3])
    scored = score(model, batch, CPU)
    places = torch.nonzero(batch.labels != UNLABELLED)
    assert len(scored.labels) == len(places)
    for row, (sample, place) in enumerate(places.tolist()):
        until = slice(sample, sample + 1), slice(0, place + 1)
        expected = model(batch.x[until], batch.valid[until], batch.days[until])[0]
        assert scored.scores[row].numpy() == pytest.approx(expected.numpy(), abs=1e-5)
        assert int(scored.labels[row]) == int(batch.labels[sample, place])
        assert int(scored.parcels[row]) == int(batch.parcels[sample])
        assert bool(scored.seen[row]) == bool(batch.valid[sample, place])


def test_figures_are_those_of_a_plain_count(store: Store) -> None:
    model, dataset = a_model(store), part(store)
    found = evaluate(model, dataset, 3, CPU)
    assert found.unit == found.to_json()["unit"] == "date"
    batch = dataset.batch(list(range(len(dataset))))
    with torch.no_grad():
        said = model.by_date(batch.x, batch.valid, batch.days).double().softmax(dim=2).numpy()
    by_date, by_parcel = np.zeros((3, 3), dtype=int), np.zeros((3, 3), dtype=int)
    for row in range(len(batch.labels)):
        whole = np.zeros(3)
        for place in np.flatnonzero((batch.valid[row] & (batch.labels[row] != UNLABELLED)).numpy()):
            by_date[batch.labels[row, place], said[row, place].argmax()] += 1
            whole += said[row, place] * bool(batch.shows[row, place])
        truth = set(batch.labels[row][batch.shows[row]].tolist())
        assert len(truth) == 1
        by_parcel[truth.pop(), whole.argmax()] += 1
    assert found.pixel.tolist() == by_date.tolist()
    assert found.parcel.tolist() == by_parcel.tolist()


def test_labels_of_hidden_dates_are_none(store: Store, tmp_path: Path) -> None:
    tile = a_dated_tile()
    assert tile.date_labels is not None
    other = np.where(tile.valid, tile.date_labels, UNLABELLED).astype(np.int16)
    assert (other != tile.date_labels).any()
    bare = Store.open(store_of(tmp_path / "bare", {"dated-n0": replace(tile, date_labels=other)}))
    model = a_model(store)
    first, second = (evaluate(model, part(each), 3, CPU).pixel for each in (store, bare))
    assert first.tolist() == second.tolist()
    assert part(store).class_counts(3).tolist() == part(bare).class_counts(3).tolist()
    bare.close()


def test_clouds_are_learnt_date_by_date(store: Store, tmp_path: Path) -> None:
    """Of the crops no more is asked than to beat the most frequent class: before they are green nothing tells them."""
    changes: dict[str, Any] = {
        "epochs": 25,
        "series_batch": 8,
        "optimiser": {"learning_rate": 0.01},
        "loss": {"balance": 0.5},
    }
    run, result = train(config(store, **changes), TrainOptions(tmp_path / "runs", CPU))
    test, tile = result["test"], a_dated_tile()
    assert tile.date_labels is not None
    counted = tile.valid & (tile.date_labels != UNLABELLED)
    numbers = result["split"]["parcels"]["test"]["dated"]
    rows = np.concatenate([np.arange(*tile.starts[number - 1 : number + 1]) for number in numbers])
    shares = np.bincount(tile.date_labels[rows[counted[rows]]], minlength=3)
    assert test["unit"] == "date"
    assert np.array(test["pixel"]["confusion"]).sum(axis=1).tolist() == shares.tolist()
    assert np.array(test["parcel"]["confusion"]).sum() == len(numbers)
    assert test["pixel"]["classes"][CLOUD]["f1"] > 0.9
    assert test["pixel"]["overall_accuracy"] > shares.max() / shares.sum()
    assert result["calibration"]["part"] == "test"
    assert 0 <= result["sets"]["test"]["coverage"] <= 1
    assert "earliness" not in result
    assert run.report.exists()


@pytest.mark.parametrize("name", ["star", "tcn"])
def test_models_that_read_date_after_date_are_taken(store: Store, name: str) -> None:
    model = a_model(store, name).train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    random = torch.get_rng_state()
    assert required(store, config(store, name), model) == "date"
    assert model.training
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("name", ["bistar", "transformer", "ltae", "tempcnn", "inceptiontime", "rf"])
def test_models_that_read_series_as_a_whole_are_refused(store: Store, name: str) -> None:
    with pytest.raises(UsageError, match="one class to a whole series") as caught:
        required(store, config(store, name), a_model(store, name))
    assert "--model star" in str(caught.value)
    assert required(store, config(store, name, target=None), a_model(store, name)) == "parcel"


def test_what_else_cannot_be_learnt_is_refused(store: Store) -> None:
    clips = config(store, model={"name": "convstar", "layers": 1, "hidden": 4, "head": "video"})
    with pytest.raises(UsageError, match="one class per clip"):
        required(store, clips, build_model(clips.model, Shape(2, 3, 12)))
    with pytest.raises(UsageError, match="convstar needs images"):
        required(store, config(store, "convstar"), a_model(store, "convstar"))
    with pytest.raises(UsageError, match="have no levels"):
        required(store, config(store, loss={"levels": 0.5}), a_model(store))


# --- how early crops are known: against a plain reading sample by sample, and against the judgement at the end


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
    matrix = confusion_matrix(labels[seen], last.argmax(axis=1)[seen], labels=range(4))
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


def test_dates_of_a_store_have_figures_of_their_own() -> None:
    """A map of eight dates ends on day 88; the tenth days before and after it know seven and nine of them."""
    start = int(to_days([date(2022, 3, 1)])[0])
    days = start + np.tile([79, 88, 89], (4, 1))
    tally = EarlinessTally(SEASON, 2, dates=(79, 88, 89))
    tally.add(np.tile([1, 0, 1], (4, 1)), np.ones((4, 3), dtype=bool), days, np.zeros(4, dtype=np.int64))
    found = tally.result()
    by_day = dict(zip(found.days, found.accuracy, strict=True))
    assert [by_day[day] for day in (80, 88, 90)] == [0.0, 1.0, 0.0]


def test_nothing_to_judge() -> None:
    samples: Any = drawn(1, 5, 4, 2)
    found = tallied((samples[0], np.zeros((5, 4), dtype=bool), samples[2], samples[3]))
    assert found.samples == 0
    assert set(found.accuracy) == {None}
    assert found.known_from == (None, None)
    assert found.accurate_from is None


# --- the map of errors: every parcel on its place with its own outcome, and small whatever the scene


def at(tile: RasterTile, top: int, left: int) -> RasterTile:
    """The same tile, its corner so many pixels down and to the right."""
    transform = (10.0, 0.0, 612_000.0 + 10 * left, 0.0, -10.0, 5_412_000.0 - 10 * top)
    return replace(tile, grid=Grid(UTM, transform, *tile.grid.shape))


def judged(split: Split, outcome: dict[tuple[str, int], bool]) -> Evaluation:
    """An evaluation in which these parcels were right, or wrong."""
    running = split.running_numbers()
    numbers = np.array([running[parcel] for parcel in outcome], dtype=np.int64)
    truth = np.array([split.label_of[parcel] for parcel in outcome], dtype=np.int64)
    said = np.where(list(outcome.values()), truth, 1 - truth)
    counts = count_parcels(numbers, truth, said, 2)
    return Evaluation(counts, counts)


def by_hand(
    parcels: NDArray[np.int32], split: Split, outcome: dict[tuple[str, int], bool], step: int
) -> list[list[int]]:
    """The naive map, pixel by pixel."""

    def code(number: int) -> int:
        parcel = ("scene", number)
        if parcel not in split.label_of:
            return NOTHING
        if split.part_of[parcel] != "test":
            return OTHER
        return UNSEEN if parcel not in outcome else RIGHT if outcome[parcel] else WRONG

    rows, columns = (range(step // 2, side, step) for side in parcels.shape)
    return [[code(int(parcels[row, column])) for column in columns] for row in rows]


@pytest.mark.parametrize("scale", [1, 40])
def test_two_tiles_side_by_side(scale: int, tmp_path: Path) -> None:
    numbers = np.arange(36, dtype=np.int32).reshape(3, 12)  # 0 is no parcel
    parcels = np.kron(numbers, np.ones((scale, scale), dtype=np.int32)).astype(np.int32)
    middle = 7 * scale
    tiles = {
        "right": at(a_raster_tile((1, 1, 3 * scale, 5 * scale), parcels=parcels[:, middle:]), 0, middle),
        "left": at(a_raster_tile((1, 1, 3 * scale, middle), parcels=parcels[:, :middle]), 0, 0),
    }
    store = Store.open(store_of(tmp_path / "store", tiles))
    split = split_parcels(store, SplitConfig(test=0.4, validation=0.2), 0)
    test = sorted(parcel for parcel, part in split.part_of.items() if part == "test")
    outcome = {parcel: place % 3 == 0 for place, parcel in enumerate(test[1:])}  # the first was never seen
    facts = error_map_facts(store, split, judged(split, outcome))
    assert facts["why"] is None
    (scene,) = facts["scenes"]
    step = -(-12 * scale // LONGEST_CANVAS)
    assert scene["step"] == step
    codes = unpack_codes(scene["codes"], Grid.from_json(scene["grid"]).shape)
    assert codes.tolist() == by_hand(parcels, split, outcome, step)
    assert set(np.unique(codes)) == {NOTHING, OTHER, UNSEEN, RIGHT, WRONG}
    right = sum(outcome.values())
    assert (scene["right"], scene["wrong"], scene["unseen"]) == (right, len(outcome) - right, 1)
    assert Grid.from_json(scene["grid"]).resolution == 10 * step
    store.close()


def test_a_large_scene_stays_small(tmp_path: Path) -> None:
    parcels = np.random.default_rng(0).integers(0, 400, (900, 1300)).astype(np.int32)  # nothing could be packed worse
    store = Store.open(store_of(tmp_path / "store", {"tile": a_raster_tile((1, 1, 900, 1300), parcels=parcels)}))
    split = split_parcels(store, SplitConfig(), 0)
    test = {parcel: parcel[1] % 2 == 0 for parcel, part in split.part_of.items() if part == "test"}
    facts = error_map_facts(store, split, judged(split, test))
    assert max(facts["scenes"][0]["grid"]["shape"]) <= LONGEST_CANVAS
    assert len(json.dumps(facts)) < 60_000
    store.close()


def test_the_scenes_with_the_most_parcels(tmp_path: Path) -> None:
    tiles = {
        f"tile{place}": a_raster_tile(
            (1, 1, 1, 20 + place), parcels=np.arange(1, 21 + place, dtype=np.int32)[None], scene=f"scene {place}"
        )
        for place in range(MOST_SCENES + 2)
    }
    store = Store.open(store_of(tmp_path / "store", tiles))
    parts = {("scene 1", 3): "test", ("scene 1", 4): "test", ("scene 2", 1): "test"}
    labels = {(f"scene {place}", number): number % 2 for place in range(8) for number in range(1, 21)}
    few = Split({**dict.fromkeys(labels, "train"), **parts}, labels)
    assert [each["scene"] for each in error_map_facts(store, few, judged(few, {}))["scenes"]] == ["scene 1", "scene 2"]
    every = Split(dict.fromkeys(labels, "test"), labels)
    facts = error_map_facts(store, every, judged(every, {}))
    assert (len(facts["scenes"]), facts["left_out"]) == (MOST_SCENES, 2)
    store.close()


def test_a_split_by_pixel_shows_parcels_with_test_pixels(small_store: Path) -> None:
    store = Store.open(small_store)
    split = split_parcels(store, SplitConfig(by="pixel"), 0)
    counts = count_parcels(np.zeros(0), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), 10)
    facts = error_map_facts(store, split, Evaluation(counts, counts))
    assert facts["scenes"][0]["unseen"] == sum(split.counts(10)["test"])
    store.close()


def test_stores_without_places_say_so(tmp_path: Path) -> None:
    for name, tile, words in (
        ("series", a_series_tile([3] * 9), "series"),
        ("patches", a_patch_tile([3] * 9), "small images"),
    ):
        store = Store.open(store_of(tmp_path / name, {"tile": tile}))
        split = Split({}, {})
        counts = count_parcels(np.zeros(0), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), 2)
        facts = error_map_facts(store, split, Evaluation(counts, counts))
        assert facts["scenes"] == []
        assert words in facts["why"]
        store.close()
