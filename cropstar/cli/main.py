"""The `cropstar` command: dispatch, one line for every error, exit codes."""

from __future__ import annotations

import json
import sys
import traceback
from typing import Any, NoReturn

import click

from cropstar import __version__
from cropstar.cli.bench import bench
from cropstar.cli.compare import compare
from cropstar.cli.doctor import doctor
from cropstar.cli.evaluate import evaluate
from cropstar.cli.export import export
from cropstar.cli.gradients import gradients
from cropstar.cli.ingest import ingest
from cropstar.cli.inspect import inspect
from cropstar.cli.models import models
from cropstar.cli.predict import predict
from cropstar.cli.train import train
from cropstar.cli.tune import tune
from cropstar.cli.update import update
from cropstar.errors import CropstarError, Interrupted, ResourceError, UsageError, from_os_error
from cropstar.runtime import raise_on_termination

EPILOG = """\b
Start here:
  cropstar ingest                               make the demonstration scene and store it
  cropstar train --model convstar --layers 4    train on the newest store
  cropstar predict data/demo/tile.tif           map it with the newest model
  cropstar update season.h5 NEW                 one more image into a map made with --state
  cropstar inspect data/stores/demo             what is in a store, a tile or a model
  cropstar models                               what can be trained, and what it costs
  cropstar evaluate data/runs/NAME              judge a model again, or on another store
  cropstar tune --config NAME                   search for better options on validation
  cropstar compare                              finished runs side by side
  cropstar export data/runs/NAME                its model as ONNX
  cropstar gradients -o lattice                 how gradients fare in deep stacks of each cell
  cropstar bench --list                         the paper's sequence tasks
  cropstar doctor                               what this machine offers, and what is missing

Exit codes: 0 done, 2 usage, 3 input, 4 damaged or locked file, 5 mismatch, 6 disk or memory,
7 partial result, 130/143 stopped by a signal after saving.
"""

OUT_OF_MEMORY = ("can't allocate memory", "CUDA out of memory", "MPS backend out of memory")  # torch's words


@click.group(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="cropstar")
@click.pass_context
def cropstar(context: click.Context) -> None:
    """Crop maps from Sentinel-2 time series, with the STAR recurrent cell."""
    context.ensure_object(dict)


COMMANDS = (ingest, inspect, models, train, tune, evaluate, compare, predict, update, export, gradients, bench, doctor)
for command in COMMANDS:
    cropstar.add_command(command)


def main() -> NoReturn:
    """The entry point: no traceback reaches the user unless --debug asks for it."""
    raise_on_termination()
    said: dict[str, Any] = {}
    try:
        cropstar.main(prog_name="cropstar", standalone_mode=False, obj=said)
        code = 0
    except click.exceptions.Exit as leaving:
        code = leaving.exit_code
    except (click.ClickException, click.Abort, KeyboardInterrupt, Exception) as failure:
        error = _translate(failure)
        if said.get("debug"):
            traceback.print_exc()
        _say(error, as_json=bool(said.get("log_json")))
        code = error.exit_code
    sys.exit(code)


def _translate(failure: BaseException) -> CropstarError:
    """Any failure as one of ours, with its exit code."""
    if isinstance(failure, CropstarError):
        return failure
    if isinstance(failure, click.ClickException):
        command = failure.ctx.command_path if isinstance(failure, click.UsageError) and failure.ctx else "cropstar"
        return UsageError(failure.format_message().rstrip("."), remedy=f"see '{command} --help'")
    if isinstance(failure, (click.Abort, KeyboardInterrupt)):
        return Interrupted(2, "what was finished is kept")
    if isinstance(failure, MemoryError) or any(text in str(failure) for text in OUT_OF_MEMORY):
        return ResourceError(
            "out of memory", why=str(failure).partition("\n")[0] or None, remedy="use smaller windows or batches"
        )
    if isinstance(failure, OSError):
        return from_os_error(failure)
    return CropstarError(
        "internal error",
        why=f"{type(failure).__name__}: {failure}",
        remedy="run again with --debug and report the traceback",
    )


def _say(error: CropstarError, *, as_json: bool) -> None:
    if as_json:
        line = json.dumps({"level": "error", "message": str(error), "exit_code": error.exit_code})
        click.echo(line, err=True)
    else:
        click.echo(f"error: {error}", err=True)
