"""`cropstar predict`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from cropstar.cli.map_options import INPUTS, MACHINE, OUTPUTS, SEASON, map_options, request_options, stable_confidence
from cropstar.cli.options import PATH, HeadedCommand, backend, device, examples, headed, speech
from cropstar.cli.remote_options import remote, require_free_remote
from cropstar.errors import ArtifactError, UsageError
from cropstar.runtime import RUNS, event

EXAMPLES = examples("""
cropstar predict data/demo/tile.tif                   with the newest model, to data/demo/tile-crops.tif
cropstar predict tile.tif -o map.tif --model data/runs/convstar-4x32-001
cropstar predict SAFE_FOLDER -o map.tif               Sentinel-2 L2A products of one tile
cropstar predict data/stores/demo --confidence        every scene of an ingested store
cropstar predict tile.tif --state season.h5           to go on with 'cropstar update season.h5 NEW'
cropstar predict 'tiles/*.tif' -o maps --shard auto/8 one of eight jobs of an array
cropstar predict 'tiles/*.tif' -o maps --scheduler tcp://10.0.0.1:8786    on a Dask cluster
""")


@click.command(cls=HeadedCommand, epilog=EXAMPLES)
@click.argument("raster", nargs=-1, required=True)
@click.option("-o", "--output", type=PATH, help="The map's name, or a folder.  [default: <RASTER>-crops.tif beside it]")
@click.option("--model", type=PATH, help="A model file or a run's folder.  [default: the newest in data/runs]")
@click.option("--overwrite", is_flag=True, help="Replace a map that exists.")
@map_options(OUTPUTS, SEASON, INPUTS, MACHINE)
@headed(MACHINE, "--scheduler", metavar="ADDRESS", help="Have the workers of a Dask cluster compute.")
@backend()
@device
@speech
@remote("raster", output="output", beside=True, written=("state",))
def predict(raster: tuple[str, ...], output: Path | None, model: Path | None, **chosen: Any) -> None:
    """Classify a raster series: a GeoTIFF with one byte a pixel, and a picture of it.

    RASTER is a GeoTIFF whose bands say their date and name, a folder of dated GeoTIFFs or of Sentinel-2
    L2A products, an ingested store, or several of them. The map is the same whatever the window: each is
    computed with the margin that the model looks at. Pixels never seen clearly are nodata. Killed and
    started again, it goes on from the blocks that are finished.
    """
    from cropstar.cluster import require_distributed
    from cropstar.prediction.request import MapRequest, Shard, find_inputs, find_outputs

    shard = Shard.parse(chosen["shard"], os.environ) if chosen["shard"] else None
    if chosen["scheduler"] is not None:
        if shard is not None:
            why = "the cluster's scheduler deals the blocks out"
            raise UsageError("--shard with --scheduler", why=why, remedy="leave one of them out")
        require_distributed()
    asked = {**request_options(chosen), "stable_confidence": stable_confidence(chosen)}
    # Only now what takes long to import.
    from cropstar.prediction.job import predict_all
    from cropstar.training.runs import MODEL, Run, newest_model

    trained = model / MODEL if model is not None and model.is_dir() else model or newest_model(RUNS)
    if trained is None:
        raise ArtifactError("no model yet", path=RUNS, remedy="train one with 'cropstar train', or give --model")
    inputs = find_inputs(raster)
    if chosen["state"] is not None and len(inputs) > 1:
        raise UsageError("one state for several inputs", path=chosen["state"], remedy="map them one by one")
    names = ("state", "halo", "half", "scheduler")
    request = MapRequest(model=trained, shard=shard, **asked, **{name: chosen[name] for name in names})
    outputs = find_outputs(inputs, output)
    require_free_remote(outputs)
    predict_all(inputs, outputs, request)
    run = Run(trained.parent)
    if run.finished:  # the model lies in its run: say how far it can be trusted
        event(f"report  {run.report}", report=str(run.report))
        event(run.headline())
