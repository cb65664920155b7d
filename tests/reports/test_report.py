"""The HTML report: complete in itself, safe with any name, honest about what was judged and what is not defined."""

from __future__ import annotations

import base64
import copy
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from cropstar.errors import ArtifactError
from cropstar.reports.figures import RIGHT, WRONG, pack_codes
from cropstar.reports.report import evaluation_report, write_report
from cropstar.reports.wording import DASH, areas, duration, in_hundred, percent, score
from tests.examples import a_grid

VOID = {"meta", "img", "br", "hr", "link", "input"}


def metrics(confusion: list[list[int]]) -> dict[str, Any]:
    total = sum(map(sum, confusion))
    right = sum(row[number] for number, row in enumerate(confusion))
    return {
        "overall_accuracy": right / total,
        "kappa": 0.81,
        "macro_f1": 0.823,
        "weighted_f1": 0.87,
        "confusion": confusion,
        "classes": [
            {"precision": 0.9, "recall": row[number] / sum(row), "f1": 0.85, "iou": 0.74, "support": sum(row)}
            for number, row in enumerate(confusion)
        ],
    }


def result(names: list[str]) -> dict[str, Any]:
    """A training result as result.json holds it; one parcel in ten of a class goes to its neighbour."""
    size = len(names)
    confusion = [
        [(18 if column == row else 2 if column == (row + 1) % size else 0) for column in range(size)]
        for row in range(size)
    ]
    return {
        "version": "0.1.0",
        "run": "convstar-4x32-001",
        "command": "cropstar train --model convstar --layers 4",
        "classes": [
            {"number": number, "name": name, "colour": f"#{number * 7 % 256:02x}8040"}
            for number, name in enumerate(names)
        ],
        "data": {
            "store": "data/stores/demo",
            "bands": ["B04", "B08"],
            "dates": ["2023-03-01", "2023-06-01"],
            "tiles": 4,
            "resolution": 10.0,
        },
        "split": {"by": "parcel", "counts": {"train": [61] * size, "validation": [13] * size, "test": [20] * size}},
        "model": {"name": "convstar", "layers": 4, "hidden": 32, "parameters": 123456, "calibrated": True},
        "config": "model:\n  name: convstar\n",
        "history": [
            {
                "epoch": epoch,
                "loss": 2.0 / epoch,
                "validation": {"overall_accuracy": 1 - 0.5 / epoch, "macro_f1": None if epoch == 1 else 0.5},
                "seconds": 20.1,
            }
            for epoch in range(1, 5)
        ],
        "best_epoch": 3,
        "test": {"pixel": metrics([[50 * value for value in row] for row in confusion]), "parcel": metrics(confusion)},
        "throughput": {"samples_per_second": 5200.0, "seconds": 210.0, "peak_memory_mb": 900.0},
    }


class Page(HTMLParser):
    """What a browser would make of the report: open tags in order, text, attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        assert not self._open, "every tag is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    @property
    def words(self) -> str:
        return " ".join(self.text.split())

    @property
    def pictures(self) -> list[bytes]:
        head = "data:image/svg+xml;base64,"
        return [base64.b64decode(value.removeprefix(head)) for name, value in self.attributes if name == "src"]


def render(folder: Path, data: dict[str, Any]) -> Page:
    write_report(folder / "report.html", data)
    return Page((folder / "report.html").read_text(encoding="utf-8"))


def test_the_report_says_what_a_reader_needs(tmp_path: Path) -> None:
    page = render(tmp_path, result(["maize", "meadow", "rapeseed"]))
    for words in (
        "convstar-4x32-001",
        "Of the parcels that training never saw, about 90 in 100 were given the right crop",
        "90.0 %",
        "0.82",
        "Epoch 3 of 4 was chosen on the validation parcels",
        "The test parcels were used once",
        "2 of 20 parcels of maize were mapped as meadow (10.0 %)",
        "123,456",
        "2 from 2023-03-01 to 2023-06-01",
        "183",  # training parcels in all
        "3 min 30 s",
        "5,200 labelled pixels a second, 52 ha a second",
        "cropstar train --model convstar --layers 4",
        "name: convstar",
    ):
        assert words in page.words
    assert "details" in page.tags


def test_the_report_stands_alone(tmp_path: Path) -> None:
    page = render(tmp_path, result(["maize", "meadow"]))
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"https?://|url\(|@import", html)
    assert {"script", "link", "iframe"}.isdisjoint(page.tags)
    loads = [value for name, value in page.attributes if name in ("src", "href", "srcset")]
    assert len(loads) == 4
    assert all(value.startswith("data:image/svg+xml;base64,") for value in loads)
    for picture in page.pictures:
        assert ElementTree.fromstring(picture).tag.endswith("svg")


def test_names_are_text_whatever_they_hold(tmp_path: Path) -> None:
    data = result(["<script>alert(1)</script>", '$a_1$ & "b"', "_x", "two\nlines", "name " * 60])
    data["classes"][1]["colour"] = 'red"><script>alert(2)</script>'
    data["run"] = data["command"] = data["config"] = "<img src=x onerror=alert(3)> \udcff"
    data["model"]["note"] = "<b>"
    page = render(tmp_path, data)
    assert "script" not in page.tags
    assert "b" not in page.tags
    assert page.tags.count("img") == 4
    assert "<script>alert(1)</script>" in page.words
    assert '$a_1$ & "b"' in page.words
    assert "two lines" in page.words
    assert all("alert" not in value for _, value in page.attributes)


def test_the_same_result_is_the_same_bytes(tmp_path: Path) -> None:
    data = result(["maize", "meadow"])
    write_report(tmp_path / "first.html", data)
    write_report(tmp_path / "second.html", copy.deepcopy(data))
    assert (tmp_path / "first.html").read_bytes() == (tmp_path / "second.html").read_bytes()


def test_undefined_values_are_dashes(tmp_path: Path) -> None:
    data = result(["maize", "meadow", "never seen"])
    for level in ("parcel", "pixel"):
        data["test"][level]["kappa"] = None
        data["test"][level]["confusion"][2] = [0, 0, 0]
        data["test"][level]["classes"][2] = dict.fromkeys(("precision", "recall", "f1", "iou")) | {"support": 0}
    data["throughput"]["peak_memory_mb"] = None
    page = render(tmp_path, data)
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    row = html[html.index("</span>never seen") :].split("</tr>")[0]
    assert re.findall(r"<td[^>]*>(.*?)</td>", row) == [*[DASH] * 4, "0"] * 2
    assert f"peak memory{DASH} cropstar train" in page.words
    assert "None" not in page.text
    assert "nan" not in page.words.split()
    assert "fewer than 10 test parcels" in page.words


def test_thirty_five_classes(tmp_path: Path) -> None:
    page = render(tmp_path, result([f"crop {number}" for number in range(35)]))
    assert len(page.pictures) == 4
    assert "crop 34" in page.words


def test_one_class_one_epoch_no_mistake(tmp_path: Path) -> None:
    data = result(["maize"])
    data["test"] = {"parcel": metrics([[5]]), "pixel": metrics([[500]])}
    data["history"], data["best_epoch"] = data["history"][:1], 1
    words = render(tmp_path, data).words
    assert "all were given the right crop" in words
    assert "No test parcel was mistaken" in words
    data["history"], data["best_epoch"] = [], None
    assert len(render(tmp_path, data).pictures) == 2


def test_a_result_with_parts_missing_is_refused(tmp_path: Path) -> None:
    data = result(["maize"])
    del data["history"]
    with pytest.raises(ArtifactError, match="lacks history"):
        write_report(tmp_path / "report.html", data)
    assert not list(tmp_path.iterdir())


def test_rounding_never_flatters() -> None:
    assert percent(0.99999) == "> 99.9 %"
    assert percent(1.0) == "100.0 %"
    assert percent(1e-6) == "< 0.1 %"
    assert score(0.9999) == "0.99"
    assert score(1.0) == "1.00"
    assert score(None) == score(float("nan")) == DASH
    assert in_hundred(0.998) == "more than 99 in 100"
    assert in_hundred(0.001) == "fewer than 1 in 100"
    assert areas([2500.4, 0.02]) == ["2,500", "< 1"]
    assert areas([1.0, 0.25]) == ["1.00", "0.25"]
    assert duration(3725.0) == "1 h 02 min"
    assert duration(3.21) == "3.2 s"


def test_equal_crops_are_not_ranked(tmp_path: Path) -> None:
    data = result(["maize", "wheat", "oats"])
    write_report(tmp_path / "equal.html", data)
    assert "The best mapped" not in (tmp_path / "equal.html").read_text()
    data["test"]["parcel"]["classes"][1]["f1"] = 0.95
    write_report(tmp_path / "ranked.html", data)
    assert "The best mapped crop is wheat" in (tmp_path / "ranked.html").read_text()


# --- sentences: parcels, pixels, dates, coarser classes, areas, places

NAMES = ["maize", "meadow", "rapeseed"]
NEVER_SAW = "parcels that training never saw"


def with_unit(unit: str) -> dict[str, Any]:
    data = result(NAMES)
    data["test"]["unit"] = unit
    return data


def estimate(value: float | None, margin: float | None = None) -> dict[str, float | None]:
    return {"value": value, "error": margin, "margin": margin}


def area_estimates(*, design: str | None) -> dict[str, Any]:
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
    assert "no field is used for both" not in words
    assert "Of the pixels that were kept for the test, about 90 in 100 were given the right crop" in words
    assert "fields that training has seen, so the figures are optimistic" in words
    assert "100 of 1,000 pixels of maize were mapped as meadow" in words
    assert "was chosen on the validation pixels" in words
    assert "a parcel counts in every part" in words


@pytest.mark.parametrize(
    ("split", "words"),
    [
        ({"by": "block"}, "whole spatial blocks were assigned to training, validation or test"),
        ({"by": "scene"}, "whole scenes were assigned"),
        ({"by": "group"}, "whole groups of parcels were assigned"),
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
    assert "Accuracy by class" in page.words


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
    data = with_unit("pixel") | {"areas": area_estimates(design="random")}
    words = render(tmp_path, data).words
    assert "maize100.080.0\u00b1 12.590.0 %80.0 %" in words  # a margin of nothing is no margin
    assert "Sampling design: simple random sample; 95 % intervals" in words
    assert "rapeseed0.0" not in words  # neither mapped nor found
    data["areas"] = area_estimates(design=None)
    words = render(tmp_path, data).words
    assert "Not known to be a probability <sample>." in words
    assert "\u00b1" not in words
    assert "Sampling design" not in words


def test_the_map_of_errors(tmp_path: Path) -> None:
    codes = np.array([[RIGHT, WRONG]], dtype=np.uint8)
    scene = {"scene": "<tile>", "grid": a_grid(1, 2).to_json(), "step": 7, "right": 1, "wrong": 1, "unseen": 0}
    errors = {"scenes": [scene | {"codes": pack_codes(codes)}], "left_out": 3, "why": None}
    page = render(tmp_path, with_unit("pixel") | {"errors": errors})
    assert len(page.pictures) == 5
    assert "<tile>" in page.words
    assert "Every 7th pixel in each direction" in page.words
    assert "3 more scenes" in page.words
    nowhere = {"scenes": [], "left_out": 0, "why": "the store keeps series without their places"}
    assert (
        "no map of errors: the store keeps series" in render(tmp_path, with_unit("parcel") | {"errors": nowhere}).words
    )
    assert "Map of errors" not in render(tmp_path, with_unit("pixel")).words


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
    assert "4 of them were used in training or validation: the figures are optimistic" in words
    assert NEVER_SAW not in words
    assert "convstar-4x32-001 \u2013 evaluation" in words
