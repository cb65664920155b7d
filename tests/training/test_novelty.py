"""Unknown fields: the promised rate also holds for fields that lack some of the training's dates."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import cropstar
from cropstar.config import ModelConfig, resolve_config
from cropstar.datasets.batches import Batch
from cropstar.datasets.samples import open_parts
from cropstar.datasets.splits import training_split
from cropstar.geo.calendar import Season
from cropstar.models.calibration import softmax
from cropstar.models.contract import Shape
from cropstar.models.novelty import (
    HIDDEN,
    ClassDistances,
    NoveltyScale,
    features_of_state,
    learnt_share,
    missing_dates,
)
from cropstar.models.zoo import build_model, restore_model
from cropstar.store.model_file import read_model
from cropstar.store.store import Store
from cropstar.training.novelty import HeldOutFeatures, Stages, calendars_of
from tests.training.label_tables import FAST, table_store, write_table

EVERY = slice(None)
RATE = 0.1


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A store and the run of a model of it."""
    folder = tmp_path_factory.mktemp("novelty")
    store = table_store(folder / "table", {"wheat": 90, "maize": 90, "beet": 90})
    settings = {
        **FAST,
        "epochs": 5,
        "split.validation": 0.35,
        "split.test": 0.35,
        "model.pool": "last",
        "soft_labels": "none",
    }
    run = cropstar.train(store=store, model="star", settings=settings, runs=folder / "runs")
    return store, run.folder


def unknown_share(trained: tuple[Path, Path], dates: slice, scale_of: slice) -> float:
    """The share of test fields, with some of their dates alone, that the scale for some dates calls unknown."""
    store, run = trained
    card, weights, _ = read_model(run / "model.safetensors")
    assert card.calibration is not None
    model = restore_model(card.model, card.shape, weights, run).eval()
    scale = NoveltyScale.from_card(card.calibration["unknown"], card.novelty)
    config = resolve_config(run / "config.yaml", {}, ())
    opened = Store.open(store)
    parts, _ = open_parts(
        opened, training_split(opened, config), config, spatial=False, normalisation=card.normalisation
    )
    batch: Batch = parts["test"].batch(list(range(len(parts["test"]))))
    opened.close()
    x, valid, days = (each[:, dates] for each in (batch.x, batch.valid, batch.days))
    with torch.no_grad():
        scores, features = features_of_state(model, model.advance(x, valid, days))
    place, stage = scale.of_dates(np.array(scale.days)[scale_of])
    distance = scale.distances[place].of(features).numpy()
    doubt = 1 - softmax(scores.numpy(), card.calibration["temperature"]["temperature"]).max(axis=1)
    limit = stage.limit(RATE)
    assert limit is not None
    return float((stage.oddness(distance, doubt) > limit).mean())


@pytest.mark.parametrize("step", [1, 2, 3])
def test_the_rate_holds_for_fields_with_every_nth_date(trained: tuple[Path, Path], step: int) -> None:
    dates = slice(step - 1, None, step)  # the last date is among them
    assert unknown_share(trained, dates, dates) < RATE + 0.08
    if step > 1:  # it would not by the scale of all dates
        assert unknown_share(trained, dates, EVERY) > 2 * RATE


def test_older_model_files_have_one_scale(trained: tuple[Path, Path]) -> None:
    card, _, _ = read_model(trained[1] / "model.safetensors")
    assert card.calibration is not None
    stored = card.calibration["unknown"]
    assert [row["share"] for row in stored["hidden"]] == list(HIDDEN)
    older = NoveltyScale.from_card({name: value for name, value in stored.items() if name != "hidden"}, card.novelty)
    assert older.of_dates(np.array(older.days)[::3])[1] in older.stages
    broken = {**stored, "hidden": [{"share": 0.5, "stages": stored["stages"][:1]}]}
    with pytest.raises(ValueError, match="hidden dates do not fit"):
        NoveltyScale.from_card(broken, card.novelty)


def test_missing_dates_and_the_share_that_serves_them() -> None:
    learnt = (0, 10, 20, 30, 40, 50)
    one = ((learnt, 3),)
    assert missing_dates(learnt, one, np.array(learnt)) == (0, 6)
    assert missing_dates(learnt, one, np.array([3, 12, 23])) == (0, 3)  # in season, some days later
    assert missing_dates(learnt, one, np.array([0, 20, 40])) == (2, 5)
    assert missing_dates(learnt, (), np.array([0, 20, 40])) == (2, 5)  # older files
    assert [learnt_share(HIDDEN, share) for share in (0, 0.1, 0.2, 0.5, 0.7, 0.95)] == [0, 0, 0.25, 0.5, 0.75, 0.75]
    assert learnt_share((), 0.5) == 0


def test_a_model_of_whole_seasons_needs_the_dates_to_come() -> None:
    learnt = ((0, 50, 100, 150, 200),)
    assert missing_dates((231,), ((learnt[0], 5),), np.array([0, 50, 100])) == (2, 5)
    assert missing_dates((231,), (), np.array([0, 50, 100])) == (0, 0)  # older files


def test_a_map_is_compared_with_the_dates_of_one_year_or_orbit() -> None:
    even, odd = tuple(range(0, 100, 20)), tuple(range(10, 110, 20))
    stages = tuple(sorted(even + odd))
    both = ((even, 30), (odd, 30))
    assert missing_dates(stages, both, np.array(odd)) == (0, 5)
    assert missing_dates(stages, (), np.array(odd)) == (5, 10)  # as older files had it
    assert missing_dates(stages, both, np.array(odd)[::2]) == (2, 5)
    few_sparse = (((90,), 1), (stages, 99))  # a field with a single date is no year
    assert missing_dates(stages, few_sparse, np.array(odd)) == (5, 10)


def test_a_store_of_two_years_has_two_calendars(tmp_path: Path) -> None:
    lines = (write_table(tmp_path / f"{year}.csv", {"wheat": 12, "maize": 12}, year=year) for year in (2021, 2022))
    first, second = (path.read_text().splitlines() for path in lines)
    shifted = [line.replace("f", "g", 1) for line in second[1:] if "-03-" not in line]  # March was cloudy
    table = tmp_path / "both.csv"
    table.write_text("\n".join([*first, *shifted]) + "\n")
    store = Store.open(Path(cropstar.ingest(table, output=tmp_path / "store")))
    (long, of_long), (short, of_short) = calendars_of(store)
    store.close()
    assert (of_long, of_short) == (24, 24)
    assert set(short) < set(long)
    assert missing_dates(long, ((long, of_long), (short, of_short)), np.array(short)) == (0, len(short))


@pytest.mark.parametrize("model", ["rf", "tempcnn"])
def test_models_of_whole_seasons_learn_limits_for_hidden_dates(model: str, tmp_path: Path) -> None:
    store = table_store(tmp_path / "table", {"wheat": 60, "maize": 60})
    settings = {"epochs": 2} if model == "tempcnn" else {}
    run = cropstar.train(store=store, model=model, recipe="quick", settings=settings, runs=tmp_path / "runs")
    card, _, _ = read_model(run.model)
    assert card.calibration is not None
    scale = NoveltyScale.from_card(card.calibration["unknown"], card.novelty)
    assert list(scale.hidden) == list(HIDDEN)
    (learnt, _), *_ = scale.calendars
    assert scale.of_dates(np.array(learnt))[1] is scale.stages[0]
    assert scale.of_dates(np.array(learnt)[::2])[1] is scale.hidden[0.5][0]
    far = [stages[0].distance[-1] for stages in (scale.stages, scale.hidden[0.75])]
    assert far[1] > far[0]
    wrong = {**card.calibration["unknown"], "calendars": [{"days": [1], "fields": 0}]}
    with pytest.raises(ValueError, match="calendar"):
        NoveltyScale.from_card(wrong, card.novelty)


class OneField:
    """A field that only its first date shows."""

    part, batch_size = "validation", 1

    def __len__(self) -> int:
        return 1

    def batch(self, indexes: list[int]) -> Batch:
        days = torch.tensor([[18_700, 18_710, 18_720]])
        valid = torch.tensor([[True, False, False]])
        return Batch(
            torch.ones(1, 3, 2), valid, days, torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.int64)
        )


def test_a_share_that_hides_all_that_was_seen_has_no_scale() -> None:
    model = build_model(ModelConfig(name="star", layers=1, hidden=4, pool="last"), Shape(2, 2, 3))
    stages = Stages(Season(73, 20), (0, 10, 20))
    held_out = HeldOutFeatures(2, stages, torch.device("cpu"))
    distances = (ClassDistances(np.zeros((2, 8)), np.eye(8)),) * 3
    held_out.add(model, distances, OneField())
    scale = held_out.scale(1.0, distances)
    assert scale is not None
    assert len(scale.stages) == 3
    assert set(scale.hidden) < set(HIDDEN)
