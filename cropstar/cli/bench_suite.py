"""`cropstar bench suite`."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path
from typing import Any

import click

from cropstar.cli.options import PATH, Decimal, checkpoints, device, examples, speech
from cropstar.runtime import RUNS, event

EXAMPLES = examples("""
cropstar bench suite short                            up to three hours on one core
cropstar bench suite paper --device cuda
cropstar bench suite my.yaml -o results --budget 5 --data /where/data/are
""")


@click.command("suite", epilog=EXAMPLES)
@click.argument("file", type=PATH)
@click.option("-o", "--output", type=PATH, help="Output folder.  [default: data/runs/bench/suite-NAME]")
@click.option("--data", type=PATH, help="The folder of mnist/, music/ and so on.  [default: data]")
@click.option(
    "--budget", type=Decimal(0, min_open=True), metavar="MINUTES", help="Time for each training; overrides the file."
)
@checkpoints
@device
@speech
def suite(
    file: Path,
    output: Path | None,
    data: Path | None,
    budget: float | None,
    checkpoint_seconds: float,
    device: str,
) -> None:
    """Run a matrix of tasks, models, depths and seeds, and write tables and figures.

    FILE is a YAML file, or 'short' or 'paper', which ship with cropstar.

    results.csv, results.md, depth.png and curves.png are rewritten after every training. Run the same command again to
    continue a suite that was stopped. Failed trainings are recorded and tried again; the exit code is then 7.
    """
    from cropstar.benchmarks.suite import PAGE, SuiteOptions, run_suite
    from cropstar.runtime import choose_device

    folder = output or RUNS / "bench" / f"suite-{file.stem}"
    run_suite(file, SuiteOptions(folder, choose_device(device), data, budget, checkpoint_seconds))
    event(f"results {folder / PAGE}", results=str(folder / PAGE))


FLAGS = {option for parameter in suite.params if getattr(parameter, "is_flag", False) for option in parameter.opts}


class TaskOrSuite(click.Command):
    """`cropstar bench suite` is a command of its own, any other word is a task."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        flags = list(takewhile(FLAGS.__contains__, args))
        if args[len(flags) :][:1] == [suite.name]:
            rest = [*flags, *args[len(flags) + 1 :]]
            return suite.make_context(f"{info_name} {suite.name}", rest, parent, **extra)
        return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        return super().invoke(ctx) if ctx.command is self else ctx.command.invoke(ctx)
