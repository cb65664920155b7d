"""Recipes fill in what the user left open, by the data, and say why."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from cropstar.config import TrainConfig, dump_config, load_yaml, resolve_config
from cropstar.models.contract import Shape
from cropstar.models.normalisation import normalises_by_batch
from cropstar.models.zoo import build_model
from cropstar.sources.ingest import ingest
from cropstar.sources.table import open_table
from cropstar.training.recipes import DataFacts, explained, fill, with_recipe
from tests.training.tunings import a_store

FIELDS = DataFacts(fields=700, samples=700, dates=14, bands=13, classes=6, span=200, images=False, pixels=False)
IMAGES = DataFacts(fields=70, samples=160, dates=9, bands=10, classes=8, span=250, images=True, pixels=True)


def config_of(model: str, **given: Any) -> TrainConfig:
    return resolve_config(None, {"store": Path("store"), "model.name": model, **given})


def test_what_the_user_gives_is_kept() -> None:
    given = {"model.hidden": 40, "model.pool": "last", "epochs": 3, "optimiser.learning_rate": 0.02, "patience": 2}
    filled, choices = fill(config_of("star", **given), FIELDS)
    assert (filled.model.hidden, filled.model.pool, filled.epochs) == (40, "last", 3)
    assert (filled.optimiser.learning_rate, filled.patience) == (0.02, 2)
    assert not {choice.key for choice in choices} & set(given)
    assert filled.model.normalise
    build_model(filled.model, Shape(13, 6, 14))  # nothing was chosen that goes with another pooling


def test_a_filled_configuration_is_filled_no_further(tmp_path: Path) -> None:
    filled, _ = fill(config_of("star"), FIELDS)
    file = tmp_path / "config.yaml"
    file.write_text(dump_config(filled), encoding="utf-8")
    again, choices = fill(resolve_config(file, {}), FIELDS)
    assert again == filled
    assert choices == ()


def test_every_choice_is_explained_and_the_text_reads_back() -> None:
    filled, choices = fill(config_of("convstar"), IMAGES)
    text = explained(filled, choices)
    assert load_yaml(text, "text") == load_yaml(dump_config(filled), "dump")
    assert text.count("[by the recipe: ") == len(choices)


@pytest.mark.parametrize(
    "given",
    [{"refit": True}, {"beside": [{"name": "gru"}]}, {"split.validation": 0.2}, {"patience": 4}, {"recipe": "quick"}],
)
def test_few_fields_are_cross_fitted_unless_validation_has_another_use(given: dict[str, Any]) -> None:
    filled, _ = fill(config_of("star"), FIELDS)
    assert (filled.cross_fit, filled.patience) == (3, None)
    assert fill(config_of("star", **given), FIELDS)[0].cross_fit == 0
    assert fill(config_of("star"), replace(FIELDS, fields=5000, samples=5000))[0].cross_fit == 0
    assert fill(config_of("star", cross_fit=0), FIELDS)[0].patience is not None
    many = replace(FIELDS, fields=3000, samples=3000)
    assert fill(config_of("star"), many)[0].cross_fit == 0
    assert fill(config_of("star"), replace(many, shares=False))[0].cross_fit == 3, "validation would be a whole group"


def test_labels_of_few_series_are_softened_unless_somebody_else_teaches(monkeypatch: pytest.MonkeyPatch) -> None:
    def softened(facts: DataFacts = FIELDS) -> str:
        return fill(config_of("star"), facts)[0].soft_labels

    assert softened() == "both"
    assert softened(replace(FIELDS, fields=5000, samples=5000)) == "none"
    assert softened(replace(FIELDS, pixels=True)) == "none"
    assert softened(replace(FIELDS, fields=25, validation=5)) == "mixes"
    assert softened(replace(FIELDS, fields=25, several=True)) == "forest"  # dates of sensors cannot be mixed
    assert softened(replace(FIELDS, fields=4)) == "none"
    others = {"soft_labels": "none", "distil": "run", "loss.name": "dice", "target": "date"}
    for key, value in others.items():
        assert fill(config_of("star", **{key: value}), FIELDS)[0].soft_labels == "none"
    monkeypatch.setattr("cropstar.training.recipes.has_trees", lambda: False)
    assert softened() == "none"


def test_dates_are_hidden_as_long_as_fields_can_be_learnt_by_heart() -> None:
    def hidden(**facts: Any) -> tuple[float, float]:
        filled, _ = fill(config_of("star"), replace(FIELDS, **facts))
        return filled.augmentation.date_dropout, filled.model.dropout

    assert hidden() == hidden(fields=3000, samples=3000) == (0.25, 0.3)
    assert hidden(fields=6000, samples=6000) == (0.1, 0.2)
    assert hidden(fields=3000, samples=3000, bands=1) == (0.1, 0.2)  # of one band every date matters
    assert hidden(fields=6000, samples=6000, bands=1) == (0.0, 0.2)


def test_steps_are_counted_by_the_fields_that_are_learnt_from() -> None:
    crossed, _ = fill(config_of("star"), replace(FIELDS, validation=100))
    assert crossed.epochs == round(1.2 * 800 / 25)  # 25 batches of 32
    many = replace(FIELDS, fields=6120, samples=6120, validation=1080)
    assert fill(config_of("star"), many)[0].split.validation == 0.05
    assert fill(config_of("star"), many)[0].epochs == round(4000 / 107)  # 6,840 fields in batches of 64
    assert fill(config_of("star"), replace(many, shares=False))[0].split.validation is None


def test_several_processes_get_a_model_without_batch_statistics() -> None:
    filled, _ = fill(config_of("star"), replace(FIELDS, processes=2))
    assert not normalises_by_batch(build_model(filled.model, Shape(13, 6, 14, season=(80, 200))))


def test_models_that_are_fitted_at_once_need_no_recipe() -> None:
    assert fill(config_of("rf"), FIELDS)[1] == ()


def test_the_paper_has_the_papers_settings() -> None:
    filled, _ = fill(config_of("convstar", recipe="paper"), IMAGES)
    assert (filled.model.layers, filled.model.hidden, filled.model.pool, filled.model.normalise) == (
        4,
        32,
        "last",
        False,
    )
    assert filled.optimiser.learning_rate == 0.001
    assert fill(config_of("star", recipe="paper"), FIELDS)[0].model.hidden == 128


@settings(max_examples=60, deadline=None)
@given(
    fields=some.integers(3, 100_000),
    dates=some.integers(1, 400),
    bands=some.integers(1, 20),
    images=some.booleans(),
    recipe=some.sampled_from(["auto", "quick", "paper"]),
    model=some.sampled_from(["star", "bistar", "gru", "transformer", "tempcnn", "ltae", "tcn", "inceptiontime"]),
)
def test_every_recipe_makes_a_valid_configuration(
    fields: int, dates: int, bands: int, images: bool, recipe: str, model: str
) -> None:
    name = "convstar" if images else model
    facts = DataFacts(fields, fields, dates, bands, 5, 5 * dates, images, images)
    filled, _ = fill(config_of(name, recipe=recipe), facts)
    build_model(filled.model, Shape(bands, 5, dates, season=(1, 5 * dates)))
    steps = filled.epochs * fields / (filled.batch if images else filled.series_batch)
    assert filled.epochs >= 2
    if recipe != "paper" and fields > 100:
        assert steps < max(8000, 3 * fields / 8)


def test_print_config_says_why(
    run_cli: Callable[..., CompletedProcess[str]], small_store: Path, tmp_path: Path
) -> None:
    shown = run_cli("train", "--store", str(small_store), "--model", "star", "--print-config", cwd=tmp_path)
    assert shown.returncode == 0
    assert re.search(r"  pool: season +# scores from the last state.* \[by the recipe: .+\]", shown.stdout)
    assert all("#" in line for line in shown.stdout.splitlines() if ":" in line), "every key has a comment"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("recipe", ["quick", "paper"])
def test_recipes_by_option(
    recipe: str, run_cli: Callable[..., CompletedProcess[str]], small_store: Path, tmp_path: Path
) -> None:
    split = ["--set", "split.validation=0.3", "--set", "split.test=0.3"]
    done = run_cli(
        *("train", "--store", str(small_store), "--model", "star", "--recipe", recipe, "--epochs", "1", *split),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    (result,) = tmp_path.glob("data/runs/*/result.json")
    model = json.loads(result.read_text())["model"]
    assert model["pool"] == ("season" if recipe == "quick" else "last")


@pytest.mark.parametrize("recipe", ["auto", "quick", "paper"])
def test_a_table_gets_a_series_model_unless_one_is_named(
    recipe: str, run_cli: Callable[..., CompletedProcess[str]], small_store: Path, tmp_path: Path
) -> None:
    store = a_store(tmp_path)
    options = {"store": store, "recipe": recipe, "model.layers": 1}
    filled, choices = with_recipe(resolve_config(None, options))
    assert (filled.model.name, filled.model.layers) == ("star", 1)
    assert "model.name" in {choice.key for choice in choices}
    assert with_recipe(resolve_config(None, {**options, "model.name": "gru"}))[0].model.name == "gru"
    assert with_recipe(resolve_config(None, {**options, "store": small_store}))[0].model.name == "convstar"
    refused = run_cli("train", "--store", str(store), "--model", "convstar", "--recipe", recipe, cwd=tmp_path)
    assert refused.returncode == 2
    assert "convstar needs images; use a series model, e.g. --model star" in refused.stderr


@pytest.mark.parametrize(("step", "every"), [(10, 30), (20, None), (30, None)])
def test_groups_of_other_steps_are_averaged_to_the_coarsest(step: int, every: int | None, tmp_path: Path) -> None:
    """Monthly composites of one year beside dates every ten days of another."""
    lines = ["id,date,crop,year,B1"]
    for field in range(12):
        year, days = (2021, 30) if field % 2 else (2022, step)
        for day in range(0, 180, days):
            when = date(year, 3, 1) + timedelta(day)
            lines.append(f"{field},{when.isoformat()},{'ab'[field // 2 % 2]},{year},0.{field + 1}")
    table = tmp_path / "fields.csv"
    table.write_text("\n".join(lines) + "\n", encoding="utf-8")
    ingest(open_table(table), tmp_path / "store")
    filled, choices = with_recipe(config_of("star", store=tmp_path / "store"))
    assert filled.regular.every == every
    assert ("regular.every" in {choice.key for choice in choices}) == (every is not None)
    given, _ = with_recipe(config_of("star", store=tmp_path / "store", **{"regular.every": 5}))
    assert given.regular.every == 5
