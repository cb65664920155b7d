"""The loader: what it uses, what switches it off, and that it says why it cannot."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from cropstar.native import available, build, library, why_not
from cropstar.native.convolution import pack_convolution
from cropstar.native.star import pack_star, star_forward, star_stack
from cropstar.native.tensors import Packing, fits
from tests.native.references import make_cell, weights_of

needs_kernels = pytest.mark.skipif(not available(), reason=why_not())
SAY = "from cropstar.native import available, library, why_not; import sys; assert 'torch' not in sys.modules\n"


def say(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SAY + code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.strip()


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
    build.LIBRARY.write_bytes(b"of other sources")
    assert "fatal error: no such header" in str(build.build_in_place())
    assert not build.LIBRARY.exists()
    monkeypatch.setenv("CXX", "not-there -O2")
    assert build.build_in_place() == "no C++ compiler: CXX names not-there, which is not there"


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


@needs_kernels
def test_weights_packed_for_another_instruction_set_are_refused() -> None:
    names = library.library().instruction_sets()
    if len(names) < 2:
        pytest.skip("one instruction set alone")
    with library.using(names[0]):
        packed = pack_star(weights_of(make_cell(4, 6)))
    with library.using(names[1]), pytest.raises(ValueError, match=f"packed for {names[0]}"):
        star_forward(torch.zeros(3, 2, 4), None, packed)


@needs_kernels
def test_packed_weights_are_kept_until_they_change() -> None:
    cell, packing = make_cell(4, 6), Packing()
    first = packing.of(weights_of(cell), "star")
    assert packing.of(weights_of(cell), "star") is first
    with torch.no_grad():
        cell.state_gate.weight[0, 0] += 1
    second = packing.of(weights_of(cell), "star")
    assert not torch.equal(first.memory, second.memory)
    assert packing.of(weights_of(cell), "star_backward") is not second
    cell.load_state_dict(make_cell(4, 6, seed=1).state_dict())
    assert not torch.equal(packing.of(weights_of(cell), "star").memory, second.memory)
    third = packing.of(weights_of(cell), "star")
    cell.input_value.bias = nn.Parameter(torch.ones(6))
    assert not torch.equal(packing.of(weights_of(cell), "star").memory, third.memory)
