"""An ensemble on the command line: trained, refitted, judged, looked at."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cropstar.cli.main import cropstar
from cropstar.errors import UsageError

QUICK = ["--target", "parcel", "--model", "star", "--layers", "1", "--hidden", "4", "--epochs", "2", "--batch", "8"]
SPLIT = ["--set", "split.validation=0.3", "--set", "split.test=0.3"]


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cropstar, list(map(str, arguments)))


def train(store: Path, runs: Path, *more: str) -> Result:
    return run("train", "--store", store, "--runs", runs, *QUICK, *SPLIT, *more)


def test_an_ensemble_is_judged_and_inspected(small_store: Path, tmp_path: Path) -> None:
    done = train(small_store, tmp_path, "--ensemble", "2", "--refit")
    assert done.exit_code == 0, done.output
    assert "ensemble of 2 x star" in done.output
    assert "member 2 of 2" in done.output
    assert "refit of member 1 on training and validation" in done.output
    assert "(of the model before the refit)" in done.output
    (folder,) = tmp_path.iterdir()
    looked = run("inspect", folder)
    assert "ensemble of 2 x star" in looked.output
    assert "member 2" in looked.output
    assert "the figures are of the model before it" in looked.output
    judged = run("evaluate", folder / "before-refit.safetensors", "--json")
    assert judged.exit_code == 0, judged.output
    figures = json.loads(judged.stdout)["figures"]
    assert figures == json.loads((folder / "result.json").read_text())["test"]
    assert run("evaluate", folder).exit_code == 0
    assert run("compare", folder).exit_code == 0


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--model", "rf", "--refit"], "'rf' does not use --refit"),
        (["--refit", "--set", "split.validation=0.001"], "--refit needs validation parcels"),
        (["--ensemble", "0"], "wrong value of 'ensemble'"),
        (["--set", "target=pixel", "--set", "beside=[{name: convstar}]"], "an ensemble of models that differ"),
    ],
)
def test_bad_wishes_are_one_line(more: list[str], said: str, small_store: Path, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    refused = train(small_store, tmp_path, *more).exception
    assert isinstance(refused, UsageError)  # exit code 2
    assert said in str(refused)
    assert "\n" not in str(refused)
    assert not list(tmp_path.iterdir())


def test_the_help_page_has_a_section_for_them() -> None:
    page = run("train", "--help").output
    section = page[page.index("Better models, longer training") :]
    assert "--ensemble" in section
    assert "--refit" in section
