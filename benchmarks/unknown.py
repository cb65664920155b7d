"""Held-out classes: how much of a crop that a model never learnt is called unknown, beside the highest softmax.

For each class in turn a store without it is made and a model is trained on it. Its test fields, which are of known
classes, and all fields of the class that was left out are then scored. A line a class: the share of the left-out class
that is called unknown at the rate, the share of known test fields that is (false alarms), and the area under the ROC
curve of the oddness, of the distance alone and of the highest softmax probability.

    python benchmarks/unknown.py fields.parquet --label crop --work /tmp/unknown
    python benchmarks/unknown.py Crop_TRAIN.tsv.gz --classes 3,6,9,12,15,18,21,24 --split published --test-every 5 \\
        --recipe quick --work /tmp/unknown-ucr
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.metrics import roc_auc_score

import cropstar
from cropstar.config import resolve_config
from cropstar.datasets.samples import open_parts
from cropstar.datasets.splits import Split, training_split
from cropstar.models.calibration import softmax
from cropstar.models.novelty import UNKNOWN, NoveltyScale
from cropstar.models.zoo import restore_model
from cropstar.store.model_file import read_model
from cropstar.store.store import Store
from cropstar.training.novelty import Stages, all_batches, features_by_stage

CPU = torch.device("cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--label", default="crop")
    parser.add_argument("--classes", help="those to leave out, one after the other; all by default")
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--model", default="star")
    parser.add_argument("--recipe", default="auto")
    parser.add_argument("--split", help="one that the data set names, as of 'cropstar train'")
    parser.add_argument("--test-every", type=int, default=1, help="of a UCR archive every n-th series of its test part")
    parser.add_argument("--nodata", type=float, action="append", default=[], help="as of 'cropstar ingest'")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, required=True)
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    table = given.work / f"whole-{given.table.name}"
    write_without(given.table, table, given.label, None, given.test_every)
    whole = cropstar.ingest(table, output=given.work / "whole", overwrite=True, nodata=given.nodata)
    names = given.classes.split(",") if given.classes else list(_class_names(Path(whole)))
    print(f"{'left out':<20} {'unknown':>8} {'alarms':>7} {'AUROC':>7} {'distance':>9} {'softmax':>8}  fields")
    for name in names:
        row = hold_out(given, Path(whole), name)
        with (given.work / "rows.jsonl").open("a") as handle:
            handle.write(json.dumps(row) + "\n")
        print(
            f"{name:<20} {row['unknown']:>8.3f} {row['alarms']:>7.3f} {row['oddness']:>7.3f} {row['distance']:>9.3f} "
            f"{row['softmax']:>8.3f}  {row['fields']}",
            flush=True,
        )


def hold_out(given: argparse.Namespace, whole: Path, name: str) -> dict[str, Any]:
    """The figures of one class that is left out."""
    ending = "".join(given.table.suffixes) if given.table.suffix == ".parquet" else "_TRAIN.tsv.gz"  # as UCR names them
    part = given.work / f"without-{name}{ending}"
    write_without(given.table, part, given.label, name, given.test_every)
    store = cropstar.ingest(part, output=given.work / f"store-{name}", overwrite=True, nodata=given.nodata)
    run = cropstar.train(
        store=store,
        model=given.model,
        recipe=given.recipe,
        split=given.split,
        seed=given.seed,
        runs=given.work / f"runs-{name}",
    )
    known = score(run.model, Path(store), run.folder, left_out=None, rate=given.rate)
    strange = score(run.model, whole, run.folder, left_out=name, rate=given.rate)
    truth = np.r_[np.zeros(len(known["oddness"])), np.ones(len(strange["oddness"]))]
    figures = {
        kind: float(roc_auc_score(truth, np.r_[known[kind], strange[kind]]))
        for kind in ("oddness", "distance", "softmax")
    }
    unknown, alarms = float(strange["unknown"].mean()), float(known["unknown"].mean())
    # The same false alarms by the softmax alone, at its own quantile of the known test fields.
    bound = np.quantile(known["softmax"], 1 - alarms) if alarms else np.inf
    by_softmax = float((strange["softmax"] > bound).mean())
    bound = np.quantile(known["distance"], 1 - alarms) if alarms else np.inf
    by_distance = float((strange["distance"] > bound).mean())
    return {
        "class": name,
        "unknown": unknown,
        "alarms": alarms,
        "fields": len(strange["oddness"]),
        **figures,
        "by_softmax": by_softmax,
        "by_distance": by_distance,
        "accuracy": run.metrics["parcel"]["overall_accuracy"],
    }


def score(model: Path, store: Path, run: Path, *, left_out: str | None, rate: float) -> Mapping[str, np.ndarray]:
    """Oddness, distance and doubt of the test fields, or of all fields of the class that was left out."""
    card, weights, _ = read_model(model)
    network = restore_model(card.model, card.shape, weights, model)
    assert card.calibration is not None
    scale = NoveltyScale.from_card(card.calibration[UNKNOWN], card.novelty)
    config = resolve_config(run / "config.yaml", {"store": store}, ())
    distance, doubt = [], []
    with Store.open(store) as opened:
        split = training_split(opened, config) if left_out is None else _all_of(opened, left_out)
        parts, _ = open_parts(
            opened, split, config, spatial=False, normalisation=card.normalisation, regular=config.regular
        )
        temperature, test = card.calibration["temperature"]["temperature"], parts["test"]
        whole_season = Stages(card.fingerprint.season, scale.days[-1:])
        for batch in all_batches(test, list(range(len(test)))):
            for _, seen in features_by_stage(network, batch, whole_season, CPU):
                distance.append(scale.distances[-1].of([seen.features]).numpy())
                doubt.append(1 - softmax(seen.scores, temperature).max(axis=1))
    far, unsure = np.concatenate(distance), np.concatenate(doubt)
    oddness = scale.stages[-1].oddness(far, unsure)
    limit = scale.stages[-1].limit(rate)
    assert limit is not None
    return {"oddness": oddness, "distance": far, "softmax": unsure, "unknown": oddness > limit}


def _all_of(store: Store, name: str) -> Split:
    number = store.fingerprint.classes.number_of(name)
    labels = {
        (reader.scene, int(parcel)): int(label)
        for _, reader in store.readers()
        for parcel, label in zip(reader.table.numbers, reader.table.labels, strict=True)
        if label == number
    }
    return Split(dict.fromkeys(labels, "test"), labels, {})


def _class_names(store: Path) -> list[str]:
    with Store.open(store) as opened:
        return opened.fingerprint.classes.names


def write_without(table: Path, output: Path, label: str, name: str | None, test_every: int) -> None:
    """The file without the samples of one class, of a UCR archive with every n-th series of the test part."""
    if table.suffix == ".parquet":
        frame = pd.read_parquet(table)
        frame[frame[label].astype(str) != name].to_parquet(output)
        return
    for part in ("TRAIN", "TEST"):
        files = [path.with_name(path.name.replace("_TRAIN", f"_{part}")) for path in (table, output)]
        with gzip.open(files[0], "rt") as source, gzip.open(files[1], "wt") as kept:
            lines = islice(source, 0, None, test_every if part == "TEST" else 1)
            kept.writelines(line for line in lines if str(int(float(line.split("\t", 1)[0]))) != name)


if __name__ == "__main__":
    main()
