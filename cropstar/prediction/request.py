"""Requests of `cropstar predict` and `cropstar update`: inputs, options, and the files that come of them.

    map.tif  map.tif.aux.xml  map.qml  map.png         the map, names and colours for GIS, its picture
    map-confidence.tif  map-probabilities.tif ...      the layers that were asked for
    map-parcels.gpkg (or .parquet)  map.html           with parcels, as a page
    map-2023-04-09.tif ...  map-earliest.tif           a map per date, and since when the class is settled

Nothing here needs torch: what is wrong with a request is said before that is loaded.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from cropstar.config import LaxPath, Options
from cropstar.errors import ArtifactError, InputError, MismatchError, UsageError
from cropstar.geo.calendar import from_days
from cropstar.geo.grid import Grid
from cropstar.geo.weather import THERMAL_BAND, Warmth
from cropstar.geo.windows import Window
from cropstar.inputs import GEOTIFF_ENDINGS, is_geotiff, require_file, require_free, require_name
from cropstar.prediction.layers import CONFIDENCE, EARLIEST, LAYERS, PROBABILITIES, VALID_DATES, Smoothing
from cropstar.sources.base import Bands, Observations, Series, closed_on_failure
from cropstar.sources.catalogue import TABLE_ENDINGS, open_raster_series
from cropstar.sources.context import CONTEXT_OPTIONS, ContextOptions, ContextSeries, ImageContext
from cropstar.sources.decoding import keep_decoded
from cropstar.sources.multisensor import SensorSeries, on_grid
from cropstar.store.classes import MASKED, UNKNOWN
from cropstar.store.gate import GridRow, checked
from cropstar.store.reader import TileReader
from cropstar.store.store import Store, is_store, read_manifest, tile_path

MEMORY = "2GB"
UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def parse_memory(text: str) -> int:
    """Bytes of '2GB', '1500 MB' or '2GiB'."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", text.strip().lower(), re.ASCII)
    if match is None:
        raise UsageError(f"--memory '{text}' is not an amount of memory", remedy="give it as in --memory 2GB")
    unit = 1024 ** ("kmgt".index(match[2]) + 1) if match[2] and match[3] else UNITS[match[2]]
    return int(float(match[1]) * unit)


# Options that name products; a state remembers them.
PRODUCT_FILES = ("parcels", "mask", "declared_classes")
PRODUCTS = (
    *("layers", "smoothing", "page", "picture", "declared_column"),
    *("mask_classes", "only_parcels", "min_confidence", "unknown"),
    *PRODUCT_FILES,
)


class MapOptions(Options):
    """The options that `predict` and `update` share."""

    layers: tuple[str, ...] = ()  # names of `LAYERS`
    smoothing: Smoothing | None = None
    parcels: LaxPath | None = None  # outlines that get a class each
    page: bool = False  # the map as one HTML file
    picture: bool = True
    device: str = "auto"
    backend: str = "auto"  # see models/backends.py
    memory: int = parse_memory(MEMORY)  # bytes
    window: int | None = None  # pixels per side; None takes what the memory allows
    any_dates: bool = False
    overwrite: bool = False
    state_precision: Literal["float32", "float16"] | None = None  # of the season's file; None: float32, or as it is
    mask: LaxPath | None = None  # what is to be mapped: a raster of land cover or of 0 and 1, or outlines
    mask_classes: tuple[int, ...] | None = None  # values of the raster that are mapped
    only_parcels: bool = False  # nothing but the parcels is mapped
    min_confidence: float | None = None  # what is less likely is unknown
    unknown: float | None = None  # what is unlike all classes is unknown; the rate of false alarms
    declared_column: str | None = None  # of the parcels: the crop that the farmer declared
    declared_classes: LaxPath | None = None  # a class table that turns declared crops into classes of the model
    reading: dict[str, Any] = Field(default_factory=dict)  # how the input is to be read: bands, dates, clear, ...

    @field_validator("layers")
    @classmethod
    def _require_known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name not in LAYERS:
                raise UsageError(f"no layer is called '{name}'", remedy=f"give some of {', '.join(LAYERS)}")
        return names

    def products(self) -> dict[str, Any]:
        """The requested products besides the map, as plain data: an update makes the same ones."""
        given = self.model_dump(mode="json", include=set(PRODUCTS), exclude_defaults=True)
        named = {name: str(path.resolve()) for name in PRODUCT_FILES if (path := getattr(self, name)) is not None}
        return given | named

    @property
    def marks(self) -> tuple[int, ...]:
        """Values of the map that are not classes."""
        tells = self.unknown is not None or self.min_confidence is not None
        return (MASKED,) * bool(self.area_files) + (UNKNOWN,) * tells

    @property
    def area_files(self) -> tuple[Path, ...]:
        """The files that say what is mapped."""
        parcels = (self.parcels,) if self.only_parcels and self.parcels is not None else ()
        return (*(() if self.mask is None else (self.mask,)), *parcels)

    @property
    def files_read(self) -> tuple[Path, ...]:
        """The files beside the images."""
        named = (*(getattr(self, name) for name in PRODUCT_FILES), getattr(self, "model", None))
        return tuple(path for path in named if path is not None)

    def require_area(self) -> None:
        """Refuse options of the mapped area that lack what they speak of, and a mask that is no file."""
        if self.mask is not None:
            require_file(self.mask)
        if self.only_parcels and self.parcels is None:
            raise UsageError("--only-parcels without --parcels", remedy="give the outlines with --parcels")
        if self.mask_classes is not None and self.mask is None:
            raise UsageError("--mask-classes without --mask", remedy="give the raster with --mask")
        if self.declared_column is not None and self.parcels is None:
            raise UsageError("--declared-column without --parcels", remedy="give the outlines with --parcels")
        if self.declared_classes is not None and self.parcels is None:
            raise UsageError("--declared-classes without --parcels", remedy="give the outlines with --parcels")

    @property
    def layers_of_files(self) -> tuple[str, ...]:
        """The layers that the files are made from, published or not."""
        also = {PROBABILITIES} if self.parcels else set()
        also |= {CONFIDENCE} if self.page else set()
        return tuple(name for name in LAYERS if name in {*self.layers, *also})

    @property
    def layers_of_blocks(self) -> tuple[str, ...]:
        """The layers that blocks must have. What is smoothed is smoothed as probabilities, the rest follows."""
        layers = self.layers_of_files
        if self.smoothing is None:
            return layers
        smoothed = self.smoothing.method == "bayesian" or bool(set(layers) - {VALID_DATES})
        return (PROBABILITIES,) * smoothed + (VALID_DATES,) * (VALID_DATES in layers)


class MapRequest(MapOptions):
    """A request of `cropstar predict`."""

    model: LaxPath
    state: LaxPath | None = None  # where the hidden state after the last date goes
    stable_confidence: float | None = None  # a map per date, and since when each class is this likely
    halo: int | None = None  # a margin below the model's own: faster, and not exact
    precision: Literal["auto", "float32", "bfloat16"] = "auto"  # of products
    half: bool = False  # whether `auto` takes the half precision that the device is fastest at
    shard: Shard | None = None
    scheduler: str | None = None  # the address of a Dask cluster whose workers compute

    @property
    def shared(self) -> bool:
        """Whether it is one call of several for the same maps: those that are there already are done."""
        return self.shard is not None or self.scheduler is not None

    def require_consistent(self) -> None:
        """Refuse options that exclude each other."""
        self.require_area()
        if self.state_precision is not None and self.state is None:
            raise UsageError("--state-precision without --state", remedy="give both")
        if self.stable_confidence is not None and UNKNOWN in self.marks:
            why = "maps of single dates have a class everywhere"
            option = "--unknown" if self.unknown is not None else "--min-confidence"
            raise UsageError(f"--every-date with {option}", why=why, remedy="leave one of them out")
        option = "--precision bfloat16" if self.precision == "bfloat16" else "--half"
        half = self.half or self.precision == "bfloat16"
        if half and (self.state is not None or self.stable_confidence is not None):
            why = "later updates start from the state, which must be exact"
            raise UsageError(f"{option} with --state or --every-date", why=why, remedy="leave one of them out")
        if half and self.backend == "onnx":
            why = "it computes in float32"
            raise UsageError(f"{option} with --backend {self.backend}", why=why, remedy="leave one of them out")
        if self.half and self.precision == "float32":
            raise UsageError("--half with --precision float32", remedy="leave one of them out")
        if self.stable_confidence is not None and self.smoothing is not None:
            why = "maps of single dates are not smoothed"
            raise UsageError("--every-date with --smooth", why=why, remedy="leave one of them out")


class UpdateRequest(MapOptions):
    """A request of `cropstar update`."""

    model: LaxPath | None = None  # where it is now; None takes the place that the state knows
    output: LaxPath | None = None  # None writes the state's map anew

    def with_products(self, remembered: Mapping[str, Any]) -> UpdateRequest:
        """The request with the products of the season's first map as defaults."""
        asked = self.products()
        both = {**remembered, **asked, "layers": sorted({*remembered.get("layers", ()), *asked.get("layers", ())})}
        given = {name: value for name, value in both.items() if name in PRODUCTS}
        others = {name: getattr(self, name) for name in type(self).model_fields if name not in PRODUCTS}
        return type(self).model_validate({**others, **given, "layers": tuple(given["layers"])})


@dataclass(frozen=True)
class MapFiles:
    """The names of all output files, derived from that of the map."""

    map: Path
    options: MapOptions
    dates: tuple[date, ...] = ()  # those that get a map of their own
    state: Path | None = None  # of the season

    @property
    def picture(self) -> Path:
        return self.map.with_suffix(".png")

    @property
    def page(self) -> Path:
        return self.map.with_suffix(".html")

    @property
    def parcels(self) -> Path:
        given = self.options.parcels
        ending = ".parquet" if given is not None and given.suffix.lower() in (".parquet", ".geoparquet") else ".gpkg"
        return self.map.with_name(f"{self.map.stem}-parcels{ending}")

    def layer(self, name: str) -> Path:
        return self.map.with_name(f"{self.map.stem}-{name}{self.map.suffix}")

    @property
    def earliest(self) -> Path:
        return self.layer(EARLIEST)

    def all(self) -> list[Path]:
        """The map first."""
        paths = [self.map, names_file(self.map), style_file(self.map)]
        paths += [self.picture] if self.options.picture else []
        for name in self.options.layers:
            paths += [self.layer(name), style_file(self.layer(name))]
        paths += [self.parcels, style_file(self.parcels)] if self.options.parcels else []
        paths += [self.state] if self.state else []
        paths += [self.earliest, style_file(self.earliest)] if self.dates else []
        for dated in (self.layer(day.isoformat()) for day in self.dates):
            paths += [dated, names_file(dated), style_file(dated)]
        return [*paths, self.page] if self.options.page else paths

    def kind(self, path: Path) -> str:
        """The kind of a file of the map, in one word."""
        known = {self.map: "map", self.picture: "picture", self.page: "page", self.state: "state"}
        known |= {self.parcels: "parcels"}
        return known.get(path) or {".qml": "style", ".xml": "names"}.get(path.suffix, "layer")

    def require_new(self, *, overwrite: bool) -> None:
        """Refuse to overwrite files without --overwrite."""
        existing = [path for path in self.all() if path.exists()]
        if existing and not overwrite:
            remedy = "choose another with -o, or give --overwrite"
            raise UsageError("the output exists", path=existing[0], remedy=remedy)

    def require_apart(self, inputs: Sequence[Path]) -> None:
        """Refuse output names that are not GeoTIFFs, that are inputs, or that are repeated."""
        if not is_geotiff(self.map):
            raise UsageError(f"the output {self.map} is not a GeoTIFF", remedy="give it a name that ends in .tif")
        outputs = self.all()
        for path in outputs:
            require_name(path)
            require_other_file(path, inputs)
        if self.state is not None and [path.resolve() for path in outputs].count(self.state.resolve()) > 1:
            raise UsageError("the map and its state have the same name", path=self.state, remedy="give each its own")


def require_other_file(output: Path, inputs: Iterable[Path]) -> None:
    """Refuse to write over what is read, by whichever name."""
    if output.exists() and any(path.exists() and output.samefile(path) for path in inputs):
        raise UsageError("the output is the input", path=output, remedy="choose another output with -o")


def names_file(path: Path) -> Path:
    """The file in which GDAL and QGIS look for the names of a raster's values."""
    return path.with_name(f"{path.name}.aux.xml")


def style_file(path: Path) -> Path:
    """The file in which QGIS looks for the style of a raster."""
    return path.with_suffix(".qml")


# --- Shards: which part of the blocks one job of an array does, `--shard 2/8`, or `auto/8` with the scheduler's number
#
# Kubernetes   JOB_COMPLETION_INDEX          from 0
# AWS Batch    AWS_BATCH_JOB_ARRAY_INDEX     from 0
# Slurm        SLURM_ARRAY_TASK_ID           from SLURM_ARRAY_TASK_MIN, which is 0 if it is not set


SHARD_NUMBERS = ("JOB_COMPLETION_INDEX", "AWS_BATCH_JOB_ARRAY_INDEX", "SLURM_ARRAY_TASK_ID")
FIRST_NUMBERS = {"SLURM_ARRAY_TASK_ID": "SLURM_ARRAY_TASK_MIN"}  # arrays that need not begin at 0
MOST_SHARDS = 100_000
SHARD_REMEDY = "give --shard 0/3, 1/3 and 2/3 to three jobs, or auto/3 to an array job"


@dataclass(frozen=True)
class Shard:
    """One of `count` parts, counted from 0."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str, environment: Mapping[str, str]) -> Shard:
        match = re.fullmatch(r"(auto|\d{1,9})/(\d{1,9})", text.strip(), re.ASCII)
        if match is None:
            raise UsageError(f"--shard must be i/n, not '{text}'", remedy=SHARD_REMEDY)
        number = _scheduler_number(environment) if match[1] == "auto" else int(match[1])
        count = int(match[2])
        if not 1 <= count <= MOST_SHARDS:
            why = f"1 to {MOST_SHARDS} are possible"
            raise UsageError(f"--shard {text}: {count} shards", why=why, remedy=SHARD_REMEDY)
        if not 0 <= number < count:
            why = f"shard {number} of {count}; the first is 0 and the last {count - 1}"
            raise UsageError(f"--shard {text} is out of range", why=why, remedy=SHARD_REMEDY)
        return cls(number, count)

    def of(self, windows: Sequence[Window], turn: int = 0) -> list[Window]:
        """Its windows: neighbours, since they share what is decoded. `turn` deals the parts of a further input out
        to others, or of many small inputs one shard would get all."""
        total = len(windows)
        return [
            window
            for place, window in enumerate(windows)
            if (place * self.count // total + turn) % self.count == self.number
        ]

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def _scheduler_number(environment: Mapping[str, str]) -> int:
    """The number that the scheduler gave to this job."""
    for name in SHARD_NUMBERS:
        if name in environment:
            texts = environment[name].strip(), environment.get(FIRST_NUMBERS.get(name, ""), "0").strip()
            if not all(re.fullmatch(r"\d{1,9}", text, re.ASCII) for text in texts):
                why = f"{name} is '{environment[name]}'"
                raise UsageError("--shard auto got no number", why=why, remedy="give the number as in --shard 0/3")
            return int(texts[0]) - int(texts[1])
    why = f"none of {', '.join(SHARD_NUMBERS)} is set"
    raise UsageError("--shard auto outside of an array job", why=why, remedy="give the number as in --shard 0/3")


# --- Inputs: what is to be mapped, and where each map goes


ENDING = "-crops.tif"
OUTPUT_TABLES = (".parquet", ".pq", ".csv")


@dataclass(frozen=True)
class MapInput:
    """A raster series on the disk, or a scene of a store."""

    path: Path
    scene: str | None = None
    add: tuple[Path, ...] = ()  # images of further sensors of the same place

    @property
    def stem(self) -> str:
        named = self.path if self.path.name else self.path.resolve()  # "." has no name of its own
        return self.scene or named.stem

    def __str__(self) -> str:
        return str(self.path) if self.scene is None else f"{self.path} ({self.scene})"

    def open(
        self,
        bands: Sequence[str],
        reading: Mapping[str, Any],
        asked: Mapping[str, Any],
        *,
        scratch: Path | None = None,
        grid: Grid | None = None,
    ) -> Series:
        """Open the images as the model learnt to read them, and as the user asks.

        `scratch` is a folder where compressed images may lie decoded while windows are read. On a `grid`, coarser
        images are as they lie there.
        """
        if self.scene is None:
            plain = {name: value for name, value in asked.items() if name not in CONTEXT_OPTIONS}
            series = open_raster_series(self.path, bands, reading, plain)
            if scratch is not None:
                keep_decoded(series, scratch)
            series = self._with_added(series, bands, reading)
            series = series if grid is None else on_grid(series, grid)
            return self._with_context(series, bands, reading, asked)
        for name in asked:
            why = "its bands have their names and dates"
            option = name.replace("_", "-")
            raise UsageError(f"--{option} does not apply to a store", path=self.path, why=why, remedy="leave it out")
        if self.add:
            raise UsageError("--add with a store", path=self.path, remedy="give images, or ingest both into one store")
        return StoredSeries(self.path, self.scene)

    def _with_context(
        self, series: Series, bands: Sequence[str], reading: Mapping[str, Any], asked: Mapping[str, Any]
    ) -> Series:
        """With the rasters and temperatures that the user gives, added up as in training."""
        with closed_on_failure([series]):
            options = ContextOptions.of(asked, Warmth(**reading.get("warmth", {})))
            if options is None:
                return series
            for name in (*options.rasters, *([THERMAL_BAND] if options.temperature is not None else [])):
                if name not in bands:
                    what, why = f"the model knows no context '{name}'", f"it learnt from {', '.join(bands)}"
                    raise MismatchError(what, path=self.path, why=why, remedy="leave it out, or name it as in training")
            return ContextSeries(series, ImageContext(options, series.grid))

    def _with_added(self, series: Series, bands: Sequence[str], reading: Mapping[str, Any]) -> Series:
        if not self.add:
            return series
        pieces = [series]
        with closed_on_failure(pieces):
            pieces += [open_raster_series(path, bands, reading) for path in self.add]
            flat = [own for piece in pieces for own in (piece.pieces if isinstance(piece, SensorSeries) else [piece])]
            return SensorSeries(flat)


def find_inputs(texts: Sequence[str]) -> list[MapInput]:
    """The images that paths and patterns name."""
    inputs: list[MapInput] = []
    for path in expand_patterns(texts):
        inputs += [MapInput(path, scene) for scene in scenes_of(path)] if is_store(path) else [MapInput(path)]
    return inputs


def expand_patterns(texts: Sequence[str]) -> list[Path]:
    """Paths and patterns, each path once. A shell that knows the pattern expands it itself; batch systems do not."""
    paths: dict[Path, None] = {}
    for text in texts:
        given = Path(text)
        if given.exists() or not glob.has_magic(text):
            paths[given] = None
            continue
        matches = sorted(glob.glob(text, recursive=True))
        if not matches:
            raise InputError("no such file", path=text, why="nothing matches the pattern", remedy="check the pattern")
        paths |= dict.fromkeys(map(Path, matches))
    return list(paths)


def holds_series(path: Path) -> bool:
    """Whether a path is a table of series or a store of nothing else: there are classes to predict, and no map."""
    if is_store(path):
        manifest = read_manifest(path)
        return manifest is not None and manifest.layouts == {"series"}
    return path.is_file() and path.suffix.lower() in TABLE_ENDINGS


def find_outputs(inputs: Sequence[MapInput], output: Path | None) -> list[Path]:
    """The name of each map or table: the one that is given, or `<input>-crops.tif` in a folder, or beside the input."""
    named_as_file = output is not None and output.suffix.lower() in (*GEOTIFF_ENDINGS, *TABLE_ENDINGS)
    if output is None:
        outputs = [_beside(each) for each in inputs]
    elif named_as_file and output.is_symlink() and output.is_dir():  # the map would end elsewhere
        raise UsageError("the output is a link to a folder", path=output, remedy="remove it, or name the folder itself")
    elif len(inputs) == 1 and not output.is_dir():
        outputs = [output]
    elif named_as_file and not output.is_dir():
        why = f"{len(inputs)} inputs make {len(inputs)} outputs"
        raise UsageError("one output for several inputs", path=output, why=why, remedy="give a folder with -o")
    elif output.exists() and not output.is_dir():
        raise UsageError("the output is not a folder", path=output, remedy="give a folder with -o")
    else:
        outputs = [output / f"{each.stem}{_ending(each.path)}" for each in inputs]
    names = [str(path).casefold() for path in outputs]  # some disks do not tell capitals apart
    for place, path in enumerate(outputs):
        require_other_file(path, (each.path for each in inputs))  # the map of one may be the next one
        if names[place] in names[:place]:
            first = inputs[names.index(names[place])]
            remedy = "map them one by one, or rename one of them"
            raise UsageError("two maps of one name", path=path, why=f"{first} and {inputs[place]}", remedy=remedy)
    return outputs


def _beside(each: MapInput) -> Path:
    named = each.path if each.path.name else each.path.resolve()
    return named.with_name(f"{each.stem}{_ending(each.path)}")


def _ending(path: Path) -> str:
    """The ending of a default output name: a table in the format of a table, else a GeoTIFF."""
    if not holds_series(path):
        return ENDING
    return "-crops.csv" if path.suffix.lower() in (".csv", ".tsv") else "-crops.parquet"


def require_table_output(path: Path, output: Path, *, overwrite: bool) -> None:
    """Refuse a name of a table of classes that cannot be."""
    require_other_file(output, [path])
    require_free(output, OUTPUT_TABLES, overwrite)


# --- A scene of an ingested store as a Series: its tiles side by side on the scene's grid


def scenes_of(folder: Path) -> list[str]:
    """The scenes of a store that can be mapped: those of raster tiles."""
    with Store.open(folder) as store:
        scenes = sorted({entry.scene for entry in store.manifest.tiles if entry.layout == "raster"})
    if not scenes:
        why = "it holds series or single patches"
        raise InputError("nothing to map in the store", path=folder, why=why, remedy="give a store of whole images")
    return scenes


class StoredSeries:
    """One scene of a store; for one thread."""

    def __init__(self, folder: Path, scene: str) -> None:
        self._store = Store.open(folder)
        with closed_on_failure([self]):
            try:
                row = self._store.manifest.scenes[scene]
                self.grid = Grid.from_json(checked(GridRow, row["grid"]).model_dump())
                entries = [entry for entry in self._store.manifest.tiles if entry.scene == scene]
                self.files: list[Path] = [tile_path(folder, entry.name) for entry in entries]
                readers = [self._store.reader(entry.name) for entry in entries]
                self._tiles = [(_place(reader.grid, self.grid), reader) for reader in readers]
                _require_covered(self.grid, [place for place, _ in self._tiles])
                self._days = [int(day) for day in readers[0].days]
                self._require_one_season(readers, folder)
            except (KeyError, TypeError, ValueError, ArithmeticError) as failure:
                why, remedy = f"the grid of {scene} in the manifest cannot be used ({failure})", "ingest it again"
                raise ArtifactError("the scene cannot be mapped", path=folder, why=why, remedy=remedy) from None
        fingerprint = self._store.fingerprint
        self.name = scene
        self.dates = from_days(self._days)
        self.bands: Bands = fingerprint.bands
        self.scale, self.offset = fingerprint.scale, fingerprint.offset
        self.sensors, self.context = fingerprint.sensors, fingerprint.context
        self.owners = readers[0].sensors  # None of one sensor
        self.provenance: dict[str, Any] = {"source": "store", "scene": scene, "recipe": row.get("recipe")}

    def read(self, window: Window) -> Observations:
        """Values (T, C, h, w) and validity (T, h, w); invalid pixels hold zero."""
        shape = (window.height, window.width)
        kind = np.float32 if self.context else np.uint16
        values: NDArray[Any] = np.zeros((len(self.dates), len(self.bands), *shape), dtype=kind)
        valid = np.zeros((len(self.dates), *shape), dtype=bool)
        for place, reader in self._tiles:
            shared = place.overlap(window)
            if not shared.height or not shared.width:
                continue
            rows, columns = shared.relative_to(window).slices
            valid[:, rows, columns] = reader.valid(shared.relative_to(place))
            values[:, :, rows, columns] = reader.values(shared.relative_to(place))
        values *= valid[:, None]
        return Observations(values, valid)

    def close(self) -> None:
        self._store.close()

    def _require_one_season(self, readers: list[TileReader], folder: Path) -> None:
        for reader in readers:
            if [int(day) for day in reader.days] != self._days:
                why = "its tiles have different dates"
                raise InputError("the scene cannot be mapped", path=folder, why=why, remedy="give its images instead")


ON_GRID = 0.01  # pixels that a corner may be off


def _place(tile: Grid, scene: Grid) -> Window:
    """The window of a tile on the scene's grid; a ValueError where its pixels are not those of the scene."""
    left, top = ~scene.affine @ (tile.transform[2], tile.transform[5])
    place = Window(round(top), round(left), tile.height, tile.width)
    right, bottom = ~scene.affine @ (tile.affine @ (tile.width, tile.height))
    off = max(abs(left - place.left), abs(top - place.top), abs(right - place.right), abs(bottom - place.bottom))
    if tile.crs != scene.crs or off > ON_GRID:
        raise ValueError("its tiles lie on another one")
    return place


def _require_covered(scene: Grid, places: Sequence[Window]) -> None:
    """A ValueError where tiles are missing or lie outside: ingest covers a scene whole.

    What is not covered would be mapped as if nothing had been seen there, and could be of any size.
    """
    outer = Window(0, 0, scene.height, scene.width)
    if any(place.overlap(outer) != place for place in places):
        raise ValueError("a tile lies outside of it")
    covered = sum(place.height * place.width for place in places)
    if len(set(places)) != len(places) or covered != scene.height * scene.width:
        raise ValueError(f"its tiles have {covered:,} pixels of its {scene.height * scene.width:,}")
