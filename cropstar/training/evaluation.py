"""Judging a model on one part of the split, pixel by pixel and parcel by parcel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cropstar.datasets.batch import Batch, Dataset
from cropstar.models.contract import Classifier
from cropstar.progress import track
from cropstar.store.classes import UNLABELLED
from cropstar.training.earliness import EarlinessTally
from cropstar.training.intervals import ParcelCounts, ParcelTally, bootstrap, count_parcels
from cropstar.training.metrics import Confusion, summary
from cropstar.training.score_sample import ScoreSample


@dataclass(frozen=True)
class Evaluation:
    """Confusion matrices, kept parcel by parcel: what is drawn anew for an interval is a parcel, not a pixel."""

    pixel_counts: ParcelCounts
    parcel_counts: ParcelCounts

    @property
    def pixel(self) -> Confusion:
        return self.pixel_counts.matrix()

    @property
    def parcel(self) -> Confusion:
        return self.parcel_counts.matrix()

    def to_json(self, seed: int = 0) -> dict[str, Any]:
        levels = {"pixel": self.pixel_counts, "parcel": self.parcel_counts}
        return {
            level: {**summary(counts.matrix()), "intervals": bootstrap(counts, seed=seed).to_json()}
            for level, counts in levels.items()
        }


@dataclass(frozen=True)
class Witness:
    """Who else looks at what a model says: a sample of its scores, and its answers date by date."""

    sample: ScoreSample
    earliness: EarlinessTally | None = None


@dataclass(frozen=True)
class Scored:
    """The labelled pixels of a batch, N of them: scores (N, K), labels, parcels and whether any date was valid (N,)."""

    scores: Tensor
    labels: Tensor
    parcels: Tensor
    seen: Tensor


def score(model: Classifier, batch: Batch, device: torch.device) -> Scored:
    """Run a model on a batch of patches: an image model on all of it, a series model on its labelled pixels."""
    if model.spatial:
        scores = model(batch.x.to(device), batch.valid.to(device), batch.days.to(device))  # (B,K,H,W)
        chosen = batch.labels != UNLABELLED  # (B,H,W)
        scores = scores.permute(0, 2, 3, 1)[chosen.to(device)]
        return Scored(scores, batch.labels[chosen], batch.parcels[chosen], batch.valid.any(dim=1)[chosen])
    series = batch.as_series()
    scores = model(series.x.to(device), series.valid.to(device), series.days.to(device))
    return Scored(scores, series.labels, series.parcels, series.valid.any(dim=1))


@torch.no_grad()
def evaluate(
    model: Classifier, dataset: Dataset, classes: int, device: torch.device, witness: Witness | None = None
) -> Evaluation:
    """A parcel's class is that of its pixels' mean probability. Pixels without any valid date do not count."""
    model.eval()
    tally = ParcelTally(classes)
    sums: dict[int, np.ndarray[Any, Any]] = {}
    truths: dict[int, int] = {}
    starts = range(0, len(dataset), dataset.batch_size)
    for start in track(starts, len(starts), f"evaluate on {dataset.part}", "batch"):
        batch = dataset.batch(list(range(start, min(start + dataset.batch_size, len(dataset)))))
        scored = score(model, batch, device)
        seen = scored.seen.numpy()
        scores = scored.scores.double().cpu()
        probabilities = nn.functional.softmax(scores, dim=1).numpy()[seen]
        labels, parcels = scored.labels.numpy()[seen], scored.parcels.numpy()[seen]
        tally.add(parcels, labels, probabilities.argmax(axis=1))
        for parcel in np.unique(parcels):
            inside = parcels == parcel
            sums[parcel] = sums.get(parcel, 0) + probabilities[inside].sum(axis=0)
            truths[parcel] = int(labels[inside][0])
        if witness is not None:
            witness.sample.add(scores.numpy()[seen], labels, parcels)
            if witness.earliness is not None:
                _add_dates(witness.earliness, model, batch, device)
    order = sorted(sums)
    predicted = np.array([int(sums[parcel].argmax()) for parcel in order], dtype=np.int64)
    truth = np.array([truths[parcel] for parcel in order], dtype=np.int64)
    return Evaluation(tally.counts(), count_parcels(np.array(order, dtype=np.int64), truth, predicted, classes))


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
