"""Radar and weather beside optical series: five folds over fields of a WorldCereal table, by sensor.

    python benchmarks/sensors.py france_2023_dekads.geoparquet --seeds 0,1 --models star,rf -o sensors.jsonl

Crops with at least 15 fields. Each line of the output is one training: the table, the sensors, the seed, the fold, and
the accuracy on the fold's fields. `hidden` has seven of ten optical dates taken away, in training and test alike;
`S2 + S1, S1 dropped` is the model of both, asked without radar.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

import cropstar
from cropstar.config import TrainConfig
from cropstar.datasets.splits import training_split
from cropstar.runtime import logger
from cropstar.store.store import Store

OPTICAL = ["B02", "B03", "B04", "B05", "B06", "B07", "B08", "B11", "B12"]
RADAR = ["VV", "VH"]
WEATHER = ["AGERA5-TMEAN", "AGERA5-PRECIP"]
SENSORS = {"S2": OPTICAL, "S1": RADAR, "S2 + S1": OPTICAL + RADAR, "S2 + S1 + weather": OPTICAL + RADAR}
FOLDS, FEWEST, HIDDEN = 5, 15, 0.7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--models", default="rf,star")
    parser.add_argument("--sensors", default=",".join(SENSORS))
    parser.add_argument("--hidden", action="store_true", help="seven of ten optical dates are taken away")
    parser.add_argument("--folds", default="1,2,3,4,5")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    logger.setLevel("ERROR")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        frame = chosen_fields(options.table, hidden=options.hidden)
        frame.to_parquet(folder / "fields.parquet")
        no_radar = frame.drop(columns=[column for column in frame if str(column).startswith("S1-")])
        no_radar.to_parquet(folder / "optical.parquet")
        for sensors in options.sensors.split(","):
            store = folder / sensors.replace(" ", "")
            weather = WEATHER if "weather" in sensors else None
            cropstar.ingest(
                folder / "fields.parquet", output=store, bands=SENSORS[sensors], context=weather, group_column="none"
            )
            for model in options.models.split(","):
                for seed in map(int, options.seeds.split(",")):
                    for fold in map(int, options.folds.split(",")):
                        row = {"table": options.table.stem, "hidden": options.hidden, "sensors": sensors}
                        row |= {"model": model, "seed": seed, "fold": fold}
                        for line in train(folder, store, row):
                            with options.output.open("a") as handle:
                                handle.write(json.dumps(line) + "\n")


def chosen_fields(path: Path, *, hidden: bool) -> pd.DataFrame:
    """The table without rare crops; with `hidden`, dates drawn for each field have no optical value."""
    frame = pd.read_parquet(path)
    fields = frame.groupby("ewoc_code")["sample_id"].nunique()
    frame = frame[frame["ewoc_code"].map(fields) >= FEWEST].reset_index(drop=True)
    if hidden:
        columns = [column for column in frame if str(column).startswith("S2-")]
        frame.loc[np.random.default_rng(0).random(len(frame)) < HIDDEN, columns] = 65535
    return frame


def train(folder: Path, store: Path, row: dict[str, object]) -> list[dict[str, object]]:
    both = "S2 + S1" in str(row["sensors"])
    settings: dict[str, object] = {"split.folds": FOLDS, "split.fold": row["fold"]}
    if row["model"] != "rf":
        settings |= {"cross_fit": 0, **({"augmentation.sensor_dropout": 0.2} if both else {})}
    run = cropstar.train(
        store=store,
        model=str(row["model"]),
        seed=int(str(row["seed"])),
        settings=settings,
        runs=folder / "runs",
        fresh=True,
    )
    found = [
        {**row, "accuracy": run.metrics["parcel"]["overall_accuracy"], "macro_f1": run.metrics["parcel"]["macro_f1"]}
    ]
    if row["sensors"] == "S2 + S1" and row["model"] != "rf":
        cropstar.predict(folder / "optical.parquet", model=run, output=folder / "dropped.csv", overwrite=True)
        said = pd.read_csv(folder / "dropped.csv", dtype={"class": str, "declared": str}).set_index("id")
        said = said.loc[test_fields(store, settings, int(str(row["seed"])))]
        right = (said["class"] == said["declared"]).mean()
        found.append({**row, "sensors": "S2 + S1, S1 dropped", "accuracy": float(right)})
    return found


def test_fields(folder: Path, settings: dict[str, object], seed: int) -> list[str]:
    store = Store.open(folder)
    split = {name.partition(".")[2]: value for name, value in settings.items() if name.startswith("split.")}
    config = TrainConfig.model_validate({"store": folder, "seed": seed, "split": split})
    chosen = training_split(store, config)
    keys = []
    for _, reader in store.readers():
        for number, key in zip(reader.table.numbers, reader.table.keys, strict=True):
            if chosen.part_of.get((reader.scene, int(number))) == "test":
                keys.append(key)
    store.close()
    return keys


if __name__ == "__main__":
    main()
