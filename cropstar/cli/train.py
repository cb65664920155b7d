"""`cropstar train`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from cropstar.cli.options import PATH, HeadedCommand, backend, checkpoints, device, examples, headed, speech
from cropstar.cli.remote_options import remote
from cropstar.errors import UsageError
from cropstar.runtime import RUNS, STORES, event, logger

EXAMPLES = examples("""
cropstar train --model convstar --layers 4            on the newest store
cropstar train --model star --store data/stores/demo --epochs 20
cropstar train --config demo-convstar --set optimiser.learning_rate=1e-3
cropstar train --model star --ensemble 5 --refit      five models that answer together
cropstar train --model star --distil data/runs/transformer-2x64-001
cropstar train --model auto --budget 30               compare models by cross-validation, train the best
cropstar train --resume data/runs/convstar-4x32-001
""")


BETTER = "A better model for more time"


@click.command(cls=HeadedCommand, epilog=EXAMPLES)
@click.option(
    "--config", "config_file", metavar="FILE", help="A YAML file, or the name of one that ships with cropstar."
)
@click.option("--store", type=PATH, help="The store to train on.  [default: the newest in data/stores]")
@click.option(
    "--recipe",
    type=click.Choice(["auto", "quick", "paper"]),
    help="What fills in settings that are not given: the data (auto), a look within a minute (quick), or the paper.  "
    "[default: auto]",
)
@click.option("--model", help="See 'cropstar models'; auto: the best of several.  [default: convstar]")
@click.option("--layers", type=int, help="Recurrent layers.  [default: by the recipe]")
@click.option("--hidden", type=int, help="Width of a layer.  [default: by the recipe]")
@click.option("--target", help="pixel or parcel.  [default: pixels of images, parcels of tables]")
@click.option("--split-by", help="parcel, block, scene, group or pixel.  [default: parcel]")
@click.option("--split", metavar="NAME", help="One of the data set's own splits.  [default: a stratified random split]")
@click.option("--epochs", type=int, help="Passes over the training parcels.  [default: by the recipe]")
@click.option("--batch", type=int, help="Patches or series a step.  [default: by the recipe]")
@click.option("--learning-rate", type=float, help="Peak learning rate.  [default: by the recipe]")
@headed(
    BETTER,
    "--budget",
    type=click.FloatRange(0, min_open=True),
    metavar="MINUTES",
    help="With --model auto: to compare models.  [default: 10]",
)
@headed(BETTER, "--ensemble", type=int, metavar="N", help="Train N models and average their answers.  [default: 1]")
@headed(
    BETTER,
    "--refit",
    is_flag=True,
    default=None,
    help="At the end train anew on training and validation; the figures stay those of the model before.",
)
@headed(BETTER, "--distil", type=PATH, metavar="RUN", help="Learn from the answers of this finished run, too.")
@click.option("--seed", type=int, help="Seed of split, order and weights.  [default: 0]")
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Any key of the configuration.")
@click.option("--runs", type=PATH, default=RUNS, show_default=True, help="Where the run folder goes.")
@click.option("--resume", type=PATH, metavar="RUN", help="Go on with this run.")
@click.option("--fresh", is_flag=True, help="Start anew even if an unfinished run of this configuration is there.")
@checkpoints
@click.option("--diagnose", is_flag=True, help="Record gradients, weights and states of the first epoch by layer.")
@click.option("--tensorboard", is_flag=True, help="Write TensorBoard's event files to the run folder.")
@click.option("--print-config", is_flag=True, help="Show all settings, and why a recipe chose some, and stop.")
@backend(training=True)
@device
@speech
@remote("config_file", written=("runs", "resume"))
def train(
    config_file: str | None,
    store: Path | None,
    recipe: str | None,
    model: str | None,
    layers: int | None,
    hidden: int | None,
    target: str | None,
    split_by: str | None,
    split: str | None,
    epochs: int | None,
    batch: int | None,
    learning_rate: float | None,
    budget: float | None,
    ensemble: int | None,
    refit: bool | None,
    distil: Path | None,
    seed: int | None,
    assignments: tuple[str, ...],
    runs: Path,
    resume: Path | None,
    fresh: bool,
    checkpoint_seconds: float,
    diagnose: bool,
    tensorboard: bool,
    print_config: bool,
    backend: str,
    device: str,
) -> None:
    """Train a model on a store and judge it on parcels that it never saw.

    The split is by parcel and class, the best epoch is chosen on validation parcels, and the test
    parcels are looked at once, at the end. A run that was stopped goes on by the same command.
    """
    from cropstar.config import find_config, resolve_config
    from cropstar.store.store import newest_store

    options = {
        "store": store,
        "recipe": recipe,
        "model.name": model,
        "model.layers": layers,
        "model.hidden": hidden,
        "target": target,
        "split.by": split_by,
        "split.name": split,
        "epochs": epochs,
        "batch": batch,
        "series_batch": batch,
        "optimiser.learning_rate": learning_rate,
        "ensemble": ensemble,
        "refit": refit,
        "distil": distil,
        "seed": seed,
    }
    file = find_config(config_file) if config_file else None
    if resume is not None:
        if file or assignments or any(value is not None for value in options.values()):
            raise UsageError("--resume takes the configuration of the run", remedy="leave out all other settings")
        file = resume / "config.yaml"
    config = resolve_config(
        file, options, assignments, defaults={"store": newest_store(STORES) or (STORES if print_config else None)}
    )
    from cropstar.training.recipes import explained, with_recipe

    choices: tuple[Any, ...] = ()
    if print_config and not (config.store / "manifest.json").exists():
        logger.warning("no store in %s: what the recipe would choose depends on the data", config.store)
    else:
        config, choices = with_recipe(config)
    if print_config:
        click.echo(explained(config, choices), nl=False)
        return

    from cropstar.runtime import choose_device
    from cropstar.training.train import TrainOptions
    from cropstar.training.train import train as run_training

    how = TrainOptions(
        runs, choose_device(device), resume, fresh, checkpoint_seconds, diagnose, tensorboard, backend, budget
    )
    run, result = run_training(config, how)
    if not result:  # one of several processes; the first one has it
        return
    event(run.headline(), test=result["test"])
    event(f"model  {run.model}", model=str(run.model))
    event(f"report {run.report}", report=str(run.report))
