"""Recipes: the settings of a training that follow from the data, so that a first run with no options is a good run.

A recipe fills in what the user left open, and nothing else: every setting that stands in the configuration file, in an
option or in `--set` is kept. `auto` looks at the number of fields, dates, bands and classes and at what has a class;
`quick` is a look within a minute; `paper` has the settings of "Gating Revisited". The evidence behind the numbers of
`auto` is in docs/recipes.md.
"""

from __future__ import annotations

import math
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cropstar.config import AUTO, CONVOLUTIONAL, FITTED, USUAL_VALIDATION, ModelConfig, TrainConfig, dump_config
from cropstar.config_keys import config_keys, config_sections
from cropstar.datasets.fields import choose_target
from cropstar.datasets.splits import Split, named_splits, training_split
from cropstar.runtime import logger
from cropstar.store.store import Store
from cropstar.training.fitting import has_trees

SERIES_MODEL = "star"  # where no model is named and there are no images
NETWORKS = ("tcn", "tempcnn", "transformer", "ltae", "inceptiontime")  # not recurrent
WARMUP = 30  # steps
FOLDS = 3  # of cross-fitting series; of images two, since each takes minutes
FEW = 2000  # fields of series
MANY = 5000  # fields of series
FEW_BANDS = 3  # up to which changes from date to date matter most: fewer dates are hidden
COMPOSITE = 20  # days between dates that are not single acquisitions any more
VERY_FEW = 150  # fields of series: each would be learnt by heart


COMMENTS_AT = 32  # the column of comments in --print-config


@dataclass(frozen=True)
class DataFacts:
    """The facts that a recipe depends on."""

    fields: int  # labelled fields in the training part
    samples: int  # training samples of an epoch: series, or patches
    dates: int
    bands: int
    classes: int
    span: int  # days from the first to the last date
    images: bool  # whether the model reads images
    pixels: bool  # whether pixels have a class, and samples are patches
    processes: int = 1  # that train together: batch statistics of a share are not those of the batch
    validation: int = 0  # fields that the split, as it is without a recipe, keeps for validation
    shares: bool = True  # whether validation is a share of the training fields, not whole groups or a published part
    several: bool = False  # sensors
    series: bool = False  # whether the store holds series of tables
    every: int | None = None  # days between the dates of a group of series, where those of others lie far closer


@dataclass(frozen=True)
class Choice:
    """One setting and the reason for it."""

    key: str
    value: Any
    why: str


def with_recipe(config: TrainConfig) -> tuple[TrainConfig, tuple[Choice, ...]]:
    """The configuration with the open settings filled in, and the choices with their reasons."""
    with closing(Store.open(config.store)) as store, _unsaid():
        config, model = with_model(config, store)
        facts = look_at(store, config)
    config, choices = fill(config, facts)
    return config, (*model, *choices)


def with_model(config: TrainConfig, store: Store) -> tuple[TrainConfig, tuple[Choice, ...]]:
    """The configuration with a model that reads what the store holds, unless the user named one."""
    if _is_set(config, "model.name") or not _is_series(store):
        return config, ()
    choice = Choice("model.name", SERIES_MODEL, "the store holds series, not images")
    given = config.model_dump(exclude_unset=True)
    given["model"] = {**given.get("model", {}), "name": choice.value}
    return TrainConfig.model_validate(given), (choice,)


def fill(config: TrainConfig, facts: DataFacts) -> tuple[TrainConfig, tuple[Choice, ...]]:
    """The same for facts that are known. Of the model 'auto' each candidate is filled in by itself."""
    if config.model.name == AUTO:
        return config, ()
    open_keys = [choice for choice in RECIPES[config.recipe](config, facts) if not _is_set(config, choice.key)]
    data = config.model_dump(mode="python")
    for choice in open_keys:
        *sections, last = choice.key.split(".")
        inner = data
        for section in sections:
            inner = inner[section]
        inner[last] = choice.value
    return TrainConfig.model_validate(data), tuple(open_keys)


def explained(config: TrainConfig, choices: tuple[Choice, ...]) -> str:
    """The configuration as YAML, with what every key means and the reason behind each that a recipe chose."""
    reasons = {choice.key: choice.why for choice in choices}
    keys, sections = config_keys(), config_sections()
    lines: list[str] = []
    path: list[str] = []
    for line in dump_config(config).splitlines():
        if match := re.match(r"( *)([a-z_]+):(.*)", line):
            path[len(match[1]) // 2 :] = [match[2]]
            name = ".".join(path)
            comment = keys[name].comment if name in keys else sections.get(name, "")
            comment += f" [by the recipe: {reasons[name]}]" if name in reasons else ""
            line = f"{line:<{COMMENTS_AT}}  # {comment}" if comment else line
        lines.append(line)
    return "\n".join(lines) + "\n"


def look_at(store: Store, config: TrainConfig, split: Split | None = None) -> DataFacts:
    """Facts of the training part of a store, whose split may be known already."""
    target = choose_target(config, store)
    split = split or training_split(store, config)
    fields = sum(part == "train" for part in split.part_of.values())
    readers = [reader for _, reader in store.readers()]
    spatial = bool(CONVOLUTIONAL.match(config.model.name))
    samples = fields
    if target == "pixel":
        samples = sum(1 for _ in _labelled_patches(store, split, config.patch))
    return DataFacts(
        fields,
        samples,
        max(reader.length for reader in readers),
        len(store.fingerprint.bands),
        len(store.fingerprint.classes),
        store.fingerprint.season.length,
        spatial,
        target == "pixel",
        int(os.environ.get("WORLD_SIZE") or 1),
        sum(part == "validation" for part in split.part_of.values()),
        config.split.by == "parcel" and _shares_validation(store, config.split.name),
        store.fingerprint.several,
        _is_series(store),
        _coarsest(store) if _is_series(store) and not store.fingerprint.several else None,
    )


def _shares_validation(store: Store, name: str | None) -> bool:
    """Whether a data set's own split leaves it to us to take some of its training fields for validation."""
    if name is None:
        return True
    parts = list(named_splits(store).get(name, {}).values())
    return "validation" not in parts and parts.count("train") == 1  # of several groups a whole one is taken


@contextmanager
def _unsaid() -> Iterator[None]:
    """Without warnings about the split: the training, which makes it again, gives them."""
    logger.addFilter(_never)
    try:
        yield
    finally:
        logger.removeFilter(_never)


def _never(_: object) -> bool:
    return False


def _labelled_patches(store: Store, split: Any, size: int) -> Iterator[Any]:
    from cropstar.datasets.samples import labelled_windows

    return labelled_windows(store, split, "train", size)


def _is_series(store: Store) -> bool:
    return any(entry.layout == "series" for entry in store.manifest.tiles)


def _coarsest(store: Store) -> int | None:
    """The usual days between the clear dates of a group of composites, if another group has twice as many dates.

    Of all groups, those of the test too: their dates are looked at, neither their values nor their labels.
    """
    gaps = defaultdict(list)
    for _, reader in store.readers():
        _, clear, days = reader.series
        sample = np.repeat(np.arange(len(reader.starts) - 1), np.diff(reader.starts))[clear]
        gaps[reader.scene].append(np.diff(days[clear])[np.diff(sample) == 0])
    usual = [float(np.median(found)) for own in gaps.values() if len(found := np.concatenate(own))]
    return round(max(usual)) if usual and max(usual) >= max(2 * min(usual), COMPOSITE) else None


def _auto(config: TrainConfig, facts: DataFacts) -> Iterator[Choice]:
    if config.model.name in FITTED:
        return
    yield from _recurrent(config.model, facts) if config.model.name not in NETWORKS else _network(facts)
    fields = facts.fields
    yield from _optimisation(facts, _soft_labels(config, facts))
    if facts.several:
        yield from _of_several_sensors(config, facts)
    if facts.every is not None and config.target != "date":
        why = "groups differ in how many dates they have: all are averaged to the coarsest"
        yield Choice("regular.every", facts.every, why)
    crossed = config.cross_fit > 0 if _is_set(config, "cross_fit") else _can_cross_fit(config, facts)
    if crossed:
        yield Choice(
            "cross_fit",
            2 if facts.pixels else FOLDS,
            f"{facts.fields:,} training fields are too few to hold some out for validation",
        )
        facts = _learning_from(facts, facts.fields + facts.validation)
    elif facts.fields < 10_000 and not facts.pixels and facts.shares:
        share = 0.1 if facts.fields < MANY else 0.05
        yield Choice("split.validation", share, f"{facts.fields:,} training fields: few are held out for validation")
        if not _is_set(config, "split.validation"):
            spared = round(facts.validation * (1 - share / USUAL_VALIDATION))
            facts = _learning_from(facts, facts.fields + spared)
    steps = _steps(facts, config.model.layers if _is_set(config, "model.layers") else 2)
    if facts.pixels:  # a budget for the training part as it was: the fields that come in are learnt from as long
        steps = round(steps * facts.fields / max(fields, 1))
    yield from _budget(config, facts, steps, crossed=crossed)


def _learning_from(facts: DataFacts, fields: int) -> DataFacts:
    """With the fields that a model will really learn from."""
    return replace(facts, fields=fields, samples=round(facts.samples * fields / max(facts.fields, 1)))


def _soft_labels(config: TrainConfig, facts: DataFacts) -> str:
    """What a forest teaches of few series, where nobody else does."""
    if _is_set(config, "soft_labels"):
        return config.soft_labels
    few = 2 * FOLDS <= facts.fields < FEW and not facts.pixels
    free = config.target != "date" and config.distil is None and config.loss.name != "dice" and has_trees()
    if not (few and free):
        return "none"
    if facts.several:  # whose dates cannot be mixed
        return "forest"
    return "mixes" if facts.fields + facts.validation < VERY_FEW else "both"


def _can_cross_fit(config: TrainConfig, facts: DataFacts) -> bool:
    """Whether a few more trainings take little time, and nothing else needs a validation part of its own."""
    other_use = config.refit or config.beside or facts.processes > 1
    asked_for = any(_is_set(config, key) for key in ("split.validation", "patience", "choose_after"))
    # A training on images takes minutes, and of a handful of fields no fold has enough pixels.
    few = 10 * FOLDS <= facts.fields < 150 if facts.pixels else 2 * FOLDS <= facts.fields < _most_cross_fitted(facts)
    return few and not (other_use or asked_for or config.split.by == "pixel" or config.target == "date")


def _most_cross_fitted(facts: DataFacts) -> int:
    """Series from which on a validation part is held out: a whole region or year is a dearer loss than some fields."""
    return FEW if facts.shares else 2 * FEW


def _quick(config: TrainConfig, facts: DataFacts) -> Iterator[Choice]:
    if config.model.name in FITTED:
        return
    for choice in _auto(config, facts):
        if choice.key not in ("epochs", "patience", "choose_after", "cross_fit"):
            yield choice
    yield from _budget(config, facts, 300, crossed=config.cross_fit > 0)


def _paper(config: TrainConfig, facts: DataFacts) -> Iterator[Choice]:
    """The defaults of the configuration are the paper's; it trains its crop models for 30 epochs."""
    if config.model.name not in FITTED:
        yield Choice("epochs", 30, "as in the paper")


Recipe = Callable[[TrainConfig, DataFacts], Iterator[Choice]]
RECIPES: dict[str, Recipe] = {"auto": _auto, "quick": _quick, "paper": _paper}


def _recurrent(model: ModelConfig, facts: DataFacts) -> Iterator[Choice]:
    yield Choice("model.layers", 2, "two layers; deeper models were no better on fields")
    if facts.images:
        yield Choice("model.hidden", 32, "filters of an image model")
        yield Choice("model.pool", "mean", "the mean of all states: too few labels for a dense layer over the season")
        yield Choice("model.dropout", 0.2, "few fields, many pixels")
    else:
        yield Choice("model.hidden", 64 if facts.fields < FEW else 128, f"{facts.fields:,} training fields")
        yield Choice("model.pool", "season", "keeps at which time of the season a state was reached")
        if "pool" not in model.model_fields_set or model.pool == "season":
            yield Choice("model.bins", _bins(facts), f"{facts.dates} dates over {facts.span} days")
            yield Choice("model.dense", 128, "a layer over all bins")
        if facts.processes == 1 and facts.bands <= FEW_BANDS:
            yield Choice("model.stem", 2, "sees changes between dates, which matter with few bands")
        dropout = 0.3 if _learns_by_heart(facts) and not facts.pixels else 0.2
        yield Choice("model.dropout", dropout, f"{facts.fields:,} training fields")
    if facts.processes == 1:
        yield Choice("model.normalise", True, "trains faster and reaches a better model")


def _network(facts: DataFacts) -> Iterator[Choice]:
    yield Choice("model.layers", 3, "the usual depth of this kind of network on fields")
    yield Choice("model.hidden", 64, "the usual width")
    yield Choice("model.dropout", 0.2 if facts.fields < FEW else 0.1, f"{facts.fields:,} training fields")


def _optimisation(facts: DataFacts, soft_labels: str) -> Iterator[Choice]:
    yield Choice("optimiser.learning_rate", 0.004 if facts.pixels else 0.003, "with AdamW and a cosine schedule")
    yield Choice("optimiser.weight_decay", 0.02 if facts.images else 0.01, "weight decay of the matrices")
    yield Choice("optimiser.decoupled", True, "AdamW")
    yield Choice("optimiser.schedule", "cosine", "falls to zero at the last step")
    yield Choice("optimiser.warmup", WARMUP, "steps")
    yield Choice("optimiser.average", 0.98, "a running mean of the weights is evaluated and saved")
    if soft_labels == "forest":
        yield Choice("soft_labels", soft_labels, "out-of-bag answers of a forest soften labels that look wrong")
    if soft_labels == "both":
        why = f"{facts.fields:,} fields: a forest softens their labels, and mixes of two add more"
        yield Choice("soft_labels", soft_labels, why)
    if soft_labels == "mixes":
        why = f"{facts.fields + facts.validation} fields would be memorised: the model learns from mixes of two"
        yield Choice("soft_labels", soft_labels, why)
    else:
        yield Choice("loss.smoothing", 0.1 if soft_labels == "none" else 0.05, "some labels of fields are wrong")
    if facts.images:
        yield Choice("augmentation.flips", True, "fields have no preferred direction")
    yield Choice("augmentation.date_dropout", _hidden_dates(facts), "other places and years have other clouds")


def _hidden_dates(facts: DataFacts) -> float:
    if facts.pixels:
        return 0.2
    if _learns_by_heart(facts):
        return 0.25
    return 0.1 if facts.fields < MANY or facts.bands > FEW_BANDS else 0.0


def _learns_by_heart(facts: DataFacts) -> bool:
    """Whether a model of the recipe's width can learn the training fields by heart."""
    return facts.fields < (MANY if facts.bands > FEW_BANDS else FEW)


def _of_several_sensors(config: TrainConfig, facts: DataFacts) -> Iterator[Choice]:
    yield Choice("augmentation.sensor_dropout", 0.3, "a model that can do without one of its sensors")
    if facts.series and config.target != "date":  # of images every acquisition is a step, which updates a map
        yield Choice("regular.join", True, "what several sensors saw on one day is one step")


def _budget(config: TrainConfig, facts: DataFacts, steps: int, *, crossed: bool) -> Iterator[Choice]:
    """The number of epochs that makes about `steps` steps."""
    batch = _batch(config, facts)
    key = "batch" if facts.pixels else "series_batch"
    yield Choice(key, batch, f"{facts.samples:,} training samples")
    per_epoch = max(math.ceil(facts.samples / batch), 1)
    epochs = max(round(steps / per_epoch), 2)
    yield Choice("epochs", epochs, f"{epochs * per_epoch:,} steps, {per_epoch:,} per epoch")
    if crossed:  # all epochs are trained, and the last one is kept
        return
    yield Choice("choose_after", 0.8, "only the last epochs, at a low learning rate, are candidates")
    yield Choice("patience", max(epochs // 10, 5), "epochs without a better validation score, among the last ones")


def _batch(config: TrainConfig, facts: DataFacts) -> int:
    if facts.pixels:
        return config.batch
    return 32 if facts.samples < 3000 else 64


def _steps(facts: DataFacts, layers: int) -> int:
    """Of series: more where there is more to learn from. Of images: so many that a run takes minutes, not hours."""
    if facts.pixels:
        return int(min(max(1500 * 30 / (facts.dates * layers), 600), 1500))
    return int(min(max(1.2 * facts.samples, 500), 4000))


def _bins(facts: DataFacts) -> int:
    """No more bins than dates; finer ones where there are fields enough to learn them."""
    return min(12 if facts.fields < FEW else 24, max(facts.dates, 2))


def _is_set(config: TrainConfig, dotted: str) -> bool:
    """Whether a setting was given by a file, an option or `--set`."""
    *sections, last = dotted.split(".")
    inner: Any = config
    for section in sections:
        if section not in inner.model_fields_set:
            return False
        inner = getattr(inner, section)
    return last in inner.model_fields_set
