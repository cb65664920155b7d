"""How far a sample is from all that a model has learnt: the score behind the class *unknown*.

The features of a sample are what the last layer reads and, of recurrent models, the hidden states of all layers: lower
layers still know what the classes have no use for. Of models of trees they are the tables that the trees read. The
distance is Mahalanobis' to the nearest class mean, with one covariance within classes for all of them (Lee et al.
2018). Features of a half season differ from those of a whole one, so a model that streams has such statistics for
several days of the season; a map takes those of the day that it stands at.

Distance and doubt (one less the highest probability) are put on one scale by held-out fields: the surprise is the
negative logarithm of the share of them that is odder still. The oddness of a sample is the surprise at its distance
and, with a lower weight, at its doubt: what is far from all classes is unknown however sure the model is of it, and
doubt alone is mostly that between two known crops. What is odder than a limit is *unknown*; the limit for a rate is the
conformal quantile over held-out fields, so that at most that share of what the model knows is called unknown.

Features depend on which dates were seen, too. The scale is therefore learnt a second time from held-out fields with
dates hidden at random, for each share of `HIDDEN`; a map takes that of the share of dates that it lacks beside fields
of the training. These may be of several years and orbits, each with dates of its own: the calendars of some of them are
kept, and a map is compared with those most like its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cropstar.models.classifier import RecurrentClassifier
from cropstar.models.contract import Classifier, ModelState
from cropstar.models.networks.trees import FittedClassifier, sensor_features
from cropstar.models.zoo import Ensemble

Floats = NDArray[np.float64]
Calendars = tuple[tuple[tuple[int, ...], int], ...]  # days since the start of the season, and how many fields have them

ROWS = 1024  # samples whose distances are computed at once, in float64
LEVELS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99, 0.995, 1.0)
RATES = (0.001, 0.002, 0.005, *(round(0.01 * place, 2) for place in range(1, 21)), 0.25, 0.3, 0.4, 0.5)
DOUBT = 0.25  # the weight of doubt beside distance; docs/trust.md says how it was chosen
LEAST = 1e-3  # share of held-out samples
BEYOND = 4.0  # surprise of twice the largest distance
HIDDEN = (0.25, 0.5, 0.75)  # shares of the dates that scales of their own are learnt for
ABOVE = 0.1  # how much more may be missing than was hidden
NEAR = 4  # days between two dates that count as the same
LIKE = 0.1  # of the training fields: those whose dates are most like those of a map say which it lacks
MEANS, WHITENING = "means", "whitening"
UNKNOWN = "unknown"  # the section of a model card's calibration


def has_features(model: Classifier) -> bool:
    """Whether the features of a model can be read; those of an exported one cannot."""
    first = _first_member(model)
    return isinstance(first, FittedClassifier) or _class_layer(first) is not None


def features_of_state(model: Classifier, state: ModelState) -> tuple[Tensor, list[Tensor]]:
    """Scores (B, K, ...) of a state, and its features as several tensors (B, D, ...)."""
    first = _first_member(model)
    scores, read = _reading(first, lambda: model.classify(state))
    own = model._parted(state)[0] if isinstance(model, Ensemble) else state
    assert isinstance(first, RecurrentClassifier)
    assert own is not None
    return scores, [*read, *first.hidden(own)]


def features_of_series(model: Classifier, x: Tensor, valid: Tensor, days: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The same of a model that reads the whole season at once."""
    first = _first_member(model)
    if isinstance(first, FittedClassifier):
        arrays = x.detach().cpu().numpy().astype(np.float32, copy=False), valid.cpu().numpy()
        table = sensor_features(*arrays, days.cpu().numpy().astype(np.int64), first.grid, first.sensors, first.means)
        values = np.ascontiguousarray(table[:, : first.grid.values(first.columns)])
        return model(x, valid, days), [torch.from_numpy(values)]
    return _reading(first, lambda: model(x, valid, days))


def _reading(model: Classifier, compute: Callable[[], Tensor]) -> tuple[Tensor, list[Tensor]]:
    """The result of `compute`, and the input of the model's last layer during it."""
    layer = _class_layer(model)
    assert layer is not None
    read: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _, given: read.append(given[0]))
    try:
        scores = compute()
    finally:
        hook.remove()
    return scores, [read[0] if len(read) == 1 else torch.cat(read)]  # many series are classified in pieces


def _first_member(model: Classifier) -> Classifier:
    """An ensemble is judged by the features of its first member."""
    return model.classifiers[0] if isinstance(model, Ensemble) else model


def _class_layer(model: Classifier) -> nn.Module | None:
    holder = model.head if isinstance(model, RecurrentClassifier) else model
    layer = getattr(holder, "scores", None)
    return layer if isinstance(layer, nn.Module) else None


# --- distances


@dataclass(frozen=True)
class ClassDistances:
    """Distances to the nearest class mean, after a transformation that makes the spread within classes round."""

    means: Floats  # (classes, r), transformed
    whitening: Floats  # (r, D)

    def of(self, features: Sequence[Tensor]) -> Tensor:
        """(B, ...) of features (B, D, ...), in float64: a sample has the same distance in any company."""
        shape = (features[0].shape[0], *features[0].shape[2:])
        flat = [part.movedim(1, -1).reshape(-1, part.shape[1]) for part in features]
        device = flat[0].device
        whitening, means = (torch.from_numpy(each).to(device) for each in (self.whitening, self.means))
        distances = []
        for start in range(0, len(flat[0]), ROWS):
            rows = torch.cat([part[start : start + ROWS].double() for part in flat], dim=1) @ whitening.T
            nearest = torch.stack([(rows - mean).square().sum(dim=1) for mean in means]).amin(dim=0)
            distances.append(nearest.sqrt())
        return (torch.cat(distances) if distances else torch.zeros(0, dtype=torch.float64)).reshape(shape)


class WithNovelty(Classifier):
    """A model whose scores have one more channel, the distance to what it has learnt."""

    def __init__(self, model: Classifier, distances: ClassDistances) -> None:
        super().__init__()
        self.model, self.distances = model, distances
        self.spatial, self.streaming, self.makes_maps = model.spatial, model.streaming, model.makes_maps

    def radius(self, length: int) -> int:
        return self.model.radius(length)

    def forward(self, x: Tensor, valid: Tensor, days: Tensor) -> Tensor:
        if self.streaming:
            return self.classify(self.model.advance(x, valid, days))
        return self._joined(*features_of_series(self.model, x, valid, days))

    def step(self, x: Tensor, valid: Tensor, days: Tensor, state: ModelState | None) -> ModelState:
        return self.model.step(x, valid, days, state)

    def advance(self, x: Tensor, valid: Tensor, days: Tensor, state: ModelState | None = None) -> ModelState:
        return self.model.advance(x, valid, days, state)

    def classify(self, state: ModelState) -> Tensor:
        return self._joined(*features_of_state(self.model, state))

    def may_round(self, state: ModelState) -> list[bool]:
        return self.model.may_round(state)

    def _joined(self, scores: Tensor, features: list[Tensor]) -> Tensor:
        distance = self.distances.of(features).to(scores.device, torch.float32)
        return torch.cat([scores.float(), distance.unsqueeze(1)], dim=1)


# --- the scale of distance and doubt


@dataclass(frozen=True)
class NoveltyStage:
    """The distribution of distances and doubts of held-out fields at one day of the season."""

    distance: tuple[float, ...]  # at each of LEVELS
    doubt: tuple[float, ...]
    limits: tuple[float | None, ...]  # of the oddness, for each rate; None: too few fields for that
    rates: tuple[float, ...] = RATES

    def oddness(self, distance: NDArray[Any], doubt: NDArray[Any]) -> Floats:
        """0 for the most ordinary of the held-out fields; the higher, the fewer of them are as odd."""
        total: Floats = _surprise(distance, self.distance) + DOUBT * _surprise(doubt, self.doubt)
        return total

    def limit(self, rate: float) -> float | None:
        """The limit of the highest rate that is not above this one."""
        below = [limit for own, limit in zip(self.rates, self.limits, strict=True) if own <= rate * (1 + 1e-9)]
        return below[-1] if below else None


def _surprise(values: NDArray[Any], knots: Sequence[float]) -> Floats:
    """How few held-out samples are as odd; beyond all of them it grows with the distance from the oddest."""
    given = np.asarray(values, dtype=np.float64)
    inside = -np.log(np.maximum(1.0 - np.interp(given, knots, LEVELS), LEAST))
    most = max(knots[-1], 1e-9)
    surprise: Floats = inside + BEYOND * np.maximum(given / most - 1.0, 0.0)
    return surprise


@dataclass(frozen=True)
class NoveltyScale:
    """The criterion for *unknown*: distances and a scale for some days of the season."""

    days: tuple[int, ...]  # since the start of the season
    fields: int  # held out
    stages: tuple[NoveltyStage, ...]
    distances: tuple[ClassDistances, ...]
    hidden: Mapping[float, tuple[NoveltyStage, ...]] = field(default_factory=dict)  # by share; none in older files
    calendars: Calendars = ()  # of training fields; none in older files

    def stage_at(self, day: int) -> int:
        """The stage whose day is nearest."""
        return int(np.abs(np.array(self.days) - day).argmin())

    def of_dates(self, days: NDArray[Any]) -> tuple[int, NoveltyStage]:
        """The stage of a map of these days, and its scale, learnt with as many dates hidden as the map lacks."""
        place = self.stage_at(int(days[-1]))
        missing, learnt = missing_dates(self.days, self.calendars, days)
        share = learnt_share(self.hidden, missing / max(learnt, 1))
        return place, (self.hidden[share] if share else self.stages)[place]

    def to_json(self) -> dict[str, Any]:
        return {
            "days": list(self.days),
            "fields": self.fields,
            "rates": list(self.stages[0].rates),
            "stages": _rows(self.stages),
            "hidden": [{"share": share, "stages": _rows(stages)} for share, stages in self.hidden.items()],
            "calendars": [{"days": list(days), "fields": fields} for days, fields in self.calendars],
        }

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays for the model file."""
        return {
            f"{place}.{name}": array.astype(np.float32)
            for place, own in enumerate(self.distances)
            for name, array in ((MEANS, own.means), (WHITENING, own.whitening))
        }

    @classmethod
    def from_card(cls, stored: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> NoveltyScale:
        """The scale from a model file; raises ValueError if it is not valid."""
        try:
            days, fields = tuple(int(day) for day in stored["days"]), int(stored["fields"])
            rates = tuple(float(rate) for rate in stored["rates"])
            if len(stored["stages"]) != len(days) or not days or list(rates) != sorted(rates):
                raise ValueError("its rates or days are not in order")
            stages = tuple(_stage_of(row, rates) for row in stored["stages"])
            hidden = {
                float(row["share"]): tuple(_stage_of(each, rates) for each in row["stages"])
                for row in stored.get("hidden", ())
            }
            if any(len(each) != len(days) or not 0 < share < 1 for share, each in hidden.items()):
                raise ValueError("its scales for hidden dates do not fit")
            calendars = calendars_from(stored)
            distances = []
            for place in range(len(days)):
                means, whitening = (np.asarray(arrays[f"{place}.{name}"], np.float64) for name in (MEANS, WHITENING))
                if means.ndim != 2 or whitening.ndim != 2 or means.shape[1] != len(whitening) or not means.size:
                    raise ValueError("its class means do not fit")
                if not (np.isfinite(means).all() and np.isfinite(whitening).all()):
                    raise ValueError("a class mean is not a number")
                distances.append(ClassDistances(means, whitening))
        except (KeyError, TypeError) as failure:
            raise ValueError(f"{failure} is missing or wrong") from None
        return cls(days, fields, stages, tuple(distances), hidden, calendars)


def calendars_from(stored: Mapping[str, Any]) -> Calendars:
    """The calendars of a model card."""
    rows = stored.get("calendars", ())
    calendars = tuple((tuple(int(day) for day in row["days"]), int(row["fields"])) for row in rows)
    if any(fields < 1 for _, fields in calendars):
        raise ValueError("a calendar has no field")
    return calendars


def missing_dates(stages: Sequence[int], calendars: Calendars, days: NDArray[Any]) -> tuple[int, int]:
    """How many dates that training had by the last of these days have none near them here, and how many it had.

    Of the calendars of the training those count that are most like these days: of two years, or two orbits, one is
    enough. A model that reads a whole season at once, whose single stage is its end, needs the dates to come, too.
    Older files have no calendars, but the days of all of them together; a whole season then lacks nothing.
    """
    whole = len(stages) < 2
    found = []
    for learnt, fields in calendars or ((() if whole else tuple(stages), 1),):
        due = np.array([day for day in learnt if whole or day <= days[-1] + NEAR], dtype=np.int64)
        missing = int((np.abs(due[:, None] - days).min(axis=1) > NEAR).sum())
        found.append((missing / max(len(due), 1), missing, len(due), fields))
    found.sort()
    reached = np.cumsum([fields for *_, fields in found])
    _, missing, due_dates, _ = found[int(np.searchsorted(reached, LIKE * reached[-1]))]
    return missing, due_dates


def learnt_share(shares: Iterable[float], missing: float) -> float:
    """The share of hidden dates whose scale serves a map that lacks this share; 0 for that of all dates.

    The next higher one: with too few dates hidden more crops than promised are unknown, with too many fewer are.
    """
    known = [0.0, *sorted(shares)]
    return next((share for share in known if missing <= share + ABOVE), known[-1])


def _rows(stages: Sequence[NoveltyStage]) -> list[dict[str, Any]]:
    return [{name: list(getattr(stage, name)) for name in ("distance", "doubt", "limits")} for stage in stages]


def _stage_of(row: Mapping[str, Any], rates: tuple[float, ...]) -> NoveltyStage:
    distance, doubt = (tuple(float(value) for value in row[name]) for name in ("distance", "doubt"))
    limits = tuple(None if value is None else float(value) for value in row["limits"])
    for knots in (distance, doubt):
        if len(knots) != len(LEVELS) or not np.isfinite(knots).all() or list(knots) != sorted(knots):
            raise ValueError("its scale does not rise")
    if len(limits) != len(rates):
        raise ValueError("its limits are not those of the rates")
    return NoveltyStage(distance, doubt, limits, rates)
