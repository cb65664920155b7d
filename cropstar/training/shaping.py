"""What a store and a configuration prescribe to a model."""

from __future__ import annotations

from cropstar.config import TrainConfig
from cropstar.datasets.transforms import count_periods
from cropstar.models.days import find_thermal
from cropstar.models.registry import Shape
from cropstar.store.store import Store
from cropstar.training.losses import Lineages


def shape_of(store: Store, config: TrainConfig) -> Shape:
    """Of what not every model looks at, only what this one, or a member of the ensemble, does."""
    models = [config.model, *config.beside]
    bands, classes, season = store.fingerprint.bands, store.fingerprint.classes, store.fingerprint.season
    return Shape(
        len(bands),
        len(classes),
        _longest(store, config),
        find_thermal(bands) if any(model.day_encoding == "thermal" for model in models) else None,
        (lineages_of(store) or None) if any(model.hierarchy for model in models) else None,
        (season.start, season.length) if any(model.pool == "season" for model in models) else None,
    )


def lineages_of(store: Store) -> Lineages:
    """Where each class stands in a class table with levels; empty where it has none."""
    classes = store.fingerprint.classes
    return classes.tree().lineages if classes.levels > 1 else ()


def _longest(store: Store, config: TrainConfig) -> int:
    if config.regular.every is not None:
        return count_periods(store.fingerprint.season, config.regular.every)
    return max(reader.length for _, reader in store.readers())
