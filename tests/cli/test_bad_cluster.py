"""What goes wrong with clusters and array jobs, through the command line: one line, one exit code, nothing written."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from click.testing import CliRunner

from cropstar.cli.ingest import ingest
from cropstar.cli.predict import predict
from cropstar.errors import UsageError
from cropstar.prediction.request import SHARD_NUMBERS
from tests.cli.refusing import digests, error_line
from tests.execution.clusters import REPOSITORY, a_scheduler, a_worker, pretend_version, wait_for_workers
from tests.prediction.making import untrained

pytest.importorskip("distributed")

Run = Callable[..., subprocess.CompletedProcess[str]]
PREDICT = ("predict", "scene/tile.tif", "--model", "model.safetensors")
INGEST = ("ingest", "scene/tile.tif")
TABLE = ("ingest", "fields.csv")
NOBODY = "tcp://127.0.0.1:1"
NO_PLACE = "/sys/cropstar"  # where nobody makes folders, not even the superuser


@pytest.fixture(scope="module")
def place(small_scene: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    shutil.copytree(small_scene, folder / "scene")
    untrained(folder / "model.safetensors", folder / "scene" / "tile.tif")
    rows = [f"{field},2023-0{month}-01,wheat,{month}00" for field in ("a", "b") for month in (4, 5, 6)]
    (folder / "fields.csv").write_text("\n".join(["id,date,crop,B04", *rows]), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def good() -> Iterator[Any]:
    with a_scheduler(workers=1) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A cluster whose worker has another version of cropstar."""
    pretended = pretend_version(tmp_path_factory.mktemp("old"), "cropstar", "0.0.77")
    path = os.pathsep.join([str(pretended), str(REPOSITORY)])
    with a_scheduler() as cluster, a_worker(cluster.scheduler_address, "old", PYTHONPATH=path):
        wait_for_workers(cluster, {"old"})
        yield cluster


def refused(run_cli: Run, place: Path, arguments: tuple[str, ...], code: int, *parts: str) -> None:
    before = digests(place)
    answer = run_cli(*arguments, "-q", cwd=place)
    error_line(answer, code, *parts)
    assert digests(place) == before


@pytest.mark.parametrize(
    ("command", "arguments", "part"),
    [
        pytest.param(predict, ("x.tif", "--shard", "3/3"), "--shard 3/3 is out of range", id="shard-out-of-range"),
        pytest.param(predict, ("x.tif", "--shard", "auto/3"), "outside of an array job", id="no-array-job"),
        pytest.param(ingest, ("--workers", "2", "--scheduler", NOBODY), "--workers with --scheduler", id="two-ways"),
        # A variable of a script that is not set is no wish to work here.
        pytest.param(ingest, ("--scheduler", ""), "--scheduler got no address", id="no-address"),
    ],
)
def test_what_is_refused_before_anybody_is_asked(
    command: click.Command, arguments: tuple[str, ...], part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in SHARD_NUMBERS:
        monkeypatch.delenv(name, raising=False)
    failure = CliRunner().invoke(command, arguments, obj={}).exception
    assert isinstance(failure, UsageError)
    assert failure.exit_code == 2
    assert part in str(failure)
    assert failure.remedy
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        pytest.param(
            (*PREDICT, "--device", "cuda"),
            6,
            "no cuda device on the cluster: 1 of 1 workers",
            id="no-gpu",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here"),
        ),
        pytest.param((*PREDICT, "-o", "fields.csv/map.tif"), 3, "fields.csv: File exists", id="map-in-a-file"),
        pytest.param((*INGEST, "-o", f"{NO_PLACE}/store"), 3, NO_PLACE, id="store-nowhere"),
        pytest.param((*INGEST, "-o", "fields.csv/store"), 2, "it is not a folder", id="store-in-a-file"),
        pytest.param((*TABLE, "-o", "store"), 2, "cannot be ingested on a cluster", id="in-memory"),
    ],
)
def test_a_good_cluster_asked_for_what_it_cannot(
    run_cli: Run, place: Path, good: Any, arguments: tuple[str, ...], code: int, part: str
) -> None:
    refused(run_cli, place, (*arguments, "--scheduler", good.scheduler_address), code, part)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [PREDICT, (*INGEST, "-o", "store")], ids=["predict", "ingest"])
def test_workers_of_another_version(run_cli: Run, place: Path, old: Any, arguments: tuple[str, ...]) -> None:
    parts = ("does not fit", "cropstar 0.0.77 there and", "install the same cropstar")
    refused(run_cli, place, (*arguments, "--scheduler", old.scheduler_address), 5, *parts)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [PREDICT, (*INGEST, "-o", "store")], ids=["predict", "ingest"])
def test_nobody_answers(run_cli: Run, place: Path, arguments: tuple[str, ...]) -> None:
    refused(run_cli, place, (*arguments, "--scheduler", NOBODY), 6, f"no scheduler answers at {NOBODY}")
