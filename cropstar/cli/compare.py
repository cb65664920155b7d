"""`cropstar compare`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from cropstar.cli.options import PATH, examples, logging_options
from cropstar.errors import ArtifactError
from cropstar.runtime import RUNS, event, logger

EXAMPLES = examples("""
cropstar compare                                      all finished runs in data/runs
cropstar compare data/runs/star-* -o compare.png      some of them, with a picture
cropstar compare data/runs/star-4x128-001 data/runs/gru-4x128-001 --json
""")


@click.command(epilog=EXAMPLES)
@click.argument("runs", type=PATH, nargs=-1, metavar="[RUN]...")
@click.option("-o", "--output", type=PATH, help="Draw the metrics and the validation curves (.png).")
@click.option("--overwrite", is_flag=True, help="Replace a picture that exists.")
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON.")
@logging_options
def compare(runs: tuple[Path, ...], output: Path | None, overwrite: bool, as_json: bool) -> None:
    """Compare finished runs, sorted by macro-F1 on the test parcels.

    Metrics have 95 % intervals: runs whose intervals overlap widely may differ by chance alone. A warning is given if
    runs were tested on different parcels and cannot be compared.
    """
    from cropstar.inputs import require_free

    if output is not None:
        require_free(output, (".png",), overwrite)
    from cropstar.reports.comparison import compare_runs, format_comparison

    comparison = compare_runs(runs or _finished())
    if output is not None:
        from cropstar.reports.comparison import draw_comparison

        draw_comparison(output, comparison)
    facts = comparison.to_json()
    click.echo(json.dumps(facts, indent=1, ensure_ascii=False) if as_json else format_comparison(comparison))
    for warning in facts["warnings"]:
        logger.warning(warning)
    if output is not None:
        event(f"picture {output}", picture=str(output))


def _finished() -> tuple[Path, ...]:
    from cropstar.training.runs import Run

    folders = sorted(RUNS.iterdir()) if RUNS.is_dir() else []
    finished = tuple(folder for folder in folders if Run(folder).finished)
    if not finished:
        raise ArtifactError("no finished run yet", path=RUNS, remedy="train with 'cropstar train', or name a RUN")
    return finished
