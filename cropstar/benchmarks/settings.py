"""The configuration of a benchmark, and the texts of `cropstar bench`.

A file of `configs/bench/` is one for `cropstar train` with a section `task`: the task's own settings. The paper's
settings ship with cropstar; options and `--set` win over them, with keys such as `task.length`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

import cropstar
from cropstar.benchmarks.tasks import TASKS
from cropstar.benchmarks.tasks.base import BenchTask, Settings, StoreTask
from cropstar.config import (
    SHORT,
    TrainConfig,
    dump_config,
    dump_yaml,
    find_config,
    load_yaml,
    read_config,
    resolve_config,
)
from cropstar.errors import UsageError
from cropstar.registry import did_you_mean
from cropstar.runtime import DATA

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
    "distil",
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
        config = resolve_config(None, options, tuple(rest), defaults={**content, "store": str(folder)})
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
    """Refuse settings that would silently do nothing."""
    for name in UNUSED:
        if getattr(config, name) != TrainConfig.model_fields[name].default:
            raise UsageError(f"'{task.name}' does not use {name}", remedy="leave it out")
    used, other = ("batch", "series_batch") if task.images else ("series_batch", "batch")
    if getattr(config, other) not in (getattr(config, used), TrainConfig.model_fields[other].default):
        raise UsageError(f"'{task.name}' does not use {other}", remedy=f"set {used}, or both to the same")
    for key, unset in (("day_encoding", "none"), ("revisit", None)):
        if getattr(config.model, key) != unset:
            why = "a sequence has no days"
            raise UsageError(f"wrong value of 'model.{key}'", why=why, remedy=f"set it to {unset or 'null'}")


# --- texts


def table_of_tasks() -> str:
    """One line a task: what it is, its metric, the paper's figures; then where data are looked for."""
    width = max(len(name) for name in TASKS)
    lines, places = [], []
    for name in TASKS:
        task = TASKS[name]
        paper = "; ".join(f"{who} {what}" for who, what in task.paper) or "not in the paper"
        lines.append(f"{name:{width}}  {task.about}\n{'':{width}}  {task.metric.words}; paper: {paper}")
        if task.folder is not None:
            places.append(f"{name:{width}}  {DATA / task.folder}: {task.needs}")
    return "\n".join([*lines, "", "Data folders, unless --data says otherwise:", *places])


def show_config(
    name: str,
    file: Path | None,
    options: dict[str, Any],
    assignments: tuple[str, ...],
    own: dict[str, Any],
    data: Path | None,
) -> str:
    """The resolved configuration, as YAML that `--config` takes."""
    task = TASKS[name]
    folder = data or DATA / (task.folder or "")
    if isinstance(task, StoreTask):
        return dump_config(resolve_config(file or find_config(task.config), {**options, "store": folder}, assignments))
    config, settings = resolve_bench(task, file, options, assignments, own, folder)
    return dump_yaml({SECTION: settings.model_dump(mode="json"), **config.model_dump(mode="json")})


def headline(result: dict[str, Any]) -> str:
    """The figure on test beside the paper's; on validation where the test part was left alone."""
    if result["text"] is None:
        said = ", ".join(f"{name} {value:.4g}" for name, value in result["chosen"]["validation"].items())
        return f"{result['task']}: {said} on validation; the test data were not used"
    paper = "; ".join(f"{who} {what}" for who, what in result["paper"].items())
    return f"{result['task']}: {result['text']} on test" + (f" (paper: {paper})" if paper else "")
