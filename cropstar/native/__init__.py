"""The STAR and ConvSTAR cells as compiled kernels for the processor, in float32.

C++ behind a plain C interface, called with ctypes: built at install where a compiler is there, independent of torch's
ABI. Importing this package needs no torch; the functions that work on tensors bring it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cropstar.native.library import Unavailable, available, why_not

if TYPE_CHECKING:
    from cropstar.native.convolution import convolution_step, pack_convolution
    from cropstar.native.star import pack_star, run_star, star_backward, star_forward, star_stack

__all__ = [
    "Unavailable",
    "available",
    "convolution_step",
    "pack_convolution",
    "pack_star",
    "run_star",
    "star_backward",
    "star_forward",
    "star_stack",
    "why_not",
]


def __getattr__(name: str) -> object:
    if name in ("convolution_step", "pack_convolution"):
        from cropstar.native import convolution

        return getattr(convolution, name)
    if name in __all__:
        from cropstar.native import star

        return getattr(star, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
