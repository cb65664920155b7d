"""The `cropstar` command: dispatch, one-line errors, exit codes."""

from __future__ import annotations

import difflib
import os
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn, TextIO

import click

from cropstar import __version__
from cropstar.errors import CropstarError, Interrupted, UsageError, expected_error
from cropstar.signals import StopSignal, end_work, received, reraise_lost

# The commands in the order of --help and the first sentence of each: a command's module is imported when it is used.
COMMANDS = {
    "demo": "Try it: make a scene, train on it and map it.",
    "ingest": "Turn images and parcels into a store of HDF5 tiles.",
    "inspect": "Show what is in a store, a tile, a model file, a run, the state of a season, a map or images.",
    "models": "List the models with their inputs, cost and receptive field.",
    "train": "Train a model on a store and evaluate it on held-out parcels.",
    "config": "Explain the keys of a configuration: all, those of a section, or one.",
    "tune": "Search for the best settings on the validation parcels.",
    "evaluate": "Evaluate a model on the test parcels of its training, or on another store.",
    "check": "Check labels and declared crops: which are improbable, and what to survey next.",
    "compare": "Compare finished runs, sorted by macro-F1 on the test parcels.",
    "predict": "Classify a raster series, or a table of series.",
    "update": "Update the map of a season with new images, without reading the old ones.",
    "export": "Write a recurrent model as ONNX, for programs without PyTorch.",
    "gradients": "Measure how gradients change through the layers of a deep recurrent network.",
    "bench": "Run one of the paper's sequence tasks with the same models and training.",
    "doctor": "Show what this machine offers: versions, processors, GPUs, memory, formats.",
}

GREETING = f"""cropstar {__version__}: crop maps from satellite time series.
Try it:      cropstar demo
Your images: cropstar ingest FOLDER --parcels parcels.gpkg    ('cropstar --help' lists all commands)"""

# What other programs call our options and commands.
OPTION_HABITS = {
    **dict.fromkeys(("--lr", "--learning_rate"), "--learning-rate"),
    **dict.fromkeys(("--batch-size", "--batch_size", "--bs"), "--batch"),
    **dict.fromkeys(("--num-epochs", "--max-epochs", "--n-epochs"), "--epochs"),
    **dict.fromkeys(("--num-layers", "--n-layers", "--depth"), "--layers"),
    **dict.fromkeys(("--hidden-size", "--hidden-dim", "--width", "--units"), "--hidden"),
    **dict.fromkeys(("--gpu", "--gpus", "--cuda"), "--device cuda"),
    **dict.fromkeys(("--cpu", "--no-cuda"), "--device cpu"),
    **dict.fromkeys(("--out", "--outdir", "--output-dir", "--output-folder", "--dest"), "--output"),
    **dict.fromkeys(("--force", "--clobber", "--replace"), "--overwrite"),
    **dict.fromkeys(("--threads", "--jobs", "--num-workers", "--n-jobs", "--processes"), "--workers"),
    **dict.fromkeys(("--random-state", "--random-seed"), "--seed"),
    **dict.fromkeys(("--input", "--images", "--raster"), "the path itself, without an option"),
    **dict.fromkeys(("--labels-file", "--vector", "--shapefile", "--reference", "--samples"), "--parcels"),
    **dict.fromkeys(("--label", "--class-column", "--crop-column", "--attribute", "--field"), "--label-column"),
    **dict.fromkeys(("--start", "--start-date", "--since"), "--from"),
    **dict.fromkeys(("--end", "--end-date", "--until"), "--to"),
    **dict.fromkeys(("--cv", "--kfold", "--k-fold", "--n-splits"), "--folds"),
    **dict.fromkeys(("--tile", "--block-size", "--chunk-size"), "--window"),
}
COMMAND_HABITS = {
    **dict.fromkeys(("fit", "learn"), "train"),
    **dict.fromkeys(("classify", "map", "infer", "inference", "apply"), "predict"),
    **dict.fromkeys(("test", "validate", "score", "eval"), "evaluate"),
    **dict.fromkeys(("info", "show", "describe", "ls"), "inspect"),
    **dict.fromkeys(("import", "prepare", "read", "add", "load"), "ingest"),
    **dict.fromkeys(("search", "optimise", "optimize", "hpo"), "tune"),
    **dict.fromkeys(("settings", "options", "defaults"), "config"),
    **dict.fromkeys(("version",), "--version"),
    **dict.fromkeys(("help",), "--help"),
    **dict.fromkeys(("example", "quickstart", "tutorial"), "demo"),
}

EPILOG = """\b
Start here:
  cropstar demo                                 the three commands below, in a folder of their own
  cropstar ingest                               make the demonstration scene and store it
  cropstar train --model convstar --layers 4    train on the newest store
  cropstar predict data/demo/tile.tif           map it with the newest model
  cropstar update season.h5 NEW                 add an image to a map made with --state
  cropstar COMMAND --help                       all options of a command, with examples

Exit codes: 0 done, 2 usage, 3 input, 4 damaged or locked file, 5 mismatch, 6 disk or memory,
7 partial result, 130/143 stopped by a signal after saving.
"""


class LazyGroup(click.Group):
    """A group that imports a command when it is used: --help takes a tenth of a second."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"cropstar.cli.{cmd_name}"), cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        _require_words(args)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="cropstar")
@click.pass_context
def cropstar(context: click.Context) -> None:
    """Crop maps from Sentinel-2 time series, with the STAR recurrent cell."""
    context.ensure_object(dict)
    if context.invoked_subcommand is None:
        click.echo(GREETING)


def _require_words(words: list[str]) -> None:
    """Refuse empty words, which an unset variable of a shell leaves: as a path one would be the current folder.

    Nothing that cropstar is told is empty, so this holds for every option and argument of all commands.
    """
    for before, word in zip(["", *words], words, strict=False):
        option, equals, value = word.partition("=") if word.startswith("--") else (before, "=", word)
        if equals and not value.strip():
            what = f"{option} is empty" if option.startswith("-") else "an argument is empty"
            why = "perhaps a variable of the shell is not set"
            raise UsageError(what, why=why, remedy="give a value, or leave it out")


def main() -> NoReturn:
    """The entry point: no traceback reaches the user unless --debug asks for it."""
    guard_messages()
    settings: dict[str, Any] = {}
    try:
        try:
            cropstar.main(prog_name="cropstar", standalone_mode=False, obj=settings)
        finally:
            end_work()
        code = 0
    except click.exceptions.Exit as leaving:
        code = leaving.exit_code
    except (click.ClickException, click.Abort, KeyboardInterrupt, StopSignal, Exception) as failure:
        error = _translate(failure)
        if settings.get("debug"):
            import traceback

            traceback.print_exc()
        _say(error, as_json=bool(settings.get("log_json")))
        code = error.exit_code
    _leave(code)


def _leave(code: int) -> NoReturn:
    """End the process; after a signal at once, without Python's own way out.

    A thread that was reading may have been left in the middle of it with a lock that is never released, such as h5py's:
    destructors would wait for it for ever.
    """
    if received() is not None:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
    sys.exit(code)


class Messages:
    """A stream whose write errors are ignored: the work continues even if messages cannot be shown."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._unfinished = False

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):  # a full disk, a pipe that nobody reads, a closed stream
            self._stream.write(text)
        self._unfinished = not text.endswith(("\n", "\r")) if text else self._unfinished
        return len(text)

    def begin_line(self) -> None:
        """End what a progress bar, or a message that a signal tore, left unfinished."""
        if self._unfinished:
            self.write("\n")

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def guard_messages() -> None:
    """Let messages fail alone. Closed standard streams are opened to nothing: a map could get their numbers."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    stream = sys.stderr or os.fdopen(2, "w", closefd=False)
    sys.stderr = Messages(stream)
    sys.unraisablehook = reraise_lost


def _translate(failure: BaseException) -> CropstarError:
    """Convert any exception to a CropstarError with its exit code."""
    if isinstance(failure, click.ClickException):
        command = failure.ctx.command_path if isinstance(failure, click.UsageError) and failure.ctx else "cropstar"
        what, question = failure.format_message().rstrip("."), _habit(failure)
        if question:
            what = what.partition(". ")[0].partition(" Did you mean")[0].rstrip(".")
        return UsageError(what, remedy=f"{question}see '{command} --help'")
    if isinstance(failure, (click.Abort, KeyboardInterrupt)):
        return Interrupted(2, "finished parts are kept")
    if (number := received()) is not None and not isinstance(failure, Interrupted):
        return Interrupted(number, "finished parts are kept")
    return expected_error(failure) or CropstarError(
        "internal error",
        why=f"{type(failure).__name__}: {failure}",
        remedy="run again with --debug and report the traceback",
    )


def _habit(failure: click.ClickException) -> str:
    """What an unknown command or option is called here, as a question with a blank behind it; empty if unknown."""
    if isinstance(failure, click.NoSuchOption) and failure.ctx is not None:
        given = failure.option_name
        known = {name for parameter in failure.ctx.command.params for name in parameter.opts}
        meant = OPTION_HABITS.get(given)
        if meant is not None and (meant.split()[0] in known or not meant.startswith("--")):
            return f"did you mean {meant}? "
        if "--set" in known:
            from cropstar.config_keys import nearest_key

            key = nearest_key(given.lstrip("-").replace("-", "_"))
            if key is not None and not failure.possibilities:
                return f"did you mean --set {key}=...? "
    elif isinstance(failure, click.UsageError) and failure.message.startswith("No such command"):
        given = failure.message.partition("'")[2].partition("'")[0]
        near = COMMAND_HABITS.get(given) or next(iter(difflib.get_close_matches(given, COMMANDS, n=1)), None)
        return f"did you mean 'cropstar {near}'? " if near else ""
    return ""


def _say(error: CropstarError, *, as_json: bool) -> None:
    if isinstance(sys.stderr, Messages):
        sys.stderr.begin_line()
    if as_json:
        import json

        line = json.dumps({"level": "error", "message": str(error), "exit_code": error.exit_code})
        click.echo(line, err=True)
    else:
        click.echo(f"error: {error}", err=True)
