"""One contract for every backend, what `auto` takes, and what is refused."""

from __future__ import annotations

import copy
import logging

import pytest
import torch
from torch import Tensor

from cropstar.config import ModelConfig
from cropstar.errors import CropstarError, ResourceError, UsageError
from cropstar.models.backends import BACKENDS, TRAINING_BACKENDS, use_backend
from cropstar.models.contract import Classifier, Shape
from cropstar.models.zoo import build_model
from cropstar.native import available, why_not

CPU, BANDS = torch.device("cpu"), 4
NAMES = ["star", "convstar"]
FORCED = [name for name in BACKENDS if name != "auto"]


def build(name: str, **settings: object) -> Classifier:
    torch.manual_seed(0)
    chosen = {"name": name, "layers": 3, "hidden": 9, **settings}
    model = build_model(ModelConfig.model_validate(chosen), Shape(BANDS, 5, 6)).eval()
    with torch.no_grad():
        for weights in model.parameters():
            weights.add_(0.1 * torch.randn_like(weights))
    return model


def on(backend: str, name: str, **settings: object) -> Classifier:
    if backend == "native" and not available():
        pytest.skip(why_not())
    if backend == "onnx":
        pytest.importorskip("onnxruntime")
    if backend == "triton":
        pytest.importorskip("triton", reason="triton is not installed")
    return use_backend(build(name, **settings), backend, CPU, bands=BANDS)[0]


def season(name: str, batch: int = 2, length: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(1)
    space = (7, 6) if "conv" in name else ()
    x = torch.randn(batch, length, BANDS, *space, generator=random)
    valid = torch.rand(batch, length, *space, generator=random) > 0.3
    return x, valid, (19_000 + 11 * torch.arange(length)).expand(batch, -1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("pool", ["last", "mean"])
@pytest.mark.parametrize("backend", FORCED)
@torch.inference_mode()
def test_the_contract(backend: str, name: str, pool: str) -> None:
    model = on(backend, name, pool=pool)
    x, valid, days = season(name)
    exact = build(name, pool=pool).double()
    scores = model(x, valid, days)
    torch.testing.assert_close(scores.double(), exact(x.double(), valid, days), rtol=0, atol=1e-5)
    dated = model.by_date(x, valid, days)
    torch.testing.assert_close(dated[:, -1], scores, rtol=0, atol=1e-6)
    state = None
    for t in range(x.shape[1]):
        state = model.step(x[:, t], valid[:, t], days[:, t], state)
        torch.testing.assert_close(model.classify(state), dated[:, t], rtol=0, atol=1e-6)
    assert state is not None
    for one, other in zip(model.advance(x, valid, days), state, strict=True):
        assert all(torch.equal(*parts) for parts in zip(one, other, strict=True))
    after = model.step(x[:, 0], torch.zeros_like(valid[:, 0]), days[:, 0], state)
    for one, other in zip(after, state, strict=True):
        assert all(torch.equal(*parts) for parts in zip(one, other, strict=True))
    torch.testing.assert_close(model(x[:1], valid[:1], days[:1]), scores[:1], rtol=0, atol=1e-6)
    spoilt = torch.where(valid.unsqueeze(2), x, torch.full_like(x, float("nan")))
    assert torch.equal(model(spoilt, valid, days), scores)


@pytest.mark.parametrize("backend", ["torch", "native"])
def test_an_interrupted_sequence_has_the_same_bits(backend: str) -> None:
    """What an update rests on."""
    model = on(backend, "star")
    x, valid, days = season("star", batch=70, length=7)
    with torch.inference_mode():
        whole = model.advance(x, valid, days)
        state = model.advance(x[:, :4], valid[:, :4], days[:, :4])
        state = model.advance(x[:, 4:], valid[:, 4:], days[:, 4:], state)
    assert all(torch.equal(one[0], other[0]) for one, other in zip(whole, state, strict=True))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("backend", [each for each in TRAINING_BACKENDS if each != "auto"])
def test_gradients(backend: str, name: str) -> None:
    model, exact = on(backend, name), build(name).double()
    x, valid, days = season(name)
    model(x, valid, days).square().sum().backward()
    exact(x.double(), valid, days).square().sum().backward()
    for one, other in zip(model.parameters(), exact.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert (one.grad.double() - other.grad).norm() <= 1e-5 * other.grad.norm() + 1e-6


@pytest.mark.parametrize("name", NAMES)
def test_weights_that_change_are_packed_anew(name: str) -> None:
    model = on("native", name)
    x, valid, days = season(name)
    with torch.no_grad():
        before = model(x, valid, days)
        next(model.parameters()).mul_(1.5)
        twin = copy.deepcopy(model)
        assert not torch.equal(model(x, valid, days), before)
        assert torch.equal(model(x, valid, days), twin(x, valid, days))


def test_what_auto_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = "native" if available() else "torch"
    assert use_backend(build("star"), "auto", CPU)[1] == kernels
    assert use_backend(build("convstar"), "auto", CPU)[1] == kernels
    assert use_backend(build("convstar"), "auto", CPU, training=True)[1] == kernels
    assert use_backend(build("gru"), "auto", CPU)[1] == "torch"
    assert use_backend(build("star", revisit=5.0), "auto", CPU)[1] == "torch"
    assert use_backend(build("star"), "auto", torch.device("meta"))[1] == "torch"
    monkeypatch.setenv("CROPSTAR_NATIVE", "0")
    assert use_backend(build("star"), "auto", CPU)[1] == "torch"


def test_it_is_said_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "cropstar"):
        use_backend(build("gru"), "auto", CPU)
    assert "backend torch" in caplog.text
    assert "the kernels support the cell star" in caplog.text or why_not() in caplog.text


@pytest.mark.parametrize(
    ("name", "settings", "backend", "device", "words"),
    [
        ("gru", {}, "native", "cpu", "the cell star"),
        ("star", {"variant": "janet"}, "native", "cpu", "the variant paper"),
        ("star", {}, "native", "meta", "--device cpu"),
        ("star", {}, "onnx", "meta", "--device cpu"),
        ("bistar", {}, "onnx", "cpu", "step through the dates"),
        ("tempcnn", {}, "native", "cpu", "no recurrent layers"),
        ("star", {}, "fast", "cpu", "naive, torch, native, triton, onnx"),
    ],
)
def test_what_cannot_be_had_is_refused(
    name: str, settings: dict[str, object], backend: str, device: str, words: str
) -> None:
    if backend == "native" and not available():
        pytest.skip(why_not())
    with pytest.raises(UsageError, match=words):
        use_backend(build(name, **settings), backend, torch.device(device), bands=BANDS)


def test_no_kernels_no_training_by_onnx(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no backend"):
        use_backend(build("star"), "onnx", CPU, training=True)
    monkeypatch.setenv("CROPSTAR_NATIVE", "0")
    with pytest.raises(ResourceError, match="switches the kernels off") as refused:
        use_backend(build("star"), "native", CPU)
    assert isinstance(refused.value, CropstarError)
    assert "\n" not in str(refused.value)
