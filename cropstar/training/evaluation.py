"""Judging a model on one part of the split, pixel by pixel and parcel by parcel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from cropstar.datasets.patches import Batch, PatchDataset
from cropstar.models.classifier import RecurrentClassifier
from cropstar.progress import track
from cropstar.store.classes import UNLABELLED
from cropstar.training.metrics import Confusion, confusion, summary


@dataclass(frozen=True)
class Evaluation:
    pixel: Confusion
    parcel: Confusion

    def to_json(self) -> dict[str, Any]:
        return {"pixel": summary(self.pixel), "parcel": summary(self.parcel)}


def scores_and_labels(model: RecurrentClassifier, batch: Batch, device: torch.device) -> tuple[torch.Tensor, Batch]:
    """Scores (N, K) and the batch of the N labelled pixels, for image and series models alike."""
    series = batch.as_series()
    if not model.spatial:
        inputs = (series.x.to(device), series.valid.to(device), series.days.to(device))
        return model(*inputs), series
    scores = model(batch.x.to(device), batch.valid.to(device), batch.days.to(device))  # (B,K,H,W)
    chosen = (batch.labels != UNLABELLED).to(device)
    return scores.permute(0, 2, 3, 1)[chosen], series


@torch.no_grad()
def evaluate(
    model: RecurrentClassifier, dataset: PatchDataset, classes: int, batch_size: int, device: torch.device
) -> Evaluation:
    """A parcel's class is that of its pixels' mean probability. Pixels without any valid date do not count."""
    model.eval()
    pixel = np.zeros((classes, classes), dtype=np.int64)
    sums: dict[int, np.ndarray[Any, Any]] = {}
    truths: dict[int, int] = {}
    starts = range(0, len(dataset), batch_size)
    for start in track(starts, len(starts), f"evaluate on {dataset.part}", "batch"):
        batch = dataset.batch(list(range(start, min(start + batch_size, len(dataset)))))
        scores, series = scores_and_labels(model, batch, device)
        seen = series.valid.any(dim=1).numpy()
        probabilities = nn.functional.softmax(scores.double(), dim=1).cpu().numpy()[seen]
        labels, parcels = series.labels.numpy()[seen], series.parcels.numpy()[seen]
        pixel += confusion(labels, probabilities.argmax(axis=1), classes)
        for parcel in np.unique(parcels):
            inside = parcels == parcel
            sums[parcel] = sums.get(parcel, 0) + probabilities[inside].sum(axis=0)
            truths[parcel] = int(labels[inside][0])
    order = sorted(sums)
    predicted = np.array([int(sums[parcel].argmax()) for parcel in order], dtype=np.int64)
    truth = np.array([truths[parcel] for parcel in order], dtype=np.int64)
    return Evaluation(pixel, confusion(truth, predicted, classes))
