"""What this process may use of the machine: containers and batch systems give less than there is."""

from __future__ import annotations

import os
from pathlib import Path

GROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # of version 2 and 1
UNLIMITED = 2**60  # version 1 writes a number near 2**63


def processors() -> int:
    """Those that the scheduler lets it run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_limit() -> int | None:
    """Bytes: the machine's memory or, if that is less, the container's limit; None where the system does not say."""
    limits = [limit for limit in (_physical(), *map(_group, GROUPS)) if limit is not None]
    return min(limits, default=None)


def _physical() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _group(path: str) -> int | None:
    try:
        limit = int(Path(path).read_text(encoding="ascii"))
    except (OSError, ValueError):  # absent, or "max"
        return None
    return limit if limit < UNLIMITED else None
