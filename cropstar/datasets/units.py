"""Splits by whole units: blocks of ground, scenes, groups.

At random: larger units before smaller ones (by powers of two), in random order among those of like size; each goes
where its classes are wanted most: the part with the largest sum, over the classes, of the unit's share of a class times
what the part still lacks of it. As soon as there are no more units left than parts without one, these parts come first.
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
USUAL_TEST = 0.25  # where groups are given by name and a field lies in several parts
TRIES = 64  # random choices, of which the best is taken
FEW_UNITS = 30  # of more than these, dealing them out comes near enough to any share


def by_units(
    fields: Fields, unit_of: Mapping[ParcelId, str], config: SplitConfig, seed: int, path: Path
) -> tuple[dict[ParcelId, str], dict[str, str]]:
    """The part of every parcel, and of every unit.

    A field in units of several parts is kept in one of these, at random; its pieces elsewhere are left out. Where no
    unit is for validation, a stratified share of the training fields is.
    """
    tallies: dict[str, Tally] = defaultdict(Counter)
    for parcel, unit in unit_of.items():
        tallies[unit][fields.label_of[parcel]] += 1
    why = ""
    if config.named:
        part_of_unit, why = _by_name(tallies, config, seed, path)
    elif config.folds:
        part_of_unit, why = _by_fold(tallies, config, seed, path)
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
    if "validation" not in part_of_unit.values():
        if list(part_of_unit.values()).count("train") == 1:
            why = f"only one {config.by} is left to train on"
        if why:
            _warn(config, why)
        training = [field for field, part in part_of_field.items() if part == "train"]
        for field in fields.share(seed, training, config.validation_share):
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


def leave_out(tallies: Mapping[str, Tally], share: float, seed: int, by: str) -> tuple[set[str], str]:
    """Whole units for validation, so that it is as new to the model as the test is; or none, and why.

    Of several random choices the one is taken that costs training the fewest fields of classes which it then lacks, and
    that comes nearest to the share in every class. Choices within five points of each other count as equally good: the
    seed decides among them.
    """
    if len(tallies) < 2:
        return set(), f"only one {by} is left to train on"
    totals: Tally = sum(tallies.values(), Counter())
    count = totals.total()

    def drawn(number: int) -> set[str]:
        """Units in random order, as long as they bring validation nearer to its share."""
        held: set[str] = set()
        lacking = share * count
        for unit in sorted(tallies, key=lambda unit: lot(seed, "leave out", str(number), unit))[:-1]:
            size = tallies[unit].total()
            if not held or abs(lacking - size) < abs(lacking):
                held.add(unit)
                lacking -= size
        return held

    def lost(units: set[str]) -> float:
        """The share of fields whose classes training would lack."""
        known = {label for unit, tally in tallies.items() if unit not in units for label in tally if tally[label]}
        return sum(totals[label] for label in totals if label not in known) / count

    def cost(units: set[str]) -> tuple[int, int]:
        held: Tally = sum((tallies[unit] for unit in units), Counter())
        distance = sum(abs(held[label] - share * totals[label]) for label in totals) / count
        return round(lost(units) / 0.05), round(distance / 0.05)

    if len(tallies) > FEW_UNITS:
        dealt = deal(tallies, {"train": 1 - share, "validation": share}, seed)
        best = {unit for unit, part in dealt.items() if part == "validation"}
    else:
        best = min(map(drawn, range(TRIES)), key=cost)
    if lost(best) > 0.05:
        return set(), f"every {by} that is left has crops of its own"
    if sum(tallies[unit].total() for unit in best) < share * count / 3:
        return set(), f"the smaller {by}s that are left have too few fields"
    names = ", ".join(sorted(best)) if len(best) <= 10 else f"{len(best)} of them"
    logger.info("validation takes whole %ss, as the test does: %s", by, names)
    return best, ""


def _warn(config: SplitConfig, why: str) -> None:
    logger.warning(
        "validation is a stratified share of the training fields, for %s: its scores will look better than those on "
        "the held-out %ss",
        why,
        config.by,
    )


def _shares(config: SplitConfig) -> dict[str, float]:
    test = config.test if isinstance(config.test, float) else USUAL_TEST
    held = {"validation": config.validation_share, "test": test}
    return {"train": max(1 - sum(held.values()), 0.1), **held}


def _by_name(tallies: Mapping[str, Tally], config: SplitConfig, seed: int, path: Path) -> tuple[dict[str, str], str]:
    """Units as they are named; of those for training some for validation, or why not."""
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
    if config.validation is not None:
        return found, ""
    training = {unit: tallies[unit] for unit, part in found.items() if part == "train"}
    units, why = leave_out(training, config.validation_share, seed, config.by)
    return {**found, **dict.fromkeys(units, "validation")}, why


def _by_fold(tallies: Mapping[str, Tally], config: SplitConfig, seed: int, path: Path) -> tuple[dict[str, str], str]:
    """One fold for the test; of the rest some for validation, in whole units where there is more than one."""
    assert config.folds is not None
    if len(tallies) < config.folds:
        why = f"the store has {len(tallies)} by {config.by}"
        remedy = "take fewer folds" + (", or make split.block smaller" if config.by == "block" else "")
        raise InputError(f"no {config.folds} folds", path=path, why=why, remedy=remedy)
    folds = deal(tallies, {str(fold): 1 / config.folds for fold in range(1, config.folds + 1)}, seed)
    rest = {unit: tally for unit, tally in tallies.items() if folds[unit] != str(config.fold)}
    parts = {**dict.fromkeys(tallies, "test"), **dict.fromkeys(rest, "train")}
    if config.validation is None:
        units, why = leave_out(rest, config.validation_share, seed, config.by)
        return {**parts, **dict.fromkeys(units, "validation")}, why
    shares = {"train": 1 - config.validation_share, "validation": config.validation_share}
    return {**parts, **(deal(rest, shares, seed) if len(rest) > 1 else {})}, ""


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
