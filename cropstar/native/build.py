"""Compiles the kernels: at install (hatch_build.py) or later with `python -m cropstar.native`.

Needs a C++17 compiler (GCC 9 or Clang 10 and later; $CXX names another one) and the standard library alone: the install
hook loads this file by itself, before cropstar or torch are there.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "src"
LIBRARY = HERE / "kernels.so"
NOTE = HERE / "not-built.txt"  # why there is no library, for the one who asks later

COMPILERS = ("c++", "g++", "clang++")
# Contraction lets the compiler use fused multiply-add; nothing that would change how NaN is treated.
OPTIONS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=fast", "-pthread", "-Wno-psabi")
AVX2 = ("-mavx2", "-mfma")
BFLOAT16 = (*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512bf16")
UNITS: dict[str, tuple[str, ...]] = {
    "entry": (),
    "trees": (),
    "summaries": (),
    "portable": (),
    "avx2": AVX2,
    "avx512": (*AVX2, "-mavx512f"),
    "bfloat16": BFLOAT16,
    "amx": (*BFLOAT16, "-mamx-tile", "-mamx-bf16"),
}
MAY_BE_UNKNOWN = ("bfloat16", "amx")  # units whose options an older compiler lacks: empty without them
X86 = ("x86_64", "amd64")
SECONDS = 600  # after which a compiler is taken for stuck


class BuildError(Exception):
    """Why there are no kernels."""


def digest_of_sources() -> str:
    """A digest of the sources and compiler options, which the library carries: a stale library has another one."""
    digest = hashlib.sha256(repr((OPTIONS, UNITS)).encode())
    for path in sorted((*SOURCES.glob("[a-z]*.cpp"), *SOURCES.glob("[a-z]*.h"))):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def find_compiler() -> list[str]:
    """The command of the C++ compiler."""
    chosen = shlex.split(os.environ.get("CXX", ""))
    if chosen:
        if shutil.which(chosen[0]) is None:
            raise BuildError(f"no C++ compiler: CXX names {chosen[0]}, which is not there")
        return chosen
    for name in COMPILERS:
        if shutil.which(name) is not None:
            return [name]
    raise BuildError(f"no C++ compiler found ({', '.join(COMPILERS)})")


def compile_library(target: Path, *, emulate_avx512: bool = False) -> None:
    """Build the library at `target`, whole or not at all.

    `emulate_avx512` compiles the AVX-512 kernels to AVX2: slow, but it tests them on processors that lack it.
    """
    compiler = find_compiler()
    x86 = platform.machine().lower() in X86
    common = [*OPTIONS, f'-DCROPSTAR_SOURCES="{digest_of_sources()}"']
    if emulate_avx512:
        common.append("-DCROPSTAR_AVX512_EMULATED")
    with tempfile.TemporaryDirectory() as folder:

        def compile_unit(unit: str) -> str:
            options = AVX2 if emulate_avx512 and unit == "avx512" else UNITS[unit]
            made = str(Path(folder, f"{unit}.o"))
            command = [*compiler, *common, "-c", str(SOURCES / f"{unit}.cpp"), "-o", made]
            try:
                _run([*command, *(options if x86 else ())])
            except BuildError:
                if unit not in MAY_BE_UNKNOWN:
                    raise
                _run(command)
            return made

        with ThreadPoolExecutor(os.cpu_count()) as workers:
            objects = list(workers.map(compile_unit, UNITS))
        linked = Path(folder, "kernels.so")
        _run([*compiler, "-shared", "-pthread", *objects, "-o", str(linked)])
        # A copy beside the target, then a rename: a process that holds the old library keeps it.
        beside = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            shutil.copyfile(linked, beside)
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)


def is_current(library: Path = LIBRARY) -> bool:
    """Whether a library was built from these sources and loads here: it may come from another system."""
    try:
        if digest_of_sources().encode() not in library.read_bytes():
            return False
        ctypes.CDLL(str(library))
    except OSError:
        return False
    return True


def build_in_place() -> str | None:
    """Build beside this file, as an editable install and `python -m cropstar.native` do."""
    return build_in(LIBRARY.parent)


def build_in(folder: Path) -> str | None:
    """Build in a folder; the reason where that fails, which is also left there in a note.

    A library that is there remains: whether it fits the sources is found out when it is loaded.
    """
    note = folder / NOTE.name
    try:
        compile_library(folder / LIBRARY.name)
    except (BuildError, OSError) as error:
        with suppress(OSError):  # a folder that cannot be written to is no reason to fail an install
            note.write_text(f"{error}\n", encoding="utf-8")
        return str(error)
    note.unlink(missing_ok=True)
    return None


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, errors="replace", timeout=SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{command[0]} does not run: {error}") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines() or ["?"]
        raise BuildError(f"{command[0]} failed: {lines[0].strip()[:300]}")
