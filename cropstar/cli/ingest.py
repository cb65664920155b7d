"""`cropstar ingest`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from cropstar.cli.options import PATH, examples, speech, split_names, split_numbers
from cropstar.errors import UsageError
from cropstar.places import STORES

EXAMPLES = examples("""
cropstar ingest                                       the demonstration scene, into data/stores/demo
cropstar ingest tile.tif --parcels parcels.gpkg       a stacked GeoTIFF and its labelled parcels
cropstar ingest stack tile.tif --parcels p.shp --label-column CODE_CULTU -o data/stores/brittany
cropstar ingest SAFE_FOLDER --parcels p.shp           Sentinel-2 L2A products, folders or .zip
cropstar ingest tile.tif --classes classes.yaml --erode 10    other classes; edges of 10 m left out
cropstar ingest breizhcrops_dataset --level L1C       BreizhCrops, one scene a region
cropstar ingest fields.parquet                        a table of series, one row an observation
cropstar ingest table obs.csv --id-column field --bands B04=red,B08=nir --scale 1e-4
""")


@click.command(epilog=EXAMPLES)
@click.argument("what", nargs=-1, metavar="[SOURCE] [PATH]")
@click.option("-o", "--output", type=PATH, help="The store's folder.  [default: data/stores/<name of PATH>]")
@click.option("--parcels", type=PATH, help="Labelled parcels, a vector file.  [default: the one beside PATH]")
@click.option("--label-column", help="The column that names the crop.  [default: crop, label, class, ...]")
@click.option("--classes", type=PATH, help="A YAML file that merges, renames and drops labels of the parcels.")
@click.option(
    "--erode", type=click.FloatRange(0), metavar="METRES", help="Leave out the edge of parcels.  [default: 0]"
)
@click.option(
    "--tile-size", default=240, show_default=True, type=click.IntRange(16, 4096), help="Pixels a side of a tile."
)
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0), help="Seed of the demonstration scene.")
@click.option("--overwrite", is_flag=True, help="Replace a store of other data.")
@click.option("--resampling", help="Sentinel-2: bilinear, cubic or nearest for 20 m bands.  [default: bilinear]")
@click.option("--clear", callback=split_numbers, help="Sentinel-2: scene classes to keep.  [default: 2,4,5,6,7]")
@click.option("--year", type=int, help="BreizhCrops: 2017 or 2018.  [default: all]")
@click.option("--level", help="BreizhCrops: L1C or L2A.")
@click.option("--regions", callback=split_names, help="BreizhCrops: frh01,frh02,...  [default: all]")
@click.option("--mask", help="BreizhCrops: none, or clouds by QA60 or CLD.  [default: none]")
@click.option("--id-column", help="Tables: the column that names the field.  [default: guessed]")
@click.option("--date-column", help="Tables: the column of the date.  [default: guessed]")
@click.option("--group-column", help="Tables: year or region, 'none' for none.  [default: guessed]")
@click.option("--mask-column", help="Tables: the column that tells clouds.")
@click.option("--bands", callback=split_names, help="B04,B08; of tables also B04=red,B08=nir.  [default: Sentinel-2's]")
@click.option("--scale", type=float, help="Tables: reflectance = value x scale + offset.  [default: guessed]")
@click.option("--offset", type=float, help="Tables: see --scale.  [default: 0]")
@click.option("--nodata", type=float, multiple=True, help="Tables: values that mean nothing was seen.")
@click.option("--keep-unlabelled", is_flag=True, default=None, help="Tables: keep fields without a crop.")
@speech
def ingest(
    what: tuple[str, ...],
    output: Path | None,
    parcels: Path | None,
    label_column: str | None,
    tile_size: int,
    seed: int,
    overwrite: bool,
    **special: Any,
) -> None:
    """Turn images and parcels into a store of HDF5 tiles.

    SOURCE says what PATH is and is guessed when left out. Without both, a demonstration scene is
    written to data/demo and ingested. A run that was stopped goes on where it was.
    """
    from cropstar.logs import event
    from cropstar.sources.catalogue import SOURCES, Request, guess_source
    from cropstar.sources.ingest import ingest as run_ingest
    from cropstar.sources.ingest import summarise

    if len(what) > 2:
        raise UsageError("too many arguments", why=" ".join(what), remedy="cropstar ingest [SOURCE] [PATH]")
    named = what[0] if len(what) == 2 or (what and what[0] in SOURCES) else None
    path = Path(what[-1]) if what and what[-1] is not named else None
    source = named or guess_source(path)

    given = {name: value for name, value in special.items() if value not in (None, ())}
    scenes = SOURCES[source](Request(path, parcels, label_column, tile_size, seed, given))
    try:
        name = "demo" if path is None else path.resolve().stem
        result = run_ingest(scenes, output or STORES / name, overwrite=overwrite)
    finally:
        for scene in scenes:
            scene.close()
    summarise(result.folder)
    event(
        f"store {result.folder}: {result.written} tiles written, {result.kept} kept",
        store=str(result.folder),
        written=result.written,
        kept=result.kept,
    )
