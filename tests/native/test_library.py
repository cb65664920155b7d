"""The loader: what it uses, what switches it off, and that it says why it cannot."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from cropstar.config import ModelConfig
from cropstar.models.backends import use_backend
from cropstar.models.contract import Shape
from cropstar.models.zoo import build_model
from cropstar.native import available, build, library, why_not
from cropstar.native.convolution import pack_convolution
from cropstar.native.star import pack_star, star_forward, star_stack
from cropstar.native.tensors import fits
from tests.native.references import make_cell, weights_of
from tests.processes import run_python

needs_kernels = pytest.mark.skipif(not available(), reason=why_not())
SAY = "from cropstar.native import available, library, why_not; import sys; assert 'torch' not in sys.modules\n"


def say(code: str, **environment: str) -> str:
    return run_python(SAY + code, env=environment, timeout=60, check=True).stdout.strip()


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The loader looks at an empty folder."""
    monkeypatch.setattr(build, "LIBRARY", tmp_path / "kernels.so")
    monkeypatch.setattr(build, "NOTE", tmp_path / "not-built.txt")
    monkeypatch.delenv(library.SWITCH, raising=False)
    monkeypatch.setattr(library, "_opened", library._opened.__wrapped__)  # what was found before does not count
    return tmp_path


# --- switches


def test_it_can_be_switched_off() -> None:
    assert (
        say("print(available(), why_not())", CROPSTAR_NATIVE="0") == "False CROPSTAR_NATIVE=0 switches the kernels off"
    )


@needs_kernels
@pytest.mark.parametrize("name", library.library().instruction_sets() if available() else [])
def test_an_instruction_set_can_be_forced(name: str) -> None:
    code = "print(available(), library.library().instruction_set)"
    assert say(code, CROPSTAR_NATIVE_SET=name, CROPSTAR_NATIVE="1") == f"True {name}"


@needs_kernels
def test_an_unknown_instruction_set_is_named() -> None:
    said = say("print(available(), why_not())", CROPSTAR_NATIVE_SET="avx9", CROPSTAR_NATIVE="1")
    assert said.startswith("False CROPSTAR_NATIVE_SET names 'avx9'; this processor runs portable")


# --- without a library


@pytest.mark.usefixtures("elsewhere")
def test_it_was_never_built() -> None:
    assert not available()
    assert "never built" in why_not()
    assert "python -m cropstar.native" in why_not()
    with pytest.raises(library.Unavailable, match="never built"):
        library.library()


@pytest.mark.usefixtures("elsewhere")
def test_without_a_compiler_the_reason_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert build.build_in_place() == "no C++ compiler found (c++, g++, clang++)"
    assert not available()
    assert "no C++ compiler found" in why_not()


@pytest.mark.usefixtures("elsewhere")
def test_a_compiler_that_fails_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\necho 'fatal error: no such header' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    assert "fatal error: no such header" in str(build.build_in_place())
    compiler.write_bytes(b"#!/bin/sh\nprintf 'error: \\377' >&2\nexit 1\n")
    assert "error: \N{REPLACEMENT CHARACTER}" in str(build.build_in_place())
    monkeypatch.setenv("CXX", "not-there -O2")
    assert build.build_in_place() == "no C++ compiler: CXX names not-there, which is not there"


@pytest.mark.usefixtures("elsewhere")
def test_a_build_that_fails_leaves_the_library_that_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    build.LIBRARY.write_bytes(b"good")
    monkeypatch.setenv("CXX", "not-there")
    assert build.build_in_place() is not None
    assert build.LIBRARY.read_bytes() == b"good"


def test_a_build_that_cannot_even_leave_a_note(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(build, "LIBRARY", tmp_path / "gone" / "kernels.so")
    monkeypatch.setattr(build, "NOTE", tmp_path / "gone" / "not-built.txt")
    monkeypatch.setenv("CXX", "not-there")
    assert "no C++ compiler" in str(build.build_in_place())


def test_only_sources_and_options_make_another_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shutil.copytree(build.SOURCES, tmp_path / "src")
    before = build.digest_of_sources()
    monkeypatch.setattr(build, "SOURCES", tmp_path / "src")
    (tmp_path / "src" / ".cache").mkdir()
    (tmp_path / "src" / ".entry.cpp.swp").write_bytes(b"an editor's")
    assert build.digest_of_sources() == before
    monkeypatch.setattr(build, "OPTIONS", (*build.OPTIONS, "-g"))
    with_options = build.digest_of_sources()
    (tmp_path / "src" / "entry.cpp").write_text("// other")
    assert len({before, with_options, build.digest_of_sources()}) == 3


@pytest.mark.usefixtures("elsewhere")
def test_a_file_that_is_no_library() -> None:
    build.LIBRARY.write_bytes(b"not a library")
    assert not available()
    assert why_not().startswith("kernels.so cannot be loaded")


@needs_kernels
def test_a_library_of_other_sources_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "digest_of_sources", lambda: "other")
    with pytest.raises(library.Unavailable, match="built from other sources"):
        library.Library(build.LIBRARY)


@needs_kernels
def test_an_install_knows_whether_the_library_is_current(tmp_path: Path) -> None:
    """Also one that was cut off, or is for another machine: it has the digest, and does not load."""
    whole = build.LIBRARY.read_bytes()
    assert build.is_current()
    for content in (b"", whole[: len(whole) // 2], b"no library, though of " + build.digest_of_sources().encode()):
        (tmp_path / "kernels.so").write_bytes(content)
        assert not build.is_current(tmp_path / "kernels.so")
    (tmp_path / "kernels.so").write_bytes(whole.replace(build.digest_of_sources().encode(), 16 * b"0"))
    assert not build.is_current(tmp_path / "kernels.so")
    assert not build.is_current(tmp_path / "missing.so")


# --- what is refused


def test_what_fits() -> None:
    x = torch.zeros(3, 2, 4)
    assert fits(x, nn.Parameter(torch.zeros(4)))
    assert not fits(x, torch.zeros(2, dtype=torch.float64))
    assert not fits(x.double())
    assert not fits(x[:0])
    assert not fits(x.to("meta"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not fits(x)
    with FlopCounterMode(display=False):
        assert not fits(x)
    with torch.inference_mode():
        assert fits(x)

    def batched(part: Tensor) -> Tensor:
        assert not fits(part)
        return part

    torch.vmap(batched)(x)


@needs_kernels
def test_wrong_tensors_are_refused() -> None:
    cell = make_cell(4, 6)
    packed = pack_star(weights_of(cell))
    x = torch.zeros(3, 2, 4)
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: star_forward(x[..., :3], None, packed), r"x is \(3, 2, 3\)"),
        (lambda: star_forward(x.double(), None, packed), "float64"),
        (lambda: star_forward(x[:0], None, packed), "empty"),
        (lambda: star_forward(x, torch.ones(2, 3, dtype=torch.bool), packed), r"valid is \(2, 3\)"),
        (lambda: star_forward(x, torch.ones(3, 2), packed), "not bool"),
        (lambda: star_forward(x, None, packed, torch.zeros(2, 5)), "initial"),
        (lambda: star_stack(x, None, [packed, packed]), "takes 4 channels"),
        (lambda: pack_star(weights_of(cell)._replace(gate_bias=torch.zeros(5))), "gate_bias"),
        (lambda: pack_convolution(weights_of(cell)), "not 3 x 3"),
    ]
    for wrong, why in cases:
        with pytest.raises(ValueError, match=why):
            wrong()


def test_where_a_compiler_is_the_kernels_are() -> None:
    """Without this, sources that do not compile, or a library of older ones, would skip the tests of kernels."""
    try:
        build.find_compiler()
    except build.BuildError as error:
        pytest.skip(str(error))
    if os.environ.get(library.SWITCH) == "0":
        pytest.skip("switched off")
    assert available(), why_not()


@needs_kernels
def test_a_library_that_is_refused_is_told_of(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = build_model(ModelConfig(name="star", layers=1, hidden=4), Shape(3, 2, 5))
    caplog.set_level("WARNING", logger="cropstar")
    use_backend(model, "auto", torch.device("cpu"))
    assert not caplog.text  # it was never built, which is no surprise
    build.LIBRARY.write_bytes(b"no library")
    use_backend(model, "auto", torch.device("cpu"))
    assert "cannot be loaded" in caplog.text
    caplog.clear()
    monkeypatch.setenv(library.SWITCH, "0")
    use_backend(model, "auto", torch.device("cpu"))
    assert not caplog.text


@needs_kernels
def test_the_threads_of_torch_stay_what_they_are() -> None:
    """A smaller team would end some of them, and torch's next loop start them again."""
    code = """
import os, torch
from cropstar.native.star import pack_star, star_forward
from tests.native.references import make_cell, weights_of
torch.set_num_threads(6)
packed, x, large = pack_star(weights_of(make_cell(64, 64))), torch.randn(40, 3, 64), torch.randn(1_000_000)
seen = set()
for _ in range(20):
    star_forward(x, None, packed)
    large.tanh()
    seen |= set(os.listdir("/proc/self/task"))
print(len(seen - set(os.listdir("/proc/self/task"))))
"""
    if not Path("/proc/self/task").is_dir():
        pytest.skip("threads are counted in /proc")
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "0"
