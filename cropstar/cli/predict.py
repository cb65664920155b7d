"""`cropstar predict`."""

from __future__ import annotations

from pathlib import Path

import click

from cropstar.cli.options import PATH, device, examples, speech
from cropstar.errors import ArtifactError
from cropstar.logs import event
from cropstar.places import RUNS

EXAMPLES = examples("""
cropstar predict data/demo/tile.tif                   with the newest model, to data/demo/tile-crops.tif
cropstar predict tile.tif -o map.tif --model data/runs/convstar-4x32-001
cropstar predict SAFE_FOLDER -o map.tif               Sentinel-2 L2A products of one tile
""")


@click.command(epilog=EXAMPLES)
@click.argument("raster", type=PATH)
@click.option("-o", "--output", type=PATH, help="The map's name.  [default: <RASTER>-crops.tif beside it]")
@click.option("--model", type=PATH, help="A model file or a run's folder.  [default: the newest in data/runs]")
@click.option(
    "--window", default=256, show_default=True, type=click.IntRange(16, 8192), help="Pixels a side of a window."
)
@click.option("--any-dates", is_flag=True, help="Take dates outside the season that the model was trained on.")
@click.option("--overwrite", is_flag=True, help="Replace a map that exists.")
@device
@speech
def predict(
    raster: Path,
    output: Path | None,
    model: Path | None,
    window: int,
    any_dates: bool,
    overwrite: bool,
    device: str,
) -> None:
    """Classify a raster series: a GeoTIFF with one byte a pixel, and a picture of it.

    RASTER is a GeoTIFF whose bands say their date and name, or a folder of dated GeoTIFFs or of
    Sentinel-2 L2A products. The map is the same whatever the window: each is computed with the margin
    that the model looks at. Pixels never seen clearly are nodata.
    """
    from cropstar.devices import choose_device
    from cropstar.prediction.predict import PredictOptions
    from cropstar.prediction.predict import predict as run_prediction
    from cropstar.training.runs import MODEL, Run, newest_model

    chosen = model / MODEL if model is not None and model.is_dir() else model or newest_model(RUNS)
    if chosen is None:
        raise ArtifactError("no model yet", path=RUNS, remedy="train one with 'cropstar train', or give --model")
    options = PredictOptions(chosen, choose_device(device), window, any_dates, overwrite)
    result = run_prediction(raster, output or _beside(raster), options)
    event(f"map     {result.raster}", map=str(result.raster))
    event(f"picture {result.picture}", picture=str(result.picture))
    run = Run(chosen.parent)
    if run.finished:  # the model lies in its run: say how far it can be trusted
        event(f"report  {run.report}", report=str(run.report))
        event(run.headline())


def _beside(raster: Path) -> Path:
    named = raster if raster.name else raster.resolve()  # "." has no name of its own
    return named.with_name(f"{named.stem}-crops.tif")
