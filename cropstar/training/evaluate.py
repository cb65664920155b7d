"""`cropstar evaluate`: a finished model evaluated again, on its own test parcels or on another store."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from cropstar import __version__
from cropstar.config import AUTO, SplitConfig, TrainConfig, load_yaml, resolve_config
from cropstar.datasets.batches import Batch, Dataset
from cropstar.datasets.fields import Fields, ParcelId, choose_target
from cropstar.datasets.samples import (
    LabelledDataset,
    ParcelDataset,
    PatchDataset,
    Prepared,
    SeriesDataset,
    pool_parcels,
)
from cropstar.datasets.splits import PixelSplit, Split, split_parcels
from cropstar.datasets.transforms import SensorChannels
from cropstar.errors import InputError, MismatchError, UsageError, one_line
from cropstar.geo.calendar import from_days
from cropstar.models.backends import use_backend
from cropstar.models.calibration import Calibration, ConformalSets, parcel_weights
from cropstar.models.contract import Classifier
from cropstar.models.zoo import restore_model
from cropstar.reports.record import TestRecord, boxes_meet, join_bounds, store_bounds
from cropstar.reports.results import damaged, read_result
from cropstar.runtime import keep_large_buffers, logger
from cropstar.store.classes import UNLABELLED
from cropstar.store.fingerprint import Fingerprint
from cropstar.store.model_file import ModelCard, read_model
from cropstar.store.store import Store
from cropstar.training.accuracy import Collectors, Evaluation, error_map_facts, evaluate
from cropstar.training.areas import Design, MappedAreas, estimate_areas, read_mapped
from cropstar.training.metrics import ScoreSample, levels_of
from cropstar.training.runs import Run
from cropstar.training.setup import scene_recipes

Part = Literal["train", "validation", "test", "all"]


@dataclass(frozen=True)
class EvaluateOptions:
    device: torch.device
    store: Path | None = None  # None: that of the run
    part: Part | None = None  # None: the test of the run's own data, all of another store
    split: SplitConfig | None = None  # None: that of the run
    areas: Path | None = None  # a map or a table: what the map gives to each class
    design: Design | None = None  # how the parcels were drawn from the map; None: not known
    backend: str = "auto"  # see models/backends.py


@dataclass(frozen=True)
class EvaluatedModel:
    """A model, and its training run if there is one."""

    file: Path
    card: ModelCard
    model: Classifier
    digest: str
    run: Run | None  # None: the file lies outside of its run
    config: TrainConfig
    result: dict[str, Any] | None

    @property
    def scenes(self) -> dict[str, str]:
        """The scenes of the training, each with its recipe."""
        return dict(self.card.provenance.get("scenes", {}))


def evaluate_model(path: Path, options: EvaluateOptions) -> dict[str, Any]:
    """Figures, calibration and how many of the parcels the training had seen, as plain data."""
    keep_large_buffers()
    subject = open_evaluated(path, options.store)
    bands = subject.card.fingerprint.channels
    model, _ = use_backend(subject.model, options.backend, options.device, bands=bands)
    subject = replace(subject, model=model)
    with Store.open(subject.config.store) as store:
        numbers = require_fits(subject.card, store, spatial=subject.model.spatial)
        mapped = _mapped(subject, store, options)
        part = _choose_part(subject, store, options)
        split = _split(subject, store, part, options.split)
        seen, judged = seen_in_training(subject, store, split, part)
        _warn(seen, judged, certain=subject.result is not None)
        if part == ALL and not seen:
            _warn_of_the_same_year(subject, store)
        samples = open_samples(subject.card, store, split, part, subject.config, numbers)
        evaluation, confidence = _judge(subject, samples, part, options.device)
        return {
            "version": __version__,
            "model": {"path": str(subject.file), "digest": subject.digest, **subject.card.model},
            "run": subject.run.name if subject.run else None,
            "store": str(store.folder),
            "part": part,
            "split": {key: value for key, value in split.about.items() if key != "units"},
            "parcels": judged,
            "seen_in_training": seen,
            "pixels": evaluation.unit == "pixel",
            "classes": subject.card.fingerprint.classes.to_json(),
            "figures": evaluation.to_json(subject.config.seed),
            **confidence,
            "areas": _areas(subject, store, evaluation, mapped, options) if mapped else None,
            "errors": error_map_facts(store, split, evaluation, part),
        }


def open_evaluated(path: Path, store: Path | None) -> EvaluatedModel:
    """The model, whole and of a finished run or of none, and the configuration that its samples are prepared by."""
    run = Run(path if path.is_dir() else path.parent)
    known = run.config.exists()
    result = read_result(run.folder) if known or (path.is_dir() and not run.model.exists()) else None
    file = run.model if path.is_dir() else path
    card, weights, digest = read_model(file)
    if result is not None:
        _require_of_run(run, result, card, file)
    model = restore_model(card.model, card.shape, weights, file)
    if not known and store is None:
        why = "the model file is outside its run folder, which records the store"
        raise UsageError("no store to evaluate the model on", path=file, why=why, remedy="name one with --store")
    given = {"store": store}
    if known:
        config = resolve_config(run.config, given)
    else:
        provenance = {key: card.provenance.get(key) for key in ("seed", "target")}
        config = resolve_config(None, {**given, **provenance})
    return EvaluatedModel(file, card, model, digest, run if known else None, config, result)


def _require_of_run(run: Run, result: dict[str, Any], card: ModelCard, file: Path) -> None:
    """Refuse a model, or a configuration, of another run: its test parcels are not those that the model never saw."""
    record = TestRecord.from_json(card.provenance.get("record", {}))  # None in models of older versions
    try:
        same = record is None or record.is_of(result)
        trained = TrainConfig.model_validate(load_yaml(result["config"], run.result))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as failure:
        raise damaged(run.result, f"it cannot be understood ({one_line(failure)})") from None
    if not same:
        why = f"{run.result.name} beside it tells of another model"
        remedy = "give the folder of its own run, or the model file alone with --store"
        raise MismatchError("the model is not of this run", path=file, why=why, remedy=remedy)
    config = resolve_config(run.config, {})
    own, theirs = ([each.seed, each.split, each.target] for each in (config, trained))
    if own != theirs and config.model.name != AUTO:  # which has only what was given
        why, remedy = "it says another split than the run was trained with", f"take that of {run.result.name}"
        raise MismatchError("the configuration is not of this run", path=run.config, why=why, remedy=remedy)


def _choose_part(subject: EvaluatedModel, store: Store, options: EvaluateOptions) -> Part:
    """The part to evaluate: by default parcels that the model has never seen."""
    own_split = options.split is not None
    if options.part == ALL and own_split:
        raise UsageError("--part all takes no split", remedy="leave out --split and --split-by, or choose a --part")
    if options.part not in (None, ALL) and not own_split and subject.run is None:
        why = "the model file is outside its run folder, which records the split"
        raise UsageError(
            f"no part '{options.part}'", path=subject.file, why=why, remedy="give --split-by, or --part all"
        )
    if options.part is not None:
        return options.part
    if subject.config.split.out_of_fold and options.store is None:
        why = "every field was evaluated out of fold and then used for training"
        remedy = "see the report of the run, or give another --store"
        raise UsageError("the run has no test part", path=subject.file, why=why, remedy=remedy)
    if own_split or (subject.run is not None and scene_recipes(store) == subject.scenes):
        return "test"
    if options.store is None:
        why = "it holds other scenes than when the model was trained, so the split is another one"
        raise MismatchError("the store has changed", path=store.folder, why=why, remedy="choose a --part")
    return "all"


def _split(subject: EvaluatedModel, store: Store, part: Part, chosen: SplitConfig | None) -> Split:
    if part == ALL:
        return all_parcels(store)
    return split_parcels(store, chosen or subject.config.split, subject.config.seed)


def seen_in_training(subject: EvaluatedModel, store: Store, split: Split, part: Part) -> tuple[int, int]:
    """How many of the parcels training or validation had, as far as scenes of the same recipe tell; and of how many.

    Validation counts: the epoch and the temperature were chosen on it.
    """
    judged = parcels_in(split, part)
    scene_of = {recipe: scene for scene, recipe in subject.scenes.items()}
    # By name where that tells them apart: the groups of one table are scenes of one recipe.
    names = {
        scene: scene if subject.scenes.get(scene) == recipe else scene_of[recipe]
        for scene, recipe in scene_recipes(store).items()
        if recipe in scene_of
    }
    shared = {(names[scene], number) for scene, number in judged if scene in names}
    listed = subject.result["split"].get("parcels") if subject.result else None
    if listed is None:  # split by pixel, or unknown: any parcel of the scenes
        return len(shared), len(judged)
    try:
        learnt = {
            (scene, int(number))
            for own in ("train", "validation")
            for scene, numbers in listed[own].items()
            for number in numbers
        }
    except (KeyError, TypeError, ValueError, AttributeError) as failure:
        assert subject.run is not None
        raise damaged(subject.run.result, f"its split cannot be understood ({failure})") from None
    return len(shared & learnt), len(judged)


def _warn(seen: int, judged: int, *, certain: bool) -> None:
    if seen:
        logger.warning(
            "%d of %d parcels %s in the training or validation of this model: the figures are too optimistic",
            seen,
            judged,
            "were" if certain else "may have been",
        )


def _warn_of_the_same_year(subject: EvaluatedModel, store: Store) -> None:
    """A warning where the fields may be those of the training under another name: recipes differ by a file's name."""
    record = TestRecord.from_json(subject.card.provenance.get("record", {}))
    if record is None:
        return
    shared = {day.year for reader in store.tiles for day in from_days(reader.observed_days)} & set(record.years)
    own = join_bounds(store_bounds(store))
    if shared and (record.bounds is None or own is None or boxes_meet(record.bounds, own)):
        years = ", ".join(map(str, sorted(shared)))
        logger.warning(
            "the model learnt from fields of %s, too: if some of these are among them, the figures are too optimistic",
            years,
        )


def _judge(
    subject: EvaluatedModel, samples: Dataset, part: Part, device: torch.device
) -> tuple[Evaluation, dict[str, Any]]:
    """The figures that a training ends with, by the temperature and the sets learnt then."""
    classes = subject.card.fingerprint.classes
    sample = ScoreSample(len(classes))
    model = subject.model.to(device)
    evaluation = evaluate(model, samples, len(classes), device, Collectors(sample), levels_of(classes))
    if not len(evaluation.parcel_counts.parcels):
        why = "none of its pixels has a clear observation"
        raise InputError(f"nothing to evaluate in the part '{part}'", why=why, remedy="choose another --part or store")
    facts: dict[str, Any] = {"calibration": None, "sets": None}
    if isinstance(subject.card.calibration, dict):
        scores, labels, parcels = sample.arrays()
        calibration = Calibration.from_json(subject.card.calibration.get("temperature", {}))
        sets = ConformalSets.from_json(subject.card.calibration.get("sets", {}))
        coverage = sets.judged(calibration.probabilities(scores), labels, parcels)
        facts["calibration"] = calibration.judged(scores, labels, parcel_weights(parcels), part).to_json()
        facts["sets"] = {**sets.to_json(), part: coverage.to_json()}
    return evaluation, facts


def _mapped(subject: EvaluatedModel, store: Store, options: EvaluateOptions) -> MappedAreas | None:
    """The areas of the map, if requested; this model must have made the map."""
    if options.areas is None:
        if options.design is not None:
            why = "a design says how parcels were sampled from a map"
            raise UsageError("no areas to estimate", why=why, remedy="give the map or its areas with --areas")
        return None
    if choose_target(subject.config, store) == "date":
        why = "a parcel may have another class on every date"
        raise UsageError("no areas of classes by date", path=store.folder, why=why, remedy="leave --areas out")
    mapped = read_mapped(options.areas, subject.card.fingerprint.classes.names)
    if mapped.model not in (None, subject.digest):
        why = "its predictions are not those of the evaluated model"
        raise MismatchError(
            "the map was made by another model", path=options.areas, why=why, remedy="make it with this one"
        )
    if mapped.model is None:
        logger.warning("cannot tell whether %s was made by this model: assuming it was", options.areas)
    return mapped


def _areas(
    subject: EvaluatedModel, store: Store, found: Evaluation, mapped: MappedAreas, options: EvaluateOptions
) -> dict[str, Any]:
    names = subject.card.fingerprint.classes.names
    estimates = estimate_areas(found.pixel_counts, mapped.hectares, design=options.design, names=names).to_json()
    if found.unit == "parcel" and store.fingerprint.resolution:
        estimates["warnings"].append("every parcel counts the same, however large it is")
    for warning in estimates["warnings"]:
        logger.warning(warning)
    return {"source": str(options.areas), **estimates}


# --- the samples: prepared as in training, labelled in the model's classes


ALL = "all"  # the part of every labelled parcel, split or not
OTHER_STORE = "give a store that was ingested as the model's was"


class Relabelled:
    """A data set whose labels are numbers of the model's classes, not of the store's."""

    def __init__(self, samples: Dataset, numbers: list[int]) -> None:
        self.part = samples.part
        self.batch_size = samples.batch_size
        self._samples = samples
        self._numbers = torch.tensor([*numbers, UNLABELLED])  # the last, at -1: no label stays no label

    def __len__(self) -> int:
        return len(self._samples)

    def batch(self, indexes: list[int]) -> Batch:
        batch = self._samples.batch(indexes)
        return replace(batch, labels=self._numbers[batch.labels])


def require_fits(card: ModelCard, store: Store, *, spatial: bool) -> list[int]:
    """Refuse a store that the model does not understand; else the model's number of each of the store's classes."""
    mine, theirs = card.fingerprint, store.fingerprint
    problems = mine.differences(replace(theirs, classes=mine.classes))
    if spatial and "series" in store.manifest.layouts:
        problems.append("series without neighbours, and the model needs images")
    known = {name: number for number, name in enumerate(mine.classes.names)}
    strange = _unknown_classes(known, store)
    if strange:
        problems.append(f"the model does not know the classes [{', '.join(strange)}]")
    if problems:
        raise MismatchError(
            "the store does not fit the model", path=store.folder, why="; ".join(problems), remedy=OTHER_STORE
        )
    _warn_of_dates(mine, store)
    return [known.get(name, UNLABELLED) for name in theirs.classes.names]


def _unknown_classes(known: dict[str, int], store: Store) -> list[str]:
    """The classes of parcels that the model does not know; unused names in the table do not matter."""
    names = store.fingerprint.classes.names
    if set(names) <= set(known):
        return []
    present = {int(label) for _, reader in store.readers() for label in reader.table.labels if label != UNLABELLED}
    return [names[number] for number in sorted(present) if names[number] not in known]


def _warn_of_dates(fingerprint: Fingerprint, store: Store) -> None:
    days = {day for _, reader in store.readers() for day in from_days(reader.observed_days)}
    strange = sorted(day for day in days if not fingerprint.season.covers(day))
    if strange:
        logger.warning(
            "%d of %d dates lie outside the season of the training, such as %s", len(strange), len(days), strange[0]
        )


def all_parcels(store: Store) -> Split:
    """All labelled parcels as one part."""
    labels = Fields.of(store).label_of
    return Split(dict.fromkeys(labels, ALL), labels, {"by": ALL})


def parcels_in(split: Split, part: str) -> set[ParcelId]:
    """The parcels that have a pixel in a part."""
    if isinstance(split, PixelSplit):
        return split.held[part]
    return {parcel for parcel, own in split.part_of.items() if own == part}


def open_samples(
    card: ModelCard, store: Store, split: Split, part: str, config: TrainConfig, numbers: list[int]
) -> Dataset:
    """One part of a split. The normalisation is the model's own: nothing is measured on what it is judged on."""
    samples = _open(card, store, split, part, config)
    if not len(samples):
        raise InputError(
            "no parcel to evaluate the model on", path=store.folder, remedy="choose another --part or store"
        )
    fingerprint = card.fingerprint
    prepared = Prepared(samples, fingerprint.season, card.regular, SensorChannels.of(fingerprint))
    return Relabelled(prepared, numbers)


def _open(card: ModelCard, store: Store, split: Split, part: str, config: TrainConfig) -> LabelledDataset:
    normalisation = card.normalisation
    layouts = store.manifest.layouts
    if layouts == {"series"}:
        dated = choose_target(config, store) == "date"
        return SeriesDataset(store, split, part, normalisation, config.series_batch, dated=dated)
    if "series" in layouts:
        remedy = "ingest images and series into two stores"
        raise UsageError("the store holds both images and series", path=store.folder, remedy=remedy)
    if config.target == "parcel":
        if isinstance(split, PixelSplit):
            raise UsageError("parcels cannot be split by pixel", remedy="use another --split-by")
        chosen = dict.fromkeys(parcels_in(split, part), part)  # the others need not be pooled
        wanted = Split(chosen, {parcel: split.label_of[parcel] for parcel in chosen})
        # With the numbers of the whole split, as in training.
        return ParcelDataset(pool_parcels(store, wanted), store, split, part, normalisation, config.series_batch)
    return PatchDataset(store, split, part, 2 * config.patch, normalisation, config.batch)
