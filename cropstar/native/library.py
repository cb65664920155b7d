"""Finds the compiled kernels and calls them; says why where they cannot be used.

CROPSTAR_NATIVE=0 switches them off. CROPSTAR_NATIVE_SET=portable|avx2|avx512 forces an instruction set; otherwise the
best that the processor has is used. The kernels with products of bfloat16 are never chosen unasked (`using`).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import POINTER, Structure, c_char_p, c_int, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from cropstar.native import build

SWITCH = "CROPSTAR_NATIVE"
SET = "CROPSTAR_NATIVE_SET"
INSTRUCTION_SETS = ("portable", "avx2", "avx512")
BFLOAT16_SETS = ("amx", "bfloat16")  # AVX-512 with products of that type, in matrix registers or without
INTERFACE = 8  # what entry.cpp must have been built with
REBUILD = "python -m cropstar.native"


def _fields(integers: str = "", pointers: str = "", *more: str) -> list[tuple[str, Any]]:
    """Names in turn: integers, pointers, integers, pointers, ..."""
    kinds = (c_int64, c_void_p)
    groups = (integers, pointers, *more)
    return [(name, kinds[number % 2]) for number, names in enumerate(groups) for name in names.split()]


class StarWeights(Structure):
    _fields_: ClassVar = _fields("inputs hidden", "value_weight gate_weight state_weight value_bias gate_bias")


class StarForward(Structure):
    _fields_: ClassVar = _fields(
        *("length batch inputs hidden", "packed x", "x_time x_sample", "valid", "valid_time valid_sample"),
        "initial outputs gate value",
    )


class StarBackward(Structure):
    _fields_: ClassVar = _fields(
        *("length batch inputs hidden", "packed x", "x_time x_sample", "valid", "valid_time valid_sample"),
        *("initial outputs gate value outputs_gradient", "gradient_time gradient_sample"),
        "final_gradient x_gradient initial_gradient value_weight_gradient gate_weight_gradient state_weight_gradient "
        "value_bias_gradient gate_bias_gradient",
    )


class StarStack(Structure):
    _fields_: ClassVar = _fields(
        *("length batch inputs layers", "hidden packed x", "x_time x_sample", "valid", "valid_time valid_sample"),
        *("initial final outputs bin", "bin_time bin_sample", "sums", "stems"),
        "taps stem_outputs stem_packed windows windows_after",
    )


class ConvolutionStep(Structure):
    _fields_: ClassVar = _fields(
        *("images height width inputs hidden", "packed x", "x_image x_row x_pixel"),
        *("state", "state_image state_row state_pixel", "valid", "valid_image valid_row valid_pixel"),
        *("after", "after_image after_row after_pixel", "gate value border"),
    )


class ConvolutionForward(Structure):
    _fields_: ClassVar = _fields(
        *("length images height width inputs hidden", "packed x", "x_time x_image x_row x_pixel"),
        *("valid", "valid_time valid_image valid_row valid_pixel", "initial outputs gate value"),
    )


class ConvolutionBackward(Structure):
    _fields_: ClassVar = _fields(
        *("length images height width inputs hidden", "packed x", "x_time x_image x_row x_pixel"),
        *("valid", "valid_time valid_image valid_row valid_pixel", "initial outputs gate value outputs_gradient"),
        "gradient_time gradient_image gradient_row gradient_pixel",
        "final_gradient x_gradient initial_gradient value_weight_gradient gate_weight_gradient state_weight_gradient "
        "value_bias_gradient gate_bias_gradient shared",
    )


class TreeArrays(Structure):
    _fields_: ClassVar = _fields("trees features", "offsets left right feature threshold")


class TreeSums(Structure):
    _fields_: ClassVar = _fields("rows features trees width columns", "offsets nodes leaf leaves adds_to x sums")


class Normalise(Structure):
    _fields_: ClassVar = _fields(
        "rows channels", "x valid scale shift epsilon momentum running_mean running_variance sums mean inverse count y"
    )


class NormaliseBackward(Structure):
    _fields_: ClassVar = _fields(
        *("rows channels", "x valid gradient scale mean inverse count sums scale_gradient shift_gradient x_gradient"),
    )


class SeasonMeans(Structure):
    _fields_: ClassVar = _fields(
        *("length batch hidden bins", "bin", "bin_time bin_sample", "valid", "valid_time valid_sample"),
        "outputs features counts outputs_gradient",
    )


# name: what it returns, and what it is given
FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "interface": (c_int, []),
    "sources": (c_char_p, []),
    "runs": (c_int, [c_char_p]),
    "chosen": (c_char_p, []),
    "half": (c_char_p, []),
    "choose": (c_int, [c_char_p]),
    "star_packed": (c_int64, [c_int64, c_int64]),
    "star_pack": (None, [POINTER(StarWeights), c_void_p]),
    "star_forward": (c_int, [POINTER(StarForward), c_int64]),
    "star_packed_backward": (c_int64, [c_int64, c_int64]),
    "star_pack_backward": (None, [POINTER(StarWeights), c_void_p]),
    "star_backward": (c_int, [POINTER(StarBackward), c_int64]),
    "stem_packed": (c_int64, [c_int64, c_int64]),
    "stem_pack": (None, [POINTER(StarWeights), c_void_p]),
    "star_stack": (c_int, [POINTER(StarStack), c_int64]),
    "lend": (None, [c_void_p]),
    "convolution_packed": (c_int64, [c_int64, c_int64]),
    "convolution_pack": (None, [POINTER(StarWeights), c_void_p]),
    "convolution_step": (c_int, [POINTER(ConvolutionStep), c_int64]),
    "convolution_forward": (c_int, [POINTER(ConvolutionForward), c_int64]),
    "convolution_packed_backward": (c_int64, [c_int64, c_int64]),
    "convolution_pack_backward": (None, [POINTER(StarWeights), c_void_p]),
    "convolution_backward": (c_int, [POINTER(ConvolutionBackward), c_int64]),
    "trees_pack": (c_int64, [POINTER(TreeArrays), c_void_p, c_void_p]),
    "trees_sum": (c_int, [POINTER(TreeSums), c_int64]),
    "normalise": (c_int, [POINTER(Normalise), c_int64]),
    "normalise_backward": (c_int, [POINTER(NormaliseBackward), c_int64]),
    "season_means": (c_int, [POINTER(SeasonMeans), c_int64]),
    "season_means_backward": (c_int, [POINTER(SeasonMeans), c_int64]),
    "tanh": (None, [c_void_p, c_int64, c_void_p]),
    "sigmoid": (None, [c_void_p, c_int64, c_void_p]),
}


class Unavailable(Exception):
    """Why the kernels cannot be used."""


_forked: list[bool] = []  # filled in a forked process, in which the threads of torch's runtime are gone
os.register_at_fork(after_in_child=lambda: _forked.append(True))


class Library:
    """An opened library. ctypes lets other Python threads run during a call."""

    def __init__(self, path: Path) -> None:
        self._lent = False  # whether it was said which threads to compute with
        try:
            handle = ctypes.CDLL(str(path))
            self._functions = {name: getattr(handle, f"cropstar_{name}") for name in FUNCTIONS}
        except (OSError, AttributeError) as error:
            raise Unavailable(f"{path.name} cannot be loaded: {error}; build it again with `{REBUILD}`") from error
        for name, function in self._functions.items():
            function.restype, function.argtypes = FUNCTIONS[name]
        if self("interface") != INTERFACE:
            raise Unavailable(f"{path.name} has another interface; build it again with `{REBUILD}`")
        if build.SOURCES.is_dir() and self("sources").decode() != build.digest_of_sources():
            raise Unavailable(f"{path.name} was built from other sources; build it again with `{REBUILD}`")

    def __call__(self, name: str, *arguments: object) -> Any:
        return self._functions[name](*arguments)

    def lend(self, parallel: int | None) -> None:
        """Use the threads of an OpenMP runtime, given the address of its GOMP_parallel, or own ones."""
        self("lend", parallel)
        self._lent = True

    def run(self, name: str, task: Structure, threads: int) -> None:
        if threads > 1 and not self._lent:
            self.lend(None if _forked else parallel_of_torch())
        if self(name, ctypes.byref(task), threads):
            raise MemoryError(f"no memory for {name} in the native kernels")

    def instruction_sets(self) -> list[str]:
        """The instruction sets that this processor supports."""
        return [name for name in INSTRUCTION_SETS if self("runs", name.encode())]

    def bfloat16_sets(self) -> list[str]:
        """Those with products of bfloat16 that this processor supports."""
        return [name for name in BFLOAT16_SETS if self("runs", name.encode())]

    @property
    def half(self) -> str:
        """The one of them to use; empty where float32 is faster."""
        return str(self("half").decode())

    @property
    def instruction_set(self) -> str:
        return str(self("chosen").decode())

    def choose(self, instruction_set: str) -> None:
        if not self("choose", instruction_set.encode()):
            known = ", ".join(self.instruction_sets())
            raise Unavailable(f"{SET} names '{instruction_set}'; this processor runs {known}")


@cache
def _opened() -> Library | str:
    """The library beside this file, or why there is none."""
    if not build.LIBRARY.exists():
        reason = build.NOTE.read_text(encoding="utf-8").strip() if build.NOTE.exists() else "they were never built"
        return f"the kernels are not there: {reason}; build them with `{REBUILD}`"
    try:
        library = Library(build.LIBRARY)
        if os.environ.get(SET):
            library.choose(os.environ[SET])
    except (Unavailable, OSError) as error:
        return str(error)
    return library


_forced: list[Library] = []


def _find() -> Library | str:
    if os.environ.get(SWITCH) == "0":
        return f"{SWITCH}=0 switches the kernels off"
    return _forced[-1] if _forced else _opened()


def library() -> Library:
    opened = _find()
    if isinstance(opened, str):
        raise Unavailable(opened)
    return opened


def available() -> bool:
    """Whether the kernels can be used here."""
    return isinstance(_find(), Library)


def why_not() -> str:
    """The reason where they cannot; empty where they can."""
    opened = _find()
    return opened if isinstance(opened, str) else ""


def why_refused() -> str:
    """Why a library that exists cannot be used, such as one of other sources; else empty."""
    return why_not() if os.environ.get(SWITCH) != "0" and build.LIBRARY.exists() else ""


@contextmanager
def using(instruction_set: str, other: Library | None = None) -> Iterator[Library]:
    """Within it, an instruction set (of another library) is used; weights packed outside are refused."""
    used = other or library()
    before = used.instruction_set
    used.choose(instruction_set)
    _forced.append(used)
    try:
        yield used
    finally:
        _forced.pop()
        used.choose(before)


# --- the threads of torch
#
# torch's OpenMP runtime keeps one thread per processor, which spins for some milliseconds after each parallel loop.
# Threads of our own would lose a quarter of their time on small batches, and a second OpenMP runtime would be no
# better. So the kernels use the runtime that torch has loaded.


FUNCTION = "GOMP_parallel"  # of GNU's runtime; those of LLVM and Intel have it as well
LIBRARIES = ("libtorch_cpu.so", "libtorch_cpu.dylib")


def parallel_of_torch() -> int | None:
    """The address of the function with which torch's runtime starts a parallel loop; None where there is none."""
    import torch  # here: checking whether there are kernels needs no torch

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
