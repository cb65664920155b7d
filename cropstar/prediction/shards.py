"""Which part of the blocks one job of an array does: `--shard 2/8`, or `auto/8` with the number that a scheduler gives.

Kubernetes   JOB_COMPLETION_INDEX          from 0
AWS Batch    AWS_BATCH_JOB_ARRAY_INDEX     from 0
Slurm        SLURM_ARRAY_TASK_ID           from SLURM_ARRAY_TASK_MIN, which is 0 if it is not set
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cropstar.errors import UsageError
from cropstar.geo.windows import Window

NUMBERS = ("JOB_COMPLETION_INDEX", "AWS_BATCH_JOB_ARRAY_INDEX", "SLURM_ARRAY_TASK_ID")
FIRST = {"SLURM_ARRAY_TASK_ID": "SLURM_ARRAY_TASK_MIN"}  # arrays that need not begin at 0
MOST = 100_000
REMEDY = "give --shard 0/3, 1/3 and 2/3 to three jobs, or auto/3 to an array job"


@dataclass(frozen=True)
class Shard:
    """One of `count` parts, counted from 0."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str, environment: Mapping[str, str]) -> Shard:
        match = re.fullmatch(r"(auto|\d{1,9})/(\d{1,9})", text.strip(), re.ASCII)
        if match is None:
            raise UsageError(f"--shard wants i/n and got '{text}'", remedy=REMEDY)
        number = _given(environment) if match[1] == "auto" else int(match[1])
        count = int(match[2])
        if not 1 <= count <= MOST:
            raise UsageError(f"--shard {text}: {count} shards", why=f"1 to {MOST} are possible", remedy=REMEDY)
        if not 0 <= number < count:
            why = f"shard {number} of {count}; the first is 0 and the last {count - 1}"
            raise UsageError(f"--shard {text} is out of range", why=why, remedy=REMEDY)
        return cls(number, count)

    def of(self, windows: Sequence[Window], turn: int = 0) -> list[Window]:
        """Its windows: neighbours, since they share what is decoded. `turn` deals the parts of a further input out
        to others, or of many small inputs one shard would get all."""
        total = len(windows)
        return [
            window
            for place, window in enumerate(windows)
            if (place * self.count // total + turn) % self.count == self.number
        ]

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def _given(environment: Mapping[str, str]) -> int:
    """The number that the scheduler gave to this job."""
    for name in NUMBERS:
        if name in environment:
            texts = environment[name].strip(), environment.get(FIRST.get(name, ""), "0").strip()
            if not all(re.fullmatch(r"\d{1,9}", text, re.ASCII) for text in texts):
                why = f"{name} is '{environment[name]}'"
                raise UsageError("--shard auto got no number", why=why, remedy="give the number as in --shard 0/3")
            return int(texts[0]) - int(texts[1])
    why = f"none of {', '.join(NUMBERS)} is set"
    raise UsageError("--shard auto outside of an array job", why=why, remedy="give the number as in --shard 0/3")
