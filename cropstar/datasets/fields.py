"""Labelled fields of a store, and the units that a split keeps whole: blocks of ground, scenes, groups."""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cropstar.config import SplitConfig, TrainConfig
from cropstar.errors import InputError, UsageError
from cropstar.geo.grid import Grid, metres_per_unit
from cropstar.registry import did_you_mean
from cropstar.runtime import logger
from cropstar.store.classes import UNLABELLED
from cropstar.store.reader import TileReader
from cropstar.store.store import Store

ParcelId = tuple[str, int]  # scene and number in it
FieldName = tuple[str, str]  # origin and key: a field may lie in several pieces, which stay together
Target = Literal["pixel", "parcel", "date"]  # what has a class
Tally = Counter[int]  # parcels of each class
USUAL_TEST_SHARE = 0.25  # where groups are given by name and a field lies in several parts
TRIES = 64  # random choices, of which the best is taken
FEW_UNITS = 30  # of more than these, dealing them out comes near enough to any share
METRES_PER_DEGREE = 111_320.0  # of latitude
NO_BLOCKS_REMEDY = "use split.by=parcel, or split.by=group where the data have groups"


@dataclass(frozen=True)
class Fields:
    """The labelled parcels of a store, and which of them are pieces of one field."""

    label_of: dict[ParcelId, int]
    group_of: dict[ParcelId, str]  # region, year, tile or fold: what a data set's own splits deal out
    pieces: dict[FieldName, list[ParcelId]]

    @classmethod
    def of(cls, store: Store, *, dated: bool = False) -> Fields:
        """The parcels that have a class; if dates have classes (`dated`), with the most frequent one."""
        dated = dated or has_only_dates(store)
        labels: dict[ParcelId, int] = {}
        groups: dict[ParcelId, str] = {}
        names: dict[ParcelId, FieldName] = {}
        for _, reader in store.readers():
            table, provenance = reader.table, reader.provenance
            # Scenes labelled from one file share its fields: a field of two dates, tiles or years is still one field.
            origin = str(provenance.get("origin", reader.scene))
            own = table.groups or [str(provenance.get("group", reader.scene))] * len(table.keys)
            classes = _classes_with_dates(reader) if dated else table.labels
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

    def shuffled_by_class(self, seed: int, chosen: Iterable[FieldName]) -> Iterator[list[FieldName]]:
        """Fields by class, in an order that depends only on the seed and the names of the fields."""
        by_class: dict[int, list[FieldName]] = defaultdict(list)
        for field in chosen:
            by_class[self.label(field)].append(field)
        for _, members in sorted(by_class.items()):
            yield sorted(members, key=lambda field: random_key(seed, *field))

    def share(self, seed: int, chosen: Iterable[FieldName], part: float) -> list[FieldName]:
        """A stratified random share of some fields."""
        return [
            field for members in self.shuffled_by_class(seed, chosen) for field in members[: round(len(members) * part)]
        ]


def _classes_with_dates(reader: TileReader) -> NDArray[np.int16]:
    """The class of every sample; of one without, such as one of clouds alone, the most frequent of its dates."""
    labels = reader.table.labels
    if reader.date_labels is None:
        return labels
    classes = labels.copy()
    for place in np.flatnonzero(labels == UNLABELLED):
        own = reader.date_labels[reader.starts[place] : reader.starts[place + 1]]
        own = own[own != UNLABELLED]
        if len(own):
            classes[place] = np.bincount(own).argmax()
    return classes


def random_key(seed: int, *names: str) -> bytes:
    """A pseudo-random sort key for a name: orders by it are random and the same on every machine."""
    return hashlib.blake2b("|".join((str(seed), *names)).encode(), digest_size=8).digest()


# --- target: what has a class


def choose_target(config: TrainConfig, store: Store) -> Target:
    """The configured target, or the one that the store has labels for. Refuses a target without labels."""
    wanted = config.target
    if store.manifest.layouts != {"series"}:
        if wanted == "date":
            raise _refuse_target("no labels by date", store, "the store holds images, whose pixels have one class each")
        return wanted or "pixel"
    if wanted == "pixel":
        raise _refuse_target("no pixels", store, "the store holds series")
    only_dates = has_only_dates(store)
    if wanted == "parcel" and only_dates:
        raise _refuse_target("no labels by parcel", store, "the store has them by date alone")
    chosen: Target = wanted or ("date" if only_dates else "parcel")
    if chosen == "date" and not _has_dates(store):
        raise _refuse_target("no labels by date", store, "the store has one class per series")
    if chosen == "date" and config.regular.changes:
        why = "a period may have dates of several classes"
        raise UsageError("regular dates have no labels", why=why, remedy="leave regular.every or the target out")
    return chosen


def has_only_dates(store: Store) -> bool:
    """Whether dates have classes and no parcel has one."""
    return _has_dates(store) and not any((reader.table.labels != UNLABELLED).any() for reader in store.tiles)


def _has_dates(store: Store) -> bool:
    # Asked of tiles of series alone: of others it would be one more look into each of maybe thousands of files.
    if store.manifest.layouts != {"series"}:
        return False
    dated = (reader.date_labels for reader in store.tiles)
    return any(labels is not None and bool((labels != UNLABELLED).any()) for labels in dated)


def _refuse_target(what: str, store: Store, why: str) -> UsageError:
    return UsageError(what, path=store.folder, why=why, remedy="leave target out")


# --- whole units: blocks, scenes, groups


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
        part_of_unit, why = _units_by_name(tallies, config, seed, path)
    elif config.folds:
        part_of_unit, why = _units_by_fold(tallies, config, seed, path)
    else:
        part_of_unit = assign_units(tallies, _shares(config), seed)
    parts = {parcel: part_of_unit[unit] for parcel, unit in unit_of.items() if unit in part_of_unit}
    part_of_field = _one_part_each(fields, parts, _shares(config), seed)
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
            _warn_of_easy_validation(config, why)
        training = [field for field, part in part_of_field.items() if part == "train"]
        for field in fields.share(seed, training, config.validation_share):
            kept.update({parcel: "validation" for parcel in fields.pieces[field] if parcel in kept})
    return kept, part_of_unit


def assign_units(tallies: Mapping[str, Tally], shares: Mapping[str, float], seed: int) -> dict[str, str]:
    """Units to parts whose shares of every class come near the wanted ones.

    Larger units come before smaller ones (by powers of two), in random order among those of like size. Each goes where
    its classes are wanted most: to the part with the largest sum, over the classes, of the unit's share of a class
    times what the part still lacks of it. As soon as there are no more units left than parts without one, these parts
    come first. The order depends on the seed and the units' names alone.
    """
    totals: Tally = sum(tallies.values(), Counter())
    lacking = {part: dict.fromkeys(totals, share) for part, share in shares.items()}
    order = sorted(tallies, key=lambda unit: (-tallies[unit].total().bit_length(), random_key(seed, unit)))
    part_of: dict[str, str] = {}
    for done, unit in enumerate(order):
        empty = [part for part in shares if part not in part_of.values()]
        weights = {label: count / totals[label] for label, count in sorted(tallies[unit].items())}

        def wanted(part: str, weights: dict[int, float] = weights) -> float:
            return sum(weight * lacking[part][label] for label, weight in weights.items())

        chosen = max(empty if len(order) - done <= len(empty) else shares, key=wanted)
        part_of[unit] = chosen
        for label, weight in weights.items():
            lacking[chosen][label] -= weight
    return part_of


def hold_out_units(tallies: Mapping[str, Tally], share: float, seed: int, by: str) -> tuple[set[str], str]:
    """Whole units for validation, so that it is as independent as the test; or none, and the reason.

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
        for unit in sorted(tallies, key=lambda unit: random_key(seed, "leave out", str(number), unit))[:-1]:
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
        dealt = assign_units(tallies, {"train": 1 - share, "validation": share}, seed)
        best = {unit for unit, part in dealt.items() if part == "validation"}
    else:
        best = min(map(drawn, range(TRIES)), key=cost)
    if lost(best) > 0.05:
        return set(), f"every {by} that is left has crops of its own"
    if sum(tallies[unit].total() for unit in best) < share * count / 3:
        return set(), f"the smaller {by}s that are left have too few fields"
    names = ", ".join(sorted(best)) if len(best) <= 10 else f"{len(best)} of them"
    logger.info("validation holds out whole %ss, as the test does: %s", by, names)
    return best, ""


def _warn_of_easy_validation(config: SplitConfig, why: str) -> None:
    logger.warning(
        "validation is a stratified share of the training fields, for %s: its scores will look better than those on "
        "the held-out %ss",
        why,
        config.by,
    )


def _shares(config: SplitConfig) -> dict[str, float]:
    test = config.test if isinstance(config.test, float) else USUAL_TEST_SHARE
    held = {"validation": config.validation_share, "test": test}
    return {"train": max(1 - sum(held.values()), 0.1), **held}


def _units_by_name(
    tallies: Mapping[str, Tally], config: SplitConfig, seed: int, path: Path
) -> tuple[dict[str, str], str]:
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
        logger.info("not used, because no part of the split names them: %s", ", ".join(others))
    if config.validation is not None:
        return found, ""
    training = {unit: tallies[unit] for unit, part in found.items() if part == "train"}
    units, why = hold_out_units(training, config.validation_share, seed, config.by)
    return {**found, **dict.fromkeys(units, "validation")}, why


def _units_by_fold(
    tallies: Mapping[str, Tally], config: SplitConfig, seed: int, path: Path
) -> tuple[dict[str, str], str]:
    """One fold for the test; of the rest some for validation, in whole units where there is more than one."""
    assert config.folds is not None
    if len(tallies) < config.folds:
        why = f"the store has {len(tallies)} by {config.by}"
        remedy = "use fewer folds" + (", or make split.block smaller" if config.by == "block" else "")
        raise InputError(f"no {config.folds} folds", path=path, why=why, remedy=remedy)
    folds = assign_units(tallies, {str(fold): 1 / config.folds for fold in range(1, config.folds + 1)}, seed)
    rest = {unit: tally for unit, tally in tallies.items() if folds[unit] != str(config.fold)}
    parts = {**dict.fromkeys(tallies, "test"), **dict.fromkeys(rest, "train")}
    if config.validation is None:
        units, why = hold_out_units(rest, config.validation_share, seed, config.by)
        return {**parts, **dict.fromkeys(units, "validation")}, why
    shares = {"train": 1 - config.validation_share, "validation": config.validation_share}
    return {**parts, **(assign_units(rest, shares, seed) if len(rest) > 1 else {})}, ""


def _one_part_each(
    fields: Fields, parts: Mapping[ParcelId, str], shares: Mapping[str, float], seed: int
) -> dict[FieldName, str]:
    """The one part of every field that is in any."""
    part_of: dict[FieldName, str] = {}
    torn = 0
    for field, pieces in fields.pieces.items():
        own = {parts[parcel] for parcel in pieces if parcel in parts}
        if len(own) > 1:
            torn += 1
            part_of[field] = _weighted_choice(
                [part for part in shares if part in own], shares, random_key(seed, "part", *field)
            )
        elif own:
            part_of[field] = own.pop()
    if torn:
        logger.warning("%d fields lie in several parts of the split: each is kept in one part only", torn)
    return part_of


def _weighted_choice(candidates: list[str], shares: Mapping[str, float], ticket: bytes) -> str:
    place = int.from_bytes(ticket, "big") / 2 ** (8 * len(ticket)) * sum(shares[part] for part in candidates)
    for part in candidates:
        place -= shares[part]
        if place < 0:
            return part
    return candidates[-1]


# --- blocks of ground


def blocks_of(store: Store, fields: Fields, size: float) -> dict[FieldName, str]:
    """The block in which each field's centre lies, the mean of its pixels over all tiles and images.

    In one projected coordinate system blocks are squares of it; across several, or in degrees, they are
    cells of about the same size between parallels, so that no two blocks overlap on the ground.
    """
    centres = centres_of(store, fields)
    systems = {system for system, _, _ in centres.values()}
    unit = metres_per_unit(_grid_in(systems.copy().pop())) if len(systems) == 1 else None
    if unit is not None:
        return {
            field: f"{math.floor(x * unit / size)} {math.floor(y * unit / size)}"
            for field, (_, x, y) in centres.items()
        }
    blocks = {}
    for system in sorted(systems):
        members = [field for field, centre in centres.items() if centre[0] == system]
        places = _degrees(system, [centres[field][1:] for field in members], store)
        blocks.update({field: _cell(*place, size) for field, place in zip(members, places, strict=True)})
    return blocks


def centres_of(store: Store, fields: Fields) -> dict[FieldName, tuple[str, float, float]]:
    """The coordinate system and the mean of each field's pixels; of a field in several, where most of it lies."""
    sums: dict[tuple[ParcelId, str], NDArray[np.float64]] = defaultdict(lambda: np.zeros(3))  # pixels, x, y
    for _, reader in sorted(store.readers(), key=lambda pair: pair[0].name):  # sums of floats depend on the order
        system, numbers, found = _pixel_sums(reader, store)
        for number, row in zip(numbers.tolist(), found, strict=True):
            sums[(reader.scene, number), system] += row
    systems = sorted({system for _, system in sums})
    centres = {}
    for field, pieces in fields.pieces.items():
        totals = {
            system: sum((sums[piece, system] for piece in pieces if (piece, system) in sums), np.zeros(3))
            for system in systems
        }
        system, (pixels, x, y) = max(totals.items(), key=lambda item: float(item[1][0]))
        if pixels:
            centres[field] = (system, float(x / pixels), float(y / pixels))
    return centres


def _pixel_sums(reader: TileReader, store: Store) -> tuple[str, NDArray[np.int32], NDArray[np.float64]]:
    """For each parcel of a tile, the number of its pixels and the sums of their x and y."""
    if reader.layout == "series":
        why = "the store holds series without coordinates"
        raise UsageError("no split by block", path=store.folder, why=why, remedy=NO_BLOCKS_REMEDY)
    raster = reader.layout == "raster"
    system = reader.grid.crs if raster else reader.crs
    if not system:
        why = f"the images of '{reader.scene}' have no coordinates"
        raise UsageError("no split by block", path=store.folder, why=why, remedy=NO_BLOCKS_REMEDY)
    transforms = np.array([reader.grid.transform]) if raster else reader.transforms
    parcels = reader.parcels().reshape(len(transforms), *reader.shape)  # (N, H, W)
    a, b, c, d, e, f = (column[:, None, None] for column in transforms.T)
    rows, columns = np.arange(reader.shape[0])[:, None] + 0.5, np.arange(reader.shape[1]) + 0.5
    inside = parcels > 0
    numbers, inverse = np.unique(parcels[inside], return_inverse=True)
    x, y = (a * columns + b * rows + c)[inside], (d * columns + e * rows + f)[inside]
    sums = [np.bincount(inverse, weights, len(numbers)) for weights in (None, x, y)]
    return system, numbers, np.stack(sums, axis=1).astype(np.float64)


def _grid_in(system: str) -> Grid:
    return Grid(system, (1.0, 0.0, 0.0, 0.0, -1.0, 0.0), 1, 1)


def _degrees(system: str, places: list[tuple[float, float]], store: Store) -> list[tuple[float, float]]:
    from rasterio.warp import transform

    from cropstar.geo.raster import GDAL_ERRORS

    try:
        x, y = zip(*places, strict=True)
        longitudes, latitudes = transform(_grid_in(system).rasterio_crs, "EPSG:4326", x, y)
    except GDAL_ERRORS as failure:
        raise InputError("no split by block", path=store.folder, why=str(failure), remedy=NO_BLOCKS_REMEDY) from None
    if not np.isfinite([longitudes, latitudes]).all():
        why = "the images lie outside of their coordinate system"
        raise InputError("no split by block", path=store.folder, why=why, remedy=NO_BLOCKS_REMEDY)
    return list(zip(longitudes, latitudes, strict=True))


def _cell(longitude: float, latitude: float, size: float) -> str:
    row = math.floor(latitude * METRES_PER_DEGREE / size)
    middle = math.radians((row + 0.5) * size / METRES_PER_DEGREE)
    return f"{math.floor(longitude * METRES_PER_DEGREE * math.cos(middle) / size)} {row}"
