"""Batches of several sensors: changes leave flags alone, dropped sensors, regular dates by sensor."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cropstar.config import AugmentationConfig, RegularConfig
from cropstar.datasets.batches import Batch
from cropstar.datasets.transforms import Draw, SensorChannels, augment, count_regular, regularise
from cropstar.errors import UsageError
from cropstar.geo.calendar import Season

SENSORS = SensorChannels(("S2", "S1-ASC"), (2, 1))
SEASON = Season(1, 59)
CHANNELS = 2 + 1 + 1 + 2  # bands, context, flags


def a_batch(size: int | None = None) -> Batch:
    """Six dates of 2022, of the two sensors in turn; some hidden."""
    random = np.random.default_rng(0)
    place = () if size is None else (size, size)
    owners = np.array([0, 1, 0, 1, 1, 0])
    x = random.normal(size=(4, 6, CHANNELS, *place)).astype(np.float32)
    present = np.array([[1, 1, 0, 1, 1, 0], [0, 0, 1, 1, 0, 1]], dtype=np.float32)[owners]  # (T, channels)
    x[:, :, 4:] = 1
    x *= present.reshape(1, 6, CHANNELS, *(1,) * len(place))
    valid = random.random((4, 6, *place)) < 0.9
    valid[0] = np.asarray(owners == 0).reshape(6, *(1,) * len(place))  # radar saw nothing of the first
    days = np.broadcast_to(18_993 + np.array([2, 2, 20, 25, 31, 50], dtype=np.int32), (4, 6))
    whole = (x, valid, days.copy(), np.zeros((4, *place), dtype=np.int64), np.zeros((4, *place), dtype=np.int64))
    return Batch(*map(torch.from_numpy, whole))


@pytest.mark.parametrize("size", [None, 3])
def test_changes_leave_flags_and_the_other_sensor_alone(size: int | None) -> None:
    batch = a_batch(size)
    changed = augment(batch, AugmentationConfig(noise=0.5, scale=0.5), Draw(0, 0, range(4)), SENSORS)
    assert torch.equal(changed.x[:, :, 4:], batch.x[:, :, 4:])
    assert not changed.x[:, 1, :2].any()  # a radar date has no optical band
    assert not changed.x[:, 0, 2].any()
    assert not torch.equal(changed.x[:, :, :4], batch.x[:, :, :4])


@pytest.mark.parametrize("size", [None, 3])
def test_sensors_are_dropped_whole(size: int | None) -> None:
    batch = a_batch(size)
    lost = {0: 0, 1: 0}
    for epoch in range(40):
        hidden = augment(batch, AugmentationConfig(sensor_dropout=0.5), Draw(1, epoch, range(4)), SENSORS)
        assert torch.equal(hidden.valid[0], batch.valid[0]) or (hidden.valid[0] == batch.valid[0]).all()
        for sample in range(1, 4):
            for sensor, dates in ((0, [0, 2, 5]), (1, [1, 3, 4])):
                kept = torch.equal(hidden.valid[sample, dates], batch.valid[sample, dates])
                assert kept or not hidden.valid[sample, dates].any()
                lost[sensor] += not kept
        assert hidden.valid.flatten(1).any(dim=1).all()  # what only one sensor saw keeps it
    assert 15 < lost[0] < 45  # of 120 samples a quarter each
    assert 15 < lost[1] < 45


def test_regular_dates_by_sensor() -> None:
    batch = a_batch()
    config = RegularConfig(every={"S1": 30})
    x, valid, days = regularise(batch.x, batch.valid, batch.days, SEASON, config, SENSORS)
    assert x.shape[1] == 3 + 2 == count_regular(6, SEASON, config, SENSORS, (3, 3))
    assert (days.diff(dim=1) >= 0).all()
    flags = x[:, :, 4:]
    optical = flags[..., 0] > 0
    for sample in range(4):
        own = batch.x[sample, [0, 2, 5]][batch.valid[sample, [0, 2, 5]]]
        assert torch.equal(x[sample][valid[sample] & optical[sample]], own)  # as they are
        seen = [date for date in (1, 3) if batch.valid[sample, date]]  # the first thirty days
        radar = x[sample][~optical[sample] & valid[sample]]
        if seen:
            assert radar[0] == pytest.approx(batch.x[sample, seen].mean(dim=0).numpy(), abs=1e-6)
    alone = regularise(batch.x[1:2], batch.valid[1:2], batch.days[1:2], SEASON, config, SENSORS)
    assert torch.equal(alone[0][0], x[1])


def test_images_on_regular_dates() -> None:
    batch = a_batch(3)
    config = RegularConfig(every={"S1-ASC": 30})
    x, valid, _ = regularise(batch.x, batch.valid, batch.days, SEASON, config, SENSORS)
    one = regularise(batch.x[..., 1, 2], batch.valid[..., 1, 2], batch.days, SEASON, config, SENSORS)
    assert torch.equal(valid[..., 1, 2], one[1])
    masked = x[..., 1, 2] * one[1].unsqueeze(2)
    assert torch.allclose(masked, one[0] * one[1].unsqueeze(2))


def test_an_unknown_sensor() -> None:
    with pytest.raises(UsageError, match="no sensor 'S3'"):
        RegularConfig(every={"S3": 10}).by_sensor(("S2", "S1"))
    with pytest.raises(UsageError, match="without a name"):
        RegularConfig(every={"S1": 10}).by_sensor(())
    assert RegularConfig(every=10).by_sensor(("S2", "S1")) == (10, 10)


@pytest.mark.parametrize("size", [None, 3])
def test_sensors_of_one_day_are_joined(size: int | None) -> None:
    """Against a loop over days, samples and pixels: each sensor's own bands, the context, and who was there."""
    batch = a_batch(size)
    x, valid, days = regularise(batch.x, batch.valid, batch.days, SEASON, RegularConfig(join=True), SENSORS)
    assert x.shape[1] == 5  # two of the six dates are of one day
    assert days[0].tolist() == [18_993 + day for day in (2, 20, 25, 31, 50)]
    old, seen = (
        tensor.reshape(*tensor.shape[: tensor.dim() - 2 * (size is not None)], -1) for tensor in (batch.x, batch.valid)
    )
    new, clear = (tensor.reshape(*tensor.shape[: tensor.dim() - 2 * (size is not None)], -1) for tensor in (x, valid))
    for sample in range(4):
        for pixel in range(old.shape[-1]):
            for place, dates in enumerate(([0, 1], [2], [3], [4], [5])):
                own = [old[sample, date, :, pixel] for date in dates if seen[sample, date, pixel]]
                assert bool(clear[sample, place, pixel]) == bool(own)
                if own:
                    wanted = torch.stack(own).sum(dim=0)
                    wanted[3] = torch.stack(own)[:, 3].mean()  # context, which both have
                    assert torch.allclose(new[sample, place, :, pixel], wanted, atol=1e-6)
                else:
                    assert not new[sample, place, :, pixel].any()


def test_joined_days_of_a_sample_do_not_depend_on_the_others() -> None:
    batch = a_batch()
    longer = torch.arange(6, dtype=batch.days.dtype) + batch.days[0, 0]  # six days of its own
    days = torch.cat([longer[None], batch.days[1:]])
    together = regularise(batch.x, batch.valid, days, SEASON, RegularConfig(join=True), SENSORS)
    alone = regularise(batch.x[1:2], batch.valid[1:2], days[1:2], SEASON, RegularConfig(join=True), SENSORS)
    assert together[0].shape[1] == 6
    assert torch.equal(together[0][1, :5], alone[0][0])
    assert not together[1][1, 5]
    assert together[2][1, 5] == alone[2][0, -1]
