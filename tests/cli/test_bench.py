"""`cropstar bench`: tasks through the training loop, budgets, resuming, and what is refused."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from cropstar.benchmarks import running
from cropstar.cli.bench import bench
from cropstar.errors import ArtifactError, CropstarError, InputError, MismatchError, UsageError
from cropstar.store.model_file import read_tensors
from cropstar.training.runs import Run
from tests.benchmarks.digits import idx_bytes
from tests.cli.invoking import InProcess
from tests.training.stepping import cut_before, watched_steps

TINY = ["--layers", "1", "--hidden", "8", "--quiet", "--device", "cpu"]
SHORT = ["--length", "6", "--set", "task.samples=40", "--set", "task.held_out=12", "--batch", "8", "--epochs", "3"]


def run(runs: Path, *arguments: str | Path) -> Result:
    return InProcess(bench, "--runs", str(runs))(*arguments)


def result_of(runs: Path, *arguments: str | Path) -> dict[str, Any]:
    answer = run(runs, *arguments)
    assert answer.exit_code == 0, answer.exception
    (file,) = runs.glob("*/*/result.json")
    read: dict[str, Any] = json.loads(file.read_text())
    return read


def refusal(runs: Path, *arguments: str | Path) -> CropstarError:
    return InProcess(bench, "--runs", str(runs)).refusal(*arguments)


def weights(run_folder: Path) -> dict[str, Any]:
    return read_tensors(Run(run_folder).model, running.MODEL_KIND)[1]


def test_the_list_names_tasks_places_and_figures(tmp_path: Path) -> None:
    page = run(tmp_path, "--list").output
    for text in ("adding", "copy", "mnist", "jsb", "ptb", "jester", "tum-pixel", "data/mnist", "99.2 to 99.4", "1.30"):
        assert text in page


def test_adding_is_learnt(tmp_path: Path) -> None:
    options = ["--length", "20", "--layers", "1", "--hidden", "24", "--learning-rate", "0.01", "--batch", "50"]
    sizes = ["--set", "task.samples=4000", "--set", "task.held_out=300", "--epochs", "2", "--quiet"]
    result = result_of(tmp_path, "adding", *options, *sizes)
    assert result["baseline"] == pytest.approx(1 / 6)
    assert result["value"] == result["test"]["mean_squared_error"] < 0.5 * result["baseline"]
    assert result["paper"]["rnn"] == "not solved"
    assert result["budget"] == {"minutes": None, "ended": "epochs"}
    assert (result["seed"], result["settings"]["length"]) == (0, 20)
    folder = Path(result["run"])
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2
    assert result["throughput"]["samples_per_second"] > 0


@pytest.mark.parametrize("task", ["adding", "ptb"])
def test_a_killed_run_ends_with_the_same_weights(task: str, tmp_path: Path) -> None:
    arguments = [task, *TINY, *(SHORT if task != "ptb" else text_arguments(tmp_path))]
    arguments += ["--set", "optimiser.average=0.9", "--checkpoint-seconds", "0", "--model", "lstm"]
    whole = result_of(tmp_path / "whole", *arguments)
    with watched_steps(cut_before(7, 12)) as steps:
        for _ in range(2):
            assert run(tmp_path / "killed", *arguments).exit_code != 0
        again = result_of(tmp_path / "killed", *arguments)
    assert len(steps) > 13
    assert again["test"] == whole["test"]
    one, other = weights(Path(whole["run"])), weights(Path(again["run"]))
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[name], other[name]) for name in one)


def text_arguments(folder: Path) -> list[str | Path]:
    text = folder / "text"
    text.mkdir()
    for part, lines in (("train", 12), ("valid", 3), ("test", 3)):
        (text / f"ptb.{part}.txt").write_text(" the cat sat on the mat and the dog sat on a log \n" * lines)
    return ["--data", text, "--batch", "4", "--set", "task.bptt=30", "--epochs", "3"]


def test_a_text_is_no_image(tmp_path: Path) -> None:
    assert "has series" in str(refusal(tmp_path / "runs", "ptb", "--model", "convstar", *text_arguments(tmp_path)))
    assert not (tmp_path / "runs").exists()


def test_a_budget_ends_it_cleanly_and_it_goes_on(tmp_path: Path, an_hour_a_batch: Callable[[], None]) -> None:
    arguments = ["adding", *TINY, *SHORT]
    whole = result_of(tmp_path / "whole", *arguments)
    an_hour_a_batch()
    cut = result_of(tmp_path / "cut", *arguments, "--budget", "420")  # 7 of 15 batches: in the second epoch
    assert cut["budget"] == {"minutes": 420.0, "ended": "budget"}
    assert len(cut["history"]) == 1
    folder = Path(cut["run"])
    assert (folder / cut["chosen"]["weights"]).is_file()
    assert Run(folder).checkpoints()[0].name == "step-00000007.safetensors"

    assert run(tmp_path / "cut", "--resume", folder, "--budget", "420").exit_code == 0  # it is spent
    assert json.loads((folder / "result.json").read_text())["test"] == cut["test"]
    assert run(tmp_path / "cut", "--resume", folder).exit_code == 0
    done = json.loads((folder / "result.json").read_text())
    assert done["budget"] == {"minutes": None, "ended": "epochs"}
    assert done["chosen"]["weights"] == "model.safetensors"
    assert done["test"] == whole["test"]
    one, other = weights(Path(whole["run"])), weights(folder)
    assert all(np.array_equal(one[name], other[name]) for name in one)
    assert isinstance(refusal(tmp_path / "cut", "--resume", folder), UsageError)  # now it is finished


def write_digits(folder: Path, count: int = 30) -> Path:
    random = np.random.default_rng(0)
    folder.mkdir()
    for kind in ("train", "t10k"):
        images = random.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        (folder / f"{kind}-images-idx3-ubyte").write_bytes(idx_bytes(images))
        (folder / f"{kind}-labels-idx1-ubyte").write_bytes(idx_bytes(random.integers(0, 10, count)))
    return folder


DIGITS = [*TINY, "--pool", "7", "--epochs", "1", "--set", "task.validation=10"]


def test_a_budget_that_ends_before_the_first_epoch_keeps_what_was_judged(tmp_path: Path) -> None:
    result = result_of(tmp_path, "adding", *TINY, *SHORT, "--budget", "1e-9")
    folder = Path(result["run"])
    assert (result["chosen"]["epoch"], result["chosen"]["weights"]) == (None, running.STOPPED)
    assert read_tensors(folder / running.STOPPED, running.MODEL_KIND)[1]
    assert run(tmp_path, "--resume", folder).exit_code == 0
    assert not (folder / running.STOPPED).exists()


def test_the_configuration_that_is_shown_can_be_given_back(tmp_path: Path) -> None:
    wishes = ["copy", "--length", "7", "--hidden", "9", "--set", "task.samples=3"]
    shown = run(tmp_path, *wishes, "--print-config").output
    (tmp_path / "own.yaml").write_text(shown)
    assert "length: 7" in shown
    assert "hidden: 9" in shown
    assert run(tmp_path, "copy", "--config", tmp_path / "own.yaml", "--print-config").output == shown
    assert "hidden: 9" in run(tmp_path, "tum-pixel", "--hidden", "9", "--print-config").output
    assert [path.name for path in tmp_path.iterdir()] == ["own.yaml"]


def test_a_wrong_file_of_settings_is_named(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("models: [star]\n")
    assert str(tmp_path / "own.yaml") in str(refusal(tmp_path, "adding", "--config", tmp_path / "own.yaml"))
    level = "[1, 2, 3, 4, 5, 6, 7, 8, 9]"
    (tmp_path / "own.yaml").write_text(
        f"a0: &a0 {level}\n"
        + "".join(f"a{n}: &a{n} [{', '.join(9 * [f'*a{n - 1}'])}]\n" for n in range(1, 10))
        + "task: {length: *a9}\n"
    )
    assert "wrong value of 'task.length'" in str(refusal(tmp_path, "adding", "--config", tmp_path / "own.yaml"))


def test_digits_pooled_and_permuted(tmp_path: Path) -> None:
    data = write_digits(tmp_path / "digits")
    assert 0 <= result_of(tmp_path / "rows", "mnist", "--data", data, *DIGITS)["value"] <= 1
    result_of(tmp_path / "seed", "pmnist", "--data", data, *DIGITS, "--set", "task.order=seed")
    failure = refusal(tmp_path / "authors", "pmnist", "--data", data, *DIGITS)
    assert isinstance(failure, InputError)
    assert "pmnist_permutation_mask.npy" in str(failure)
    np.save(data / "pmnist_permutation_mask.npy", np.arange(784))
    failure = refusal(tmp_path / "authors", "pmnist", "--data", data, *DIGITS)  # 784 pixels, and 16 are wanted
    assert "task.order=seed" in str(failure)
    np.save(data / "pmnist_permutation_mask.npy", np.arange(16) + 0.4)
    assert "not a permutation" in str(refusal(tmp_path / "authors", "pmnist", "--data", data, *DIGITS))
    header = b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000000,), }"
    for content in (b"PK\x03\x04 and no more", header.ljust(127) + b"\n"):
        (data / "pmnist_permutation_mask.npy").write_bytes(content)
        assert isinstance(refusal(tmp_path / "authors", "pmnist", "--data", data, *DIGITS), InputError)
    np.save(data / "pmnist_permutation_mask.npy", np.arange(16)[::-1])
    result_of(tmp_path / "authors", "pmnist", "--data", data, *DIGITS)


def test_damaged_digits(tmp_path: Path) -> None:
    data = write_digits(tmp_path / "digits")
    images = data / "train-images-idx3-ubyte"
    whole = images.read_bytes()
    images.write_bytes(whole[:-5])
    assert "a damaged one" in str(refusal(tmp_path / "runs", "mnist", "--data", data, *DIGITS))
    images.write_bytes(whole)
    (data / "t10k-labels-idx1-ubyte").unlink()
    failure = refusal(tmp_path / "runs", "mnist", "--data", data, *DIGITS)
    assert isinstance(failure, InputError)
    assert "t10k-labels-idx1-ubyte" in str(failure)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "kind", "parts"),
    [
        (["addding"], UsageError, ["unknown task 'addding'", "did you mean 'adding'"]),
        ([], UsageError, ["no task given", "--list"]),
        (["adding", "--pool", "2"], UsageError, ["no setting 'task.pool'", "task.length"]),
        (["adding", "--length", "1"], UsageError, ["task.length", "not 1"]),
        (["adding", "--model", "stra"], UsageError, ["unknown model", "star"]),
        (["adding", "--model", "rf"], UsageError, ["'rf'"]),
        (["adding", "--model", "convstar"], UsageError, ["has series"]),
        (["copy", "--model", "transformer"], UsageError, ["step after step"]),
        (["copy", "--model", "tcn", "--set", "task.checkpoint=5"], UsageError, ["recurrent model"]),
        (["adding", "--set", "loss.balance=1"], UsageError, ["does not use loss"]),
        (["adding", "--set", "model.day_encoding=sincos"], UsageError, ["no days"]),
        (["ptb", "--set", "model.revisit=5"], UsageError, ["'model.revisit'", "no days"]),
        (["adding", "--set", "batch=7"], UsageError, ["does not use batch", "series_batch"]),
        (["jester", "--model", "convstar", "--set", "series_batch=7"], UsageError, ["does not use series_batch"]),
        (["adding", "--resume", "absent"], ArtifactError, ["no run of a benchmark", "absent"]),
        (["adding", "--resume", "absent", "--epochs", "3"], UsageError, ["--resume"]),
        (["tum-pixel", "--budget", "1"], UsageError, ["--budget"]),
        (["adding", "--hidden", "7", "--match-parameters", "3000"], UsageError, ["leave out --hidden"]),
        (["adding", "--set", "model.hidden=7", "--match-parameters", "3000"], UsageError, ["leave out --hidden"]),
        (["adding", "--print-config", "--match-parameters", "3000"], UsageError, ["and --print-config"]),
        (["adding", "--model", "convstar", "--set", "model.head=video"], UsageError, ["has series"]),
        (["adding", "--set", "epochs=true"], UsageError, ["--print-config"]),
    ],
)
def test_wrong_wishes(arguments: list[str], kind: type[CropstarError], parts: list[str], tmp_path: Path) -> None:
    failure = refusal(tmp_path / "runs", *arguments)
    assert isinstance(failure, kind)
    assert all(part in str(failure) for part in parts), failure
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "task", ["mnist", "pmnist", "jsb", "piano", "ptb", "jester", "ucr", "tum-series", "breizhcrops"]
)
def test_missing_data_are_named_with_their_place(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    failure = refusal(tmp_path / "runs", task)
    assert isinstance(failure, InputError)
    assert "data/" in str(failure)
    assert "--data" in str(failure)
    assert not (tmp_path / "runs").exists()


def test_a_run_goes_on_with_its_own_data_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_digits(tmp_path / "digits")
    monkeypatch.setattr(running, "fit", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    assert run(tmp_path / "runs", "mnist", "--data", data, *DIGITS).exit_code != 0
    monkeypatch.undo()
    (folder,) = (tmp_path / "runs" / "mnist").iterdir()
    (data / "t10k-labels-idx1-ubyte").write_bytes(idx_bytes(np.zeros(30)))
    earlier = json.dumps({"budget": {"ended": "budget"}})
    (folder / "result.json").write_text(earlier)
    assert isinstance(refusal(tmp_path / "runs", "mnist", "--resume", folder), MismatchError)
    assert (folder / "result.json").read_text() == earlier  # a refusal loses nothing
    assert "it is a run of 'mnist'" in str(refusal(tmp_path / "runs", "adding", "--resume", folder))
    (folder / "result.json").write_text(earlier[:-9])
    assert isinstance(refusal(tmp_path / "runs", "mnist", "--resume", folder), ArtifactError)
    (folder / "config.yaml").write_text((folder / "config.yaml").read_text() + "epoch: 3\n")
    assert isinstance(refusal(tmp_path / "runs", "mnist", "--resume", folder), ArtifactError)
    (folder / "data.json").write_text(json.dumps({"fingerprint": {}}))
    assert "name its task" in str(refusal(tmp_path / "runs", "--resume", folder))


def test_the_command_line_answers_in_one_line(
    run_cli: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    answer = run_cli("bench", "jsb", cwd=tmp_path)
    assert answer.returncode == 3
    assert answer.stderr.startswith("error: no data for 'jsb' in data/music: ")
    assert len(answer.stderr.splitlines()) == 1


@pytest.mark.parametrize("option", ["--budget", "--checkpoint-seconds"])
@pytest.mark.parametrize("number", ["inf", "nan"])
def test_only_finite_numbers(option: str, number: str, tmp_path: Path) -> None:
    answer = run(tmp_path / "runs", "adding", option, number)
    assert answer.exit_code == 2
    assert "not a finite number" in answer.output
    assert not (tmp_path / "runs").exists()
