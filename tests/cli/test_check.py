"""`cropstar check` as users call it: tables and images, suspects, declared crops, other years, bad input."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import geopandas
import pandas
import pyogrio
import pytest

import cropstar
from tests.training.label_tables import table_store

Cli = Callable[..., subprocess.CompletedProcess[str]]
COUNTS = {"wheat": 25, "maize": 25, "beet": 25}
SWAPPED = {3: "maize", 12: "beet", 30: "wheat", 41: "beet", 55: "wheat", 66: "maize"}
TREES = ("--model", "rf", "--set", "model.trees=40")


@pytest.fixture(scope="module")
def swapped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return table_store(tmp_path_factory.mktemp("swapped"), COUNTS, swapped=SWAPPED)


@pytest.fixture(scope="module")
def run(swapped: Path) -> Path:
    found = cropstar.check(swapped, model="rf", settings={"model.trees": 40}, folds=4, runs=swapped.parent / "runs")
    return found.run


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on fields whose labels are all right."""
    store = table_store(tmp_path_factory.mktemp("right"), COUNTS, seed=2)
    return cropstar.train(
        store=store, model="rf", settings={"model.trees": 40}, folds=4, runs=store.parent / "runs"
    ).folder


def test_swapped_labels_are_named_with_what_they_look_like(swapped: Path, run: Path, tmp_path: Path) -> None:
    found = cropstar.check(run, output=tmp_path / "found.csv", false_alarms=0.1)
    true = {f"f{number}": crop for number, crop in
            enumerate(crop for crop, count in COUNTS.items() for _ in range(count))}  # fmt: skip
    suspects = {row["key"]: row["mapped"] for row in found.suspects}
    wrong = {f"f{number}" for number in SWAPPED}
    assert len(wrong & set(suspects)) >= 4
    assert len(set(suspects) - wrong) <= 4
    assert all(suspects[key] == true[key] for key in wrong & set(suspects))
    assert {row["key"] for row in found.suspects[:4]} <= wrong
    table = pandas.read_csv(tmp_path / "found.csv")
    assert len(table) == 75
    assert sorted(table["suspect"].dropna().astype(int)) == list(range(1, len(suspects) + 1))
    assert sorted(table["survey"].dropna().astype(int)) == list(range(1, 21))
    assert set(table["light"]) <= {"green", "yellow", "red"}
    assert (table["light"] == "red").sum() <= 0.1 * 75 + 3
    page = (tmp_path / "found.html").read_text()
    assert page.count("<svg") >= 6
    assert "wheat looks like" in re.sub(r"<[^>]+>", "", page)
    assert "NDVI" in page


def test_a_store_is_checked_by_the_run_that_judged_it(swapped: Path, run: Path, tmp_path: Path, run_cli: Cli) -> None:
    done = run_cli("check", swapped, "--runs", run.parent, "-o", tmp_path / "a.parquet", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "its folds judged every field already" in done.stderr
    assert len(json.loads(done.stdout)["fields"]) == 75
    assert len(list(run.parent.iterdir())) == 1
    assert len(pandas.read_parquet(tmp_path / "a.parquet")) == 75
    again = run_cli("check", run, "-o", tmp_path / "a.parquet", cwd=tmp_path)
    assert (again.returncode, again.stderr.splitlines()[-1][:24]) == (2, "error: the output exists")


def test_declared_crops_of_a_file(right: Path, tmp_path: Path) -> None:
    rows = ["id,crop_2021", "f0,wheat", "f1,beet", "f2,", "f3,wheat", "f99,wheat"]
    (tmp_path / "lpis.csv").write_text("\n".join(rows))
    found = cropstar.check(right, parcels=tmp_path / "lpis.csv", declared="crop_2021", output=tmp_path / "lights.csv")
    lights = {row["key"]: row["light"] for row in found.fields}
    assert set(lights) == {"f0", "f1", "f3"}
    assert lights["f1"] == "red"
    assert "red" not in (lights["f0"], lights["f3"])


def test_another_year_is_said_to_be_one(right: Path, tmp_path: Path, run_cli: Cli) -> None:
    other = table_store(tmp_path / "later", COUNTS, seed=5, year=2022)
    done = run_cli("check", right, "--store", other, "-o", tmp_path / "later.csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "the fields are of 2022, the model learnt 2021: across years the rate of false alarms is not promised" in (
        done.stderr
    )
    assert "NOT promised here" in done.stderr
    assert not pandas.read_csv(tmp_path / "later.csv")["promised"].any()
    page = (tmp_path / "later.html").read_text()
    assert "across years the rate of false alarms is not promised" in page
    assert "is not promised for these fields" in page
    assert str(tmp_path) not in page
    shifted = table_store(tmp_path / "strange", {"maize": 60}, swapped=dict.fromkeys(range(60), "wheat"), seed=6)
    broken = run_cli("check", right, "--store", shifted, "-o", tmp_path / "strange.csv", cwd=tmp_path)
    assert "of the declared crops are red where at most 5% of right ones would be" in broken.stderr
    assert "across years" not in broken.stderr


def test_images_give_a_geopackage_with_a_style(small_store: Path, tmp_path: Path, run_cli: Cli) -> None:
    done = run_cli("check", small_store, *TREES, "--folds", "3", "--survey", "4", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "data" / "runs").iterdir()
    frame = geopandas.read_file(folder / f"{folder.name}-check.gpkg")
    assert frame.crs is not None
    assert (frame.area > 0).all()
    assert {"declared", "light", "p_value", "mapped", "probability", "second", "suspect", "survey"} <= set(
        frame.columns
    )
    assert frame["survey"].notna().sum() == 4
    assert frame["promised"].all()
    notes = pyogrio.read_info(folder / f"{folder.name}-check.gpkg")["layer_metadata"]
    assert notes["CROPSTAR_FALSE_ALARMS"] == "0.05"
    style = ElementTree.parse(folder / f"{folder.name}-check.qml").getroot()
    renderer = style.find("renderer-v2")
    assert renderer is not None
    assert renderer.get("attr") == "light"
    values = {category.get("value"): category.get("symbol") for category in style.iter("category")}
    assert set(values) == {"green", "yellow", "red"}
    assert set(values.values()) == {symbol.get("name") for symbol in style.iter("symbol")}
    # The outlines are those of the parcels that the store was made with, to a pixel.
    with cropstar.open_store(small_store) as store:
        grid = next(iter(store.scenes.values())).grid
    assert frame.total_bounds[0] >= grid.bounds[0]
    assert frame.total_bounds[3] <= grid.bounds[3]


@pytest.mark.parametrize(
    "kind", ["no folds", "unknown crop", "no column", "no parcels", "two crops", "nobody", "not there", "gpkg"]
)
def test_bad_input_is_one_line(kind: str, run: Path, swapped: Path, tmp_path: Path, run_cli: Cli) -> None:
    table = tmp_path / "lpis.csv"
    table.write_text("id,crop\nf0,triticale\nf1,wheat\n")
    (tmp_path / "others.csv").write_text("id,crop\nx1,wheat\nx2,wheat\n")
    (tmp_path / "twice.csv").write_text("id;crop\nf0;wheat\nf1;wheat\nf0;maize\n")  # the last one was taken
    plain = ""
    if kind == "no folds":
        trained = cropstar.train(store=swapped, model="rf", settings={"model.trees": 5}, runs=tmp_path / "runs")
        plain = str(trained.folder)
    words, code, said = {
        "no folds": ((plain,), 4, "no probabilities out of fold"),
        "unknown crop": ((run, "--parcels", table, "--declared", "crop"), 5, "'triticale' (1); it knows beet, maize"),
        "no column": ((run, "--parcels", table, "--declared", "corp"), 3, "no column 'corp'"),
        "no parcels": ((run, "--declared", "crop"), 2, "--declared without --parcels"),
        "two crops": ((run, "--parcels", tmp_path / "twice.csv", "--declared", "crop"), 3, "declares two crops"),
        "nobody": ((run, "--parcels", tmp_path / "others.csv", "--declared", "crop"), 3, "no field is declared"),
        "not there": ((tmp_path / "nothing",), 4, "no model file"),
        "gpkg": ((run,), 2, "no GeoPackage of this store"),
    }[kind]
    output = tmp_path / ("a.gpkg" if kind == "gpkg" else "a.csv")
    done = run_cli("check", *words, "-o", output, cwd=tmp_path)
    errors = [line for line in done.stderr.splitlines() if line.startswith("error")]
    assert (done.returncode, len(errors)) == (code, 1), done.stderr
    assert said in errors[0]
    assert not output.exists()


def test_a_declared_crop_may_be_spelt_otherwise(run: Path, tmp_path: Path, run_cli: Cli) -> None:
    (tmp_path / "lpis.csv").write_text("id,crop\nf0,WHEAT \nf1,Wheat\n")
    done = run_cli(
        "check", run, "--parcels", tmp_path / "lpis.csv", "--declared", "crop", "-o", "out.csv", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert pandas.read_csv(tmp_path / "out.csv")["declared"].tolist() == ["wheat", "wheat"]


def test_one_crop_in_two_spellings_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING"):
        table_store(tmp_path / "table", {"wheat": 3, "maize": 2}, swapped={0: "WHEAT", 1: "wheat "})
    assert "'WHEAT' and 'wheat' are 2 classes: if they are one crop, merge them" in caplog.text
    assert "maize" not in caplog.text


def test_clean_leaves_suspects_out_of_training_alone(tmp_path: Path) -> None:
    wrong = dict.fromkeys(range(0, 40, 5), "maize") | dict.fromkeys(range(40, 80, 5), "wheat")
    store = table_store(tmp_path / "table", {"wheat": 40, "maize": 40}, swapped=wrong)
    found = cropstar.train(store=store, model="rf", clean=True, settings={"model.trees": 40}, runs=tmp_path / "runs")
    result = json.loads((found.folder / "result.json").read_text())
    assert 4 <= result["clean"]["suspects"] <= 14
    assert sum(pair["fields"] for pair in result["clean"]["pairs"]) == result["clean"]["suspects"]
    tested = sum(sum(row) for row in result["test"]["parcel"]["confusion"])
    assert tested == sum(result["split"]["counts"]["test"])  # also those whose label is swapped
    assert "with a suspect label were left out of its training" in found.report.read_text()
