"""`cropstar doctor`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cropstar.cli.options import PATH, device, examples, logging_options
from cropstar.errors import ResourceError
from cropstar.runtime import DATA

if TYPE_CHECKING:
    from cropstar.models.selftest import Trial

EXAMPLES = examples("""
cropstar doctor                                       what is here, and what is missing
cropstar doctor --device cuda --output /results       fails without a GPU or write access
cropstar doctor --device cuda --selftest              every backend compared on the GPU, and how fast each is
cropstar doctor --json
""")


@click.command(epilog=EXAMPLES)
@click.option(
    "-o", "--output", type=PATH, default=DATA, show_default=True, help="The folder to check for write access."
)
@click.option("--selftest", is_flag=True, help="Compare the backends on the device, and time them: a minute or so.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@device
@logging_options
def doctor(output: Path, selftest: bool, as_json: bool, device: str) -> None:
    """Show what this machine offers: versions, processors, GPUs, memory, formats, kernels, write access.

    A line that begins with ! is something that is needed and missing: the exit code is 6 then. What is missing but
    not needed begins with -. With --selftest STAR and ConvSTAR are computed by every backend of the device: the largest
    errors of scores and gradients against the equations in double precision, and the samples or pixels a second of
    inference and training. A backend that computes wrongly has a line with !, and the exit code is 6.
    """
    from cropstar.reports.health import examine, format_findings, to_json
    from cropstar.runtime import choose_device

    findings = examine(output)
    if not as_json:
        click.echo(format_findings(findings))
    trials = _selftest(device, quiet=as_json) if selftest else []
    if as_json:
        facts = to_json(findings)
        click.echo(json.dumps(facts | {"selftest": [asdict(each) for each in trials]} if selftest else facts, indent=1))
    choose_device(device)
    missing = [f"{finding.what}: {finding.found}" for finding in findings if finding.state == "missing"]
    if missing:
        raise ResourceError("cropstar cannot work here", why="; ".join(missing), remedy="fix that first")
    if selftest:
        from cropstar.models.selftest import require_passed

        require_passed(trials)


def _selftest(device: str, *, quiet: bool) -> list[Trial]:
    from cropstar.models.selftest import run_selftest
    from cropstar.runtime import choose_device

    chosen = choose_device(device)
    if not quiet:
        click.echo(f"\nself-test on {chosen}: largest errors of scores and gradients, inference and training")
    trials = []
    for trial in run_selftest(chosen):
        trials.append(trial)
        if not quiet:
            click.echo(str(trial))
    return trials
