"""From a store and a split to the data sets of its parts."""

from __future__ import annotations

from cropstar.config import RegularConfig, TrainConfig
from cropstar.datasets.parcels import ParcelDataset, measure_pooled, pool_parcels
from cropstar.datasets.patches import PatchDataset, measure_patches
from cropstar.datasets.prepared import Countable, Prepared
from cropstar.datasets.series import SeriesDataset, measure_series
from cropstar.datasets.splits import PARTS, Split
from cropstar.datasets.targets import Target, choose_target
from cropstar.errors import UsageError
from cropstar.store.normalisation import Normalisation
from cropstar.store.store import Store


def open_parts(
    store: Store,
    split: Split,
    config: TrainConfig,
    *,
    spatial: bool,
    regular: RegularConfig | None = None,
    normalisation: Normalisation | None = None,
) -> tuple[dict[str, Prepared], Normalisation]:
    """Training, validation and test, and the normalisation: that which is given, or measured on the training part."""
    parts, normalisation = _open(store, split, config, normalisation, spatial=spatial)
    season = store.fingerprint.season
    return {
        part: Prepared(samples, season, regular or RegularConfig()) for part, samples in parts.items()
    }, normalisation


def _open(
    store: Store, split: Split, config: TrainConfig, normalisation: Normalisation | None, *, spatial: bool
) -> tuple[dict[str, Countable], Normalisation]:
    target = require_samples(store, config, spatial=spatial)
    if any(entry.layout == "series" for entry in store.manifest.tiles):
        normalisation = normalisation or measure_series(store, split)
        return {
            part: SeriesDataset(
                store,
                split,
                part,
                normalisation,
                config.series_batch,
                dated=target == "date",
                unlabelled=part == "train" and config.distil is not None,
            )
            for part in PARTS
        }, normalisation
    if target == "parcel":
        pooled = pool_parcels(store, split)
        normalisation = normalisation or measure_pooled(pooled, store, split)
        return {
            part: ParcelDataset(pooled, store, split, part, normalisation, config.series_batch) for part in PARTS
        }, normalisation
    normalisation = normalisation or measure_patches(store, split)
    return {
        # Larger patches for judging: fewer pixels have their neighbours cut off. A map, computed with the
        # model's whole margin, cuts none off.
        part: PatchDataset(
            store, split, part, config.patch * (1 if part == "train" else 2), normalisation, config.batch
        )
        for part in PARTS
    }, normalisation


def require_samples(store: Store, config: TrainConfig, *, spatial: bool) -> Target:
    """What has a class; refuses a store that has no samples of the kind that target and model want."""
    layouts = {entry.layout for entry in store.manifest.tiles}
    if "series" in layouts and len(layouts) > 1:
        raise UsageError(
            "a store of images and series", path=store.folder, remedy="ingest images and series into two stores"
        )
    target = choose_target(config, store)
    if spatial and target != "pixel":
        held = "the store holds series without neighbours" if "series" in layouts else "a parcel is one series"
        why = f"{held}, and {config.model.name} wants images"
        raise UsageError("no images", path=store.folder, why=why, remedy="take a series model, e.g. --model star")
    if target == "parcel" and config.split.by == "pixel":
        raise UsageError("parcels cannot be split by pixel", remedy="leave split.by or the target out")
    return target
