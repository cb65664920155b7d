"""The scenes of BreizhCrops: one a region, year and level, read tile by tile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import InputError, UsageError
from cropstar.geo.calendar import Season, from_days
from cropstar.geo.sensors import SCALE
from cropstar.geo.windows import Window
from cropstar.logs import event, logger
from cropstar.progress import track
from cropstar.sources.base import TileSpec, recipe_of, short_list
from cropstar.sources.breizhcrops.classes import ClassMapping, explain_codes, read_classes
from cropstar.sources.breizhcrops.download import download_missing
from cropstar.sources.breizhcrops.files import Listing, Parcel, RegionFiles, find_regions, list_parcels, read_parts
from cropstar.sources.breizhcrops.options import BreizhCropsOptions, fold_splits, id_splits
from cropstar.sources.breizhcrops.readers import BANDS, find_columns, reading
from cropstar.sources.table.values import LARGEST
from cropstar.sources.texts import natural_ranks
from cropstar.store.fingerprint import Fingerprint
from cropstar.store.tile import ParcelTable, SeriesTile

UNLISTED = ""  # the group of a parcel that is in none of the lists of ids: no split deals it out


class BreizhCropsScene:
    """The mapped parcels of a region in the natural order of their ids, numbered from 1.

    A region of 180,000 parcels is gigabytes: it is looked through once for its dates, then read again piece by piece.
    """

    layout = "series"

    def __init__(
        self,
        root: Path,
        files: RegionFiles,
        listed: Listing,
        mapping: ClassMapping,
        options: BreizhCropsOptions,
    ) -> None:
        parcels = listed.parcels
        self.name = files.name
        self.left_out = Counter(parcel.code for parcel in parcels if parcel.code not in mapping.numbers)
        mapped = [parcel for parcel in parcels if parcel.code in mapping.numbers]
        if not mapped:
            why = f"none of {len(parcels)} parcels: {explain_codes(self.left_out, root)}"
            raise InputError("no parcel of a mapped class", path=files.data, why=why, remedy="correct classmapping.csv")
        ranks = natural_ranks([parcel.key for parcel in mapped])
        mapped = [mapped[place] for place in np.argsort(ranks)]
        _require_unique(mapped, files)
        self._files, self._mapping, self._options = files, mapping, options
        self._columns = find_columns(files, mapped)
        self._parcels, self._observations, days = self._look_through(mapped)
        self.empty = listed.empty + len(mapped) - len(self._parcels)
        self._dates = from_days(days)
        parts = read_parts(root, files.region) if files.is_raw else {}
        self._groups = _groups(parts, root) if parts else None
        self._splits = id_splits(parts) if parts else fold_splits()
        self.provenance: dict[str, Any] = {
            "source": "breizhcrops",
            "origin": f"breizhcrops {files.year}",  # ids are the register's: Belle-Ile and frh04 share fields
            "region": files.region,
            "group": files.region,
            "year": files.year,
            "level": files.level,
            "files": "csv" if files.is_raw else files.h5.name,
            "left_out": {"unmapped": sum(self.left_out.values()), "empty": self.empty},
            **({"id_lists": {part: len(ids) for part, ids in parts.items()}} if parts else {}),
        }
        own = sorted(files.data.glob("*.csv")) if files.is_raw else [files.index, files.h5]
        settings = {"name": self.name, "columns": self._columns, "groups": self._groups, **options.to_json()}
        self.recipe = recipe_of([*own, mapping.path], settings)
        self.fingerprint = Fingerprint(BANDS[files.level], SCALE, 0.0, 0.0, Season.of(self._dates), mapping.classes)

    def _look_through(self, parcels: list[Parcel]) -> tuple[list[Parcel], int, list[int]]:
        """The parcels that have observations, how many these are, and all dates."""
        kept: list[Parcel] = []
        count, days = 0, set[int]()
        with reading(self._files, self._columns) as read:
            for parcel in track(parcels, len(parcels), f"look through {self.name}", "parcel"):
                own = read(parcel).days
                if len(own):
                    kept.append(parcel)
                    count += len(own)
                    days.update(own.tolist())
        if not kept:
            raise InputError("no observation", path=self._files.data, why=f"{len(parcels)} parcels without a whole row")
        return kept, count, sorted(days)

    @property
    def volume(self) -> int:
        """Bytes of all values."""
        return 4 * self._observations * len(self.fingerprint.bands)

    def tile_specs(self) -> list[TileSpec]:
        """Each window counts parcels downwards; it is one wide."""
        size, total = self._options.samples_per_tile, len(self._parcels)
        return [
            TileSpec(f"{self.name}-{self.recipe[:8]}-n{start:07d}", Window(start, 0, min(size, total - start), 1))
            for start in range(0, total, size)
        ]

    def build(self, piece: TileSpec) -> SeriesTile:
        window = piece.window
        chosen = self._parcels[window.top : window.bottom]
        with reading(self._files, self._columns) as read:
            series = [read(parcel) for parcel in chosen]
        clouds = np.concatenate([one.clouds for one in series])
        valid = np.ones(len(clouds), dtype=bool)
        if self._options.mask == "clouds":
            valid = clouds <= self._options.cloud_limit
        numbers = np.arange(window.top + 1, window.bottom + 1, dtype=np.int32)
        labels = np.array([self._mapping.numbers[parcel.code] for parcel in chosen], dtype=np.int16)
        return SeriesTile(
            scene=self.name,
            recipe=self.recipe,
            fingerprint=self.fingerprint,
            starts=np.cumsum([0, *(len(one.days) for one in series)], dtype=np.int64),
            days=np.concatenate([one.days for one in series]),
            values=_compact(np.concatenate([one.values for one in series])),  # (rows, C)
            valid=valid,
            table=ParcelTable(numbers, [parcel.key for parcel in chosen], labels, self._groups_of(chosen)),
            provenance=self.provenance,
        )

    def _groups_of(self, parcels: list[Parcel]) -> list[str] | None:
        """The list that each parcel is in; of h5 files the region is the group of all."""
        return None if self._groups is None else [self._groups.get(parcel.key, UNLISTED) for parcel in parcels]

    def describe(self) -> dict[str, Any]:
        """What the manifest says of the scene."""
        return {
            "recipe": self.recipe,
            "dates": [day.isoformat() for day in self._dates],
            "samples": len(self._parcels),
            "observations": self._observations,
            "splits": self._splits,
            **self.provenance,
        }

    def close(self) -> None:
        """No file stays open between pieces."""


def open_breizhcrops(path: Path, options: BreizhCropsOptions | None = None) -> list[BreizhCropsScene]:
    """One scene for each region that is there and asked for; all have the classes of one mapping."""
    options = options or BreizhCropsOptions()
    if options.download:
        download_missing(path, options)
    if not path.is_dir():
        raise InputError("no such folder", path=path, remedy="give the folder that holds classmapping.csv")
    mapping = read_classes(path)
    listed = _without_parts([(files, list_parcels(files)) for files in _choose(path, options)], options)
    scenes = [BreizhCropsScene(path, files, listing, mapping, options) for files, listing in listed]
    for scene in scenes:
        _say(scene, path)
    return scenes


def _choose(path: Path, options: BreizhCropsOptions) -> list[RegionFiles]:
    present = find_regions(path)
    found = [files for files in present if options.year in (None, files.year) and options.level in (None, files.level)]
    wanted = options.regions
    missing = [name for name in wanted or () if name not in {files.region for files in found}]
    if missing or not found:
        what = f"no region '{missing[0]}'" if missing else "no BreizhCrops region"
        asked = " ".join(str(value) for value in (options.year, options.level) if value is not None)
        why = f"there is {short_list(files.name for files in present) or 'none'}"
        remedy = "choose one of these, or get others with --regions and --download"
        raise InputError(f"{what}{f' of {asked}' if asked else ''}", path=path, why=why, remedy=remedy)
    found = [files for files in found if wanted is None or files.region in wanted]
    levels = sorted({files.level for files in found})
    if len(levels) > 1:
        raise UsageError(
            "which level?", path=path, why=f"{' and '.join(levels)} have different bands", remedy="name it"
        )
    return found


def _without_parts(
    regions: Sequence[tuple[RegionFiles, Listing]], options: BreizhCropsOptions
) -> list[tuple[RegionFiles, Listing]]:
    """Belle-Ile is a part of frh04: nobody gets a parcel twice without asking for it."""
    keys = [{parcel.key for parcel in listing.parcels} for _, listing in regions]
    kept = []
    for own, (files, listing) in zip(keys, regions, strict=True):
        others = zip(keys, regions, strict=True)
        around = [other.region for theirs, (other, _) in others if other.year == files.year and own < theirs]
        if around:
            fate = "is left out" if options.regions is None else "has its parcels twice"
            logger.warning("the region %s is a part of %s and %s", files.region, around[0], fate)
        if not around or options.regions is not None:
            kept.append((files, listing))
    return kept


def _require_unique(parcels: list[Parcel], files: RegionFiles) -> None:
    key, count = Counter(parcel.key for parcel in parcels).most_common(1)[0]
    if count > 1:
        raise InputError(f"the parcel '{key}' stands {count} times", path=files.index, remedy="correct the index")


def _groups(parts: dict[str, list[str]], root: Path) -> dict[str, str]:
    """The list of each id; one in two of them would be trained on and tested on."""
    groups: dict[str, str] = {}
    for part, ids in parts.items():
        for key in ids:
            if groups.setdefault(key, part) != part:
                why = f"'{key}' is in those of {groups[key]} and {part}"
                raise InputError("a parcel stands in two lists", path=root / "ids", why=why, remedy="correct the lists")
    return groups


def _compact(values: NDArray[np.float64]) -> NDArray[Any]:
    """Whole numbers in range as such; means over parcels are fractions."""
    whole = (values == np.round(values)).all() and values.min() >= 0 and values.max() <= LARGEST
    return values.astype(np.uint16 if whole else np.float32)


def _say(scene: BreizhCropsScene, root: Path) -> None:
    about = scene.describe()
    counts = f"{about['samples']} parcels, {about['observations']} observations of {len(about['dates'])} dates"
    event(
        f"{scene.name}: {counts}",
        samples=about["samples"],
        left_out=about["left_out"],
    )
    if scene.left_out:
        codes = explain_codes(scene.left_out, root)
        logger.warning("%s: %d parcels of no mapped class left out: %s", scene.name, scene.left_out.total(), codes)
    if scene.empty:
        logger.warning("%s: %d parcels without a whole observation left out", scene.name, scene.empty)
