"""The tasks by name, one file each with the reader of its data."""

from cropstar.benchmarks.tasks import crops, digits, generated, gestures, music, penn, ucr  # noqa: F401  (registers them)
from cropstar.benchmarks.tasks.base import TASKS

__all__ = ["TASKS"]
