"""`cropstar bench` and `cropstar bench suite`."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path
from typing import Any

import click

from cropstar.cli.options import PATH, Decimal, checkpoints, device, examples, logging_options
from cropstar.errors import UsageError
from cropstar.runtime import RUNS, event

SUITE_EXAMPLES = examples("""
cropstar bench suite short                            up to three hours on one core
cropstar bench suite paper --device cuda
cropstar bench suite my.yaml -o results --budget 5 --data /where/data/are
""")


@click.command("suite", epilog=SUITE_EXAMPLES)
@click.argument("file", type=PATH)
@click.option("-o", "--output", type=PATH, help="Output folder.  [default: data/runs/bench/suite-NAME]")
@click.option("--data", type=PATH, help="The folder of mnist/, music/ and so on.  [default: data]")
@click.option(
    "--budget", type=Decimal(0, min_open=True), metavar="MINUTES", help="Time for each training; overrides the file."
)
@checkpoints
@device
@logging_options
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


EXAMPLES = examples("""
cropstar bench --list                                 tasks, their data and the paper's figures
cropstar bench adding --model star --layers 2 --budget 5
cropstar bench copy --length 1000 --model lstm --set task.checkpoint=50
cropstar bench ptb --model lstm --match-parameters 1000000
cropstar bench --resume data/runs/bench/adding/star-2x128-001 --budget 10
cropstar bench suite short                            many at once, with tables and figures
""")


@click.command(cls=TaskOrSuite, epilog=EXAMPLES)
@click.argument("task", required=False)
@click.option("--list", "listed", is_flag=True, help="List the tasks and exit.")
@click.option("--config", "config_file", type=PATH, help="A YAML file.  [default: the paper's settings]")
@click.option("--data", type=PATH, help="The data set's file or folder.  [default: a folder of data/]")
@click.option("--model", help="A name from 'cropstar models'.")
@click.option("--layers", type=int, help="Number of layers.")
@click.option("--hidden", type=int, help="Width of a layer.")
@click.option(
    "--match-parameters",
    type=click.IntRange(1),
    metavar="N",
    help="Choose the width so that the model has about N parameters.",
)
@click.option("--length", type=int, help="Length of generated sequences (adding, copy).")
@click.option("--pool", type=int, metavar="N", help="Average N x N pixels to one (mnist, pmnist).")
@click.option("--epochs", type=int, help="Passes over the training data.")
@click.option("--batch", type=int, help="Sequences or clips per step.")
@click.option("--learning-rate", type=float, help="Peak learning rate.")
@click.option("--seed", type=int, help="Seed of weights, order and generated samples.")
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Set any key, such as task.length=200.")
@click.option("--budget", type=Decimal(0, min_open=True), metavar="MINUTES", help="Stop training after this time.")
@click.option("--runs", type=PATH, default=RUNS / "bench", show_default=True, help="Where the run folder goes.")
@click.option("--resume", type=PATH, metavar="RUN", help="Continue this run, also one that ran out of --budget.")
@click.option("--fresh", is_flag=True, help="Start a new run even if there is an unfinished one with these settings.")
@checkpoints
@click.option("--tensorboard", is_flag=True, help="Write TensorBoard event files to the run folder.")
@click.option("--no-test", is_flag=True, help="Do not evaluate on the test data, to choose settings on validation.")
@click.option("--print-config", is_flag=True, help="Print the resolved configuration and exit.")
@device
@logging_options
def bench(
    task: str | None,
    listed: bool,
    config_file: Path | None,
    data: Path | None,
    model: str | None,
    layers: int | None,
    hidden: int | None,
    match_parameters: int | None,
    length: int | None,
    pool: int | None,
    epochs: int | None,
    batch: int | None,
    learning_rate: float | None,
    seed: int | None,
    assignments: tuple[str, ...],
    budget: float | None,
    runs: Path,
    resume: Path | None,
    fresh: bool,
    checkpoint_seconds: float,
    tensorboard: bool,
    no_test: bool,
    print_config: bool,
    device: str,
) -> None:
    """Run one of the paper's sequence tasks with the same models and training.

    The best epoch is chosen on validation data; the test data are used once, at the end or when the budget is spent.
    Minutes are counted over all restarts. Run the same command again to continue a run that was stopped.
    See also 'cropstar bench suite --help'.
    """
    from cropstar.benchmarks.running import headline, show_config, table_of_tasks

    if listed:
        click.echo(table_of_tasks())
        return
    own = {"length": length, "pool": pool}
    options = {
        "model.name": model,
        "model.layers": layers,
        "model.hidden": hidden,
        "epochs": epochs,
        "batch": batch,
        "series_batch": batch,
        "optimiser.learning_rate": learning_rate,
        "seed": seed,
    }
    given = [*own.values(), *options.values(), config_file, data, match_parameters, *assignments]
    if resume is not None and (print_config or any(value is not None for value in given)):
        raise UsageError("--resume takes the settings of the run", remedy="leave out all but --budget")
    if task is None and resume is None:
        raise UsageError("no task given", remedy="see 'cropstar bench --list'")
    width = hidden is not None or any(each.startswith("model.hidden") for each in assignments)
    if match_parameters is not None and (width or print_config):
        raise UsageError("--match-parameters finds the width", remedy="leave out --hidden and --print-config")
    if print_config:
        click.echo(show_config(task or "", config_file, options, assignments, own, data), nl=False)
        return

    from cropstar.benchmarks.running import BenchOptions, read_facts, run_bench
    from cropstar.runtime import choose_device

    how = (assignments, match_parameters, budget, resume, fresh, checkpoint_seconds, tensorboard, not no_test)
    name = task if task is not None or resume is None else str(read_facts(resume).get("task"))
    result = run_bench(BenchOptions(name or "", runs, choose_device(device), config_file, data, options, own, *how))
    reached = result.get("chosen", {}).get("validation")
    event(headline(result), value=result["value"], paper=result["paper"], validation=reached)
    event(f"result {Path(result['run']) / 'result.json'}", run=result["run"])
