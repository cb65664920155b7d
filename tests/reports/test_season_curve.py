"""The season's drawing: marks stand on their day, and any number of classes with any names can be drawn."""

from __future__ import annotations

import io
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from numpy.typing import NDArray

from cropstar.reports.drawing import INK
from cropstar.reports.figures import SEASON_WIDTH, day_words, season_curve


def earliness(known: list[int | None], days: int = 200, start: int = 60) -> dict[str, Any]:
    """A class is known from its day on, and not at all before it."""
    grid = list(range(0, days + 1, 10))
    rows = [[None if day is None else 0.9 if each >= day else 0.1 for each in grid] for day in known]
    return {
        "start": start,
        "days": grid,
        "samples": 10,
        "accuracy": [each / max(days, 1) for each in grid],
        "macro_f1": [None, *(0.5 for _ in grid[1:])],
        "class_f1": rows,
        "support": [5] * len(known),
        "known": 0.9,
        "known_from": known,
        "accurate_from": None,
    }


def classes(names: list[str]) -> list[dict[str, Any]]:
    return [{"number": number, "name": name, "colour": "#d9a441"} for number, name in enumerate(names)]


def picture(png: bytes) -> NDArray[np.float64]:
    import matplotlib.image

    pixels: NDArray[np.float64] = np.round(matplotlib.image.imread(io.BytesIO(png))[:, :, :3] * 255)
    return pixels


def marks(png: bytes) -> list[float]:
    """Where the marks of the strips stand, from the top down: columns dark over most of a row's height."""
    dark = (picture(png) == [int(INK[place : place + 2], 16) for place in (1, 3, 5)]).all(axis=2)
    found = []
    for row in range(25, dark.shape[0]):
        columns = np.flatnonzero(dark[row - 25 : row].all(axis=0))
        if len(columns):
            found.append(float(columns.mean()))
    return [place for number, place in enumerate(found) if number == 0 or abs(place - found[number - 1]) > 2]


def test_marks_stand_on_their_days_earliest_first() -> None:
    found = marks(season_curve(earliness([150, 50, 100]), classes(["a", "b", "c"]), "png"))
    assert len(found) == 3
    assert found == sorted(found)
    assert found[2] - found[1] == pytest.approx(found[1] - found[0], abs=3)  # 50, 100, 150
    assert len(marks(season_curve(earliness([None, 100]), classes(["a", "b"]), "png"))) == 1


def test_classes_that_do_not_occur_take_no_room() -> None:
    three, two = earliness([50, 60, 70]), earliness([50, 60, 70])
    two["support"][1] = 0
    heights = [picture(season_curve(each, classes(["a", "b", "c"]), "png")).shape[0] for each in (three, two)]
    assert heights[0] - heights[1] == pytest.approx(0.27 * 200, abs=1)


@pytest.mark.parametrize(
    ("known", "names", "days"),
    [
        ([40] * 60, [f"crop {number}" for number in range(60)], 350),
        ([0], ["only"], 0),
        ([None, 20], ["$x^2_", "\x00<b>" + "very long " * 40], 20),
        ([], [], 100),
        ([30], ["a"], 4000),
    ],
    ids=["many", "one day", "strange names", "none", "years"],
)
def test_any_season_can_be_drawn(known: list[int | None], names: list[str], days: int) -> None:
    data = earliness(known, days=days, start=300)
    drawn = season_curve(data, classes(names))
    tree = ElementTree.fromstring(drawn)
    assert float(tree.attrib["width"].removesuffix("pt")) == pytest.approx(72 * SEASON_WIDTH)
    assert len(drawn) < 1_500_000


def test_a_marked_accuracy_changes_the_drawing() -> None:
    plain, marked = earliness([50]), {**earliness([50]), "accurate_from": 120}
    drawn = season_curve(plain, classes(["a"]))
    assert drawn == season_curve(plain, classes(["a"]))
    assert drawn != season_curve(marked, classes(["a"]))


@pytest.mark.parametrize(
    ("start", "day", "words"), [(1, 0, "1 Jan"), (60, 0, "1 Mar"), (60, 94, "3 Jun"), (300, 100, "4 Feb")]
)
def test_days_in_words(start: int, day: int, words: str) -> None:
    assert day_words(start, day) == words
