"""The tasks by name, one small file each."""

from cropstar.benchmarks.tasks import adding, copying, crops, digits, gestures, music, penn, ucr  # noqa: F401  (registers them)
from cropstar.benchmarks.tasks.contract import TASKS

__all__ = ["TASKS"]
