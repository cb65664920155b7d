"""A model that classifies windows of a series date by date, and its state.

A window is read with the margin that the model looks at. Of models that step through the dates the margin shrinks on
the way: the input of a date matters only as far as the dates that are still to come can carry it towards the core.
With n dates to come, its own among them, that is `model.radius(n)`; the state before it is never read from further
away, since no cell reads its state further than its input. So both are cropped before every step, and the map stays
the one of a single pass over the whole raster.

The state of a window is exact without any margin of its own: the margin that its map needs lets the last layer be
right as far around the window as the head looks, and the layers below further still. What is kept is the window alone;
one more date then reads it with the margin of one date.
"""

from __future__ import annotations

import ctypes
import datetime
import operator
import platform
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cropstar.datasets.transforms import SensorChannels, count_regular, regularise
from cropstar.errors import ArtifactError, MismatchError, ResourceError, UsageError
from cropstar.geo.calendar import season_days, to_days
from cropstar.geo.raster import GDAL_CACHE_MEGABYTES
from cropstar.geo.windows import Window
from cropstar.models.backends import half_precision, use_backend
from cropstar.models.contract import Classifier, ModelState
from cropstar.models.novelty import RATES, UNKNOWN, NoveltyScale, NoveltyStage, WithNovelty
from cropstar.models.zoo import restore_model
from cropstar.native.convolution import tiles_begin
from cropstar.runtime import logger
from cropstar.sources.base import Observations, Series
from cropstar.sources.multisensor import ModelSeries, context_of, of_one_sensor, sensor_numbers
from cropstar.store.model_file import ModelCard, read_model

SERIES_AT_ONCE = 8192  # of a model of series: more only take memory

Inputs = tuple[Tensor, Tensor, Tensor]  # x (B, T, C, ...), valid (B, T, ...), days (B, T)


class Predictor:
    """A model loaded onto a device.

    `margin` bounds the margin of a window below what the model looks at: faster, and with seams. With `half`, products
    are computed in that type: faster, and not exact. With `unknown`, at most that share of what the model knows is
    called unknown, as the model learnt to tell; see `use_stage_of`.
    """

    def __init__(
        self,
        path: Path,
        device: torch.device,
        *,
        margin: int | None = None,
        backend: str = "auto",
        half: torch.dtype | None = None,
        unknown: float | None = None,
    ) -> None:
        self.path = path
        self.card, weights, self.digest = read_model(path)
        model = restore_model(self.card.model, self.card.shape, weights, path).to(device)
        self.model, self.backend = use_backend(model, backend, device, bands=self.card.fingerprint.channels)
        self._known = self.model
        self._unknown = unknown
        self._scale = None if unknown is None else novelty_of(self.card, path, unknown, self.backend)
        self._stage: NoveltyStage | None = None
        if self._scale is not None:
            self._use_stage(len(self._scale.days) - 1, self._scale.stages[-1])
        self.series_at_once = SERIES_AT_ONCE
        self.device = device
        self.half = half
        self._margin = margin
        self._sensors = SensorChannels.of(self.card.fingerprint)
        self._regular = self.card.regular
        self.temperature = temperature_of(self.card, path)

    @property
    def by_date(self) -> bool:
        """Whether it steps through the dates: only the state is held, not the activations of a whole season."""
        return self.model.streaming and not self._regular.changes

    def read_by_model(self, series: Series, path: Path, *, alone: bool = False) -> Series:
        """The series with the sensors and bands of the model, where there are several.

        `alone` takes dates of any of its sensors; else the one that is missing is warned of, or refused by a model that
        never learnt to do without.
        """
        fingerprint = self.card.fingerprint
        if not fingerprint.sensors:
            return of_one_sensor(series, fingerprint.bands)
        matched = ModelSeries(series, fingerprint, path)
        for own, learnt in matched.renamed:
            logger.warning("%s: images of %s are read as the model's %s", path, own, learnt)
        if matched.missing and not alone:
            why = f"there is no date of {', '.join(matched.missing)}"
            if not self.card.provenance.get("sensor_dropout"):
                remedy = "add its images with --add, or train with augmentation.sensor_dropout"
                raise MismatchError("the data do not fit the model", path=path, why=why, remedy=remedy)
            logger.warning("%s: %s; the model can do without, with lower confidence", path, why)
        return matched

    def use_stage_of(self, dates: Sequence[datetime.date]) -> None:
        """Use the limits of *unknown* for these dates: half a season, or half of its images, is unlike the whole."""
        if self._scale is not None:
            days = season_days(to_days(dates)[None], self.card.fingerprint.season)[0]
            self._use_stage(*self._scale.of_dates(days))

    def _use_stage(self, stage: int, scale: NoveltyStage) -> None:
        assert self._scale is not None
        assert self._unknown is not None
        self._stage = scale
        if self._stage.limit(self._unknown) is None:
            fields = self._scale.fields
            why = f"too few of the {fields} fields were clear by day {self._scale.days[stage]} of the season"
            possible = [rate for rate, limit in zip(scale.rates, scale.limits, strict=True) if limit is not None]
            remedy = f"{f'give a rate of {possible[0]:g} or more, or ' if possible else ''}wait for more images"
            raise UsageError(
                f"--unknown {self._unknown:g} cannot be guaranteed", path=self.path, why=why, remedy=remedy
            )
        self.model = WithNovelty(self._known, self._scale.distances[stage])

    def require_fits(self, series: Series, path: Path, *, any_dates: bool) -> None:
        """Refuse a series that does not fit the model, before anything is computed."""
        self.card.fingerprint.require_fits(
            bands=series.bands,
            resolution=series.grid.resolution,
            dates=series.dates,
            path=path,
            any_dates=any_dates,
        )

    def exact_halo(self, series: Series) -> int:
        """The margin with which a windowed map equals the map of one pass over the whole raster."""
        return self.model.radius(self.length(series))

    def halo(self, series: Series) -> int:
        """The margin of a window."""
        exact = self.exact_halo(series)
        return exact if self._margin is None else min(exact, self._margin)

    def length(self, series: Series) -> int:
        """How many dates the model gets to see."""
        owners = sensor_numbers(series)
        counts = np.bincount(owners, minlength=len(self.card.fingerprint.sensors)).tolist()
        return count_regular(len(series.dates), self.card.fingerprint.season, self._regular, self._sensors, counts)

    def read(self, series: Series, window: Window) -> Observations:
        """Read the observations of a window with its margin."""
        return series.read(window.expand(self.halo(series), series.grid.shape))

    def probabilities(self, series: Series, window: Window) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Calibrated probabilities (K, h, w) of a window, and where any date was valid (h, w)."""
        return self.classify(series, window, self.read(series, window))

    @torch.inference_mode()
    def classify(
        self, series: Series, window: Window, observations: Observations
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """The same of a window that was `read` before."""
        answer = self.answer(series, window, observations)
        return answer.probabilities, answer.seen

    @torch.inference_mode()
    def answer(self, series: Series, window: Window, observations: Observations) -> Answer:
        """The predictions for a window that was `read` before."""
        compute = self._images if self.model.spatial else self._series
        with half_precision(self.model, self.device, self.half) if self.half else nullcontext():
            scores, seen = compute(series, window, observations)
        return Answer(*self.calibrated(scores), seen.cpu().numpy())

    def calibrated(self, scores: Tensor) -> tuple[NDArray[np.float32], NDArray[np.bool_] | None]:
        """Probabilities of scores, classes first, and what is unknown (...), where that is asked for."""
        classes = self.card.shape["classes"]
        chosen: NDArray[np.float32] = torch.softmax(scores[:classes].float() / self.temperature, dim=0).cpu().numpy()
        if np.isnan(chosen).any():
            why = "its weights are so large that what it computes is not finite"
            raise ArtifactError("the model file cannot be used", path=self.path, why=why, remedy="train again")
        if self._stage is None or self._unknown is None:
            return chosen, None
        oddness = self._stage.oddness(scores[classes].cpu().numpy(), 1.0 - chosen.max(axis=0).astype(np.float64))
        limit = self._stage.limit(self._unknown)
        assert limit is not None
        return chosen, oddness > limit

    def _images(self, series: Series, window: Window, observations: Observations) -> tuple[Tensor, Tensor]:
        """Scores (K, h, w) and where anything was seen (h, w); the window is one image."""
        outer = window.expand(self.halo(series), series.grid.shape)
        if self.by_date:
            for state, place in self.images_by_date(series, window, observations):  # noqa: B007  # the last one counts
                pass
            scores = self.model.classify(state)
            seen = torch.from_numpy(observations.valid[:, *window.relative_to(outer).slices].any(axis=0))
        else:
            inputs = self.regular(*self.inputs(series, observations))
            scores, place = self.model(*inputs), outer
            seen = inputs[1][0, :, *window.relative_to(outer).slices].any(dim=0)
        return scores[0, :, *window.relative_to(place).slices], seen

    def images_by_date(
        self, series: Series, window: Window, observations: Observations, state: ModelState | None = None
    ) -> Iterator[tuple[ModelState, Window]]:
        """The state after each date, of the window and a margin, and where that lies.

        `state` is the one before the first date, of the window with the whole margin. After every date the state is
        exact within the window and as far around it as the head looks.
        """
        outer = place = window.expand(self.halo(series), series.grid.shape)
        for t, remaining in enumerate(range(len(series.dates), 0, -1)):
            smaller = window.expand(min(self.halo(series), self.model.radius(remaining)), series.grid.shape)
            if state is not None and smaller != place:
                state = _cropped(state, smaller.relative_to(place))
            place = smaller
            x, valid, days = self.inputs(series, _part(observations, t, place.relative_to(outer)), slice(t, t + 1))
            with tiles_begin(place.top, place.left):  # a pixel has the same bits in every window
                state = self.model.step(x[:, 0], valid[:, 0], days[:, 0], state)
            yield state, place

    def _series(self, series: Series, window: Window, observations: Observations) -> tuple[Tensor, Tensor]:
        """Scores (K, h, w) and where anything was seen (h, w); every pixel is a series, some of them at a time."""
        flat = Observations(observations.values.reshape(*observations.values.shape[:2], -1), _flat(observations.valid))
        scores, seen = [], []
        for start in range(0, window.height * window.width, self.series_at_once):
            some = slice(start, start + self.series_at_once)
            inputs = self.inputs(series, Observations(flat.values[:, :, some], flat.valid[:, some]))
            x, valid, days = self.regular(*inputs)
            scores.append(self.scores_of_series(x, valid, days))
            seen.append(valid.any(dim=1))
        return torch.cat(scores).T.unflatten(1, (window.height, window.width)), torch.cat(seen).unflatten(
            0, (window.height, window.width)
        )

    def scores_of_series(self, x: Tensor, valid: Tensor, days: Tensor) -> Tensor:
        if self.by_date:
            return self.model.classify(self.model.advance(x, valid, days))
        scores: Tensor = self.model(x, valid, days)
        return scores

    def regular(self, x: Tensor, valid: Tensor, days: Tensor) -> Inputs:
        """Observations on regular dates, if the model was trained on such."""
        return regularise(x, valid, days, self.card.fingerprint.season, self._regular, self._sensors)

    def inputs(self, series: Series, observations: Observations, dates: slice = slice(None)) -> Inputs:
        """A batch on the device: one sample of images (T, C, h, w), or N samples of series (T, C, N)."""
        fingerprint, normalisation = self.card.fingerprint, self.card.normalisation
        if fingerprint.sensors:  # `read_by_model` gave it their bands
            x = torch.from_numpy(normalisation.inputs(observations.values, fingerprint, sensor_numbers(series)[dates]))
        else:
            # The model's bands by name: the file may have them in another order, and more of them.
            chosen = [series.bands.index(band) for band in fingerprint.bands]
            values = observations.values if chosen == list(range(len(series.bands))) else observations.values[:, chosen]
            x = torch.from_numpy(normalisation.apply(values, series.scale, series.offset))
        valid = torch.from_numpy(np.ascontiguousarray(observations.valid))
        x, valid = (x.unsqueeze(0), valid.unsqueeze(0)) if self.model.spatial else (x.permute(2, 0, 1), valid.T)
        days = torch.from_numpy(to_days(series.dates)[dates]).expand(len(x), -1)
        return x.to(self.device), valid.to(self.device), days.to(self.device)


@dataclass(frozen=True)
class Answer:
    """The predictions of a model for the pixels of a window."""

    probabilities: NDArray[np.float32]  # (K, h, w), calibrated
    unknown: NDArray[np.bool_] | None  # (h, w), where it is asked for
    seen: NDArray[np.bool_]  # (h, w): where any date was valid


def novelty_of(card: ModelCard, path: Path, rate: float, backend: str) -> NoveltyScale:
    """How a model tells known from unknown at a rate of false alarms; refuses one that never learnt it."""
    stored = (card.calibration or {}).get(UNKNOWN)
    if stored is None:
        why = "it has no statistics to tell what is unknown: it is of an older version, or classifies dates"
        remedy = "train it again, or give --min-confidence instead"
        raise UsageError("--unknown does not apply to this model", path=path, why=why, remedy=remedy)
    if backend == "onnx":
        why = "the features of an exported model cannot be read"
        raise UsageError("--unknown with --backend onnx", why=why, remedy="leave one of them out")
    try:
        scale = NoveltyScale.from_card(stored, card.novelty)
    except ValueError as failure:
        why = f"its statistics of the unknown cannot be read ({failure})"
        raise ArtifactError("the model file cannot be used", path=path, why=why, remedy="train again") from None
    if scale.stages[-1].limit(rate) is None:
        why = f"it was calibrated on {scale.fields} fields, enough for rates of {lowest_rate(scale.fields):g} and more"
        raise UsageError(f"--unknown {rate:g} cannot be guaranteed", path=path, why=why, remedy="give a higher rate")
    return scale


def lowest_rate(fields: int) -> float:
    """The lowest rate of false alarms that can be guaranteed with so many fields."""
    return next((rate for rate in RATES if rate * (fields + 1) >= 1), 1.0)


def temperature_of(card: ModelCard, path: Path) -> float:
    """The temperature by which scores are divided; 1 for a model without calibration."""
    if card.calibration is None:
        return 1.0
    try:
        temperature = float(card.calibration["temperature"]["temperature"])
        if not 0 < temperature < float("inf"):
            raise ValueError(f"a temperature of {temperature}")
    except (KeyError, TypeError, ValueError) as failure:
        why = f"its calibration cannot be understood ({failure})"
        raise ArtifactError("the model file cannot be used", path=path, why=why, remedy="train again") from None
    return temperature


def _part(observations: Observations, date: int, place: Window) -> Observations:
    rows, columns = place.slices
    return Observations(
        observations.values[date : date + 1, :, rows, columns], observations.valid[date : date + 1, rows, columns]
    )


def _flat(valid: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return valid.reshape(len(valid), -1)


def _cropped(state: ModelState, place: Window) -> ModelState:
    rows, columns = place.slices
    return tuple(tuple(part[..., rows, columns] for part in layer) for layer in state)


# --- Through the season: the class after every date, and the state after the last

# The parts of all layers, from the first to the last, (h, w, C) each: how series have them, and the kernels' images.
# float32, or float16 for the file of a season.
StateArrays = list[NDArray[Any]]
StateLayout = tuple[tuple[int, ...], ...]  # channels of each part of each layer

# Told of every date: its number, which pixels (of the window's, row by row), their probabilities (K, n) and which of
# them were seen by then (n,).
OnDate = Callable[[int, slice, NDArray[np.float32], NDArray[np.bool_]], None]


@dataclass(frozen=True)
class WindowResult:
    """A window after the last date."""

    probabilities: NDArray[np.float32]  # (K, h, w)
    counts: NDArray[np.uint16]  # (h, w) valid dates, those before among them
    state: StateArrays  # empty where it is not asked for
    unknown: NDArray[np.bool_] | None = None  # (h, w), where it is asked for

    @property
    def seen(self) -> NDArray[np.bool_]:
        return self.counts > 0


@dataclass(frozen=True)
class EarlierState:
    """The state of a window and its margin after earlier dates."""

    state: StateArrays
    layout: StateLayout
    counts: NDArray[np.integer[Any]]


def require_streaming(predictor: Predictor, option: str) -> None:
    """Refuse a model that has no state between two dates."""
    if predictor.by_date:
        return
    why = "it reads the whole season at once" if not predictor.model.streaming else "it averages dates over periods"
    remedy = "use a model that steps through the dates, such as convstar or star"
    raise UsageError(f"{option} does not apply to this model", path=predictor.path, why=why, remedy=remedy)


def layout_of(model: Classifier, bands: int) -> StateLayout:
    """How many channels the state has."""
    return tuple(tuple(part.shape[1] for part in layer) for layer in _state_of_a_pixel(model, bands))


def half_parts(model: Classifier, bands: int, precision: str) -> tuple[bool, ...]:
    """Which parts of the state a season's file keeps as float16; empty where all of them are float32."""
    return tuple(model.may_round(_state_of_a_pixel(model, bands))) if precision == "float16" else ()


@torch.inference_mode()
def _state_of_a_pixel(model: Classifier, bands: int) -> ModelState:
    """After one step."""
    device = next(iter(model.parameters()), torch.zeros(0)).device
    place = (1, 1) if model.spatial else ()
    x, valid = torch.zeros(1, bands, *place, device=device), torch.ones(1, *place, dtype=torch.bool, device=device)
    return model.step(x, valid, torch.zeros(1, dtype=torch.int32, device=device), None)


@torch.inference_mode()
def advance(
    predictor: Predictor,
    series: Series,
    window: Window,
    observations: Observations,
    *,
    earlier: EarlierState | None = None,
    on_date: OnDate | None = None,
    keep_state: bool = True,
    half: Sequence[bool] = (),
) -> WindowResult:
    """Take a window that was `read`, and the `earlier` state of the same pixels, through all dates of the series.

    `half` says which parts of the state that is kept are to be float16; empty: none.
    """
    outer = window.expand(predictor.halo(series), series.grid.shape)
    inner = window.relative_to(outer).slices
    valid = observations.valid[:, *inner]
    every = on_date is not None
    counts = np.cumsum(valid, axis=0, dtype=np.uint16) if every else valid.sum(axis=0, dtype=np.uint16)[None]
    if earlier is not None:
        counts += earlier.counts[inner].astype(np.uint16)
    walk = _image_steps if predictor.model.spatial else _series_steps
    size = window.height * window.width
    classes = predictor.card.shape["classes"]
    probabilities = np.empty((classes, size), dtype=np.float32)
    unknown = np.zeros(size, dtype=np.bool_)
    arrays: StateArrays = []
    last = len(series.dates) - 1
    for date, pixels, state, scores in walk(predictor, series, window, observations, earlier, every):
        found, strange = predictor.calibrated(scores)
        if on_date is not None:
            on_date(date, pixels, found, counts[date].ravel()[pixels] > 0)
        if date < last:
            continue
        probabilities[:, pixels] = found
        unknown[pixels] = False if strange is None else strange
        if not keep_state:
            continue
        kept = [part.to(kind) for part, kind in zip(state, _types(half, len(state)), strict=True)]
        if predictor.model.spatial:
            # A view, in whatever order of memory: the writer's thread copies it.
            arrays = [part.permute(1, 2, 0).cpu().numpy() for part in kept]
        elif pixels == slice(0, size):
            arrays = [part.cpu().numpy() for part in kept]
        else:
            known = [part.cpu().numpy() for part in kept]
            arrays = arrays or [np.empty((size, part.shape[1]), dtype=part.dtype) for part in known]
            for whole, part in zip(arrays, known, strict=True):
                whole[pixels] = part
    shape = (window.height, window.width)
    if not predictor.model.spatial:
        arrays = [part.reshape(*shape, -1) for part in arrays]
    return WindowResult(probabilities.reshape(classes, *shape), counts[-1], arrays, unknown.reshape(shape))


def _types(half: Sequence[bool], count: int) -> list[torch.dtype]:
    """Hidden states are at most 1, cells and sums no more than there are dates: float16 has room for them."""
    return [torch.float16 if short else torch.float32 for short in half or (False,) * count]


Step = tuple[int, slice, list[Tensor], Tensor]  # date, pixels, parts of the state, scores (K, n)


def _image_steps(
    predictor: Predictor,
    series: Series,
    window: Window,
    observations: Observations,
    earlier: EarlierState | None,
    every: bool,
) -> Iterator[Step]:
    state = None if earlier is None else _model_state(predictor, earlier.state, earlier.layout)
    last = len(series.dates) - 1
    everything = slice(0, window.height * window.width)
    for date, (after, place) in enumerate(predictor.images_by_date(series, window, observations, state)):
        if not every and date < last:
            continue
        rows, columns = window.relative_to(place).slices
        parts = [part[0, :, rows, columns] for layer in after for part in layer]
        yield date, everything, parts, predictor.model.classify(after)[0, :, rows, columns].flatten(1)


def _series_steps(
    predictor: Predictor,
    series: Series,
    window: Window,
    observations: Observations,
    earlier: EarlierState | None,
    every: bool,
) -> Iterator[Step]:
    """Every pixel is a series; some of them at a time, so that only their states live at once."""
    values = observations.values.reshape(*observations.values.shape[:2], -1)
    valid = observations.valid.reshape(len(observations.valid), -1)
    last = len(series.dates) - 1
    for start in range(0, window.height * window.width, predictor.series_at_once):
        pixels = slice(start, min(start + predictor.series_at_once, window.height * window.width))
        x, mask, days = predictor.inputs(series, Observations(values[:, :, pixels], valid[:, pixels]))
        state = None
        if earlier is not None:
            flat = [part.reshape(-1, part.shape[-1])[pixels] for part in earlier.state]
            state = _model_state(predictor, flat, earlier.layout)
        # All dates at once if those in between are not needed.
        for date, dates in [(t, slice(t, t + 1)) for t in range(last + 1)] if every else [(last, slice(None))]:
            state = predictor.model.advance(x[:, dates], mask[:, dates], days[:, dates], state)
            yield date, pixels, [part for layer in state for part in layer], predictor.model.classify(state).T


def _model_state(predictor: Predictor, parts: StateArrays, layout: StateLayout) -> ModelState:
    """Arrays, (h, w, C) of an image or (N, C) of series, as the model takes them."""
    tensors = (torch.from_numpy(part).to(predictor.device).float() for part in parts)
    if predictor.model.spatial:
        tensors = (tensor.permute(2, 0, 1)[None] for tensor in tensors)
        if predictor.backend != "native":  # in the order that a run over all dates has it, or PyTorch rounds otherwise
            tensors = (tensor.contiguous() for tensor in tensors)
    return tuple(tuple(islice(tensors, len(layer))) for layer in layout)


def state_bytes(layout: StateLayout, half: Sequence[bool] = ()) -> int:
    """Bytes of the state of a pixel; `half` as in `advance`."""
    channels = [count for layer in layout for count in layer]
    return sum(map(operator.mul, channels, (kind.itemsize for kind in _types(half, len(channels)))))


# --- The size of windows: as large as the memory allows, in whole blocks of the raster
#
# What a window takes, a pixel of it and of its margin: the observations, of which one window is computed, one waits and
# one is being read, and what lives at once in the model. Beside it stand the program itself and GDAL's blocks. All of
# it follows from the model, the series and the options alone: another start, or another shard, plans the same windows.

PROGRAM = 480 * 2**20  # torch, GDAL and matplotlib, without any pixel
# For what convolutions lay out anew, and for holes in the heap: ConvSTAR 4 x 32 was measured to want 1.7, from the
# peaks at windows of 256 and 512 pixels.
SPARE = 1.9
READ = 3  # windows of observations at a time
MAKING = 2  # copies of a window while it is being read
LARGEST, SMALLEST = 512, 16  # pixels per side: more than that is lost when a block is
LARGEST_WITH_MARGIN = 1024  # of which a margin of 29 pixels costs half as much as of 512
STEP = 32  # where windows cannot be whole blocks
STEP_WITH_MARGIN = 64  # with a margin no window is whole blocks: larger ones save more than the blocks' edges cost
FEWEST_SERIES = 64


@dataclass(frozen=True)
class WindowPlan:
    """How large windows are."""

    window: int  # pixels per side, without the margin
    series_at_once: int  # of a model of series
    bytes: int  # what that takes, all in all


def plan_windows(
    predictor: Predictor, series: Series, memory: int, window: int | None, block: int | None, *, beside: int = 0
) -> WindowPlan:
    """The largest windows that fit in memory; `window` is the user's choice, `block` the block size of the raster.

    `beside` are bytes a pixel that wait to be used or written, apart from observations and scores.
    """
    dates, bands = len(series.dates), len(series.bands)
    halo, shape = predictor.halo(series), series.grid.shape
    length = predictor.length(series)
    model = bytes_per_pixel(predictor.model, predictor.card.fingerprint.channels, length, by_date=predictor.by_date)
    image = dates * ((4 if context_of(series) else 2) * bands + 1)  # values and validity
    reading = image * (READ + MAKING) + 4 * dates
    fixed = PROGRAM + GDAL_CACHE_MEGABYTES * 2**20

    def needed(side: int, at_once: int) -> int:
        area = min(side + 2 * halo, shape[0]) * min(side + 2 * halo, shape[1])
        together = area if predictor.model.spatial else min(at_once, area)
        # Of models that see the season at once all of it stands there as float numbers, too.
        whole = 0 if predictor.by_date and predictor.model.spatial else 8 * dates * bands
        scores = 12 * predictor.card.shape["classes"]
        return int(fixed + area * (reading + scores + beside) + together * (model + whole) * SPARE)

    most = memory - fixed
    at_once = SERIES_AT_ONCE
    while not predictor.model.spatial and at_once > FEWEST_SERIES and at_once * model * SPARE > most / 2:
        at_once //= 2
    for side in [window] if window else _sides(block, halo):
        if needed(side, at_once) <= memory:
            return WindowPlan(side, at_once, needed(side, at_once))
    least = needed(window or SMALLEST, FEWEST_SERIES)
    why = f"windows of {window or SMALLEST} pixels and a margin of {halo} take {least / 1e9:.2f} GB"
    remedy = "raise --memory, or give a smaller --window" if window else "raise --memory, or give a smaller --halo"
    raise ResourceError(f"{memory / 1e9:.2f} GB are not enough", why=why, remedy=remedy)


def _sides(block: int | None, halo: int) -> list[int]:
    """The window sizes to try, the best first: whole blocks without a margin, or parts of one if none fits."""
    if halo:
        return [*range(LARGEST_WITH_MARGIN, 0, -STEP_WITH_MARGIN), STEP, SMALLEST]
    whole = range(LARGEST // block * block, 0, -block) if block and block <= LARGEST else ()
    smaller = range(min(block or LARGEST, LARGEST) // STEP * STEP, 0, -STEP)
    return [*whole, *(side for side in smaller if side not in whole), SMALLEST]


# --- How much memory a model takes for each pixel, found by running it on a few

TRIED_SIDE = 48  # pixels of the image that is tried
TRIED_SERIES = 256


class PeakMemory(TorchDispatchMode):
    """Adds up the tensors that live at the same time, and remembers the most."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0
        self.peak = 0
        self._living: dict[int, int] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and to skip the compiler it would be imported: some seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        for result in tree_leaves(results):
            if isinstance(result, torch.Tensor):
                self._note(result.untyped_storage())
        return results

    def _note(self, storage: Any) -> None:
        key = storage._cdata
        if key in self._living:
            return
        self._living[key] = storage.nbytes()
        self.bytes += storage.nbytes()
        self.peak = max(self.peak, self.bytes)
        weakref.finalize(storage, self._forget, key)

    def _forget(self, key: int) -> None:
        self.bytes -= self._living.pop(key, 0)


@torch.inference_mode()
def bytes_per_pixel(model: Classifier, bands: int, dates: int, *, by_date: bool) -> float:
    """The most that lives at once, a pixel of an image or a series; the input is a part of it."""
    device = next(iter(model.parameters()), torch.zeros(0)).device
    place = (1, TRIED_SIDE, TRIED_SIDE) if model.spatial else (TRIED_SERIES,)
    batch, *image = place
    length = min(dates, 3) if by_date else dates  # after some steps the next ones take as much
    days = torch.arange(18_000, 18_000 + 10 * length, 10, dtype=torch.int32, device=device).expand(batch, -1)
    peak = PeakMemory()
    with peak:
        x = torch.zeros(batch, length, bands, *image, device=device)
        valid = torch.ones(batch, length, *image, dtype=torch.bool, device=device)
        valid[:, ::2] = False  # a mask that is not all true takes the longer way, with both states alive
        if by_date:
            state: ModelState | None = None
            for t in range(length):
                state = model.step(x[:, t], valid[:, t], days[:, t], state)
            assert state is not None
            scores = model.classify(state)
        else:
            scores = model(x, valid, days)
        del scores
    pixels = TRIED_SIDE * TRIED_SIDE if model.spatial else TRIED_SERIES
    return peak.peak / pixels


def release_free_memory() -> None:
    """Hand free pages to the system, also those in the middle of the heap; the next block asks for them again.

    Buffers that are kept for the next step (see `devices.keep_large_buffers`) leave holes in the heap, for the images
    of a shrinking margin are of another size on every date. Without this, a window of 512 pixels took 1.6 GB for the
    first block and 2.3 GB by the third.
    """
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
