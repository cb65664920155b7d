"""The data sets' own splits, as they were published."""

from __future__ import annotations

from collections import Counter, defaultdict

from cropstar.config import SplitConfig
from cropstar.datasets.fields import FieldName, Fields, ParcelId
from cropstar.datasets.units import Tally, leave_out
from cropstar.errors import UsageError
from cropstar.logs import logger
from cropstar.registry import did_you_mean
from cropstar.store.store import Store


def named_splits(store: Store) -> dict[str, dict[tuple[str, str], str]]:
    """The data sets' own splits: of each the part of every scene's groups."""
    found: dict[str, dict[tuple[str, str], str]] = {}
    for scene, about in store.manifest.scenes.items():
        for name, parts in about.get("splits", {}).items():
            for part, groups in parts.items():
                found.setdefault(name, {}).update({(scene, str(group)): part for group in groups})
    return found


def by_name(store: Store, fields: Fields, config: SplitConfig, seed: int) -> dict[ParcelId, str]:
    """A published split; where it has no validation part, some of its training fields become one."""
    name, known = str(config.name), named_splits(store)
    if name not in known:
        why = "the data set has none of its own" if not known else ""
        remedy = did_you_mean(name, known) if known else "leave split.name out, for a stratified random split"
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
        part_of_field.update(dict.fromkeys(_validation(fields, training, config, seed), "validation"))
    return {parcel: part for field, part in part_of_field.items() for parcel in fields.pieces[field]}


def _validation(fields: Fields, training: list[FieldName], config: SplitConfig, seed: int) -> list[FieldName]:
    """Whole groups of the training fields, each in the group of its first piece; else a stratified share."""
    how = "a stratified share of its training fields is taken"
    if config.validation is None:
        firsts = {field: fields.pieces[field][0] for field in training}
        unit_of = {field: f"{fields.group_of[first]} of {first[0]}" for field, first in firsts.items()}
        tallies: dict[str, Tally] = defaultdict(Counter)
        for field, unit in unit_of.items():
            tallies[unit][fields.label(field)] += 1
        units, why = leave_out(tallies, config.validation_share, seed, "group")
        if units:
            return [field for field in training if unit_of[field] in units]
        how += f", for {why}"
    logger.info("the split '%s' has no validation part: %s", config.name, how)
    return fields.share(seed, training, config.validation_share)
