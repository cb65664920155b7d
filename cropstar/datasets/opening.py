"""From a store and a split to the data sets of its parts."""

from __future__ import annotations

from cropstar.config import TrainConfig
from cropstar.datasets.batch import Dataset
from cropstar.datasets.patches import PatchDataset, measure_patches
from cropstar.datasets.series import SeriesDataset, measure_series
from cropstar.datasets.splits import PARTS, Split
from cropstar.errors import UsageError
from cropstar.store.normalisation import Normalisation
from cropstar.store.store import Store


def open_parts(
    store: Store, split: Split, config: TrainConfig, *, spatial: bool
) -> tuple[dict[str, Dataset], Normalisation]:
    """Training, validation and test, and the normalisation measured on the training part."""
    layouts = {entry.layout for entry in store.manifest.tiles}
    if layouts == {"series"}:
        if spatial:
            why = f"the store holds series without neighbours, and {config.model.name} wants images"
            raise UsageError("no images", path=store.folder, why=why, remedy="take a series model, e.g. --model star")
        normalisation = measure_series(store, split)
        return {
            part: SeriesDataset(store, split, part, normalisation, config.series_batch) for part in PARTS
        }, normalisation
    if "series" in layouts:
        raise UsageError(
            "a store of images and series", path=store.folder, remedy="ingest images and series into two stores"
        )
    normalisation = measure_patches(store, split)
    return {
        # Larger patches for judging: fewer pixels have their neighbours cut off. A map, computed with the
        # model's whole margin, cuts none off.
        part: PatchDataset(
            store, split, part, config.patch * (1 if part == "train" else 2), normalisation, config.batch
        )
        for part in PARTS
    }, normalisation
