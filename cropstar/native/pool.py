"""The threads of torch, for the kernels to compute with.

torch's OpenMP runtime keeps a thread a processor, which spins for some milliseconds after each parallel loop. Threads
beside them lose a quarter of their time on small batches. A second runtime, linked by the kernels, would be no better:
so the one that torch has loaded is asked for.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

FUNCTION = "GOMP_parallel"  # of GNU's runtime; those of LLVM and Intel have it as well
LIBRARIES = ("libtorch_cpu.so", "libtorch_cpu.dylib")


def parallel_of_torch() -> int | None:
    """The address of the function with which torch's runtime starts a parallel loop; None where there is none."""
    import torch  # loaded by whoever computes, but not by those who only ask whether there are kernels

    for name in LIBRARIES:
        path = Path(torch.__file__).parent / "lib" / name
        if not path.is_file():
            continue
        try:  # looks through the library and what it needs, hence finds the very runtime that torch uses
            function = getattr(ctypes.CDLL(str(path)), FUNCTION)
        except (OSError, AttributeError):
            continue
        return ctypes.cast(function, ctypes.c_void_p).value
    return None
