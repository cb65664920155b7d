"""What a report says depends on what was judged: parcels, pixels, dates, coarser classes, areas, places."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cropstar.reports.figures import RIGHT, WRONG, pack_codes
from cropstar.reports.report import evaluation_report
from tests.examples import a_grid
from tests.reports.test_report import Page, metrics, render, result

NAMES = ["maize", "meadow", "rapeseed"]
NEVER_SAW = "parcels that training never saw"


def with_unit(unit: str) -> dict[str, Any]:
    data = result(NAMES)
    data["test"]["unit"] = unit
    return data


def estimate(value: float | None, margin: float | None = None) -> dict[str, float | None]:
    return {"value": value, "error": margin, "margin": margin}


def areas(*, design: str | None) -> dict[str, Any]:
    margin = 12.5 if design else None
    return {
        "source": "map.tif",
        "design": design,
        "level": 0.95,
        "mapped": [100.0, 50.0, 0.0],
        "area": [estimate(80.0, margin), estimate(70.0, margin), estimate(0.0, margin)],
        "overall_accuracy": estimate(0.8, 0.05 if design else None),
        "users_accuracy": [estimate(0.9, 0.0), estimate(0.7), estimate(None)],
        "producers_accuracy": [estimate(0.8), estimate(0.8), estimate(None)],
        "warnings": [] if design else ["not known to be a probability <sample>"],
    }


def test_a_split_by_pixel_never_claims_unseen_parcels(tmp_path: Path) -> None:
    data = with_unit("pixel")
    data["split"]["by"] = "pixel"
    words = render(tmp_path, data).words
    assert NEVER_SAW not in words
    assert "no field is both" not in words
    assert "Of the pixels that were kept for the test, about 90 in 100 were given the right crop" in words
    assert "fields that training has seen, which flatters" in words
    assert "100 of 1,000 pixels of maize were mapped as meadow" in words
    assert "was chosen on the validation pixels" in words
    assert "a parcel counts in every part" in words


@pytest.mark.parametrize(
    ("split", "words"),
    [
        ({"by": "block"}, "whole blocks of ground went to one of three parts"),
        ({"by": "scene"}, "whole scenes went"),
        ({"by": "group"}, "whole groups of parcels went"),
        ({"by": "name", "name": "fold <1>"}, "the data set\u2019s own split \u2018fold <1>\u2019"),
    ],
)
def test_how_parts_came_about(split: dict[str, str], words: str, tmp_path: Path) -> None:
    data = with_unit("pixel")
    data["split"] |= split
    said = render(tmp_path, data).words
    assert words in said
    assert NEVER_SAW in said


def test_parcels_alone_have_one_table(tmp_path: Path) -> None:
    data = with_unit("parcel")
    page = render(tmp_path, data)
    assert len(page.pictures) == 3
    assert "pixel" not in page.words.replace("pixel size", "").replace("labelled pixels", "")
    assert "5,200 series a second" in page.words
    assert "ha a second" not in page.words
    del data["test"]["unit"]  # as earlier versions wrote it: the same table twice
    data["test"]["pixel"] = data["test"]["parcel"]
    assert render(tmp_path, data).words == page.words


def test_dates(tmp_path: Path) -> None:
    page = render(tmp_path, with_unit("date"))
    assert "Of the dates of parcels that training never saw, about 90 in 100 were given the right class" in page.words
    assert "Overall accuracy, dates" in page.words
    assert "of the dates of the test parcels have the right class" in page.words
    assert "By date" in page.words
    assert "pixels" not in page.words
    assert "Class by class" in page.words


def test_coarser_levels(tmp_path: Path) -> None:
    data = with_unit("pixel")
    level = {
        "name": "level 1",
        "classes": ["crops", "crops"],
        "pixel": metrics([[90, 10], [0, 100]]),
        "parcel": metrics([[9, 1], [1, 19]]),
    }
    data["test"]["levels"] = [level]
    page = render(tmp_path, data)
    assert "Coarser classes" in page.words
    assert "level 1, 2 classes, by parcel93.3 %" in page.words
    assert "level 1, 2 classes, by pixel95.0 %" in page.words
    assert "the 3 classes, by parcel90.0 %" in page.words
    assert len(page.pictures) == 5
    assert "Coarser" not in render(tmp_path, with_unit("pixel")).words


def test_areas(tmp_path: Path) -> None:
    data = with_unit("pixel") | {"areas": areas(design="random")}
    words = render(tmp_path, data).words
    assert "maize100.080.0\u00b1 12.590.0 %80.0 %" in words  # a margin of nothing is no margin
    assert "a simple random sample; intervals are of 95 %" in words
    assert "rapeseed0.0" not in words  # neither mapped nor found
    data["areas"] = areas(design=None)
    words = render(tmp_path, data).words
    assert "Not known to be a probability <sample>." in words
    assert "\u00b1" not in words
    assert "intervals are of" not in words


def test_the_map_of_errors(tmp_path: Path) -> None:
    codes = np.array([[RIGHT, WRONG]], dtype=np.uint8)
    scene = {"scene": "<tile>", "grid": a_grid(1, 2).to_json(), "step": 7, "right": 1, "wrong": 1, "unseen": 0}
    errors = {"scenes": [scene | {"codes": pack_codes(codes)}], "left_out": 3, "why": None}
    page = render(tmp_path, with_unit("pixel") | {"errors": errors})
    assert len(page.pictures) == 5
    assert "<tile>" in page.words
    assert "One pixel in 7 each way" in page.words
    assert "3 more scenes" in page.words
    nowhere = {"scenes": [], "left_out": 0, "why": "the store keeps series without their places"}
    assert (
        "no map of the errors: the store keeps series"
        in render(tmp_path, with_unit("parcel") | {"errors": nowhere}).words
    )
    assert "errors lie" not in render(tmp_path, with_unit("pixel")).words


def test_settings_that_were_left_open_are_left_out(tmp_path: Path) -> None:
    data = result(NAMES)
    data["model"] = {"dropout": 0.1, "heads": None, "name": "star", "layers": 2}
    words = render(tmp_path, data).words
    assert "namestar layers2 dropout0.1" in words
    assert "heads" not in words


def test_an_evaluation_says_what_it_judged(tmp_path: Path) -> None:
    data = result(NAMES)
    facts = {
        "figures": {"unit": "pixel", "pixel": metrics([[50, 50], [0, 100]]), "parcel": metrics([[5, 5], [0, 10]])},
        "part": "all", "store": "data/stores/next", "parcels": 20, "seen_in_training": 4, "split": {"by": "all"},
        "calibration": None, "sets": None, "areas": None, "errors": None,
    }  # fmt: skip
    data["classes"] = data["classes"][:2]
    data["split"]["counts"] = {part: counts[:2] for part, counts in data["split"]["counts"].items()}
    evaluation_report(tmp_path / "report.html", data, facts)
    words = Page((tmp_path / "report.html").read_text(encoding="utf-8")).words
    assert "Of 20 parcels (all parcels of data/stores/next), about 75 in 100 were given the right crop" in words
    assert "4 of them were in its training or validation, which flatters" in words
    assert NEVER_SAW not in words
    assert "convstar-4x32-001 \u2013 evaluation" in words
