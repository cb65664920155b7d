"""`cropstar bench --list`: the tasks as a table."""

from __future__ import annotations

from cropstar.benchmarks.tasks import TASKS
from cropstar.places import DATA


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
