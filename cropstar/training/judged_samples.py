"""The samples that a finished model is judged on: prepared as in its training, labelled in the model's classes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from cropstar.config import RegularConfig, TrainConfig
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
from cropstar.datasets.splits import PixelSplit, Split
from cropstar.errors import InputError, MismatchError, UsageError
from cropstar.geo.calendar import from_days
from cropstar.runtime import logger
from cropstar.store.classes import UNLABELLED
from cropstar.store.fingerprint import Fingerprint
from cropstar.store.model_file import ModelCard
from cropstar.store.store import Store

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
    if spatial and any(entry.layout == "series" for entry in store.manifest.tiles):
        problems.append("series without neighbours, and the model wants images")
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
    """Of those that a parcel has: a name in the table alone does no harm."""
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
    """Every labelled parcel in one part."""
    labels = Fields.of(store).label_of
    return Split(dict.fromkeys(labels, ALL), labels, {"by": ALL})


def members(split: Split, part: str) -> set[ParcelId]:
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
        raise InputError("no parcel to judge the model on", path=store.folder, remedy="choose another --part or store")
    regular = RegularConfig.model_validate(card.provenance.get("regular", {}))
    return Relabelled(Prepared(samples, card.fingerprint.season, regular), numbers)


def _open(card: ModelCard, store: Store, split: Split, part: str, config: TrainConfig) -> LabelledDataset:
    normalisation = card.normalisation
    layouts = {entry.layout for entry in store.manifest.tiles}
    if layouts == {"series"}:
        dated = choose_target(config, store) == "date"
        return SeriesDataset(store, split, part, normalisation, config.series_batch, dated=dated)
    if "series" in layouts:
        raise _unlike(store.folder)
    if config.target == "parcel":
        if isinstance(split, PixelSplit):
            raise UsageError("parcels cannot be split by pixel", remedy="take another --split-by")
        chosen = dict.fromkeys(members(split, part), part)  # the others need not be pooled
        wanted = Split(chosen, {parcel: split.label_of[parcel] for parcel in chosen})
        # With the numbers of the whole split, as in training.
        return ParcelDataset(pool_parcels(store, wanted), store, split, part, normalisation, config.series_batch)
    return PatchDataset(store, split, part, 2 * config.patch, normalisation, config.batch)


def _unlike(folder: Path) -> UsageError:
    return UsageError("a store of images and series", path=folder, remedy="ingest images and series into two stores")
