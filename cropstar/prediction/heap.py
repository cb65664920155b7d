"""Giving memory back between two blocks.

Buffers that are kept for the next step (see `devices.keep_large_buffers`) leave holes in the heap, for the images of
a shrinking margin are of another size on every date. Without this, a window of 512 pixels took 1.6 GB for the first
block and 2.3 GB by the third.
"""

from __future__ import annotations

import ctypes
import platform


def release_free_memory() -> None:
    """Hand free pages to the system, also those in the middle of the heap; the next block asks for them again."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
