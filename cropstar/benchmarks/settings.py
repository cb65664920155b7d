"""How the configuration of a benchmark comes about.

A file of `configs/bench/` is one for `cropstar train` with a section `task`: the task's own settings. The paper's
settings ship with cropstar; options and `--set` win over them, with keys such as `task.length`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

import cropstar
from cropstar.benchmarks.tasks.contract import BenchTask, Settings
from cropstar.config import TrainConfig
from cropstar.errors import UsageError
from cropstar.registry import did_you_mean
from cropstar.resolving import SHORT, read_config, resolve
from cropstar.strictyaml import load_yaml

SECTION = "task"
UNUSED = (
    "split",
    "target",
    "loss",
    "sampling",
    "augmentation",
    "regular",
    "compile",
    "patch",
    "ensemble",
    "beside",
    "refit",
)  # but for stores


def shipped_config(name: str) -> Path:
    """The paper's settings of a task."""
    package = Path(cropstar.__file__).parent
    installed, checkout = package / "configs", package.parent / "configs"
    return (installed if installed.is_dir() else checkout) / "bench" / f"{name}.yaml"


def resolve_bench(
    task: BenchTask,
    file: Path | None,
    options: dict[str, Any],
    assignments: tuple[str, ...],
    own: dict[str, Any],
    folder: Path,
) -> tuple[TrainConfig, Settings]:
    """Training's configuration and the task's settings. `options` has dotted keys, `own` those of the task."""
    content = read_config(file or shipped_config(task.name))
    section = content.pop(SECTION, {}) or {}
    if not isinstance(section, dict):
        raise UsageError(f"'{SECTION}' is not a section", path=file, remedy="write 'key: value' lines under it")
    section |= {key: value for key, value in own.items() if value is not None}
    rest = []
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if equals and key.strip().startswith(f"{SECTION}."):
            section[key.strip().removeprefix(f"{SECTION}.")] = load_yaml(text, f"--set {key}")
        else:
            rest.append(assignment)
    try:
        settings = settings_of(task, section)
        config = resolve(None, options, tuple(rest), defaults={**content, "store": str(folder)})
        require_used(task, config)
    except UsageError as failure:
        if failure.path is None and file is not None:
            failure.path = str(file)
        raise
    return config, settings


def settings_of(task: BenchTask, section: dict[str, Any]) -> Settings:
    try:
        return task.settings.model_validate(section)
    except ValidationError as failure:
        first = failure.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            known = [f"{SECTION}.{name}" for name in task.settings.model_fields]
            remedy = did_you_mean(f"{SECTION}.{key}", known)
            raise UsageError(f"'{task.name}' has no setting '{SECTION}.{key}'", remedy=remedy) from None
        why = f"{first['msg'].lower()}, not {SHORT.repr(first['input'])}"
        raise UsageError(f"wrong value of '{SECTION}.{key}'", why=why, remedy="correct it") from None


def require_used(task: BenchTask, config: TrainConfig) -> None:
    """Refuse what would silently do nothing."""
    for name in UNUSED:
        if getattr(config, name) != TrainConfig.model_fields[name].default:
            raise UsageError(f"'{task.name}' has no use for {name}", remedy="leave it out")
    used, other = ("batch", "series_batch") if task.images else ("series_batch", "batch")
    if getattr(config, other) not in (getattr(config, used), TrainConfig.model_fields[other].default):
        raise UsageError(f"'{task.name}' has no use for {other}", remedy=f"set {used}, or both alike")
    for key, unset in (("day_encoding", "none"), ("revisit", None)):
        if getattr(config.model, key) != unset:
            why = "a sequence has no days"
            raise UsageError(f"wrong value of 'model.{key}'", why=why, remedy=f"set it to {unset or 'null'}")
