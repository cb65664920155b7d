"""Options that several commands share, their types, and the sections of a --help page."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import date, datetime
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from cropstar.errors import UsageError

Command = TypeVar("Command", bound=Callable[..., Any])


def examples(text: str) -> str:
    """A block of example commands for the end of a --help page, kept as it is written."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in text.strip().splitlines())


# --- Sections of a --help page


class HeadedOption(click.Option):
    """An option under a heading of the --help page."""

    heading = "Options"


class HeadedCommand(click.Command):
    """A command of many options, whose --help page has a section per heading."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                sections.setdefault(getattr(parameter, "heading", HeadedOption.heading), []).append(record)
        first = sections.pop(HeadedOption.heading, [])
        for heading, records in {HeadedOption.heading: first, **sections}.items():
            with formatter.section(heading):
                formatter.write_dl(records)


class headed:  # noqa: N801  (a decorator, as click.option is)
    """An option under a heading."""

    def __init__(self, heading: str, *names: str, **settings: Any) -> None:
        self.heading, self.names, self.settings = heading, names, settings

    def __call__(self, command: Command) -> Command:
        kind = type("HeadedOption", (HeadedOption,), {"heading": self.heading})
        return click.option(*self.names, cls=kind, **self.settings)(command)


def _all_of(options: Sequence[Callable[[Command], Command]], command: Command) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


# --- Types of values

ALLOW_REMOTE = "allow_remote"


class PathOrAddress(click.Path):
    """A path. Addresses of buckets and web servers stay strings, which only commands with --allow-remote accept."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str) or "://" not in value:
            return super().convert(value, param, ctx)
        from cropstar.store.remote.addresses import is_remote, redacted

        if not is_remote(value):
            return super().convert(value, param, ctx)
        if ctx is None or ALLOW_REMOTE not in ctx.params:
            raise UsageError(f"{redacted(value)} is remote", remedy="copy it to this machine first")
        return value


PATH = PathOrAddress(path_type=Path)
DAY = click.DateTime(["%Y-%m-%d"])


class Decimal(click.FloatRange):
    """A number within a range, which is neither infinite nor NaN: click would let both through."""

    name = "number"

    def _describe_range(self) -> str:
        return "" if self.min is None and self.max is None else super()._describe_range()

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


def split_names(_: click.Context, __: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    """Names separated by commas, as the callback of an option."""
    return tuple(part.strip() for part in value.split(",")) if value else None


def _split(kind: type, example: str) -> Callable[[click.Context, click.Parameter, str | None], tuple[Any, ...] | None]:
    """Numbers separated by commas, as the callback of an option."""

    def split(_: click.Context, __: click.Parameter, value: str | None) -> tuple[Any, ...] | None:
        try:
            return tuple(kind(part) for part in value.split(",")) if value else None
        except ValueError:
            raise click.BadParameter(f"'{value}' is not a list of numbers such as {example}") from None

    return split


split_numbers, split_decimals = _split(int, "4,5,6"), _split(float, "7.5,47.2,7.9,47.4")


def only_day(_: click.Context, __: click.Parameter, value: datetime | None) -> date | None:
    return value.date() if value else None


# --- Every command


def logging_options(command: Command) -> Command:
    """--quiet, --verbose, --debug and --log-json, on every command."""

    @click.option("-q", "--quiet", is_flag=True, help="Print only warnings and errors.")
    @click.option("-v", "--verbose", is_flag=True, help="Print more.")
    @click.option("--debug", is_flag=True, help="Show the traceback of an error.")
    @click.option("--log-json", is_flag=True, help="Log to stderr as JSON, one object per line.")
    @wraps(command)
    def logged(*args: Any, quiet: bool, verbose: bool, debug: bool, log_json: bool, **kwargs: Any) -> Any:
        from cropstar.runtime import set_up_logging
        from cropstar.signals import begin_work

        begin_work()
        context = click.get_current_context()
        context.find_root().obj["debug"] = debug
        context.find_root().obj["log_json"] = log_json
        set_up_logging(quiet=quiet, verbose=verbose or debug, as_json=log_json)
        return command(*args, **kwargs)

    return logged  # type: ignore[return-value]


# --- The machine


def device(command: Command) -> Command:
    return click.option(
        "--device",
        default="auto",
        show_default=True,
        type=click.Choice(["auto", "cpu", "cuda", "mps"]),
        help="Where to compute.",
    )(command)


def checkpoints(command: Command) -> Command:
    return click.option(
        "--checkpoint-seconds", type=Decimal(0), default=30.0, show_default=True, help="Time between checkpoints."
    )(command)


def backend(*, training: bool = False) -> Callable[[Command], Command]:
    """The implementation of recurrent layers; cropstar/models/backends.py says what each is."""
    names = ["auto", "naive", "torch", "native", "triton", *([] if training else ["onnx"])]
    return click.option(
        "--backend",
        default="auto",
        show_default=True,
        type=click.Choice(names),
        help="Implementation of recurrent layers; auto takes the fastest, and --verbose names it.",
    )


# --- Remote files


def remote(command: Command) -> Command:
    """--allow-remote and --scratch; what they do is in cropstar/api/entry.py."""
    options = (
        click.option(
            "--allow-remote", is_flag=True, is_eager=True, help="Accept s3://, gs:// and https:// names as files."
        ),
        click.option(
            "--scratch",
            metavar="DIR",
            type=click.Path(path_type=Path),
            help="Folder for local copies of remote files.  [default: in the temporary folder]",
        ),
    )
    return _all_of(options, command)


# --- Sources of `cropstar ingest`, under a heading each

LABELS = "Parcels on images (stack, sentinel2, stac)"
IMAGES = "Images"
STAC = "STAC catalogues"
TABLES = "Tables"
WEATHER = "Weather"
PUBLISHED = "Published data sets (breizhcrops, tum, zuericrop)"

SOURCE_OPTIONS = (
    headed(
        LABELS,
        "--parcels",
        type=PATH,
        help="Labelled parcels, points (also CSV) or a label raster.  [default for stack: the vector file beside PATH]",
    ),
    headed(LABELS, "--label-column", help="Column of the crop, also in tables.  [default: crop, label, class, ...]"),
    headed(LABELS, "--classes", type=PATH, help="A YAML file that merges, renames and drops labels."),
    headed(
        LABELS,
        "--erode",
        type=Decimal(0),
        metavar="METRES",
        help="Shrink parcels by this distance.  [default: 0]",
    ),
    headed(
        LABELS,
        "--point-radius",
        type=Decimal(0),
        metavar="METRES",
        help="Points label all pixels within this distance.  [default: the pixel that they are in]",
    ),
    headed(
        LABELS,
        "--group-distance",
        type=Decimal(0),
        metavar="METRES",
        help="Points of one crop within this distance are one field, which splits keep together.  [default: 100]",
    ),
    headed(
        LABELS,
        "--background",
        type=PATH,
        metavar="RASTER",
        help="Land cover (WorldCover, WorldCereal, 0/1): learn what is not cropland as a class 'not a field'.",
    ),
    headed(
        LABELS,
        "--background-classes",
        callback=split_numbers,
        metavar="N,N",
        help="Values of --background that are not fields.  [default: all but crops and grass]",
    ),
    headed(
        LABELS,
        "--tile-size",
        type=click.IntRange(16, 4096),
        metavar="PIXELS",
        help="Width and height of a tile.  [default: 240]",
    ),
    headed(
        IMAGES,
        "--bands",
        callback=split_names,
        help="B04,B08 to select; B04=red,B08=nir to rename.  [default: all, or Sentinel-2's]",
    ),
    headed(
        IMAGES, "--clear", callback=split_numbers, help="Classes of the SCL band that are clear.  [default: 2,4,5,6,7]"
    ),
    headed(
        IMAGES, "--resampling", help="Resampling of coarser bands: bilinear, cubic or nearest.  [default: bilinear]"
    ),
    headed(IMAGES, "--pattern", help="Names of dated files, e.g. 'S2_{tile}_{band}_{date}.tif'.  [default: guessed]"),
    headed(IMAGES, "--masks", metavar="PATTERN", help="Names of cloud masks beside dated files; 0 is clear."),
    headed(
        IMAGES,
        "--add",
        multiple=True,
        type=PATH,
        help="Images of the same place by another sensor, such as radar; may be repeated.",
    ),
    headed(STAC, "--collection", help="The collection, or several with commas between.  [default: sentinel-2-l2a]"),
    headed(
        STAC,
        "--bbox",
        callback=split_decimals,
        metavar="W,S,E,N",
        help="Bounding box in degrees.  [default: that of the parcels]",
    ),
    headed(STAC, "--from", "start", type=DAY, callback=only_day, metavar="DATE", help="First day, e.g. 2018-03-01."),
    headed(STAC, "--to", "end", type=DAY, callback=only_day, metavar="DATE", help="Last day."),
    headed(
        STAC, "--max-cloud", type=float, metavar="PERCENT", help="Skip items with more cloud than this.  [default: 100]"
    ),
    headed(STAC, "--crs", help="Coordinate system of the mosaic.  [default: that of most items]"),
    headed(STAC, "--resolution", type=float, metavar="METRES", help="Pixel size.  [default: that of the finest band]"),
    headed(TABLES, "--id-column", help="Column of the series id.  [default: guessed]"),
    headed(TABLES, "--date-column", help="Column of the date.  [default: guessed]"),
    headed(TABLES, "--group-column", help="Column of year or region, or 'none'.  [default: guessed]"),
    headed(
        TABLES,
        "--field-column",
        help="Column of the field, also of parcels and points: one field stays together in every split.",
    ),
    headed(TABLES, "--mask-column", help="Column of the cloud mask."),
    headed(
        TABLES,
        "--scale",
        type=float,
        help="Reflectance = value x scale + offset, also of stacks.  [default: as the file says, or guessed]",
    ),
    headed(TABLES, "--offset", type=float, help="See --scale.  [default: 0]"),
    headed(TABLES, "--nodata", type=float, multiple=True, help="Values that mean no data."),
    headed(
        TABLES,
        "--context",
        callback=split_names,
        metavar="NAMES",
        help="Inputs without a date: columns (elevation,slope) or rasters (elevation=dem.tif).",
    ),
    headed(
        WEATHER,
        "--temperature",
        metavar="COLUMN|FILE",
        help="Mean temperature, for the band gdd of growing degree-days: a column; for images AgERA5 or a dated table.",
    ),
    headed(
        WEATHER,
        "--base-temperature",
        type=Decimal(-50, 50),
        metavar="DEGREES",
        help="Base temperature of growing degree-days, in degrees Celsius.  [default: 0]",
    ),
    headed(
        WEATHER,
        "--warm-from",
        metavar="MM-DD",
        help="Day of the year from which growing degree-days are added up.  [default: 01-01]",
    ),
    headed(TABLES, "--keep-unlabelled", is_flag=True, default=None, help="Keep fields without a crop."),
    headed(PUBLISHED, "--year", type=int, help="breizhcrops: 2017 or 2018; tum, zuericrop: year of the dates."),
    headed(PUBLISHED, "--level", help="breizhcrops: L1C or L2A; zuericrop: classes of level 1, 2 or 3."),
    headed(PUBLISHED, "--regions", callback=split_names, help="breizhcrops: frh01,frh02,...  [default: all]"),
    headed(PUBLISHED, "--download", is_flag=True, default=None, help="breizhcrops: fetch missing regions."),
    headed(PUBLISHED, "--mask", help="breizhcrops: cloud mask: none, or clouds by QA60 or CLD.  [default: none]"),
    headed(PUBLISHED, "--data", metavar="FOLDER", help="tum: data folder, if there are several."),
    headed(PUBLISHED, "--labels", type=PATH, help="zuericrop: label table.  [default: labels.csv beside the file]"),
    headed(
        IMAGES,
        "--dates",
        type=PATH,
        help="Dates of a stack or zuericrop file that has none: 2023-04-01,... or a file, one per line.",
    ),
    headed(
        IMAGES,
        "--by-band",
        is_flag=True,
        default=None,
        help="With --dates: the stack is ordered by band, not by date.",
    ),
    headed(
        PUBLISHED,
        "--cloud-limit",
        type=float,
        help="zuericrop: largest share of cloud that counts as clear.  [default: 0.1]",
    ),
)


def source_options(command: Command) -> Command:
    """The options that only some sources take."""
    return _all_of(SOURCE_OPTIONS, command)


# --- Maps of `cropstar predict` and `cropstar update`

OUTPUTS, SEASON = "More outputs", "In season"
AREA = "What is mapped, and what is unknown"
INPUTS, OF_TABLES, MACHINE = "Reading the input", "Reading tables", "Machine"

MAP_OPTIONS = (
    headed(OUTPUTS, "--confidence", is_flag=True, help="The calibrated probability of the class, in percent."),
    headed(OUTPUTS, "--probabilities", is_flag=True, help="The calibrated probability of every class."),
    headed(
        OUTPUTS,
        "--uncertainty",
        type=click.Choice(["entropy", "margin"]),
        help="Entropy of the probabilities, or margin between the best two.",
    ),
    headed(OUTPUTS, "--valid-dates", is_flag=True, help="Number of clear dates of each pixel."),
    headed(OUTPUTS, "--parcels", type=PATH, help="Parcel outlines; the class of each goes to <map>-parcels.gpkg."),
    headed(
        OUTPUTS,
        "--declared-column",
        metavar="NAME",
        help="Column of --parcels with the declared crop.  [default: crop, label, class, ...]",
    ),
    headed(
        OUTPUTS,
        "--declared-classes",
        type=PATH,
        help="The file of 'ingest --classes', to compare declared crops with merged or renamed classes.",
    ),
    headed(OUTPUTS, "--html", is_flag=True, help="Also write a self-contained HTML page with legend and hectares."),
    headed(
        OUTPUTS,
        "--smooth",
        type=click.Choice(["majority", "bayesian"]),
        help="Smooth the map: majority vote or Bayesian.",
    ),
    headed(OUTPUTS, "--smooth-window", type=int, metavar="PIXELS", help="Window of --smooth.  [default: 5]"),
    headed(
        AREA,
        "--mask",
        type=PATH,
        help="Map only inside this: ESA WorldCover or WorldCereal, a 0/1 raster, or outlines.",
    ),
    headed(
        AREA,
        "--mask-classes",
        callback=split_numbers,
        metavar="N,N",
        help="Values of --mask that are mapped.  [default: crops]",
    ),
    headed(AREA, "--only-parcels", is_flag=True, help="Map only inside --parcels."),
    headed(
        AREA,
        "--min-confidence",
        type=Decimal(0, 1),
        metavar="P",
        help="Mark pixels as unknown if their class is less probable than this.",
    ),
    headed(
        AREA,
        "--unknown",
        type=Decimal(0.001, 0.5),
        metavar="RATE",
        help="Mark pixels that are unlike all crops as unknown, and at most this share of true crops, e.g. 0.05.",
    ),
    headed(SEASON, "--state", type=PATH, help="Save the hidden state after the last date, for 'cropstar update'."),
    headed(
        SEASON,
        "--state-precision",
        type=click.Choice(["float32", "float16"]),
        help="Number format of the state; float16 halves the file.  [default: float32; of update: that of the state]",
    ),
    headed(
        SEASON,
        "--every-date",
        is_flag=True,
        help="Write one map per date, and <map>-earliest.tif: the date on which the class was settled.",
    ),
    headed(
        SEASON,
        "--stable-confidence",
        type=Decimal(0, 1),
        help="Confidence at which a class counts as settled.  [default: 0.5]",
    ),
    headed(
        INPUTS,
        "--bands",
        callback=split_names,
        help="B04,B08 to select, or to name bands without names; B04=red to rename.",
    ),
    headed(INPUTS, "--dates", help="2023-04-01,2023-05-11,... or @FILE, for a file without dates, ordered by date."),
    headed(INPUTS, "--by-band", is_flag=True, default=None, help="With --dates: the file is ordered by band."),
    headed(
        INPUTS,
        "--clear",
        callback=split_numbers,
        help="Classes of the SCL band that are clear.  [default: as in training]",
    ),
    headed(INPUTS, "--pattern", help="Names of dated files, e.g. 'S2_{band}_{date}.tif'.  [default: guessed]"),
    headed(INPUTS, "--masks", metavar="PATTERN", help="Names of cloud masks beside dated files; 0 is clear."),
    headed(
        INPUTS,
        "--scale",
        type=Decimal(),
        help="Reflectance = value x scale + offset.  [default: as the file says, or guessed]",
    ),
    headed(INPUTS, "--offset", type=Decimal(), help="See --scale.  [default: 0]"),
    headed(INPUTS, "--any-dates", is_flag=True, help="Accept dates outside the season of the training."),
    headed(
        INPUTS,
        "--context",
        callback=split_names,
        metavar="RASTERS",
        help="Rasters of context, e.g. elevation=dem.tif.",
    ),
    headed(
        INPUTS,
        "--temperature",
        metavar="FILE",
        help="Temperatures, for models with the band gdd; of tables a column.",
    ),
    headed(OF_TABLES, "--id-column", help="Column of the series id.  [default: guessed]"),
    headed(OF_TABLES, "--date-column", help="Column of the date.  [default: guessed]"),
    headed(OF_TABLES, "--label-column", help="Column of the declared crop, if there is one.  [default: guessed]"),
    headed(OF_TABLES, "--group-column", help="Column of year or region, or 'none'.  [default: guessed]"),
    headed(OF_TABLES, "--mask-column", help="Column of the cloud mask."),
    headed(OF_TABLES, "--nodata", type=float, multiple=True, help="Values that mean no data."),
    headed(MACHINE, "--memory", default="2GB", show_default=True, help="Choose windows to stay below this memory."),
    headed(
        MACHINE, "--window", type=click.IntRange(16, 8192), help="Width and height of windows.  [default: by --memory]"
    ),
    headed(
        MACHINE, "--halo", type=click.IntRange(0, 8192), help="Use a smaller overlap of windows: faster, not exact."
    ),
    headed(
        MACHINE,
        "--precision",
        type=click.Choice(["auto", "float32", "bfloat16"]),
        default="auto",
        help="Number format; auto is float32, or with --half the fastest one of the device.",
    ),
    headed(MACHINE, "--half", is_flag=True, help="Compute in half precision: faster, not exact."),
    headed(MACHINE, "--shard", metavar="I/N", help="Compute part I of N, from 0; auto/N takes I from the array job."),
)


def map_options(*headings: str, without: tuple[str, ...] = ()) -> Callable[[Command], Command]:
    """The options under some headings."""
    chosen = tuple(each for each in MAP_OPTIONS if each.heading in headings and each.names[0] not in without)
    return lambda command: _all_of(chosen, command)
