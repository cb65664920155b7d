"""Fitting any model: networks with the trainer, trees to all samples at once.

Trees learn from all fields but those of the test, since nothing is chosen on the validation fields. A model is
calibrated by probabilities of its own samples from trees that never saw their field: out-of-bag ones of a forest,
otherwise by cross-validation over fields. Whole groups that are held out for validation calibrate instead.

A forest can also teach a network, by the same out-of-bag probabilities (`soft_labels: forest`), by what it says of
mixes of the training series (`mixes`), or by both.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cropstar.config import FITTED, AugmentationConfig, ModelConfig, TrainConfig
from cropstar.datasets.batches import Batch
from cropstar.datasets.samples import Prepared
from cropstar.datasets.transforms import Draw, augment, mix_series
from cropstar.errors import InputError, Interrupted, UsageError
from cropstar.models.calibration import fit_temperature, softmax
from cropstar.models.contract import Shape
from cropstar.models.networks.forest import Forest
from cropstar.models.networks.trees import (
    DayGrid,
    FittedClassifier,
    Floats,
    OnTrees,
    features_of,
    log_probabilities,
    sensor_features,
)
from cropstar.runtime import event, progress_bar, stop_on_request, track
from cropstar.store.classes import UNLABELLED
from cropstar.training.distillation import TaughtSamples
from cropstar.training.metrics import ScoreSample
from cropstar.training.trainer import Progress, SaveModel, Task, fit

MOST_PIXELS = 200_000  # of images: neighbouring pixels tell little that is new, and all must be in memory
MOST_VALUES = 60_000_000  # of their features altogether: boosting takes 8 bytes of each
MOST_OF_A_FIELD = 32  # pixels of a field, of those that calibrate: more of one field say nothing new
FOLDS = 3  # of the cross-validation that calibrates
TEACHING = 200  # trees of the forest behind soft labels: about 70 of them have not seen a field
MIXING = ("mixes", "both")  # soft labels that mix series
DOUBTFUL = 0.3  # share of fields of which the forest must be wrong for its word to count in full
UNUSED = ("optimiser", "loss", "sampling", "augmentation", "patience")


@dataclass(frozen=True)
class Fit:
    """A fitted model's progress and, of one that has learnt from validation too, the scores to calibrate it by."""

    progress: Progress
    held_out: ScoreSample | None = None


def fit_model(
    task: Task,
    save_model: SaveModel,
    validation: Prepared | None = None,
    *,
    whole_units: bool = False,
    calibrated: bool = True,
    on_share: Callable[[float], None] | None = None,
) -> Fit:
    """Fit a model to its training part and save it: a network by gradient steps, trees at once.

    Networks choose an epoch on the validation part of the task. Trees choose nothing: with `validation` they learn from
    it too, and there are scores of samples by trees that never saw their field, unless not `calibrated`; `whole_units`
    says that validation holds groups of its own. `on_share` is told which share of the trees is grown, and may raise to
    end the growing.
    """
    if task.model.trains_in_epochs:
        return Fit(fit(task, save_model))
    return _fit_at_once(task, save_model, validation, whole_units=whole_units, calibrated=calibrated, on_share=on_share)


def settings_for(config: TrainConfig) -> TrainConfig:
    """The configuration without the settings that its model has no use for."""
    if config.model.name not in FITTED:
        return config
    unused = (*UNUSED, "precision", "compile", "distil", "soft_labels")
    return config.model_copy(update={name: TrainConfig.model_fields[name].default for name in unused})


def require_fittable(config: TrainConfig, options: Mapping[str, bool] | None = None) -> None:
    """Refuse, before a run is made, what trees have no use for, such as these options if set, and missing packages."""
    name = config.model.name
    if name not in FITTED:
        return
    if config.refit:
        why = "it has no epochs to choose, and nothing else is chosen on validation"
        raise UsageError(f"'{name}' does not use --refit", why=why, remedy="leave it out")
    for unused in UNUSED:
        if getattr(config, unused) != TrainConfig.model_fields[unused].default:
            raise UsageError(f"'{name}' does not use {unused}", remedy="leave it out")
    if options and options.get("--diagnose"):
        raise UsageError(f"'{name}' has no layers to diagnose", remedy="leave --diagnose out")
    _require_trees(f"'{name}' cannot be trained")
    asked = {
        **(options or {}),
        "precision": config.precision != "float32",
        "compile": config.compile,
        "--distil": config.distil is not None,
        "soft_labels": config.soft_labels != "none",
    }
    for option in (option for option, given in asked.items() if given):
        raise UsageError(f"'{name}' does not use {option}", remedy="leave it out")


def has_trees() -> bool:
    """Whether the package that grows trees is installed."""
    return importlib.util.find_spec("sklearn") is not None


def _require_trees(refusal: str) -> None:
    if not has_trees():
        raise UsageError(refusal, why="scikit-learn is not installed", remedy="pip install scikit-learn")


@dataclass(frozen=True)
class FeatureTable:
    """Training samples as one table of features."""

    features: Floats  # (N, F)
    labels: NDArray[np.int64]  # (N,)
    parcels: NDArray[np.int64]  # (N,): running numbers
    validation: NDArray[np.bool_]  # (N,): those of the validation part

    def __getitem__(self, rows: NDArray[np.bool_]) -> FeatureTable:
        return FeatureTable(*(column[rows] for column in vars(self).values()))

    def __len__(self) -> int:
        return len(self.labels)


def _fit_at_once(
    task: Task,
    save_model: SaveModel,
    validation: Prepared | None,
    *,
    whole_units: bool,
    calibrated: bool,
    on_share: Callable[[float], None] | None,
) -> Fit:
    """A run that was stopped begins anew and comes to the same model."""
    model, seed = task.model, task.config.seed
    assert isinstance(model, FittedClassifier)
    started = time.monotonic()
    season = task.training.season
    grid = DayGrid(season.start, season.length)
    parts = {"train": task.training, **({} if validation is None else {"validation": validation})}
    samples = gather(parts, task.classes, grid, seed, sensors=model.sensors)
    event(f"{len(samples):,} series of {samples.features.shape[1]} features", samples=len(samples))
    with _growing(model.name, on_share) as on_trees:
        unseen = model.fit(samples.features, samples.labels, grid, seed, on_trees, samples.parcels)
    assert model.trees is not None
    progress = Progress(samples=len(samples), seconds=time.monotonic() - started)
    nodes = len(model.trees.left)
    event(f"{len(model.trees)} trees with {nodes:,} nodes ({progress.seconds:.0f} s)", nodes=nodes)
    save_model(model, progress)
    if validation is None or not calibrated:
        return Fit(progress)
    if whole_units:
        samples, unseen = cross_fitted(task.config.model, model, samples, samples.validation - 1, grid, seed)
    elif unseen is None or not _covers(unseen, samples.parcels):
        samples = _thinned(samples, seed)
        samples, unseen = cross_fitted(task.config.model, model, samples, _folds(samples, seed), grid, seed)
    else:
        asked = ~np.isnan(unseen[:, 0])
        samples, unseen = samples[asked], unseen[asked]
    scores = ScoreSample(task.classes)
    scores.add(log_probabilities(unseen), samples.labels, samples.parcels)
    progress.seconds = time.monotonic() - started
    return Fit(progress, scores)


def gather(
    parts: Mapping[str, Prepared],
    classes: int,
    grid: DayGrid,
    seed: int,
    most: int = MOST_PIXELS,
    sensors: tuple[int, ...] | None = None,
) -> FeatureTable:
    """Every series, or the labelled pixels of images, at most so many, drawn by the seed; none without a clear date."""
    totals = {name: int(part.class_counts(classes).sum()) for name, part in parts.items()}
    total = sum(totals.values())
    wanted = np.ones(total, dtype=bool)
    first = next((part.batch([0]) for part in parts.values() if len(part)), None)
    if first is not None and first.is_image:
        most = min(most, MOST_VALUES // grid.features(first.x.shape[2]))
        if total > most:
            wanted[:] = False
            wanted[np.random.default_rng([seed, total]).choice(total, most, replace=False)] = True
            event(
                f"the trees use {most:,} of {total:,} labelled training pixels, drawn at random",
                pixels=total,
                drawn=most,
            )
    tables, before = [], 0
    for name, part in parts.items():
        starts = range(0, len(part), part.batch_size)
        for start in track(starts, len(starts), f"gather {name}", "batch"):
            series = part.batch(list(range(start, min(start + part.batch_size, len(part))))).as_series()
            count = len(series.labels)
            kept = wanted[before : before + count] & series.valid.any(dim=1).numpy()
            before += count
            x, valid, days, labels, parcels = (
                column.numpy()[kept] for column in (series.x, series.valid, series.days, series.labels, series.parcels)
            )
            if len(x):
                features = sensor_features(x, valid, days.astype(np.int64), grid, sensors)
                tables.append((features, labels.astype(np.int64), parcels, np.full(len(x), name == "validation")))
    if not tables:
        raise InputError("no clear observation of a training parcel", remedy="check the masks and the dates")
    return FeatureTable(*(np.concatenate(column) for column in zip(*tables, strict=True)))


def cross_fitted(
    config: ModelConfig,
    model: FittedClassifier,
    samples: FeatureTable,
    fold_of: NDArray[np.int64],
    grid: DayGrid,
    seed: int,
) -> tuple[FeatureTable, NDArray[np.float64]]:
    """The samples that are in a fold (from 0), with their probabilities by a model fitted to all but that fold."""
    found = np.zeros((len(samples), model.classes))
    with _growing(f"calibrate {model.name}") as on_trees:
        for fold in range(int(fold_of.max()) + 1):
            held_out = fold_of == fold
            other = type(model)(config, Shape(model.bands, model.classes, 1, sensors=model.sensors))
            rest = samples[~held_out]
            other.fit(rest.features, rest.labels, grid, seed, on_trees, rest.parcels)
            found[held_out] = other.ask(samples.features[held_out])
    inside = fold_of >= 0
    return samples[inside], found[inside]


def _covers(unseen: NDArray[np.float64], parcels: NDArray[np.int64]) -> bool:
    """Whether every field has an out-of-bag sample."""
    return bool(np.isin(parcels, parcels[~np.isnan(unseen[:, 0])]).all())


def _thinned(samples: FeatureTable, seed: int) -> FeatureTable:
    """At most so many pixels of each field, drawn by the seed: no more calibrate, and they are all fitted anew."""
    order = np.lexsort((np.random.default_rng(seed).random(len(samples)), samples.parcels))
    _, starts, counts = np.unique(samples.parcels[order], return_index=True, return_counts=True)
    kept = np.zeros(len(samples), dtype=bool)
    kept[order[np.arange(len(samples)) - np.repeat(starts, counts) < MOST_OF_A_FIELD]] = True
    return samples if len(starts) == 1 else samples[kept]


def _folds(samples: FeatureTable, seed: int) -> NDArray[np.int64]:
    """Fields dealt to the folds in turn, class after class; pixels of a single field one by one."""
    fields, rows, place = np.unique(samples.parcels, return_index=True, return_inverse=True)
    if len(fields) == 1:
        return np.random.default_rng(seed).permutation(len(samples)) % FOLDS
    order = np.lexsort((np.random.default_rng(seed).random(len(fields)), samples.labels[rows]))
    fold_of_field = np.empty(len(fields), dtype=np.int64)
    fold_of_field[order] = np.arange(len(fields)) % FOLDS
    folds: NDArray[np.int64] = fold_of_field[place.ravel()]
    return folds


@contextmanager
def _growing(label: str, on_share: Callable[[float], None] | None = None) -> Iterator[OnTrees]:
    """Show progress and handle signals; an incomplete set of trees is not kept."""
    with stop_on_request() as stop, progress_bar(0, label, "tree") as bar:

        def on_trees(count: int, total: int) -> None:
            bar.total = total
            bar.update(count - bar.n)
            if stop:
                assert stop.signal is not None
                raise Interrupted(stop.signal, f"{count} of {total} trees were grown, nothing is saved")
            if on_share is not None:
                on_share(count / total)

        yield on_trees


# --- soft labels: a network learns from a forest too


class ForestTeacher:
    """Softens the labels of series by a forest that is grown on the same fields.

    `forest`: with a few hundred fields a network learns wrong labels and rare look-alikes by heart. The forest knows
    which of them others contradict: its trees have not seen the field that they are asked about. Where it is nearly
    always right there is little to soften, and a field keeps most of its label.

    `mixes`: with a few dozen fields a network memorises every one of them; see `MixedSamples`.

    `both`: half of the series in a batch are mixes, half have their softened labels.

    Each training, those without a fold among them, has a forest of its own: no field that is held out has a say.
    """

    def __init__(self, shape: Shape) -> None:
        self._shape = Shape(shape.bands, shape.classes, 1, sensors=shape.sensors)
        self.accuracy: float | None = None  # out of bag, of the last forest

    @staticmethod
    def of(config: TrainConfig, target: str, shape: Shape) -> ForestTeacher | None:
        """The teacher that a configuration asks for; refuses what has no forest, such as images and dates."""
        if config.soft_labels == "none" or config.model.name in FITTED:
            return None
        name = f"soft_labels={config.soft_labels}"
        if target != "parcel":
            why = f"it is for series, and {target}s have a class here"
            raise UsageError(f"{name} cannot be used", why=why, remedy="leave it out, or take target=parcel")
        if config.distil is not None:
            raise UsageError(f"{name} cannot be combined with --distil", remedy="leave one of them out")
        if config.soft_labels in MIXING and shape.sensors is not None:
            why = "the dates of several sensors cannot be mixed"
            raise UsageError(f"{name} cannot be used", why=why, remedy="use soft_labels=forest")
        _require_trees(f"{name} cannot be used")
        return ForestTeacher(shape)

    def teach(self, prepared: Prepared, split: object, config: TrainConfig) -> TaughtSamples:
        """The training samples with softened labels, NaN where none of the trees can say anything."""
        season = prepared.season
        grid = DayGrid(season.start, season.length)
        shape = self._shape
        samples = gather({"train": prepared}, shape.classes, grid, config.seed, sensors=shape.sensors)
        forest = Forest(ModelConfig(name="rf", trees=TEACHING), shape)
        with _growing("forest") as on_trees:
            unseen = forest.fit(samples.features, samples.labels, grid, config.seed, on_trees, samples.parcels)
        assert unseen is not None
        known = ~np.isnan(unseen[:, 0])
        unseen, labels = unseen[known], samples.labels[known]
        self.accuracy = float((unseen.argmax(axis=1) == labels).mean()) if len(labels) else None
        if config.soft_labels == "mixes":
            return MixedSamples(prepared, forest, grid)
        softened = dict(zip(samples.parcels[known].tolist(), soften_labels(unseen, labels), strict=True))
        nothing = np.full(shape.classes, np.nan)
        rows = range(0, len(prepared), prepared.batch_size)
        batches = (prepared.batch(list(range(row, min(row + prepared.batch_size, len(prepared))))) for row in rows)
        parcels = [number for batch in batches for number in batch.parcels.tolist()]
        answers = [torch.from_numpy(softened.get(number, nothing)).float() for number in parcels]
        if config.soft_labels == "both":
            return MixedSamples(prepared, forest, grid, answers)
        return TaughtSamples(prepared, answers)


class MixedSamples(TaughtSamples):
    """Series of a batch are mixes of themselves and another one, drawn anew each time, and so is what they are taught.

    Between a few dozen fields a network may say anything. Their mixes fill the space between them: half of what is
    taught there is the labels of both by their shares, which is smooth, and half is what the forest says of the mix,
    which knows that most of the bands and dates do not matter. Either half alone is a worse teacher.

    With `answers`, the softened labels of the series themselves, every other series on average is left as it is.
    """

    def __init__(self, prepared: Prepared, forest: Forest, grid: DayGrid, answers: Sequence[Tensor] = ()) -> None:
        super().__init__(prepared, answers)
        self._forest, self._grid = forest, grid

    def augmented(self, indexes: list[int], config: AugmentationConfig, draw: Draw) -> Batch:
        streams = list(draw.generators("mixes"))
        drawn = [(int(random.integers(len(self))), random.random()) for random in streams]
        rows = [row for row, random in enumerate(streams) if not self._answers or random.random() >= 0.5]
        batch = self.samples.batch(indexes)
        x, labels = batch.x.clone(), batch.labels.clone()
        if self._answers:
            taught = torch.stack([self._answers[index] for index in indexes])
        else:
            taught = torch.empty(len(indexes), self._forest.classes)
        if rows:
            own = replace(batch, x=x[rows], valid=batch.valid[rows], days=batch.days[rows], labels=labels[rows])
            others = self.samples.batch([drawn[row][0] for row in rows])
            shares = np.array([drawn[row][1] for row in rows], dtype=np.float32)
            x[rows], taught[rows] = self._mixed(own, others, shares)
            labels[rows] = UNLABELLED
        changed = replace(batch, x=x, labels=labels, taught=taught)
        return self.on_regular_dates(augment(changed, config, draw, self.sensors))

    def _mixed(self, own: Batch, others: Batch, shares: NDArray[np.float32]) -> tuple[Tensor, Tensor]:
        """The mixes, and what is taught: the mean of the forest's answers and of the labels by their shares."""
        shares[~others.valid.any(dim=1).numpy()] = 0
        mixed = mix_series(own, others, shares, self.season)
        x, valid, days = (tensor.numpy() for tensor in (mixed.x, mixed.valid, mixed.days))
        predicted = self._forest.ask(features_of(x, valid, days.astype(np.int64), self._grid))
        one, other = (np.eye(predicted.shape[1])[batch.labels.numpy()] for batch in (own, others))
        return mixed.x, torch.from_numpy((predicted + one + shares[:, None] * (other - one)) / 2).float()


def soften_labels(unseen: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Labels mixed with calibrated out-of-bag probabilities (N, K): the more, the more often these are wrong."""
    if not len(labels):
        return unseen
    scores = log_probabilities(unseen)
    temperature, _ = fit_temperature(scores, labels)
    share = min(1.0, float((unseen.argmax(axis=1) != labels).mean()) / DOUBTFUL)
    mixed: NDArray[np.float64] = share * softmax(scores, temperature) + (1 - share) * np.eye(unseen.shape[1])[labels]
    return mixed
