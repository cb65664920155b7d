"""The labelled parcels of a store, and which of them are pieces of one field."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cropstar.datasets.targets import has_only_dates
from cropstar.store.classes import UNLABELLED
from cropstar.store.reader import TileReader
from cropstar.store.store import Store

ParcelId = tuple[str, int]  # scene and number in it
FieldName = tuple[str, str]  # origin and key: a field may lie in several pieces, which stay together


@dataclass(frozen=True)
class Fields:
    label_of: dict[ParcelId, int]
    group_of: dict[ParcelId, str]  # region, year, tile or fold: what a data set's own splits deal out
    pieces: dict[FieldName, list[ParcelId]]

    @classmethod
    def of(cls, store: Store, *, dated: bool = False) -> Fields:
        """Those with a class; where dates have one (`dated`, or nothing else in the store), with that of most dates."""
        dated = dated or has_only_dates(store)
        labels: dict[ParcelId, int] = {}
        groups: dict[ParcelId, str] = {}
        names: dict[ParcelId, FieldName] = {}
        for _, reader in store.readers():
            table, provenance = reader.table, reader.provenance
            # Scenes labelled from one file share its fields: a field of two dates, tiles or years is still one field.
            origin = str(provenance.get("origin", reader.scene))
            own = table.groups or [str(provenance.get("group", reader.scene))] * len(table.keys)
            classes = _with_dates(reader) if dated else table.labels
            # Several series of one field are one field too.
            known = table.fields or table.keys
            for number, key, label, group in zip(table.numbers, known, classes, own, strict=True):
                if label != UNLABELLED:
                    parcel = reader.scene, int(number)
                    labels[parcel], groups[parcel], names[parcel] = int(label), group, (origin, key)
        pieces: dict[FieldName, list[ParcelId]] = defaultdict(list)
        for parcel in sorted(labels):
            pieces[names[parcel]].append(parcel)
        return cls(labels, groups, dict(pieces))

    def label(self, field: FieldName) -> int:
        """A field has the class of its first piece."""
        return self.label_of[self.pieces[field][0]]

    def dealt(self, seed: int, chosen: Iterable[FieldName]) -> Iterator[list[FieldName]]:
        """Class by class, in an order that depends on the seed and the field's own name alone."""
        by_class: dict[int, list[FieldName]] = defaultdict(list)
        for field in chosen:
            by_class[self.label(field)].append(field)
        for _, members in sorted(by_class.items()):
            yield sorted(members, key=lambda field: lot(seed, *field))

    def share(self, seed: int, chosen: Iterable[FieldName], part: float) -> list[FieldName]:
        """A stratified random share of some fields."""
        return [field for members in self.dealt(seed, chosen) for field in members[: round(len(members) * part)]]


def _with_dates(reader: TileReader) -> NDArray[np.int16]:
    """The class of every sample; of one without, such as one of clouds alone, the most frequent of its dates."""
    labels = reader.table.labels
    if reader.date_labels is None:
        return labels
    found = labels.copy()
    for place in np.flatnonzero(labels == UNLABELLED):
        own = reader.date_labels[reader.starts[place] : reader.starts[place + 1]]
        own = own[own != UNLABELLED]
        if len(own):
            found[place] = np.bincount(own).argmax()
    return found


def lot(seed: int, *names: str) -> bytes:
    """What is drawn for a name: orders by it are random, and yet the same wherever they are made."""
    return hashlib.blake2b("|".join((str(seed), *names)).encode(), digest_size=8).digest()
