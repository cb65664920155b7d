"""`cropstar predict`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from cropstar.cli.options import PATH, HeadedCommand, device, examples, headed, speech, split_names, split_numbers
from cropstar.errors import ArtifactError
from cropstar.logs import event
from cropstar.places import RUNS

EXAMPLES = examples("""
cropstar predict data/demo/tile.tif                   with the newest model, to data/demo/tile-crops.tif
cropstar predict tile.tif -o map.tif --model data/runs/convstar-4x32-001
cropstar predict SAFE_FOLDER -o map.tif               Sentinel-2 L2A products of one tile
cropstar predict data/stores/demo --confidence        every scene of an ingested store
cropstar predict 'tiles/*.tif' -o maps --shard auto/8 one of eight jobs of an array
""")
OUTPUTS, INPUTS, MACHINE = "Files beside the map", "How the input is read", "Machine"
OPTIONS = (
    headed(OUTPUTS, "--confidence", is_flag=True, help="The calibrated probability of the class, in percent."),
    headed(OUTPUTS, "--probabilities", is_flag=True, help="The calibrated probability of every class."),
    headed(OUTPUTS, "--uncertainty", type=click.Choice(["entropy", "margin"]), help="How unsure the class is."),
    headed(OUTPUTS, "--valid-dates", is_flag=True, help="On how many dates each pixel was seen clearly."),
    headed(OUTPUTS, "--parcels", type=PATH, help="Outlines; the class of each goes to <map>-parcels.gpkg."),
    headed(OUTPUTS, "--html", is_flag=True, help="A page of one file, with legend and hectares."),
    headed(OUTPUTS, "--smooth", type=click.Choice(["majority", "bayesian"]), help="Take specks out of the map."),
    headed(OUTPUTS, "--smooth-window", type=int, metavar="PIXELS", help="How far that looks.  [default: 5]"),
    headed(INPUTS, "--bands", callback=split_names, help="B04,B08: which to read, or names in order where none are."),
    headed(INPUTS, "--clear", callback=split_numbers, help="Scene classes that are clear.  [default: the model's]"),
    headed(INPUTS, "--pattern", help="Names of dated files, e.g. 'S2_{band}_{date}.tif'.  [default: guessed]"),
    headed(INPUTS, "--masks", metavar="PATTERN", help="Names of cloud masks beside dated files; 0 is clear."),
    headed(INPUTS, "--any-dates", is_flag=True, help="Take dates outside the season that the model was trained on."),
    headed(MACHINE, "--memory", default="2GB", show_default=True, help="Windows are chosen to stay below."),
    headed(MACHINE, "--window", type=click.IntRange(16, 8192), help="Pixels a side.  [default: by --memory]"),
    headed(MACHINE, "--halo", type=click.IntRange(0, 8192), help="A smaller margin: faster, not exact."),
    headed(MACHINE, "--shard", metavar="I/N", help="One of N parts, from 0; auto/N asks the array job."),
)


def _options(command: Any) -> Any:
    for option in reversed(OPTIONS):
        command = option(command)
    return command


@click.command(cls=HeadedCommand, epilog=EXAMPLES)
@click.argument("raster", nargs=-1, required=True)
@click.option("-o", "--output", type=PATH, help="The map's name, or a folder.  [default: <RASTER>-crops.tif beside it]")
@click.option("--model", type=PATH, help="A model file or a run's folder.  [default: the newest in data/runs]")
@click.option("--overwrite", is_flag=True, help="Replace a map that exists.")
@_options
@device
@speech
def predict(raster: tuple[str, ...], output: Path | None, model: Path | None, device: str, **chosen: Any) -> None:
    """Classify a raster series: a GeoTIFF with one byte a pixel, and a picture of it.

    RASTER is a GeoTIFF whose bands say their date and name, a folder of dated GeoTIFFs or of Sentinel-2
    L2A products, an ingested store, or several of them. The map is the same whatever the window: each is
    computed with the margin that the model looks at. Pixels never seen clearly are nodata. Killed and
    started again, it goes on from the blocks that are finished.
    """
    from cropstar.prediction.shards import Shard

    shard = Shard.parse(chosen["shard"], os.environ) if chosen["shard"] else None
    # Only now what takes long to import.
    from cropstar.devices import choose_device
    from cropstar.prediction.batch import predict_all
    from cropstar.prediction.inputs import find_inputs, find_outputs
    from cropstar.prediction.planning import parse_memory
    from cropstar.prediction.predict import PredictOptions
    from cropstar.training.runs import MODEL, Run, newest_model

    memory, wanted = parse_memory(chosen["memory"]), _wanted(chosen)
    trained = model / MODEL if model is not None and model.is_dir() else model or newest_model(RUNS)
    if trained is None:
        raise ArtifactError("no model yet", path=RUNS, remedy="train one with 'cropstar train', or give --model")
    inputs = find_inputs(raster)
    options = PredictOptions(
        trained,
        choose_device(device),
        window=chosen["window"],
        any_dates=chosen["any_dates"],
        overwrite=chosen["overwrite"],
        memory=memory,
        halo=chosen["halo"],
        shard=shard,
        wanted=wanted,
        given={name: chosen[name] for name in ("bands", "clear", "pattern", "masks") if chosen[name] is not None},
    )
    predict_all(inputs, find_outputs(inputs, output), options)
    run = Run(trained.parent)
    if run.finished:  # the model lies in its run: say how far it can be trusted
        event(f"report  {run.report}", report=str(run.report))
        event(run.headline())


def _wanted(chosen: dict[str, Any]) -> Any:
    from cropstar.prediction.smoothing import Smoothing
    from cropstar.prediction.wanted import Wanted

    flags = {"confidence": "confidence", "probabilities": "probabilities", "valid-dates": "valid_dates"}
    layers = [layer for layer, option in flags.items() if chosen[option]]
    layers += [chosen["uncertainty"]] if chosen["uncertainty"] else []
    size = {"window": chosen["smooth_window"]} if chosen["smooth_window"] else {}
    smoothing = Smoothing(chosen["smooth"], **size) if chosen["smooth"] else None
    return Wanted(tuple(layers), smoothing, chosen["parcels"], chosen["html"])
