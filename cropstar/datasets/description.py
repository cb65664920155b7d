"""What was split how, with counts per class: to be printed and to be saved."""

from __future__ import annotations

from typing import Any

import numpy as np

from cropstar.datasets.parts import PARTS, Split
from cropstar.store.classes import UNLABELLED
from cropstar.store.store import Store

HOW = {
    "parcel": "stratified random split of the parcels",
    "block": "split by whole blocks of {block:g} m",
    "scene": "split by whole scenes",
    "group": "split by whole groups",
    "pixel": "split by random pixels, where the parts share fields and scores are too good",
    "name": "the data set's own split '{name}'",
}


def describe_split(store: Store, split: Split) -> dict[str, Any]:
    """How the split was made; of each part the units where there are any, and parcels and pixels class by class."""
    classes = len(store.fingerprint.classes)
    about = {key: value for key, value in split.about.items() if key != "units"}
    how = HOW[about["by"]].format(**about)
    if "folds" in about:
        how += f"; fold {about['fold']} of {about['folds']} for the test"
    units = {part: len(names) for part, names in split.about.get("units", {}).items()}
    return {
        **about,
        "how": how,
        **({"units": units} if units else {}),
        "parcels": split.counts(classes),
        "pixels": _pixels(store, split, classes),
    }


def describe_lines(description: dict[str, Any], names: list[str]) -> list[str]:
    """The same as a table to print: a line a class, a column a part, parcels and then pixels."""
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


def _pixels(store: Store, split: Split, classes: int) -> dict[str, list[int]] | None:
    """Labelled pixels per class in each part; None of series, which have none."""
    if any(entry.layout == "series" for entry in store.manifest.tiles):
        return None
    table = {part: np.zeros(classes, dtype=np.int64) for part in PARTS}
    for entry, reader in store.readers():
        labels = reader.labels()
        for part in PARTS:
            chosen = labels[split.tile_mask(entry.name, reader, part)]
            table[part] += np.bincount(chosen[chosen != UNLABELLED], minlength=classes)
    return {part: counts.tolist() for part, counts in table.items()}
