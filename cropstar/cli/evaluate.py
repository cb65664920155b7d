"""`cropstar evaluate`."""

from __future__ import annotations

import json
from typing import Any

import click

from cropstar.cli.options import PATH, backend, device, examples, logging_options, remote

EXAMPLES = examples("""
cropstar evaluate data/runs/convstar-4x32-001         on the test parcels of its training
cropstar evaluate data/runs/convstar-4x32-001 --part validation
cropstar evaluate data/runs/convstar-4x32-001 --store data/stores/next-year
cropstar evaluate model.safetensors --store data/stores/demo -o figures.json
cropstar evaluate data/runs/convstar-4x32-001 --areas map.tif --design random -o areas.html
""")


@click.command(epilog=EXAMPLES)
@click.argument("model", type=PATH, metavar="MODEL|RUN")
@click.option("--store", type=PATH, help="The store to evaluate on.  [default: that of its run]")
@click.option(
    "--part",
    type=click.Choice(["test", "validation", "train", "all"]),
    help="Which parcels to use.  [default: test; all, if the model was not trained on this store]",
)
@click.option("--split", metavar="NAME", help="One of the data set's own splits.  [default: as in training]")
@click.option("--split-by", help="Split by parcel, block, scene, group or pixel.  [default: as in training]")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@click.option("--areas", type=PATH, help="A map (.tif), or its hectares by class (.csv), whose areas to adjust.")
@click.option(
    "--design",
    type=click.Choice(["random", "stratified"]),
    help="How the parcels were sampled: at random over the map, or stratified by mapped class.",
)
@click.option("-o", "--output", type=PATH, help="Also write a .json file or an .html report.")
@click.option("--overwrite", is_flag=True, help="Replace a file that exists.")
@backend()
@device
@remote
@logging_options
def evaluate(as_json: bool, **options: Any) -> None:
    """Evaluate a model on the test parcels of its training, or on another store.

    Another store must have the bands, the scale, the resolution and the classes of the model; classes are matched by
    name. A warning is given if some of the parcels were used in training.

    With --areas, the mapped area of each class is adjusted for classification errors (Olofsson et al. 2014).
    Confidence intervals need a probability sample of parcels: give its --design, or they are left out.
    """
    import cropstar

    result = cropstar.evaluate(**options, progress=None)
    click.echo(json.dumps(result.facts, indent=1, ensure_ascii=False) if as_json else str(result))
