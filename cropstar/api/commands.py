"""The functions ingest, train, evaluate, predict and update, which the commands of the same names call.

They take the options of the command line as keywords of the same names, with the same defaults; a test compares each
with its command.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import date
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack
from urllib.parse import urlsplit

from cropstar.api.data import StoreView
from cropstar.api.entry import Entry, paths, require_free_remote
from cropstar.api.keywords import (
    AnyPath,
    Backend,
    Dates,
    Device,
    IngestKeywords,
    MapKeywords,
    Names,
    PredictKeywords,
    TableReading,
)
from cropstar.config import find_config, resolve_config
from cropstar.errors import ArtifactError, PartialResult, UsageError
from cropstar.inputs import require_free
from cropstar.runtime import DEMO, RUNS, STORES, event, logger
from cropstar.store.remote.addresses import is_catalogue
from cropstar.store.store import MANIFEST, newest_store

if TYPE_CHECKING:
    from cropstar.config import SplitConfig, TrainConfig
    from cropstar.prediction.outputs import MapResult
    from cropstar.training.runs import Run

# --- Values, as a notebook has them


def _path(value: AnyPath | None) -> Path | None:
    return None if value is None else Path(value)


def _names(value: Names | None) -> tuple[str, ...] | None:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",")]
    return tuple(value) if value else None


def _dates(value: Dates | None, kind: type[Any]) -> Any:
    """Dates as the command line has them: a text that lists them or names a file; of `ingest` a path."""
    if value is None or isinstance(value, (str, os.PathLike)):
        return None if value is None else kind(os.fspath(value))
    return kind(",".join(str(day) for day in value))


def _day(value: str | date | None) -> date | None:
    try:
        return date.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        raise UsageError(f"'{value}' is not a date", remedy="write it as 2023-04-01") from None


# --- ingest

WEB_ADDRESS = re.compile("https?://", re.IGNORECASE)
READ_AS: dict[str, Callable[[Any], Any]] = {  # the options of single sources that are more than a number or a text
    **dict.fromkeys(("background", "classes", "labels"), Path),
    **dict.fromkeys(("background_classes", "clear", "bbox", "nodata"), tuple),
    **dict.fromkeys(("bands", "context", "regions"), _names),
    **dict.fromkeys(("start", "end"), _day),
    "dates": lambda value: _dates(value, Path),
    "add": lambda value: tuple(map(Path, paths(value))),
}


def _is_catalogue(given: Mapping[str, Any], text: str) -> bool:
    return text == given["path"] and is_catalogue((str(given["source"]),), text)


@Entry(
    *("path", "add", "parcels", "classes", "labels", "dates", "background"),
    output="output",
    head=MANIFEST,
    uploaded=StoreView,
    is_address=_is_catalogue,
)
def ingest(
    path: AnyPath | None = None,
    *,
    source: str | None = None,
    output: AnyPath | None = None,
    overwrite: bool = False,
    workers: int | None = None,
    scheduler: str | None = None,
    seed: int | None = None,
    parcels: AnyPath | None = None,
    label_column: str | None = None,
    tile_size: int | None = None,
    allow_remote: bool = False,
    scratch: AnyPath | None = None,
    progress: bool | None = False,
    **options: Unpack[IngestKeywords],
) -> StoreView:
    """Turn images and parcels, a table of series or a published data set into a store.

    `source` says what `path` is and is guessed when left out. Without both, the demonstration scene is written to
    data/demo and ingested. The store goes to `output`, by default data/stores/<name of path>. A call that was stopped
    continues where it was.

    `start` and `end` are --from and --to of the command line. The other options are explained by
    `cropstar ingest --help`.
    """
    from cropstar.execution.dask import connected
    from cropstar.execution.local import default_workers
    from cropstar.geo.raster import bound_gdal
    from cropstar.reports.contents import summarise
    from cropstar.reports.wording import plural
    from cropstar.sources.catalogue import SOURCES, IngestRequest, guess_source
    from cropstar.sources.ingest import ingest as run_ingest

    known = {name: value for name, value in options.items() if value is not None and value is not False}
    special = {name: READ_AS[name](value) if name in READ_AS else value for name, value in known.items()}
    given = {name: value for name, value in special.items() if value not in (None, ())}
    text = None if path is None else os.fspath(path)
    url = text if text and WEB_ADDRESS.match(text) else None  # a Path would lose one of its slashes
    place = Path(text) if text and not url else None
    chosen = source or ("stac" if url else guess_source(place))

    bound_gdal()  # before anything is opened: GDAL asks for the size of its cache once
    if scheduler is not None:
        if workers is not None:
            why = "the cluster has its own workers"
            raise UsageError("--workers with --scheduler", why=why, remedy="leave one of them out")
        place = DEMO if chosen == "synthetic" and place is None else place
        place = place and place.absolute()  # as it is called on every machine
    folder = _path(output) or STORES / (_store_name(place, url) + ("-radar" if "radar" in given else ""))
    # First the cluster: to read and digest images may take long.
    with nullcontext() if scheduler is None else connected(scheduler) as cluster:
        request = IngestRequest(place, _path(parcels), label_column, tile_size, seed, given, url)
        scenes = SOURCES[chosen](request)
        try:
            result = run_ingest(
                scenes, folder, overwrite=overwrite, workers=workers or default_workers(), cluster=cluster
            )
        finally:
            for scene in scenes:
                scene.close()
    if logger.isEnabledFor(logging.INFO):  # it reads every label and mask of the store
        summarise(result.folder)
    _warn_of_spellings(result.folder)
    event(
        f"store {result.folder}: {plural(result.written, 'tile')} written, {result.kept} kept",
        store=str(result.folder),
        written=result.written,
        kept=result.kept,
    )
    return StoreView(result.folder)


def _warn_of_spellings(store: Path) -> None:
    from cropstar.store.store import read_manifest

    manifest = read_manifest(store)
    for names in manifest.fingerprint.classes.spelt_twice() if manifest is not None else ():
        logger.warning(
            "%s are %d classes: if they are one crop, merge them in a class table ('ingest --classes')",
            " and ".join(f"'{name}'" for name in names),
            len(names),
        )


def _store_name(path: Path | None, url: str | None) -> str:
    """The default name of a store: after the file, the folder or the catalogue."""
    if path is not None:
        whole = path.resolve()
        return whole.name if whole.is_dir() else whole.name.removesuffix(".gz").rpartition(".")[0] or whole.name
    return (urlsplit(url).hostname or "stac") if url else "demo"


# --- train

CLEAN_FOLDS = 3  # of `clean` where no `folds` are given

# Keywords of `train` that are settings of the configuration, and their keys.
SETTINGS: dict[str, tuple[str, ...]] = {
    "store": ("store",),
    "recipe": ("recipe",),
    "model": ("model.name",),
    "layers": ("model.layers",),
    "hidden": ("model.hidden",),
    "target": ("target",),
    "split_by": ("split.by",),
    "split": ("split.name",),
    "epochs": ("epochs",),
    "batch": ("batch", "series_batch"),
    "learning_rate": ("optimiser.learning_rate",),
    "ensemble": ("ensemble",),
    "refit": ("refit",),
    "distil": ("distil",),
    "clean": ("clean",),
    "forest": ("forest",),
    "seed": ("seed",),
}


@dataclass(frozen=True)
class TrainingResult:
    """A finished run: its folder, its model, and the accuracy on the test parcels."""

    folder: Path
    model: Path
    report: Path  # an HTML page
    # Of the test parcels: {"pixel": {"overall_accuracy": ...}, "parcel": ...}.
    metrics: dict[str, Any] = field(repr=False)
    headline: str = ""

    @classmethod
    def of(cls, run: Run, result: Mapping[str, Any]) -> TrainingResult:
        headline = run.headline() if result else ""
        return cls(run.folder, run.model, run.report, dict(result.get("test", {})), headline)

    def __fspath__(self) -> str:
        return os.fspath(self.folder)


@Entry("config", "store", "distil", written=("runs", "resume"))
def train(
    *,
    config: AnyPath | None = None,
    store: AnyPath | None = None,
    recipe: Literal["auto", "quick", "paper"] | None = None,
    model: str | None = None,
    layers: int | None = None,
    hidden: int | None = None,
    target: Literal["pixel", "parcel", "date"] | None = None,
    split_by: Literal["parcel", "block", "scene", "group", "pixel"] | None = None,
    split: str | None = None,
    epochs: int | None = None,
    batch: int | None = None,
    learning_rate: float | None = None,
    budget: float | None = None,
    ensemble: int | None = None,
    refit: bool | None = None,
    distil: AnyPath | None = None,
    folds: int | None = None,
    clean: bool | None = None,
    forest: bool | None = None,
    seed: int | None = None,
    settings: Mapping[str, Any] | Sequence[str] = (),
    runs: AnyPath = RUNS,
    resume: AnyPath | None = None,
    fresh: bool = False,
    checkpoint_seconds: float = 30.0,
    diagnose: bool = False,
    tensorboard: bool = False,
    backend: Literal["auto", "naive", "torch", "native", "triton"] = "auto",
    device: Device = "auto",
    allow_remote: bool = False,
    scratch: AnyPath | None = None,
    progress: bool | None = False,
) -> TrainingResult:
    """Train a model on a store and evaluate it on parcels that training never saw.

    `store` is by default the newest one in data/stores. Settings that are not given follow from the data; `settings`
    takes any other key of the configuration, such as {"optimiser.learning_rate": 1e-3} (--set on the command line).
    With `folds` every field is judged once, by a model that never saw it, and the model itself learns from all fields.
    A training that was stopped continues when it is called again.
    """
    options = dict(locals())
    resolved, _ = _configured(options)

    from cropstar.runtime import choose_device
    from cropstar.training.train import TrainOptions
    from cropstar.training.train import train as run_training

    resumed = _path(resume)
    how = TrainOptions(
        Path(runs), choose_device(device), resumed, fresh, checkpoint_seconds, diagnose, tensorboard, backend, budget
    )
    run, result = run_training(resolved, how)
    trained = TrainingResult.of(run, result)
    if result:  # of several processes only the first one has it
        event(trained.headline, test=trained.metrics)
        event(f"model  {trained.model}", model=str(trained.model))
        event(f"report {trained.report}", report=str(trained.report))
    return trained


@Entry("config", "store", "distil", written=("runs", "resume"))
def explain_config(**options: Any) -> str:
    """The settings that `train` would use with these options, as YAML, with the reasons for those a recipe chose."""
    from cropstar.training.recipes import explained

    return explained(*_configured(options, without_store=True))


def _configured(options: Mapping[str, Any], *, without_store: bool = False) -> tuple[TrainConfig, tuple[Any, ...]]:
    """The configuration of a training, and the choices of the recipe; `without_store` warns if there is no store."""
    from cropstar.training.recipes import with_recipe

    given = {key: options[name] for name, keys in SETTINGS.items() for key in keys}
    given |= {name: _path(options[name]) for name in ("store", "distil")}
    if options["folds"] is not None:  # the folds of cross-fitting, with no field kept for the test
        given |= {"cross_fit": options["folds"], "split.test": 0.0}
    elif options["clean"]:
        given |= {"cross_fit": CLEAN_FOLDS}
    assignments = _assignments(options["settings"])
    file = find_config(os.fspath(options["config"])) if options["config"] else None
    if options["resume"] is not None:
        if file or assignments or any(value is not None for value in given.values()):
            raise UsageError("--resume takes the configuration of the run", remedy="leave out all other settings")
        file = Path(options["resume"]) / "config.yaml"
    store = newest_store(STORES) or (STORES if without_store else None)
    config = resolve_config(file, given, assignments, defaults={"store": store})
    if store is not None and config.store == store and given["store"] is None and not without_store:
        count = sum(1 for _ in STORES.glob(f"*/{MANIFEST}"))
        newest = f", the newest of {count} in {STORES}" if count > 1 else ""
        event(f"store   {store}{newest}", store=str(store))
    if without_store and not (config.store / MANIFEST).exists():
        logger.warning("no store in %s: what the recipe would choose depends on the data", config.store)
        return config, ()
    return with_recipe(config)


def _assignments(settings: Mapping[str, Any] | Sequence[str]) -> tuple[str, ...]:
    if isinstance(settings, Mapping):
        return tuple(f"{key}={dumps(value, default=str)}" for key, value in settings.items())
    return tuple(settings)


# --- evaluate


@dataclass(frozen=True)
class EvaluationResult:
    """The accuracy of a model on the parcels of a store."""

    metrics: dict[str, Any] = field(repr=False)  # {"pixel": {"overall_accuracy": ...}, "parcel": ...}
    parcels: int  # how many
    seen_in_training: int  # of these; they make the accuracy too optimistic
    part: str
    areas: dict[str, Any] | None = field(repr=False)  # with `areas`: adjusted areas of the classes
    facts: dict[str, Any] = field(repr=False)  # all of it, as `cropstar evaluate --json` prints it

    def __str__(self) -> str:
        from cropstar.reports.results import format_scores

        return format_scores(self.facts)


@Entry("model", "store", "areas", written=("output",))
def evaluate(
    model: AnyPath,
    *,
    store: AnyPath | None = None,
    part: Literal["test", "validation", "train", "all"] | None = None,
    split: str | None = None,
    split_by: Literal["parcel", "block", "scene", "group", "pixel"] | None = None,
    areas: AnyPath | None = None,
    design: Literal["random", "stratified"] | None = None,
    output: AnyPath | None = None,
    overwrite: bool = False,
    backend: Backend = "auto",
    device: Device = "auto",
    allow_remote: bool = False,
    scratch: AnyPath | None = None,
    progress: bool | None = False,
) -> EvaluationResult:
    """Evaluate a model on the test parcels of its training, or on the parcels of another store.

    `model` is a model file, the folder of a run, or what `train` returned. With `areas`, a map (.tif) or its hectares
    by class (.csv), the area of each class is adjusted by what the parcels show (Olofsson et al. 2014). `output` is a
    .json file or an .html report.
    """
    from cropstar.reports.report import evaluation_report
    from cropstar.reports.results import read_result
    from cropstar.runtime import choose_device
    from cropstar.store.files import write_json
    from cropstar.training.evaluate import EvaluateOptions, evaluate_model

    place, target = Path(model), _path(output)
    if target is not None:
        require_free(target, (".json", ".html"), overwrite)
    report = target is not None and target.suffix.lower() == ".html"
    # Read before anything is computed: a report tells of the training as well.
    result = read_result(place if place.is_dir() else place.parent) if report else {}
    facts = evaluate_model(
        place,
        EvaluateOptions(
            choose_device(device), _path(store), part, _split_config(split, split_by), _path(areas), design, backend
        ),
    )
    if target is not None and report:
        evaluation_report(target, result, facts)
    elif target is not None:
        write_json(target, facts)
    if target is not None:
        event(f"{'report' if report else 'figures'} {target}", figures=str(target))
    return EvaluationResult(
        facts["figures"], facts["parcels"], facts["seen_in_training"], facts["part"], facts["areas"], facts
    )


def _split_config(name: str | None, by: str | None) -> SplitConfig | None:
    """The requested split, checked as in a configuration."""
    if name is None and by is None:
        return None
    return resolve_config(None, {"store": STORES, "split.name": name, "split.by": by}).split


# --- predict


@dataclass(frozen=True)
class MapProduct:
    """A map that was written, and the files beside it."""

    raster: Path
    files: tuple[Path, ...] = field(repr=False)  # the map first
    pixels: tuple[int, ...] = field(repr=False)  # of each class of the model
    unseen: int = 0  # pixels without a clear date
    unknown: int = 0  # pixels of no class that the model knows
    masked: int = 0  # pixels outside the mask
    finished: bool = True  # False while other shards have blocks to do

    @classmethod
    def of(cls, result: MapResult, *more: Path) -> MapProduct:
        """The product of `predict` or `update`."""
        files = (*result.files.all(), *more)
        pixels = tuple(map(int, result.pixels))
        return cls(result.raster, files, pixels, result.unseen, result.unknown, result.masked, result.finished)


@dataclass(frozen=True)
class TableProduct:
    """A table of classes that was written, one row for every series."""

    table: Path
    series: int
    unseen: int = 0  # series without a valid date, which have no class
    declared: int = 0  # series of which the input names a crop that the model knows
    accuracy: float | None = None  # among these; no test where the model learnt from them

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.table,)


@Entry(
    *("raster", "add", "model", "parcels", "mask", "declared_classes"),
    written=("state",),
    output="output",
    beside=True,
    uploaded=lambda _: [],
)
def predict(
    raster: AnyPath | Sequence[AnyPath],
    *,
    output: AnyPath | None = None,
    model: AnyPath | None = None,
    allow_remote: bool = False,
    scratch: AnyPath | None = None,
    progress: bool | None = False,
    **options: Unpack[PredictKeywords],
) -> list[MapProduct | TableProduct]:
    """Classify raster series: one map each, a GeoTIFF with one byte per pixel, and what else is asked for.

    `raster` is a GeoTIFF whose bands name their date and band, a folder of dated GeoTIFFs or of Sentinel-2 L2A
    products, a store, or several of them. `model` is a model file, the folder of a run, or what `train` returned; by
    default the newest model in data/runs. The map goes to `output`, by default <raster>-crops.tif beside the raster. A
    call that was stopped continues with the blocks that are missing. For an uploaded output the list is empty.

    A table of series or a store of such gives a table: the class of every series, its calibrated probabilities, and
    the set of classes among which the true one is. By default it is <table>-crops.parquet or .csv beside the table.
    """
    from cropstar.execution.dask import require_distributed
    from cropstar.prediction.request import MapRequest, Shard, expand_patterns, find_inputs, find_outputs, holds_series

    texts = [os.fspath(each) for each in paths(raster)]
    given_paths = expand_patterns(texts)
    if any(holds_series(each) for each in given_paths):
        return [*_predict_tables(given_paths, _path(output), model, options)]
    _refuse(options, TABLE_READING, "images")
    part = Shard.parse(options["shard"], os.environ) if options["shard"] else None
    if options["scheduler"] is not None:
        if part is not None:
            why = "the cluster's scheduler hands out the blocks"
            raise UsageError("--shard with --scheduler", why=why, remedy="leave one of them out")
        require_distributed()
    asked = _map_options(options)
    stable_confidence = options["stable_confidence"]
    if options["every_date"]:
        stable_confidence = 0.5 if stable_confidence is None else stable_confidence
    elif stable_confidence is not None:
        raise UsageError("--stable-confidence without --every-date", remedy="give both")
    # Only now what takes long to import.
    from cropstar.prediction.job import predict_all
    from cropstar.training.runs import Run

    trained = _trained(model)
    inputs = find_inputs(texts)
    added = tuple(Path(each) for each in paths(options["add"]))
    if added and len(inputs) > 1:
        raise UsageError("--add with several inputs", remedy="map them one by one")
    inputs = [replace(each, add=added) for each in inputs]
    state = _path(options["state"])
    if state is not None and len(inputs) > 1:
        raise UsageError("one state for several inputs", path=state, remedy="map them one by one")
    request = MapRequest(
        model=trained,
        state=state,
        stable_confidence=stable_confidence,
        halo=options["halo"],
        precision=options["precision"],
        half=options["half"],
        shard=part,
        scheduler=options["scheduler"],
        **asked,
    )
    outputs = find_outputs(inputs, _path(output))
    require_free_remote(outputs)
    made = predict_all(inputs, outputs, request)
    _mention_run(Run(trained.parent))
    _require_classes(made)
    return [MapProduct.of(each) for each in made]


# Options of `predict` that are of no use to tables, and those that only tables take.
MAPS_ALONE = (
    *("valid_dates", "parcels", "html", "smooth", "smooth_window", "state", "every_date", "stable_confidence"),
    *("state_precision", "add", "dates", "by_band", "clear", "pattern", "masks", "window", "halo", "half", "shard"),
    *("scheduler", "mask", "mask_classes", "only_parcels", "min_confidence", "unknown", "declared_column"),
    "declared_classes",
)
TABLE_READING = ("label_column", *TableReading.__annotations__)


def _predict_tables(
    inputs: Sequence[Path], output: Path | None, model: AnyPath | None, options: PredictKeywords
) -> list[TableProduct]:
    from cropstar.prediction.request import MapInput, find_outputs, holds_series, require_table_output

    for each in inputs:
        if not holds_series(each):
            why = f"{each} is not a table of series"
            raise UsageError("tables and images in one call", why=why, remedy="predict them one after the other")
    _refuse(options, MAPS_ALONE, "tables")
    outputs = find_outputs([MapInput(each) for each in inputs], output)
    for each, table in zip(inputs, outputs, strict=True):
        require_table_output(each, table, overwrite=options["overwrite"])
    require_free_remote(outputs)
    trained = _trained(model)
    if options["context"] is not None:
        remedy = "leave it out: its columns have the names of the training"
        raise UsageError("--context does not apply to tables", remedy=remedy)
    given: Mapping[str, Any] = options
    reading = {name: given[name] for name in (*TABLE_READING, "scale", "offset", "temperature")}
    reading |= {"bands": _names(options["bands"]), "nodata": tuple(options["nodata"])}
    # Only now what takes long to import.
    from cropstar.prediction.tables import SeriesRequest, predict_tables
    from cropstar.training.runs import Run

    request = SeriesRequest(
        trained,
        reading={name: value for name, value in reading.items() if value not in (None, ())},
        **{name: given[name] for name in ("uncertainty", "any_dates", "device", "backend")},
    )
    made = predict_tables(inputs, outputs, request)
    _mention_run(Run(trained.parent))
    return [TableProduct(each.table, each.series, each.unseen, each.declared, each.accuracy) for each in made]


def _refuse(options: Mapping[str, Any], names: Sequence[str], what: str) -> None:
    """Refuse options that are of no use to this kind of input."""
    for name in names:
        if options[name] not in (None, False, ()):
            option = name.replace("_", "-")
            raise UsageError(f"--{option} does not apply to {what}", remedy="leave it out")


def _trained(model: AnyPath | None) -> Path:
    """The model file that is given, or the newest one."""
    return _chosen_model() if model is None else model_file(model)


def _mention_run(run: Run) -> None:
    """Name the report of a model that is still in its run folder."""
    if run.finished:
        event(f"report  {run.report}", report=str(run.report))


def _chosen_model() -> Path:
    """The newest model, which is logged by name; refused if there are runs of several stores."""
    from cropstar.prediction.trust import describe_model
    from cropstar.store.model_file import read_model
    from cropstar.training.runs import newest_model, trained_stores

    trained = newest_model(RUNS)
    if trained is None:
        raise ArtifactError("no model yet", path=RUNS, remedy="train one with 'cropstar train', or give --model")
    stores = trained_stores(RUNS)
    if len(stores) > 1:
        why = f"its runs were trained on several stores: {', '.join(sorted(stores)[:4])}"
        raise UsageError("which model?", path=RUNS, why=why, remedy="name one with --model")
    card, _, _ = read_model(trained)
    event(describe_model(card, trained), model=str(trained))
    return trained


def _require_classes(made: Sequence[MapResult]) -> None:
    """End with an error where no pixel, or none of the given parcels, has a class; all files are there."""
    # A map without counts was not written by this call, and may have classes.
    if made and all(each.total and not each.pixels.any() for each in made):
        why, remedy = made[0].reason_for_emptiness()
        raise PartialResult("no pixel was classified", path=made[0].raster, why=why, remedy=remedy)
    for each in made:
        if each.parcels is not None and each.parcels.total and not each.parcels.classified:
            why = f"0 of {each.parcels.total:,} parcels have a class"
            remedy = "check that the parcels lie on the map, and their coordinate system"
            raise PartialResult("no parcel was classified", path=each.files.parcels, why=why, remedy=remedy)


@Entry("new", "model", "parcels", "mask", "declared_classes", written=("state", "output"))
def update(
    state: AnyPath,
    new: AnyPath | Sequence[AnyPath],
    *,
    output: AnyPath | None = None,
    model: AnyPath | None = None,
    allow_remote: bool = False,
    scratch: AnyPath | None = None,
    progress: bool | None = False,
    **options: Unpack[MapKeywords],
) -> MapProduct:
    """Update the map of a season with new images, without reading the old ones.

    `state` is what `predict(..., state=...)` wrote, `new` are images of later dates on the same grid. The map is the
    one that `predict` over all dates would make. State and map are replaced when both are complete.
    """
    from cropstar.prediction.request import UpdateRequest, find_inputs
    from cropstar.prediction.season import update as run_update

    trained = None if model is None else model_file(model)
    request = UpdateRequest(model=trained, output=_path(output), **_map_options(options))
    season = Path(state)
    result = run_update(season, find_inputs([os.fspath(each) for each in paths(new)]), request)
    result.announce()
    event(f"{'state':<7} {season}", state=str(season))
    _require_classes([result])
    return MapProduct.of(result, season)


AS_GIVEN = (  # fields of a request that have the names and the values of the keywords
    *("only_parcels", "min_confidence", "unknown", "declared_column", "device", "backend", "window", "any_dates"),
    *("overwrite", "state_precision"),
)


def _map_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a request that `predict` and `update` share."""
    from cropstar.prediction.layers import Smoothing
    from cropstar.prediction.request import parse_memory

    flags = {"confidence": "confidence", "probabilities": "probabilities", "valid-dates": "valid_dates"}
    layers = [layer for layer, option in flags.items() if options[option]]
    layers += [options["uncertainty"]] if options["uncertainty"] else []
    size = {} if options["smooth_window"] is None else {"window": options["smooth_window"]}
    if size and not options["smooth"]:
        raise UsageError("--smooth-window without --smooth", remedy="give both")
    return {
        "layers": tuple(layers),
        "smoothing": Smoothing(method=options["smooth"], **size) if options["smooth"] else None,
        "parcels": _path(options["parcels"]),
        "page": options["html"],
        "memory": parse_memory(options["memory"]),
        "reading": _reading(options),
        "mask": _path(options["mask"]),
        "declared_classes": _path(options["declared_classes"]),
        "mask_classes": None if options["mask_classes"] is None else tuple(options["mask_classes"]),
        **{name: options[name] for name in AS_GIVEN},
    }


def _reading(options: Mapping[str, Any]) -> dict[str, Any]:
    """The given options for reading the input."""
    given = {
        "bands": _names(options["bands"]),
        "dates": _dates(options["dates"], str),
        "clear": None if options["clear"] is None else tuple(options["clear"]),
        "context": _names(options["context"]),
        **{name: options[name] for name in ("pattern", "masks", "by_band", "scale", "offset", "temperature")},
    }
    return {name: value for name, value in given.items() if value is not None}


def model_file(model: AnyPath) -> Path:
    """The model file at a path, or in the folder of a run."""
    from cropstar.training.runs import MODEL

    path = Path(model)
    return path / MODEL if path.is_dir() else path
