"""Label noise: suspect labels, p-values of declared crops, and what to survey next.

All of it follows from one table: the probabilities of every field by a model that never saw it. A training with folds
(`--folds`, `cross_fit`) leaves it in its run.

- A label is *suspect* where the model is as sure of another class as it usually is of fields of that class, and likes
  the label less (confident learning: Northcutt, Jiang, Chuang 2021). Suspects are ranked by how much more probable the
  other class is.
- A declared crop gets a *p-value*: the share of fields of that crop which look at least as odd (conformal prediction,
  within each class: Vovk 2012). Of declarations that are right, at most a share r has a p-value of r or less, as long
  as the declared fields are like those that the model was trained on.
- *Surveyed next* are fields that the model is least sure of, unlike each other in place and class.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cropstar.datasets.fields import ParcelId
from cropstar.datasets.splits import Split
from cropstar.errors import ArtifactError
from cropstar.models.calibration import fit_temperature, nonconformity, parcel_weights, softmax
from cropstar.store.model_file import read_tensors, write_tensors
from cropstar.store.store import Store
from cropstar.training.ensembles import OutOfFold
from cropstar.training.metrics import ScoreSample

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Light = Literal["green", "yellow", "red"]

KIND = "out-of-fold"
SMALLEST = 1e-9  # of a probability: its logarithm is taken


@dataclass(frozen=True)
class FieldProbabilities:
    """Probabilities of fields by models that never saw them: the mean over a field's pixels, calibrated."""

    parcels: list[ParcelId]
    labels: Integers  # (N,)
    probabilities: Floats  # (N, K)
    in_folds: NDArray[np.bool_]  # (N,): by the model of a fold; else by the finished model, of the test part

    def __len__(self) -> int:
        return len(self.parcels)

    @classmethod
    def of(cls, split: Split, sample: ScoreSample, temperature: float, *, in_folds: bool = False) -> FieldProbabilities:
        """From a sample of the pixels' scores, with running numbers of the parcels of a split."""
        scores, labels, running = sample.arrays()
        likely = softmax(scores, temperature)
        numbers, first, places = np.unique(running, return_index=True, return_inverse=True)
        means = np.zeros((len(numbers), likely.shape[1]))
        np.add.at(means, places.ravel(), likely)
        means /= np.bincount(places.ravel(), minlength=len(numbers))[:, None]
        names = sorted(split.label_of)
        parcels = [names[number] for number in numbers.tolist()]
        return cls(parcels, labels[first], means, np.full(len(parcels), in_folds))

    @classmethod
    def out_of_fold(cls, folds: OutOfFold) -> FieldProbabilities:
        scores, labels, parcels = folds.scores.arrays()
        temperature, _ = fit_temperature(scores, labels, parcel_weights(parcels))
        return cls.of(folds.split, folds.scores, temperature, in_folds=True)

    def joined(self, other: FieldProbabilities) -> FieldProbabilities:
        return FieldProbabilities(
            self.parcels + other.parcels,
            np.concatenate([self.labels, other.labels]),
            np.concatenate([self.probabilities, other.probabilities]),
            np.concatenate([self.in_folds, other.in_folds]),
        )

    def rows(self, chosen: Sequence[int] | NDArray[Any]) -> FieldProbabilities:
        """Some of the fields, in that order."""
        places = np.asarray(chosen, dtype=np.intp)
        parcels = [self.parcels[place] for place in places.tolist()]
        return FieldProbabilities(parcels, self.labels[places], self.probabilities[places], self.in_folds[places])

    def write(self, path: Path, classes: Sequence[str]) -> None:
        scenes = sorted({scene for scene, _ in self.parcels})
        places = {scene: place for place, scene in enumerate(scenes)}
        write_tensors(
            path,
            KIND,
            {"scenes": scenes, "classes": list(classes)},
            {
                "scene": np.array([places[scene] for scene, _ in self.parcels], dtype=np.int32),
                "number": np.array([number for _, number in self.parcels], dtype=np.int32),
                "label": self.labels.astype(np.int16),
                "in_folds": self.in_folds.astype(np.uint8),
                "probabilities": self.probabilities.astype(np.float32),
            },
        )

    @classmethod
    def read(cls, path: Path, classes: Sequence[str]) -> FieldProbabilities:
        """Of the store with these classes."""
        header, arrays = read_tensors(path, KIND)
        try:
            scenes = [str(name) for name in header["scenes"]]
            if list(header["classes"]) != list(classes):
                raise ValueError("its classes are not those of the store")
            parcels = [
                (scenes[place], number)
                for place, number in zip(arrays["scene"].tolist(), arrays["number"].tolist(), strict=True)
            ]
            fields = cls(
                parcels,
                arrays["label"].astype(np.int64),
                arrays["probabilities"].astype(np.float64),
                arrays["in_folds"].astype(bool),
            )
            if fields.probabilities.shape != (len(parcels), len(classes)) or len(fields.labels) != len(parcels):
                raise ValueError("its arrays do not fit each other")
            known = (fields.labels >= 0) & (fields.labels < len(classes))
            likely = fields.probabilities
            if not known.all() or not np.isfinite(likely).all() or ((likely < 0) | (likely > 1)).any():
                raise ValueError("its values are not probabilities")
        except (KeyError, ValueError, IndexError, TypeError) as failure:
            raise ArtifactError(
                "the probabilities of the run cannot be used", path=path, why=str(failure), remedy="train again"
            ) from None
        return fields


# --- suspects


@dataclass(frozen=True)
class Suspect:
    """A field whose label is improbable."""

    parcel: ParcelId
    place: int  # in the table of fields
    label: int
    probable: int  # the class that it looks like
    margin: float  # the probability of the best other class less that of the label


def find_suspects(fields: FieldProbabilities, learnt: Integers | None = None) -> list[Suspect]:
    """The most suspect first.

    `learnt` (N,) is the number of fields of each label that the field's model was trained with or could have been; by
    default the others of these fields. The only field of a class is never suspect: its model has not seen that class.
    """
    labels, likely = fields.labels, fields.probabilities
    if learnt is None:
        learnt = np.bincount(labels, minlength=likely.shape[1])[labels] - 1
    thresholds = usual_confidence(fields)
    sure = np.where(likely >= thresholds, likely, -1.0)
    # Where the label itself is likeliest, nothing speaks against it, however sure of another class one may be.
    other = sure.argmax(axis=1)
    suspect = (sure.max(axis=1) > 0) & (other != labels) & (likely.argmax(axis=1) != labels) & (learnt > 0)
    margins = suspicion(fields)
    order = [place for place in np.argsort(-margins, kind="stable").tolist() if suspect[place]]
    return [
        Suspect(fields.parcels[place], place, int(labels[place]), int(other[place]), float(margins[place]))
        for place in order
    ]


def usual_confidence(fields: FieldProbabilities) -> Floats:
    """(K,) the mean probability of each class among the fields labelled so; infinite of a class without fields."""
    usual: Floats = np.full(fields.probabilities.shape[1], np.inf)
    for number in np.unique(fields.labels).tolist():
        usual[number] = fields.probabilities[fields.labels == number, number].mean()
    return usual


def suspicion(fields: FieldProbabilities) -> Floats:
    """(N,) by which fields are ranked: the probability of the best other class less that of the label.

    Of the rankings that were tried on swapped labels (docs/labels.md) it found the most among the first.
    """
    rows = np.arange(len(fields))
    own = fields.probabilities[rows, fields.labels]
    others = fields.probabilities.copy()
    others[rows, fields.labels] = 0.0
    margins: Floats = others.max(axis=1) - own
    return margins


def clean_facts(suspects: Sequence[Suspect], store: Store) -> dict[str, Any]:
    """The facts for the report of a training that left them out."""
    return {"suspects": len(suspects), "pairs": confused_pairs(suspects, store.fingerprint.classes.names)}


def confused_pairs(suspects: Sequence[Suspect], names: Sequence[str]) -> list[dict[str, Any]]:
    """How many of the suspects are labelled as one class and look like another, the most frequent first."""
    counts = Counter((suspect.label, suspect.probable) for suspect in suspects)
    return [
        {"label": names[label], "probable": names[probable], "fields": count}
        for (label, probable), count in counts.most_common()
    ]


# --- declared crops


@dataclass(frozen=True)
class ConformalGroups:
    """Fields with known labels by which declared crops are judged, class by class.

    A class has a p-value of r or less only with at least 1/r - 1 fields. Classes with fewer than the wanted rate asks
    for are one group together: the rate is then promised over all of them, not of each.
    """

    rate: float
    group_of: Integers  # (K,) the group of each class
    odd: tuple[Floats, ...]  # of each group, ascending

    @classmethod
    def of(cls, fields: FieldProbabilities, rate: float) -> ConformalGroups:
        classes = fields.probabilities.shape[1]
        enough = int(np.ceil(1 / rate - 1e-9)) - 1
        counts = np.bincount(fields.labels, minlength=classes)
        large = np.flatnonzero(counts >= enough)
        group_of = np.full(classes, len(large), dtype=np.int64)
        group_of[large] = np.arange(len(large))
        own = nonconformity(fields.probabilities)[np.arange(len(fields)), fields.labels]
        groups = group_of[fields.labels]
        odd = tuple(np.sort(own[groups == group]) for group in range(len(large) + 1))
        return cls(rate, group_of, odd)

    @property
    def pooled(self) -> list[int]:
        """The classes that are one group together."""
        return np.flatnonzero(self.group_of == len(self.odd) - 1).tolist()

    @property
    def undecidable(self) -> list[int]:
        """The classes that have too few fields, even together, to ever be rejected at the rate."""
        return [number for number in self.pooled if 1 / (len(self.odd[-1]) + 1) > self.rate]

    def p_values(self, probabilities: Floats, labels: Integers | None = None) -> Floats:
        """(N, K): of every class of every field. `labels` where the fields are the known ones: none judges itself."""
        odd = nonconformity(probabilities)
        p_values: Floats = np.ones_like(odd)
        for number in range(odd.shape[1]):
            group = int(self.group_of[number])
            known = self.odd[group]
            # As odd or odder; sums of floats in two orders differ by a hair.
            count = len(known) - np.searchsorted(known, odd[:, number] - 1e-12, side="left")
            total = np.full(len(odd), len(known))
            if labels is not None:
                own = self.group_of[labels] == group
                mine = odd[np.arange(len(odd)), labels]
                total = total - own
                count = count - (own & (mine >= odd[:, number] - 1e-12))
            p_values[:, number] = (count + 1) / (total + 1)
        return p_values

    def lights(self, fields: FieldProbabilities, p_values: Floats) -> list[Light]:
        """The light of each field by the crop that it is labelled, or declared, with."""
        possible, probable = self._possible(fields, p_values)
        rows = np.arange(len(fields)), fields.labels
        return [
            "red" if not fits else "green" if sure else "yellow"
            for fits, sure in zip(possible[rows], probable[rows], strict=True)
        ]

    def lights_if_wrong(self, fields: FieldProbabilities, p_values: Floats) -> dict[Light, float]:
        """The shares of lights if a wrong crop were declared: the mean over fields and all other classes that occur."""
        possible, probable = self._possible(fields, p_values)
        wrong = np.zeros(possible.shape, dtype=bool)
        wrong[:, np.unique(fields.labels)] = True
        wrong[np.arange(len(fields)), fields.labels] = False
        count = max(int(wrong.sum()), 1)
        red, green = int((~possible & wrong).sum()) / count, int((probable & wrong).sum()) / count
        return {"red": red, "yellow": max(1 - red - green, 0.0), "green": green}

    def _possible(self, fields: FieldProbabilities, p_values: Floats) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """(N, K) each: crops that are not rejected, and of these the ones more probable than all others together.

        The only crop that is possible is probable, too. Among few fields hardly any crop can be rejected: that others
        are possible says little then, that they are improbable does.
        """
        possible = p_values > self.rate
        only = possible.sum(axis=1, keepdims=True) == 1
        return possible, possible & (only | (fields.probabilities > 0.5))


# --- what to survey next


def choose_survey(fields: FieldProbabilities, places: Floats | None, count: int) -> list[int]:
    """Fields worth a visit, the best first: unsure ones, unlike those chosen before in place and probable classes.

    `places` are coordinates in metres (N, 2), NaN where unknown; without them fields are unlike by their probabilities
    alone.
    """
    likely = fields.probabilities
    size = likely.shape[1]
    entropy = -(likely * np.log(np.maximum(likely, SMALLEST))).sum(axis=1) / np.log(max(size, 2))
    worth = entropy.copy()
    norms = np.maximum(np.linalg.norm(likely, axis=1), SMALLEST)
    reach = _reach(places, count)
    chosen: list[int] = []
    alike = np.zeros(len(fields))  # to the most similar field that was chosen
    for _ in range(min(count, len(fields))):
        best = int(np.argmax(np.where(np.isfinite(worth), worth * (1 - 0.9 * alike), -np.inf)))
        chosen.append(best)
        worth[best] = -np.inf
        same = likely @ likely[best] / (norms * norms[best])  # 1: the same doubts
        if places is not None and reach:
            apart = np.linalg.norm(places - places[best], axis=1)
            near = np.exp(-0.5 * np.square(np.nan_to_num(apart, nan=np.inf) / reach))
            same = 0.5 * same + 0.5 * near
        alike = np.maximum(alike, same)
    return chosen


def _reach(places: Floats | None, count: int) -> float:
    """How far one visit speaks for: the radius that each of so many has if they share the ground."""
    if places is None or not np.isfinite(places).any():
        return 0.0
    known = places[np.isfinite(places).all(axis=1)]
    width, height = np.ptp(known, axis=0)
    return float(np.sqrt(max(width * height, max(width, height) ** 2 / 100) / max(count, 1)) / 2)
