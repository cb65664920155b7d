"""Every test of a kernel runs on each instruction set that the processor has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from cropstar.native import available, why_not
from cropstar.native.build import compile_library
from cropstar.native.library import INSTRUCTION_SETS, Library, library, using

EMULATED = "avx512, emulated"  # the kernels of AVX-512, compiled to AVX2: its blocks and panels without its processor


@pytest.fixture(scope="session")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Library:
    if not available() or "avx2" not in library().instruction_sets():
        pytest.skip("AVX-512 is emulated with AVX2")
    path = tmp_path_factory.mktemp("native") / "emulated.so"
    compile_library(path, emulate_avx512=True)
    return Library(path)


@pytest.fixture(params=[*INSTRUCTION_SETS, pytest.param(EMULATED, marks=pytest.mark.slow)])
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    if not available():
        pytest.skip(why_not())
    if request.param == EMULATED:
        with using("avx512", request.getfixturevalue("emulated")):
            yield request.param
        return
    if request.param not in library().instruction_sets():
        pytest.skip(f"this processor lacks {request.param}")
    with using(request.param):
        yield request.param


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)
