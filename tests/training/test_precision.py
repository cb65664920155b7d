"""Half precision and compiled models: what they change, and what they must not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cropstar.config import ModelConfig
from cropstar.errors import UsageError
from cropstar.models.cells.cell import CELLS
from cropstar.models.contract import NETWORKS, Shape
from cropstar.models.zoo import build_model
from cropstar.store.model_file import read_tensors
from cropstar.training.optimisation import Precision, compile_forward
from cropstar.training.runs import Run
from cropstar.training.train import train
from tests.training.test_train import options, tiny

CPU = torch.device("cpu")


def weights(run: Run) -> dict[str, Any]:
    _, tensors = read_tensors(run.model, "model")
    return tensors


@pytest.mark.parametrize("name", [*CELLS, "convstar", "bistar", *sorted(NETWORKS)])
def test_every_model_trains_in_bfloat16(name: str) -> None:
    torch.manual_seed(0)
    model = build_model(ModelConfig(name=name, layers=2, hidden=16), Shape(4, 3, 6)).train()
    size = (5, 5) if model.spatial else ()
    x, valid = torch.randn(3, 6, 4, *size), torch.rand(3, 6, *size) > 0.3
    days = torch.arange(6).expand(3, 6) * 12
    precision = Precision("bfloat16", CPU)
    state = torch.get_rng_state()
    plain = model(x, valid, days)
    torch.set_rng_state(state)
    with precision.computing():
        half = model(x, valid, days)
    precision.backward(half.float().square().mean())
    assert (half.float() - plain).abs().max() < 0.1 * plain.abs().max() + 0.02
    assert not torch.equal(half.float(), plain)
    assert all(each.grad is None or each.grad.dtype == torch.float32 for each in model.parameters())
    assert any(each.grad is not None and each.grad.abs().sum() > 0 for each in model.parameters())


def test_a_run_in_bfloat16_is_near_one_in_float32(small_store: Path, tmp_path: Path) -> None:
    plain, exact = train(tiny(small_store, epochs=1), options(tmp_path / "a"))
    half, rough = train(tiny(small_store, epochs=1, precision="bfloat16"), options(tmp_path / "b"))
    assert rough["history"][0]["loss"] == pytest.approx(exact["history"][0]["loss"], abs=0.02)
    assert rough["history"][0]["loss"] != exact["history"][0]["loss"]
    assert all(array.dtype == np.float32 for array in weights(half).values())
    assert weights(half).keys() == weights(plain).keys()


def test_float16_is_for_gpus(small_store: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="bfloat16"):
        train(tiny(small_store, precision="float16"), options(tmp_path))
    assert not list(tmp_path.iterdir())


def test_the_factor_of_float16_goes_on() -> None:
    """Its state alone: there is no GPU to train on."""
    first, second = Precision("float32", CPU), Precision("float32", CPU)
    first.scaler, second.scaler = torch.amp.GradScaler("cpu"), torch.amp.GradScaler("cpu")
    parameter = torch.nn.Parameter(torch.ones(2))
    optimiser = torch.optim.Adam([parameter])
    for value in (float("inf"), 1.0):  # the first makes the factor smaller and changes nothing else
        optimiser.zero_grad()
        first.backward((parameter * value).sum())
        first.unscale(optimiser)
        before = parameter.detach().clone()
        first.step(optimiser)
        assert torch.equal(before, parameter) == (value == float("inf"))
    second.restore(first.state())
    assert second.state() == first.state() != torch.amp.GradScaler("cpu").state_dict()
    assert Precision("float32", CPU).state() == {}


@pytest.mark.parametrize("graphs", [False, True])
def test_a_compiled_model_is_the_same_model(graphs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the names that it had, with the gradients that it had, and plain where nothing is learnt."""
    torch.manual_seed(0)
    model = build_model(ModelConfig(name="star", layers=1, hidden=4), Shape(2, 3, 2))
    names = list(model.state_dict())
    inputs = torch.randn(2, 2, 2), torch.ones(2, 2, dtype=torch.bool), torch.tensor([[0, 9], [0, 9]])
    expected = model(*inputs)
    expected.sum().backward()
    gradients = [each.grad.clone() for each in model.parameters() if each.grad is not None]
    model.zero_grad()
    used: list[bool] = []

    def compiler(function: Any, **settings: Any) -> Any:
        # Tracing is torch's own; what it traced runs as it is, for building it takes a minute.
        assert settings == {"mode": "reduce-overhead" if graphs else None}
        inner: Any = compile_for_real(function, backend="aot_eager")

        def noted(*args: Any) -> Any:
            used.append(True)
            return inner(*args)

        return noted

    compile_for_real: Any = torch.compile
    monkeypatch.setattr(torch, "compile", compiler)
    compile_forward(model, graphs=graphs)
    found = model(*inputs)
    found.sum().backward()
    assert used == [True]
    assert torch.allclose(found, expected, atol=1e-6)
    for each, gradient in zip(model.parameters(), gradients, strict=True):
        assert each.grad is not None
        assert torch.allclose(each.grad, gradient, atol=1e-6)
    with torch.no_grad():
        assert torch.equal(model(*inputs), expected)
    assert used == [True]
    assert list(model.state_dict()) == names


@pytest.mark.slow
def test_without_a_compiler_the_model_runs_as_it_is(
    small_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from torch._inductor import config as inductor

    plain, _ = train(tiny(small_store, epochs=1), options(tmp_path / "plain"))
    monkeypatch.setattr(inductor.cpp, "cxx", ("/no/such/compiler",))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    with caplog.at_level("WARNING", logger="cropstar"):
        run, _ = train(tiny(small_store, epochs=1, compile=True), options(tmp_path / "compiled"))
    said = [record.getMessage() for record in caplog.records if "cannot be compiled" in record.getMessage()]
    assert len(said) == 1
    assert "\n" not in said[0]
    assert all(np.array_equal(array, weights(plain)[name]) for name, array in weights(run).items())
