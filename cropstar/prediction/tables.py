"""Classes of series: `cropstar predict fields.parquet`, and stores of series.

The output has one row for each series, in the natural order of the ids:

    id, group              the series, as the table calls it; the group where the table has groups
    class, confidence      the likeliest class and its calibrated probability
    set, set_size          the conformal set: classes among which the true one is, with the coverage of the training
    observations           valid dates; a series without any has no class
    declared               the crop that the table itself names, where it does
    entropy or margin      with --uncertainty, from 0 (sure) to 1
    p_<class>              the calibrated probability of every class

A table is ingested into a temporary store and read from there, as in training: what holds for stores holds for tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from cropstar.datasets.samples import Prepared, SeriesDataset
from cropstar.datasets.splits import Split
from cropstar.datasets.transforms import SensorChannels
from cropstar.errors import MismatchError, UsageError
from cropstar.geo.calendar import from_days
from cropstar.geo.weather import THERMAL_BAND, Warmth
from cropstar.models.calibration import ConformalSets
from cropstar.prediction.layers import entropy, lead
from cropstar.prediction.parcels import probability_columns
from cropstar.prediction.predictor import Predictor
from cropstar.prediction.trust import judge_tables
from cropstar.reports.wording import plural
from cropstar.runtime import choose_device, event, keep_large_buffers, logger, track
from cropstar.sources.ingest import ingest
from cropstar.sources.table import TableOptions, TableScene, open_table, present_bands
from cropstar.sources.table_files import PARQUET_ENDINGS, column_is_whole, require_pyarrow
from cropstar.store.classes import UNLABELLED
from cropstar.store.files import atomic_path
from cropstar.store.fingerprint import Fingerprint
from cropstar.store.store import Store, is_store

SERIES_AT_ONCE = 4096
SEPARATOR = "; "  # between the classes of a set
FAR = 100.0  # standard deviations: values that lie further from the training data are of another scale
EVERY = "all"  # the part of all series, labelled or not

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class SeriesRequest:
    """Options of `cropstar predict` for tables."""

    model: Path
    uncertainty: Literal["entropy", "margin"] | None = None
    any_dates: bool = False
    device: str = "auto"
    backend: str = "auto"
    reading: Mapping[str, Any] = field(default_factory=dict)  # options of tables, by name


@dataclass(frozen=True)
class SeriesResult:
    """A table of classes that was written."""

    table: Path
    series: int
    unseen: int  # series without a valid date
    declared: int  # series of which the table names a crop that the model knows
    accuracy: float | None  # among these


def predict_tables(inputs: Sequence[Path], outputs: Sequence[Path], request: SeriesRequest) -> list[SeriesResult]:
    """Classify every series of tables or stores; one table each."""
    keep_large_buffers()
    for output in outputs:
        if output.suffix.lower() in PARQUET_ENDINGS:
            require_pyarrow(output)
    predictor = Predictor(request.model, choose_device(request.device), backend=request.backend)
    if predictor.model.spatial:
        why = f"{predictor.card.model.get('name')} needs images, and a series has no neighbours"
        raise MismatchError("the model reads images", path=request.model, why=why, remedy="use a series model")
    return [_predict(path, output, predictor, request) for path, output in zip(inputs, outputs, strict=True)]


def _predict(path: Path, output: Path, predictor: Predictor, request: SeriesRequest) -> SeriesResult:
    with _opened(path, predictor, request) as store:
        _require_fits(store, path, predictor, any_dates=request.any_dates)
        judge_tables(predictor.card, request.model, store).announce()
        probabilities, observations = classify(store, predictor)
        frame, numbers = _describe(store, predictor, probabilities, observations)
        if path.is_file():
            frame["id"] = _ids_of_file(frame["id"], store, path)
        if request.uncertainty is not None:
            likely = np.nan_to_num(probabilities.T)
            doubt = entropy(likely) if request.uncertainty == "entropy" else 1 - lead(likely)
            frame.insert(list(frame.columns).index("observations"), request.uncertainty, doubt)
            frame.loc[observations == 0, request.uncertainty] = np.nan
        known = (numbers != UNLABELLED) & (observations > 0)
        right = probabilities[known].argmax(axis=1) == numbers[known] if known.any() else np.zeros(0, dtype=bool)
        _write(frame, output)
        result = SeriesResult(
            output,
            len(frame),
            int((observations == 0).sum()),
            int(known.sum()),
            float(right.mean()) if len(right) else None,
        )
        _report(result, store, predictor)
    return result


# --- the series: a store as it is, a table in a temporary one


@contextmanager
def _opened(path: Path, predictor: Predictor, request: SeriesRequest) -> Iterator[Store]:
    """A store of series, or one made of a table with the bands of the model."""
    if is_store(path):
        for name in request.reading:
            why = "its table was read when it was ingested"
            option = name.replace("_", "-")
            raise UsageError(f"--{option} does not apply to a store", path=path, why=why, remedy="leave it out")
        with Store.open(path) as store:
            yield store
        return
    with TemporaryDirectory(prefix="cropstar-") as folder:
        ingest(_read_table(path, predictor, request.reading), Path(folder))
        with Store.open(Path(folder)) as store:
            yield store


def _read_table(path: Path, predictor: Predictor, reading: Mapping[str, Any]) -> list[TableScene]:
    """The table with the bands of the model, in whichever of two scales is nearer to the training's values.

    The scale that a table's values look like may not be the one that was given with --scale in training.
    """
    fingerprint = predictor.card.fingerprint
    own = [band for band in fingerprint.bands if band not in fingerprint.context]
    bands = tuple(reading.get("bands") or own)
    if "bands" not in reading:
        missing = [band for band in bands if band not in present_bands(path)]
        bands = tuple(band for band in bands if band not in missing)
        if missing and not _does_without(missing, predictor, path):
            why = f"no column for {', '.join(missing)} (the model needs {', '.join(fingerprint.bands)})"
            remedy = "name columns with --bands, such as --bands B04=red,B08=nir"
            raise MismatchError("the data do not fit the model", path=path, why=why, remedy=remedy)
    given = {**reading, "bands": bands, "keep_unlabelled": True, "needs_labels": False, **_of_sensors(fingerprint)}
    if THERMAL_BAND in fingerprint.context:
        given |= _warmth_of(path, predictor, reading)
    if "scale" in reading or "offset" in reading:
        return open_table(path, TableOptions(**given))
    trained = {**given, "scale": fingerprint.scale, "offset": fingerprint.offset}
    try:
        scenes = open_table(path, TableOptions(**given))
    except UsageError as failure:
        if not failure.what.startswith("the scale"):
            raise
        scenes = open_table(path, TableOptions(**trained))
        logger.warning("%s: using the scale of the model's training, %g", path, fingerprint.scale)
    if _distance(scenes, predictor) > 1 and scenes[0].fingerprint.scale != fingerprint.scale:
        others = open_table(path, TableOptions(**trained))
        if _distance(others, predictor) < _distance(scenes, predictor):
            scenes = others
            logger.warning("%s: using the scale of the model's training, %g", path, fingerprint.scale)
    if _distance(scenes, predictor) > FAR:
        why = "its values are far from all that the model was trained on"
        remedy = "give the scale with --scale: reflectance = value * scale"
        raise MismatchError("the data do not fit the model", path=path, why=why, remedy=remedy)
    return scenes


def _warmth_of(path: Path, predictor: Predictor, reading: Mapping[str, Any]) -> dict[str, Any]:
    """The column of temperatures, as the user or the training names it, added up as in training."""
    learnt = predictor.card.provenance.get("reading", {})
    column = reading.get("temperature") or learnt.get("temperature")
    if column is None:
        why, remedy = "it was trained with growing degree-days", "name a column of temperature with --temperature"
        raise MismatchError("the data do not fit the model", path=path, why=why, remedy=remedy)
    warmth = Warmth(**learnt.get("warmth", {}))
    return {"temperature": column, "base_temperature": warmth.base, "warm_from": warmth.start}


def _of_sensors(fingerprint: Fingerprint) -> dict[str, Any]:
    """Options of tables that a model of several sensors, or with context, needs."""
    context = tuple(name for name in fingerprint.context if name != THERMAL_BAND)
    return {"sensors": fingerprint.sensors, "context": context} if fingerprint.sensors else {}


def _does_without(missing: Sequence[str], predictor: Predictor, path: Path) -> bool:
    """Whether the columns that are missing are those of whole sensors, and the model learnt to do without one."""
    fingerprint = predictor.card.fingerprint
    columns = [fingerprint.bands[own] for own in fingerprint.columns]
    absent = [place for place, own in enumerate(columns) if set(own) <= set(missing)]
    whole = {band for place in absent for band in columns[place]} == set(missing)
    learnt = bool(predictor.card.provenance.get("sensor_dropout"))
    if not (fingerprint.several and whole and learnt and len(absent) < len(columns)):
        return False
    names = ", ".join(fingerprint.sensors[place].name for place in absent)
    logger.warning("%s: no columns of %s; the model can do without, with lower confidence", path, names)
    return True


def _distance(scenes: Sequence[TableScene], predictor: Predictor) -> float:
    """How many standard deviations the typical value of the nearest band is from its mean in training."""
    own, model = scenes[0].fingerprint, predictor.card.fingerprint
    if own.bands != model.bands and (own.sensors or not set(model.bands) <= set(own.bands)):
        return 0.0  # refused for its bands
    chosen = [own.bands.index(band) for band in model.bands if band not in model.context]
    scales, offsets = (np.broadcast_to(each, len(own.bands)) for each in (own.scales, own.offsets))
    factor, shift = predictor.card.normalisation.factors(
        *(each[[own.bands.index(band) for band in model.bands]] for each in (scales, offsets))
    )
    typical = scenes[0].typical_values()[chosen] * factor[: len(chosen)] + shift[: len(chosen)]
    return float(np.nanmin(np.abs(typical)))


def _require_fits(store: Store, path: Path, predictor: Predictor, *, any_dates: bool) -> None:
    """Refuse series that the model does not understand, before any compute."""
    mine, theirs = predictor.card.fingerprint, store.fingerprint
    if store.manifest.layouts != {"series"}:
        raise UsageError("the store holds images too", path=path, remedy="ingest images and series into two stores")
    days = np.unique(np.concatenate([reader.observed_days for _, reader in store.readers()]))
    mine.require_fits(
        bands=theirs.bands, resolution=mine.resolution, dates=from_days(days), path=path, any_dates=any_dates
    )
    if theirs.bands != mine.bands:
        why = f"its bands are {', '.join(theirs.bands)}, and the model's {', '.join(mine.bands)}"
        remedy = "predict the table that it was made from: bands are then taken by name"
        raise MismatchError("the store does not fit the model", path=path, why=why, remedy=remedy)
    if mine.resolution:
        logger.warning(
            "the model was trained on images of %g m: a series of %s should be of such a pixel, or a parcel's mean",
            mine.resolution,
            path,
        )


# --- from series to classes


def classify(store: Store, predictor: Predictor) -> tuple[Floats, NDArray[np.int64]]:
    """Calibrated probabilities (N, K) of all series in the order of the tiles, NaN without a valid date; and how many
    valid dates each has (N,)."""
    labels = {
        (reader.scene, int(number)): int(label)
        for _, reader in store.readers()
        for number, label in zip(reader.table.numbers, reader.table.labels, strict=True)
    }
    card = predictor.card
    samples = SeriesDataset(
        store, Split(dict.fromkeys(labels, EVERY), labels), EVERY, card.normalisation, SERIES_AT_ONCE
    )
    prepared = Prepared(samples, card.fingerprint.season, card.regular, SensorChannels.of(card.fingerprint))
    found: list[Floats] = []
    counts: list[NDArray[np.int64]] = []
    starts = range(0, len(samples), SERIES_AT_ONCE)
    for start in track(starts, len(starts), "predict", "batch"):
        batch = samples.batch(list(range(start, min(start + SERIES_AT_ONCE, len(samples)))))
        clear = batch.valid.sum(dim=1).numpy()
        batch = prepared.on_regular_dates(batch)
        inputs = (each.to(predictor.device) for each in (batch.x, batch.valid, batch.days))
        with torch.inference_mode():
            likely = predictor.calibrated(predictor.scores_of_series(*inputs).T)[0].T
        found.append(np.where((clear > 0)[:, None], likely, np.nan).astype(np.float32))
        counts.append(clear)
    return np.concatenate(found), np.concatenate(counts)


def _describe(
    store: Store, predictor: Predictor, probabilities: Floats, observations: NDArray[np.int64]
) -> tuple[pd.DataFrame, NDArray[np.int64]]:
    """The columns of the output, and the model's number of each declared crop."""
    card = predictor.card
    names = np.array([*card.fingerprint.classes.names, None], dtype=object)
    seen = observations > 0
    best = np.where(seen, np.nan_to_num(probabilities).argmax(axis=1), -1)  # the last name: none
    keys, groups, labels = [], [], []
    for _, reader in store.readers():
        keys += reader.table.keys
        groups += [store.manifest.scenes[reader.scene].get("group")] * len(reader.table.keys)
        labels += reader.table.labels.tolist()
    columns: dict[str, Any] = {"id": keys}
    if any(group is not None for group in groups):
        columns["group"] = groups
    columns["class"] = names[best]
    columns["confidence"] = np.where(seen, np.nan_to_num(probabilities).max(axis=1), np.nan).astype(np.float32)
    if card.calibration is not None:
        sets = ConformalSets.from_json(card.calibration.get("sets", {})).sets(np.nan_to_num(probabilities))
        sets &= seen[:, None]
        columns["set"] = [SEPARATOR.join(names[:-1][row]) or None for row in sets]
        columns["set_size"] = sets.sum(axis=1)
    columns["observations"] = observations
    own = np.array([*store.fingerprint.classes.names, None], dtype=object)
    declared = own[np.array(labels, dtype=np.int64)]  # no label is -1, the last
    if any(name is not None for name in declared):
        columns["declared"] = declared
    for number, name in enumerate(probability_columns(card.fingerprint.classes.names)):
        columns[name] = probabilities[:, number]
    known = {name: number for number, name in enumerate(card.fingerprint.classes.names)}
    return pd.DataFrame(columns), np.array([known.get(name, UNLABELLED) for name in declared], dtype=np.int64)


def _ids_of_file(keys: pd.Series[Any], store: Store, path: Path) -> Any:
    """Ids as numbers where the file has numbers, so that both tables can be joined."""
    column = next(iter(store.manifest.scenes.values()))["columns"]["id"]
    return pd.to_numeric(keys) if column_is_whole(path, column) else keys


def _write(frame: pd.DataFrame, output: Path) -> None:
    with atomic_path(output) as partial:
        if output.suffix.lower() in PARQUET_ENDINGS:
            frame.to_parquet(partial, engine="pyarrow", index=False)
        else:
            frame.to_csv(partial, index=False, float_format="%.6g")


def _report(result: SeriesResult, store: Store, predictor: Predictor) -> None:
    event(f"table   {result.table}: {plural(result.series, 'row')}", table=str(result.table), series=result.series)
    if result.unseen:
        logger.warning("%d of %d series have no valid observation and no class", result.unseen, result.series)
    if result.accuracy is None:
        return
    learnt = set(predictor.card.provenance.get("scenes", {}).values())
    recipes = {str(scene.get("recipe")) for scene in store.manifest.scenes.values()}
    caution = "the model learnt from them: no test" if learnt & recipes else "no test if the model learnt from them"
    right = round(result.accuracy * result.declared)
    event(
        f"{right:,} of {result.declared:,} rows have the class that is declared, {result.accuracy:.3f} ({caution})",
        accuracy=result.accuracy,
        declared=result.declared,
    )
