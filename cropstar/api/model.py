"""A trained model in a notebook: a torch module with its card, and class probabilities of arrays and tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cropstar import __version__
from cropstar.api.commands import model_file
from cropstar.api.entry import only_expected_errors
from cropstar.api.keywords import AnyPath, Device
from cropstar.config import RegularConfig
from cropstar.datasets.transforms import SensorChannels, count_regular, regularise
from cropstar.errors import InputError, MismatchError, UsageError
from cropstar.geo.calendar import Season, from_days
from cropstar.inputs import require_free
from cropstar.models.backends import use_backend
from cropstar.models.contract import Classifier, count_parameters
from cropstar.models.export import export_forward, export_step
from cropstar.models.zoo import restore_model
from cropstar.prediction.predictor import temperature_of
from cropstar.reports.contents import model_facts
from cropstar.runtime import choose_device, event
from cropstar.sources.table import guess_column, reflectance_band
from cropstar.store.files import atomic_path
from cropstar.store.fingerprint import Fingerprint
from cropstar.store.model_file import ModelCard, read_model

SERIES_AT_ONCE = 8192
FAR = 100.0  # standard deviations: values that lie further from the training data are of another scale
Days = Sequence[Any] | NDArray[Any]  # dates, their ISO texts or datetime64


def load_model(
    path: AnyPath,
    *,
    device: Device = "auto",
    backend: Literal["auto", "naive", "torch", "native", "triton"] = "auto",
) -> CropModel:
    """Load a trained model: a model file, the folder of a run, or what `train` returned."""
    with only_expected_errors():
        file = model_file(path)
        card, weights, digest = read_model(file)
        place = choose_device(device)
        model = restore_model(card.model, card.shape, weights, file).to(place)
        model, _ = use_backend(model, backend, place, bands=card.fingerprint.channels)
        in_run = (file.parent / "result.json").exists() and file.name == "model.safetensors"
        facts = model_facts(file.parent, "run") if in_run else {}
        summary = ModelSummary(
            str(card.model.get("name", "ensemble")),
            tuple(card.fingerprint.classes.names),
            card.fingerprint.bands,
            card.fingerprint.season,
            card.fingerprint.resolution,
            model.spatial,
            count_parameters(model),
            facts.get("test"),
            digest,
            card.provenance,
        )
        factors = card.normalisation.factors(1.0, 0.0)
        return CropModel(model, summary, card.fingerprint, card.regular, factors, temperature_of(card, file)).to(place)


@dataclass(frozen=True)
class ModelSummary:
    """Name, classes, bands and accuracy of a model."""

    name: str  # such as "convstar"
    classes: tuple[str, ...]  # in the order of the probabilities
    bands: tuple[str, ...]
    season: Season  # of the training: first day of the year, and length in days
    resolution: float  # metres; 0 for a model of tables
    reads_images: bool  # else every pixel or series by itself
    parameters: int
    accuracy: dict[str, Any] | None  # on the test parcels of its run; None for a file outside of its run
    digest: str
    provenance: dict[str, Any]


class CropModel(nn.Module):
    """A trained model. It takes reflectance: the normalisation of its training is part of it."""

    def __init__(
        self,
        model: Classifier,
        card: ModelSummary,
        fingerprint: Fingerprint,
        regular: RegularConfig,
        factors: tuple[NDArray[np.float32], NDArray[np.float32]],
        temperature: float,
    ) -> None:
        super().__init__()
        self.model, self.card, self.temperature = model, card, temperature
        self._fingerprint, self._regular = fingerprint, regular
        self.factor: Tensor
        self.shift: Tensor
        self.register_buffer("factor", torch.from_numpy(factors[0]))
        self.register_buffer("shift", torch.from_numpy(factors[1]))
        self.eval()

    def forward(self, x: Tensor, valid: Tensor, days: Tensor) -> Tensor:
        """Scores (B, K[, H, W]) of reflectance x (B, T, C[, H, W]), valid (B, T[, H, W]) and days (B, T)."""
        shape = (-1, *(1,) * (x.dim() - 3))
        x = torch.where(valid.unsqueeze(2), x * self.factor.view(shape) + self.shift.view(shape), 0)
        scores: Tensor = self.model(*regularise(x, valid, days, self._fingerprint.season, self._regular))
        return scores

    @overload
    def predict_proba(self, values: pd.DataFrame, *, any_dates: bool = False) -> pd.DataFrame: ...

    @overload
    def predict_proba(
        self, values: NDArray[Any], dates: Days, valid: NDArray[Any] | None = None, *, any_dates: bool = False
    ) -> NDArray[np.float32]: ...

    def predict_proba(
        self,
        values: NDArray[Any] | pd.DataFrame,
        dates: Days | None = None,
        valid: NDArray[Any] | None = None,
        *,
        any_dates: bool = False,
    ) -> NDArray[np.float32] | pd.DataFrame:
        """Calibrated class probabilities, as `predict` has them.

        - series (N, T, C) give (N, K)
        - an image series (T, C, H, W) gives (K, H, W), several (N, T, C, H, W) give (N, K, H, W)
        - a table with one row per observation (columns for id, date and every band) gives a table, one row per id

        `values` are reflectance, or integers as a store of the model's scale has them; bands are in the order of
        `card.bands`. `dates` are T dates, or (N, T) where every sample has its own. `valid` is False where a cloud
        hides the ground, of the shape of `values` without bands; NaN is never valid. What was never seen clearly has
        probabilities of NaN. Dates outside of the season of the training are refused unless `any_dates`.
        """
        with only_expected_errors():
            if self._fingerprint.sensors:
                why = f"it was trained on {', '.join(sensor.name for sensor in self._fingerprint.sensors)}"
                remedy = "use cropstar.predict with files, a table or a store, which know whose date each is"
                raise UsageError("arrays do not say which sensor a date is of", why=why, remedy=remedy)
            if isinstance(values, pd.DataFrame):
                if dates is not None or valid is not None:
                    raise UsageError("a table has its own dates", remedy="leave out dates and valid")
                return self._of_table(values, any_dates)
            if dates is None:
                raise UsageError("no dates given", remedy="give dates, e.g. ['2023-04-01', ...]")
            return self._of_arrays(np.asarray(values), dates, valid, any_dates)

    def _of_arrays(
        self, values: NDArray[Any], dates: Days, valid: NDArray[Any] | None, any_dates: bool
    ) -> NDArray[np.float32]:
        if values.ndim not in (3, 4, 5):
            why = f"an array of {values.ndim} dimensions"
            raise UsageError("unknown shape of values", why=why, remedy="give (N,T,C), (T,C,H,W) or (N,T,C,H,W)")
        single = values.ndim == 4
        values = values[None] if single else values  # (N, T, C[, H, W])
        bands = self.card.bands
        if values.shape[2] != len(bands):
            why = f"{values.shape[2]} bands, and the model has {len(bands)}: {', '.join(bands)}"
            raise MismatchError("the values do not fit the model", why=why, remedy="give these bands in this order")
        if values.ndim == 3 and self.model.spatial:
            why = f"{self.card.name} reads images, not single series"
            raise UsageError("the model needs images", why=why, remedy="give (T,C,H,W), or use a series model")
        clear = np.isfinite(values).all(axis=2)  # (N, T[, H, W])
        if valid is not None:
            given = np.asarray(valid, dtype=bool)
            given = given[None] if single else given
            if given.shape != clear.shape:
                why = f"{given.shape} and not {clear.shape}"
                raise UsageError("valid has another shape than the values", why=why, remedy="leave out the bands only")
            clear = clear & given
        if np.issubdtype(values.dtype, np.integer):
            values = values.astype(np.float32) * np.float32(self._fingerprint.scale) + self._fingerprint.offset
        reflectance = np.where(np.expand_dims(clear, 2), values, 0).astype(np.float32)
        days = _days(dates, *values.shape[:2])
        self._require_season(days[clear.any(axis=tuple(range(2, clear.ndim)))], any_dates)
        self._require_scale(reflectance, clear)
        probabilities = (
            self._of_images(reflectance, clear, days) if values.ndim == 5 else self._of_series(reflectance, clear, days)
        )
        return probabilities[0] if single else probabilities

    def _of_images(
        self, x: NDArray[np.float32], valid: NDArray[np.bool_], days: NDArray[np.int32]
    ) -> NDArray[np.float32]:
        """(N, K, H, W). One image at a time; a series model reads each pixel on its own."""
        probabilities = []
        for values, clear, own in zip(x, valid, days, strict=True):
            if self.model.spatial:
                probabilities.append(self._probabilities(values[None], clear[None], own[None])[0])
                continue
            height, width = clear.shape[1:]
            series = values.reshape(*values.shape[:2], -1).transpose(2, 0, 1)
            pixels = self._of_series(series, clear.reshape(len(clear), -1).T, np.tile(own, (height * width, 1)))
            probabilities.append(pixels.T.reshape(-1, height, width))
        return (
            np.stack(probabilities)
            if probabilities
            else np.zeros((0, len(self.card.classes), *x.shape[3:]), np.float32)
        )

    def _of_series(
        self, x: NDArray[np.float32], valid: NDArray[np.bool_], days: NDArray[np.int32]
    ) -> NDArray[np.float32]:
        rows = [slice(start, start + SERIES_AT_ONCE) for start in range(0, len(x), SERIES_AT_ONCE)]
        probabilities = [self._probabilities(x[some], valid[some], days[some]) for some in rows]
        return np.concatenate(probabilities) if probabilities else np.zeros((0, len(self.card.classes)), np.float32)

    @torch.inference_mode()
    def _probabilities(
        self, x: NDArray[np.float32], valid: NDArray[np.bool_], days: NDArray[np.int32]
    ) -> NDArray[np.float32]:
        given = [torch.from_numpy(np.ascontiguousarray(part)).to(self.factor.device) for part in (x, valid, days)]
        likely: NDArray[np.float32] = torch.softmax(self(*given).float() / self.temperature, dim=1).cpu().numpy()
        likely[np.broadcast_to(~np.expand_dims(valid.any(axis=1), 1), likely.shape)] = np.nan
        return likely

    def _of_table(self, table: pd.DataFrame, any_dates: bool) -> pd.DataFrame:
        columns = [str(name) for name in table.columns]
        key, day = (guess_column(role, columns) for role in ("id", "date"))
        if key is None or day is None:
            what = f"no column of the {'id' if key is None else 'date'}"
            raise InputError(what, why=f"the columns are {', '.join(columns)}", remedy="call them id and date")
        bands = [self._band_column(band, columns) for band in self.card.bands]
        ordered = table.sort_values([key, day], kind="stable")
        keys, starts = np.unique(ordered[key].to_numpy(), return_index=True)
        ends = np.append(starts[1:], len(ordered))
        longest = int((ends - starts).max(initial=0))
        rows = ordered[bands].to_numpy()
        moments = _column_days(ordered[day])
        values = np.full((len(keys), longest, len(bands)), np.nan, dtype=np.float32)
        days = np.empty((len(keys), longest), dtype="datetime64[D]")
        if np.issubdtype(rows.dtype, np.integer):
            rows = rows * self._fingerprint.scale + self._fingerprint.offset
        for place, (start, end) in enumerate(zip(starts, ends, strict=True)):
            values[place, : end - start] = rows[start:end]
            days[place, : end - start] = moments[start:end]
            days[place, end - start :] = moments[end - 1]
        probabilities = self._of_arrays(values, days, None, any_dates)
        return pd.DataFrame(probabilities, index=pd.Index(keys, name=key), columns=list(self.card.classes))

    def _band_column(self, band: str, columns: Sequence[str]) -> str:
        column = band if band in columns else next((each for each in columns if reflectance_band(each) == band), None)
        if column is None:
            why = f"the columns are {', '.join(columns)}"
            raise MismatchError(f"no column for the band {band}", why=why, remedy=f"call it {band}")
        return column

    def _require_season(self, days: NDArray[np.int32], any_dates: bool) -> None:
        season = self.card.season
        strange = [] if any_dates else [day for day in from_days(np.unique(days)) if not season.covers(day)]
        if strange:
            why = f"{len(strange)} dates outside the season of the training, such as {strange[0]}"
            raise MismatchError("the dates do not fit the model", why=why, remedy="any_dates=True accepts them")

    def _require_scale(self, reflectance: NDArray[np.float32], clear: NDArray[np.bool_]) -> None:
        """Refuse values of another scale, such as reflectance x 10000 as floats."""
        seen = np.moveaxis(reflectance, 2, -1)[clear]  # (observations, C)
        if not len(seen):
            return
        typical = np.median(seen, axis=0)
        away = np.abs(typical * self.factor.cpu().numpy() + self.shift.cpu().numpy())
        if away.min() > FAR:
            why = f"a typical value is {typical[0]:g}, far from all that the model was trained on"
            raise MismatchError("the values do not fit the model", why=why, remedy="give reflectance, 0 to 1")

    def __repr__(self) -> str:
        card = self.card
        return (
            f"<{card.name}: {len(card.classes)} classes, bands {' '.join(card.bands)}, {card.parameters:,} parameters>"
        )


def _days(dates: Days, samples: int, length: int) -> NDArray[np.int32]:
    """(N, T) days since 1970-01-01."""
    try:
        moments = np.asarray(dates)
        if moments.dtype.kind != "M":  # dates and their ISO texts
            given = [np.datetime64(day, "D") for day in np.asarray(dates, dtype=object).ravel()]
            moments = np.asarray(given).reshape(moments.shape)
        days: NDArray[np.int32] = moments.astype("datetime64[D]").astype(np.int32)
    except (TypeError, ValueError) as failure:
        raise UsageError("not a list of dates", why=str(failure), remedy="give dates such as 2023-04-01") from None
    if days.shape != (length,) and days.shape != (samples, length):
        why = f"{days.shape} dates for {samples} samples of {length} dates"
        raise UsageError("the dates do not fit the values", why=why, remedy="give one date for every step of time")
    return np.broadcast_to(days, (samples, length)).copy()


def _column_days(column: pd.Series[Any]) -> NDArray[np.datetime64]:
    try:
        days: NDArray[np.datetime64] = pd.to_datetime(column).to_numpy().astype("datetime64[D]")
    except (TypeError, ValueError) as failure:
        raise InputError("the dates of the table cannot be read", why=str(failure), remedy="write 2023-04-01") from None
    if np.isnat(days).any():
        raise InputError("a row of the table has no date", remedy="leave it out")
    return days


# --- export to ONNX


def export_model(path: Path, output: Path, *, dates: int | None = None, overwrite: bool = False) -> list[Path]:
    """Write the model to `output`, and its single step beside it if it has one; returns the files."""
    stepping = output.with_name(f"{output.stem}-step{output.suffix}")
    for target in (output, stepping):
        require_free(target, (".onnx",), overwrite)
    card, weights, digest = read_model(path)
    model = restore_model(card.model, card.shape, weights, path)
    metadata = describe(card, digest, path)
    bands = card.fingerprint.channels
    contents = {output: export_forward(model, bands, dates or _length(card), metadata)}
    if model.streaming:
        contents[stepping] = export_step(model, bands, metadata)
    for target, content in contents.items():
        with atomic_path(target) as partial:
            partial.write_bytes(content)
        event(f"onnx    {target}", onnx=str(target))
    if not model.streaming:
        stepping.unlink(missing_ok=True)  # of another model; --overwrite was given
    return list(contents)


def describe(card: ModelCard, digest: str, path: Path) -> dict[str, str]:
    """Texts for the file: `x` is (reflectance - mean) / deviation of the bands in this order."""
    fingerprint = card.fingerprint.to_json()
    facts = {
        "bands": fingerprint["bands"],
        "classes": fingerprint["classes"],
        "season": fingerprint["season"],
        "resolution": fingerprint["resolution"],
        "normalisation": card.normalisation.to_json(),
        "regular": card.provenance.get("regular", {}),
        "temperature": temperature_of(card, path),
    }
    texts = {f"cropstar.{name}": json.dumps(fact, sort_keys=True, ensure_ascii=False) for name, fact in facts.items()}
    note = (
        "x is (reflectance - mean) / deviation, bands in the order given; valid is false under cloud and nodata; "
        "days are days since 1970-01-01; probabilities are softmax(scores / temperature)"
    )
    return {**texts, "cropstar.version": __version__, "cropstar.model": digest, "cropstar.usage": note}


def _length(card: ModelCard) -> int:
    """How many dates the model was trained to see."""
    data, length = card.fingerprint, int(card.shape["length"])
    of_each = [length // len(data.sensors)] * len(data.sensors) if data.sensors else []
    return count_regular(length, data.season, card.regular, SensorChannels.of(data), of_each)
