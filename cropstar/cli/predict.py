"""`cropstar predict`."""

from __future__ import annotations

from typing import Any

import click

from cropstar.cli.options import (
    AREA,
    INPUTS,
    MACHINE,
    OF_TABLES,
    OUTPUTS,
    PATH,
    SEASON,
    HeadedCommand,
    backend,
    device,
    examples,
    headed,
    logging_options,
    map_options,
    remote,
)

EXAMPLES = examples("""
cropstar predict data/demo/tile.tif                   with the newest model, to data/demo/tile-crops.tif
cropstar predict tile.tif -o map.tif --model data/runs/convstar-4x32-001
cropstar predict SAFE_FOLDER -o map.tif               Sentinel-2 L2A products of one tile
cropstar predict SAFE_FOLDER --add S1_FOLDER          with radar, for a model that learnt from both
cropstar predict data/stores/demo --confidence        every scene of an ingested store
cropstar predict fields.parquet -o classes.parquet    a table of series: a class for every field
cropstar predict tile.tif --mask worldcover.tif --unknown 0.05     only cropland, with an unknown class
cropstar predict tile.tif --state season.h5           to continue with 'cropstar update season.h5 NEW'
cropstar predict 'tiles/*.tif' -o maps --shard auto/8 one of eight jobs of an array
cropstar predict 'tiles/*.tif' -o maps --scheduler tcp://10.0.0.1:8786    on a Dask cluster
""")


@click.command(cls=HeadedCommand, epilog=EXAMPLES)
@click.argument("raster", nargs=-1, required=True)
@click.option(
    "-o", "--output", type=PATH, help="The map, or a folder.  [default: <RASTER>-crops.tif beside the raster]"
)
@click.option("--model", type=PATH, help="A model file or the folder of a run.  [default: the newest in data/runs]")
@click.option("--overwrite", is_flag=True, help="Replace a map that exists.")
@map_options(OUTPUTS, AREA, SEASON, INPUTS, OF_TABLES, MACHINE)
@headed(INPUTS, "--add", multiple=True, type=PATH, help="Images of the same place by another sensor; may be repeated.")
@headed(MACHINE, "--scheduler", metavar="ADDRESS", help="Compute on the workers of this Dask cluster.")
@backend()
@device
@remote
@logging_options
def predict(raster: tuple[str, ...], **options: Any) -> None:
    """Classify a raster series, or a table of series.

    The map is a GeoTIFF with one byte per pixel, with a picture beside it.

    RASTER is a GeoTIFF whose band descriptions have date and band name, a folder of dated GeoTIFFs or of Sentinel-2
    L2A products, a store, or several of them. The map does not depend on the window size: windows overlap by the
    model's receptive field. Pixels without a clear observation are nodata. Run the same command again to continue
    after an interruption.

    For a table of series (CSV or Parquet), or a store of series, the output is a table: class, confidence, set of
    likely classes and calibrated probabilities of every series.
    """
    import cropstar

    cropstar.predict(raster, **options, progress=None)
