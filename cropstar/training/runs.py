"""The folder of a training run and what lies in it.

<runs>/convstar-4x32-001/
  config.yaml               the resolved configuration
  metrics.jsonl             one line an epoch
  checkpoints/*.safetensors the last two states; each is enough to go on from
  model.safetensors         the best model so far, by validation
  result.json, report.html  written at the end: their presence means that the run is finished
"""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from cropstar.config import TrainConfig, dump
from cropstar.errors import ArtifactError, UsageError
from cropstar.store.atomic import locked, sweep, write_text

MODEL = "model.safetensors"
CHECKPOINTS_KEPT = 2


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
    def result(self) -> Path:
        return self.folder / "result.json"

    @property
    def report(self) -> Path:
        return self.folder / "report.html"

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def config(self) -> Path:
        return self.folder / "config.yaml"

    def headline(self) -> str:
        """The figures on the test parcels in one line."""
        result = json.loads(self.result.read_text(encoding="utf-8"))
        pixel, parcel = result["test"]["pixel"], result["test"]["parcel"]
        return (
            f"on {sum(result['split']['counts']['test'])} parcels that training never saw: "
            f"overall accuracy {pixel['overall_accuracy']:.3f}, macro-F1 {pixel['macro_f1']:.3f} by pixel; "
            f"{parcel['overall_accuracy']:.3f}, {parcel['macro_f1']:.3f} by parcel"
        )

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


def claim_run(root: Path, config: TrainConfig, hold: ExitStack, *, fresh: bool) -> Run:
    """An unfinished run of the very same configuration, else a new one; held until `hold` closes."""
    text = dump(config)
    stem = f"{config.model.name}-{config.model.layers}x{config.model.hidden}"
    taken = _numbered(root, stem)
    for _, folder in sorted(taken.items(), reverse=True):
        run = Run(folder)
        same = run.config.exists() and run.config.read_text(encoding="utf-8") == text
        if not fresh and same and not run.finished and _try_lock(run, hold):
            return run
    for number in range(max(taken, default=0) + 1, 1_000_000):
        run = Run(root / f"{stem}-{number:03d}")
        if not run.folder.exists() and _try_lock(run, hold):
            write_text(run.config, text)
            return run
    raise UsageError("too many runs", path=root, remedy="choose another folder with --runs")


def open_run(folder: Path, hold: ExitStack) -> Run:
    """The unfinished run that `--resume` names."""
    run = Run(folder)
    if not run.config.exists():
        raise ArtifactError("no run", path=folder, why="there is no config.yaml", remedy="check the folder")
    if run.finished:
        raise UsageError("the run is finished", path=folder, remedy="start a new one without --resume")
    if not _try_lock(run, hold):
        raise ArtifactError("the run is locked", path=folder, why="another cropstar trains it", remedy="wait for it")
    return run


def newest_model(root: Path) -> Path | None:
    """The model of the run that improved last."""
    models = list(root.glob(f"*/{MODEL}")) if root.is_dir() else []
    return max(models, key=lambda path: path.stat().st_mtime) if models else None


def _numbered(root: Path, stem: str) -> dict[int, Path]:
    pattern = re.compile(re.escape(stem) + r"-(\d+)$")
    folders = root.glob(f"{stem}-*") if root.is_dir() else []
    return {int(match[1]): folder for folder in folders if (match := pattern.match(folder.name))}


def _try_lock(run: Run, hold: ExitStack) -> bool:
    try:
        hold.enter_context(locked(run.folder, "the run"))
    except ArtifactError:
        return False
    sweep(run.folder)
    sweep(run.folder / "checkpoints")
    return True
