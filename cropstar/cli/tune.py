"""`cropstar tune`."""

from __future__ import annotations

from pathlib import Path

import click

from cropstar.cli.options import PATH, device, examples, logging_options
from cropstar.runtime import RUNS, STORES, event

EXAMPLES = examples("""
cropstar tune --model star                            around what 'cropstar train' would use
cropstar tune --store data/stores/crop --model star --split published --space space.yaml -o data/runs/tune-001
cropstar tune --config demo-star --folds 5            the mean over five folds instead of one validation part
cropstar train --config data/runs/tune-001/best.yaml  train the best and evaluate it on the test parcels

space.yaml:
  optimiser.learning_rate: {log: [1e-4, 1e-2]}
  model.layers: [1, 2, 4]
  model.dropout: {uniform: [0, 0.5]}
  model.hidden: {int: [32, 256], step: 32}
""")


@click.command(epilog=EXAMPLES)
@click.option(
    "--config", "config_file", metavar="FILE", help="A YAML file, or the name of one that ships with cropstar."
)
@click.option("--store", type=PATH, help="The store to train on.  [default: the newest in data/stores]")
@click.option("--model", help="A name from 'cropstar models'.  [default: convstar for images, star for tables]")
@click.option("--split", metavar="NAME", help="One of the data set's own splits.  [default: a stratified random split]")
@click.option("--epochs", type=int, help="Epochs of every trial.  [default: by the recipe]")
@click.option("--seed", type=int, help="Seed of the search and of every training.  [default: 0]")
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Set any key of the configuration.")
@click.option(
    "--space", "space_file", type=PATH, metavar="FILE", help="The search space, as shown below.  [default: see above]"
)
@click.option(
    "--trials",
    type=click.IntRange(1, 100_000),
    default=20,
    show_default=True,
    help="Trials in total, over all restarts.",
)
@click.option(
    "--folds", type=click.IntRange(2, 1000), help="Cross-validate with this many folds, without the test parcels."
)
@click.option("-o", "--output", type=PATH, help="Output folder.  [default: data/runs/tune-001 and so on]")
@click.option("--runs", type=PATH, default=RUNS, show_default=True, help="Where the default output folder goes.")
@device
@logging_options
def tune(
    config_file: str | None,
    store: Path | None,
    model: str | None,
    split: str | None,
    epochs: int | None,
    seed: int | None,
    assignments: tuple[str, ...],
    space_file: Path | None,
    trials: int,
    folds: int | None,
    output: Path | None,
    runs: Path,
    device: str,
) -> None:
    """Search for the best settings on the validation parcels.

    Each trial is a training; trials below the median are stopped early. The test parcels are not used. The first trial
    has the settings that 'cropstar train' would use, and the others vary some of them: without --space the learning
    rate, layers, width and dropout. With few fields every trial is cross-validated. Run the same command again to
    continue, with the same trials; a larger --trials adds more.
    """
    from cropstar.config import find_config, read_config, resolve_config
    from cropstar.store.store import newest_store
    from cropstar.training.search_space import default_space, parse_space

    options = {
        "store": store,
        "model.name": model,
        "split.name": split,
        "epochs": epochs,
        "seed": seed,
    }
    file = find_config(config_file) if config_file else None
    config = resolve_config(file, options, assignments, defaults={"store": newest_store(STORES)})

    from cropstar.runtime import choose_device
    from cropstar.training.recipes import with_recipe
    from cropstar.training.tuning import TuneOptions, format_values, require_optuna
    from cropstar.training.tuning import tune as run_tuning

    require_optuna()
    config, _ = with_recipe(config)
    space = parse_space(read_config(space_file), config, space_file) if space_file else default_space(config)
    tuned = run_tuning(config, space, TuneOptions(runs, choose_device(device), output, trials, folds))
    event(
        f"best: macro-F1 {tuned.score:.3f} on validation with {format_values(tuned.values)}; "
        f"table {tuned.table}; now: cropstar train --config {tuned.best}",
        score=tuned.score,
        values=tuned.values,
        best=str(tuned.best),
    )
