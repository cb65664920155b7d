"""`cropstar ingest --classes --erode --field-column`, from the files to the store."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import geopandas

from cropstar.store.store import Store
from tests.cli.test_bad_input import assert_refused
from tests.sources.examples.tables import a_frame, as_csv

Cli = Callable[..., "subprocess.CompletedProcess[str]"]


def pixels(folder: Path) -> dict[str, int]:
    store = Store.open(folder)
    names = store.fingerprint.classes.names
    counts = dict.fromkeys(names, 0)
    for _, reader in store.readers():
        labels = reader.labels()
        for number, name in enumerate(names):
            counts[name] += int((labels == number).sum())
    store.close()
    return counts


def test_classes_and_erosion(run_cli: Cli, small_scene: Path, small_store: Path, tmp_path: Path) -> None:
    before = pixels(small_store)
    first, second, *rest = before
    (tmp_path / "classes.yaml").write_text(
        f'all the rest: {rest}\nrenamed: {{labels: [{first}], colour: "#010203"}}\ndrop: [{second}]\n'
    )
    command = ["ingest", small_scene / "tile.tif", "--classes", "classes.yaml", "-o", "store"]
    answer = run_cli(*command, cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert "left out by the class table" in answer.stderr
    assert pixels(tmp_path / "store") == {
        "all the rest": sum(before[name] for name in rest),
        "renamed": before[first],
    }

    assert_refused(run_cli(*command, "--erode", "20", cwd=tmp_path), 2, "other content or options", "--overwrite")
    answer = run_cli(*command, "--erode", "20", "--overwrite", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    eroded = pixels(tmp_path / "store")
    assert 0 < eroded["renamed"] < before[first]


def test_refusals(run_cli: Cli, small_scene: Path, tmp_path: Path) -> None:
    frame = geopandas.read_file(small_scene / "parcels.gpkg")
    known = sorted(set(frame["crop"]))

    def ingest(text: str, *more: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "classes.yaml").write_text(text)
        return run_cli("ingest", small_scene / "tile.tif", "--classes", "classes.yaml", *more, cwd=tmp_path)

    assert_refused(ingest("a: [x]\na: [y]\n"), 2, "not valid YAML in classes.yaml", "line 2", "'a' appears twice")
    assert_refused(
        ingest(f"a: {known[1:]}\n"), 3, f"the label '{known[0]}' is not in the class table", "parcels have it"
    )
    assert_refused(ingest(f"a: {known}\n", "--erode", "5000"), 3, "--erode 5000 leaves nothing", "erode less")
    assert run_cli("ingest", small_scene / "tile.tif", "--erode", "-3", cwd=tmp_path).returncode == 2
    assert not (tmp_path / "data").exists()


def test_the_column_of_the_field(run_cli: Cli, tmp_path: Path) -> None:
    as_csv(a_frame(farm=["a", "b", "b", "a", "a", "b"]), tmp_path / "table")
    answer = run_cli("ingest", "table.csv", "--field-column", "fram", "-o", "store", cwd=tmp_path)
    assert_refused(answer, 2, "no column 'fram' in table.csv", "did you mean 'farm'?", "--field-column")
    assert not (tmp_path / "store").exists()
    answer = run_cli("ingest", "table.csv", "--field-column", "farm", "-o", "store", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    store = Store.open(tmp_path / "store")
    assert [reader.table.fields for _, reader in store.readers()] == [["a", "a", "b"]]
    store.close()
