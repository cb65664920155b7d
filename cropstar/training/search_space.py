"""The search space of a tuning: which settings vary, and over which values.

optimiser.learning_rate: {log: [1e-4, 1e-2]}      evenly over magnitudes
model.dropout: {uniform: [0, 0.5]}
model.hidden: {int: [32, 256], step: 32}          or log: true in place of step
model.layers: [1, 2, 4]                           one of these
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cropstar.config import CONVOLUTIONAL, SHORT, Section, TrainConfig, resolve_config
from cropstar.errors import UsageError
from cropstar.registry import did_you_mean

PLAIN = (bool, int, float, str, type(None))
MOST_CHOICES = 1000
# These decide what is measured: scores of other parts or seeds cannot be compared.
FIXED = ("store", "split", "target", "seed")
FORMS = "write [1, 2, 4], {uniform: [0, 0.5]}, {log: [1e-4, 1e-2]} or {int: [32, 256]}"


@dataclass(frozen=True)
class Categorical:
    """One of some values."""

    values: tuple[Any, ...]

    @property
    def extremes(self) -> tuple[Any, ...]:
        return self.values

    def contains(self, value: Any) -> bool:
        return any(value == one and type(value) is type(one) for one in self.values)

    def distribution(self, optuna: Any) -> Any:
        return optuna.distributions.CategoricalDistribution(self.values)


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, inclusive."""

    low: float
    high: float
    log: bool = False
    whole: bool = False
    step: int = 1  # of whole numbers

    @property
    def extremes(self) -> tuple[Any, ...]:
        """Of numbers that need not be whole as such: a field of whole numbers refuses even 4.0."""
        return (int(self.low), int(self.high)) if self.whole else (float(self.low), float(self.high))

    def contains(self, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float) or not self.low <= value <= self.high:
            return False
        return not self.whole or (isinstance(value, int) and (value - self.low) % self.step == 0)

    def distribution(self, optuna: Any) -> Any:
        if self.whole:
            low, high = self.extremes
            return optuna.distributions.IntDistribution(low, high, log=self.log, step=self.step)
        return optuna.distributions.FloatDistribution(float(self.low), float(self.high), log=self.log)


Space = Mapping[str, Categorical | Range]


def default_space(config: TrainConfig) -> dict[str, Categorical | Range]:
    """The settings that matter most in most trainings: learning rate, size, dropout."""
    images = CONVOLUTIONAL.match(config.model.name) is not None
    width = Range(8, 64, whole=True, step=8) if images else Range(32, 256, whole=True, step=32)
    return {
        "optimiser.learning_rate": Range(1e-4, 1e-2, log=True),
        "model.layers": Categorical((1, 2, 3, 4, 6)),
        "model.hidden": width,
        "model.dropout": Range(0.0, 0.5),
    }


def parse_space(data: Any, config: TrainConfig, path: Path) -> dict[str, Categorical | Range]:
    """A space from YAML; every value that it names must be one that the configuration takes."""
    if not isinstance(data, dict) or not data:
        raise UsageError("an empty space", path=path, why="no keys at the top", remedy=FORMS)
    space: dict[str, Categorical | Range] = {}
    known = option_keys()
    for key, entry in data.items():
        if str(key).partition(".")[0] in FIXED:
            why = "it changes what is measured: scores could not be compared"
            raise UsageError(f"'{key}' cannot be tuned", path=path, why=why, remedy="leave it out")
        if key not in known:
            raise UsageError(f"unknown key '{key}'", path=path, remedy=did_you_mean(str(key), known))
        space[key] = _entry(key, entry, path)
        _require_taken(key, space[key], config, path)
    return space


def option_keys() -> list[str]:
    """All options that may vary, by their dotted keys."""
    keys = _keys(TrainConfig, "")
    return [key for key in keys if key.partition(".")[0] not in FIXED]


def with_values(config: TrainConfig, values: Mapping[str, Any]) -> TrainConfig:
    """A configuration with some options changed, checked like any other."""
    data = config.model_dump(mode="json")
    for key, value in values.items():
        *parents, last = key.split(".")
        section = data
        for parent in parents:
            section = section[parent]
        section[last] = value
    return resolve_config(None, {}, defaults=data)


def current_values(config: TrainConfig, space: Space) -> dict[str, Any] | None:
    """The configuration's own values for the options of a space; None where one lies outside."""
    values: dict[str, Any] = {}
    for key, entry in space.items():
        value: Any = config
        for part in key.split("."):
            value = getattr(value, part)
        if not entry.contains(value):
            return None
        values[key] = value
    return values


def _keys(section: type[Section], prefix: str) -> list[str]:
    keys: list[str] = []
    for name, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            keys += _keys(kind, f"{prefix}{name}.")
        else:
            keys.append(f"{prefix}{name}")
    return keys


def _entry(key: str, entry: Any, path: Path) -> Categorical | Range:
    if isinstance(entry, list):
        return _choice(key, entry, path)
    kinds = [kind for kind in ("uniform", "int", "log") if isinstance(entry, dict) and kind in entry]
    if not kinds:
        raise UsageError(f"no range of '{key}'", path=path, why=f"not {SHORT.repr(entry)}", remedy=FORMS)
    kind = kinds[0]
    extra = {name: value for name, value in entry.items() if name != kind}
    allowed = ("log", "step") if kind == "int" else ()
    for name in extra:
        if name not in allowed:
            why = f"'{name}' does not go with '{kind}'"
            raise UsageError(f"wrong range of '{key}'", path=path, why=why, remedy=FORMS)
    return _range(key, kind, entry[kind], extra, path)


def _choice(key: str, entry: list[Any], path: Path) -> Categorical:
    if not entry:
        raise UsageError(f"an empty range of '{key}'", path=path, why="no value to choose", remedy=FORMS)
    if not all(isinstance(value, PLAIN) for value in entry) or len(entry) > MOST_CHOICES:
        why = f"choices are plain values, at most {MOST_CHOICES}"
        raise UsageError(f"wrong choices of '{key}'", path=path, why=why, remedy=FORMS)
    if len({(type(value), value) for value in entry}) < len(entry):
        raise UsageError(f"wrong choices of '{key}'", path=path, why="a value is repeated", remedy="give it once")
    return Categorical(tuple(entry))


def _range(key: str, kind: str, ends: Any, extra: dict[str, Any], path: Path) -> Range:
    numbers = isinstance(ends, list) and len(ends) == 2 and all(type(end) in (int, float) for end in ends)
    if not numbers or not all(math.isfinite(end) for end in ends):
        why = f"{SHORT.repr(ends)} are not two numbers"
        raise UsageError(f"wrong range of '{key}'", path=path, why=why, remedy=FORMS)
    low, high = ends
    log, step = kind == "log" or extra.get("log", False), extra.get("step", 1)
    problem = None
    if kind == "int" and not (type(low) is int and type(high) is int):
        problem = "the ends are not whole numbers"
    elif type(log) is not bool or type(step) is not int or step < 1 or (log and step > 1):
        problem = "log is true or false, step a whole number above zero, and not both at once"
    elif log and low <= 0:
        problem = f"magnitudes are above zero, {low} is not"
    if problem is not None:
        raise UsageError(f"wrong range of '{key}'", path=path, why=problem, remedy=FORMS)
    if low >= high or (kind == "int" and low + step > high):
        why = f"nothing to choose between {low} and {high}"
        raise UsageError(f"an empty range of '{key}'", path=path, why=why, remedy="put the smaller number first")
    if kind == "int":
        high -= (high - low) % step
    return Range(low, high, log, kind == "int", step)


def _require_taken(key: str, entry: Categorical | Range, config: TrainConfig, path: Path) -> None:
    for value in entry.extremes:
        try:
            with_values(config, {key: value})
        except UsageError as failure:
            if f"'{key}'" in failure.what:  # else it is the options together that do not fit: a trial will tell
                remedy = "correct the space"
                if isinstance(entry, Range) and not entry.whole and "integer" in str(failure.why):
                    remedy = "write {int: [...]}, with log: true for magnitudes"
                raise UsageError(failure.what, path=path, why=failure.why, remedy=remedy) from None
