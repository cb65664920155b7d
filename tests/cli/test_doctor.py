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


def test_a_missing_format_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(health, "DRIVERS", {"GTiff": True, "NoSuchFormat": True, "Rare": False})
    findings = health.examine(tmp_path)
    assert [finding.what for finding in findings if finding.state == "missing"] == ["format NoSuchFormat"]
    assert "- format Rare" in health.say_findings(findings)
    assert not health.to_json(findings)["healthy"]


def test_the_limits_are_those_of_this_process() -> None:
    limit = memory_limit()
    assert limit is None or limit > 2**26
    assert processors() >= 1
