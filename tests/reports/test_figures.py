"""Figures of a training: accuracy through the season, reliability diagram, map of errors."""

from __future__ import annotations

import base64
import io
import zlib
from typing import Any
from xml.etree import ElementTree

import matplotlib.image
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from cropstar.errors import InputError
from cropstar.reports.drawing import DPI, INK
from cropstar.reports.figures import (
    ERROR_COLOURS,
    GAP_SHADE,
    LARGEST_MAP,
    LONGEST_CANVAS,
    MAP_HEAD,
    RIGHT,
    SEASON_WIDTH,
    WRONG,
    day_words,
    error_map,
    pack_codes,
    reliability_plots,
    season_curve,
    unpack_codes,
)
from tests.examples import a_grid

# --- accuracy through the season


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


# --- reliability diagram


def table(off: float, count: int = 1000, bins: int = 15) -> dict[str, Any]:
    """Bins whose accuracy lies below their confidence by so much."""
    rows = [
        {
            "low": place / bins,
            "high": (place + 1) / bins,
            "confidence": (place + 0.5) / bins,
            "accuracy": max((place + 0.5) / bins - off, 0.0),
            "count": count,
            "share": 1 / bins,
        }
        for place in range(bins)
    ]
    return {"bins": rows, "ece": off, "ece_equal_mass": off, "confidence": 0.5, "accuracy": 0.5, "likelihood": 1.0}


def calibration(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    return {"temperature": 1.7, "bounded": False, "part": "test", "samples": 9, "before": before, "after": after}


def shaded(png: bytes) -> int:
    """How many pixels have the colour of the distance."""
    import matplotlib.image

    picture = np.round(matplotlib.image.imread(io.BytesIO(png))[:, :, :3] * 255)
    colour = [int(GAP_SHADE[place : place + 2], 16) for place in (1, 3, 5)]
    return int((picture == colour).all(axis=2).sum())


def test_the_distance_is_seen_where_there_is_one() -> None:
    far, near = reliability_plots(calibration(table(0.3), table(0.05)), "png")
    assert shaded(far) > 3 * shaded(near) > 3000


def test_bins_of_a_few_samples_show_no_distance() -> None:
    few, none = reliability_plots(calibration(table(0.3, count=5), table(0.0)), "png")
    assert shaded(few) == 0
    assert shaded(none) == 0


@pytest.mark.parametrize("bins", [1, 15])
def test_drawings_are_drawings_and_always_the_same(bins: int) -> None:
    data = calibration(table(0.3, bins=bins), table(0.1, bins=bins))
    drawings = reliability_plots(data)
    assert drawings == reliability_plots(data)
    assert drawings[0] != drawings[1]
    for svg in drawings:
        assert ElementTree.fromstring(svg).tag.endswith("svg")
        assert len(svg) < 200_000


def test_no_bins_are_an_empty_plot() -> None:
    empty = {**table(0.1), "bins": []}
    for svg in reliability_plots(calibration(empty, empty)):
        assert ElementTree.fromstring(svg).tag.endswith("svg")


# --- map of errors


def a_scene(codes: NDArray[np.uint8], **changes: Any) -> dict[str, Any]:
    grid = a_grid(*codes.shape).to_json()
    return {
        "scene": "s",
        "grid": grid,
        "step": 1,
        "right": 3,
        "wrong": 2,
        "unseen": 0,
        "codes": pack_codes(codes),
        **changes,
    }


@given(arrays.arrays(np.uint8, st.tuples(st.integers(1, 30), st.integers(1, 30)), elements=st.integers(0, WRONG)))
def test_a_canvas_comes_back(codes: NDArray[np.uint8]) -> None:
    assert (unpack_codes(pack_codes(codes), codes.shape) == codes).all()


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("%%", (2, 2)),
        (base64.b64encode(b"none").decode(), (2, 2)),
        (pack_codes(np.zeros((2, 3), dtype=np.uint8)), (2, 2)),
        (pack_codes(np.zeros((1, 3), dtype=np.uint8)), (2, 2)),
        (pack_codes(np.full((2, 2), 9, dtype=np.uint8)), (2, 2)),
        (base64.b64encode(zlib.compress(bytes(50_000_000))).decode(), (2, 2)),
        ("", (LONGEST_CANVAS + 1, 1)),
        ("", (0, 5)),
    ],
)
def test_nonsense_is_no_canvas(text: str, shape: tuple[int, int]) -> None:
    with pytest.raises(InputError):
        unpack_codes(text, shape)


def test_parcels_have_their_colour_on_their_place() -> None:
    codes = np.zeros((60, 80), dtype=np.uint8)
    codes[:20, :40], codes[40:, 40:] = RIGHT, WRONG
    picture = matplotlib.image.imread(io.BytesIO(error_map(a_scene(codes), "png")))[..., :3]
    places = {}
    for code in (RIGHT, WRONG):
        colour = [int(ERROR_COLOURS[code][place : place + 2], 16) / 255 for place in (1, 3, 5)]
        rows, columns = np.nonzero(np.abs(picture - colour).max(axis=2) < 0.004)
        below = rows > MAP_HEAD * DPI - 10  # without the legend
        places[code] = np.median(rows[below]) / len(picture), np.median(columns[below]) / picture.shape[1]
        assert below.sum() == pytest.approx(1 / 6 * LARGEST_MAP**2 * 60 / 80 * DPI**2, rel=0.02)
    assert places[RIGHT][0] < 0.4 < 0.6 < places[WRONG][0]
    assert places[RIGHT][1] < 0.4 < 0.6 < places[WRONG][1]


def test_odd_shapes_and_the_same_bytes() -> None:
    for shape in ((1, 1), (1, 400), (400, 2)):
        scene = a_scene(np.full(shape, RIGHT, dtype=np.uint8), unseen=1)
        assert error_map(scene) == error_map(scene)
        assert error_map(scene).startswith(b"<?xml")
    plain = a_grid(3, 3).to_json() | {"crs": ""}
    assert error_map(a_scene(np.zeros((3, 3), dtype=np.uint8), grid=plain)).startswith(b"<?xml")
