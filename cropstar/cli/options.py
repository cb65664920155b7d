"""Options that several commands share, and how click's words become cropstar's."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import click

from cropstar.cli.remote_options import PATH as PATH
from cropstar.cli.values import Decimal
from cropstar.runtime import set_up_logging

Command = TypeVar("Command", bound=Callable[..., Any])


class HeadedOption(click.Option):
    """An option that stands under a heading of the --help page."""

    heading = "Options"


class HeadedCommand(click.Command):
    """A command of many options, whose --help page has a section a heading."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                sections.setdefault(getattr(parameter, "heading", HeadedOption.heading), []).append(record)
        first = sections.pop(HeadedOption.heading, [])
        for heading, records in {HeadedOption.heading: first, **sections}.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def headed(heading: str, *names: str, **settings: Any) -> Callable[[Command], Command]:
    """An option under a heading."""
    kind = type("HeadedOption", (HeadedOption,), {"heading": heading})
    return click.option(*names, cls=kind, **settings)


def speech(command: Command) -> Command:
    """--quiet, --verbose, --debug and --log-json, on every command."""

    @click.option("-q", "--quiet", is_flag=True, help="Print only warnings and errors.")
    @click.option("-v", "--verbose", is_flag=True, help="Print more.")
    @click.option("--debug", is_flag=True, help="Show the traceback of an error.")
    @click.option("--log-json", is_flag=True, help="One JSON object a line on stderr, for batch jobs.")
    @wraps(command)
    def speaking(*args: Any, quiet: bool, verbose: bool, debug: bool, log_json: bool, **kwargs: Any) -> Any:
        context = click.get_current_context()
        context.find_root().obj["debug"] = debug
        context.find_root().obj["log_json"] = log_json
        set_up_logging(quiet=quiet, verbose=verbose or debug, as_json=log_json)
        return command(*args, **kwargs)

    return speaking  # type: ignore[return-value]


def device(command: Command) -> Command:
    return click.option(
        "--device",
        default="auto",
        show_default=True,
        type=click.Choice(["auto", "cpu", "cuda", "mps"]),
        help="Where to compute.",
    )(command)


def checkpoints(command: Command) -> Command:
    return click.option(
        "--checkpoint-seconds", type=Decimal(0), default=30.0, show_default=True, help="Time between checkpoints."
    )(command)


def backend(*, training: bool = False) -> Callable[[Command], Command]:
    """Who computes the recurrent layers; cropstar/models/backends.py says what each is."""
    names = ["auto", "naive", "torch", "native", *([] if training else ["onnx"])]
    return click.option(
        "--backend",
        default="auto",
        show_default=True,
        type=click.Choice(names),
        help="Implementation of recurrent layers; auto takes the fastest, and --verbose names it.",
    )


def examples(text: str) -> str:
    """A block of example commands for the end of a --help page, kept as it is written."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in text.strip().splitlines())
