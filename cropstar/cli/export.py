"""`cropstar export`."""

from __future__ import annotations

from pathlib import Path

import click

from cropstar.cli.options import PATH, examples, logging_options

EXAMPLES = examples("""
cropstar export data/runs/convstar-4x32-001           to model.onnx and model-step.onnx in it
cropstar export model.safetensors -o crops.onnx --dates 30
""")


@click.command(epilog=EXAMPLES)
@click.argument("path", type=PATH, metavar="MODEL|RUN")
@click.option("-o", "--output", type=PATH, help="Output file.  [default: model.onnx beside the model]")
@click.option(
    "--dates",
    type=click.IntRange(1, 1000),
    help="Dates of a season; shorter seasons are padded.  [default: as in training]",
)
@click.option("--overwrite", is_flag=True, help="Replace files that exist.")
@logging_options
def export(path: Path, output: Path | None, dates: int | None, overwrite: bool) -> None:
    """Write a recurrent model as ONNX, for programs without PyTorch.

    The file takes a whole season; a model that steps through the dates also gets a second file, NAME-step.onnx,
    that takes one date and the state before it. Bands, classes and normalisation are in the metadata of both. Both
    are checked against the model with onnxruntime before they are written. Needs pip install 'cropstar[onnx]'.
    """
    from cropstar.api.model import export_model
    from cropstar.training.runs import MODEL

    model = path / MODEL if path.is_dir() else path
    export_model(model, output or model.with_suffix(".onnx"), dates=dates, overwrite=overwrite)
