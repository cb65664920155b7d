"""Parts of a step: gradients in micro-batches, precision, averaged weights and the learning rate."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cropstar.config import LossConfig, ModelConfig, OptimiserConfig
from cropstar.datasets.batches import Batch
from cropstar.errors import ResourceError, UsageError
from cropstar.models.cells.cell import CELLS
from cropstar.models.contract import NETWORKS, Classifier, Shape
from cropstar.models.normalisation import MaskedBatchNorm
from cropstar.models.zoo import build_model
from cropstar.store.classes import UNLABELLED
from cropstar.store.model_file import read_tensors
from cropstar.training import setup
from cropstar.training.losses import build_loss
from cropstar.training.optimisation import (
    Engine,
    Precision,
    Tally,
    WeightAverage,
    compile_forward,
    cut,
    fit_into_memory,
    learning_rate,
)
from cropstar.training.runs import Run
from cropstar.training.train import train
from cropstar.training.trainer import Crops
from tests.training.stepping import Cut, cut_before, watched_steps
from tests.training.test_train import options, tiny

# --- a batch cut into micro-batches: the same gradient, and smaller ones where memory runs out


CPU = torch.device("cpu")
WEIGHTS = torch.tensor([0.3, 2.0, 1.1])


def a_batch(samples: int, *, image: bool) -> Batch:
    """With clouds, samples of very different numbers of labels, and one without any."""
    random = torch.Generator().manual_seed(samples)
    size = (5, 6) if image else ()
    labels = torch.randint(0, 3, (samples, *size), generator=random)
    if image:
        share = torch.linspace(0, 1, samples).reshape(-1, 1, 1)
        labels[torch.rand(labels.shape, generator=random) > share] = UNLABELLED
        labels[0] = UNLABELLED
    return Batch(
        torch.randn(samples, 4, 2, *size, generator=random),
        torch.rand(samples, 4, *size, generator=random) > 0.5,
        torch.arange(4).expand(samples, 4) * 10,
        labels,
        torch.zeros(samples, *size, dtype=torch.long),
    )


def a_model(name: str) -> Classifier:
    torch.manual_seed(0)
    return build_model(ModelConfig(name=name, layers=2, hidden=5), Shape(2, 3, 4)).double()


def gradients(model: Classifier, batch: Batch, loss: LossConfig, micro: int, *, mean: bool) -> tuple[Tally, Any]:
    weights = WEIGHTS if loss.balance else None
    model.zero_grad()
    objective = Crops(build_loss(loss, weights), 3)
    engine = Engine(model, objective.forward, objective.loss, Precision("float32", CPU), CPU)
    batch = Batch(batch.x.double(), batch.valid, batch.days, batch.labels, batch.parcels)
    tally = engine.differentiate(batch, micro, alone=mean)
    found = [parameter.grad for parameter in model.parameters()]
    return tally, [grad if tally.is_whole else grad / tally.weight for grad in found if grad is not None]


@pytest.mark.parametrize("name", ["convstar", "star"])
@pytest.mark.parametrize("image", [True, False])
@pytest.mark.parametrize(
    "loss",
    [
        LossConfig(),
        LossConfig(balance=1.0),
        LossConfig(focus=2.0),
        LossConfig(balance=0.5, focus=1.0),
        LossConfig(name="dice", smoothing=0.1),  # no mean over pixels
    ],
)
def test_micro_batches_give_the_gradient_of_the_batch(name: str, image: bool, loss: LossConfig) -> None:
    if name == "convstar" and not image:
        pytest.skip("an image model reads images")
    model, batch = a_model(name), a_batch(7, image=image)
    whole, expected = gradients(model, batch, loss, 7, mean=True)
    assert whole.is_whole
    for micro in (1, 2, 5):
        tally, found = gradients(model, batch, loss, micro, mean=True)
        assert tally.is_whole == (loss.name == "dice")
        assert tally.count == whole.count
        assert tally.loss / tally.weight == pytest.approx(whole.loss, abs=1e-6)
        for one, other in zip(found, expected, strict=True):
            assert torch.allclose(one, other, rtol=0, atol=1e-6)


def test_a_mean_of_means_would_be_another_gradient() -> None:
    """What the weights are for: the test above can fail."""
    model, batch = a_model("convstar"), a_batch(6, image=True)
    _, expected = gradients(model, batch, LossConfig(), 6, mean=True)
    pieces = [gradients(model, piece, LossConfig(), 2, mean=True)[1] for piece in cut(batch, 2)]
    averages = [sum(parts) / len(parts) for parts in zip(*(piece for piece in pieces if piece), strict=True)]
    assert any((one - other).abs().max() > 1e-3 for one, other in zip(averages, expected, strict=True))


@pytest.mark.parametrize(
    "failure",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        MemoryError("no memory for star_backward in the native kernels"),
    ],
)
def test_halved_until_it_fits(failure: Exception, caplog: pytest.LogCaptureFixture) -> None:
    tried: list[int] = []

    def attempt(micro: int) -> Tally:
        tried.append(micro)
        if micro > 3:
            raise failure
        return Tally(1.0, 1.0, 1)

    with caplog.at_level("WARNING", logger="cropstar"):
        assert fit_into_memory(attempt, 20) == (Tally(1.0, 1.0, 1), 3)
    assert tried == [20, 10, 5, 3]
    assert [record.getMessage() for record in caplog.records] == [
        "out of memory with 20 samples at once: continuing with micro-batches of 3"
    ]


@pytest.mark.parametrize("text", ["MPS backend out of memory (MPS allocated: 9 GB)", "can't allocate memory: 8 bytes"])
def test_one_sample_that_does_not_fit_is_the_end(text: str) -> None:
    def attempt(micro: int) -> Tally:
        raise RuntimeError(text)

    with pytest.raises(ResourceError, match="smaller model"):
        fit_into_memory(attempt, 4)


def test_other_errors_pass() -> None:
    def attempt(micro: int) -> Tally:
        raise RuntimeError("shapes do not fit")

    with pytest.raises(RuntimeError, match="shapes"):
        fit_into_memory(attempt, 4)


def test_a_run_out_of_memory_ends_where_one_with_room_ends(
    small_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The fault: the model has no room for more than three patches. Batch statistics do not move by failed attempts."""
    config = tiny(small_store, epochs=1, **{"model.hidden": 4})
    roomy, _ = train(config, options(tmp_path / "roomy"))
    sizes: list[int] = []

    def cramped(*args: Any) -> Classifier:
        model = build_model(*args)
        forward = model.forward

        def refusing(x: torch.Tensor, valid: torch.Tensor, days: torch.Tensor) -> torch.Tensor:
            if torch.is_grad_enabled():
                sizes.append(len(x))
                if len(x) > 3:
                    raise torch.OutOfMemoryError("out of memory")
            return forward(x, valid, days)

        model.__dict__["forward"] = refusing
        return model

    monkeypatch.setattr(setup, "build_model", cramped)
    with caplog.at_level("WARNING", logger="cropstar"):
        run, _ = train(config, options(tmp_path / "cramped"))
    assert sum("out of memory" in record.getMessage() for record in caplog.records) == 1
    assert sizes[:2] == [8, 4]
    assert max(sizes[2:]) == 2  # remembered: nothing larger is tried again
    header, found = read_tensors(run.checkpoints()[0], "checkpoint")
    assert header["progress"]["micro_batch"] == 2
    _, expected = read_tensors(roomy.checkpoints()[0], "checkpoint")
    for name in (name for name in expected if name.startswith("model.")):
        # Adam divides by the gradient's size: rounding of the tiniest gradients is all that may differ.
        assert abs(found[name] - expected[name]).max() < 1e-4, name


# --- half precision and compiled models: what they change, and what they must not


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
    with precision.computing(model):
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


# --- the running mean of the weights against its definition, and through a killed run


def test_the_mean_is_what_it_says() -> None:
    """Statistics of batches are averaged as the weights are; a short past is not mixed with the beginning."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), MaskedBatchNorm(2))
    average = WeightAverage(model, keep=0.5)
    expected = {name: tensor.clone().double() for name, tensor in model.state_dict().items()}
    for step in range(1, 20):
        with torch.no_grad():
            for tensor in model.state_dict().values():
                tensor.normal_()
        average.update(step)
        keep = min(0.5, (1 + step) / (10 + step))
        expected = {
            name: keep * mean + (1 - keep) * model.state_dict()[name].double() for name, mean in expected.items()
        }
    trained = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with average.applied():
        for name, tensor in model.state_dict().items():
            torch.testing.assert_close(tensor.double(), expected[name], rtol=1e-5, atol=1e-6)
    assert all(torch.equal(tensor, trained[name]) for name, tensor in model.state_dict().items())


def test_the_weights_come_back_when_judging_fails() -> None:
    model = torch.nn.Linear(2, 2)
    average = WeightAverage(model, keep=0.9)
    with torch.no_grad():
        model.weight.add_(1)
    trained = model.weight.detach().clone()
    with pytest.raises(RuntimeError), average.applied():
        raise RuntimeError
    assert torch.equal(model.weight, trained)


@pytest.mark.parametrize("decoupled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_killed_run_goes_on_with_its_mean(decoupled: bool, small_store: Path, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"optimiser.decoupled": decoupled, "optimiser.weight_decay": 0.01}
    config = tiny(small_store, epochs=2, **{"optimiser.average": 0.9}, **changes)
    whole, _ = train(config, options(tmp_path / "whole"))
    plain, _ = train(tiny(small_store, epochs=2, **changes), options(tmp_path / "plain"))
    with watched_steps(cut_before(5)), pytest.raises(Cut):
        train(config, options(tmp_path / "killed", checkpoint_seconds=0.0))
    killed, _ = train(config, options(tmp_path / "killed"))
    assert killed.model.read_bytes() == whole.model.read_bytes()
    _, last = read_tensors(whole.checkpoints()[0], "checkpoint")
    _, same = read_tensors(plain.checkpoints()[0], "checkpoint")
    name = next(name for name in same if name.startswith("model.head"))
    assert np.array_equal(last[name], same[name]), "the mean is beside the training, not in it"
    assert not np.array_equal(last[name], last[name.replace("model.", "average.", 1)])


def test_decoupled_decay_leaves_biases_alone(small_store: Path, tmp_path: Path) -> None:
    """With a huge decay the matrices vanish; what has one axis is trained as without."""
    changes: dict[str, Any] = {"optimiser.weight_decay": 900.0, "optimiser.learning_rate": 1e-3, "epochs": 1}
    run, _ = train(tiny(small_store, **changes, **{"optimiser.decoupled": True}), options(tmp_path))
    _, tensors = read_tensors(run.checkpoints()[0], "checkpoint")
    weights = {name: array for name, array in tensors.items() if name.startswith("model.")}
    assert max(float(np.abs(array).max()) for array in weights.values() if array.ndim > 1) < 0.1
    assert max(float(np.abs(array).max()) for array in weights.values() if array.ndim == 1) > 0.3


# --- the learning rate is a plain function of the step


def test_constant_after_warmup() -> None:
    config = OptimiserConfig(learning_rate=0.01, schedule="constant", warmup=4)
    rates = [learning_rate(config, step, 100) for step in range(6)]
    assert rates == pytest.approx([0.0025, 0.005, 0.0075, 0.01, 0.01, 0.01])


def test_polynomial_falls_to_zero() -> None:
    config = OptimiserConfig(learning_rate=0.01, schedule="polynomial", warmup=0)
    rates = [learning_rate(config, step, 50) for step in range(50)]
    assert rates[0] == pytest.approx(0.01)
    assert all(earlier > later for earlier, later in pairwise(rates))
    assert 0 < rates[-1] < 0.0005


def test_cosine_is_half_at_the_middle_and_falls_to_zero() -> None:
    config = OptimiserConfig(learning_rate=0.01, schedule="cosine", warmup=0)
    rates = [learning_rate(config, step, 50) for step in range(50)]
    assert rates[0] == pytest.approx(0.01)
    assert rates[25] == pytest.approx(0.005)
    assert all(earlier > later for earlier, later in pairwise(rates))
    assert 0 < rates[-1] < 0.0001
