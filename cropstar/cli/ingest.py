"""`cropstar ingest`."""

from __future__ import annotations

from typing import Any

import click

from cropstar.cli.options import PATH, HeadedCommand, examples, logging_options, remote, source_options
from cropstar.errors import UsageError

EXAMPLES = examples("""
cropstar ingest                                       the demonstration scene, into data/stores/demo
cropstar ingest --radar                               the same with radar, into data/stores/demo-radar
cropstar ingest tile.tif --parcels parcels.gpkg       a stacked GeoTIFF and its labelled parcels
cropstar ingest stack tile.tif --parcels p.shp --label-column CODE_CULTU -o data/stores/brittany
cropstar ingest SAFE_FOLDER --parcels p.shp           Sentinel-2 L2A products, folders or .zip
cropstar ingest SAFE_FOLDER --add S1_FOLDER --parcels p.gpkg    Sentinel-2 and radar of the same place
cropstar ingest CUBES --parcels labels.nc             NetCDF or Zarr cubes, and a raster of labels
cropstar ingest FOLDER --pattern 'S2_{tile}_{band}_{date}.tif' --parcels p.gpkg    dated GeoTIFFs
cropstar ingest https://stac.example.org/v1 --from 2023-03-01 --to 2023-10-31 --parcels p.gpkg
cropstar ingest tile.tif --classes classes.yaml --erode 10    merged classes; without edges of 10 m
cropstar ingest SAFE_FOLDER --parcels p.shp --scheduler tcp://10.0.0.1:8786    on a Dask cluster
cropstar ingest breizhcrops_dataset --level L1C       BreizhCrops, one scene per region
cropstar ingest fields.parquet                        a table of series, one row per observation
cropstar ingest Crop_TRAIN.tsv                        series of the UCR and UEA archives
cropstar ingest PASTIS                                PASTIS; EuroCropsML and TimeSen2Crop likewise
cropstar ingest FOLDER --parcels points.csv --point-radius 15    labelled points
cropstar ingest table obs.csv --id-column field --bands B04=red,B08=nir --scale 1e-4
""")


@click.command(cls=HeadedCommand, epilog=EXAMPLES)
@click.argument("what", nargs=-1, metavar="[SOURCE] [PATH]")
@click.option("-o", "--output", type=PATH, help="The store's folder.  [default: data/stores/<name of PATH>]")
@click.option("--overwrite", is_flag=True, help="Replace a store that has other data.")
@click.option("--workers", type=click.IntRange(1, 256), help="Worker processes.  [default: the number of cores]")
@click.option("--scheduler", metavar="ADDRESS", help="Use the workers of this Dask cluster.")
@click.option("--seed", type=click.IntRange(0), metavar="NUMBER", help="Seed of the demonstration scene.  [default: 1]")
@click.option("--radar", is_flag=True, default=None, help="Add radar images to the demonstration scene.")
@source_options
@remote
@logging_options
def ingest(what: tuple[str, ...], **options: Any) -> None:
    """Turn images and parcels into a store of HDF5 tiles.

    SOURCE is the type of PATH and is guessed if left out. Without both, a demonstration scene is written to data/demo
    and ingested. Run the same command again to continue after an interruption.
    """
    import cropstar

    source, path = _source_and_path(what)
    cropstar.ingest(path, source=source, **options, progress=None)


def _source_and_path(what: tuple[str, ...]) -> tuple[str | None, str | None]:
    from cropstar.sources.catalogue import SOURCES

    usage = "cropstar ingest [SOURCE] [PATH]"
    if len(what) > 2:
        raise UsageError("too many arguments", why=" ".join(what), remedy=usage)
    source = what[0] if len(what) == 2 or (what and what[0] in SOURCES) else None
    return source, what[-1] if len(what) > (source is not None) else None
