"""The machine: which device to compute on, and an allocator that does not get in the way."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import sys
from typing import TYPE_CHECKING

from cropstar.errors import ResourceError

if TYPE_CHECKING:
    import torch

SWITCH = "CROPSTAR_ALLOCATOR"  # "system" leaves glibc as it is


def choose_device(name: str) -> torch.device:
    """`auto` takes a GPU where there is one."""
    import torch

    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    missing = (name == "cuda" and not torch.cuda.is_available()) or (
        name == "mps" and not torch.backends.mps.is_available()
    )
    if missing:
        raise ResourceError(f"no {name} device on this machine", remedy="use --device auto or --device cpu")
    return torch.device(name)


def keep_large_buffers() -> None:
    """Let glibc reuse the large buffers of each step instead of returning them to the system.

    Every step would otherwise fault the same pages in anew: large windows run up to 2.6 times slower.
    """
    if platform.libc_ver()[0] != "glibc" or os.environ.get(SWITCH) == "system":
        return
    trim_threshold, top_pad, mmap_max = -1, -2, -4  # the M_* numbers of malloc.h
    library = ctypes.CDLL(None)
    library.mallopt(mmap_max, 0)
    library.mallopt(trim_threshold, 2**31 - 1)
    library.mallopt(top_pad, 64 * 2**20)


def peak_memory_megabytes() -> float:
    """The most memory this process has held so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak / 2**20 if sys.platform == "darwin" else peak / 2**10)
