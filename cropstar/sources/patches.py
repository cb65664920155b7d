"""Packing many small images into tiles: how collections of cut-out patches are stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import InputError
from cropstar.store.classes import UNLABELLED
from cropstar.store.fingerprint import Fingerprint
from cropstar.store.tile import ParcelTable, PatchTile

Transform = tuple[float, float, float, float, float, float]


@dataclass(frozen=True)
class PatchImage:
    """One image of a collection, as its source read it."""

    name: str
    transform: Transform
    days: NDArray[np.int32]  # (T,), at least one
    values: NDArray[np.uint16]  # (T, C, H, W), zero where not valid
    valid: NDArray[np.bool_]  # (T, H, W)
    labels: NDArray[np.int16]  # (H, W), UNLABELLED where there is none
    fields: NDArray[np.int64]  # (H, W), equal numbers are one field of this image, 0 is none
    keys: dict[int, str]  # what each field is called; a name that stands in several images is one field in pieces
    group: str  # what the collection's own splits deal out


def pack(
    images: Sequence[PatchImage],
    first: int,
    *,
    scene: str,
    recipe: str,
    fingerprint: Fingerprint,
    crs: str,
    provenance: dict[str, Any],
) -> PatchTile:
    """A tile of images of one size; `first` is the running number of the first of them in the scene."""
    if (first + len(images)) * images[0].labels.size > np.iinfo(np.int32).max:
        why = f"{first + len(images)} images of {images[0].labels.size} pixels are more than numbers of parcels"
        raise InputError(
            "too many images", path=Path(scene), why=why, remedy="ingest them in parts, into several stores"
        )
    count, longest = len(images), max(len(image.days) for image in images)
    bands, height, width = images[0].values.shape[1:]
    days = np.zeros((count, longest), dtype=np.int32)
    values = np.zeros((count, longest, bands, height, width), dtype=np.uint16)
    valid = np.zeros((count, longest, height, width), dtype=bool)
    parcels = np.zeros((count, height, width), dtype=np.int32)
    tables = []
    for place, image in enumerate(images):
        length = len(image.days)
        days[place, :length], days[place, length:] = image.days, image.days[-1]
        values[place, :length], valid[place, :length] = image.values, image.valid
        parcels[place], table = _number(image, (first + place) * height * width)
        tables.append(table)
    return PatchTile(
        scene=scene,
        recipe=recipe,
        fingerprint=fingerprint,
        crs=crs,
        transforms=np.array([image.transform for image in images], dtype=np.float64),
        names=[image.name for image in images],
        lengths=np.array([len(image.days) for image in images], dtype=np.int32),
        days=days,
        values=values,
        valid=valid,
        labels=np.stack([image.labels for image in images]).astype(np.int16),
        parcels=parcels,
        table=_joined(tables),
        provenance=provenance,
    )


def _number(image: PatchImage, before: int) -> tuple[NDArray[np.int32], ParcelTable]:
    """Give the labelled fields numbers that no other image has, whichever process packs it; their class is the
    most frequent of their pixels."""
    known = (image.fields != 0) & (image.labels != UNLABELLED)
    found, places = np.unique(image.fields[known], return_inverse=True)
    parcels = np.zeros(image.fields.shape, dtype=np.int32)
    parcels[known] = before + 1 + places
    labels = np.zeros(len(found), dtype=np.int16)
    for rank in range(len(found)):
        labels[rank] = np.bincount(image.labels[known][places == rank]).argmax()
    keys = [image.keys[int(number)] for number in found]
    numbers = np.arange(before + 1, before + 1 + len(found), dtype=np.int32)
    return parcels, ParcelTable(numbers, keys, labels, [image.group] * len(found))


def _joined(tables: list[ParcelTable]) -> ParcelTable:
    return ParcelTable(
        np.concatenate([table.numbers for table in tables]),
        [key for table in tables for key in table.keys],
        np.concatenate([table.labels for table in tables]),
        [group for table in tables for group in table.groups or []],
    )
