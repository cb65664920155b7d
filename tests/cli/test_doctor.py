"""`cropstar doctor`: what is there, what is missing, and an exit code for health checks."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from cropstar.cli.doctor import doctor
from cropstar.errors import CropstarError
from cropstar.models import selftest
from cropstar.models.cells.star import StarCell
from cropstar.models.selftest import Case
from cropstar.reports import health
from cropstar.runtime import memory_limit, processors

Cli = Callable[..., "subprocess.CompletedProcess[str]"]


def test_a_healthy_place(run_cli: Cli, tmp_path: Path) -> None:
    answer = run_cli("doctor", "--json", "-o", tmp_path / "not" / "yet", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    said = json.loads(answer.stdout)
    assert said["healthy"]
    found = {finding["what"]: finding["found"] for finding in said["findings"]}
    assert found["torch"] == torch.__version__
    assert {"kernels", "GDAL", "memory", "processors", "writes to"} <= set(found)
    assert not (tmp_path / "not").exists()
    assert not list(tmp_path.iterdir())


def refused(*arguments: str) -> tuple[str, CropstarError]:
    """What it prints, and the error that it ends with."""
    result = CliRunner().invoke(doctor, arguments, obj={})
    assert isinstance(result.exception, CropstarError)
    return result.stdout, result.exception


def test_no_place_to_write() -> None:
    place = Path("/proc/results")  # where not even root may write
    if not place.parent.is_dir():
        pytest.skip("there is no /proc here")
    said, error = refused("-o", str(place))
    assert "! writes to" in said
    assert error.exit_code == 6
    assert str(place) in str(error)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_no_gpu_where_one_was_asked_for() -> None:
    _, error = refused("--device", "cuda")
    assert error.exit_code == 6
    assert str(error).startswith("no cuda device")


@pytest.fixture
def small_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    star = {"name": "star", "layers": 2, "hidden": 9, "normalise": True}
    images = {"name": "convstar", "layers": 1, "hidden": 5}
    cases = (Case("star", star, 4, (7,), (8,)), Case("convstar", images, 3, (1, 6, 7), (1, 8, 8)))
    monkeypatch.setattr(selftest, "CASES", cases)
    monkeypatch.setattr(selftest, "ROUNDS", 1)


@pytest.mark.usefixtures("small_cases")
def test_the_backends_agree() -> None:
    result = CliRunner().invoke(doctor, ["--selftest", "--device", "cpu", "--json"], obj={})
    assert result.exit_code == 0, result.output
    trials = json.loads(result.stdout)["selftest"]
    assert [each["way"] for each in trials] == ["naive", "torch", "native float32", "native bfloat16"] * 2
    done = [each for each in trials if not each["why_not"]]
    assert {"naive", "torch"} <= {each["way"] for each in done}
    assert all(0 < max(each["scores"], each["gradients"]) < each["limit"] for each in done)
    assert all(each["inference"] > 0 and each["training"] > 0 for each in done)


@pytest.mark.usefixtures("small_cases")
def test_a_backend_that_is_wrong_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    advance = StarCell.advance
    monkeypatch.setattr(StarCell, "advance", lambda *given, **more: [1.01 * part for part in advance(*given, **more)])
    said, error = refused("--selftest", "--device", "cpu")
    assert error.exit_code == 6
    assert "! star " in said
    assert "the self-test failed" in str(error)
    assert "--backend torch" in str(error)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_selftest_without_a_gpu() -> None:
    _, error = refused("--selftest", "--device", "cuda")
    assert error.exit_code == 6
    assert str(error).startswith("no cuda device")


def test_a_missing_format_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(health, "DRIVERS", {"GTiff": True, "NoSuchFormat": True, "Rare": False})
    findings = health.examine(tmp_path)
    assert [finding.what for finding in findings if finding.state == "missing"] == ["format NoSuchFormat"]
    assert "- format Rare" in health.format_findings(findings)
    assert not health.to_json(findings)["healthy"]


def test_the_limits_are_those_of_this_process() -> None:
    limit = memory_limit()
    assert limit is None or limit > 2**26
    assert processors() >= 1
