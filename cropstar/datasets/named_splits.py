"""The data sets' own splits, as they were published."""

from __future__ import annotations

from cropstar.datasets.fields import FieldName, Fields, ParcelId
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


def by_name(store: Store, fields: Fields, name: str, share: float, seed: int) -> dict[ParcelId, str]:
    """A published split; where it has no validation part, a share of its training fields becomes one."""
    known = named_splits(store)
    if name not in known:
        why = "the data set has none of its own" if not known else ""
        remedy = did_you_mean(name, known) if known else "leave split.name out: parcels are dealt out by lot"
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
        part_of_field.update(dict.fromkeys(fields.share(seed, training, share), "validation"))
    return {parcel: part for field, part in part_of_field.items() for parcel in fields.pieces[field]}
