"""Keywords that functions of the API share, each typed once.

`Unpack[...]` in a signature shows them to editors and type checkers. `full_signature` writes them out with their
defaults, for notebooks and for the call itself. A default is None unless `Annotated` says otherwise.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from datetime import date
from typing import Annotated, Any, Literal, TypedDict, Unpack, get_args, get_origin, get_type_hints

AnyPath = str | os.PathLike[str]  # a store and the result of a training are paths, too
Names = str | Sequence[str]  # "B04,B08" or ["B04", "B08"]
Dates = str | os.PathLike[str] | Sequence[str | date]  # the same, or the name of a file with one date per line
Device = Literal["auto", "cpu", "cuda", "mps"]
Backend = Literal["auto", "naive", "torch", "native", "triton", "onnx"]


class ImageReading(TypedDict, total=False):
    """How images are read, by `ingest`, `predict` and `update`."""

    bands: Names | None
    context: Names | None
    temperature: str | None
    dates: Dates | None
    by_band: bool | None
    clear: Sequence[int] | None
    pattern: str | None
    masks: str | None
    scale: float | None
    offset: float | None


class TableReading(TypedDict, total=False):
    """How tables are read, by `ingest` and `predict`."""

    id_column: str | None
    date_column: str | None
    group_column: str | None
    mask_column: str | None
    nodata: Annotated[Sequence[float], ()]


class IngestKeywords(ImageReading, TableReading, total=False):
    """Options of `ingest` that only some sources take."""

    radar: bool | None
    classes: AnyPath | None
    erode: float | None
    point_radius: float | None
    group_distance: float | None
    background: AnyPath | None
    background_classes: Sequence[int] | None
    resampling: str | None
    add: Annotated[AnyPath | Sequence[AnyPath], ()]
    collection: str | None
    bbox: Sequence[float] | None
    start: str | date | None
    end: str | date | None
    max_cloud: float | None
    crs: str | None
    resolution: float | None
    field_column: str | None
    keep_unlabelled: bool | None
    base_temperature: float | None
    warm_from: str | None
    year: int | None
    level: str | None
    regions: Names | None
    download: bool | None
    mask: str | None
    data: str | None
    labels: AnyPath | None
    cloud_limit: float | None


class MapKeywords(ImageReading, total=False):
    """Options of `predict` and `update`."""

    overwrite: Annotated[bool, False]
    confidence: Annotated[bool, False]
    probabilities: Annotated[bool, False]
    uncertainty: Literal["entropy", "margin"] | None
    valid_dates: Annotated[bool, False]
    parcels: AnyPath | None
    mask: AnyPath | None
    mask_classes: Sequence[int] | None
    only_parcels: Annotated[bool, False]
    min_confidence: float | None
    unknown: float | None
    declared_column: str | None
    declared_classes: AnyPath | None
    html: Annotated[bool, False]
    smooth: Literal["majority", "bayesian"] | None
    smooth_window: int | None
    state_precision: Literal["float32", "float16"] | None
    any_dates: Annotated[bool, False]
    memory: Annotated[str, "2GB"]
    window: int | None
    backend: Annotated[Backend, "auto"]
    device: Annotated[Device, "auto"]


class PredictKeywords(MapKeywords, TableReading, total=False):
    """Options of `predict`."""

    state: AnyPath | None
    every_date: Annotated[bool, False]
    stable_confidence: float | None
    add: Annotated[AnyPath | Sequence[AnyPath], ()]
    label_column: str | None
    halo: int | None
    precision: Annotated[Literal["auto", "float32", "bfloat16"], "auto"]
    half: Annotated[bool, False]
    shard: str | None
    scheduler: str | None


def full_signature(function: Callable[..., Any]) -> inspect.Signature:
    """The signature of a function, with the keywords of its `**options: Unpack[...]` one by one."""
    signature = inspect.signature(function, eval_str=True)
    *own, last = signature.parameters.values()
    if get_origin(last.annotation) is not Unpack:
        return signature
    (options,) = get_args(last.annotation)
    shared = []
    for name, hint in get_type_hints(options, include_extras=True).items():
        kind, default = get_args(hint) if get_origin(hint) is Annotated else (hint, None)
        shared.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind))
    return signature.replace(parameters=[*own, *shared])
