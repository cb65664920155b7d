"""Judging a model on one part of the split, pixel by pixel (or date by date) and parcel by parcel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cropstar.datasets.batches import Batch, Dataset
from cropstar.datasets.fields import Target
from cropstar.models.contract import Classifier
from cropstar.runtime import track
from cropstar.store.classes import UNLABELLED
from cropstar.training.earliness import EarlinessTally
from cropstar.training.intervals import ParcelCounts, ParcelTally, bootstrap, count_parcels
from cropstar.training.levels import Level, LevelCounts, LevelTally
from cropstar.training.metrics import Confusion, summary
from cropstar.training.score_sample import ScoreSample


@dataclass(frozen=True)
class Evaluation:
    """Confusion matrices, kept parcel by parcel: what is drawn anew for an interval is a parcel, not a pixel.

    `unit` is what the first of them counts: pixels, series (each a parcel), or the dates of series.
    """

    pixel_counts: ParcelCounts
    parcel_counts: ParcelCounts
    unit: Target = "pixel"
    levels: tuple[LevelCounts, ...] = ()  # the coarser ones, coarsest first
    loss: float | None = None  # mean cross-entropy of what the first counts; None where it is not finite

    @property
    def pixel(self) -> Confusion:
        return self.pixel_counts.matrix()

    @property
    def parcel(self) -> Confusion:
        return self.parcel_counts.matrix()

    def to_json(self, seed: int = 0) -> dict[str, Any]:
        levels = [
            {"name": own.level.name, "classes": list(own.level.classes)}
            | _figures(own.pixel_counts, own.parcel_counts, seed)
            for own in self.levels
        ]
        figures = _figures(self.pixel_counts, self.parcel_counts, seed)
        return {"unit": self.unit, **figures, **({"levels": levels} if levels else {})}


def _figures(pixel: ParcelCounts, parcel: ParcelCounts, seed: int) -> dict[str, Any]:
    return {
        kind: {**summary(counts.matrix()), "intervals": bootstrap(counts, seed=seed).to_json()}
        for kind, counts in (("pixel", pixel), ("parcel", parcel))
    }


@dataclass(frozen=True)
class Witness:
    """Who else looks at what a model says: a sample of its scores, and its answers date by date."""

    sample: ScoreSample
    earliness: EarlinessTally | None = None


@dataclass(frozen=True)
class Scored:
    """The labelled pixels, series or dates of a batch, N of them: scores (N, K), labels and parcels (N,).

    Seen (N,) are those of which any date was valid; of dates, those that were valid themselves.
    """

    scores: Tensor
    labels: Tensor
    parcels: Tensor
    seen: Tensor
    shows: Tensor | None = None  # (N,) of dates: those that bear the class of their whole parcel; None: all


def score(model: Classifier, batch: Batch, device: torch.device) -> Scored:
    """Run a model on a batch: an image model on whole patches, a series model on labelled pixels or on series.

    Of series with a label a date, the score of a date is what the model says after it. A date that is not valid leaves
    the model as it was: its label, be it cloud, is none that could be seen. Where clouds are classes, as in fieldRNN,
    the store has cloudy dates as valid ones.
    """
    if model.spatial:
        scores = model(batch.x.to(device), batch.valid.to(device), batch.days.to(device))  # (B,K,H,W)
        chosen = batch.labels != UNLABELLED  # (B,H,W)
        scores = scores.permute(0, 2, 3, 1)[chosen.to(device)]
        return Scored(scores, batch.labels[chosen], batch.parcels[chosen], batch.valid.any(dim=1)[chosen])
    series = batch.as_series()
    if series.is_dated:
        scores = model.by_date(series.x.to(device), series.valid.to(device), series.days.to(device))  # (B,T,K)
        chosen = series.labels != UNLABELLED  # (B,T)
        parcels = series.parcels[:, None].expand_as(series.labels)[chosen]
        scores, labels = scores[chosen.to(device)], series.labels[chosen]
        return Scored(scores, labels, parcels, series.valid[chosen], series.shows[chosen])
    scores = model(series.x.to(device), series.valid.to(device), series.days.to(device))
    return Scored(scores, series.labels, series.parcels, series.valid.any(dim=1))


@torch.no_grad()
def evaluate(
    model: Classifier,
    dataset: Dataset,
    classes: int,
    device: torch.device,
    witness: Witness | None = None,
    levels: Sequence[Level] = (),
) -> Evaluation:
    """A parcel's class is that of its pixels' mean probability. Pixels without any valid date do not count.

    Where dates have classes, a parcel has the one that the store gives the whole of it, and what is said of it is the
    mean over the valid dates that bear that class: clouds over a field neither help nor harm.
    """
    model.eval()
    unit: Target = "pixel"
    tally, coarser = ParcelTally(classes), [LevelTally(level) for level in levels]
    sums: dict[int, np.ndarray[Any, Any]] = {}
    truths: dict[int, int] = {}
    loss, count = 0.0, 0
    starts = range(0, len(dataset), dataset.batch_size)
    for start in track(starts, len(starts), f"evaluate on {dataset.part}", "batch"):
        batch = dataset.batch(list(range(start, min(start + dataset.batch_size, len(dataset)))))
        unit = "pixel" if batch.is_image else "date" if batch.is_dated else "parcel"
        scored = score(model, batch, device)
        seen = scored.seen.numpy()
        scores = scored.scores.double().cpu()
        probabilities = nn.functional.softmax(scores, dim=1).numpy()[seen]
        labels, parcels = scored.labels.numpy()[seen], scored.parcels.numpy()[seen]
        loss += float(nn.functional.cross_entropy(scores[scored.seen], scored.labels[scored.seen], reduction="sum"))
        count += len(labels)
        tally.add(parcels, labels, probabilities.argmax(axis=1))
        for own in coarser:
            own.add(parcels, labels, probabilities)
        shows = np.ones(len(labels), dtype=bool) if scored.shows is None else scored.shows.numpy()[seen]
        for parcel in np.unique(parcels[shows]):
            inside = (parcels == parcel) & shows
            sums[parcel] = sums.get(parcel, 0) + probabilities[inside].sum(axis=0)
            truths[parcel] = int(labels[inside][0])
        if witness is not None:
            witness.sample.add(scores.numpy()[seen], labels, parcels)
            if witness.earliness is not None and unit != "date":
                _add_dates(witness.earliness, model, batch, device)
    order = sorted(sums)
    numbers, truth = (np.array(each, dtype=np.int64) for each in (order, [truths[parcel] for parcel in order]))
    summed = np.array([sums[parcel] for parcel in order]).reshape(len(order), classes)
    whole = count_parcels(numbers, truth, summed.argmax(axis=1), classes)
    coarse = tuple(own.counts(numbers, truth, summed) for own in coarser)
    return Evaluation(tally.counts(), whole, unit, coarse, loss / count if count and math.isfinite(loss) else None)


def _add_dates(earliness: EarlinessTally, model: Classifier, batch: Batch, device: torch.device) -> None:
    """What the model says after each date, of every labelled pixel."""
    series = batch.as_series()
    if model.spatial:
        said = model.by_date(batch.x.to(device), batch.valid.to(device), batch.days.to(device)).argmax(dim=2)
        chosen = batch.labels != UNLABELLED  # (B,H,W)
        answers = said.cpu().permute(0, 2, 3, 1)[chosen]  # (N,T)
    else:
        scores = model.by_date(series.x.to(device), series.valid.to(device), series.days.to(device))
        answers = scores.argmax(dim=2).cpu()
    earliness.add(answers.numpy(), series.valid.numpy(), series.days.numpy(), series.labels.numpy())
