"""Dealing parcels out to training, validation and test, so that no field is in two of them."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.config import SplitConfig
from cropstar.errors import InputError
from cropstar.store.classes import UNLABELLED
from cropstar.store.store import Store

PARTS = ("train", "validation", "test")
ParcelId = tuple[str, int]  # scene and number in it


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


def split_parcels(store: Store, config: SplitConfig, seed: int) -> Split:
    """Class by class, in an order that depends on the seed and the parcel's own name alone."""
    labels: dict[ParcelId, int] = {}
    names: dict[ParcelId, tuple[str, str]] = {}
    for _, reader in store.readers():
        table = reader.table
        # Scenes labelled from one file share its fields: a field of two dates, tiles or years is still one field.
        origin = str(reader.provenance.get("origin", reader.scene))
        for number, key, label in zip(table.numbers, table.keys, table.labels, strict=True):
            if label != UNLABELLED:
                labels[reader.scene, int(number)] = int(label)
                names[reader.scene, int(number)] = (origin, key)
    # A field may lie in several pieces under one name: they stay together, with the class of the largest.
    fields: dict[tuple[str, str], list[ParcelId]] = defaultdict(list)
    for parcel in sorted(labels):
        fields[names[parcel]].append(parcel)
    part_of: dict[ParcelId, str] = {}
    for label in sorted(set(labels.values())):
        members = [field for field, pieces in fields.items() if labels[pieces[0]] == label]
        members.sort(key=lambda field: _shuffled(seed, *field))
        test = round(len(members) * config.test)
        validation = round(len(members) * config.validation)
        for rank, field in enumerate(members):
            part = "test" if rank < test else "validation" if rank < test + validation else "train"
            part_of.update(dict.fromkeys(fields[field], part))
    split = Split(part_of, labels)
    for part in PARTS:
        if part not in part_of.values():
            raise InputError(
                f"no parcel is left for {part}",
                path=store.folder,
                why=f"{len(labels)} parcels in {len(set(labels.values()))} classes are too few",
                remedy="label more parcels or change split.validation and split.test",
            )
    return split


def _shuffled(seed: int, origin: str, key: str) -> bytes:
    return hashlib.blake2b(f"{seed}|{origin}|{key}".encode(), digest_size=8).digest()
