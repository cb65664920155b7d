"""Whole units (blocks of ground, scenes, groups) dealt out to the parts of a split.

By lot: larger units before smaller ones (by powers of two), in random order among those of like size; each goes where
its classes are wanted most: the part with the largest sum, over the classes, of the unit's share of a class times what
the part still lacks of it. As soon as there are no more units left than parts without one, these parts come first.
The order depends on the seed and the units' names alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

from cropstar.config import SplitConfig
from cropstar.datasets.fields import FieldName, Fields, ParcelId, lot
from cropstar.errors import InputError, UsageError
from cropstar.logs import logger
from cropstar.registry import did_you_mean

Tally = Counter[int]  # parcels of each class
USUAL_SHARES = {"validation": 0.15, "test": 0.25}  # where groups are given by name and a field lies in several parts


def by_units(
    fields: Fields, unit_of: Mapping[ParcelId, str], config: SplitConfig, seed: int, path: Path
) -> tuple[dict[ParcelId, str], dict[str, str]]:
    """The part of every parcel, and of every unit.

    A field in units of several parts is kept in one of these, by lot; its pieces elsewhere are left out. Where no unit
    is for validation, a share of the training fields is, class by class.
    """
    tallies: dict[str, Tally] = defaultdict(Counter)
    for parcel, unit in unit_of.items():
        tallies[unit][fields.label_of[parcel]] += 1
    if config.named:
        part_of_unit = _by_name(tallies, config, path)
    elif config.folds:
        part_of_unit = _by_fold(tallies, config, seed, path)
    else:
        part_of_unit = deal(tallies, _shares(config), seed)
    parts = {parcel: part_of_unit[unit] for parcel, unit in unit_of.items() if unit in part_of_unit}
    part_of_field = _untorn(fields, parts, _shares(config), seed)
    kept = {
        parcel: part
        for field, part in part_of_field.items()
        for parcel in fields.pieces[field]
        if parts.get(parcel) == part
    }
    if "validation" not in part_of_unit.values() and isinstance(config.validation, float):
        training = [field for field, part in part_of_field.items() if part == "train"]
        for field in fields.share(seed, training, config.validation):
            kept.update({parcel: "validation" for parcel in fields.pieces[field] if parcel in kept})
    return kept, part_of_unit


def deal(tallies: Mapping[str, Tally], shares: Mapping[str, float], seed: int) -> dict[str, str]:
    """Units to parts whose shares of every class come near the wanted ones; see the head of this file."""
    totals: Tally = sum(tallies.values(), Counter())
    lacking = {part: dict.fromkeys(totals, share) for part, share in shares.items()}
    order = sorted(tallies, key=lambda unit: (-tallies[unit].total().bit_length(), lot(seed, unit)))
    found: dict[str, str] = {}
    for done, unit in enumerate(order):
        empty = [part for part in shares if part not in found.values()]
        weights = {label: count / totals[label] for label, count in sorted(tallies[unit].items())}

        def wanted(part: str, weights: dict[int, float] = weights) -> float:
            return sum(weight * lacking[part][label] for label, weight in weights.items())

        chosen = max(empty if len(order) - done <= len(empty) else shares, key=wanted)
        found[unit] = chosen
        for label, weight in weights.items():
            lacking[chosen][label] -= weight
    return found


def _shares(config: SplitConfig) -> dict[str, float]:
    given = {"validation": config.validation, "test": config.test}
    held = {part: share if isinstance(share, float) else USUAL_SHARES[part] for part, share in given.items()}
    return {"train": max(1 - sum(held.values()), 0.1), **held}


def _by_name(tallies: Mapping[str, Tally], config: SplitConfig, path: Path) -> dict[str, str]:
    found = {name: part for part, names in config.named.items() for name in names}
    for name in found:
        if name not in tallies:
            remedy = did_you_mean(name, tallies)
            raise UsageError(
                f"unknown {config.by} '{name}'", path=path, why="no labelled parcel is in it", remedy=remedy
            )
    others = sorted(set(tallies) - set(found))
    if config.train is None:
        found.update(dict.fromkeys(others, "train"))
    elif others:
        logger.info("left out, for no part names them: %s", ", ".join(others))
    return found


def _by_fold(tallies: Mapping[str, Tally], config: SplitConfig, seed: int, path: Path) -> dict[str, str]:
    """One fold for the test; of the rest a share for validation, in whole units where there is more than one."""
    assert config.folds is not None
    assert isinstance(config.validation, float)
    if len(tallies) < config.folds:
        why = f"the store has {len(tallies)} by {config.by}"
        remedy = "take fewer folds" + (", or make split.block smaller" if config.by == "block" else "")
        raise InputError(f"no {config.folds} folds", path=path, why=why, remedy=remedy)
    folds = deal(tallies, {str(fold): 1 / config.folds for fold in range(1, config.folds + 1)}, seed)
    rest = {unit: tally for unit, tally in tallies.items() if folds[unit] != str(config.fold)}
    shares = {"train": 1 - config.validation, "validation": config.validation}
    dealt = deal(rest, shares, seed) if len(rest) > 1 else dict.fromkeys(rest, "train")
    return {**dict.fromkeys(tallies, "test"), **dealt}


def _untorn(
    fields: Fields, parts: Mapping[ParcelId, str], shares: Mapping[str, float], seed: int
) -> dict[FieldName, str]:
    """The one part of every field that is in any."""
    found: dict[FieldName, str] = {}
    torn = 0
    for field, pieces in fields.pieces.items():
        own = {parts[parcel] for parcel in pieces if parcel in parts}
        if len(own) > 1:
            torn += 1
            found[field] = _drawn([part for part in shares if part in own], shares, lot(seed, "part", *field))
        elif own:
            found[field] = own.pop()
    if torn:
        logger.warning("%d fields lie in several parts of the split: each is kept in one of them alone", torn)
    return found


def _drawn(candidates: list[str], shares: Mapping[str, float], ticket: bytes) -> str:
    place = int.from_bytes(ticket, "big") / 2 ** (8 * len(ticket)) * sum(shares[part] for part in candidates)
    for part in candidates:
        place -= shares[part]
        if place < 0:
            return part
    return candidates[-1]
