"""`cropstar inspect` of what is no store of images: states of seasons, and classes by date."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from cropstar.errors import ArtifactError, UsageError
from cropstar.prediction.job import predict
from cropstar.prediction.request import MapRequest
from cropstar.reports.results import RESULT
from tests.cli.test_inspect import facts, model, refusal, said  # noqa: F401  # the model is a fixture
from tests.examples import a_series_tile, store_of
from tests.prediction.making import CLASSES, untrained

FIGURES = {"overall_accuracy": 0.651, "macro_f1": 0.295, "confusion": [[1, 0], [0, 1]]}


@pytest.fixture(scope="module")
def season(small_scene: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("season")
    trained = untrained(folder / "model.safetensors", small_scene / "tile.tif", "star")
    state = folder / "season.h5"
    predict(small_scene / "tile.tif", folder / "map.tif", MapRequest(model=trained, device="cpu", state=state))
    return state


def test_a_state_says_what_it_is(season: Path) -> None:
    told = facts(season)
    assert told["kind"] == "season"
    assert told["model_path"] == str(season.with_name("model.safetensors"))
    assert (told["shape"], len(told["dates"]), told["layers"]) == ([96, 96], 6, [[5], [5]])
    assert told["bytes"] == season.stat().st_size
    assert told["bytes_per_pixel"] == 4 * 10
    assert [row["name"] for row in told["classes"]] == CLASSES.names
    text = said(season)
    for part in ("the state of a season", "2 layers of 5", "96 \u00d7 96 pixels", "6 dates", told["dates"][-1]):
        assert part in text, part
    for part in ("EPSG:32632", told["model"], "map.tif", "cropstar update", *CLASSES.names):
        assert part in text, part
    assert "not there" not in text


def test_a_state_whose_model_was_moved(season: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.h5"
    copy.write_bytes(season.read_bytes())
    with h5py.File(copy, "r+") as handle:
        card = json.loads(handle["card"][()].tobytes())
        card["model_path"] = str(tmp_path / "gone.safetensors")
        del handle["card"]
        handle["card"] = np.frombuffer(json.dumps(card).encode(), dtype=np.uint8)
    assert "(missing: cropstar update --model PATH)" in " ".join(said(copy).split())


def test_a_damaged_state_and_a_picture_of_one(season: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.h5"
    copy.write_bytes(season.read_bytes())
    with h5py.File(copy, "r+") as handle:
        del handle["state/1"]
    failure = refusal(copy)
    assert isinstance(failure, ArtifactError)
    assert "cropstar predict --state" in str(failure)
    assert isinstance(refusal(season, "-o", tmp_path / "sheet.png"), UsageError)


def result_of(unit: str | None) -> dict[str, Any]:
    test = {"pixel": FIGURES, "parcel": {**FIGURES, "confusion": [[2, 0], [0, 1]]}}
    return {"split": {"counts": {"test": [20, 11]}}, "test": {**test, **({"unit": unit} if unit else {})}}


@pytest.mark.parametrize(
    ("unit", "lines", "missing"),
    [
        ("date", ["by date", "by parcel"], "by pixel"),
        ("parcel", ["by parcel"], "by pixel"),
        (None, ["by pixel"], "by date"),
    ],
)
def test_a_run_says_what_was_judged(model: Path, unit: str | None, lines: list[str], missing: str) -> None:  # noqa: F811
    (model.parent / RESULT).write_text(json.dumps(result_of(unit)))
    text = said(model.parent)
    assert all(line in text for line in lines)
    assert missing not in text
    told = facts(model.parent)["test"]
    assert told["unit"] == (unit or "pixel")
    assert told["parcel"]["macro_f1"] == 0.295


def test_a_store_with_classes_by_date_counts_dates(tmp_path: Path) -> None:
    tile = a_series_tile([3, 4])
    labels = np.array([0, 0, 1, 1, 1, 1, -1], dtype=np.int16)
    store = store_of(tmp_path / "store", {"fields": replace(tile, date_labels=labels)})
    told = facts(store)
    assert [row["dates"] for row in told["classes"]] == [2, 4]
    assert "6 dates of 2 classes, one class per date" in said(store)
    plain = store_of(tmp_path / "plain", {"fields": tile})
    assert "dates" not in facts(plain)["classes"][0]
    assert "one class per date" not in said(plain)
