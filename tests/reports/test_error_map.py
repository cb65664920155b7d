"""The drawing of a map of errors, looked at pixel by pixel, and packed canvases that are nonsense."""

from __future__ import annotations

import base64
import io
import zlib
from typing import Any

import matplotlib.image
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from cropstar.errors import InputError
from cropstar.reports.drawing import DPI
from cropstar.reports.figures import (
    ERROR_COLOURS,
    LARGEST_MAP,
    LONGEST_CANVAS,
    MAP_HEAD,
    RIGHT,
    WRONG,
    error_map,
    pack_codes,
    unpack_codes,
)
from tests.examples import a_grid


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
