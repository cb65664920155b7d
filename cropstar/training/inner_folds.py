"""Cross-validation inside of what is not the test part: each fold is the validation part once."""

from __future__ import annotations

from collections import Counter, defaultdict

from cropstar.config import TrainConfig
from cropstar.datasets.fields import FieldName, Fields, ParcelId, Target, assign_units, blocks_of
from cropstar.datasets.splits import PixelSplit, Split
from cropstar.errors import InputError, UsageError
from cropstar.runtime import logger
from cropstar.store.store import Store


def without_test(split: Split) -> Split:
    """The split as a trial may know it: parcels of the test part are in no part at all."""
    if isinstance(split, PixelSplit):
        return split  # every parcel is in all parts; by the mask of pixels the test part stays apart
    kept = {parcel: part for parcel, part in split.part_of.items() if part != "test"}
    return Split(kept, {parcel: split.label_of[parcel] for parcel in kept}, split.about)


def inner_folds(store: Store, split: Split, config: TrainConfig, target: Target, folds: int) -> list[Split]:
    """Training and validation parcels together, dealt out to the folds; what stays together there does so here.

    Fields are dealt class by class. By block, scene or group the units are; of a field in several units only the
    pieces in the fold of its first one are kept. Where the split itself took fields of the training units for
    validation, as it does when a single group is left to train on, fields are dealt here as well. Of fewer units than
    folds, each is a fold, unless the user chose what validation is.
    """
    if config.split.by == "pixel":
        raise UsageError("no folds by pixel", why="neighbours would be in all of them", remedy="take split.by=parcel")
    rest = without_test(split)
    fields = Fields.of(store, dated=target == "date")
    pieces = {
        field: own
        for field, parcels in fields.pieces.items()
        if (own := [parcel for parcel in parcels if parcel in rest.part_of])
    }
    whole_units = config.split.by != "parcel" and bool(rest.about.get("units", {}).get("validation"))
    if not whole_units:  # a data set's own split among them
        order = [field for members in fields.shuffled_by_class(config.seed, pieces) for field in members]
        fold_of = {parcel: place % folds for place, field in enumerate(order) for parcel in pieces[field]}
        count = len(order)
    else:
        unit_of = _units(store, fields, config, pieces)
        tallies: dict[str, Counter[int]] = defaultdict(Counter)
        for parcel, unit in unit_of.items():
            tallies[unit][rest.label_of[parcel]] += 1
        dealt = assign_units(tallies, {str(fold): 1 / folds for fold in range(folds)}, config.seed)
        fold_of = _untorn({parcel: int(dealt[unit]) for parcel, unit in unit_of.items()}, pieces)
        count = len(tallies)
    if count < folds and count > 1 and whole_units and config.split.validation is None:
        logger.info("%d folds, for training and validation have no more by %s", count, config.split.by)
        return inner_folds(store, split, config, target, count)
    if count < folds:
        why = f"training and validation have {count} by {config.split.by}"
        raise InputError(f"no {folds} folds", path=store.folder, why=why, remedy="take fewer folds")
    labels = {parcel: rest.label_of[parcel] for parcel in fold_of}
    return [
        Split({parcel: "validation" if own == fold else "train" for parcel, own in fold_of.items()}, labels, rest.about)
        for fold in range(folds)
    ]


def _units(
    store: Store, fields: Fields, config: TrainConfig, pieces: dict[FieldName, list[ParcelId]]
) -> dict[ParcelId, str]:
    parcels = [parcel for own in pieces.values() for parcel in own]
    if config.split.by == "block":
        blocks = blocks_of(store, fields, config.split.block)
        return {parcel: block for field, block in blocks.items() for parcel in pieces.get(field, [])}
    return {parcel: parcel[0] if config.split.by == "scene" else fields.group_of[parcel] for parcel in parcels}


def _untorn(fold_of: dict[ParcelId, int], pieces: dict[FieldName, list[ParcelId]]) -> dict[ParcelId, int]:
    kept: dict[ParcelId, int] = {}
    for own in pieces.values():
        dealt = [parcel for parcel in own if parcel in fold_of]
        kept.update({parcel: fold_of[parcel] for parcel in dealt if fold_of[parcel] == fold_of[dealt[0]]})
    return kept
