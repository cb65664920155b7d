"""The options of `cropstar ingest` that belong to some sources only, under a heading each."""

from __future__ import annotations

import click

from cropstar.cli.options import PATH, Command, headed
from cropstar.cli.values import DAY, Decimal, only_day, split_decimals, split_names, split_numbers

LABELS = "Parcels on images (stack, sentinel2, stac)"
IMAGES = "Images"
STAC = "STAC catalogues"
TABLES = "Tables"
PUBLISHED = "Published data sets (breizhcrops, tum, zuericrop)"

OPTIONS = (
    headed(
        LABELS, "--parcels", type=PATH, help="Labelled parcels, a vector file.  [default of stack: the one beside PATH]"
    ),
    headed(
        LABELS, "--label-column", help="Also of tables: the column of the crop.  [default: crop, label, class, ...]"
    ),
    headed(LABELS, "--classes", type=PATH, help="A YAML file that merges, renames and drops labels."),
    headed(
        LABELS,
        "--erode",
        type=Decimal(0),
        metavar="METRES",
        help="Leave out the edge of parcels.  [default: 0]",
    ),
    headed(
        LABELS,
        "--tile-size",
        type=click.IntRange(16, 4096),
        metavar="PIXELS",
        help="Pixels a side of a tile.  [default: 240]",
    ),
    headed(
        IMAGES,
        "--bands",
        callback=split_names,
        help="B04,B08; B04=red,B08=nir where the file calls them so.  [default: all, or Sentinel-2's]",
    ),
    headed(IMAGES, "--clear", callback=split_numbers, help="Scene classes that are clear.  [default: 2,4,5,6,7]"),
    headed(IMAGES, "--resampling", help="bilinear, cubic or nearest for coarser bands.  [default: bilinear]"),
    headed(IMAGES, "--pattern", help="Names of dated files, e.g. 'S2_{tile}_{band}_{date}.tif'.  [default: guessed]"),
    headed(IMAGES, "--masks", metavar="PATTERN", help="Names of cloud masks beside dated files; 0 is clear."),
    headed(STAC, "--collection", help="The collection.  [default: sentinel-2-l2a]"),
    headed(STAC, "--bbox", callback=split_decimals, metavar="W,S,E,N", help="Degrees.  [default: around the parcels]"),
    headed(STAC, "--from", "start", type=DAY, callback=only_day, metavar="DATE", help="First day, e.g. 2018-03-01."),
    headed(STAC, "--to", "end", type=DAY, callback=only_day, metavar="DATE", help="Last day."),
    headed(STAC, "--max-cloud", type=float, metavar="PERCENT", help="Leave cloudier items out.  [default: 100]"),
    headed(STAC, "--crs", help="Coordinate system of the mosaic.  [default: that of most items]"),
    headed(STAC, "--resolution", type=float, metavar="METRES", help="Pixels a side.  [default: 10]"),
    headed(TABLES, "--id-column", help="The column that names the series.  [default: guessed]"),
    headed(TABLES, "--date-column", help="The column of the date.  [default: guessed]"),
    headed(TABLES, "--group-column", help="Year or region, 'none' for none.  [default: guessed]"),
    headed(
        TABLES, "--field-column", help="Series with one value here are of one field: every split keeps them together."
    ),
    headed(TABLES, "--mask-column", help="The column that tells clouds."),
    headed(TABLES, "--scale", type=float, help="Reflectance = value x scale + offset.  [default: guessed]"),
    headed(TABLES, "--offset", type=float, help="See --scale.  [default: 0]"),
    headed(TABLES, "--nodata", type=float, multiple=True, help="Values that mean nothing was seen."),
    headed(TABLES, "--keep-unlabelled", is_flag=True, default=None, help="Keep fields without a crop."),
    headed(PUBLISHED, "--year", type=int, help="breizhcrops: 2017 or 2018; tum, zuericrop: of the dates."),
    headed(PUBLISHED, "--level", help="breizhcrops: L1C or L2A; zuericrop: classes of level 1, 2 or 3."),
    headed(PUBLISHED, "--regions", callback=split_names, help="breizhcrops: frh01,frh02,...  [default: all]"),
    headed(PUBLISHED, "--download", is_flag=True, default=None, help="breizhcrops: fetch missing regions."),
    headed(PUBLISHED, "--mask", help="breizhcrops: none, or clouds by QA60 or CLD.  [default: none]"),
    headed(PUBLISHED, "--data", metavar="FOLDER", help="tum: which of several data folders."),
    headed(PUBLISHED, "--labels", type=PATH, help="zuericrop: the label table.  [default: labels.csv beside the file]"),
    headed(
        IMAGES,
        "--dates",
        type=PATH,
        help="2023-04-01,... or a file with one a line: of a stack that does not say them; zuericrop.",
    ),
    headed(
        IMAGES,
        "--by-band",
        is_flag=True,
        default=None,
        help="With --dates: the stack has band after band, not date after date.",
    ),
    headed(
        PUBLISHED,
        "--cloud-limit",
        type=float,
        help="zuericrop: the share of cloud that is still clear.  [default: 0.1]",
    ),
)


def source_options(command: Command) -> Command:
    for option in reversed(OPTIONS):
        command = option(command)
    return command
