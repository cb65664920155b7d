"""`cropstar doctor`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from cropstar.cli.options import PATH, device, examples, speech
from cropstar.errors import ResourceError
from cropstar.runtime import DATA

EXAMPLES = examples("""
cropstar doctor                                       what is here, and what is missing
cropstar doctor --device cuda --output /results       fails without a GPU or write access
cropstar doctor --json
""")


@click.command(epilog=EXAMPLES)
@click.option(
    "-o", "--output", type=PATH, default=DATA, show_default=True, help="The folder to check for write access."
)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@device
@speech
def doctor(output: Path, as_json: bool, device: str) -> None:
    """Show what this machine offers: versions, processors, GPUs, memory, formats, kernels, write access.

    A line that begins with ! is something that is needed and missing: the exit code is 6 then. What is missing but
    not needed begins with -.
    """
    from cropstar.reports.health import examine, say_findings, to_json
    from cropstar.runtime import choose_device

    findings = examine(output)
    click.echo(json.dumps(to_json(findings), indent=1) if as_json else say_findings(findings))
    choose_device(device)
    missing = [f"{finding.what}: {finding.found}" for finding in findings if finding.state == "missing"]
    if missing:
        raise ResourceError("cropstar cannot work here", why="; ".join(missing), remedy="fix that first")
