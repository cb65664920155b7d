"""The sources by name, their options, and how the source of a path is guessed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import signature
from pathlib import Path
from typing import Any, TypeVar

from cropstar.errors import InputError, UsageError
from cropstar.inputs import is_geotiff, require_file_or_folder
from cropstar.registry import Registry
from cropstar.runtime import DEMO
from cropstar.sources.base import Scene, Series, closed_on_failure
from cropstar.sources.context import CONTEXT_OPTIONS, ContextOptions, ImageContext
from cropstar.sources.labels import LABEL_OPTIONS, LabelOptions, OpenedSeries, label_scenes
from cropstar.sources.multisensor import SensorSeries, on_grid
from cropstar.sources.sentinel2.products import looks_like_sentinel2
from cropstar.store.files import locked, sweep

TABLE_ENDINGS = (".csv", ".tsv", ".parquet", ".geoparquet", ".pq")

OPTIONS = {"start": "from", "end": "to"}  # where the command line has another word
ADD = "add"  # images of further sensors
OF_IMAGES = (*LABEL_OPTIONS, ADD, *CONTEXT_OPTIONS)  # options of all sources of images on the disk

Chosen = TypeVar("Chosen")


@dataclass(frozen=True)
class IngestRequest:
    """The arguments of an ingest; an option that the source does not use is refused."""

    path: Path | None
    parcels: Path | None = None
    label_column: str | None = None
    tile_size: int | None = None
    seed: int | None = None
    special: Mapping[str, Any] = field(default_factory=dict)  # options of some sources only, where they were given
    url: str | None = None  # in place of a path

    def take(self, source: str, *names: str) -> dict[str, Any]:
        """The special options of a source; others are refused."""
        common = ("parcels", "label_column", "tile_size", "seed")
        given = {name for name in common if getattr(self, name) is not None}
        for name in (*(name for name in common if name in given), *self.special):
            if name not in names:
                option = f"--{OPTIONS.get(name, name).replace('_', '-')}"
                raise UsageError(
                    f"{option} does not apply to the source '{source}'", remedy="see 'cropstar ingest --help'"
                )
        return dict(self.special)

    def options(self, source: str, kind: Callable[..., Chosen], *others: str) -> Chosen:
        """The special options of a source, in its class of them; what is not among them or `others` is refused."""
        own = signature(kind).parameters
        return kind(**{name: value for name, value in self.take(source, *own, *others).items() if name in own})

    def label_options(self) -> LabelOptions:
        """The options of all sources that burn parcels onto images."""
        special = {name: self.special[name] for name in LABEL_OPTIONS if name in self.special}
        return LabelOptions(self.parcels, self.label_column, self.tile_size, **special)

    def need_path(self, source: str, example: str) -> Path:
        if self.path is None:
            raise UsageError(f"the source '{source}' needs a path", remedy=f"cropstar ingest {source} {example}")
        require_file_or_folder(self.path)
        return self.path

    def need_only_path(self, source: str, example: str) -> Path:
        """The path of a source that takes no options."""
        self.take(source)
        return self.need_path(source, example)


SOURCES: Registry[Callable[[IngestRequest], Sequence[Scene]]] = Registry("source")


@SOURCES.register("synthetic")
def synthetic(request: IngestRequest) -> Sequence[Scene]:
    """The embedded scene: written as files that a user would have, then read like any user's files."""
    from cropstar.sources.synthetic.landscape import SceneOptions
    from cropstar.sources.synthetic.scene import write_radar, write_scene

    own = ("classes", "erode", "background", "background_classes")
    labels = request.take("synthetic", "tile_size", "seed", *own, "radar")
    radar = labels.pop("radar", False)
    folder = request.path or DEMO
    with locked(folder, "the demonstration scene"):
        sweep(folder)
        options = SceneOptions(seed=1 if request.seed is None else request.seed)
        tile, parcels = write_scene(folder, options)
        if radar:
            labels[ADD] = (write_radar(folder, options),)
    return stack(IngestRequest(tile, parcels, "crop", request.tile_size, special=labels))


@SOURCES.register("stack")
def stack(request: IngestRequest) -> Sequence[Scene]:
    """A GeoTIFF with dates x bands or a folder of dated ones, and a vector file of parcels."""
    from cropstar.sources.stack import StackOptions, open_stack

    options = request.options("stack", StackOptions, *OF_IMAGES)
    path = request.need_path("stack", "tile.tif --parcels parcels.gpkg")
    opened = [
        OpenedSeries(series, series.files, _relative_names(path, series.files)) for series in open_stack(path, options)
    ]
    return label_scenes(_with_added(opened, request), path, request.label_options(), options.to_json())


def _relative_names(folder: Path, files: Sequence[Path]) -> dict[str, list[str]]:
    """File names relative to a folder. They belong to the recipe: in 2018-03-12/B02.tif the folder is the date."""
    return {"names": [file.relative_to(folder).as_posix() for file in files]} if folder.is_dir() else {}


@SOURCES.register("sentinel2")
def sentinel2(request: IngestRequest) -> Sequence[Scene]:
    """Sentinel-2 L2A products, SAFE folders or .zip archives: one scene per tile."""
    from cropstar.sources.sentinel2 import Sentinel2Options, open_sentinel2

    path = request.need_path("sentinel2", "FOLDER --parcels parcels.gpkg")
    options = request.options("sentinel2", Sentinel2Options, *OF_IMAGES)
    if request.parcels is None:
        raise UsageError("no parcels given", remedy="give them with --parcels parcels.gpkg")
    opened = [OpenedSeries(series, series.files) for series in open_sentinel2(path, options)]
    return label_scenes(_with_added(opened, request), path, request.label_options(), options.to_json())


@SOURCES.register("cube")
def cube(request: IngestRequest) -> Sequence[Scene]:
    """NetCDF files or Zarr stores of one place: optical images, radar, and a raster of labels."""
    from cropstar.sources.cube import CubeOptions, label_cube, open_cubes

    path = request.need_path("cube", "FOLDER --parcels labels.nc")
    options = request.options("cube", CubeOptions, *OF_IMAGES)
    labels = request.label_options()
    if labels.parcels is None and (labelled := label_cube(path)) is not None:
        labels = replace(labels, parcels=labelled)
    series = open_cubes(path, options)
    pieces = series.pieces if isinstance(series, SensorSeries) else [series]
    opened = [OpenedSeries(pieces[0], [file for piece in pieces for file in piece.files], {}, pieces[1:])]
    return label_scenes(_with_added(opened, request), path, labels, options.to_json())


def _with_added(opened: Sequence[OpenedSeries], request: IngestRequest) -> list[OpenedSeries]:
    """Every series with the images that are given with --add, on its own grid, and with its context."""
    found: list[OpenedSeries] = []
    context = ContextOptions.of(request.special)
    with closed_on_failure(opened, found):
        for one in opened:
            others = list(one.others)
            for path in request.special.get(ADD, ()):
                series = open_raster_series(Path(path), (), {})
                pieces = series.pieces if isinstance(series, SensorSeries) else [series]
                others += [on_grid(piece, one.series.grid) for piece in pieces]
            added = [file for series in others for file in series.files]
            found.append(replace(one, others=others, files=list(dict.fromkeys([*one.files, *added]))))
        for one in found:
            SensorSeries([one.series, *one.others])  # refuses a sensor twice
        if context is not None:
            found = [_with_context(one, context) for one in found]
    return found


def _with_context(one: OpenedSeries, options: ContextOptions) -> OpenedSeries:
    context = ImageContext(options, one.series.grid)
    return replace(
        one, context=context, files=[*one.files, *context.files], material={**one.material, **options.to_json()}
    )


@SOURCES.register("stac")
def stac(request: IngestRequest) -> Sequence[Scene]:
    """Sentinel-2, Landsat or HLS from a STAC catalogue: the items of an area and a season as one mosaic."""
    from cropstar.sources.stac import StacOptions, lonlat_extent, open_stac

    names = list(StacOptions.model_fields)
    given = request.take("stac", *names, *LABEL_OPTIONS)
    if request.url is None:
        raise UsageError(
            "the source 'stac' needs an address", remedy="cropstar ingest https://... --from --to --parcels"
        )
    if request.parcels is None:
        raise UsageError("no parcels given", remedy="give them with --parcels parcels.gpkg")
    if "start" not in given or "end" not in given:
        raise UsageError("no season given", remedy="give --from 2023-03-01 --to 2023-10-31")
    chosen = {"collection": "sentinel-2-l2a"} | {name: value for name, value in given.items() if name in names}
    if "bbox" not in chosen:
        chosen["bbox"] = lonlat_extent(request.parcels)
    opened = [
        OpenedSeries(series, [], {"stac": series.recipe_material()})
        for series in open_stac(request.url, StacOptions(**chosen))
    ]
    return label_scenes(opened, None, request.label_options(), {})


@SOURCES.register("table")
def table(request: IngestRequest) -> Sequence[Scene]:
    """A CSV or Parquet file with one row per observation."""
    from cropstar.sources.table import TableOptions, open_table

    path = request.need_path("table", "fields.parquet")
    return open_table(path, replace(request.options("table", TableOptions), label_column=request.label_column))


@SOURCES.register("breizhcrops")
def breizhcrops(request: IngestRequest) -> Sequence[Scene]:
    """BreizhCrops as its package stores it: one scene per region, year and level."""
    from cropstar.sources.breizhcrops import BreizhCropsOptions, open_breizhcrops

    path = request.need_path("breizhcrops", "breizhcrops_dataset")
    return open_breizhcrops(path, request.options("breizhcrops", BreizhCropsOptions))


@SOURCES.register("tum")
def tum(request: IngestRequest) -> Sequence[Scene]:
    """TUM's image series (MTLCC) and series of points (fieldRNN)."""
    from cropstar.sources.tum import TumOptions, open_tum

    path = request.need_path("tum", "datasets/full/240")
    return open_tum(path, request.options("tum", TumOptions))


@SOURCES.register("zuericrop")
def zuericrop(request: IngestRequest) -> Sequence[Scene]:
    """ZueriCrop: one HDF5 file of small images, and its labels.csv."""
    from cropstar.sources.zuericrop import ZueriCropOptions, open_zuericrop

    path = request.need_path("zuericrop", "ZueriCrop.hdf5")
    given = request.take("zuericrop", "labels", "dates", "year", "level", "cloud_limit", "bands")
    if "level" in given:
        given["level"] = _whole_number(given["level"], "--level")
    return open_zuericrop(path, ZueriCropOptions(**given))


@SOURCES.register("ucr")
def ucr(request: IngestRequest) -> Sequence[Scene]:
    """Series of the UCR and UEA archives: NAME_TRAIN and NAME_TEST, as .tsv or .ts."""
    from cropstar.sources.ucr import open_ucr

    return open_ucr(request.need_only_path("ucr", "Crop_TRAIN.tsv"))


@SOURCES.register("pastis")
def pastis(request: IngestRequest) -> Sequence[Scene]:
    """PASTIS and PASTIS-R: images of 128 x 128 pixels with parcels and five folds."""
    from cropstar.sources.pastis import open_pastis

    return open_pastis(request.need_only_path("pastis", "PASTIS"))


@SOURCES.register("eurocropsml")
def eurocropsml(request: IngestRequest) -> Sequence[Scene]:
    """EuroCropsML: one .npz per parcel."""
    from cropstar.sources.series_files import open_eurocropsml

    return open_eurocropsml(request.need_only_path("eurocropsml", "preprocess/S2"))


@SOURCES.register("timesen2crop")
def timesen2crop(request: IngestRequest) -> Sequence[Scene]:
    """TimeSen2Crop: one .csv per pixel, by tile and class."""
    from cropstar.sources.series_files import open_timesen2crop

    return open_timesen2crop(request.need_only_path("timesen2crop", "TimeSen2Crop"))


def _whole_number(text: str, option: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"wrong value of {option}", why=f"'{text}' is not a number", remedy="give 1, 2 or 3") from None


def guess_source(path: Path | None) -> str:
    """Guess the source of a path."""
    from cropstar.sources.breizhcrops import looks_like_breizhcrops
    from cropstar.sources.cube import looks_like_cube
    from cropstar.sources.pastis import looks_like_pastis
    from cropstar.sources.radar import refuse_raw_radar
    from cropstar.sources.series_files import looks_like_eurocropsml, looks_like_timesen2crop
    from cropstar.sources.stack import looks_like_stack
    from cropstar.sources.tum.folders import looks_like_tum
    from cropstar.sources.ucr import looks_like_ucr
    from cropstar.sources.zuericrop import looks_like_zuericrop

    if path is None:
        return "synthetic"
    if not path.exists():
        raise InputError("no such file", path=path, remedy="check the path")
    require_file_or_folder(path)
    if is_geotiff(path):
        return "stack"
    if looks_like_ucr(path):
        return "ucr"
    if path.is_file() and path.suffix.lower() in TABLE_ENDINGS:
        return "table"
    refuse_raw_radar(path)
    in_order = {
        "sentinel2": looks_like_sentinel2,
        "cube": looks_like_cube,
        "breizhcrops": looks_like_breizhcrops,
        "zuericrop": looks_like_zuericrop,
        "pastis": looks_like_pastis,
        "eurocropsml": looks_like_eurocropsml,
        "timesen2crop": looks_like_timesen2crop,
        "tum": looks_like_tum,
        "stack": looks_like_stack,
    }
    for source, looks_like_it in in_order.items():
        if looks_like_it(path):
            return source
    raise UsageError(f"cannot tell what {path} is", remedy=f"name the source first, one of: {', '.join(SOURCES)}")


def _reading_options(chosen: Mapping[str, Any], path: Path, what: str) -> dict[str, Any]:
    """Options that images of a kind take: all others are refused."""
    for name in chosen:
        if name not in (*READING, "bands") or what == "radar images":
            option = name.replace("_", "-")
            raise UsageError(f"--{option} does not apply to {what}", path=path, remedy="leave it out")
    return dict(chosen)


# --- Series to be mapped

READING = ("resampling", "clear")  # what a model remembers of how its images were read


def open_raster_series(
    path: Path, bands: Sequence[str], reading: Mapping[str, Any], given: Mapping[str, Any] | None = None
) -> Series:
    """A stacked GeoTIFF, a folder of dated GeoTIFFs, radar, cubes, or Sentinel-2 products of one tile.

    Images are read as those that the model was trained on: `bands` of them, with the resampling and the
    scene classes of `reading`. What the user has `given` (see the options of each source) comes before that.
    """
    from cropstar.geo.sensors import radar_band
    from cropstar.sources.cube import CubeOptions, looks_like_cube, open_cubes
    from cropstar.sources.radar import RadarSeries, looks_like_radar, refuse_raw_radar

    refuse_raw_radar(path)
    chosen = {name: value for name, value in reading.items() if name in READING} | dict(given or {})
    opened: Sequence[Series]
    if looks_like_sentinel2(path):
        from cropstar.geo.sensors import NATIVE_RESOLUTION
        from cropstar.sources.sentinel2 import Sentinel2Options, open_sentinel2

        chosen = _reading_options(chosen, path, "Sentinel-2 products")
        own = tuple(band for band in bands if band in NATIVE_RESOLUTION)  # the rest is of other sensors
        if own and all(band in NATIVE_RESOLUTION or radar_band(band.rpartition(":")[2]) for band in bands):
            chosen = {"bands": own, **chosen}
        opened = open_sentinel2(path, Sentinel2Options(**chosen))
    elif looks_like_cube(path):
        opened = [open_cubes(path, CubeOptions(**_reading_options(chosen, path, "cubes")))]
    elif looks_like_radar(path):
        _reading_options({name: value for name, value in chosen.items() if name not in READING}, path, "radar images")
        opened = [RadarSeries(path)]
    else:
        from cropstar.sources.stack import StackOptions, open_stack

        # Bands are picked by their names, never given to bands that have none: that would be a guess.
        opened = open_stack(path, StackOptions(**chosen), wanted=tuple(bands))
    if len(opened) > 1:
        for series in opened:
            series.close()
        why = f"images of {', '.join(series.name for series in opened)}"
        raise UsageError("more than one tile", path=path, why=why, remedy="give the images of one tile")
    return opened[0]
