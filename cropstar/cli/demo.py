"""`cropstar demo`."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click

from cropstar.cli.options import examples
from cropstar.errors import InputError, UsageError

EXAMPLES = examples("""
cropstar demo                                         in the folder cropstar-demo, some minutes
cropstar demo --quick                                 with a random forest, within a minute
cropstar demo elsewhere                               in another folder
""")
NEXT = """
Done. In {folder}:
  data/demo/tile-crops.tif                  the map: open it in QGIS, with names and colours
  data/demo/tile-crops.png                  a picture of it
  {report:<41} accuracy by crop, confusions, calibration

Next, on your own images and parcels:
  cropstar ingest FOLDER --parcels parcels.gpkg
  cropstar train --model star
  cropstar predict FOLDER -o map.tif --parcels parcels.gpkg --html
'cropstar ingest --help' lists what can be read; 'cropstar config' explains the settings."""


@click.command(epilog=EXAMPLES)
@click.argument("folder", type=click.Path(path_type=Path), default=Path("cropstar-demo"))
@click.option("--quick", is_flag=True, help="Train a random forest instead of ConvSTAR, in seconds.")
def demo(folder: Path, quick: bool) -> None:
    """Try it: make a scene, train on it and map it, by the three commands that you would use.

    Everything is written to FOLDER, cropstar-demo if it is left out. If it was stopped, run it again: it continues.
    """
    training = ["--model", "rf"] if quick else ["--model", "convstar", "--layers", "4"]
    if folder.exists() and not folder.is_dir():
        raise UsageError("not a folder", path=folder, remedy="name another one")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.chdir(folder)
    except OSError as failure:
        raise InputError("cannot work there", path=folder, why=failure.strerror, remedy="name another one") from None
    _run("ingest")
    _run("train", *training)
    for old in Path("data/demo").glob("tile-crops.*"):
        old.unlink()
    _run("predict", "data/demo/tile.tif")
    newest = max(Path("data/runs").glob("*/report.html"), key=lambda report: report.stat().st_mtime)
    click.echo(NEXT.format(folder=folder, report=str(newest)), err=True)


def _run(*arguments: str) -> None:
    """One command of cropstar, shown as it would be typed."""
    from cropstar.cli.main import cropstar

    click.echo(f"\n$ cropstar {shlex.join(arguments)}", err=True)
    context = click.get_current_context().find_root()
    with cropstar.make_context("cropstar", list(arguments), obj=context.obj) as inner:
        cropstar.invoke(inner)
