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
from cropstar.training.metrics import Confusion, confusion, summary


@dataclass(frozen=True)
class Evaluation:
    pixel: Confusion
    parcel: Confusion

    def to_json(self) -> dict[str, Any]:
        return {"pixel": summary(self.pixel), "parcel": summary(self.parcel)}


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
def evaluate(model: Classifier, dataset: Dataset, classes: int, device: torch.device) -> Evaluation:
    """A parcel's class is that of its pixels' mean probability. Pixels without any valid date do not count."""
    model.eval()
    pixel = np.zeros((classes, classes), dtype=np.int64)
    sums: dict[int, np.ndarray[Any, Any]] = {}
    truths: dict[int, int] = {}
    starts = range(0, len(dataset), dataset.batch_size)
    for start in track(starts, len(starts), f"evaluate on {dataset.part}", "batch"):
        batch = dataset.batch(list(range(start, min(start + dataset.batch_size, len(dataset)))))
        scored = score(model, batch, device)
        seen = scored.seen.numpy()
        probabilities = nn.functional.softmax(scored.scores.double(), dim=1).cpu().numpy()[seen]
        labels, parcels = scored.labels.numpy()[seen], scored.parcels.numpy()[seen]
        pixel += confusion(labels, probabilities.argmax(axis=1), classes)
        for parcel in np.unique(parcels):
            inside = parcels == parcel
            sums[parcel] = sums.get(parcel, 0) + probabilities[inside].sum(axis=0)
            truths[parcel] = int(labels[inside][0])
    order = sorted(sums)
    predicted = np.array([int(sums[parcel].argmax()) for parcel in order], dtype=np.int64)
    truth = np.array([truths[parcel] for parcel in order], dtype=np.int64)
    return Evaluation(pixel, confusion(truth, predicted, classes))
