"""`cropstar bench suite`: on which data its cells are run, and what its page says of their settings."""

from __future__ import annotations

from pathlib import Path

from cropstar.errors import PartialResult
from tests.cli.test_bench import write_digits
from tests.cli.test_bench_suite import ADDING, refusal, rows, run, written


def test_other_data_are_not_mixed_and_moved_ones_are_found(tmp_path: Path) -> None:
    small = {"task.pool": 7, "task.validation": 10, "model.hidden": 4, "epochs": 3}
    digits = {"task": "mnist", "models": ["star"], "layers": [1], "set": small}
    write_digits(tmp_path / "mnist")
    file = written(tmp_path, digits, budget=1e-9)
    assert run(file).exit_code == 0
    (tmp_path / "moved").mkdir()
    (tmp_path / "mnist").rename(tmp_path / "moved" / "mnist")
    write_digits(tmp_path / "mnist", 40)
    written(tmp_path, {**digits, "seeds": [0, 1]}, budget=5)
    assert isinstance(refusal(run(file)), PartialResult)
    assert [row["state"] for row in rows(file)] == ["failed", "failed"]  # the first would have gone on
    assert all("other data" in row["error"] for row in rows(file))
    assert run(file, "--data", str(tmp_path / "moved")).exit_code == 0
    assert [(row["state"], row["ended"]) for row in rows(file)] == 2 * [("finished", "epochs")]


def test_the_page_names_what_differs_from_what_ships(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("model: {name: star, layers: 1, hidden: 4, day_encoding: none}\nepochs: 1\n")
    file = written(tmp_path, {**ADDING, "config": str(tmp_path / "own.yaml")}, budget=7)
    assert run(file).exit_code == 0
    assert run(file, "--budget", "5").exit_code == 0
    page = (tmp_path / "out" / "results.md").read_text()
    assert "those of " in page
    assert "own.yaml, task.length=10" in page
    assert "at most 7 minutes each" in page  # it was finished within seven
