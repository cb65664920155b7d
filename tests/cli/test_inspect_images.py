"""`cropstar inspect` on collections of images and on classes with levels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cropstar.cli.inspect import inspect
from cropstar.reports.text import class_lines, level_sizes
from tests.cli.invoking import InProcess
from tests.examples import UTM
from tests.reports.collections import CLASSES, a_store, an_image

said, facts = InProcess(inspect).said, InProcess(inspect).facts


def test_the_facts_equal_the_images(tmp_path: Path) -> None:
    images = [an_image(index, dates=3, shift=10) for index in range(10)]
    told = facts(a_store(tmp_path, images))
    scene = told["scenes"][0]
    assert (told["layout"], told["tiles"], scene["tiles"]) == ("patches", 3, 3)
    assert (scene["images"], scene["shape"], scene["crs"]) == (10, [12, 12], "no coordinate system")
    days = sorted({int(day) for image in images for day in image.days})
    assert len(told["dates"]) == len(scene["dates"]) == len(days)
    for day, row in zip(days, told["dates"], strict=True):
        masks = [image.valid[list(image.days).index(day)] for image in images if day in image.days]
        assert row["observations"] == 144 * len(masks)
        assert row["clear"] == pytest.approx(np.mean(masks))
    for row in told["classes"]:
        pixels = sum(int((image.labels == row["number"]).sum()) for image in images)
        # Field n is the right one of image n - 1 and the left one of image n: eleven fields in twenty pieces.
        fields = sum(number % 4 == row["number"] for number in range(11))
        assert (row["pixels"], row["parcels"]) == (pixels, fields)
        assert row["hectares"] == pytest.approx(pixels / 100)
        assert tuple(row["lineage"]) == CLASSES[row["number"]].lineage


def test_hectares_of_projected_images(tmp_path: Path) -> None:
    told = facts(a_store(tmp_path, [an_image(0)], crs=UTM))
    assert told["scenes"][0]["crs"] == "WGS 84 / UTM zone 32N (EPSG:32632)"
    assert sum(row["hectares"] for row in told["classes"]) == pytest.approx(12 * 11 / 100)


def test_in_words(tmp_path: Path) -> None:
    store = a_store(tmp_path / "store", [an_image(index) for index in range(10)])
    text = said(store, "-o", tmp_path / "sheet.png")
    for part in ("patches layout", "3 tiles, 10 images of 12 \u00d7 12 pixels, 5 dates", "pixels of 10 m"):
        assert part in text, part
    assert all(len(line) <= 100 for line in text.splitlines())
    assert (tmp_path / "sheet.png").read_bytes().startswith(b"\x89PNG")
    tile = said(sorted((store / "tiles").iterdir())[0])
    assert "one tile" in tile
    assert "4 images of 12" in tile


def row(number: int, name: str, parcels: int, *lineage: str) -> dict[str, Any]:
    return {"number": number, "name": name, "colour": "#123456", "parcels": parcels} | (
        {"lineage": list(lineage)} if lineage else {}
    )


def lines_of(rows: list[dict[str, Any]]) -> list[list[str]]:
    plain = [line.replace("\x1b[38;2;18;52;86m\u25a0\x1b[0m ", "* ") for line in class_lines(rows)]
    return [[line[: len(line) - len(line.lstrip())], *line.split()[:3]] for line in plain]


def test_coarser_classes_stand_above_theirs_with_their_sums() -> None:
    rows = [
        row(0, "barley", 2, "fields", "cereals"),
        row(1, "forest", 5, "forest", "forest"),
        row(2, "maize", 3, "fields", "maize"),
        row(3, "wheat", 4, "fields", "cereals"),
    ]
    assert lines_of(rows)[1:] == [
        ["  ", "fields", "9"],
        ["    ", "cereals", "6"],
        ["      ", "*", "barley", "2"],
        ["      ", "*", "wheat", "4"],
        ["    ", "*", "maize", "3"],  # the only finer class of its own name
        ["  ", "*", "forest", "5"],
        ["    ", "in", "all", "14"],
    ]
    assert level_sizes(rows) == [2, 3, 4]


def test_a_flat_table_stays_flat() -> None:
    rows = [row(0, "maize", 3), row(1, "wheat", 4)]
    assert lines_of(rows)[1:] == [["  ", "*", "maize", "3"], ["  ", "*", "wheat", "4"], ["    ", "in", "all", "7"]]
    assert level_sizes(rows) == [2]
    assert class_lines([]) == ["  class"]


def test_a_name_of_two_groups_is_two_lines() -> None:
    rows = [row(0, "a", 1, "x", "same"), row(1, "b", 1, "y", "same"), row(2, "c", 1, "x", "same")]
    assert [line[1] for line in lines_of(rows)[1:-1]] == ["x", "same", "*", "*", "y", "same", "*"]
