"""`cropstar check`."""

from __future__ import annotations

import json
from typing import Any

import click

from cropstar.cli.options import PATH, Decimal, HeadedCommand, device, examples, headed, logging_options, remote
from cropstar.runtime import RUNS

EXAMPLES = examples("""
cropstar check data/stores/demo                       suspect labels, a page and a GeoPackage
cropstar check data/runs/star-2x64-001                by the folds of a run ('cropstar train --folds 5')
cropstar check RUN --parcels lpis.gpkg --declared crop_2023 --false-alarms 0.01
cropstar check RUN --store data/stores/next-year -o next-year.gpkg
cropstar train --model star --clean                   train without the suspects
""")
TRAINING = "Training, if the store has no run with folds yet"


@click.command(cls=HeadedCommand, epilog=EXAMPLES)
@click.argument("subject", type=PATH, metavar="STORE|RUN")
@click.option("--store", type=PATH, help="Check the fields of another store with the model of a run.")
@click.option("--parcels", type=PATH, help="A vector file or .csv with the declared crops.")
@click.option("--declared", metavar="COLUMN", help="Its column of declared crops.  [default: the labels of the store]")
@click.option("--classes", type=PATH, help="A class table for declared crops, as for 'cropstar ingest --classes'.")
@click.option(
    "--false-alarms",
    type=Decimal(0, 1, min_open=True, max_open=True),
    default=0.05,
    show_default=True,
    help="Largest share of correct declarations that may be red.",
)
@click.option(
    "--survey", type=click.IntRange(0, 10_000), default=20, show_default=True, help="Fields to propose for a survey."
)
@click.option("-o", "--output", type=PATH, help="A .gpkg, .csv or .parquet file.  [default: in the run]")
@click.option("--overwrite", is_flag=True, help="Replace files that exist.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@headed(TRAINING, "--folds", type=click.IntRange(2, 20), default=5, show_default=True, help="Number of folds.")
@headed(TRAINING, "--model", default="star", show_default=True, help="A series model; rf is fast.")
@headed(TRAINING, "--recipe", type=click.Choice(["auto", "quick", "paper"]), help="Settings.  [default: auto]")
@headed(TRAINING, "--seed", type=int, help="Seed of folds, order and weights.  [default: 0]")
@headed(TRAINING, "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Set any key of the configuration.")
@headed(TRAINING, "--runs", type=PATH, default=RUNS, show_default=True, help="Where runs are.")
@headed(TRAINING, "--fresh", is_flag=True, help="Train again even if a run has judged every field.")
@device
@remote
@logging_options
def check(as_json: bool, **options: Any) -> None:
    """Check labels and declared crops: which are improbable, and what to survey next.

    Every field is judged by a model that never saw it. Suspect labels are ranked; declared crops are green, yellow or
    red, with a bound on the rate of false alarms for fields like those of the training. Fields that would teach the
    model most are proposed for a survey. The output is a GeoPackage with a QGIS style, or a table, and an HTML page
    with the curve of each field beside that of its class.
    """
    import cropstar

    checked = cropstar.check(**options, progress=None)
    if as_json:
        click.echo(json.dumps({**checked.facts, "fields": checked.fields}, indent=1, ensure_ascii=False))
