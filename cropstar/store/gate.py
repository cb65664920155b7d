"""Checks of files from outside: bounded JSON, names that are not paths, tables with a schema, self-contained HDF5.

Manifests, tile attributes, cards of models and states may come from strangers, or from a damaged disk. They are checked
here, before anything is made of them: numbers are finite and of a sensible size, texts and lists have a length, names
of scenes and tiles cannot lead out of their folder. Whatever is wrong is a ValueError with one line.
"""

from __future__ import annotations

import json
import stat
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, TypeVar

import h5py
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from cropstar.config import RegularConfig
from cropstar.geo.grid import is_coordinate_system
from cropstar.inputs import MAXIMUM_RASTER_SIDE

MOST_BYTES = 256_000_000  # of a JSON file: a manifest of a million tiles
MOST_DIGITS = 20  # of a whole number

Table = TypeVar("Table", bound=BaseModel)


def parse_json(text: str | bytes) -> Any:
    """Parse strict JSON: no NaN or infinity, no huge numbers, no deep nesting."""
    try:
        return json.loads(text, parse_constant=_no_constant, parse_int=_whole_number, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: Path, most: int = MOST_BYTES) -> Any:
    """The content of a JSON file; pipes and huge files are refused."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is not a regular file")
    if status.st_size > most:
        raise ValueError(f"it has {status.st_size:,} bytes, more than {most:,}")
    return parse_json(path.read_text(encoding="utf-8"))


def checked(schema: type[Table], data: Any) -> Table:
    """Validate data by a schema; the first problem is a ValueError of one line."""
    try:
        return schema.model_validate(data)
    except ValidationError as failure:
        first = failure.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the content"
        raise ValueError(f"{place[:100]}: {first['msg']}") from None


def plain_name(name: str) -> str:
    """A name that is a plain file name, not a path."""
    if name in (".", "..") or any(sign in "/\\\x7f" or sign < " " for sign in name):
        raise ValueError(f"the name {name[:50]!r} has characters that are used in paths")
    return name


def inside(folder: Path, path: Path) -> Path:
    """A path that a file names, checked to be inside the folder that it belongs to."""
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"'{path}' lies outside of '{folder}'")
    return path


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _whole_number(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if abs(number) == float("inf"):
        raise ValueError("a number that is too large")
    return number


def _known_system(wkt: str) -> str:
    if not is_coordinate_system(wkt):
        raise ValueError(f"{wkt[:50]!r} is not a coordinate system")
    return wkt


# --- schemas

PlainName = Annotated[str, StringConstraints(min_length=1, max_length=200), AfterValidator(plain_name)]
Text = Annotated[str, StringConstraints(max_length=1000)]
DATA = ConfigDict(strict=True, allow_inf_nan=False, extra="ignore")


def _calendar_day(text: str) -> str:
    date.fromisoformat(text)
    return text


def _path_name(text: str) -> str:
    if any(sign < " " or sign == "\x7f" for sign in text):
        raise ValueError("a path with control characters")
    text.encode("utf-8")
    return text


Day = Annotated[str, StringConstraints(pattern=r"^\d{4}-\d{2}-\d{2}$"), AfterValidator(_calendar_day)]
FilePath = Annotated[str, StringConstraints(min_length=1, max_length=4096), AfterValidator(_path_name)]


class GivenRow(BaseModel):
    """How the user wanted images to be read."""

    model_config = ConfigDict(strict=True, extra="forbid")

    clear: list[Annotated[int, Field(ge=0, lt=65_536)]] | None = Field(None, max_length=65_536)


class ClassRow(BaseModel):
    model_config = DATA

    number: int = Field(ge=0, lt=65_535)
    name: Text
    colour: Annotated[str, StringConstraints(pattern=r"^#[0-9a-fA-F]{6}$")]
    lineage: list[Text] = Field([], max_length=20)


class SeasonRow(BaseModel):
    model_config = DATA

    start: int = Field(ge=0, le=366)
    length: int = Field(ge=0, le=40_000)


class SensorRow(BaseModel):
    model_config = DATA

    name: PlainName
    bands: list[Text] = Field(min_length=1, max_length=10_000)
    scale: float
    offset: float


class FingerprintRow(BaseModel):
    model_config = DATA

    bands: list[Text] = Field(max_length=10_000)
    scale: float
    offset: float
    resolution: float = Field(ge=0, le=1e7)
    season: SeasonRow
    classes: list[ClassRow] = Field(max_length=65_535)
    sensors: list[SensorRow] = Field([], max_length=64)  # where there are several, or context beside one
    context: list[Text] = Field([], max_length=1_000)

    @model_validator(mode="after")
    def _numbered(self) -> FingerprintRow:
        if [row.number for row in self.classes] != list(range(len(self.classes))):
            raise ValueError("the numbers of the classes do not run from 0 without gaps")
        if len(set(self.bands)) != len(self.bands):
            raise ValueError("two bands have the same name")
        if self.context and not self.sensors:
            raise ValueError("context without a sensor")
        if len({row.name for row in self.sensors}) != len(self.sensors):
            raise ValueError("two sensors have the same name")
        return self


class GridRow(BaseModel):
    model_config = DATA

    crs: Annotated[str, StringConstraints(max_length=100_000), AfterValidator(_known_system)]
    transform: list[Annotated[float, Field(gt=-1e12, lt=1e12)]] = Field(min_length=6, max_length=6)
    shape: list[Annotated[int, Field(ge=1, le=MAXIMUM_RASTER_SIDE)]] = Field(min_length=2, max_length=2)

    @model_validator(mode="after")
    def _has_area(self) -> GridRow:
        a, b, _, d, e, _ = self.transform
        if a * e == b * d:
            raise ValueError("its pixels have no area")
        return self


class ShapeRow(BaseModel):
    """The shape of data that a model's weights are made for."""

    model_config = ConfigDict(extra="forbid")

    bands: int = Field(ge=1, le=10_000)
    classes: int = Field(ge=1, lt=65_535)
    length: int = Field(ge=1, le=100_000)
    thermal: int | None = Field(None, ge=0, le=10_000)
    lineages: list[list[Annotated[int, Field(ge=0, lt=65_535)]]] | None = Field(None, max_length=65_535)
    season: tuple[int, int] | None = None
    sensors: list[Annotated[int, Field(ge=1, le=10_000)]] | None = Field(None, min_length=2, max_length=64)

    @model_validator(mode="after")
    def _sensors_have_their_bands(self) -> ShapeRow:
        if self.sensors is not None and sum(self.sensors) + len(self.sensors) > self.bands:
            raise ValueError("its sensors have more bands than there are")
        return self


class NormalisationRow(BaseModel):
    model_config = DATA

    mean: list[Annotated[float, Field(ge=-1e30, le=1e30)]] = Field(max_length=10_000)
    deviation: list[Annotated[float, Field(ge=1e-30, le=1e30)]] = Field(max_length=10_000)


class ProvenanceRow(BaseModel):
    """The part of a model's provenance that cropstar reads."""

    model_config = ConfigDict(extra="allow")

    seed: int = 0
    scenes: dict[str, str] = {}
    reading: dict[str, Any] = {}
    regular: RegularConfig = RegularConfig()
    target: str | None = None
    sensor_dropout: float = Field(0.0, ge=0, lt=1)
    distil: dict[str, Any] = {}
    class_fields: dict[str, list[Annotated[int, Field(ge=0)]]] = {}
    out_of_fold: int = Field(0, ge=0)


class CardRow(BaseModel):
    """The header of a model file, but for its fingerprint, which has a reader of its own."""

    model_config = DATA

    model: dict[str, Any]
    shape: ShapeRow
    fingerprint: dict[str, Any]
    normalisation: NormalisationRow
    provenance: ProvenanceRow
    calibration: dict[str, dict[str, Any]] | None = None


class StateRow(BaseModel):
    """The card of a season's state, but for its fingerprint, which has a reader of its own."""

    model_config = DATA

    kind: Literal["season"]
    model: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{8,128}$")]
    model_path: FilePath
    fingerprint: dict[str, Any]
    grid: GridRow
    dates: list[Day] = Field(min_length=1, max_length=40_000)
    layout: list[list[Annotated[int, Field(ge=1, le=100_000)]]] = Field(max_length=1000)
    spatial: bool
    map: FilePath
    scale: float
    offset: float
    products: dict[str, Any] = Field({}, max_length=100)  # what was made beside the map
    half: list[bool] = Field([], max_length=100_000)  # which parts of the state are float16; empty: none
    given: GivenRow

    @model_validator(mode="after")
    def _in_order(self) -> StateRow:
        several = len(self.fingerprint.get("sensors") or ()) > 1  # which may see a place on one day
        if any(day > following or (day == following and not several) for day, following in pairwise(self.dates)):
            raise ValueError("its dates are not in order")
        if self.half and len(self.half) != sum(map(len, self.layout)):
            raise ValueError("it does not say of every part of the state whether that is float16")
        return self


Figure = Annotated[float, Field(gt=-1e15, lt=1e15)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0, lt=2**53)]


class FiguresRow(BaseModel):
    """Figures by pixel or by parcel; those without a sample are null."""

    model_config = DATA

    overall_accuracy: Share | None
    macro_f1: Share | None
    confusion: list[list[Count]] = Field([], max_length=65_535)
    classes: list[dict[str, Any]] = Field([], max_length=65_535)
    intervals: dict[str, Any] = {}


class TestRow(BaseModel):
    model_config = DATA

    parcel: FiguresRow
    pixel: FiguresRow


class LearntRow(BaseModel):
    model_config = DATA

    name: Text
    layers: Count
    hidden: Count
    parameters: Count


class SplitRow(BaseModel):
    model_config = DATA

    by: Text
    counts: dict[Text, list[Count]]


class EpochRow(BaseModel):
    """What is read of an epoch."""

    model_config = DATA

    epoch: Count
    loss: Figure | None = None
    score: Figure | None = None
    validation: dict[Text, Figure | None] | None = None


def _require_epoch(said: dict[str, Any]) -> dict[str, Any]:
    EpochRow.model_validate(said)
    return said


History = Annotated[list[Annotated[dict[str, Any], AfterValidator(_require_epoch)]], Field(max_length=1_000_000)]


class ProgressRow(BaseModel):
    """Where a run stood when its checkpoint was written."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="forbid")

    epoch: Count
    batch: Count
    step: Count
    loss_sum: float = 0.0
    pixels: Count = 0
    seconds: float = Field(0.0, ge=0, le=1e12)
    samples: Count = 0
    best_score: Figure = -1.0
    best_epoch: Count = 0
    best_loss: float | None = None
    micro_batch: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    history: History = []


class OutcomeRow(BaseModel):
    """The result of a member or a fold of a run."""

    model_config = DATA

    progress: ProgressRow
    temperature: float = Field(gt=0, lt=1e6)
    validation: dict[Text, Figure | None] | None


class ResultRow(BaseModel):
    """The part of a run's result that cropstar reads."""

    model_config = DATA

    classes: list[dict[str, Any]] = Field(max_length=65_535)
    data: dict[str, Any]
    split: SplitRow
    model: LearntRow
    history: History
    best_epoch: Count | None
    test: TestRow
    throughput: dict[str, Figure | None]


class TileRow(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: PlainName
    scene: PlainName
    layout: Annotated[str, StringConstraints(pattern="^(raster|patches|series)$")]
    bytes: int = Field(ge=0, lt=2**50)
    recipe: Annotated[str, StringConstraints(max_length=200)]


class SceneRow(BaseModel):
    """The part of a scene in a manifest that cropstar reads."""

    model_config = DATA

    recipe: Annotated[str, StringConstraints(max_length=200)] = ""
    grid: GridRow | None = None
    dates: list[Text] = Field([], max_length=100_000)
    splits: dict[Text, dict[Text, list[Text | int]]] = {}


def _require_scene(said: dict[str, Any]) -> dict[str, Any]:
    SceneRow.model_validate(said)
    return said


class ManifestRow(BaseModel):
    model_config = DATA

    format: int = Field(ge=0, lt=10_000)
    fingerprint: dict[str, Any]  # has a reader of its own
    tiles: list[TileRow] = Field(max_length=2_000_000)
    scenes: dict[PlainName, Annotated[dict[str, Any], AfterValidator(_require_scene)]]

    @model_validator(mode="after")
    def _names_each_once(self) -> ManifestRow:
        if len({tile.name for tile in self.tiles}) != len(self.tiles):
            raise ValueError("it names a tile twice")
        return self


# --- HDF5 files
#
# HDF5 can lead a reader to other files: by soft and external links, by data sets with external storage, and by virtual
# data sets. A store or state from a stranger could use them to read any file of its user.


MOST_OBJECTS = 10_000


def open_hdf5(path: Path, **how: Any) -> h5py.File:
    """Open a file for reading if it is self-contained; otherwise a ValueError says why not."""
    if not stat.S_ISREG(path.stat().st_mode):  # a pipe would be waited for
        raise ValueError("it is not a regular file")
    file = h5py.File(path, "r", **how)
    try:
        _require_own(file)
    except BaseException:
        file.close()
        raise
    return file


def require_plain(dataset: h5py.h5d.DatasetID) -> None:
    """Refuse a data set whose bytes are not in its own file."""
    how = dataset.get_create_plist()
    if how.get_layout() == h5py.h5d.VIRTUAL:
        raise ValueError("it has a virtual data set, which reads other files")
    if how.get_external_count():
        raise ValueError("it has a data set whose bytes lie in another file")


def _require_own(file: h5py.File) -> None:
    """Look at every link of the file. Without a callback of ours: h5py loses what is raised there, a signal too."""
    seen = 0
    groups, known = [file.id], {_address(file.id)}
    while groups:
        group = groups.pop()
        for name in list(group):
            seen += 1
            if seen > MOST_OBJECTS:
                raise ValueError(f"it holds more than {MOST_OBJECTS:,} objects")
            if group.links.get_info(name).type != h5py.h5l.TYPE_HARD:
                raise ValueError(f"'{name.decode('utf-8', 'replace')[:50]}' is a link to another place")
            found = h5py.h5o.open(group, name)
            if isinstance(found, h5py.h5d.DatasetID):
                require_plain(found)
            elif isinstance(found, h5py.h5g.GroupID) and _address(found) not in known:  # hard links can make a circle
                known.add(_address(found))
                groups.append(found)


def _address(group: h5py.h5g.GroupID) -> int:
    return int(h5py.h5o.get_info(group).addr)
