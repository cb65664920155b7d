"""`cropstar inspect`: what it prints of stores, tiles and models, what it draws, and what it refuses."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from cropstar.cli.inspect import inspect
from cropstar.errors import ArtifactError, InputError, UsageError
from cropstar.geo.calendar import Season
from cropstar.reports.text import season_words, size_words
from cropstar.store.classes import ClassTable
from cropstar.store.fingerprint import Fingerprint, Normalisation
from cropstar.store.model_file import ModelCard, write_model
from cropstar.store.store import Store
from tests.cli.invoking import InProcess

run = InProcess(inspect)
said, facts, refusal = run.said, run.facts, run.refusal


@pytest.fixture
def model(tmp_path: Path) -> Path:
    card = ModelCard(
        {"name": "convstar", "layers": 4, "hidden": 32, "dropout": 0.0, "memory": None},
        {"bands": 2, "classes": 2, "length": 9},
        Fingerprint(("B04", "B08"), 1e-4, -0.1, 10.0, Season(67, 231), ClassTable.from_names(["maize", "wheat"])),
        Normalisation((0.1, 0.3), (0.05, 0.07)),
        {"scenes": {"T31TEJ": "603b93a314eb"}, "seed": 7, "version": "0.1.0"},
    )
    path = tmp_path / "run-001" / "model.safetensors"
    write_model(path, card, {"a": np.zeros((3, 4), dtype=np.float32), "b": np.ones(5, dtype=np.float32)})
    return path


def write_result(folder: Path) -> None:
    figures = {"overall_accuracy": 0.651, "macro_f1": 0.295}
    result = {"split": {"counts": {"test": [20, 11]}}, "test": {"pixel": figures, "parcel": figures}}
    (folder / "result.json").write_text(json.dumps(result))


def test_a_store_in_words(small_store: Path) -> None:
    text = said(small_store)
    for part in ("4 tiles", "96 \u00d7 96 pixels", "WGS 84 / UTM zone 32N (EPSG:32632)", "6 dates", "stored value"):
        assert part in text, part
    assert all(len(line) <= 100 for line in text.splitlines())
    assert len(text.splitlines()) < 40
    assert "\x1b" not in text  # colours are for terminals
    with_store = Store.open(small_store)
    for name in [*with_store.fingerprint.classes.names, *with_store.manifest.scenes]:
        assert name in text
    with_store.close()


def test_the_facts_of_a_store_equal_its_arrays(small_store: Path) -> None:
    told = facts(small_store)
    store = Store.open(small_store)
    masks = np.concatenate([reader.whole_mask().reshape(6, -1) for _, reader in store.readers()], axis=1)
    labels = np.concatenate([reader.labels().ravel() for _, reader in store.readers()])
    parcels = {
        (int(n), int(c)) for _, r in store.readers() for n, c in zip(r.table.numbers, r.table.labels, strict=True)
    }
    store.close()
    assert told["kind"] == "store"
    assert told["layout"] == "raster"
    assert told["bytes"] == sum(path.stat().st_size for path in (small_store / "tiles").iterdir())
    assert [row["clear"] for row in told["dates"]] == pytest.approx(masks.mean(axis=1).tolist())
    assert told["clear"] == pytest.approx(masks.mean())
    for row in told["classes"]:
        assert row["pixels"] == (labels == row["number"]).sum()
        assert row["hectares"] == pytest.approx(row["pixels"] / 100)
        assert row["parcels"] == sum(label == row["number"] for _, label in parcels)
    assert len(told["scenes"]) == 1
    assert told["scenes"][0]["provenance"]["source"] == "stack"


def test_one_tile(small_store: Path) -> None:
    tile = sorted((small_store / "tiles").iterdir())[0]
    told = facts(tile)
    assert told["kind"] == "tile"
    assert told["scenes"][0]["shape"] == [48, 48]
    assert told["scenes"][0]["recipe"] in (small_store / "manifest.json").read_text()
    assert "one tile" in said(tile)


def test_a_model_and_its_run(model: Path) -> None:
    text = said(model)
    for part in ("convstar, 4 layers of 32", "17 parameters", "8 March to 25 October", "\u00d7 0.0001 - 0.1", "seed 7"):
        assert part in text, part
    for part in ("T31TEJ (603b93a3)", "B04", "0.0500", "maize", "wheat", "verified"):
        assert part in text, part
    assert "unfinished" in said(model.parent)
    write_result(model.parent)
    finished = said(model.parent)
    assert "31 parcels that training never saw" in finished
    assert "65.1 %" in finished
    told = facts(model.parent)
    assert told["test"]["pixel"]["macro_f1"] == 0.295
    assert told["parameters"] == 17
    assert told["season"] == {"start": 67, "length": 231}


def test_a_sheet_is_drawn_and_never_overwritten_unasked(small_store: Path, tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.png"
    sheet.write_bytes(b"mine")
    refused = run(small_store, "-o", sheet)
    assert isinstance(refused.exception, UsageError)
    assert sheet.read_bytes() == b"mine"
    said(small_store, "-o", sheet, "--overwrite")
    assert sheet.read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["sheet.png"]


def test_what_is_neither_store_nor_tile_nor_model(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("")
    for path in ("notes.txt", "nowhere", "nowhere.h5", ".", "run"):
        failure = refusal(tmp_path / path)
        assert isinstance(failure, InputError), path
        for accepted in ("store", ".h5", ".safetensors", "run"):
            assert accepted in str(failure)
    assert "no model yet" in str(refusal(tmp_path / "run"))


def test_wishes_for_a_picture_that_cannot_be(small_store: Path, model: Path, tmp_path: Path) -> None:
    assert isinstance(refusal(model, "-o", tmp_path / "m.png"), UsageError)
    assert isinstance(refusal(small_store, "-o", tmp_path / "m.jpg"), UsageError)
    assert isinstance(refusal(small_store, "--scene", "tile"), UsageError)
    assert isinstance(refusal(small_store, "--scene", "nowhere", "-o", tmp_path / "m.png"), UsageError)


def test_damaged_files_are_artifact_errors(small_store: Path, model: Path, tmp_path: Path) -> None:
    (tmp_path / "text.h5").write_text("no tile")
    with h5py.File(tmp_path / "other.h5", "w") as handle:
        handle["x"] = 1
    whole = sorted((small_store / "tiles").iterdir())[0].read_bytes()
    (tmp_path / "half.h5").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.safetensors").write_text("no model")
    flipped = bytearray(model.read_bytes())
    flipped[-1] ^= 1
    (tmp_path / "flipped.safetensors").write_bytes(flipped)
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "manifest.json").write_text("{")
    (model.parent / "result.json").write_text("{}")
    for name in ("text.h5", "other.h5", "half.h5", "text.safetensors", "flipped.safetensors", "store", "run-001"):
        assert isinstance(refusal(tmp_path / name), ArtifactError), name


def test_a_store_is_verified(small_store: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(small_store, copy)
    assert said(copy, "--verify") == said(copy)
    tile = sorted((copy / "tiles").iterdir())[1]
    content = bytearray(tile.read_bytes())
    content[len(content) // 3] ^= 16
    tile.write_bytes(content)
    found = refusal(copy, "--verify")
    assert isinstance(found, ArtifactError)
    assert f"1 of 4 tiles are damaged: {tile.name}" in str(found)
    assert isinstance(refusal(tile, "--verify"), UsageError)


def test_words() -> None:
    assert season_words({"start": 300, "length": 200}) == "27 October to 15 May"
    assert season_words({"start": 1, "length": 365}) == "the whole year"
    assert season_words({"start": 1, "length": 0}) == "1 January only"
    assert [size_words(size) for size in (12, 4_200, 28_700_000, 3 * 10**9)] == [
        "12 bytes",
        "4.2 kB",
        "28.7 MB",
        "3.0 GB",
    ]


def test_torch_is_never_imported(model: Path, small_store: Path, tmp_path: Path) -> None:
    script = (
        "import sys\nfrom click.testing import CliRunner\nfrom cropstar.cli.inspect import inspect\n"
        f"for path in ({str(model)!r}, {str(small_store)!r}):\n"
        "    assert CliRunner().invoke(inspect, [path], obj={}).exit_code == 0\n"
        "assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_help_shows_examples() -> None:
    page = said("--help")
    assert "Examples:" in page
    assert "cropstar inspect data/stores/demo -o sheet.png" in page
