"""The options of commands that make maps, and what they ask for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from cropstar.cli.options import PATH, Command, headed
from cropstar.cli.values import Decimal, split_names, split_numbers
from cropstar.errors import UsageError

OUTPUTS, SEASON = "Files beside the map", "In season"
INPUTS, MACHINE = "How the input is read", "Machine"

OPTIONS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    (OUTPUTS, "--confidence", {"is_flag": True, "help": "The calibrated probability of the class, in percent."}),
    (OUTPUTS, "--probabilities", {"is_flag": True, "help": "The calibrated probability of every class."}),
    (OUTPUTS, "--uncertainty", {"type": click.Choice(["entropy", "margin"]), "help": "How unsure the class is."}),
    (OUTPUTS, "--valid-dates", {"is_flag": True, "help": "On how many dates each pixel was seen clearly."}),
    (OUTPUTS, "--parcels", {"type": PATH, "help": "Outlines; the class of each goes to <map>-parcels.gpkg."}),
    (OUTPUTS, "--html", {"is_flag": True, "help": "Also write a self-contained HTML page with legend and hectares."}),
    (OUTPUTS, "--smooth", {"type": click.Choice(["majority", "bayesian"]), "help": "Take specks out of the map."}),
    (OUTPUTS, "--smooth-window", {"type": int, "metavar": "PIXELS", "help": "Window of --smooth.  [default: 5]"}),
    (SEASON, "--state", {"type": PATH, "help": "Keep the hidden state after the last date, for 'cropstar update'."}),
    (SEASON, "--every-date", {"is_flag": True, "help": "A map a date, and <map>-earliest.tif: since when it is sure."}),
    (
        SEASON,
        "--stable-confidence",
        {"type": Decimal(0, 1), "help": "Confidence at which a class counts as settled.  [default: 0.5]"},
    ),
    (
        INPUTS,
        "--bands",
        {"callback": split_names, "help": "B04,B08: which to read, names in order where none are; B04=red: renamed."},
    ),
    (
        INPUTS,
        "--dates",
        {"help": "2023-04-01,2023-05-11,... or @FILE, of one file that does not say them: date after date."},
    ),
    (INPUTS, "--by-band", {"is_flag": True, "default": None, "help": "With --dates: the file has band after band."}),
    (INPUTS, "--clear", {"callback": split_numbers, "help": "Scene classes that are clear.  [default: the model's]"}),
    (INPUTS, "--pattern", {"help": "Names of dated files, e.g. 'S2_{band}_{date}.tif'.  [default: guessed]"}),
    (INPUTS, "--masks", {"metavar": "PATTERN", "help": "Names of cloud masks beside dated files; 0 is clear."}),
    (INPUTS, "--any-dates", {"is_flag": True, "help": "Take dates outside the season that the model was trained on."}),
    (MACHINE, "--memory", {"default": "2GB", "show_default": True, "help": "Windows are chosen to stay below."}),
    (MACHINE, "--window", {"type": click.IntRange(16, 8192), "help": "Pixels a side.  [default: by --memory]"}),
    (MACHINE, "--halo", {"type": click.IntRange(0, 8192), "help": "A smaller margin: faster, not exact."}),
    (MACHINE, "--half", {"is_flag": True, "help": "In half precision: faster on GPUs, not exact."}),
    (MACHINE, "--shard", {"metavar": "I/N", "help": "One of N parts, from 0; auto/N asks the array job."}),
)


READING = ("bands", "clear", "pattern", "masks", "dates", "by_band")


def map_options(*headings: str, without: tuple[str, ...] = ()) -> Callable[[Command], Command]:
    """The options under some headings."""

    def decorate(command: Command) -> Command:
        for heading, name, settings in reversed(OPTIONS):
            if heading in headings and name not in without:
                command = headed(heading, name, **settings)(command)
        return command

    return decorate


def request_options(chosen: dict[str, Any]) -> dict[str, Any]:
    """The fields of a request that the options of both commands say."""
    from cropstar.prediction.layers import Smoothing
    from cropstar.prediction.request import parse_memory

    flags = {"confidence": "confidence", "probabilities": "probabilities", "valid-dates": "valid_dates"}
    layers = [layer for layer, option in flags.items() if chosen[option]]
    layers += [chosen["uncertainty"]] if chosen["uncertainty"] else []
    size = {"window": chosen["smooth_window"]} if chosen["smooth_window"] else {}
    return {
        "layers": tuple(layers),
        "smoothing": Smoothing(method=chosen["smooth"], **size) if chosen["smooth"] else None,
        "page": chosen["html"],
        "memory": parse_memory(chosen["memory"]),
        "reading": {name: chosen[name] for name in READING if chosen[name] is not None},
        **{name: chosen[name] for name in ("parcels", "device", "backend", "window", "any_dates", "overwrite")},
    }


def stable_confidence(chosen: dict[str, Any]) -> float | None:
    """Of maps of every date; None where these are not asked for."""
    asked: float | None = chosen["stable_confidence"]
    if chosen["every_date"]:
        return 0.5 if asked is None else asked
    if asked is not None:
        raise UsageError("--stable-confidence without --every-date", remedy="give both")
    return None
