"""The folder of a training run.

<runs>/convstar-4x32-001/
  config.yaml, data.json    the resolved configuration, and which data it was started on
  candidates/               with --model auto: what each said of the folds
  metrics.jsonl             one line per epoch
  checkpoints/*.safetensors the last two states; each is enough to resume from
  diagnosis.jsonl, .png     with --diagnose: gradients, weights and states of the first epoch, layer by layer
  tensorboard/              with --tensorboard: curves by step
  model.safetensors         the best model so far, by validation; of an ensemble or a refit, the finished one
  member-1/ ...             of an ensemble: the run of each member
  fold-1/ ...               with cross_fit: the run of the model without each fold
  out-of-fold.safetensors   with cross_fit: probabilities of every field by a model that never saw it
  refit/                    with --refit: the run that learns from validation too (of an ensemble in each member)
  before-refit.safetensors  with --refit: the model that the figures are of
  result.json, report.html  written at the end: their presence means that the run is finished
"""

from __future__ import annotations

import json
import os
import re
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from cropstar.config import AUTO, FITTED, TrainConfig, dump_config
from cropstar.errors import ArtifactError, MismatchError, UsageError
from cropstar.geo.calendar import Season
from cropstar.reports.record import TestRecord
from cropstar.store.files import PARTIAL, locked, planted, sweep, write_text
from cropstar.store.gate import read_json

MODEL = "model.safetensors"
CHECKPOINTS_KEPT = 2
WHOLE_YEAR = Season(1, 365)  # for figures that ask for no day of the season


@dataclass(frozen=True)
class Run:
    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def model(self) -> Path:
        return self.folder / MODEL

    @property
    def before_refit(self) -> Path:
        return self.folder / "before-refit.safetensors"

    @property
    def refit(self) -> Run:
        return Run(self.folder / "refit")

    def member(self, number: int) -> Run:
        return Run(self.folder / f"member-{number}")

    @property
    def out_of_fold(self) -> Path:
        return self.folder / "out-of-fold.safetensors"

    def fold(self, number: int) -> Run:
        return Run(self.folder / f"fold-{number}")

    @property
    def result(self) -> Path:
        return self.folder / "result.json"

    @property
    def report(self) -> Path:
        return self.folder / "report.html"

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def data(self) -> Path:
        return self.folder / "data.json"

    @property
    def config(self) -> Path:
        return self.folder / "config.yaml"

    def headline(self) -> str:
        """The figures on the test parcels in one line."""
        result = read_json(self.result)
        line = TestRecord.of_result(result, WHOLE_YEAR).headline()
        return line + (" (of the model before the refit)" if "refit" in result else "")

    @property
    def finished(self) -> bool:
        return self.result.exists()

    def checkpoint(self, step: int) -> Path:
        return self.folder / "checkpoints" / f"step-{step:08d}.safetensors"

    def checkpoints(self) -> list[Path]:
        """Newest first."""
        return sorted((self.folder / "checkpoints").glob("step-*.safetensors"), reverse=True)

    def drop_old_checkpoints(self) -> None:
        for path in self.checkpoints()[CHECKPOINTS_KEPT:]:
            path.unlink()


def claim_run(root: Path, config: TrainConfig, data: dict[str, Any], hold: ExitStack, *, fresh: bool) -> Run:
    """An unfinished run of the very same configuration and data, else a new one; held until `hold` closes."""
    text, described = dump_config(config), json.dumps(data, sort_keys=True)
    stem = config.model.name
    if stem not in (*FITTED, AUTO):  # which have no layers
        stem += f"-{config.model.layers}x{config.model.hidden}"
    if (members := config.ensemble * (1 + len(config.beside))) > 1:
        stem += f"-x{members}"
    taken = _numbered(root, stem)
    for _, folder in sorted(taken.items(), reverse=True):
        run = Run(folder)
        same = _read(run.config) == text and _read(run.data) == described
        if not fresh and same and not run.finished and _link_in(folder) is None and _try_lock(run, hold):
            return run
    unused = (folder for _, folder in sorted(taken.items()) if _is_unused(folder))
    new = (root / f"{stem}-{number:03d}" for number in range(max(taken, default=0) + 1, 1_000_000))
    for run in map(Run, chain(unused, new)):
        if _is_unused(run.folder) and _try_lock(run, hold) and _is_unused(run.folder):  # nor used by then
            write_text(run.data, described)
            write_text(run.config, text)
            return run
    raise UsageError("too many runs", path=root, remedy="choose another folder with --runs")


def open_run(folder: Path, data: dict[str, Any], hold: ExitStack, *, again: bool = False) -> Run:
    """The run that `--resume` names, unfinished but for `again`; the store must hold the data it was started on."""
    run = Run(folder)
    if not run.config.exists():
        raise ArtifactError("no run", path=folder, why="there is no config.yaml", remedy="check the folder")
    if (link := _link_in(folder)) is not None:
        raise planted(link)
    if run.finished and not again:
        raise UsageError("the run is finished", path=folder, remedy="start a new one without --resume")
    if _read(run.data) != json.dumps(data, sort_keys=True):
        why = "the store holds other data than when the run was started"
        raise MismatchError("cannot resume the run", path=folder, why=why, remedy="start a new one without --resume")
    if not _try_lock(run, hold):
        raise ArtifactError(
            "the run is locked", path=folder, why="another cropstar is training it", remedy="wait for it"
        )
    return run


def sweep_run(run: Run) -> None:
    """Remove what killed writers left in the run; the caller holds its lock."""
    for folder in (run.folder, *(path for path in run.folder.rglob("*") if path.is_dir())):
        sweep(folder)


def newest_model(root: Path) -> Path | None:
    """The newest model of a finished run; without any, that of a run that is still training."""
    models = list(root.glob(f"*/{MODEL}")) if root.is_dir() else []
    finished = [path for path in models if Run(path.parent).finished]
    return max(finished or models, key=lambda path: path.stat().st_mtime, default=None)


def trained_stores(root: Path) -> set[str]:
    """The stores that finished runs were trained on, as their configurations name them."""
    stores = set()
    for model in root.glob(f"*/{MODEL}") if root.is_dir() else []:
        text = _read(Run(model.parent).config) if Run(model.parent).finished else None
        line = next((line for line in (text or "").splitlines() if line.startswith("store:")), None)
        if line is not None:
            stores.add(line.removeprefix("store:").strip())
    return stores


def _is_unused(folder: Path) -> bool:
    """Whether there is nothing but what a run leaves that was killed before it had its configuration."""
    if folder.is_symlink() or not folder.is_dir():
        return not os.path.lexists(folder)
    return all(path.name in (".lock", "data.json") or path.name.endswith(PARTIAL) for path in folder.iterdir())


def _link_in(folder: Path) -> Path | None:
    """A link in the folder of a run, which training does not make: what is written or removed there lies elsewhere."""
    return next((path for path in folder.rglob("*") if path.is_symlink()), None)


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None


def _numbered(root: Path, stem: str) -> dict[int, Path]:
    pattern = re.compile(re.escape(stem) + r"-(\d+)$")
    folders = root.glob(f"{stem}-*") if root.is_dir() else []
    return {int(match[1]): folder for folder in folders if (match := pattern.match(folder.name))}


def _try_lock(run: Run, hold: ExitStack) -> bool:
    try:
        hold.enter_context(locked(run.folder, "the run"))
    except ArtifactError:
        return False
    sweep_run(run)
    return True
