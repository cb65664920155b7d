"""`--distil`: what is learnt from a teacher, from whom, and what is refused."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from cropstar.cli.main import cropstar
from cropstar.config import LossConfig, TrainConfig
from cropstar.datasets.batches import Batch
from cropstar.datasets.samples import open_parts
from cropstar.datasets.splits import split_parcels
from cropstar.errors import MismatchError, UsageError
from cropstar.models.zoo import restore_model
from cropstar.store.classes import UNLABELLED
from cropstar.store.model_file import read_model, write_model
from cropstar.store.store import Store
from cropstar.training.distillation import TaughtSamples, Teacher
from cropstar.training.losses import CrossEntropy, Distillation
from cropstar.training.runs import Run
from cropstar.training.train import train
from tests.training.stepping import Cut, cut_before, watched_steps
from tests.training.test_ensembles import small
from tests.training.test_train import CPU, options, tiny


@pytest.fixture(scope="module")
def teacher(small_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    config = small(small_store, **{"model.name": "gru", "epochs": 1, "target": "pixel"})
    return train(config, options(tmp_path_factory.mktemp("teacher")))[0]


def asked(store: Path, config: TrainConfig, teacher: Path) -> tuple[TaughtSamples, Any]:
    opened = Store.open(store)
    split = split_parcels(opened, config.split, config.seed)
    parts, _ = open_parts(opened, split, config, spatial=config.model.name.startswith("conv"))
    taught = Teacher(teacher, opened, split, config, CPU).teach(parts["train"], split, config)
    return taught, opened


def test_the_loss_is_a_mix_of_labels_and_teacher() -> None:
    random = torch.Generator().manual_seed(0)
    scores = torch.randn(4, 3, generator=random, requires_grad=True)
    said = torch.rand(4, 3, generator=random).softmax(dim=1)
    labels = torch.tensor([0.0, 2.0, 1.0, UNLABELLED])
    said[2] = torch.nan  # nothing is said of the third, and the last has no label
    targets = torch.cat([labels[:, None], said], dim=1)
    config = LossConfig(teacher=0.3)
    own = torch.nn.functional.cross_entropy(scores[:3], labels[:3].long(), reduction="none")
    far = torch.nn.functional.kl_div(scores.log_softmax(1), said, reduction="none").sum(1)
    wanted = 0.7 * own[0] + 0.3 * far[0] + 0.7 * own[1] + 0.3 * far[1] + own[2] + 0.3 * far[3]
    loss = Distillation(config, None)
    torch.testing.assert_close(loss.sum(scores, targets), wanted)
    torch.testing.assert_close(loss(scores, targets), wanted / 3.3)
    loss(scores, targets).backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
    pieces = [loss.sum(scores[rows], targets[rows]) for rows in (slice(0, 3), slice(3, 4))]
    torch.testing.assert_close(pieces[0] + pieces[1], wanted)
    labelled = CrossEntropy(config, None)(scores[:3], labels[:3].long())
    torch.testing.assert_close(Distillation(LossConfig(teacher=0.0), None)(scores[:3], targets[:3]), labelled)


@pytest.mark.parametrize("name", ["convstar", "star"])
def test_the_teacher_speaks_of_training_and_unlabelled_pixels_alone(name: str, small_store: Path, teacher: Run) -> None:
    config = tiny(small_store, **{"model.name": name, "augmentation.flips": True})
    taught, store = asked(small_store, config, teacher.folder)
    try:
        from cropstar.datasets.transforms import Draw

        indexes = list(range(3))
        plain = taught.batch(indexes)
        drawn = taught.augmented(indexes, config.augmentation.model_copy(update={"flips": False}), Draw(0, 0, indexes))
        places = taught.samples.places[:3]  # type: ignore[attr-defined]
        raw = [place.image(store).labels(place.window) for place in places]
        for row, labels in enumerate(raw):
            here = drawn.taught[row, 0, : labels.shape[0], : labels.shape[1]].isfinite().numpy()
            known = plain.labels[row, : labels.shape[0], : labels.shape[1]].numpy() != UNLABELLED
            assert not here[(labels != UNLABELLED) & ~known].any()  # fields of validation and test
            assert here[known].any()
        card, weights, _ = read_model(teacher.model)
        model = restore_model(card.model, card.shape, weights, teacher.model)
        assert card.calibration is not None
        heat = card.calibration["temperature"]["temperature"]
        series = plain.as_series()
        with torch.no_grad():  # the same split: the same normalisation
            wanted = (model(series.x, series.valid, series.days) / heat).softmax(1)
        chosen = plain.labels != UNLABELLED
        found = drawn.taught.permute(0, 2, 3, 1)[chosen]
        seen = series.valid.any(dim=1)
        torch.testing.assert_close(found[seen], wanted[seen])
        turned = taught.augmented(indexes, config.augmentation, Draw(0, 0, indexes))
        pairs = [_pairs(batch) for batch in (drawn, turned)]  # labels and answers are turned alike
        assert pairs[0] == pairs[1]
    finally:
        store.close()


def _pairs(batch: Batch) -> list[tuple[int, float]]:
    chosen = batch.labels != UNLABELLED
    said = batch.taught[:, 0].nan_to_num(-1)[chosen].tolist()
    return sorted(zip(batch.labels[chosen].tolist(), said, strict=True))


@pytest.mark.parametrize("name", ["convstar", "star"])
def test_a_student_of_images_learns(name: str, small_store: Path, teacher: Run, tmp_path: Path) -> None:
    config = tiny(
        small_store, **{"model.name": name, "augmentation.flips": True, "epochs": 1, "distil": teacher.folder}
    )
    run, result = train(config, options(tmp_path))
    assert result["distil"]["teacher"] == "gru"
    assert read_model(run.model)[0].provenance["distil"]["digest"] == read_model(teacher.model)[2]
    assert "answers of a teacher, gru" in run.report.read_text()


def test_a_student_cut_off_ends_with_the_same_bytes(small_store: Path, tmp_path: Path) -> None:
    """An ensemble as teacher, a student of parcels that is refitted, too."""
    ensemble, _ = train(small(small_store, epochs=1, ensemble=2), options(tmp_path / "teacher"))
    config = small(small_store, epochs=2, distil=ensemble.folder, refit=True)
    with watched_steps() as steps:
        whole, _ = train(config, options(tmp_path / "whole"))
    with watched_steps(cut_before(math.ceil(0.5 * len(steps)) + 1)), pytest.raises(Cut):
        train(config, options(tmp_path / "cut", checkpoint_seconds=0.0))
    run, _ = train(config, options(tmp_path / "cut"))
    assert run.model.read_bytes() == whole.model.read_bytes()
    plain, _ = train(small(small_store, epochs=2), options(tmp_path / "plain"))
    (_, mine, _), (_, theirs, _) = read_model(whole.before_refit), read_model(plain.model)
    assert any(not np.array_equal(mine[name], theirs[name]) for name in mine)


def write_table(table: Path, years: tuple[int, ...] = (2023,)) -> None:
    """Forty fields a year, the last ten of them without a class."""
    random = np.random.default_rng(0)
    with table.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "year", "date", "crop", "B04", "B08"])
        for year in years:
            for field in range(40):
                crop = ["maize", "wheat"][field % 2] if field < 30 else ""
                for month in (4, 5, 6, 7):
                    values = random.integers(100, 4000, 2)
                    rows.writerow([f"{field}-{year}", year, f"{year}-{month:02d}-10", crop, *values])


@pytest.mark.parametrize("year", ["2022", "2023"])
def test_the_years_of_one_table_are_told_apart(year: str, tmp_path: Path) -> None:
    """Both are scenes of one recipe: a teacher of the one year does not know the fields of the other."""
    write_table(table := tmp_path / "fields.csv", (2022, 2023))
    made = CliRunner().invoke(cropstar, ["ingest", str(table), "-o", str(tmp_path / "store"), "--group-column", "year"])
    assert made.exit_code == 0, made.output
    settings = {"split.by": "group", "split.test": [year], "split.validation": 0.3, "target": None, "epochs": 1}
    first, _ = train(small(tmp_path / "store", **settings), options(tmp_path / "runs"))
    train(small(tmp_path / "store", **settings, distil=first.folder), options(tmp_path / "student"))
    swapped = settings | {"split.test": ["2022" if year == "2023" else "2023"]}
    with pytest.raises(MismatchError, match="30 of 30 were in its training"):
        train(small(tmp_path / "store", **swapped, distil=first.folder), options(tmp_path / "swapped"))


def test_series_without_a_class_are_learnt_from(tmp_path: Path) -> None:
    table = tmp_path / "fields.csv"
    write_table(table)
    made = CliRunner().invoke(cropstar, ["ingest", str(table), "-o", str(tmp_path / "store"), "--keep-unlabelled"])
    assert made.exit_code == 0, made.output
    settings = {"series_batch": 4, "target": None, "epochs": 1}
    first, _ = train(small(tmp_path / "store", **settings), options(tmp_path / "runs"))
    config = small(tmp_path / "store", **settings, distil=first.folder)
    taught, store = asked(tmp_path / "store", config, first.folder)
    try:
        labels = taught.batch(list(range(len(taught)))).labels
        assert (labels == UNLABELLED).sum() == 10
        assert taught.class_counts(2).sum() == len(taught) - 10
    finally:
        store.close()
    _, result = train(config, options(tmp_path / "student"))
    assert result["throughput"]["samples_per_second"] > 0


def test_a_teacher_of_other_classes_or_bands_is_refused(small_store: Path, teacher: Run, tmp_path: Path) -> None:
    card, weights, _ = read_model(teacher.model)
    marks = card.fingerprint
    other = tmp_path / "other.safetensors"
    fewer = type(marks.classes).from_names(marks.classes.names[:-1])
    shorter = {name: array[: len(fewer)] if len(array) == len(fewer) + 1 else array for name, array in weights.items()}
    for changed, own, said in (
        (replace(marks, classes=fewer), shorter, "classes"),
        (replace(marks, bands=marks.bands[::-1]), weights, "bands"),
    ):
        shape = {**card.shape, "classes": len(changed.classes)}
        write_model(other, replace(card, fingerprint=changed, shape=shape), own)
        config = small(small_store, target="pixel", distil=other)
        with pytest.raises(MismatchError, match=said):
            train(config, options(tmp_path / "runs"))
    assert not (tmp_path / "runs").exists()


def test_a_teacher_that_knows_the_test_parcels_is_refused(
    small_store: Path, teacher: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = small(small_store, target="pixel", epochs=1, distil=teacher.folder, seed=5)
    with pytest.raises(MismatchError, match=r"was trained on test parcels.*were in its training"):
        train(config, options(tmp_path / "runs"))
    alone = tmp_path / "alone.safetensors"
    alone.write_bytes(teacher.model.read_bytes())
    store = Store.open(small_store)
    with caplog.at_level("WARNING", logger="cropstar"):
        Teacher(alone, store, split_parcels(store, config.split, 5), config, CPU)
    store.close()
    assert "cannot tell whether" in caplog.text


def test_a_forest_has_no_use_for_a_teacher(small_store: Path, teacher: Run, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    config = TrainConfig.model_validate({"store": small_store, "model": {"name": "rf"}, "distil": teacher.folder})
    with pytest.raises(UsageError, match="'rf' does not use --distil"):
        train(config, options(tmp_path))
