"""`cropstar update`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from cropstar.cli.options import (
    AREA,
    INPUTS,
    MACHINE,
    OUTPUTS,
    PATH,
    SEASON,
    HeadedCommand,
    backend,
    device,
    examples,
    logging_options,
    map_options,
    remote,
)

EXAMPLES = examples("""
cropstar predict season/ -o map.tif --state season.h5       the season until now
cropstar update season.h5 new-acquisition.tif               one more image: replaces map.tif and season.h5
cropstar update season.h5 S2B_MSIL2A_2023...SAFE -o july.tif --confidence
""")


@click.command(cls=HeadedCommand, epilog=EXAMPLES)
@click.argument("state", type=PATH)
@click.argument("new", nargs=-1, required=True)
@click.option("-o", "--output", type=PATH, help="The map.  [default: replace the map made with the state]")
@click.option("--model", type=PATH, help="The model of the state, if it was moved.")
@click.option("--overwrite", is_flag=True, help="Replace existing files that do not belong to this season.")
@map_options(
    *(OUTPUTS, AREA, SEASON, INPUTS, MACHINE),
    without=("--state", "--every-date", "--stable-confidence", "--half", "--halo", "--precision", "--shard"),
)
@backend()
@device
@remote
@logging_options
def update(state: Path, new: tuple[str, ...], **options: Any) -> None:
    """Update the map of a season with new images, without reading the old ones.

    STATE is what `cropstar predict --state` wrote; NEW are images of later dates on the same grid: GeoTIFFs whose band
    descriptions have date and band name, folders of dated GeoTIFFs, Sentinel-2 L2A products. The map is the
    same as a prediction over all dates. State and map are replaced when both are complete; if anything fails before,
    the state stays as it was. An image that is not later than the last one, or on another grid, is refused (exit
    code 5).
    """
    import cropstar

    cropstar.update(state, new, **options, progress=None)
