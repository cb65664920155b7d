"""The accuracy of a model on one part of a split, by pixel (or date) and by parcel.

`evaluate` gives the confusion matrices of a part. At the end of a training `evaluate_calibrated` calibrates the model
on validation and evaluates it once on the test parcels, with how early each crop is known and where the errors lie.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cropstar.datasets.batches import Batch, Dataset
from cropstar.datasets.fields import ParcelId, Target
from cropstar.datasets.splits import PixelSplit, Split
from cropstar.geo.calendar import Season, season_days
from cropstar.geo.grid import Grid, enclosing_grid
from cropstar.models.calibration import Calibration, ConformalSets, calibrate, learn_sets, parcel_weights
from cropstar.models.contract import Classifier
from cropstar.reports.figures import LONGEST_CANVAS, OTHER, RIGHT, UNSEEN, WRONG, pack_codes
from cropstar.reports.record import wilson_interval
from cropstar.runtime import logger, track
from cropstar.store.classes import UNLABELLED
from cropstar.store.reader import TileReader
from cropstar.store.store import Store
from cropstar.training.metrics import (
    Confusion,
    Level,
    LevelCounts,
    LevelTally,
    ParcelCounts,
    ParcelTally,
    ScoreSample,
    bootstrap,
    count_parcels,
    divide,
    summary,
)

# --- the evaluation at the end of a training


COVERAGE = 0.9


@dataclass(frozen=True)
class CalibratedEvaluation:
    """A finished model on the test parcels, with its calibration."""

    test: Evaluation
    calibration: Calibration
    sets: ConformalSets
    facts: dict[str, Any]  # what the report shows beside the confusion matrices
    validation: Evaluation | None  # None: the model has learnt from it
    scores: ScoreSample | None = None  # of the test parcels; None: they are those out of fold


def evaluate_calibrated(
    model: Classifier,
    parts: Mapping[str, Dataset],
    classes: int,
    season: Season,
    device: torch.device,
    levels: Sequence[Level] = (),
    held_out: ScoreSample | None = None,
    dates: Sequence[int] = (),
) -> CalibratedEvaluation:
    """Every parcel counts as one in the calibration, however many pixels it has.

    `held_out` are the scores to calibrate by, of a model that has learnt from the validation parcels too. `dates` are
    days of the season that have figures of their own.

    Temperature and sets are learnt on the parcels on which the epoch was chosen too: what they promise holds nearly,
    and the test says how nearly.
    """
    validation = None
    if held_out is None:
        held_out = ScoreSample(classes)
        validation = evaluate(model, parts["validation"], classes, device, Collectors(held_out))
    scores, labels, parcels = held_out.arrays()
    calibration = calibrate(scores, labels, parcel_weights(parcels))
    if calibration.bounded:
        logger.warning("the confidence could not be calibrated: validation has too few errors, or only errors")
    sets = learn_sets(calibration.probabilities(scores), labels, parcels, coverage=COVERAGE)

    unseen = ScoreSample(classes)
    earliness = EarlinessTally(season, classes, dates) if model.streaming else None
    tested = evaluate(model, parts["test"], classes, device, Collectors(unseen, earliness), levels)
    scores, labels, parcels = unseen.arrays()
    coverage = sets.judged(calibration.probabilities(scores), labels, parcels)
    facts: dict[str, Any] = {
        "calibration": calibration.judged(scores, labels, parcel_weights(parcels)).to_json(),
        "sets": {**sets.to_json(), "test": coverage.to_json()},
    }
    if earliness is not None and tested.unit != "date":  # how early the class of one date is known says nothing
        facts["earliness"] = earliness.result().to_json()
    return CalibratedEvaluation(tested, calibration, sets, facts, validation, unseen)


# --- one part of a split


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

    @classmethod
    def merged(cls, parts: Sequence[Evaluation]) -> Evaluation:
        """Evaluations of different parcels, such as those of the folds, as one; the loss is left out."""
        levels = tuple(
            LevelCounts(
                own[0].level,
                ParcelCounts.merged([each.pixel_counts for each in own]),
                ParcelCounts.merged([each.parcel_counts for each in own]),
            )
            for own in zip(*(part.levels for part in parts), strict=True)
        )
        return cls(
            ParcelCounts.merged([part.pixel_counts for part in parts]),
            ParcelCounts.merged([part.parcel_counts for part in parts]),
            parts[0].unit,
            levels,
        )

    def to_json(self, seed: int = 0) -> dict[str, Any]:
        levels = [
            {"name": own.level.name, "classes": list(own.level.classes)}
            | _figures_with_intervals(own.pixel_counts, own.parcel_counts, seed)
            for own in self.levels
        ]
        figures = _figures_with_intervals(self.pixel_counts, self.parcel_counts, seed)
        return {"unit": self.unit, **figures, **({"levels": levels} if levels else {})}


def _figures_with_intervals(pixel: ParcelCounts, parcel: ParcelCounts, seed: int) -> dict[str, Any]:
    return {
        kind: {**summary(counts.matrix()), "intervals": _intervals(counts, seed)}
        for kind, counts in (("pixel", pixel), ("parcel", parcel))
    }


def _intervals(counts: ParcelCounts, seed: int) -> dict[str, Any]:
    """By resampling parcels; of an accuracy in which every parcel counts once Wilson's, which `predict` says, too.

    Few parcels that are nearly all right resample to an interval that is too narrow, and to none if all of them are.
    """
    intervals = bootstrap(counts, seed=seed).to_json()
    total = int(counts.count.sum())
    if 0 < total == len(counts.parcels):
        intervals["overall_accuracy"] = list(wilson_interval(int(counts.matrix().trace()), total))
    return intervals


@dataclass(frozen=True)
class Collectors:
    """Collect more of an evaluation: a sample of the scores, and the answers date by date."""

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

    Of series with a label per date, the score of a date is that after it. A date that is not valid leaves
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
    collectors: Collectors | None = None,
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
        if collectors is not None:
            collectors.sample.add(scores.numpy()[seen], labels, parcels)
            if collectors.earliness is not None and unit != "date":
                _add_dates(collectors.earliness, model, batch, device)
    order = sorted(sums)
    numbers, truth = (np.array(each, dtype=np.int64) for each in (order, [truths[parcel] for parcel in order]))
    summed = np.array([sums[parcel] for parcel in order]).reshape(len(order), classes)
    whole = count_parcels(numbers, truth, summed.argmax(axis=1), classes)
    coarse = tuple(own.counts(numbers, truth, summed) for own in coarser)
    return Evaluation(tally.counts(), whole, unit, coarse, loss / count if count and math.isfinite(loss) else None)


def _add_dates(earliness: EarlinessTally, model: Classifier, batch: Batch, device: torch.device) -> None:
    """Add the classes after each date, of every labelled pixel."""
    series = batch.as_series()
    if model.spatial:
        predicted = model.by_date(batch.x.to(device), batch.valid.to(device), batch.days.to(device)).argmax(dim=2)
        chosen = batch.labels != UNLABELLED  # (B,H,W)
        answers = predicted.cpu().permute(0, 2, 3, 1)[chosen]  # (N,T)
    else:
        scores = model.by_date(series.x.to(device), series.valid.to(device), series.days.to(device))
        answers = scores.argmax(dim=2).cpu()
    earliness.add(answers.numpy(), series.valid.numpy(), series.days.numpy(), series.labels.numpy())


# --- earliness: how early in the season each crop is known
#
# On every tenth day of the season, and on each date of the store, the answer counts that was given after the last date
# up to it. Before a sample's
# first valid date there is no answer, which is wrong. One confusion matrix a day is kept, however many samples.


Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

STEP = 10  # days
KNOWN = 0.9  # of the F1 at the end
MOST_DATES = 40  # of many scenes there are more: then some, about ten days apart
MOST_DAYS = 400  # of the grid, whatever length a file claims for its season


def dates_in_season(store: Store) -> tuple[int, ...]:
    """Days of the season on which a store has dates, and its end: a map always stands at a date.

    A state after eight dates is unlike one after seven, even a day later, and so are its figures.
    """
    season = store.fingerprint.season
    offsets = [season_days(reader.observed_days[:, None], season).ravel() for _, reader in store.readers()]
    return choose_days(np.concatenate(offsets), season.length)


def choose_days(observed: NDArray[np.int64], length: int) -> tuple[int, ...]:
    """At most `MOST_DATES` of the observed days of a season, and its end."""
    days = np.unique(np.clip(observed, 0, length))
    if len(days) > MOST_DATES:
        steps = np.linspace(0, length, min(-(-length // STEP), MOST_DATES - 1) + 1)
        days = np.unique(days[np.maximum(np.searchsorted(days, steps, side="right") - 1, 0)])
    return tuple(int(day) for day in np.union1d(days, [length]))


@dataclass(frozen=True)
class Earliness:
    """Figures by day; days count from the season's first one. None where a figure is not defined."""

    start: int  # the season's first day, as day of the year
    days: tuple[int, ...]
    samples: int
    accuracy: tuple[float | None, ...]
    macro_f1: tuple[float | None, ...]
    class_f1: tuple[tuple[float | None, ...], ...]  # (K, days)
    support: tuple[int, ...]
    known: float  # share of the final F1
    known_from: tuple[int | None, ...]  # (K,) the first day from which the F1 stays at or above it
    accurate_from: int | None  # the same of the accuracy

    def to_json(self) -> dict[str, Any]:
        listed = {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}
        return listed | {"class_f1": [list(row) for row in self.class_f1]}


class EarlinessTally:
    """Collects the predictions by day, batch by batch."""

    def __init__(self, season: Season, classes: int, dates: Sequence[int] = ()) -> None:
        """`dates` are days of the season that are to be among those that have figures."""
        self._season = season
        step = max(STEP, -(-season.length // MOST_DAYS))
        # The last day is the season's end: what is said then is what the model says in the end.
        grid = np.append(np.arange(0, season.length, step, dtype=np.int64), season.length)
        self.days: Integers = np.union1d(grid, np.array(dates, dtype=np.int64))
        # (days, truth, prediction); the last column is for nothing said
        self._counts: Integers = np.zeros((len(self.days), classes, classes + 1), dtype=np.int64)

    def add(self, scores: NDArray[Any], valid: NDArray[np.bool_], days: NDArray[Any], labels: NDArray[Any]) -> None:
        """Scores by date (N, T, K), or the classes said by date (N, T); valid and days (N, T) in order; labels (N,).

        Samples without any valid date do not count, as everywhere. Days are since 1970; dates after the season's end
        count on its last day.
        """
        predicted = scores.argmax(axis=2) if scores.ndim == 3 else scores
        seen = valid.any(axis=1)
        predicted, valid, labels = predicted[seen], valid[seen], labels[seen].astype(np.int64)
        offsets = season_days(days[seen], self._season)
        np.minimum(offsets, self._season.length, out=offsets)
        size = self._counts.shape[1]
        begun = valid.argmax(axis=1)  # the first valid date
        rows = np.arange(len(predicted))
        for place, day in enumerate(self.days):
            newest = (offsets <= day).sum(axis=1) - 1  # -1: no date yet
            by_then = np.where(newest >= begun, predicted[rows, newest], size)
            counts = np.bincount(labels * (size + 1) + by_then, minlength=size * (size + 1))
            self._counts[place] += counts.reshape(size, size + 1)

    def result(self) -> Earliness:
        hits = self._counts.diagonal(axis1=1, axis2=2).astype(np.float64)  # (days, K)
        truth, predicted = self._counts.sum(axis=2), self._counts.sum(axis=1)[:, :-1]
        accuracy = divide(hits.sum(axis=1), truth.sum(axis=1))
        class_f1 = divide(2 * hits, truth + predicted)
        macro = divide(np.nan_to_num(class_f1).sum(axis=1), np.isfinite(class_f1).sum(axis=1))
        return Earliness(
            self._season.start,
            tuple(int(day) for day in self.days),
            int(truth[-1].sum()),
            _numbers(accuracy),
            _numbers(macro),
            tuple(_numbers(row) for row in class_f1.T),
            tuple(int(count) for count in truth[-1]),
            KNOWN,
            tuple(self._first_day_near_the_end(row) for row in class_f1.T),
            self._first_day_near_the_end(accuracy),
        )

    def _first_day_near_the_end(self, values: Floats) -> int | None:
        """The first day from which values stay near the last one; none where there is nothing to come near to."""
        if not values[-1] > 0:  # not a number, too
            return None
        low = np.flatnonzero(~(values >= KNOWN * values[-1]))
        return int(self.days[low[-1] + 1 if len(low) else 0])


def _numbers(values: Floats) -> tuple[float | None, ...]:
    return tuple(float(value) if np.isfinite(value) else None for value in values)


# --- the error map: where correct and wrong test parcels lie, thinned to what a figure can show
#
# A canvas holds one byte per pixel, packed: it is part of result.json, which must stay small whatever the scene.


MOST_SCENES = 6
NO_PLACES = "the store keeps series without their places"
SMALL_IMAGES = "the store holds small images, each of a place of its own"


def error_map_facts(store: Store, split: Split, evaluation: Evaluation, part: str = "test") -> dict[str, Any]:
    """A canvas for each scene with the parcels of a part: those that were right and wrong, and all others.

    Of many scenes those with the most judged parcels are kept. `why` says why there is no map at all.
    """
    layouts = store.manifest.layouts
    if layouts != {"raster"}:
        return {"scenes": [], "left_out": 0, "why": NO_PLACES if "series" in layouts else SMALL_IMAGES}
    outcomes = _outcomes(split, evaluation, part)
    readers: dict[str, list[TileReader]] = {}
    for _, reader in store.readers():
        readers.setdefault(reader.scene, []).append(reader)
    judged = {scene: [code for (own, _), code in outcomes.items() if own == scene] for scene in readers}
    busiest = sorted((scene for scene in readers if judged[scene]), key=lambda scene: (-len(judged[scene]), scene))
    scenes = []
    for scene in busiest[:MOST_SCENES]:
        codes, grid, step = _canvas(
            readers[scene],
            {number: code for (own, number), code in outcomes.items() if own == scene},
            _labelled(split, scene),
        )
        counts = {
            name: judged[scene].count(code) for name, code in (("right", RIGHT), ("wrong", WRONG), ("unseen", UNSEEN))
        }
        scenes.append({"scene": scene, "grid": grid.to_json(), "step": step, **counts, "codes": pack_codes(codes)})
    return {"scenes": scenes, "left_out": len(busiest) - len(scenes), "why": None}


def _outcomes(split: Split, evaluation: Evaluation, part: str) -> dict[ParcelId, int]:
    """Outcomes of all parcels of the part; one without a clear pixel has none."""
    counts = evaluation.parcel_counts
    truth, predicted = np.divmod(counts.cell, counts.classes)
    codes = dict(
        zip(counts.parcels[counts.parcel].tolist(), np.where(truth == predicted, RIGHT, WRONG).tolist(), strict=True)
    )
    members = (
        split.held.get(part, set())
        if isinstance(split, PixelSplit)
        else {parcel for parcel, own in split.part_of.items() if own == part}
    )
    running = split.running_numbers()
    return {parcel: codes.get(running[parcel], UNSEEN) for parcel in members}


def _labelled(split: Split, scene: str) -> list[int]:
    return [number for own, number in split.label_of if own == scene]


def _canvas(
    readers: list[TileReader], outcomes: dict[int, int], labelled: list[int]
) -> tuple[NDArray[np.uint8], Grid, int]:
    """Every n-th pixel of the tiles of a scene, never a mixture; tiles are read one after the other."""
    grid, corners = enclosing_grid([reader.grid for reader in readers])
    step = math.ceil(max(grid.shape) / LONGEST_CANVAS)
    rows, columns = (np.arange(min(step // 2, side - 1), side, step) for side in grid.shape)
    canvas: NDArray[np.uint8] = np.zeros((len(rows), len(columns)), dtype=np.uint8)
    codes = {**dict.fromkeys(labelled, OTHER), **outcomes}
    for reader, (top, left) in zip(readers, corners, strict=True):
        height, width = reader.grid.shape
        down, across = _inside(rows, top, height), _inside(columns, left, width)
        if down.start < down.stop and across.start < across.stop:
            parcels = reader.parcels()[np.ix_(rows[down] - top, columns[across] - left)]
            numbers, places = np.unique(parcels, return_inverse=True)
            looked_up = np.array([codes.get(int(number), 0) for number in numbers], dtype=np.uint8)
            found = looked_up[places].reshape(parcels.shape)
            canvas[down, across] = np.maximum(canvas[down, across], found)  # tiles may overlap
    a, b, c, d, e, f = grid.transform
    return canvas, Grid(grid.crs, (a * step, b * step, c, d * step, e * step, f), *canvas.shape), step


def _inside(lines: NDArray[np.int64], start: int, length: int) -> slice:
    """The lines of the canvas that fall into a tile."""
    first, last = np.searchsorted(lines, [start, start + length])
    return slice(int(first), int(last))
