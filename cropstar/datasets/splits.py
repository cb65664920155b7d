"""Dealing parcels out to training, validation and test, so that no field is in two of them."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.config import SplitConfig
from cropstar.errors import InputError, UsageError
from cropstar.logs import logger
from cropstar.registry import did_you_mean
from cropstar.store.classes import UNLABELLED
from cropstar.store.store import Store

PARTS = ("train", "validation", "test")
ParcelId = tuple[str, int]  # scene and number in it
FieldName = tuple[str, str]  # origin and key: a field may lie in several pieces, which stay together


@dataclass(frozen=True)
class Split:
    """Which part each parcel belongs to."""

    part_of: dict[ParcelId, str]
    label_of: dict[ParcelId, int]

    def mask(self, scene: str, parcels: NDArray[np.int32], part: str) -> NDArray[np.bool_]:
        """True on the pixels of a parcel raster that belong to a part."""
        numbers, inverse = np.unique(parcels, return_inverse=True)
        wanted = np.array([self.part_of.get((scene, int(number))) == part for number in numbers])
        chosen: NDArray[np.bool_] = wanted[inverse].reshape(parcels.shape)
        return chosen

    def counts(self, classes: int) -> dict[str, list[int]]:
        """Parcels per class in each part."""
        table = {part: [0] * classes for part in PARTS}
        for parcel, part in self.part_of.items():
            table[part][self.label_of[parcel]] += 1
        return table

    def to_json(self) -> dict[str, Any]:
        members: dict[str, dict[str, list[int]]] = {part: defaultdict(list) for part in PARTS}
        for (scene, number), part in sorted(self.part_of.items()):
            members[part][scene].append(number)
        return members


@dataclass(frozen=True)
class Fields:
    """The labelled parcels of a store, and which of them are pieces of one field."""

    label_of: dict[ParcelId, int]
    group_of: dict[ParcelId, str]  # region, year, tile or fold: what a data set's own splits deal out
    pieces: dict[FieldName, list[ParcelId]]

    @classmethod
    def of(cls, store: Store) -> Fields:
        labels: dict[ParcelId, int] = {}
        groups: dict[ParcelId, str] = {}
        names: dict[ParcelId, FieldName] = {}
        for _, reader in store.readers():
            table, provenance = reader.table, reader.provenance
            # Scenes labelled from one file share its fields: a field of two dates, tiles or years is still one field.
            origin = str(provenance.get("origin", reader.scene))
            own = table.groups or [str(provenance.get("group", reader.scene))] * len(table.keys)
            for number, key, label, group in zip(table.numbers, table.keys, table.labels, own, strict=True):
                if label != UNLABELLED:
                    parcel = reader.scene, int(number)
                    labels[parcel], groups[parcel], names[parcel] = int(label), group, (origin, key)
        pieces: dict[FieldName, list[ParcelId]] = defaultdict(list)
        for parcel in sorted(labels):
            pieces[names[parcel]].append(parcel)
        return cls(labels, groups, dict(pieces))

    def dealt(self, seed: int, chosen: Iterable[FieldName]) -> Iterator[list[FieldName]]:
        """Class by class (a field has the class of its first piece), in an order that depends on the seed and the
        field's own name alone."""
        by_class: dict[int, list[FieldName]] = defaultdict(list)
        for field in chosen:
            by_class[self.label_of[self.pieces[field][0]]].append(field)
        for _, members in sorted(by_class.items()):
            yield sorted(members, key=lambda field: _shuffled(seed, *field))


def split_parcels(store: Store, config: SplitConfig, seed: int) -> Split:
    """Deal out the parcels: by the data set's own split where one is named, else by lot."""
    fields = Fields.of(store)
    if config.name is not None:
        part_of = _by_name(store, fields, config.name, config.validation, seed)
        remedy = "choose another split, or leave split.name out"
    else:
        part_of = _by_lot(fields, config, seed)
        remedy = "label more parcels or change split.validation and split.test"
    for part in PARTS:
        if part not in part_of.values():
            why = f"{len(fields.label_of)} parcels in {len(set(fields.label_of.values()))} classes are too few"
            if config.name is not None:
                why = f"the split '{config.name}' gives it none of those that are in the store"
            raise InputError(f"no parcel is left for {part}", path=store.folder, why=why, remedy=remedy)
    return Split(part_of, {parcel: fields.label_of[parcel] for parcel in part_of})


def named_splits(store: Store) -> dict[str, dict[tuple[str, str], str]]:
    """The data sets' own splits: of each the part of every scene's groups."""
    found: dict[str, dict[tuple[str, str], str]] = {}
    for scene, about in store.manifest.scenes.items():
        for name, parts in about.get("splits", {}).items():
            for part, groups in parts.items():
                found.setdefault(name, {}).update({(scene, str(group)): part for group in groups})
    return found


def _by_lot(fields: Fields, config: SplitConfig, seed: int) -> dict[ParcelId, str]:
    part_of: dict[ParcelId, str] = {}
    for members in fields.dealt(seed, fields.pieces):
        test = round(len(members) * config.test)
        validation = round(len(members) * config.validation)
        for rank, field in enumerate(members):
            part = "test" if rank < test else "validation" if rank < test + validation else "train"
            part_of.update(dict.fromkeys(fields.pieces[field], part))
    return part_of


def _by_name(store: Store, fields: Fields, name: str, share: float, seed: int) -> dict[ParcelId, str]:
    """A published split; where it has no validation part, a share of its training fields becomes one."""
    known = named_splits(store)
    if name not in known:
        why = "the data set has none of its own" if not known else ""
        remedy = did_you_mean(name, known) if known else "leave split.name out: parcels are dealt out by lot"
        raise UsageError(f"unknown split '{name}'", path=store.folder, why=why, remedy=remedy)
    part_of_field: dict[FieldName, str] = {}
    torn = 0
    for field, pieces in fields.pieces.items():
        parts = {known[name].get((parcel[0], fields.group_of[parcel])) for parcel in pieces} - {None}
        if len(parts) == 1:
            part_of_field[field] = str(parts.pop())
        elif parts:
            torn += 1
    if torn:
        logger.warning("%d fields lie in two parts of the split '%s' and are left out of all", torn, name)
    if "validation" not in part_of_field.values():
        training = [field for field, part in part_of_field.items() if part == "train"]
        for members in fields.dealt(seed, training):
            part_of_field.update(dict.fromkeys(members[: round(len(members) * share)], "validation"))
    return {parcel: part for field, part in part_of_field.items() for parcel in fields.pieces[field]}


def _shuffled(seed: int, origin: str, key: str) -> bytes:
    return hashlib.blake2b(f"{seed}|{origin}|{key}".encode(), digest_size=8).digest()
