"""Comparisons of made-up results: the order, what compares, and pictures of few and many runs."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cropstar.reports.comparison import COLOURS, compare_runs, draw_comparison, format_comparison


def level(f1: float | None, half: float | None = 0.05) -> dict[str, Any]:
    around = None if f1 is None or half is None else [f1 - half, f1 + half]
    return {
        "overall_accuracy": f1,
        "macro_f1": f1,
        "intervals": {"overall_accuracy": around, "macro_f1": around},
    }


def a_run(folder: Path, f1: float | None = 0.8, **changes: Any) -> Path:
    """The folder of a run as training leaves it."""
    folder.mkdir(parents=True)
    result = {
        "version": "1",
        "run": folder.name,
        "command": "cropstar train",
        "config": "",
        "classes": [{"number": 0, "name": "maize", "colour": "#000000"}],
        "data": {"store": "data/stores/demo", "bands": ["B04"], "dates": [], "tiles": 1, "resolution": 10.0},
        "split": {
            "by": "parcel",
            "seed": 0,
            "parcels": {"train": {}, "validation": {}, "test": {"s": [1, 2]}},
            "counts": {"train": [5], "validation": [2], "test": [2]},
        },
        "model": {"name": "star", "layers": 4, "hidden": 128, "parameters": 169_226},
        "history": [{"epoch": 1, "validation": {"macro_f1": 0.3}}, {"epoch": 2, "validation": {"macro_f1": f1}}],
        "best_epoch": 2,
        "test": {"parcel": level(f1), "pixel": level(f1 and f1 / 2)},
        "calibration": {"after": {"ece": 0.031}},
        "throughput": {"seconds": 75.0, "samples_per_second": 1234.5},
        **changes,
    }
    (folder / "result.json").write_text(json.dumps(result))
    (folder / "config.yaml").write_text("target: null\n")
    (folder / "data.json").write_text(json.dumps({"scenes": {"s": "recipe"}}))
    return folder


def test_the_best_comes_first_and_nothing_last(tmp_path: Path) -> None:
    folders = [a_run(tmp_path / f"run-{place}", f1) for place, f1 in enumerate((0.5, None, 0.9, 0.0))]
    comparison = compare_runs(folders)
    assert [row.run for row in comparison.rows] == ["run-2", "run-0", "run-3", "run-1"]
    assert comparison.warnings() == []
    lines = format_comparison(comparison).splitlines()
    assert lines[1].split()[:3] == ["run-2", "0.90", "(0.85\u20130.95)"]
    assert "0.45 (0.40\u20130.50)" in lines[1]
    assert "3.1 %" in lines[1]
    assert "\u2013" in lines[4]
    assert max(map(len, lines)) <= 120
    assert " ".join(lines[7].split()) == "run-2 star 4\u00d7128 169,226 parcel, seed 0 1 min 15 s 1,234"


def other_parcels() -> dict[str, Any]:
    counts = {"train": [5], "validation": [2], "test": [2]}
    members = {"train": {}, "validation": {}, "test": {"s": [1, 3]}}
    return {"by": "parcel", "seed": 0, "parcels": members, "counts": counts}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"split": other_parcels()}, "test parcels differ"),
        ({"classes": [{"number": 0, "name": "rye", "colour": "#000000"}]}, "classes differ"),
        (
            {"split": {"by": "pixel", "seed": 0, "counts": {"test": [2]}}},
            "fields that training saw, which is optimistic: other",
        ),
    ],
)
def test_what_does_not_compare(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    comparison = compare_runs([a_run(tmp_path / "one"), a_run(tmp_path / "other", **changes)])
    assert len(comparison.groups) == 2
    assert words in " ".join(comparison.warnings())
    assert not comparison.to_json()["comparable"]


def test_stores_are_told_apart_by_what_they_hold(tmp_path: Path) -> None:
    data = {"store": "elsewhere", "bands": [], "dates": [], "tiles": 1, "resolution": 10.0}
    moved = [a_run(tmp_path / "one"), a_run(tmp_path / "moved", data=data)]
    assert compare_runs(moved).warnings() == []
    (moved[1] / "data.json").write_text(json.dumps({"scenes": {"s": "another recipe"}}))
    assert "their stores differ" in compare_runs(moved).warnings()[0]


def test_series_have_no_pixels(tmp_path: Path) -> None:
    data = {"store": "s", "bands": [], "dates": [], "tiles": 1, "resolution": 0.0}
    assert "pixels" not in format_comparison(compare_runs([a_run(tmp_path / "series", data=data)]))
    pooled = a_run(tmp_path / "pooled")
    assert "pixels" in format_comparison(compare_runs([pooled]))
    (pooled / "config.yaml").write_text("target: parcel\n")
    assert "pixels" not in format_comparison(compare_runs([pooled]))


def drawn(folders: list[Path], path: Path) -> np.ndarray[Any, Any]:
    draw_comparison(path, compare_runs(folders))
    picture: np.ndarray[Any, Any] = np.round(matplotlib.image.imread(io.BytesIO(path.read_bytes()))[:, :, :3] * 255)
    return picture


def pixels_of(picture: np.ndarray[Any, Any], colour: str) -> int:
    return int((picture == [int(colour[place : place + 2], 16) for place in (1, 3, 5)]).all(axis=2).sum())


def test_every_run_is_drawn_in_its_colour(tmp_path: Path) -> None:
    folders = [a_run(tmp_path / f"run-{place}", 0.9 - 0.1 * place) for place in range(3)]
    picture = drawn(folders, tmp_path / "three.png")
    assert all(pixels_of(picture, colour) > 500 for colour in COLOURS[:3])
    assert pixels_of(picture, COLOURS[3]) == 0


def test_many_runs_make_a_taller_picture_with_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cropstar.reports.comparison.MOST_ROWS", 10)
    folders = [a_run(tmp_path / f"a very long name of a run that goes on and on {place}", 0.5) for place in range(12)]
    few, many, most = (drawn(folders[:count], tmp_path / f"{count}.png").shape for count in (2, 10, 12))
    assert few[0] < many[0] == most[0]
    assert few[1] == many[1] == most[1]


def test_a_run_without_any_figure_is_drawn_all_the_same(tmp_path: Path) -> None:
    bare = a_run(tmp_path / "bare", None, history=[], best_epoch=None)
    assert drawn([bare], tmp_path / "bare.png").size


@given(st.text(max_size=60))
def test_names_stay_on_one_line(name: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        model = {"name": name, "layers": 1, "hidden": 2, "parameters": 3}
        text = format_comparison(compare_runs([a_run(Path(folder) / "run", model=model)]))
    assert len(text.splitlines()) == 5
