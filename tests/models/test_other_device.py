"""Every model on a second device, without one: tensors of the device `meta` have a shape, a type and no numbers.

A tensor left on the processor, a number that is asked for (which makes a processor wait for a GPU) and a float64 that
slips in are errors there.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cropstar.config import ModelConfig
from cropstar.errors import UsageError
from cropstar.models import encoding
from cropstar.models.contract import Classifier, Shape
from cropstar.models.zoo import build_model, known_models

META = torch.device("meta")
SHAPE = Shape(bands=3, classes=4, length=5, season=(60, 200))
SETTINGS: dict[str, dict[str, object]] = {
    "plain": {},
    "mean": {"pool": "mean", "normalise": True, "dropout": 0.1},
    "season": {"pool": "season", "bins": 4, "dense": 8, "normalise": True, "stem": 1},
}
FITTED = ("rf", "hgb")
MODELS = ["star", "bistar", "convstar", "gru", "tempcnn", "tcn", "transformer", "ltae", "inceptiontime"]


def build(name: str, settings: str, device: torch.device = META) -> Classifier:
    torch.manual_seed(0)
    config = ModelConfig.model_validate({"name": name, "layers": 2, "hidden": 8, **SETTINGS[settings]})
    try:
        return build_model(config, SHAPE).to(device)
    except UsageError as refusal:
        pytest.skip(str(refusal))


def season(model: Classifier, device: torch.device = META) -> tuple[Tensor, Tensor, Tensor]:
    space = (6, 6) if model.spatial else ()
    x, days = torch.randn(3, 5, 3, *space), (19_800 + 20 * torch.arange(5)).expand(3, 5)
    return x.to(device), (torch.rand(3, 5, *space) > 0.5).to(device), days.to(device)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", [name for name in known_models() if name not in FITTED])
def test_training_prediction_and_steps(name: str, settings: str) -> None:
    model = build(name, settings)
    inputs = season(model)
    scores = model.train()(*inputs)
    assert (scores.device, scores.dtype) == (META, torch.float32)
    scores.sum().backward()
    assert all(part.grad is not None and part.grad.device == META for part in model.parameters() if part.requires_grad)
    model.eval()
    with torch.inference_mode():
        assert model(*inputs).device == META
        if model.streaming:
            state = model.advance(*inputs)
            x, valid, days = (part[:, :1] for part in inputs)
            state = model.advance(x, valid, days, state)
            assert model.classify(state).dtype == torch.float32


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize(
    "name", ["star", "bistar", "convstar", "gru", "tempcnn", "tcn", "transformer", "ltae", "inceptiontime"]
)
def test_results_do_not_depend_on_what_is_known_of_a_mask(
    name: str, settings: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU is not asked about its masks, and goes the general way: here a processor does, with the same numbers."""
    cpu = torch.device("cpu")
    model = build(name, settings, cpu)
    inputs = season(model, cpu)
    found = []
    for known in (True, False):
        monkeypatch.setattr(encoding, "_on_host", lambda _, known=known: known)
        torch.manual_seed(1)
        model.load_state_dict(build(name, settings, cpu).state_dict())
        found.append([model.eval()(*inputs)])
        if "dropout" not in SETTINGS[settings]:  # whose random numbers depend on the length
            found[-1].append(model.train()(*inputs))
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, atol=1e-5)
