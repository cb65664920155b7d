"""The Triton kernels without a GPU: their numbers by Triton's interpreter, their code by its compiler."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from cropstar.config import ModelConfig
from cropstar.errors import ResourceError
from cropstar.models.backends import use_backend
from cropstar.models.cells.star_layer import INTERPRET, can_fuse, run_layer
from cropstar.models.contract import Shape
from cropstar.models.zoo import build_model
from cropstar.native.tensors import Weights

pytest.importorskip("triton", reason="triton is not installed")

# Shared memory of a block that each kind of GPU allows.
LIMITS = {80: 166_912, 86: 101_376, 90: 232_448}

COMPILE = """
import sys, warnings
warnings.simplefilter("ignore")
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from cropstar.models.cells import star_triton

capability, hidden, precision = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
flags = {"MASKED": True, "STARTED": True}
layer = {**star_triton._sizes(hidden), "PRECISION": precision, **flags}
image = {"HIDDEN": hidden, "ELEMENTS": star_triton.ELEMENTS, **flags}
kinds = {"steps": "i32", "batch": "i32", "count": "i32", "pixels": "i32", "valid": "*u8"}
for kernel, constants in (
    (star_triton._forward_kernel, layer),
    (star_triton._backward_kernel, {**layer, "GIVEN": True}),
    (star_triton._update_kernel, image),
    (star_triton._update_backward_kernel, image),
):
    signature = {name: "constexpr" if name in constants else kinds.get(name, "*fp32") for name in kernel.arg_names}
    source = ASTSource(kernel, signature=signature, constexprs=constants)
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=star_triton.LAUNCH)
    assert len(made.asm["cubin"]) > 1000
    print(made.metadata.shared, star_triton.shared_bytes(hidden, precision))
"""


def random_layer(inputs: int, hidden: int, *kernel: int) -> Weights:
    terms = inputs * (9 if kernel else 1)
    value, gate = (torch.randn(hidden, inputs, *kernel) / terms**0.5 for _ in range(2))
    state = torch.randn(hidden, hidden, *kernel) / (hidden * (9 if kernel else 1)) ** 0.5
    return Weights(*(part.requires_grad_() for part in (value, torch.randn(hidden), gate, torch.randn(hidden), state)))


def results(fused: bool, x: Tensor, mask: Tensor | None, weights: Weights, initial: Tensor | None) -> list[Tensor]:
    """Outputs, the last state, and the gradients of everything."""
    outputs, final = run_layer(x, mask, weights, initial, fused=fused)
    torch.manual_seed(1)
    loss = (outputs * torch.randn_like(outputs)).sum() + (final * torch.randn_like(final)).sum()
    wanted = [x, *weights, *([] if initial is None else [initial])]
    return [outputs, final, *torch.autograd.grad(loss, wanted)]


def assert_same(x: Tensor, mask: Tensor | None, weights: Weights, initial: Tensor | None) -> None:
    assert can_fuse(x, len(weights.value_bias))
    plain, fused = (results(each, x, mask, weights, initial) for each in (False, True))
    for one, other in zip(plain, fused, strict=True):
        assert (one - other).abs().max() < 2e-5 * (1 + one.abs().max())


@settings(max_examples=8, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(
    steps=st.integers(1, 4),
    batch=st.integers(1, 40),
    hidden=st.sampled_from([1, 5, 16, 33, 64]),
    masked=st.booleans(),
    begun=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_series_and_their_gradients(steps: int, batch: int, hidden: int, masked: bool, begun: bool, seed: int) -> None:
    torch.manual_seed(seed)
    x = torch.randn(steps, batch, 3, requires_grad=True)
    mask = torch.rand(steps, batch, 1) > 0.4 if masked else None
    initial = torch.randn(batch, hidden).tanh().requires_grad_() if begun else None
    assert_same(x, mask, random_layer(3, hidden), initial)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("begun", [False, True])
def test_images_and_their_gradients(masked: bool, begun: bool) -> None:
    torch.manual_seed(2)
    x = torch.randn(3, 2, 4, 5, 7, requires_grad=True)
    mask = torch.rand(3, 2, 1, 5, 7) > 0.4 if masked else None
    initial = torch.randn(2, 6, 5, 7).tanh().requires_grad_() if begun else None
    assert_same(x, mask, random_layer(4, 6, 3, 3), initial)


@pytest.mark.parametrize("name", ["star", "convstar", "bistar"])
def test_a_whole_model(name: str) -> None:
    torch.manual_seed(3)
    spatial = name.startswith("conv")
    config = ModelConfig(name=name, layers=2, hidden=8, pool="mean", normalise=True)
    model = build_model(config, Shape(bands=3, classes=4, length=5)).eval()
    space = (6, 6) if spatial else ()
    x, valid = torch.randn(2, 5, 3, *space), torch.rand(2, 5, *space) > 0.2
    days = torch.arange(5).mul(20).add(18_000).expand(2, 5)
    found = {}
    for backend in ("naive", "triton"):
        use_backend(model, backend, torch.device("cpu"))
        model.zero_grad()
        scores = model(x, valid, days)
        scores.square().sum().backward()
        found[backend] = [scores.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]
    for one, other in zip(*found.values(), strict=True):
        assert (one - other).abs().max() < 1e-4 * (1 + one.abs().max())


def test_wider_layers_are_left_to_torch() -> None:
    assert not can_fuse(torch.randn(2, 3, 4), 129)
    assert not can_fuse(torch.randn(2, 3, 4).double(), 16)


def test_without_a_gpu_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(INTERPRET)
    model = build_model(ModelConfig(name="star", layers=1, hidden=4), Shape(bands=2, classes=2, length=3))
    with pytest.raises(ResourceError, match="the device is cpu"):
        use_backend(model, "triton", torch.device("cpu"))
    assert not can_fuse(torch.randn(2, 3, 4), 16)


def compiled(capability: int, hidden: int, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(INTERPRET)
    command = [sys.executable, "-c", COMPILE, str(capability), str(hidden), precision]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    forward, backward, *images = (tuple(map(int, line.split())) for line in done.stdout.splitlines())
    assert forward[0] == forward[1]  # as `can_fuse` reckons
    assert backward[0] == backward[1]
    assert max(forward[0], backward[0], *(need for need, _ in images)) <= LIMITS[capability]


def test_it_compiles_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled(80, 64, "tf32", monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("capability", "hidden", "precision"),
    [
        (80, 128, "tf32x3"),
        (80, 128, "tf32"),
        (86, 128, "tf32"),
        (86, 64, "tf32x3"),
        (90, 128, "tf32x3"),
        (90, 33, "tf32"),
    ],
)
def test_it_compiles_for_all_gpus(
    capability: int, hidden: int, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled(capability, hidden, precision, monkeypatch)
