"""`cropstar evaluate` on classes by date and on tables with levels: the figures of the training again, in words."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cropstar.errors import UsageError
from tests.cli.test_evaluate import facts, fields, refusal, run_command, trained
from tests.examples import a_fingerprint, a_series_tile, store_of


def test_dates(tmp_path: Path) -> None:
    tile = a_series_tile([4, 6, 5] * 14)
    labels = np.random.default_rng(0).integers(0, 2, len(tile.days)).astype(np.int16)
    tile = replace(tile, fingerprint=a_fingerprint(("B01", "B02"), resolution=0.0), date_labels=labels)
    store = store_of(tmp_path / "store", {"tile": tile})
    run = trained(store, tmp_path / "runs", **{"model.name": "star", "target": "date"})
    result, found = json.loads(run.result.read_text()), facts(run.folder)
    assert result["test"]["unit"] == "date"
    assert found["figures"] == result["test"]
    assert not found["pixels"]
    assert found["errors"]["scenes"] == []
    text = run_command(run.folder).stdout
    assert "by date" in text
    assert "dates of" in text
    assert "by pixel" not in text
    assert "dates of parcels that training never saw" in run.report.read_text(encoding="utf-8")
    table = tmp_path / "areas.csv"
    table.write_text("class,hectares\nmaize,3\n")
    failure = refusal(run.folder, "--areas", table)
    assert isinstance(failure, UsageError)
    assert "no areas of classes by date" in str(failure)


def test_levels(tmp_path: Path) -> None:
    tile = fields()
    classes = tile.fingerprint.classes.with_lineages({"maize": ["summer"], "wheat": ["winter"]})
    tile = replace(tile, fingerprint=replace(tile.fingerprint, classes=classes))
    run = trained(store_of(tmp_path / "store", {"tile": tile}), tmp_path / "runs", **{"model.name": "star"})
    found = facts(run.folder)["figures"]
    (level,) = found["levels"]
    assert level["classes"] == ["summer", "winter"]
    assert level["parcel"]["confusion"] == found["parcel"]["confusion"]  # a coarse class for each class
    assert f"{level['name']}, 2 classes, by parcel" in run_command(run.folder).stdout


def test_pixels_of_known_fields_are_called_that(small_store: Path, tmp_path: Path) -> None:
    run = trained(small_store, tmp_path / "runs", **{"model.name": "star", "split.by": "pixel"})
    assert "fields that training has seen" in run_command(run.folder).stdout
    report = run.report.read_text(encoding="utf-8")
    assert "parcels that training never saw" not in report
    assert "so the figures are optimistic" in report


@pytest.mark.parametrize("unit", ["pixel", "date"])
def test_comparisons_name_what_was_counted(unit: str, tmp_path: Path) -> None:
    from cropstar.reports.comparison import compare_runs, format_comparison
    from tests.reports.test_comparison import a_run, level

    test = {"parcel": level(0.8), "pixel": level(0.7), "unit": unit}
    comparison = compare_runs([a_run(tmp_path / "run", test=test)])
    assert f"macro-F1, {unit}s" in format_comparison(comparison)
    alone = compare_runs([a_run(tmp_path / "alone", test={**test, "unit": "parcel"})])
    assert "macro-F1, " not in format_comparison(alone)
    assert alone.to_json()["runs"][0]["pixel"] is None
