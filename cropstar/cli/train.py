"""`cropstar train`."""

from __future__ import annotations

from typing import Any

import click

from cropstar.cli.options import (
    PATH,
    HeadedCommand,
    backend,
    checkpoints,
    device,
    examples,
    headed,
    logging_options,
    remote,
)
from cropstar.runtime import RUNS

EXAMPLES = examples("""
cropstar train --model convstar --layers 4            on the newest store
cropstar train --model star --store data/stores/demo --epochs 20
cropstar train --config demo-convstar --set optimiser.learning_rate=1e-3
cropstar train --model star --ensemble 5 --refit      an ensemble of five models
cropstar train --model star --distil data/runs/transformer-2x64-001
cropstar train --model auto --budget 30               compare models by cross-validation, train the best
cropstar train --model star --folds 5                 few fields: judge all of them by cross-validation
cropstar train --resume data/runs/convstar-4x32-001
""")


BETTER = "Better models, longer training"
SMALL = "Few fields, doubtful labels"


@click.command(cls=HeadedCommand, epilog=EXAMPLES)
@click.option("--config", metavar="FILE", help="A YAML file, or the name of one that ships with cropstar.")
@click.option("--store", type=PATH, help="The store to train on.  [default: the newest in data/stores]")
@click.option(
    "--recipe",
    type=click.Choice(["auto", "quick", "paper"]),
    help="Settings that are not given: fitted to the data (auto), fast (quick, about a minute), or the paper's.  "
    "[default: auto]",
)
@click.option(
    "--model",
    help="A name from 'cropstar models', or auto: the best of several.  [default: convstar for images, star for "
    "tables]",
)
@click.option("--layers", type=int, help="Recurrent layers.  [default: by the recipe]")
@click.option("--hidden", type=int, help="Width of a layer.  [default: by the recipe]")
@click.option(
    "--target", help="What to classify: pixel, parcel or date.  [default: pixel for images, parcel for tables]"
)
@click.option("--split-by", help="Split by parcel, block, scene, group or pixel.  [default: parcel]")
@click.option("--split", metavar="NAME", help="One of the data set's own splits.  [default: a stratified random split]")
@click.option("--epochs", type=int, help="Passes over the training parcels.  [default: by the recipe]")
@click.option("--batch", type=int, help="Patches or series per step.  [default: by the recipe]")
@click.option("--learning-rate", type=float, help="Peak learning rate.  [default: by the recipe]")
@headed(
    BETTER,
    "--budget",
    type=click.FloatRange(0, min_open=True),
    metavar="MINUTES",
    help="Time to compare models with --model auto.  [default: 10]",
)
@headed(BETTER, "--ensemble", type=int, metavar="N", help="Train N models and average their scores.  [default: 1]")
@headed(
    BETTER,
    "--refit",
    is_flag=True,
    default=None,
    help="At the end, retrain on training and validation parcels; the figures are those of the model before.",
)
@headed(BETTER, "--distil", type=PATH, metavar="RUN", help="Also learn from the predictions of this finished run.")
@headed(
    SMALL,
    "--folds",
    type=click.IntRange(2, 20),
    metavar="K",
    help="Cross-validate: K models, each evaluated on fields it never saw; the final model learns from all fields.",
)
@headed(
    SMALL,
    "--clean",
    is_flag=True,
    default=None,
    help="Leave fields with a suspect label out of training, never out of the test; see 'cropstar check'.",
)
@headed(SMALL, "--forest", is_flag=True, default=None, help="Also fit a random forest, as a baseline for comparison.")
@click.option("--seed", type=int, help="Seed of split, order and weights.  [default: 0]")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Set any key of the configuration.")
@click.option("--runs", type=PATH, default=RUNS, show_default=True, help="Where the run folder goes.")
@click.option("--resume", type=PATH, metavar="RUN", help="Continue this run.")
@click.option(
    "--fresh", is_flag=True, help="Start a new run even if there is an unfinished one with this configuration."
)
@checkpoints
@click.option("--diagnose", is_flag=True, help="Record gradients, weights and states of each layer in the first epoch.")
@click.option("--tensorboard", is_flag=True, help="Write TensorBoard event files to the run folder.")
@click.option(
    "--print-config", is_flag=True, help="Print all settings, with the reasons for those the recipe chose, and exit."
)
@backend(training=True)
@device
@remote
@logging_options
def train(print_config: bool, **options: Any) -> None:
    """Train a model on a store and evaluate it on held-out parcels.

    Parcels are split at random within each class. The best epoch is chosen on the validation parcels; the test parcels
    are used once, at the end. Run the same command again to continue a run that was stopped.
    """
    if print_config:
        from cropstar.api.commands import explain_config

        click.echo(explain_config(**options, progress=None), nl=False)
        return
    import cropstar

    cropstar.train(**options, progress=None)
