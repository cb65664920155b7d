"""`cropstar gradients`."""

from __future__ import annotations

from pathlib import Path

import click

from cropstar.cli.options import PATH, Decimal, examples, logging_options, split_names
from cropstar.errors import UsageError
from cropstar.runtime import event

NOISE_DEFAULTS = {"layers": 10, "runs": 100}
IMAGE_DEFAULTS = {"layers": 12, "runs": 4}

EXAMPLES = examples("""
cropstar gradients -o lattice                         five cells, 10 layers x 10 steps, 100 runs
cropstar gradients -o lattice --cells star,mingru --loss last --layers 20
cropstar gradients -o lattice --data mnist MNIST_FOLDER --cells lstm,star
""")


@click.command(epilog=EXAMPLES)
@click.option("-o", "--output", type=PATH, required=True, help="A folder for lattice.png, .csv and .json.")
@click.option(
    "--cells",
    default="rnn,lstm,lstm_forget,gru,star",
    show_default=True,
    callback=split_names,
    help="Recurrent cells, separated by commas.",
)
@click.option("--layers", type=click.IntRange(1, 100), help="Layers.  [default: 10, or 12 for images]")
@click.option("--steps", type=click.IntRange(1, 5000), help="Steps in time.  [default: 10, or an image's pixels]")
@click.option("--hidden", type=click.IntRange(1, 512), default=64, show_default=True, help="Width of every layer.")
@click.option(
    "--alpha", type=Decimal(0, 1, max_open=True), default=0.5, show_default=True, help="Smoothness of the noise."
)
@click.option(
    "--runs", type=click.IntRange(2, 100_000), help="Random networks and inputs.  [default: 100, or 4 for images]"
)
@click.option(
    "--loss",
    type=click.Choice(["last", "all", "both"]),
    default="both",
    show_default=True,
    help="Loss on the last state of the top layer, on its states at all steps, or both.",
)
@click.option(
    "--data",
    type=(click.Choice(["mnist"]), PATH),
    metavar="mnist PATH",
    help="Use images as input, pixel by pixel: the MNIST folder or an idx file.  [default: noise]",
)
@click.option(
    "--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Seed of weights and inputs."
)
@click.option("--overwrite", is_flag=True, help="Replace files that exist.")
@logging_options
def gradients(
    output: Path,
    cells: tuple[str, ...],
    layers: int | None,
    steps: int | None,
    hidden: int,
    alpha: float,
    runs: int | None,
    loss: str,
    data: tuple[str, Path] | None,
    seed: int,
    overwrite: bool,
) -> None:
    """Measure how gradients change through the layers of a deep recurrent network.

    A network of layers x steps with orthogonal weights and zero biases is run forwards and backwards many times; the
    gradient of the parameters is measured at every layer and step. A factor of one from layer to layer means that
    gradients neither vanish nor explode with depth.
    """
    if data is not None and steps is not None:
        raise UsageError("--steps with --data", why="an image has one step per pixel", remedy="leave out --steps")
    if cells is None:
        raise UsageError("no cells", remedy="name some with --cells, such as lstm,star")

    from cropstar.benchmarks.lattice import LOSSES, PICTURE, SUMMARY, TABLE, GradientOptions, table_text
    from cropstar.benchmarks.lattice import gradients as run_gradients

    defaults = NOISE_DEFAULTS if data is None else IMAGE_DEFAULTS
    options = GradientOptions(
        cells=tuple(dict.fromkeys(cells)),
        layers=layers or defaults["layers"],
        steps=steps or 10,
        hidden=hidden,
        alpha=alpha,
        runs=runs or defaults["runs"],
        losses=LOSSES if loss == "both" else (loss,),
        seed=seed,
        images=None if data is None else data[1],
    )
    patterns = run_gradients(output, options, overwrite=overwrite)
    click.echo(table_text(patterns))
    for name in (PICTURE, TABLE, SUMMARY):
        event(str(output / name), output=str(output / name))
