"""Dealing a store out to training, validation and test, so that no field is in two of them."""

from __future__ import annotations

from typing import Any

from cropstar.config import SplitConfig, TrainConfig
from cropstar.datasets.blocks import blocks_of
from cropstar.datasets.fields import Fields, ParcelId
from cropstar.datasets.named_splits import by_name, named_splits
from cropstar.datasets.parts import PARTS, Split
from cropstar.datasets.pixels import split_pixels
from cropstar.datasets.targets import Target, choose_target
from cropstar.datasets.units import by_units
from cropstar.errors import InputError, UsageError
from cropstar.store.store import Store

__all__ = ["PARTS", "ParcelId", "Split", "named_splits", "split_parcels", "training_split"]


def training_split(store: Store, config: TrainConfig) -> Split:
    """The split of a training; a refit is refused where it has no validation parcels."""
    try:
        return split_parcels(store, config.split, config.seed, choose_target(config, store))
    except InputError as failure:
        if not config.refit or not failure.what.endswith("left for validation"):
            raise
        what, why = "--refit needs validation parcels", failure.why
        raise UsageError(what, path=store.folder, why=why, remedy="leave it out") from None


def split_parcels(store: Store, config: SplitConfig, seed: int, target: Target | None = None) -> Split:
    """Deal out by what the configuration says; the same seed gives the same parts, whatever the order of tiles.

    Where dates are the target, also parcels take part that have classes by date alone.
    """
    fields = Fields.of(store, dated=target == "date")
    about = _about(config, seed)
    if config.by == "pixel":
        split: Split = split_pixels(store, fields, config, seed, about)
        counts = split.counts(max(fields.label_of.values(), default=0) + 1)
        filled = {part for part in PARTS if any(counts[part])}
    else:
        part_of, units = _part_of(store, fields, config, seed)
        if units:
            about["units"] = {part: sorted(unit for unit in units if units[unit] == part) for part in PARTS}
        split = Split(part_of, {parcel: fields.label_of[parcel] for parcel in part_of}, about)
        filled = set(part_of.values())
    for part in PARTS:
        if part not in filled:
            why, remedy = _too_few(fields, config, about)
            raise InputError(f"no parcel is left for {part}", path=store.folder, why=why, remedy=remedy)
    return split


def _part_of(
    store: Store, fields: Fields, config: SplitConfig, seed: int
) -> tuple[dict[ParcelId, str], dict[str, str]]:
    """The part of every parcel, and of every unit where whole units were dealt out."""
    if config.name is not None:
        return by_name(store, fields, config, seed), {}
    if config.by == "parcel":
        return (_by_fold if config.folds else _by_lot)(fields, config, seed), {}
    if config.by == "block":
        blocks = blocks_of(store, fields, config.block)
        unit_of = {parcel: block for field, block in blocks.items() for parcel in fields.pieces[field]}
    else:
        unit_of = {parcel: parcel[0] for parcel in fields.label_of} if config.by == "scene" else fields.group_of
    return by_units(fields, unit_of, config, seed, store.folder)


def _by_lot(fields: Fields, config: SplitConfig, seed: int) -> dict[ParcelId, str]:
    assert isinstance(config.test, float)
    part_of: dict[ParcelId, str] = {}
    for members in fields.dealt(seed, fields.pieces):
        test = round(len(members) * config.test)
        validation = round(len(members) * config.validation_share)
        for rank, field in enumerate(members):
            part = "test" if rank < test else "validation" if rank < test + validation else "train"
            part_of.update(dict.fromkeys(fields.pieces[field], part))
    return part_of


def _by_fold(fields: Fields, config: SplitConfig, seed: int) -> dict[ParcelId, str]:
    """Fields dealt to the folds in turn, class after class; of the rest a share becomes validation."""
    assert config.folds is not None
    order = [field for members in fields.dealt(seed, fields.pieces) for field in members]
    rest = [field for place, field in enumerate(order) if place % config.folds + 1 != config.fold]
    part_of_field = {**dict.fromkeys(order, "test"), **dict.fromkeys(rest, "train")}
    part_of_field.update(dict.fromkeys(fields.share(seed, rest, config.validation_share), "validation"))
    return {parcel: part for field, part in part_of_field.items() for parcel in fields.pieces[field]}


def _about(config: SplitConfig, seed: int) -> dict[str, Any]:
    """By what, from which seed, with the settings that matter."""
    given = config.model_dump(mode="json")
    if config.validation is None:
        given["validation"] = config.validation_share
    if config.name is not None:
        return {"by": "name", "seed": seed, "name": config.name, "validation": given["validation"]}
    chosen = ["validation", *(["folds", "fold"] if config.folds else ["test"])]
    chosen += ["block"] if config.by == "block" else []
    chosen += ["train"] if config.train is not None else []
    return {"by": config.by, "seed": seed, **{key: given[key] for key in chosen}}


def _too_few(fields: Fields, config: SplitConfig, about: dict[str, Any]) -> tuple[str, str]:
    """Why a part is empty, and what helps."""
    if config.name is not None:
        why = f"the split '{config.name}' gives it none of those that are in the store"
        return why, "choose another split, or leave split.name out"
    if "units" in about:
        units = sum(map(len, about["units"].values()))
        size = f" of {config.block:g} m" if config.by == "block" else ""
        why = f"{len(fields.label_of)} parcels lie in {units} {config.by}{'s' * (units != 1)}{size}"
        if config.named:
            return why, "name other groups, or leave them out"
        remedy = "make split.block smaller" if config.by == "block" else "take split.by=parcel"
        return why, remedy
    why = f"{len(fields.label_of)} parcels in {len(set(fields.label_of.values()))} classes are too few"
    if config.folds:
        return why, "label more parcels, or change split.validation and split.folds"
    return why, "label more parcels or change split.validation and split.test"
