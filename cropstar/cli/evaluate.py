"""`cropstar evaluate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from cropstar.cli.options import PATH, backend, device, examples, speech
from cropstar.cli.remote_options import remote
from cropstar.errors import UsageError
from cropstar.runtime import event

if TYPE_CHECKING:
    from cropstar.config import SplitConfig

EXAMPLES = examples("""
cropstar evaluate data/runs/convstar-4x32-001         the test parcels of its training again
cropstar evaluate data/runs/convstar-4x32-001 --part validation
cropstar evaluate data/runs/convstar-4x32-001 --store data/stores/next-year
cropstar evaluate model.safetensors --store data/stores/demo -o figures.json
cropstar evaluate data/runs/convstar-4x32-001 --areas map.tif --design random -o areas.html
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
@click.option("--areas", type=PATH, help="The map (.tif), or its hectares by class (.csv): estimate areas.")
@click.option(
    "--design",
    type=click.Choice(["random", "stratified"]),
    help="The parcels were drawn by chance: from the whole map, or so many in each mapped class.",
)
@click.option("-o", "--output", type=PATH, help="Write them to a file (.json), or a report (.html), too.")
@click.option("--overwrite", is_flag=True, help="Replace a file that exists.")
@backend()
@device
@speech
@remote(written=("output",))
def evaluate(
    path: Path,
    store: Path | None,
    part: Literal["test", "validation", "train", "all"] | None,
    split: str | None,
    split_by: str | None,
    areas: Path | None,
    design: Literal["random", "stratified"] | None,
    as_json: bool,
    output: Path | None,
    overwrite: bool,
    backend: str,
    device: str,
) -> None:
    """Judge a model: on the test parcels of its own training, or on the parcels of another store.

    Another store must have the bands, the scale, the resolution and the classes of the model; classes are found by
    their names. A warning says so where the model has seen some of the parcels in its training.

    With --areas, the area of each class on the map is adjusted by what the parcels show (Olofsson et al. 2014). Its
    intervals hold for parcels that were drawn by chance, and are left out unless --design says how.
    """
    if output is not None:
        require_free(output, (".json", ".html"), overwrite)
    from cropstar.reports.report import evaluation_report
    from cropstar.reports.results import format_scores, read_result
    from cropstar.runtime import choose_device
    from cropstar.store.files import write_json
    from cropstar.training.evaluate import EvaluateOptions, evaluate_model

    report = output is not None and output.suffix.lower() == ".html"
    # Read before anything is computed: a report tells of the training as well.
    result = read_result(path if path.is_dir() else path.parent) if report else {}
    options = EvaluateOptions(choose_device(device), store, part, _split(split, split_by), areas, design, backend)
    facts = evaluate_model(path, options)
    if output is not None and report:
        evaluation_report(output, result, facts)
    elif output is not None:
        write_json(output, facts)
    click.echo(json.dumps(facts, indent=1, ensure_ascii=False) if as_json else format_scores(facts))
    if output is not None:
        event(f"{'report' if report else 'figures'} {output}", figures=str(output))


def _split(name: str | None, by: str | None) -> SplitConfig | None:
    """The split that was asked for, checked as in a configuration."""
    from cropstar.config import resolve_config
    from cropstar.runtime import STORES

    if name is None and by is None:
        return None
    return resolve_config(None, {"store": STORES, "split.name": name, "split.by": by}).split


def require_free(output: Path, suffixes: tuple[str, ...], overwrite: bool) -> None:
    """All that can be wrong with the name of an output, before anything is computed."""
    if output.suffix.lower() not in suffixes:
        remedy = f"give a name that ends in {' or '.join(suffixes)}"
        raise UsageError("a name of another kind", path=output, remedy=remedy)
    if output.exists() and (not overwrite or output.is_dir()):
        raise UsageError("the output exists", path=output, remedy="choose another name, or give --overwrite")
