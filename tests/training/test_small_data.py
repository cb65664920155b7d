"""Small and lopsided data: `train --folds`, what is said of small classes, and the baselines."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import cropstar
from cropstar.store.model_file import read_model
from cropstar.store.store import Store
from cropstar.training.ensembles import OutOfFold
from cropstar.training.label_noise import FieldProbabilities
from cropstar.training.runs import Run
from tests.training.label_tables import FAST, table_store
from tests.training.stepping import Cut, watched_steps

Cli = Callable[..., subprocess.CompletedProcess[str]]
LOPSIDED = {"wheat": 20, "maize": 18, "beet": 2, "rapeseed": 2, "oats": 1, "peas": 1}


@pytest.fixture(scope="module")
def even(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return table_store(tmp_path_factory.mktemp("even"), {"wheat": 14, "maize": 12, "beet": 10})


@pytest.fixture(scope="module")
def lopsided(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return table_store(tmp_path_factory.mktemp("lopsided"), LOPSIDED)


def test_every_field_is_judged_once_and_the_model_learns_from_all(even: Path, tmp_path: Path) -> None:
    found = cropstar.train(store=even, model="star", folds=3, forest=True, settings=FAST, runs=tmp_path)
    result = json.loads((found.folder / "result.json").read_text())
    classes = ["beet", "maize", "wheat"]
    assert np.sum(result["test"]["parcel"]["confusion"], axis=1).tolist() == [10, 12, 14]
    assert result["split"]["counts"] == {"train": [10, 12, 14], "validation": [0, 0, 0], "test": [10, 12, 14]}
    assert "on all 36 parcels, each by a model of 3 that never saw it" in found.headline

    # The figures are those of the probabilities that the run keeps, field by field.
    store = Store.open(even)
    kept = FieldProbabilities.read(Run(found.folder).out_of_fold, classes)
    assert len(kept) == len(set(kept.parcels)) == 36
    assert kept.in_folds.all()
    truth = {(reader.scene, int(n)): int(label) for reader in store.tiles
             for n, label in zip(reader.table.numbers, reader.table.labels, strict=True)}  # fmt: skip
    assert [truth[parcel] for parcel in kept.parcels] == kept.labels.tolist()
    right = np.mean(kept.probabilities.argmax(axis=1) == kept.labels)
    assert result["test"]["parcel"]["overall_accuracy"] == pytest.approx(right)

    card, _, _ = read_model(found.model)
    assert card.provenance["class_fields"]["train"] == [10, 12, 14]
    assert card.provenance["out_of_fold"] == 3
    assert all(card.provenance["class_fields"]["test"])
    names = [row["name"] for row in result["baselines"]]
    assert names == ["most frequent class", "random forest"]
    assert result["baselines"][0]["parcel"]["overall_accuracy"] == pytest.approx(14 / 36)
    assert result["baselines"][1]["parcel"]["overall_accuracy"] > 0.8
    page = found.report.read_text()
    assert "There is no test part" in page
    assert "baseline: most frequent class (wheat)" in page


@pytest.mark.parametrize("model", ["star", "rf"])
def test_folds_that_were_cut_off_end_alike(
    model: str, even: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = FAST if model == "star" else {"model.trees": 20}

    def run(folder: str) -> cropstar.TrainingResult:
        return cropstar.train(store=even, model=model, folds=3, settings=settings, runs=tmp_path / folder)

    whole = run("whole")
    with monkeypatch.context() as patch:
        done: list[int] = []

        def cut(*args: object, **more: object) -> object:
            done.append(1)
            if len(done) > 2:
                raise Cut
            return added(*args, **more)  # type: ignore[arg-type]

        added = OutOfFold.add
        patch.setattr(OutOfFold, "add", cut)
        with pytest.raises(Cut):
            run("cut")
    with watched_steps() as steps:
        resumed = run("cut")
    assert resumed.model.read_bytes() == whole.model.read_bytes()
    assert (resumed.folder / "out-of-fold.safetensors").read_bytes() == (
        whole.folder / "out-of-fold.safetensors"
    ).read_bytes()
    if model == "star":  # two folds are not trained again; the third is at its end
        assert len(steps) == 8 * 5


def test_small_classes_are_named_with_what_helps(lopsided: Path, tmp_path: Path, run_cli: Cli) -> None:
    options = [f"--set={key}={value}" for key, value in FAST.items()]
    done = run_cli("train", "--store", lopsided, "--model", "star", "--set", "cross_fit=0", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = done.stderr
    assert "few fields: 'oats' 1, 'peas' 1, 'beet' 2, 'rapeseed' 2 (fewer than 10 each)" in said
    assert "ingest --classes" in said
    for part in ("validation", "test"):
        assert f"no {part} field of 'beet', 'oats', 'peas', 'rapeseed'" in said
    assert "the figures are over 2 of 6 classes" in said
    assert "'cropstar train --folds 5' judges all 44" in said
    assert "macro-F1 1.000 over 2 of 6 classes" in said or "over 3 of 6" in said
    assert "baselines, by parcel: most frequent class ('wheat') accuracy 0.5" in said

    run = next((tmp_path / "data" / "runs").iterdir())
    card, _, _ = read_model(run / "model.safetensors")
    tested = dict(zip(card.fingerprint.classes.names, card.provenance["class_fields"]["test"], strict=True))
    assert [name for name, count in tested.items() if not count] == ["beet", "oats", "peas", "rapeseed"]
    page = (run / "report.html").read_text()
    assert "No test parcel of beet, oats, peas, rapeseed: the figures say nothing of them" in page
    assert "of 6 classes" in page
    inspected = run_cli("inspect", run, cwd=tmp_path)
    assert "none for the test of beet, oats, peas, rapeseed" in " ".join(inspected.stdout.split())

    folded = run_cli("train", "--store", lopsided, "--model", "star", "--folds", "5", *options, cwd=tmp_path)
    assert folded.returncode == 0, folded.stderr
    assert "a single field of 'oats', 'peas'" in folded.stderr
    assert "5 folds are more than the fields of 'beet' 2, 'rapeseed' 2" in folded.stderr
    assert "on all 44 parcels" in folded.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--folds", "21"), 2, "21 is not in the range"),
        (("--folds", "20", "--split-by", "group"), 3, "no 20 folds"),
        (("--folds", "3", "--refit"), 2, "--refit cannot be combined with --folds"),
        (("--folds", "3", "--split-by", "pixel"), 2, "without a test part all fields are dealt to folds"),
        (("--folds", "3", "--model", "auto"), 2, "'auto' does not use --folds"),
        (("--set", "split.test=0"), 2, "split.test=0 needs at least 2 folds"),
        (("--set", "clean=true"), 2, "clean needs folds"),
    ],
)
def test_what_folds_cannot_do(
    words: tuple[str, ...], code: int, said: str, even: Path, tmp_path: Path, run_cli: Cli
) -> None:
    model = () if "--model" in words else ("--model", "star")
    done = run_cli("train", "--store", even, *model, *words, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\nerror") + done.stderr.startswith("error")) == (code, 1), done.stderr
    assert said in done.stderr
    assert not list(tmp_path.glob("data/runs/*"))


def test_a_run_without_test_part_is_not_evaluated_on_it(even: Path, tmp_path: Path) -> None:
    found = cropstar.train(store=even, model="rf", folds=2, settings={"model.trees": 10}, runs=tmp_path)
    with pytest.raises(cropstar.UsageError, match="the run has no test part"):
        cropstar.evaluate(found)
    assert cropstar.evaluate(found, part="all").seen_in_training == 36
