"""A student that learns from a teacher: `cropstar train --distil RUN`.

The teacher, any finished model or ensemble, is asked once about every training sample as it is, before anything is
changed at random; its calibrated probabilities go with the sample, and the student minimises `losses.Distillation`.
Pixels and series without a label in the store are learnt from too. Fields of validation and test never are: neither
their labels nor what the teacher says of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cropstar.config import AugmentationConfig, RegularConfig, TrainConfig
from cropstar.datasets.batches import Batch
from cropstar.datasets.fields import choose_target
from cropstar.datasets.samples import PatchDataset, Prepared, open_parts
from cropstar.datasets.splits import Split
from cropstar.datasets.transforms import Draw, augment
from cropstar.errors import ArtifactError, MismatchError, UsageError
from cropstar.models.backends import use_backend
from cropstar.models.contract import Classifier
from cropstar.runtime import logger, track
from cropstar.store.classes import UNLABELLED
from cropstar.store.store import Store
from cropstar.training.evaluate import EvaluatedModel, open_evaluated, seen_in_training

SERIES_AT_ONCE = 8192


class TaughtSamples(Prepared):
    """Training samples with the teacher's probabilities, (K[, H, W]) each."""

    def __init__(self, prepared: Prepared, answers: Sequence[Tensor]) -> None:
        super().__init__(prepared.samples, prepared.season, prepared.regular, prepared.sensors)
        self._answers = answers

    def augmented(self, indexes: list[int], config: AugmentationConfig, draw: Draw) -> Batch:
        batch = self.samples.batch(indexes)
        taught = torch.stack([self._answers[index] for index in indexes])
        return self.on_regular_dates(augment(replace(batch, taught=taught), config, draw, self.sensors))


def forward_distilled(model: Classifier, batch: Batch, device: torch.device) -> tuple[Tensor, Tensor]:
    """Scores and targets, as `Distillation` takes them, of all pixels or series with a label or a teacher's answer."""
    taught = batch.taught
    chosen = ((batch.labels != UNLABELLED) | taught[:, 0].isfinite()) & batch.valid.any(dim=1)
    targets = torch.cat([batch.labels.to(taught.dtype).unsqueeze(1), taught], dim=1)
    x, valid, days = batch.x, batch.valid, batch.days
    if batch.is_image:
        targets = targets.permute(0, 2, 3, 1)
    if batch.is_image and not model.spatial:  # every chosen pixel as a series of its own
        counts = chosen.flatten(1).sum(dim=1)
        x, valid = x.permute(0, 3, 4, 1, 2)[chosen], valid.permute(0, 2, 3, 1)[chosen]
        days = days.repeat_interleave(counts, dim=0)
    scores = model(x.to(device), valid.to(device), days.to(device))
    if model.spatial:
        scores = scores.permute(0, 2, 3, 1)[chosen.to(device)]
    elif not batch.is_image:
        scores = scores[chosen.to(device)]
    return scores, targets[chosen].to(device)


class Teacher:
    """A finished model, checked against the store and the split of its student."""

    def __init__(self, path: Path, store: Store, split: Split, config: TrainConfig, device: torch.device) -> None:
        self._subject = open_evaluated(path, store.folder)
        self._store, self._device = store, device
        self._order = _require_fits(self._subject, store, config)
        _require_unseen(self._subject, store, split)
        bands = store.fingerprint.channels
        self._model, _ = use_backend(self._subject.model.to(device).eval(), "auto", device, bands=bands)
        self._temperature = _temperature(self._subject)
        self.digest = self._subject.digest

    def facts(self) -> dict[str, Any]:
        """The facts for the model file and the report."""
        return {"teacher": str(self._subject.card.model["name"]), "digest": self.digest}

    def teach(self, prepared: Prepared, split: Split, config: TrainConfig) -> TaughtSamples:
        """The training samples with the teacher's answers; it reads them by its own normalisation and dates."""
        card = self._subject.card
        regular = RegularConfig.model_validate(card.provenance.get("regular", {}))
        spatial = self._model.spatial
        parts, _ = open_parts(
            self._store, split, config, spatial=spatial, regular=regular, normalisation=card.normalisation
        )
        own = parts["train"]
        answers: list[Tensor] = []
        starts = range(0, len(own), own.batch_size)
        for start in track(starts, len(starts), "predictions of the teacher", "batch"):
            indexes = list(range(start, min(start + own.batch_size, len(own))))
            answers += self._answers(own, indexes)
        return TaughtSamples(prepared, answers)

    @torch.no_grad()
    def _answers(self, samples: Prepared, indexes: list[int]) -> list[Tensor]:
        batch = samples.batch(indexes)
        seen = batch.valid.any(dim=1)
        if batch.is_image and isinstance(samples.samples, PatchDataset):
            seen &= torch.from_numpy(samples.samples.usable_for_distillation(indexes))
        if batch.is_image and not self._model.spatial:
            answers = self._by_pixel(batch, seen)
        else:
            answers = self._predict(batch.x, batch.valid, batch.days)
        answers[~(seen.unsqueeze(1).expand_as(answers))] = torch.nan
        return list(answers)

    def _by_pixel(self, batch: Batch, seen: Tensor) -> Tensor:
        x, valid = batch.x.permute(0, 3, 4, 1, 2)[seen], batch.valid.permute(0, 2, 3, 1)[seen]
        days = batch.days.repeat_interleave(seen.flatten(1).sum(dim=1), dim=0)
        pieces = zip(*(each.split(SERIES_AT_ONCE) for each in (x, valid, days)), strict=True)
        whole = torch.full((*seen.shape, len(self._order)), torch.nan)
        whole[seen] = torch.cat([self._predict(*piece) for piece in pieces])
        return whole.permute(0, 3, 1, 2).contiguous()

    def _predict(self, x: Tensor, valid: Tensor, days: Tensor) -> Tensor:
        scores = self._model(x.to(self._device), valid.to(self._device), days.to(self._device)).float()
        probabilities: Tensor = (scores / self._temperature).softmax(dim=1).cpu()[:, self._order]
        return probabilities


def _require_fits(subject: EvaluatedModel, store: Store, config: TrainConfig) -> list[int]:
    """Refuse a teacher of other bands, classes or samples; else the teacher's number of each class of the store."""
    mine, theirs = store.fingerprint, subject.card.fingerprint
    target = choose_target(config, store)
    problems = mine.differences(replace(theirs, classes=mine.classes))
    names, known = mine.classes.names, theirs.classes.names
    if set(names) != set(known):
        problems.append(f"classes [{', '.join(names)}] against [{', '.join(known)}]")
    if subject.model.spatial and target != "pixel":
        problems.append("it reads images, and the samples are series")
    if problems:
        why, remedy = "; ".join(problems), "train a teacher on this store"
        raise MismatchError("the teacher does not fit the store", path=subject.file, why=why, remedy=remedy)
    if target == "date":
        raise UsageError("--distil does not apply to classes by date", path=store.folder, remedy="leave it out")
    return [known.index(name) for name in names]


def _require_unseen(subject: EvaluatedModel, store: Store, split: Split) -> None:
    """Refuse a teacher that knows the test parcels: through it the student would know them."""
    recorded = subject.result["split"] if subject.result else {}
    if recorded and "parcels" not in recorded and all(recorded.get(key) == value for key, value in split.about.items()):
        return  # pixels, dealt out alike
    seen, judged = seen_in_training(subject, store, split, "test")
    if not seen:
        return
    if subject.result is None:
        logger.warning(
            "cannot tell whether the teacher was trained on test parcels: %s is outside a run folder", subject.file
        )
        return
    why = f"{seen} of {judged} were in its training or validation"
    remedy = "train it with the split and the seed of this run"
    raise MismatchError("the teacher was trained on test parcels", path=subject.file, why=why, remedy=remedy)


def _temperature(subject: EvaluatedModel) -> float:
    if subject.card.calibration is None:
        return 1.0
    try:
        return float(subject.card.calibration["temperature"]["temperature"])
    except (KeyError, TypeError, ValueError) as failure:
        why = f"its calibration cannot be understood ({failure})"
        raise ArtifactError("the teacher cannot be used", path=subject.file, why=why, remedy="train it again") from None
