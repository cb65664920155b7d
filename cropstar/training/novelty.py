"""Learning what is ordinary: the statistics and limits behind the class *unknown* (`models/novelty.py`).

Class means and covariance come from training fields, the scale from fields that the model did not learn from: those of
validation or, with cross-fitting, those that each fold's model was trained without, by that model's own statistics.
Distances are free of a feature's unit, so the scale of the folds' models serves the one that learnt from all fields.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cropstar.datasets.batches import Batch, Dataset
from cropstar.geo.calendar import Season, season_days
from cropstar.models.calibration import parcel_weights, softmax
from cropstar.models.contract import Classifier
from cropstar.models.novelty import (
    HIDDEN,
    LEVELS,
    RATES,
    Calendars,
    ClassDistances,
    Floats,
    NoveltyScale,
    NoveltyStage,
    features_of_series,
    features_of_state,
    has_features,
)
from cropstar.runtime import track
from cropstar.store.classes import UNLABELLED
from cropstar.store.store import Store
from cropstar.training.accuracy import dates_in_season
from cropstar.training.metrics import ScoreSample

SHRINKAGE = 0.1  # of the covariance towards a round one
MOST_PIXELS = 100_000  # that means and covariances are taken from
FEW_PIXELS = 16  # of a parcel, in a batch, whose dates are hidden
SAMPLES = 512  # pixels or series that are read at once: the small batches of a training would cost more calls than work
MOST_DIRECTIONS = 256  # of the features, those of the largest variance
MOST_CALENDARS = 64  # fields whose dates are kept


def supports_novelty(model: Classifier, dataset: Dataset) -> bool:
    """Whether novelty can be measured: the model has features, and labels are of whole samples, not of dates."""
    return bool(has_features(model) and len(dataset) and not dataset.batch([0]).is_dated)


@dataclass(frozen=True)
class Stages:
    """The days of a season, from its start, that have statistics of their own."""

    season: Season
    days: tuple[int, ...]

    @classmethod
    def of(cls, model: Classifier, store: Store) -> Stages:
        """The dates of the store: a state after eight of them is unlike one after seven, even a day later.

        Of very many dates, as of many scenes, some ten days apart; of models of a whole season its last day alone.
        """
        season = store.fingerprint.season
        return cls(season, dates_in_season(store) if model.streaming else (season.length,))


def learn_distances(
    model: Classifier, training: Dataset, stages: Stages, classes: int, device: torch.device
) -> tuple[ClassDistances, ...]:
    """The statistics of each stage, from training samples."""
    tallies = [_FeatureTally(classes) for _ in stages.days]
    order = np.random.default_rng([0, len(training)]).permutation(len(training)).tolist()
    counted = 0
    for batch in all_batches(training, order):
        for stage, seen in features_by_stage(model, batch, stages, device):
            tallies[stage].add(seen)
        counted += int((batch.labels != UNLABELLED).sum())
        if counted >= MOST_PIXELS:
            break
    whole = tallies[-1].distances()
    return tuple(tally.distances() if tally.count > 1 else whole for tally in tallies)


def calendars_of(store: Store) -> Calendars:
    """The dates of some images or series, from the start of the season: of each year and orbit they are others."""
    counts = [len(reader.images) or len(reader.starts) - 1 for reader in store.tiles]
    drawn = np.random.default_rng(0).permutation(sum(counts))[:MOST_CALENDARS]
    season, found = store.fingerprint.season, Counter[tuple[int, ...]]()
    for reader, end, count in zip(store.tiles, np.cumsum(counts), counts, strict=True):
        for own in (drawn[(drawn >= end - count) & (drawn < end)] - (end - count)).tolist():
            image = reader.images[own] if reader.images else None
            days = image.days if image else reader.days[reader.starts[own] : reader.starts[own + 1]]
            within = season_days(days[None], season)[0] if len(days) else days
            found[tuple(int(day) for day in np.unique(within) if 0 <= day <= season.length)] += 1
    return tuple(sorted(found.items()))


class HeldOutFeatures:
    """Collects scores and distances of fields that the model was not trained on.

    Also with a share of their dates hidden, as of maps that lack some.
    """

    def __init__(self, classes: int, stages: Stages, device: torch.device, *, doubts: bool = True) -> None:
        """Without `doubts` the distance alone decides: of trees, which learn from validation fields too."""
        self._samples = {share: [ScoreSample(classes + 1) for _ in stages.days] for share in (0.0, *HIDDEN)}
        self._stages, self._device, self._doubts = stages, device, doubts

    def add(self, model: Classifier, distances: Sequence[ClassDistances], held_out: Dataset) -> None:
        random = np.random.default_rng(len(held_out))
        for batch in all_batches(held_out, list(range(len(held_out)))):
            few = batch if model.spatial else _some_of_each_parcel(batch.as_series(), random)
            for share, samples in self._samples.items():
                read = few if share else batch
                for stage, seen in features_by_stage(model, read, self._stages, self._device, share, random):
                    own = distances[stage].of([seen.features]).cpu().numpy()
                    samples[stage].add(np.column_stack([seen.scores, own]), seen.labels, seen.parcels)

    def scale(
        self, temperature: float, distances: tuple[ClassDistances, ...], calendars: Calendars = ()
    ) -> NoveltyScale | None:
        """The scale and its limits; None without any held-out sample."""
        *_, parcels = self._samples[0.0][-1].arrays()
        fields = len(np.unique(parcels))
        if not fields:
            return None
        found = {
            share: self._scales(samples, temperature)
            for share, samples in self._samples.items()
            if samples[-1].held  # of few fields all that was seen may be hidden
        }
        return NoveltyScale(self._stages.days, fields, found.pop(0.0), distances, found, calendars)

    def _scales(self, samples: Sequence[ScoreSample], temperature: float) -> tuple[NoveltyStage, ...]:
        stages = []
        for sample in samples:
            columns, _, parcels = sample.arrays()
            if not len(parcels):  # nothing was seen by that day
                columns, _, parcels = samples[-1].arrays()
            stages.append(_stage(columns, parcels, temperature, doubts=self._doubts))
        return tuple(stages)


def _stage(columns: NDArray[Any], parcels: NDArray[Any], temperature: float, *, doubts: bool) -> NoveltyStage:
    distance = columns[:, -1].astype(np.float64)
    doubt = 1.0 - softmax(columns[:, :-1], temperature).max(axis=1) if doubts else np.ones(len(distance))
    far, unsure = (_knots(each, parcel_weights(parcels)) for each in (distance, doubt))
    stage = NoveltyStage(far, unsure, (None,) * len(RATES))
    return NoveltyStage(far, unsure, conformal_limits(stage.oddness(distance, np.where(doubts, doubt, 0)), parcels))


def _knots(values: Floats, weights: Floats) -> tuple[float, ...]:
    return tuple(float(each) for each in np.quantile(values, LEVELS, weights=weights, method="inverted_cdf"))


def conformal_limits(oddness: Floats, parcels: NDArray[Any]) -> tuple[float | None, ...]:
    """For each rate the oddness that at most that share of a new field's pixels exceeds; see `learn_sets`."""
    count = len(np.unique(parcels))
    order = np.argsort(oddness, kind="stable")
    reached = np.cumsum(parcel_weights(parcels)[order]) / (count + 1)
    places = np.searchsorted(reached, 1 - np.array(RATES) - 1e-12)
    return tuple(float(oddness[order][place]) if place < len(order) else None for place in places)


# --- features of labelled samples, stage by stage


@dataclass(frozen=True)
class LabelledFeatures:
    """Labelled samples at one stage: features (N, D), scores (N, K), labels and parcels (N,)."""

    features: Tensor
    scores: NDArray[Any]
    labels: NDArray[Any]
    parcels: NDArray[Any]


class _FeatureTally:
    """Sums of features, from which class means and the covariance within classes follow."""

    def __init__(self, classes: int) -> None:
        self._counts = np.zeros(classes)
        self._sums: Floats | None = None
        self._squares: Floats | None = None

    @property
    def count(self) -> int:
        return int(self._counts.sum())

    def add(self, seen: LabelledFeatures) -> None:
        features = seen.features.double().cpu().numpy()
        if self._sums is None or self._squares is None:
            width = features.shape[1]
            self._sums, self._squares = np.zeros((len(self._counts), width)), np.zeros((width, width))
        self._sums += np.eye(len(self._counts))[seen.labels].T @ features
        self._counts += np.bincount(seen.labels, minlength=len(self._counts))
        self._squares += features.T @ features

    def distances(self) -> ClassDistances:
        assert self._sums is not None
        assert self._squares is not None
        present = self._counts > 0
        counts, sums = self._counts[present], self._sums[present]
        means = sums / counts[:, None]
        total = counts.sum()
        within = (self._squares - (means * counts[:, None]).T @ means) / total
        within = (within + within.T) / 2
        width = len(within)
        spread = max(float(np.trace(within)) / width, 1e-12)
        values, directions = np.linalg.eigh((1 - SHRINKAGE) * within + SHRINKAGE * spread * np.eye(width))
        kept = np.argsort(-values)[:MOST_DIRECTIONS]
        whitening = directions[:, kept].T / np.sqrt(np.maximum(values[kept], 1e-12))[:, None]
        return ClassDistances(means @ whitening.T, whitening)


def all_batches(dataset: Dataset, order: list[int]) -> Iterator[Batch]:
    pixels = dataset.batch(order[:1]).labels.numel() if order else 1
    size = max(dataset.batch_size, SAMPLES // pixels)
    starts = range(0, len(order), size)
    for start in track(starts, len(starts), f"statistics of {dataset.part}", "batch"):
        yield dataset.batch(order[start : start + size])


@torch.no_grad()
def features_by_stage(
    model: Classifier,
    batch: Batch,
    stages: Stages,
    device: torch.device,
    hidden: float = 0.0,
    random: np.random.Generator | None = None,
) -> Iterator[tuple[int, LabelledFeatures]]:
    """The features of a batch by the day of each stage.

    `hidden` is the share of the dates that are drawn and left out. Of models that stream these are before that day, and
    the day's own date is not among them: a map stands at a date that it has an image of.
    """
    model.eval()
    days, season = stages.days, stages.season
    random = random or np.random.default_rng(0)
    batch = batch if model.spatial else batch.as_series()
    x, valid, dates = (each.to(device) for each in (batch.x, batch.valid, batch.days))
    if not model.streaming:
        if hidden:
            shown = random.random(tuple(batch.days.shape)) >= hidden
            batch = replace(batch, valid=batch.valid & _broadcast(shown, batch.valid))
            valid = batch.valid.to(device)
        seen = _labelled(*features_of_series(model, x, valid, dates), batch, batch.valid.any(dim=1))
        if seen is not None:
            yield 0, seen
        return
    offsets = np.minimum(season_days(batch.days.numpy(), season), season.length)  # (B, T)
    newest = np.stack([(offsets <= day).sum(axis=1) - 1 for day in days])  # (stages, B): the last date by then
    state = None
    clear = torch.zeros_like(batch.valid[:, 0])
    for t in range(x.shape[1]):
        image = x[:, t].contiguous()
        reached = np.flatnonzero((newest == t).any(axis=1)).tolist()
        if reached or not hidden:
            whole = model.step(image, valid[:, t], dates[:, t], state)
        if reached:
            features = features_of_state(model, whole)
        for stage in reached:
            ends_here = _broadcast(newest[stage] == t, clear)
            seen = _labelled(*features, batch, (clear | batch.valid[:, t]) & ends_here)
            if seen is not None:
                yield stage, seen
        if not hidden:
            state, clear = whole, clear | batch.valid[:, t]
            continue
        kept = _broadcast(random.random(len(image)) >= hidden, clear)
        state = model.step(image, valid[:, t] & kept.to(device), dates[:, t], state)
        clear = clear | (batch.valid[:, t] & kept)


def _some_of_each_parcel(series: Batch, random: np.random.Generator) -> Batch:
    """At most `FEW_PIXELS` series of each parcel: enough for a scale, which gives every parcel the same weight."""
    parcels = series.parcels.numpy()
    order = np.lexsort((random.random(len(parcels)), parcels))
    _, starts, counts = np.unique(parcels[order], return_index=True, return_counts=True)
    ranks = np.arange(len(parcels)) - np.repeat(starts, counts)
    rows = torch.from_numpy(np.sort(order[ranks < FEW_PIXELS]))
    return Batch(*(each[rows] for each in (series.x, series.valid, series.days, series.labels, series.parcels)))


def _broadcast(flags: NDArray[np.bool_], like: Tensor) -> Tensor:
    """Flags (B,) or (B, T) in the shape of something (B, ...) or (B, T, ...)."""
    return torch.from_numpy(flags).reshape(*flags.shape, *(1,) * (like.dim() - flags.ndim))


def _labelled(scores: Tensor, features: list[Tensor], batch: Batch, seen: Tensor) -> LabelledFeatures | None:
    """The features of labelled samples (B, ...) that were seen (B, ...); None if there are none."""
    chosen = (batch.labels != UNLABELLED) & seen
    if not chosen.any():
        return None
    where = chosen.to(scores.device)
    picked = torch.cat([part.movedim(1, -1)[where] for part in features], dim=1)
    own = scores.movedim(1, -1)[where].double().cpu().numpy()
    return LabelledFeatures(picked, own, batch.labels[chosen].numpy(), batch.parcels[chosen].numpy())
