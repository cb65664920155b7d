"""What `cropstar bench` tells: its tasks as a table, the settings of one, and what came out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cropstar.benchmarks.settings import SECTION, resolve_bench
from cropstar.benchmarks.tasks import TASKS
from cropstar.benchmarks.tasks.contract import StoreTask
from cropstar.places import DATA
from cropstar.resolving import dump, find_config, resolve
from cropstar.strictyaml import dump_yaml


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
    return "\n".join([*lines, "", "Data, or where --data says:", *places])


def show_config(
    name: str,
    file: Path | None,
    options: dict[str, Any],
    assignments: tuple[str, ...],
    own: dict[str, Any],
    data: Path | None,
) -> str:
    """What would be run, as YAML that `--config` takes."""
    task = TASKS[name]
    folder = data or DATA / (task.folder or "")
    if isinstance(task, StoreTask):
        return dump(resolve(file or find_config(task.config), {**options, "store": folder}, assignments))
    config, settings = resolve_bench(task, file, options, assignments, own, folder)
    return dump_yaml({SECTION: settings.model_dump(mode="json"), **config.model_dump(mode="json")})


def headline(result: dict[str, Any]) -> str:
    """The figure on test beside the paper's; on validation where the test part was left alone."""
    if result["text"] is None:
        said = ", ".join(f"{name} {value:.4g}" for name, value in result["chosen"]["validation"].items())
        return f"{result['task']}: {said} on validation; the test data were left alone"
    paper = "; ".join(f"{who} {what}" for who, what in result["paper"].items())
    return f"{result['task']}: {result['text']} on test" + (f" (paper: {paper})" if paper else "")
