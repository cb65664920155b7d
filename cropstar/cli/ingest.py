"""`cropstar ingest`."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from cropstar.cli.options import PATH, HeadedCommand, examples, speech
from cropstar.cli.remote_options import remote
from cropstar.cli.source_options import source_options
from cropstar.errors import UsageError
from cropstar.runtime import DEMO, STORES
from cropstar.store.remote.addresses import is_catalogue

ADDRESS = re.compile("https?://", re.IGNORECASE)
EXAMPLES = examples("""
cropstar ingest                                       the demonstration scene, into data/stores/demo
cropstar ingest tile.tif --parcels parcels.gpkg       a stacked GeoTIFF and its labelled parcels
cropstar ingest stack tile.tif --parcels p.shp --label-column CODE_CULTU -o data/stores/brittany
cropstar ingest SAFE_FOLDER --parcels p.shp           Sentinel-2 L2A products, folders or .zip
cropstar ingest FOLDER --pattern 'S2_{tile}_{band}_{date}.tif' --parcels p.gpkg    dated GeoTIFFs
cropstar ingest https://stac.example.org/v1 --from 2023-03-01 --to 2023-10-31 --parcels p.gpkg
cropstar ingest tile.tif --classes classes.yaml --erode 10    other classes; edges of 10 m left out
cropstar ingest SAFE_FOLDER --parcels p.shp --scheduler tcp://10.0.0.1:8786    on a Dask cluster
cropstar ingest breizhcrops_dataset --level L1C       BreizhCrops, one scene a region
cropstar ingest fields.parquet                        a table of series, one row an observation
cropstar ingest Crop_TRAIN.tsv                        series of the UCR and UEA archives
cropstar ingest table obs.csv --id-column field --bands B04=red,B08=nir --scale 1e-4
""")


@click.command(cls=HeadedCommand, epilog=EXAMPLES)
@click.argument("what", nargs=-1, metavar="[SOURCE] [PATH]")
@click.option("-o", "--output", type=PATH, help="The store's folder.  [default: data/stores/<name of PATH>]")
@click.option("--overwrite", is_flag=True, help="Replace a store of other data.")
@click.option("--workers", type=click.IntRange(1, 256), help="Processes that make tiles.  [default: the cores]")
@click.option("--scheduler", metavar="ADDRESS", help="Have the workers of a Dask cluster make tiles.")
@click.option("--seed", type=click.IntRange(0), metavar="NUMBER", help="Seed of the demonstration scene.  [default: 1]")
@source_options
@speech
@remote("what", output="output", head="manifest.json", leave=is_catalogue)
def ingest(
    what: tuple[str, ...],
    output: Path | None,
    parcels: Path | None,
    label_column: str | None,
    tile_size: int | None,
    seed: int | None,
    overwrite: bool,
    workers: int | None,
    scheduler: str | None,
    **special: Any,
) -> None:
    """Turn images and parcels into a store of HDF5 tiles.

    SOURCE says what PATH is and is guessed when left out. Without both, a demonstration scene is
    written to data/demo and ingested. A run that was stopped goes on where it was.
    """
    from cropstar.connecting import connected
    from cropstar.reports.contents import summarise
    from cropstar.reports.wording import plural
    from cropstar.runtime import event
    from cropstar.sources.catalogue import SOURCES, IngestRequest, guess_source
    from cropstar.sources.ingest import ingest as run_ingest
    from cropstar.sources.workers import bound_gdal, default_workers

    if len(what) > 2:
        raise UsageError("too many arguments", why=" ".join(what), remedy="cropstar ingest [SOURCE] [PATH]")
    if "" in what:  # a variable of a script that is not set; not a wish for the demonstration
        raise UsageError(
            "an empty argument", why="neither a source nor a path", remedy="cropstar ingest [SOURCE] [PATH]"
        )
    named = what[0] if len(what) == 2 or (what and what[0] in SOURCES) else None
    place = what[-1] if len(what) > (named is not None) else None
    url = place if place and ADDRESS.match(place) else None  # a Path would lose one of its slashes
    path = Path(place) if place and not url else None
    source = named or ("stac" if url else guess_source(path))

    bound_gdal()  # before anything is opened: GDAL asks for the size of its cache once
    given = {name: value for name, value in special.items() if value not in (None, ())}
    if scheduler is not None:
        if workers is not None:
            why = "the cluster has its own"
            raise UsageError("--workers with --scheduler", why=why, remedy="leave one of them out")
        path = DEMO if source == "synthetic" and path is None else path
        path = path and path.absolute()  # as it is called on every machine
    folder = output or STORES / _name(path, url)
    # First the cluster: to read and digest images may take long.
    with nullcontext() if scheduler is None else connected(scheduler) as cluster:
        scenes = SOURCES[source](IngestRequest(path, parcels, label_column, tile_size, seed, given, url))
        try:
            result = run_ingest(
                scenes, folder, overwrite=overwrite, workers=workers or default_workers(), cluster=cluster
            )
        finally:
            for scene in scenes:
                scene.close()
    summarise(result.folder)
    event(
        f"store {result.folder}: {plural(result.written, 'tile')} written, {result.kept} kept",
        store=str(result.folder),
        written=result.written,
        kept=result.kept,
    )


def _name(path: Path | None, url: str | None) -> str:
    """What the store is called unless the user says it: after the file, the folder or the catalogue."""
    if path is not None:
        whole = path.resolve()
        return whole.name if whole.is_dir() else whole.name.removesuffix(".gz").rpartition(".")[0] or whole.name
    return (urlsplit(url).hostname or "stac") if url else "demo"
