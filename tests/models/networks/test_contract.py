"""The contract of a model, for every network that is not recurrent."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch import Tensor

from cropstar.config import ModelConfig
from cropstar.errors import UsageError
from cropstar.models.contract import NETWORKS, Shape
from tests.models.networks.building import CLASSES, LENGTH, NAMES, inputs, make

every = pytest.mark.parametrize("name", NAMES)


def close(first: Tensor, second: Tensor) -> None:
    torch.testing.assert_close(first, second, rtol=0, atol=1e-12)


def test_all_of_them_are_registered() -> None:
    assert set(NAMES) <= set(NETWORKS)


@every
@pytest.mark.parametrize(
    ("batch", "length", "hidden", "layers"), [(3, 9, 8, 3), (1, 1, 1, 1), (1, 3, 5, 2), (2, 30, 6, 7), (0, 4, 4, 1)]
)
def test_shapes_down_to_one(name: str, batch: int, length: int, hidden: int, layers: int) -> None:
    model = make(name, hidden=hidden, layers=layers)
    scores = model(*inputs(batch=batch, length=length))
    assert scores.shape == (batch, CLASSES)
    assert scores.isfinite().all()
    assert not model.spatial
    assert not model.streaming
    assert model.radius(length) == 0


@every
def test_one_band_is_enough(name: str) -> None:
    model = make(name, bands=1, day_encoding="none")
    x, valid, days = inputs(bands=1)
    assert (model(x, valid, days) != model(x.square(), valid, days)).any()


@every
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("rubbish", [0.0, 1e6, float("nan"), float("inf")])
def test_what_lies_under_the_mask_does_not_matter(name: str, rubbish: float, training: bool) -> None:
    x, valid, days = inputs()
    spoilt = torch.where(valid.unsqueeze(2), x, torch.full_like(x, rubbish))
    days = days.double()
    spoilt_days = torch.where(valid, days, torch.full_like(days, rubbish))
    models = [make(name).train(training) for _ in range(2)]
    assert torch.equal(models[0](x, valid, days), models[1](spoilt, valid, spoilt_days))
    for mine, other in zip(models[0].buffers(), models[1].buffers(), strict=True):
        assert torch.equal(mine, other)  # statistics of batch normalisation


@every
def test_gradients_are_finite_whatever_lies_under_the_mask(name: str) -> None:
    model = make(name)
    x, valid, days = inputs()
    valid[1] = False
    model(torch.where(valid.unsqueeze(2), x, torch.full_like(x, torch.nan)), valid, days).sum().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())


@every
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("more", [1, 5])
def test_padding_with_invalid_dates_never_changes_a_result(name: str, more: int, training: bool) -> None:
    x, valid, days = inputs()
    padded = (
        torch.cat([x, torch.ones_like(x[:, :more])], dim=1),
        torch.cat([valid, torch.zeros_like(valid[:, :more])], dim=1),
        torch.cat([days, days[:, -1:].expand(-1, more)], dim=1),
    )
    close(make(name).train(training)(*padded), make(name).train(training)(x, valid, days))


@every
@settings(max_examples=15, deadline=None)
@given(masks=some.lists(some.lists(some.booleans(), min_size=7, max_size=7), min_size=1, max_size=4))
def test_a_masked_series_is_the_series_of_its_valid_dates(name: str, masks: list[list[bool]]) -> None:
    """In any company: the others of the batch may be longer."""
    model = make(name)
    x, _, days = inputs(batch=len(masks), length=7)
    valid = torch.tensor(masks)
    together = model(x, valid, days)
    for sample, mask in enumerate(valid):
        if mask.any():
            alone = (x[sample, mask][None], mask[mask][None], days[sample, mask][None])
            close(together[sample : sample + 1], model(*alone))


@every
def test_order_in_the_batch_does_not_matter(name: str) -> None:
    model = make(name)
    x, valid, days = inputs(batch=5)
    order = torch.tensor([3, 0, 4, 1, 2])
    close(model(x, valid, days)[order], model(x[order], valid[order], days[order]))


@every
@pytest.mark.parametrize("training", [False, True])
def test_a_series_without_any_valid_date_has_finite_scores(name: str, training: bool) -> None:
    model = make(name).train(training)
    x, valid, days = inputs()
    valid[1:] = False
    assert model(torch.full_like(x, torch.nan), torch.zeros_like(valid), days).isfinite().all()
    assert model(x, valid, days).isfinite().all()


@every
def test_a_series_without_any_valid_date_changes_nothing_for_others_in_training(name: str) -> None:
    """The statistics of batch normalisation are those of observations."""
    x, valid, days = inputs(batch=5)
    valid[:4, 0], valid[4] = True, False
    models = [make(name).train() for _ in range(2)]
    close(models[0](x, valid, days)[:4], models[1](x[:4], valid[:4], days[:4]))
    for mine, other in zip(models[0].buffers(), models[1].buffers(), strict=True):
        close(mine, other)


@every
@pytest.mark.parametrize("encoding", ["none", "sincos"])
def test_every_parameter_learns(name: str, encoding: str) -> None:
    model = make(name, day_encoding=encoding, hidden=16)
    model(*inputs(batch=20)).square().sum().backward()
    still = [
        label for label, parameter in model.named_parameters() if parameter.grad is None or not parameter.grad.any()
    ]
    assert still == []


@every
def test_layers_have_their_own_parameters(name: str) -> None:
    addresses = [parameter.data_ptr() for parameter in make(name, layers=4).parameters()]
    assert len(set(addresses)) == len(addresses)


@every
def test_the_date_matters_only_where_it_is_encoded(name: str) -> None:
    for encoding, differs in (("none", False), ("sincos", True)):
        model = make(name, day_encoding=encoding)
        x, valid, days = inputs()
        assert bool((model(x, valid, days) != model(x, valid, days + 90)).any()) is differs


@every
def test_the_order_of_observations_always_matters(name: str) -> None:
    model = make(name, day_encoding="none")
    x, valid, days = inputs(share=1.1)
    assert (model(x, valid, days) - model(x.flip(1), valid, days)).abs().max() > 1e-6


@every
def test_the_same_season_a_year_later_looks_the_same(name: str) -> None:
    model = make(name)
    x, valid, days = inputs()
    torch.testing.assert_close(model(x, valid, days), model(x, valid, days + 4 * 365 + 1), rtol=0, atol=1e-9)


@every
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_dropout_is_for_training_alone(name: str, dropout: float) -> None:
    model = make(name, dropout=dropout, hidden=16)
    given_inputs = inputs()
    assert torch.equal(model(*given_inputs), model(*given_inputs))
    model.train()
    assert torch.equal(model(*given_inputs), model(*given_inputs)) is (dropout == 0)


@every
def test_it_can_learn_series_by_heart(name: str) -> None:
    model = make(name, hidden=32, layers=2).float()
    x, valid, days = inputs(batch=32, length=12)
    x = x.float()
    labels = torch.arange(32) % CLASSES
    valid[:, 0] = True  # each series has something to be known by
    optimiser = torch.optim.Adam(model.parameters(), lr=0.003)
    model.train()
    for _ in range(80):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(x, valid, days), labels).backward()
        optimiser.step()
    accuracy = (model.eval()(x, valid, days).argmax(dim=1) == labels).double().mean()
    assert accuracy > 0.95


@every
@pytest.mark.parametrize("setting", [{"normalise": True}, {"memory": 9.0}, {"revisit": 5.0}, {"variant": "janet"}])
def test_settings_of_other_models_are_refused(name: str, setting: dict[str, object]) -> None:
    config = ModelConfig.model_validate({"name": name, **setting})
    with pytest.raises(UsageError, match=f"'{name}' does not use model.{next(iter(setting))}"):
        NETWORKS[name](config, Shape(4, CLASSES, LENGTH))


def test_only_the_causal_network_can_choose_its_pool() -> None:
    for name in NAMES:
        config = ModelConfig(name=name, pool="mean", hidden=8)
        if name == "tcn":
            assert NETWORKS[name](config, Shape(4, CLASSES, LENGTH))
        else:
            with pytest.raises(UsageError, match=r"model\.pool"):
                NETWORKS[name](config, Shape(4, CLASSES, LENGTH))
