"""Splits of a store into training, validation and test, so that no field is in two of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.config import SplitConfig, TrainConfig
from cropstar.datasets.fields import (
    FieldName,
    Fields,
    ParcelId,
    Tally,
    Target,
    blocks_of,
    by_units,
    choose_target,
    hold_out_units,
    random_key,
)
from cropstar.errors import InputError, UsageError
from cropstar.geo.windows import Window
from cropstar.registry import did_you_mean
from cropstar.runtime import logger
from cropstar.store.classes import UNLABELLED
from cropstar.store.reader import Image, TileReader
from cropstar.store.store import Store

PARTS = ("train", "validation", "test")
PIXEL_WARNING = (
    "a split by pixel is too optimistic: training and test share fields, whose pixels are nearly identical, so the "
    "figures do not tell how well new fields are classified; split.by=parcel does"
)
GOLDEN, FIRST, SECOND = (np.uint64(factor) for factor in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
DESCRIPTIONS = {
    "parcel": "stratified random split of the parcels",
    "block": "split by whole blocks of {block:g} m",
    "scene": "split by whole scenes",
    "group": "split by whole groups",
    "pixel": "split by random pixels, where the parts share fields and scores are too good",
    "name": "the data set's own split '{name}'",
}


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
    """Split the parcels of a store; the same seed gives the same parts, whatever the order of the tiles.

    If dates are the target, parcels that only have classes by date are included.
    """
    fields = Fields.of(store, dated=target == "date")
    about = _about(config, seed)
    if config.by == "pixel":
        split: Split = _split_pixels(store, fields, config, seed, about)
        counts = split.counts(max(fields.label_of.values(), default=0) + 1)
        filled = {part for part in PARTS if any(counts[part])}
    else:
        part_of, units = _part_of(store, fields, config, seed)
        if units:
            about["units"] = {part: sorted(unit for unit in units if units[unit] == part) for part in PARTS}
        split = Split(part_of, {parcel: fields.label_of[parcel] for parcel in part_of}, about)
        filled = set(part_of.values())
    for part in PARTS if not config.out_of_fold else ("train",):
        if part not in filled:
            why, remedy = _why_empty(fields, config, about)
            raise InputError(f"no parcel is left for {part}", path=store.folder, why=why, remedy=remedy)
    return split


def _part_of(
    store: Store, fields: Fields, config: SplitConfig, seed: int
) -> tuple[dict[ParcelId, str], dict[str, str]]:
    """The part of every parcel, and of every unit where whole units were dealt out."""
    if config.out_of_fold:
        return dict.fromkeys(sorted(fields.label_of), "train"), {}
    if config.name is not None:
        return _published(store, fields, config, seed), {}
    if config.by == "parcel":
        return (_stratified_folds if config.folds else _stratified)(fields, config, seed), {}
    if config.by == "block":
        blocks = blocks_of(store, fields, config.block)
        unit_of = {parcel: block for field, block in blocks.items() for parcel in fields.pieces[field]}
    else:
        unit_of = {parcel: parcel[0] for parcel in fields.label_of} if config.by == "scene" else fields.group_of
    return by_units(fields, unit_of, config, seed, store.folder)


def _stratified(fields: Fields, config: SplitConfig, seed: int) -> dict[ParcelId, str]:
    assert isinstance(config.test, float)
    part_of: dict[ParcelId, str] = {}
    for members in fields.shuffled_by_class(seed, fields.pieces):
        test = round(len(members) * config.test)
        validation = round(len(members) * config.validation_share)
        for rank, field in enumerate(members):
            part = "test" if rank < test else "validation" if rank < test + validation else "train"
            part_of.update(dict.fromkeys(fields.pieces[field], part))
    return part_of


def _stratified_folds(fields: Fields, config: SplitConfig, seed: int) -> dict[ParcelId, str]:
    """Fields assigned to the folds in turn, class by class; a share of the rest becomes validation."""
    assert config.folds is not None
    order = [field for members in fields.shuffled_by_class(seed, fields.pieces) for field in members]
    rest = [field for place, field in enumerate(order) if place % config.folds + 1 != config.fold]
    part_of_field = {**dict.fromkeys(order, "test"), **dict.fromkeys(rest, "train")}
    part_of_field.update(dict.fromkeys(fields.share(seed, rest, config.validation_share), "validation"))
    return {parcel: part for field, part in part_of_field.items() for parcel in fields.pieces[field]}


def _about(config: SplitConfig, seed: int) -> dict[str, Any]:
    """The facts of a split for the result: how it was made, its seed and settings."""
    given = config.model_dump(mode="json")
    if config.validation is None:
        given["validation"] = config.validation_share
    if config.name is not None:
        return {"by": "name", "seed": seed, "name": config.name, "validation": given["validation"]}
    chosen = ["validation", *(["folds", "fold"] if config.folds else ["test"])]
    chosen += ["block"] if config.by == "block" else []
    chosen += ["train"] if config.train is not None else []
    return {"by": config.by, "seed": seed, **{key: given[key] for key in chosen}}


def _why_empty(fields: Fields, config: SplitConfig, about: dict[str, Any]) -> tuple[str, str]:
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
        remedy = "make split.block smaller" if config.by == "block" else "use split.by=parcel"
        return why, remedy
    why = f"{len(fields.label_of)} parcels in {len(set(fields.label_of.values()))} classes are too few"
    if config.folds:
        return why, "label more parcels, or change split.validation and split.folds"
    return why, "label more parcels or change split.validation and split.test"


# --- the split itself


@dataclass(frozen=True)
class PatchWindow:
    """A window of an image of a tile."""

    tile: str
    number: int  # of the image in its tile
    window: Window

    def image(self, store: Store) -> Image:
        return store.reader(self.tile).images[self.number]


@dataclass(frozen=True)
class Split:
    """Which part each parcel belongs to."""

    part_of: dict[ParcelId, str]
    label_of: dict[ParcelId, int]  # of every parcel that is in a part
    about: dict[str, Any] = dataclass_field(default_factory=dict)  # by what, from which seed, with which settings

    def mask(
        self, scene: str, parcels: NDArray[np.int32], part: str, place: PatchWindow | None = None
    ) -> NDArray[np.bool_]:
        """True on the pixels of a parcel raster that belong to a part; the raster's place matters by pixel alone."""
        return pixels_of(parcels, lambda number: self.part_of.get((scene, number)) == part)

    def tile_mask(self, name: str, reader: TileReader, part: str) -> NDArray[np.bool_]:
        """The same of all images of a tile at once, in the shape of its parcels."""
        return self.mask(reader.scene, reader.parcels(), part)

    def running_numbers(self) -> dict[ParcelId, int]:
        return {parcel: index for index, parcel in enumerate(sorted(self.label_of))}

    def counts(self, classes: int) -> dict[str, list[int]]:
        """Parcels per class in each part."""
        table = {part: [0] * classes for part in PARTS}
        for parcel, part in self.part_of.items():
            table[part][self.label_of[parcel]] += 1
        return table

    def with_validation(self) -> Split:
        """The same with the validation parcels added to those for training."""
        part_of = {parcel: "train" if part == "validation" else part for parcel, part in self.part_of.items()}
        return replace(self, part_of=part_of)

    def without(self, parcels: Iterable[ParcelId]) -> Split:
        """The same without some of the training parcels; those of other parts stay."""
        gone = {parcel for parcel in parcels if self.part_of.get(parcel) == "train"}
        return replace(self, part_of={parcel: part for parcel, part in self.part_of.items() if parcel not in gone})

    def to_json(self) -> dict[str, Any]:
        """How the split was made and, scene by scene, what is in each part."""
        members: dict[str, dict[str, list[int]]] = {part: defaultdict(list) for part in PARTS}
        for (scene, number), part in sorted(self.part_of.items()):
            members[part][scene].append(number)
        return {**self.about, "parcels": members}


def pixels_of(parcels: NDArray[np.int32], wanted: Callable[[int], bool]) -> NDArray[np.bool_]:
    """True on the pixels whose parcel is `wanted`, which is called once for each parcel number."""
    numbers, inverse = np.unique(parcels, return_inverse=True)
    chosen: NDArray[np.bool_] = np.array([wanted(int(number)) for number in numbers])[inverse].reshape(parcels.shape)
    return chosen


# --- a data set's own splits


def named_splits(store: Store) -> dict[str, dict[tuple[str, str], str]]:
    """The data sets' own splits: of each the part of every scene's groups."""
    splits: dict[str, dict[tuple[str, str], str]] = {}
    for scene, about in store.manifest.scenes.items():
        for name, parts in about.get("splits", {}).items():
            for part, groups in parts.items():
                splits.setdefault(name, {}).update({(scene, str(group)): part for group in groups})
    return splits


def _published(store: Store, fields: Fields, config: SplitConfig, seed: int) -> dict[ParcelId, str]:
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
        part_of_field.update(dict.fromkeys(_validation_of_published(fields, training, config, seed), "validation"))
    return {parcel: part for field, part in part_of_field.items() for parcel in fields.pieces[field]}


def _validation_of_published(
    fields: Fields, training: list[FieldName], config: SplitConfig, seed: int
) -> list[FieldName]:
    """Whole groups of the training fields, each in the group of its first piece; else a stratified share."""
    how = "using a stratified share of its training fields"
    if config.validation is None:
        firsts = {field: fields.pieces[field][0] for field in training}
        unit_of = {field: f"{fields.group_of[first]} of {first[0]}" for field, first in firsts.items()}
        tallies: dict[str, Tally] = defaultdict(Counter)
        for field, unit in unit_of.items():
            tallies[unit][fields.label(field)] += 1
        units, why = hold_out_units(tallies, config.validation_share, seed, "group")
        if units:
            return [field for field in training if unit_of[field] in units]
        how += f", for {why}"
    logger.info("the split '%s' has no validation part: %s", config.name, how)
    return fields.share(seed, training, config.validation_share)


# --- single pixels, to see by how much that flatters


@dataclass(frozen=True)
class PixelSplit(Split):
    """A split by pixel; `part_of` is empty, since a parcel is in all parts."""

    seed: int = 0
    shares: tuple[float, float] = (0.15, 0.25)  # of validation and test; with folds, of validation among the rest
    folds: int | None = None
    fold: int = 1
    held: dict[str, set[ParcelId]] = dataclass_field(default_factory=dict)  # the parcels that have pixels in a part

    def mask(
        self, scene: str, parcels: NDArray[np.int32], part: str, place: PatchWindow | None = None
    ) -> NDArray[np.bool_]:
        assert place is not None
        labelled = pixels_of(parcels, lambda number: (scene, number) in self.label_of)
        chosen: NDArray[np.bool_] = labelled & (self._parts(place) == PARTS.index(part))
        return chosen

    def tile_mask(self, name: str, reader: TileReader, part: str) -> NDArray[np.bool_]:
        parcels = reader.parcels()
        images = parcels.reshape(-1, *parcels.shape[-2:])
        whole = Window(0, 0, *images.shape[-2:])
        labelled = pixels_of(images, lambda number: (reader.scene, number) in self.label_of)
        drawn = [self._parts(PatchWindow(name, number, whole)) == PARTS.index(part) for number in range(len(images))]
        chosen: NDArray[np.bool_] = (labelled & np.array(drawn).reshape(images.shape)).reshape(parcels.shape)
        return chosen

    def counts(self, classes: int) -> dict[str, list[int]]:
        """Parcels with a pixel in the part: most of them are in every one."""
        table = {part: [0] * classes for part in PARTS}
        for part, parcels in self.held.items():
            for parcel in parcels:
                table[part][self.label_of[parcel]] += 1
        return table

    def with_validation(self) -> PixelSplit:
        held = {**self.held, "train": self.held["train"] | self.held["validation"], "validation": set[ParcelId]()}
        return replace(self, shares=(0.0, self.shares[1]), held=held)

    def to_json(self) -> dict[str, Any]:
        """No list of members: they follow from the seed."""
        return dict(self.about)

    def _parts(self, place: PatchWindow) -> NDArray[np.int8]:
        """The part of every pixel of a window, whatever window of the image it is asked in."""
        first, second = (self._drawn(place, name) for name in ("part", "validation"))
        validation, test = self.shares
        if self.folds is None:
            return np.where(first < test, 2, np.where(first < test + validation, 1, 0)).astype(np.int8)
        fold = np.floor(first * self.folds).astype(np.int64) + 1
        return np.where(fold == self.fold, 2, np.where(second < validation, 1, 0)).astype(np.int8)

    def _drawn(self, place: PatchWindow, name: str) -> NDArray[np.float64]:
        """Numbers from 0 to 1 that depend on the seed, the image and the pixel's row and column."""
        start = np.uint64(int.from_bytes(random_key(self.seed, name, place.tile, str(place.number)), "big"))
        rows, columns = (np.arange(part.start, part.stop, dtype=np.uint64) for part in place.window.slices)
        mixed = start + (rows[:, None] << np.uint64(32) | columns) * GOLDEN
        mixed = (mixed ^ mixed >> np.uint64(30)) * FIRST  # splitmix64's way of making neighbours unlike
        mixed = (mixed ^ mixed >> np.uint64(27)) * SECOND
        return ((mixed ^ mixed >> np.uint64(31)) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _split_pixels(store: Store, fields: Fields, config: SplitConfig, seed: int, about: dict[str, Any]) -> PixelSplit:
    """Deal out pixels, with a warning."""
    if "series" in store.manifest.layouts:
        why = "the store holds series, each of a whole field"
        raise UsageError("no split by pixel", path=store.folder, why=why, remedy="use split.by=parcel")
    logger.warning(PIXEL_WARNING)
    assert isinstance(config.test, float)
    shares = config.validation_share, config.test
    split = PixelSplit(
        {}, fields.label_of, about, seed, shares, config.folds, config.fold, {part: set() for part in PARTS}
    )
    for entry, reader in store.readers():
        parcels = reader.parcels()
        for part in PARTS:
            numbers = np.unique(parcels[split.tile_mask(entry.name, reader, part)])
            split.held[part].update((reader.scene, int(number)) for number in numbers)
    return split


# --- counts by class, to print and to save


def describe_split(store: Store, split: Split) -> dict[str, Any]:
    """How the split was made; of each part the units where there are any, and parcels and pixels class by class."""
    classes = len(store.fingerprint.classes)
    about = {key: value for key, value in split.about.items() if key != "units"}
    how = DESCRIPTIONS[about["by"]].format(**about)
    if about.get("test") == 0:
        how = f"no test part, all fields are evaluated out of fold, split by {about['by']}"
    if "folds" in about:
        how += f"; fold {about['fold']} of {about['folds']} for the test"
    units = {part: len(names) for part, names in split.about.get("units", {}).items()}
    return {
        **about,
        "how": how,
        **({"units": units} if units else {}),
        "parcels": split.counts(classes),
        "pixels": _pixel_counts(store, split, classes),
    }


def describe_lines(description: dict[str, Any], names: list[str]) -> list[str]:
    """The same as a table to print: a line per class, a column per part, parcels and then pixels."""
    lines = [f"{description['how']} (seed {description['seed']})"]
    if "units" in description:
        counts = ", ".join(f"{count} for {part}" for part, count in description["units"].items())
        lines.append(f"{description['by']}s: {counts}")
    width = max(map(len, (*names, "all")))
    kinds = [kind for kind in ("parcels", "pixels") if description[kind] is not None]
    lines.append(" " * width + "".join(f"{part:>{13 * len(kinds)}}" for part in PARTS))
    lines.append(" " * width + "".join(f"{kind:>13}" for _ in PARTS for kind in kinds))
    for row, name in enumerate((*names, "all")):
        cells = [description[kind][part] for part in PARTS for kind in kinds]
        figures = [sum(cell) if row == len(names) else cell[row] for cell in cells]
        lines.append(f"{name:<{width}}" + "".join(f"{figure:>13,}" for figure in figures))
    return lines


def _pixel_counts(store: Store, split: Split, classes: int) -> dict[str, list[int]] | None:
    """Labelled pixels per class in each part; None of series, which have none."""
    if "series" in store.manifest.layouts:
        return None
    table = {part: np.zeros(classes, dtype=np.int64) for part in PARTS}
    for entry, reader in store.readers():
        labels = reader.labels()
        for part in PARTS:
            chosen = labels[split.tile_mask(entry.name, reader, part)]
            table[part] += np.bincount(chosen[chosen != UNLABELLED], minlength=classes)
    return {part: counts.tolist() for part, counts in table.items()}
