"""`cropstar evaluate`: the figures of the training again, other stores, and what is refused."""

from __future__ import annotations

import json
import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cropstar.cli.evaluate import evaluate
from cropstar.config import resolve_config
from cropstar.errors import ArtifactError, InputError, MismatchError, UsageError
from cropstar.reports.results import with_interval
from cropstar.store.classes import ClassTable, CropClass
from cropstar.store.tile import ParcelTable, RasterTile
from cropstar.training.runs import Run
from cropstar.training.train import TrainOptions, train
from tests.cli.invoking import InProcess
from tests.examples import a_fingerprint, a_raster_tile, a_series_tile, store_of

TINY = {"model.layers": 1, "model.hidden": 6, "epochs": 1, "split.validation": 0.3, "split.test": 0.3, "seed": 3}
KINDS: dict[str, dict[str, object]] = {
    "images": {"model.name": "convstar"},
    "parcels": {"model.name": "star", "target": "parcel"},
    "pixels": {"model.name": "gru", "split.by": "pixel", "regular.every": 20},
}
NAMES = ["maize", "wheat"]


def trained(store: Path, runs: Path, **changes: object) -> Run:
    run, _ = train(resolve_config(None, {"store": store, **TINY, **changes}), TrainOptions(runs, torch.device("cpu")))
    return run


@pytest.fixture(scope="module")
def runs(small_store: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    folder = tmp_path_factory.mktemp("runs")
    return {kind: trained(small_store, folder, **changes) for kind, changes in KINDS.items()}


def fields(names: list[str] | None = None, recipe: str = "a" * 16, **changes: Any) -> RasterTile:
    """48 fields of maize and wheat, which differ a little; the numbers of the classes are their places in `names`."""
    parcels = np.kron(np.arange(1, 49).reshape(6, 8), np.ones((3, 3), dtype=np.int32)).astype(np.int32)
    tile = a_raster_tile((4, 2, 18, 24), parcels=parcels)
    names = names or NAMES
    table = ClassTable(CropClass(number, name, f"#{number:06x}") for number, name in enumerate(names))
    own = np.array([names.index(name) if name in names else names.index("rye") for name in NAMES], dtype=np.int16)
    values = tile.values + (5000 * (parcels % 2)).astype(np.uint16)
    return replace(
        tile,
        recipe=recipe,
        values=values,
        labels=own[parcels % 2],
        table=ParcelTable(tile.table.numbers, tile.table.keys, own[tile.table.numbers % 2]),
        fingerprint=replace(tile.fingerprint, classes=table, **changes),
    )


@pytest.fixture(scope="module")
def crops(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A model of two crops that is right more often than not."""
    folder = tmp_path_factory.mktemp("crops")
    store = store_of(folder / "store", {"tile": fields()})
    longer = {"epochs": 8, "patch": 6, "batch": 1, "optimiser.learning_rate": 0.02}
    return trained(store, folder / "runs", **{"model.name": "star", **longer})


run_command = InProcess(evaluate, "--device", "cpu")
facts, refusal = run_command.facts, run_command.refusal


def warned(*arguments: object) -> str:
    result = run_command(*arguments)
    assert result.exit_code == 0, result.exception
    return result.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_the_test_part_gives_the_figures_of_the_training(kind: str, runs: dict[str, Run]) -> None:
    run = runs[kind]
    result = json.loads(run.result.read_text())
    found = facts(run.folder)
    assert found["part"] == "test"
    assert found["parcels"] == sum(result["split"]["counts"]["test"])
    assert found["figures"] == result["test"]
    assert found["calibration"] == result["calibration"]
    assert found["sets"] == result["sets"]
    assert found == facts(run.model)  # the file in its run is the run
    assert found["pixels"] == (kind != "parcels")


def test_the_same_of_series(tmp_path: Path) -> None:
    tile = replace(a_series_tile([3, 5, 4] * 16), fingerprint=a_fingerprint(("B01", "B02"), resolution=0.0))
    run = trained(store_of(tmp_path / "store", {"tile": tile}), tmp_path / "runs", **{"model.name": "star"})
    result, found = json.loads(run.result.read_text()), facts(run.folder)
    assert found["figures"] == result["test"]
    assert found["calibration"] == result["calibration"]
    assert not found["pixels"]


def test_the_tables(crops: Run, runs: dict[str, Run]) -> None:
    text = run_command(crops.folder, "--part", "all").stdout
    figures = facts(crops.folder, "--part", "all")["figures"]
    for level in ("parcel", "pixel"):
        assert with_interval(figures[level]["macro_f1"], figures[level]["intervals"]["macro_f1"]) in text
    assert figures["pixel"]["intervals"]["macro_f1"] is not None
    assert "precision  recall" in text
    assert "(ECE)" in text
    assert "kappa" in text
    assert max(map(len, text.splitlines()[3:])) <= 120
    assert "by pixel" not in run_command(runs["parcels"].folder).stdout


def test_parcels_of_the_training_are_told(runs: dict[str, Run]) -> None:
    run = runs["images"]
    counts = {part: sum(row) for part, row in json.loads(run.result.read_text())["split"]["counts"].items()}
    assert facts(run.folder)["seen_in_training"] == 0
    assert "optimistic" not in warned(run.folder)
    for part in ("train", "validation"):
        found = facts(run.folder, "--part", part)
        assert (found["parcels"], found["seen_in_training"]) == (counts[part], counts[part])
    whole = facts(run.folder, "--part", "all")
    assert whole["parcels"] == sum(counts.values())
    assert whole["seen_in_training"] == counts["train"] + counts["validation"]
    assert f"{whole['seen_in_training']} of {whole['parcels']} parcels were in the training" in warned(
        run.folder, "--part", "all"
    )
    assert "optimistic" in warned(runs["pixels"].folder)  # its test has pixels of fields that it learnt from


def test_a_split_of_ones_own(runs: dict[str, Run]) -> None:
    found = facts(runs["images"].folder, "--split-by", "pixel")
    assert found["split"]["by"] == "pixel"
    assert found["part"] == "test"
    assert found["seen_in_training"] > 0


def test_a_moved_store_is_the_same_and_another_one_is_judged_whole(crops: Run, tmp_path: Path) -> None:
    moved = store_of(tmp_path / "moved", {"tile": fields()})
    assert facts(crops.folder, "--store", moved)["figures"] == facts(crops.folder)["figures"]
    other = facts(crops.folder, "--store", store_of(tmp_path / "other", {"tile": fields(recipe="b" * 16)}))
    assert (other["part"], other["parcels"], other["seen_in_training"]) == ("all", 48, 0)


def test_fields_of_a_year_that_was_learnt_may_be_those_of_the_training(crops: Run, tmp_path: Path) -> None:
    same = store_of(tmp_path / "same", {"tile": fields(recipe="b" * 16)})  # as of a file of another name
    assert "the model learnt from fields of" in warned(crops.folder, "--store", same)
    later = replace(fields(recipe="b" * 16), days=fields().days + 365)
    assert "optimistic" not in warned(crops.folder, "--store", store_of(tmp_path / "later", {"tile": later}))


def test_classes_are_found_by_name(crops: Run, tmp_path: Path) -> None:
    expected = facts(crops.folder, "--part", "all")["figures"]
    assert expected["parcel"]["overall_accuracy"] > 0.7  # else mixed-up classes would go unnoticed
    for place, names in enumerate((["wheat", "maize"], ["alfalfa", "wheat", "maize"])):
        store = store_of(tmp_path / str(place), {"tile": fields(names, "c" * 16)})
        assert facts(crops.folder, "--store", store)["figures"] == expected


def test_a_model_file_alone(crops: Run, tmp_path: Path) -> None:
    alone = shutil.copy(crops.model, tmp_path / "alone.safetensors")
    store = json.loads(crops.result.read_text())["data"]["store"]
    assert facts(alone, "--store", store)["figures"] == facts(crops.folder, "--part", "all")["figures"]
    assert "48 of 48 parcels may have been" in warned(alone, "--store", store)
    assert "name one with --store" in str(refusal(alone))
    assert isinstance(refusal(alone, "--store", store, "--part", "test"), UsageError)
    assert facts(alone, "--store", store, "--part", "test", "--split-by", "parcel")["parcels"] < 48


def test_figures_are_written_and_never_overwritten_unasked(crops: Run, tmp_path: Path) -> None:
    output = tmp_path / "figures.json"
    found = facts(crops.folder, "-o", output)
    assert json.loads(output.read_text()) == found
    output.write_text("mine")
    assert isinstance(refusal(crops.folder, "-o", output), UsageError)
    assert output.read_text() == "mine"
    facts(crops.folder, "-o", output, "--overwrite")
    assert json.loads(output.read_text()) == found
    assert isinstance(refusal(crops.folder, "-o", tmp_path / "figures.txt"), UsageError)


@pytest.mark.parametrize(
    ("tile", "words"),
    [
        (fields(bands=("B02", "B01")), "bands [B01, B02] against [B02, B01]"),
        (fields(scale=1e-3), "scale 0.0001 against 0.001"),
        (fields(offset=-0.1), "offset"),
        (fields(resolution=20.0), "resolution 10.0 against 20.0"),
        (fields(["rye", "wheat"]), "does not know the classes [rye]"),
    ],
    ids=["bands", "scale", "offset", "resolution", "class"],
)
def test_a_store_that_does_not_fit(tile: RasterTile, words: str, crops: Run, tmp_path: Path) -> None:
    failure = refusal(crops.folder, "--store", store_of(tmp_path / "store", {"tile": tile}))
    assert isinstance(failure, MismatchError)
    assert words in str(failure)


def test_series_for_a_model_of_images(runs: dict[str, Run], tmp_path: Path) -> None:
    series = replace(a_series_tile([3, 4]), fingerprint=a_fingerprint(resolution=0.0))
    failure = refusal(runs["images"].folder, "--store", store_of(tmp_path / "store", {"tile": series}))
    assert isinstance(failure, MismatchError)
    assert "needs images" in str(failure)


def test_a_store_that_grew_since_the_training(tmp_path: Path) -> None:
    store = store_of(tmp_path / "store", {"tile": fields()})
    run = trained(store, tmp_path / "runs", **{"model.name": "star"})
    store_of(store, {"tile": fields(), "more": replace(fields(recipe="d" * 16), scene="more")})
    assert isinstance(refusal(run.folder), MismatchError)
    assert facts(run.folder, "--part", "all")["parcels"] == 96


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_a_pickle_is_no_model_and_is_not_run(tmp_path: Path) -> None:
    model, trace = tmp_path / "model.safetensors", tmp_path / "trace"
    model.write_bytes(pickle.dumps(Bomb(trace)))
    for path in (model, tmp_path):
        assert isinstance(refusal(path, "--store", tmp_path), ArtifactError)
    assert not trace.exists()


def test_what_else_is_refused(crops: Run, tmp_path: Path) -> None:
    unfinished = Path(shutil.copytree(crops.folder, tmp_path / "unfinished"))
    (unfinished / "result.json").unlink()
    for path in (unfinished, unfinished / "model.safetensors"):
        failure = refusal(path)
        assert isinstance(failure, ArtifactError)
        assert "not finished" in str(failure)
    broken = Path(shutil.copytree(crops.folder, tmp_path / "broken"))
    (broken / "result.json").write_text("{")
    assert isinstance(refusal(broken), ArtifactError)
    (tmp_path / "empty").mkdir()
    assert "not a run" in str(refusal(tmp_path / "empty"))
    assert isinstance(refusal(tmp_path / "none-such"), ArtifactError)
    assert isinstance(refusal(crops.folder, "--store", tmp_path / "none-such"), InputError)
    assert isinstance(refusal(crops.folder, "--split", "fold-1"), UsageError)
    assert isinstance(refusal(crops.folder, "--split-by", "moon"), UsageError)
    assert isinstance(refusal(crops.folder, "--split-by", "block", "--part", "all"), UsageError)
