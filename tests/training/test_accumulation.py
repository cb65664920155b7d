"""A batch cut into micro-batches: the same gradient, and smaller ones where memory runs out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cropstar.config import LossConfig, ModelConfig
from cropstar.datasets.batches import Batch
from cropstar.errors import ResourceError
from cropstar.models.contract import Classifier, Shape
from cropstar.models.zoo import build_model
from cropstar.store.classes import UNLABELLED
from cropstar.store.model_file import read_tensors
from cropstar.training import train as training
from cropstar.training.losses import build_loss
from cropstar.training.optimisation import Engine, Precision, Tally, cut, fit_into_memory
from cropstar.training.train import train
from cropstar.training.trainer import Crops
from tests.training.test_train import options, tiny

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
        "out of memory with 20 samples at once: going on with micro-batches of 3"
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

    monkeypatch.setattr(training, "build_model", cramped)
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
