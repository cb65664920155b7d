"""`cropstar bench suite`: a matrix that goes on after kills, failures and with larger budgets, and its tables."""

from __future__ import annotations

import csv
import io
import json
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from cropstar.benchmarks import running, suite
from cropstar.benchmarks.suite import SuiteOutcome, read_outcome, read_suite
from cropstar.benchmarks.suite_results import format_figure
from cropstar.benchmarks.tasks import TASKS
from cropstar.cli.bench import bench
from cropstar.config import OptimiserConfig, dump_yaml
from cropstar.errors import CropstarError, Interrupted, MismatchError, PartialResult, UsageError
from cropstar.sources.ingest import ingest
from cropstar.sources.tum import TumOptions, open_tum
from cropstar.store.model_file import read_tensors
from cropstar.training.optimisation import learning_rate
from cropstar.training.runs import Run
from tests.conftest import REPOSITORY
from tests.sources.examples.tum_batches import a_batch, write_batch
from tests.training.stepping import watched_steps

TINY = {
    "task.length": 10,
    "task.samples": 24,
    "task.held_out": 8,
    "model.hidden": 4,
    "epochs": 2,
    "series_batch": 8,
    "optimiser.schedule": "plateau",
}
ADDING = {"task": "adding", "models": ["star"], "layers": [1], "set": TINY}


def written(folder: Path, *tasks: dict[str, Any], **top: Any) -> Path:
    file = folder / "matrix.yaml"
    file.write_text(dump_yaml({**top, "tasks": list(tasks)}))
    return file


def run(file: Path, *arguments: str) -> Result:
    output = ["-o", str(file.parent / "out"), "--data", str(file.parent), "--device", "cpu", "--quiet"]
    return CliRunner().invoke(bench, ["suite", str(file), *output, "--checkpoint-seconds", "0", *arguments], obj={})


def refusal(answer: Result) -> CropstarError:
    assert isinstance(answer.exception, CropstarError), answer.exception
    assert len(str(answer.exception).splitlines()) == 1
    return answer.exception


def rows(file: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO((file.parent / "out" / "results.csv").read_text())))


def weights(folder: Path) -> dict[str, Any]:
    return read_tensors(Run(folder).model, running.MODEL_KIND)[1]


def test_a_matrix_with_failures(tmp_path: Path) -> None:
    diverging = {"optimiser.learning_rate": 1e30, "optimiser.clip": 1e30}
    failing = {**ADDING, "name": "far", "models": ["rnn"], "by_model": {"rnn": diverging}}
    file = written(tmp_path, {"task": "mnist", "models": ["star"], "layers": [2]}, failing, {**ADDING, "seeds": [0, 1]})
    failure = refusal(run(file))
    assert isinstance(failure, PartialResult)
    assert failure.exit_code == 7
    assert "2 of 4 cells failed" in str(failure)

    missing, far, *stars = rows(file)
    assert [row["state"] for row in (missing, far, *stars)] == ["failed", "failed", "finished", "finished"]
    assert f"no data for 'mnist' in {tmp_path / 'mnist'}" in missing["error"]
    assert "the loss became" in far["error"]
    assert (stars[1]["ended"], stars[1]["epochs"], stars[1]["parameters"]) == ("epochs", "2", "45")
    values = [float(row["value"]) for row in stars]
    assert values[0] != values[1]

    page = (tmp_path / "out" / "results.md").read_text()
    assert "2 of 4 cells finished, 2 failed" in page
    assert (
        f"| `star` | {np.mean(values):.3f} \u00b1 {np.std(values, ddof=1):.3f} | solved at T = 200 and 1000 |" in page
    )
    assert "| `star` | \u2013 | 99.2 to 99.4 % |" in page
    assert "| `rnn` | 1 | 0 of 1 |" in page
    assert "- mnist, star, 2 layers, seed 0: no data for 'mnist'" in page
    for name in ("depth.png", "curves.png"):
        assert f"({name})" in page
        pixels = np.asarray(Image.open(tmp_path / "out" / name).convert("RGB"))
        green = np.abs(pixels.astype(int) - [0x2F, 0x6F, 0x4E]).sum(axis=2) < 12
        assert green.sum() > 200  # STAR's name, and what is drawn of it
        assert green[300:].sum() > 20  # below the legend


def test_what_failed_is_tried_again(tmp_path: Path) -> None:
    file = written(tmp_path, {"task": "mnist", "models": ["star"], "layers": [2]})
    assert "no data" in str(refusal(run(file)))
    (tmp_path / "mnist").mkdir()
    assert "a file of MNIST is missing" in str(refusal(run(file)))
    (row,) = rows(file)
    assert "a file of MNIST is missing" in row["error"]
    assert not (tmp_path / "out" / "depth.png").exists()


def signal_at(batch: int, number: signal.Signals) -> AbstractContextManager[list[int]]:
    """Within, the signal arrives while this batch is trained on; the list grows with every batch."""
    return watched_steps(lambda _, __, step: signal.raise_signal(number) if step == batch else None)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_and_ends_it(number: signal.Signals, code: int, tmp_path: Path) -> None:
    file = written(tmp_path, ADDING)
    with signal_at(2, number):
        failure = refusal(run(file))
    assert isinstance(failure, Interrupted)
    assert failure.exit_code == code
    (row,) = rows(file)
    assert (row["state"], row["error"]) == ("unfinished", "")
    assert len(list((tmp_path / "out").rglob("step-00000002.safetensors"))) == 1


def test_a_stopped_suite_goes_on(tmp_path: Path) -> None:
    file = written(tmp_path, {**ADDING, "seeds": [0, 1]})
    with signal_at(9, signal.SIGTERM) as batches:  # of 6 a cell: in the second one's first epoch
        refusal(run(file))
        assert [row["state"] for row in rows(file)] == ["finished", "unfinished"]
        assert run(file).exit_code == 0
    assert len(batches) == 12  # none of them twice
    assert [row["state"] for row in rows(file)] == ["finished", "finished"]
    (folder,) = (tmp_path / "out" / "cells" / "adding" / "star-1-seed1" / "adding").iterdir()

    settings = [word for key, value in TINY.items() for word in ("--set", f"{key}={value}")]
    whole = ["adding", "--layers", "1", "--seed", "1", *settings, "--runs", str(tmp_path / "whole"), "--quiet"]
    assert CliRunner().invoke(bench, [*whole, "--device", "cpu"], obj={}).exit_code == 0
    one, other = weights(folder), weights(tmp_path / "whole" / "adding" / "star-1x4-001")
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[name], other[name]) for name in one)


def test_a_larger_budget_goes_on(tmp_path: Path, an_hour_a_batch: Callable[[], None]) -> None:
    an_hour_a_batch()
    file = written(tmp_path, ADDING, budget=240)  # 4 of 6 batches
    assert run(file).exit_code == 0
    (cut,) = rows(file)
    assert (cut["ended"], cut["budget_minutes"], cut["epochs"]) == ("budget", "240.0", "1")
    assert "budget of 240 min" in (tmp_path / "out" / "results.md").read_text()
    for minutes, goes_on in ((100.0, False), (240.0, False), (1000.0, True)):
        (cell,) = read_suite(file, minutes)
        assert read_outcome(tmp_path / "out", cell).may_go_on == goes_on
    assert run(file, "--budget", "1000").exit_code == 0
    (done,) = rows(file)
    assert (done["ended"], done["epochs"], done["run"]) == ("epochs", "2", cut["run"])


def test_what_a_budget_ended_goes_on_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path, ADDING, budget=1e-9)
    assert run(file).exit_code == 0
    (cut,) = rows(file)

    def broken(_: object) -> None:
        raise ValueError("something\nunforeseen")

    monkeypatch.setattr(suite, "run_bench", broken)
    failure = refusal(run(file, "--budget", "5"))
    assert failure.exit_code == 7
    assert "ValueError: something unforeseen" in str(failure)
    monkeypatch.undo()
    assert run(file, "--budget", "5").exit_code == 0
    (done,) = rows(file)
    assert (done["ended"], done["run"]) == ("epochs", cut["run"])


def test_crops_stand_in_the_tables_too(tmp_path: Path) -> None:
    for number, part in enumerate(("train", "test", "eval")):
        write_batch(tmp_path / "batches" / part / "b0.pkl", a_batch(seed=number))
    ingest(open_tum(tmp_path / "batches", TumOptions()), tmp_path / "stores" / "tum-series")
    entry = {"task": "tum-series", "models": ["star"], "layers": [1], "set": {"model.hidden": 4, "epochs": 1}}
    file = written(tmp_path, entry, budget=1)
    answer = run(file)
    assert answer.exit_code == 0, answer.exception
    (row,) = rows(file)
    assert (row["metric"], row["ended"], row["epochs"], row["paper"]) == ("accuracy", "epochs", "1", "87.7 %")
    result = json.loads((tmp_path / "out" / row["run"] / "result.json").read_text())
    assert float(row["value"]) == result["test"]["pixel"]["overall_accuracy"]


def test_other_settings_are_not_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "run_bench", lambda _: None)
    assert run(written(tmp_path, ADDING)).exit_code == 0
    assert run(written(tmp_path, {**ADDING, "seeds": [0, 1], "layers": [1, 2]})).exit_code == 0  # more of them
    failure = refusal(run(written(tmp_path, {**ADDING, "set": {**TINY, "task.length": 11}})))
    assert isinstance(failure, MismatchError)
    assert "different length" in str(failure)
    (tmp_path / "out" / "suite.json").unlink()
    assert "not the folder of a suite" in str(refusal(run(written(tmp_path, ADDING))))


@pytest.mark.parametrize(
    ("tasks", "parts"),
    [
        ([{**ADDING, "task": "addding"}], ["unknown task 'addding'", "did you mean 'adding'"]),
        ([{**ADDING, "models": ["stra"]}], ["unknown model 'stra'", "star"]),
        ([{**ADDING, "model": ["star"]}], ["unknown key 'tasks.1.model'", "did you mean 'models'"]),
        ([{**ADDING, "set": {"task.lenght": 3}}], ["task.lenght", "task.length"]),
        ([{**ADDING, "set": {"seed": 3}}], ["'seed' under 'set'", "seeds"]),
        ([{**ADDING, "set": {"seed ": 3}}], ["adding, star, 1 layer, seed 0", "another"]),
        ([{**ADDING, "set": {" model.name": "gru"}}], ["adding, star, 1 layer, seed 0", "another"]),
        ([{**ADDING, "set": {"model": {"name": "gru"}}}], ["tasks.1.set.model"]),
        ([{**ADDING, "seeds": [0, 2**63]}], ["tasks.1.seeds.2"]),
        ([{**ADDING, "layers": [0]}], ["tasks.1.layers.1", "not 0"]),
        ([{**ADDING, "layers": None}], ["no layers for 'adding'"]),
        ([{**ADDING, "name": "../away"}], ["tasks.1.name"]),
        ([{**ADDING, "by_model": {"rnn": {}}}], ["settings for 'rnn'"]),
        ([ADDING, ADDING], ["two tasks are called 'adding'", "'name'"]),
        ([{**ADDING, "seeds": list(range(200)), "layers": list(range(1, 65))}], ["a suite that is too large"]),
        ([{**ADDING, "task": "tum-pixel", "set": {}, "match_parameters": 9}], ["match_parameters"]),
        ([{**ADDING, "match_parameters": 900}], ["'model.hidden' under 'set'", "match_parameters"]),
        ([{**ADDING, "set": {"batch": 7}}], ["does not use batch"]),
        ([], ["'tasks'"]),
    ],
)
def test_a_wrong_matrix_leaves_nothing(tasks: list[dict[str, Any]], parts: list[str], tmp_path: Path) -> None:
    failure = refusal(run(written(tmp_path, *tasks)))
    assert isinstance(failure, UsageError)
    assert all(part in str(failure) for part in parts), failure
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["paper", "short"])
def test_the_matrices_that_ship(name: str) -> None:
    file = REPOSITORY / "configs" / "bench" / f"{name}.yaml"
    cells = read_suite(file)
    assert f"cropstar bench suite configs/bench/{name}.yaml" in file.read_text()
    assert len({cell.place for cell in cells}) == len(cells)
    if name == "short":
        assert sum(cell.budget or 10_000 for cell in cells) <= 180  # minutes
    else:
        assert {"mnist", "pmnist", "adding", "copy", "jsb", "piano", "ptb", "jester"} < {c.entry.task for c in cells}
    assert {cell.budget for cell in read_suite(file, 2.0)} <= {2.0, None}


def test_they_are_found_by_name_and_flags_may_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(read_suite(Path("short"))) == len(read_suite(REPOSITORY / "configs" / "bench" / "short.yaml"))
    answer = CliRunner().invoke(bench, ["-q", "suite", "shrt"], obj={})
    assert "no such configuration" in str(refusal(answer))
    assert "short" in str(answer.exception)


def test_the_time_that_is_left(tmp_path: Path) -> None:
    more = {"layers": [1, 2, 4], "budget": 1}
    first, second, third = read_suite(written(tmp_path, {**ADDING, **more}))
    known = [SuiteOutcome(first, "finished", seconds=10.0)]
    assert suite.time_left(known, [second, third]) == 20 + 40
    known = [SuiteOutcome(first, "finished", seconds=25.0)]
    assert suite.time_left(known, [second, third]) == 50 + 60  # no longer than its budget
    assert suite.time_left([], [first]) == 60
    (free,) = read_suite(written(tmp_path, ADDING))
    assert suite.time_left([], [free]) is None


def test_figures_keep_three_digits() -> None:
    share, error = TASKS["mnist"].metric, TASKS["adding"].metric
    assert format_figure(share, [0.981, 0.983]) == "98.20 \u00b1 0.14 %"
    assert format_figure(error, [0.000123]) == "0.000123"
    assert format_figure(error, [8.127]) == "8.13"
    assert format_figure(error, []) == "\u2013"


def test_a_plateau_is_one_of_the_task_s_own_score() -> None:
    config = OptimiserConfig(learning_rate=1.0, schedule="plateau", warmup=0, plateau=2)
    history = [{"score": score, "validation": {"mean_squared_error": -score}} for score in (-0.3, -0.2, -0.2, -0.25)]
    assert [learning_rate(config, 50, 100, history[:count]) for count in range(5)] == [1.0, 1.0, 1.0, 1.0, 0.5]
