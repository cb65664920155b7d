"""`cropstar evaluate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from cropstar.cli.options import PATH, device, examples, speech
from cropstar.errors import UsageError
from cropstar.logs import event

if TYPE_CHECKING:
    from cropstar.config import SplitConfig

EXAMPLES = examples("""
cropstar evaluate data/runs/convstar-4x32-001         the test parcels of its training again
cropstar evaluate data/runs/convstar-4x32-001 --part validation
cropstar evaluate data/runs/convstar-4x32-001 --store data/stores/next-year
cropstar evaluate model.safetensors --store data/stores/demo -o figures.json
""")


@click.command(epilog=EXAMPLES)
@click.argument("path", type=PATH, metavar="MODEL|RUN")
@click.option("--store", type=PATH, help="The store to judge it on.  [default: that of its run]")
@click.option(
    "--part",
    type=click.Choice(["test", "validation", "train", "all"]),
    help="Which parcels.  [default: test; of a store that it was not trained on: all]",
)
@click.option("--split", metavar="NAME", help="One of the data set's own splits.  [default: as in training]")
@click.option("--split-by", help="parcel, block, scene, group or pixel.  [default: as in training]")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
@click.option("-o", "--output", type=PATH, help="Write them to a file (.json) too.")
@click.option("--overwrite", is_flag=True, help="Replace a file that exists.")
@device
@speech
def evaluate(
    path: Path,
    store: Path | None,
    part: Literal["test", "validation", "train", "all"] | None,
    split: str | None,
    split_by: str | None,
    as_json: bool,
    output: Path | None,
    overwrite: bool,
    device: str,
) -> None:
    """Judge a model: on the test parcels of its own training, or on the parcels of another store.

    Another store must have the bands, the scale, the resolution and the classes of the model; classes are found by
    their names. A warning says so where the model has seen some of the parcels in its training.
    """
    if output is not None:
        require_free(output, ".json", overwrite)
    from cropstar.devices import choose_device
    from cropstar.reports.scores import say_scores
    from cropstar.store.atomic import write_json
    from cropstar.training.evaluating import EvaluateOptions, evaluate_model

    options = EvaluateOptions(choose_device(device), store, part, _split(split, split_by))
    facts = evaluate_model(path, options)
    if output is not None:
        write_json(output, facts)
    click.echo(json.dumps(facts, indent=1, ensure_ascii=False) if as_json else say_scores(facts))
    if output is not None:
        event(f"figures {output}", figures=str(output))


def _split(name: str | None, by: str | None) -> SplitConfig | None:
    """The split that was asked for, checked as in a configuration."""
    from cropstar.places import STORES
    from cropstar.resolving import resolve

    if name is None and by is None:
        return None
    return resolve(None, {"store": STORES, "split.name": name, "split.by": by}).split


def require_free(output: Path, suffix: str, overwrite: bool) -> None:
    """All that can be wrong with the name of an output, before anything is computed."""
    if output.suffix.lower() != suffix:
        raise UsageError("a name of another kind", path=output, remedy=f"give a name that ends in {suffix}")
    if output.exists() and (not overwrite or output.is_dir()):
        raise UsageError("the output exists", path=output, remedy="choose another name, or give --overwrite")
