"""What has a class: a pixel, a parcel, or every date of a series."""

from __future__ import annotations

from typing import Literal

from cropstar.config import TrainConfig
from cropstar.errors import UsageError
from cropstar.store.classes import UNLABELLED
from cropstar.store.store import Store

Target = Literal["pixel", "parcel", "date"]


def choose_target(config: TrainConfig, store: Store) -> Target:
    """The configured target, or the one that the store has labels for; refuses what the store cannot give."""
    wanted = config.target
    if not _holds_series(store):
        if wanted == "date":
            raise _refused("no labels by date", store, "the store holds images, whose pixels have one class each")
        return wanted or "pixel"
    if wanted == "pixel":
        raise _refused("no pixels", store, "the store holds series")
    only_dates = has_only_dates(store)
    if wanted == "parcel" and only_dates:
        raise _refused("no labels by parcel", store, "the store has them by date alone")
    chosen: Target = wanted or ("date" if only_dates else "parcel")
    if chosen == "date" and not _has_dates(store):
        raise _refused("no labels by date", store, "the store has one class a series")
    if chosen == "date" and config.regular.every is not None:
        why = "a stretch of days may hold dates of several classes"
        raise UsageError("regular dates have no labels", why=why, remedy="leave regular.every or the target out")
    return chosen


def has_only_dates(store: Store) -> bool:
    """Whether dates have classes and no parcel has one."""
    return _has_dates(store) and not any((reader.table.labels != UNLABELLED).any() for reader in store.tiles)


def _has_dates(store: Store) -> bool:
    # Asked of tiles of series alone: of others it would be one more look into each of maybe thousands of files.
    if not _holds_series(store):
        return False
    dated = (reader.date_labels for reader in store.tiles)
    return any(labels is not None and bool((labels != UNLABELLED).any()) for labels in dated)


def _holds_series(store: Store) -> bool:
    return {entry.layout for entry in store.manifest.tiles} == {"series"}


def _refused(what: str, store: Store, why: str) -> UsageError:
    return UsageError(what, path=store.folder, why=why, remedy="leave target out")
