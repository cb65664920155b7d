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

from cropstar.models.cells.star import StarCell
from cropstar.models.stack import RecurrentStack
from cropstar.native import available, build, library, why_not
from cropstar.native.convolution import convolution_step, pack_convolution
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


@needs_kernels
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("spatial", [False, True])
def test_weights_that_a_fused_optimiser_changed_are_packed_again(spatial: bool, dropout: float) -> None:
    """It does not count the changes that it makes."""
    torch.manual_seed(0)
    cells = [StarCell(3, 3, spatial=spatial), StarCell(3, 3, spatial=spatial)]
    stack = RecurrentStack(cells, dropout=dropout)
    stack.initialise(5.0)
    place = (4, 4) if spatial else ()
    x, valid, days = torch.randn(2, 3, 3, *place), torch.ones(2, 3, *place, dtype=torch.bool), torch.zeros(2, 3)
    optimiser = torch.optim.AdamW(stack.parameters(), lr=0.1, fused=True)

    def validate(backend: str) -> Tensor:
        for cell in cells:
            cell.backend = backend
        with torch.no_grad():
            found: Tensor = stack.eval()(x, valid, days)[0]
        return found

    for _ in range(2):
        found = validate("auto")
        assert torch.allclose(found, validate("naive"), atol=1e-5)
        validate("auto")
        stack.train()(x, valid, days)[0].sum().backward()
        optimiser.step()
    assert not torch.allclose(validate("auto"), found, atol=1e-2)


@needs_kernels
def test_a_given_state_gets_its_gradient() -> None:
    stack = RecurrentStack([StarCell(3, 5, spatial=False)]).requires_grad_(False)
    stack.initialise(5.0)
    state = torch.zeros(2, 5, requires_grad=True)
    x, valid, days = torch.randn(2, 1, 3), torch.ones(2, 1, dtype=torch.bool), torch.zeros(2, 1)
    for ((after,),) in (
        stack.advance(x, valid, days, ((state,),)),
        stack.step(x[:, 0], valid[:, 0], days[:, 0], ((state,),)),
    ):
        assert torch.autograd.grad(after.sum(), state)[0].abs().min() > 0


@needs_kernels
def test_a_result_is_not_written_over_what_it_is_computed_from() -> None:
    packed = pack_convolution(weights_of(make_cell(6, 6, spatial=True)))
    image = torch.zeros(1, 6, 4, 4).to(memory_format=torch.channels_last)
    with pytest.raises(ValueError, match="memory with x"):
        convolution_step(image, None, packed, None, image)
    with pytest.raises(ValueError, match="memory with the state"):
        convolution_step(image.clone(), None, packed, image, image)
