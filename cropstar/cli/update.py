"""`cropstar update`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from cropstar.cli.map_options import INPUTS, MACHINE, OUTPUTS, map_options, request_options
from cropstar.cli.options import PATH, HeadedCommand, backend, device, examples, speech
from cropstar.cli.remote_options import remote
from cropstar.runtime import event

EXAMPLES = examples("""
cropstar predict season/ -o map.tif --state season.h5       the season until now
cropstar update season.h5 new-acquisition.tif               one more image: map.tif and season.h5 anew
cropstar update season.h5 S2B_MSIL2A_2023...SAFE -o july.tif --confidence
""")


@click.command(cls=HeadedCommand, epilog=EXAMPLES)
@click.argument("state", type=PATH)
@click.argument("new", nargs=-1, required=True)
@click.option("-o", "--output", type=PATH, help="The map's name.  [default: the map made with the state, anew]")
@click.option("--model", type=PATH, help="Where the state's model is now, if it was moved.")
@click.option("--overwrite", is_flag=True, help="Replace files that exist and are not of this season.")
@map_options(OUTPUTS, INPUTS, MACHINE, without=("--half", "--halo", "--shard"))
@backend()
@device
@speech
@remote("new", written=("state", "output"))
def update(state: Path, new: tuple[str, ...], output: Path | None, model: Path | None, **chosen: Any) -> None:
    """Take new images into the map of a season, for the price of these images alone.

    STATE is what `cropstar predict --state` wrote; NEW are images of later dates on the same grid: GeoTIFFs whose
    bands say their date and name, folders of dated GeoTIFFs, Sentinel-2 L2A products. The map is the one that a full
    run over all dates would give. State and map are replaced when both are complete; if anything fails before, the
    state stays as it was. An image that is not later than the last one, or of another grid, is refused (exit code 5).
    """
    from cropstar.prediction.request import UpdateRequest, find_inputs
    from cropstar.prediction.season import update as take_in
    from cropstar.training.runs import MODEL

    trained = model / MODEL if model is not None and model.is_dir() else model
    request = UpdateRequest(model=trained, output=output, **request_options(chosen))
    result = take_in(state, find_inputs(new), request)
    event(f"map     {result.raster}", map=str(result.raster))
    event(f"picture {result.picture}", picture=str(result.picture))
    event(f"state   {state}", state=str(state))
