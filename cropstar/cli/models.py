"""`cropstar models`."""

from __future__ import annotations

import json

import click

from cropstar.cli.options import examples, logging_options
from cropstar.errors import CropstarError, UsageError
from cropstar.runtime import STORES

EXAMPLES = examples("""
cropstar models                                       all models, with cost and receptive field
cropstar models convstar --layers 4                   one of them, layer by layer, with its equations
cropstar models lstm_forget+star --bands 4 --dates 45
cropstar models star --set model.variant=janet --json
""")


@click.command(epilog=EXAMPLES)
@click.argument("name", required=False)
@click.option("--bands", type=click.IntRange(1, 1000), default=10, show_default=True, help="Number of bands.")
@click.option("--classes", type=click.IntRange(1, 10_000), default=10, show_default=True, help="Number of classes.")
@click.option(
    "--dates", type=click.IntRange(1, 1000), default=24, show_default=True, help="Number of dates in a season."
)
@click.option("--layers", type=int, help="Layers.  [default: 4]")
@click.option("--hidden", type=int, help="Width of a layer.  [default: 32, or 128 for series models]")
@click.option(
    "--day-encoding", help="How the model sees the date: sincos, thermal (the last band) or none.  [default: sincos]"
)
@click.option(
    "--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Set any model.* key of the configuration."
)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@logging_options
def models(
    name: str | None,
    bands: int,
    classes: int,
    dates: int,
    layers: int | None,
    hidden: int | None,
    day_encoding: str | None,
    assignments: tuple[str, ...],
    as_json: bool,
) -> None:
    """List the models with their inputs, cost and receptive field.

    With a NAME, show one of them layer by layer, with its settings and its equations. Names are composed: conv before
    a cell reads images, bi reads both directions of time, + stacks cells from the lowest layer up.
    """
    from cropstar.config import ModelConfig, resolve_config
    from cropstar.models.contract import Shape
    from cropstar.models.description import ModelFacts, describe
    from cropstar.models.zoo import listed_models
    from cropstar.reports.text import format_model, format_models

    for assignment in assignments:
        if not assignment.startswith("model.") or assignment.startswith("model.name"):
            raise UsageError(f"--set {assignment}", why="not a setting of the model", remedy="give a key of model.*")

    def configured(model: str) -> ModelConfig:
        options = {"store": STORES, "model.name": model, "model.layers": layers, "model.hidden": hidden}
        return resolve_config(None, {**options, "model.day_encoding": day_encoding}, assignments).model

    def described(config: ModelConfig) -> ModelFacts:
        thermal = bands - 1 if config.day_encoding == "thermal" else None
        return describe(config, Shape(bands, classes, dates, thermal))

    if name is not None:
        facts = described(configured(name))
        click.echo(json.dumps(facts.to_json(), indent=1, ensure_ascii=False) if as_json else format_model(facts))
        return
    listed: list[ModelFacts] = []
    left_out: dict[str, CropstarError] = {}
    for member in listed_models():
        config = configured(member)  # a value that no model can have is an error, not a reason to leave one out
        try:
            listed.append(described(config))
        except CropstarError as reason:
            left_out[member] = reason
    if not listed:
        raise next(iter(left_out.values()))
    if as_json:
        reasons = {member: str(reason) for member, reason in left_out.items()}
        zoo = {"models": [facts.to_json() for facts in listed], "left_out": reasons}
        click.echo(json.dumps(zoo, indent=1, ensure_ascii=False))
    else:
        click.echo(format_models(listed, left_out))
