"""The samples of a store as a torch `Dataset`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cropstar.api.keywords import AnyPath
from cropstar.config import resolve_config
from cropstar.datasets.batches import Batch, Dataset
from cropstar.datasets.samples import ParcelDataset, PatchDataset, SeriesDataset, pool_parcels
from cropstar.datasets.splits import Split, split_parcels
from cropstar.errors import InputError, UsageError
from cropstar.runtime import STORES
from cropstar.store.fingerprint import Normalisation
from cropstar.store.store import Store
from cropstar.training.evaluate import ALL, all_parcels

PARTS = {"training": "train", "train": "train", "validation": "validation", "test": "test", "all": ALL}
PATCHES_KEPT = 32  # in memory, while single pixels are asked for: some 2 MB each


def open_samples(store: Store, part: str, split: Split, *, unit: str | None, patch: int) -> Samples:
    """The samples of one part, see `StoreView.as_torch`."""
    holds_series = "series" in store.manifest.layouts
    unit = unit or ("parcel" if holds_series else "image")
    if unit not in ("image", "parcel", "pixel"):
        raise UsageError(f"no unit '{unit}'", remedy="choose image, parcel or pixel")
    if holds_series and unit != "parcel":
        raise UsageError(f"no {unit}s", path=store.folder, why="the store holds series", remedy="use unit='parcel'")
    if patch < 1:
        raise UsageError("a patch has at least one pixel", remedy="give patch=48")
    own = PARTS[part]
    # Reflectance: nothing has to be measured, and nothing of the test enters the training.
    plain = Normalisation((0.0,) * len(store.fingerprint.bands), (1.0,) * len(store.fingerprint.bands))
    samples: Dataset
    if holds_series:
        samples = SeriesDataset(store, split, own, plain, 1)
    elif unit == "parcel":
        samples = ParcelDataset(pool_parcels(store, split), store, split, own, plain, 1)
    else:
        patches = PatchDataset(store, split, own, patch, plain, 1)
        samples = Pixels(patches, len(store.fingerprint.classes)) if unit == "pixel" else patches
    if not len(samples):
        raise InputError(f"no labelled {unit} in the part '{part}'", path=store.folder, remedy="choose another part")
    return Samples(store, samples, tuple(store.fingerprint.classes.names))


def chosen_split(store: Store, part: str, name: str | None, by: str | None, seed: int, run: AnyPath | None) -> Split:
    """The split for `StoreView.as_torch`."""
    if part not in PARTS:
        raise UsageError(f"no part '{part}'", remedy="choose training, validation, test or all")
    if PARTS[part] == ALL:
        return all_parcels(store)
    if run is None:
        config = resolve_config(None, {"store": STORES, "split.name": name, "split.by": by, "seed": seed})
    else:
        config = resolve_config(Path(run) / "config.yaml", {})
    return split_parcels(store, config.split, config.seed)


class Samples(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Labelled samples; workers of a `DataLoader` open the files of the store anew."""

    def __init__(self, store: Store, samples: Dataset, classes: tuple[str, ...]) -> None:
        self.classes = classes
        self._store, self._samples = store, samples
        self._length = max(reader.length for reader in store.tiles)
        self._process = os.getpid()

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        if os.getpid() != self._process:  # a fork shares no open file with its parent
            self._store.close()
            self._process = os.getpid()
        batch = self._samples.batch([index % len(self)])
        sample = {name: getattr(batch, name)[0] for name in ("x", "valid", "days", "labels", "parcels")}
        missing = self._length - len(sample["days"])
        if missing:
            for name in ("x", "valid"):
                sample[name] = torch.cat([sample[name], sample[name].new_zeros(missing, *sample[name].shape[1:])])
            sample["days"] = torch.cat([sample["days"], sample["days"][-1:].expand(missing)])
        return sample

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return (self[index] for index in range(len(self)))

    def __getstate__(self) -> dict[str, Any]:
        self._store.close()
        return self.__dict__


class Pixels:
    """The labelled pixels of patches, each a series."""

    batch_size = 1

    def __init__(self, patches: PatchDataset, classes: int) -> None:
        self.part = patches.part
        self._patches = patches
        self._ends = patches.class_counts(classes).sum(axis=1).cumsum()
        self._kept: dict[int, Batch] = {}

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def batch(self, indexes: list[int]) -> Batch:
        (index,) = indexes
        patch = int(np.searchsorted(self._ends, index, side="right"))
        series, place = self._series(patch), index - (int(self._ends[patch - 1]) if patch else 0)
        rows = slice(place, place + 1)
        return Batch(series.x[rows], series.valid[rows], series.days[rows], series.labels[rows], series.parcels[rows])

    def _series(self, patch: int) -> Batch:
        if patch not in self._kept:
            if len(self._kept) >= PATCHES_KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[patch] = self._patches.batch([patch]).as_series()
        return self._kept[patch]
