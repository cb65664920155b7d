"""The scenes of a table: one for each group, cut into tiles of some thousand samples."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from cropstar.errors import InputError, UsageError
from cropstar.geo.calendar import Season, from_days
from cropstar.geo.windows import Window
from cropstar.logs import event, logger
from cropstar.sources.base import TileSpec, recipe_of, safe_name, short_list
from cropstar.sources.table.columns import Columns, TableOptions, find_columns
from cropstar.sources.table.files import open_file
from cropstar.sources.table.samples import Samples, gather
from cropstar.store.fingerprint import Fingerprint
from cropstar.store.tile import ParcelTable, SeriesTile


class TableScene:
    """The samples of one group. Their numbers run from 1, in the natural order of their keys."""

    layout = "series"
    volume = 0  # it lies in memory

    def __init__(
        self,
        name: str,
        samples: Samples,
        chosen: range,
        fingerprint: Fingerprint,
        samples_per_tile: int,
        recipe: str,
        provenance: dict[str, Any],
    ) -> None:
        self.name = name
        self.recipe = recipe
        self.provenance = provenance
        self._samples = samples
        self._chosen = chosen
        self._samples_per_tile = samples_per_tile
        first, last = samples.starts[chosen.start], samples.starts[chosen.stop]
        self._dates = from_days(np.unique(samples.days[first:last]))
        self.fingerprint = fingerprint.with_season(Season.of(self._dates))

    def tile_specs(self) -> list[TileSpec]:
        """Each window counts samples of this scene downwards; it is one wide."""
        size, total = self._samples_per_tile, len(self._chosen)
        return [
            TileSpec(f"{self.name}-{self.recipe[:8]}-n{start:07d}", Window(start, 0, min(size, total - start), 1))
            for start in range(0, total, size)
        ]

    def build(self, piece: TileSpec) -> SeriesTile:
        samples, window = self._samples, piece.window
        start, stop = self._chosen.start + window.top, self._chosen.start + window.bottom
        starts = samples.starts[start : stop + 1]
        rows = slice(int(starts[0]), int(starts[-1]))
        numbers = np.arange(window.top + 1, window.bottom + 1, dtype=np.int32)
        return SeriesTile(
            scene=self.name,
            recipe=self.recipe,
            fingerprint=self.fingerprint,
            starts=starts - starts[0],
            days=samples.days[rows],
            values=samples.values[rows],
            valid=samples.valid[rows],
            table=ParcelTable(
                numbers,
                samples.keys[start:stop],
                samples.labels[start:stop],
                fields=None if samples.fields is None else samples.fields[start:stop],
            ),
            provenance=self.provenance,
        )

    def describe(self) -> dict[str, Any]:
        """What the manifest says of the scene."""
        first, last = self._samples.starts[self._chosen.start], self._samples.starts[self._chosen.stop]
        return {
            "recipe": self.recipe,
            "dates": [day.isoformat() for day in self._dates],
            "samples": len(self._chosen),
            "observations": int(last - first),
            **self.provenance,
        }

    def close(self) -> None:
        """The file was read whole and is closed already."""


def open_table(path: Path, options: TableOptions | None = None) -> list[TableScene]:
    """Read a table, whole, into scenes that share bands, scale and classes."""
    options = options or TableOptions()
    if options.samples_per_tile < 1 or (options.scale is not None and options.scale <= 0):
        raise UsageError("the scale and the samples of a tile must be above zero")
    file = open_file(path)
    columns = find_columns(file.columns, options, path)
    samples = gather(file.read(columns.texts, columns.numbers), columns, options, path)
    # What was guessed is in the recipe as if it had been given: should a later version guess otherwise, it shows.
    recipe = recipe_of(
        [path],
        {
            "columns": columns.to_json(),
            "bands": list(columns.bands),  # their order counts
            "scale": samples.scale,
            "offset": options.offset,
            "nodata": options.nodata,
            "keep_unlabelled": options.keep_unlabelled,
            "samples_per_tile": options.samples_per_tile,
        },
    )
    season = Season.of(from_days([samples.days.min(), samples.days.max()]))
    fingerprint = Fingerprint(tuple(columns.bands), samples.scale, options.offset, 0.0, season, samples.classes)
    _say(samples, columns, options, path, [name for name in file.columns if name not in columns.used])

    scenes: dict[str, TableScene] = {}
    for group, members in groupby(range(len(samples.keys)), key=samples.groups.__getitem__):
        places = list(members)
        name = safe_name(f"{path.stem}-{group}" if columns.group is not None else path.stem)
        if name in scenes:
            why = f"two values of column '{columns.group}' both give '{name}'"
            raise InputError("groups of one name", path=path, why=why, remedy="write them with letters and digits")
        provenance: dict[str, Any] = {
            "source": "table",
            "file": path.name,
            "columns": columns.to_json(),
            "origin": recipe,
        }
        if columns.group is not None:
            provenance["group"] = group
        chosen = range(places[0], places[-1] + 1)
        scenes[name] = TableScene(name, samples, chosen, fingerprint, options.samples_per_tile, recipe, provenance)
    return list(scenes.values())


def _say(samples: Samples, columns: Columns, options: TableOptions, path: Path, unused: list[str]) -> None:
    """What was made of the columns, so that a wrong guess is seen."""
    roles = f"id {columns.id}, date {columns.date}, label {columns.label}, group {columns.group or 'none'}"
    roles += f", field {columns.field}" if columns.field else ""
    offset = f" {options.offset:+g}" if options.offset else ""
    event(
        f"{path.name}: {roles}, mask {columns.mask or 'none'}, bands {' '.join(columns.bands)}; "
        f"reflectance = value x {samples.scale:g}{offset}; not used: {short_list(unused) or 'nothing'}",
        columns=columns.to_json(),
        scale=samples.scale,
        samples=len(samples.keys),
    )
    several = len(samples.keys) - len(set(samples.keys))
    if several and options.group_column is None:
        logger.warning(
            "%d ids of %s stand in more than one %s and are a sample in each; --group-column none keeps them together",
            several,
            path.name,
            columns.group,
        )
