"""`cropstar evaluate --areas`: adjusted areas, their design, the report, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cropstar.errors import ArtifactError, InputError, MismatchError, UsageError
from cropstar.prediction.job import predict
from cropstar.prediction.request import MapRequest
from cropstar.training.runs import Run
from tests.cli.test_evaluate import facts, refusal, run_command, trained, warned
from tests.reports.test_report import Page


@pytest.fixture(scope="module")
def home(small_store: Path, small_scene: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, the map that its model makes, and the map of another model."""
    home = tmp_path_factory.mktemp("areas")
    for seed, name in enumerate(("map", "other")):
        run = trained(small_store, home / name, **{"model.name": "star", "seed": seed, "epochs": 2})
        run.folder.rename(home / f"{name}-run")
        options = MapRequest(model=home / f"{name}-run" / "model.safetensors", device="cpu")
        predict(small_scene / "tile.tif", home / f"{name}.tif", options)
    return home


def test_areas_of_the_map(home: Path) -> None:
    run, image = home / "map-run", home / "map.tif"
    found = facts(run, "--areas", image, "--design", "random")["areas"]
    assert sum(found["mapped"]) == pytest.approx(96 * 96 * 0.01, rel=0.05)  # hectares, less what was never seen
    values = [entry["value"] for entry in found["area"]]
    assert sum(values) == pytest.approx(sum(found["mapped"]), rel=0.1)
    assert found["design"] == "random"
    text = run_command(run, "--areas", image, "--design", "random").stdout
    assert "adjusted" in text
    assert "simple random sample; mapped areas: " in text
    assert max(map(len, text.splitlines()[3:])) <= 120 + len(str(image))
    assert facts(run)["areas"] is None


def test_without_a_design_there_is_a_warning_and_no_interval(home: Path) -> None:
    run, image = home / "map-run", home / "map.tif"
    assert "not known to be a probability sample" in warned(run, "--areas", image)
    found = facts(run, "--areas", image)["areas"]
    assert all(entry["margin"] is None for entry in (*found["area"], found["overall_accuracy"]))
    assert "not known to be" not in warned(run, "--areas", image, "--design", "stratified")


def test_a_table_is_taken_for_the_models_map(home: Path, tmp_path: Path) -> None:
    run, table = home / "map-run", tmp_path / "areas.csv"
    found = facts(run, "--areas", home / "map.tif", "--design", "random")
    rows = zip(found["classes"], found["areas"]["mapped"], strict=True)
    table.write_text("class,hectares\n" + "".join(f"{entry['name']},{area!r}\n" for entry, area in rows))
    same = facts(run, "--areas", table, "--design", "random")["areas"]
    assert same == found["areas"] | {"source": str(table)}
    assert "cannot tell whether" in warned(run, "--areas", table)


def test_the_report_of_an_evaluation(home: Path, tmp_path: Path) -> None:
    run, output = home / "map-run", tmp_path / "areas.html"
    assert run_command(run, "--areas", home / "map.tif", "--design", "random", "-o", output).exit_code == 0
    words = Page(output.read_text(encoding="utf-8")).words
    assert "Area of each crop" in words
    assert "Map of errors" in words
    assert "parcels that training never saw" in words  # the test of the training again
    assert run_command(run, "--part", "train", "-o", output, "--overwrite").exit_code == 0
    words = Page(output.read_text(encoding="utf-8")).words
    assert "(the train part of" in words
    assert "parcels that training never saw" not in words
    assert isinstance(refusal(run, "-o", output), UsageError)


def test_errors_of_pooled_parcels_are_those_of_the_evaluation(small_store: Path, tmp_path: Path) -> None:
    """Only the judged parcels are pooled, and they keep their numbers."""
    run = trained(small_store, tmp_path / "runs", **{"model.name": "star", "target": "parcel"})
    found = facts(run.folder)
    confusion = found["figures"]["parcel"]["confusion"]
    right = sum(row[place] for place, row in enumerate(confusion))
    (scene,) = found["errors"]["scenes"]
    assert (scene["right"], scene["wrong"]) == (right, sum(map(sum, confusion)) - right)
    assert scene["right"] + scene["wrong"] + scene["unseen"] == found["parcels"]


def test_what_is_refused(home: Path, tmp_path: Path) -> None:
    run, image = home / "map-run", home / "map.tif"
    failure = refusal(run, "--areas", home / "other.tif")
    assert isinstance(failure, MismatchError)
    assert "made by another model" in str(failure)
    assert "--areas" in str(refusal(run, "--design", "random"))
    assert isinstance(refusal(run, "--areas", tmp_path / "none.tif"), InputError)
    table = tmp_path / "areas.csv"
    table.write_text("class,hectares\nhemp,3\n")
    assert isinstance(refusal(run, "--areas", table), MismatchError)
    table.write_text("class,hectares\n")
    assert isinstance(refusal(run, "--areas", table), InputError)
    assert run_command(run, "--areas", image, "--design", "haphazard").exit_code == 2
    alone = tmp_path / "alone.safetensors"
    alone.write_bytes((run / "model.safetensors").read_bytes())
    store = json.loads(Run(run).result.read_text())["data"]["store"]
    assert isinstance(refusal(alone, "--store", store, "-o", tmp_path / "report.html"), ArtifactError)
    emptied = tmp_path / "emptied"
    emptied.mkdir()
    for name in ("config.yaml", "result.json"):
        (emptied / name).write_bytes((run / name).read_bytes())
    assert isinstance(refusal(emptied), ArtifactError)  # a finished run whose model is gone
