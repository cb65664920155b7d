"""Radar and weather beside optical series: WorldCereal's fields by sensor, over folds or from one year to the other.

    python benchmarks/sensors.py france_2023_dekads.geoparquet --seeds 0,1,2 --work data/sensors
    python benchmarks/sensors.py france_2023_dekads.geoparquet --hidden --sensors S2,S2+S1 --work data/sensors
    python benchmarks/sensors.py france_2022_months.geoparquet france_2023_dekads.geoparquet --work data/sensors
    python benchmarks/sensors.py --summary --work data/sensors
    python benchmarks/sensors.py --early --work data/sensors

Crops with at least 15 fields (in each year, of two tables). `star` has no option but the split; `forest` is
scikit-learn's on values interpolated to the training fields' days, on the very same fields; other names are models of
cropstar. Each line of `results.jsonl` is one training with its accuracy on the fields held out; what is there is not
repeated, so that the command can be cut off and given again. `--hidden` takes seven of ten optical dates away, in
training and test alike. "S2+S1 without S1" is the model of both, asked without radar. `--set` and `--name` measure
other settings under a name of their own.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections import defaultdict
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from kept_results import KeptResults
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import accuracy_score, f1_score

import cropstar
from cropstar.config import TrainConfig
from cropstar.datasets.splits import training_split
from cropstar.runtime import logger
from cropstar.store.store import Store
from cropstar.training.check import keys_of_parcels

OPTICAL = ["B02", "B03", "B04", "B05", "B06", "B07", "B08", "B11", "B12"]
RADAR = ["VV", "VH"]
WEATHER = ["AGERA5-TMEAN", "AGERA5-PRECIP"]
SENSORS = {"S2": OPTICAL, "S1": RADAR, "S2+S1": OPTICAL + RADAR, "S2+S1+weather": OPTICAL + RADAR}
FOLDS, FEWEST, HIDDEN, NODATA = 5, 15, 0.7, 65535
MONTHLY = 6  # of the days on which runs are judged, every tenth


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", type=Path, nargs="*", help="one table, or two years")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--models", default="forest,star")
    parser.add_argument("--sensors", default=",".join(SENSORS))
    parser.add_argument("--hidden", action="store_true", help="seven of ten optical dates are taken away")
    parser.add_argument("--folds", default="1,2,3,4,5")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE", help="of networks")
    parser.add_argument("--name", help="of the model with these settings in the results")
    parser.add_argument("--work", type=Path, default=Path("data/sensors"))
    parser.add_argument("--early", action="store_true", help="print how early crops are known, and run nothing")
    parser.add_argument("--summary", action="store_true", help="print the table of what is there, and run nothing")
    options = parser.parse_args()
    logger.setLevel("ERROR")
    if options.early:
        say_how_early(options.work)
        return
    kept = KeptResults(options.work)
    if not options.summary:
        measure(options, kept)
    summarise(kept.rows)


def measure(options: argparse.Namespace, kept: KeptResults) -> None:
    data = "+".join(table.stem for table in options.tables) + (" hidden" if options.hidden else "")
    folder = options.work / data.replace(" ", "-")
    frame = prepared(options.tables, folder, hidden=options.hidden)
    own = {name: json.loads(value) for name, _, value in (each.partition("=") for each in options.settings)}
    years = sorted(map(str, frame["year"].unique())) if len(options.tables) > 1 else []
    parts: dict[str, dict[str, Any]] = {
        **{f"test {year}": {"split.by": "group", "split.test": [year]} for year in years},
        **(
            {}
            if years
            else {f"fold {n}": {"split.folds": FOLDS, "split.fold": int(n)} for n in options.folds.split(",")}
        ),
    }
    for seed in map(int, options.seeds.split(",")):
        for sensors in options.sensors.split(","):
            for model in options.models.split(","):
                for part, split in parts.items():
                    name = model if model == "forest" else options.name or model
                    row = {"data": data, "sensors": sensors, "model": name, "seed": seed, "part": part}
                    if kept.matching(row):
                        continue
                    store = ingested(folder, sensors, years=bool(years))
                    if model == "forest":
                        found = iter([forest(frame, store, split, row)])
                    else:
                        found = train(folder, store, model, split, own, row)
                    for line in found:
                        kept.add(line)


def prepared(tables: list[Path], folder: Path, *, hidden: bool) -> pd.DataFrame:
    """The fields of the usual crops; with `hidden`, dates drawn for each field have no optical value."""
    if not (folder / "fields.parquet").exists():
        folder.mkdir(parents=True, exist_ok=True)
        frames = []
        for table in tables:
            frame = pd.read_parquet(table)
            fields = frame.groupby("ewoc_code")["sample_id"].nunique()
            frames.append(frame[frame["ewoc_code"].map(fields) >= FEWEST])
        shared = set.intersection(*(set(frame["ewoc_code"]) for frame in frames))
        frame = pd.concat([each[each["ewoc_code"].isin(shared)] for each in frames], ignore_index=True)
        if hidden:
            columns = [column for column in frame if str(column).startswith("S2-")]
            frame.loc[np.random.default_rng(0).random(len(frame)) < HIDDEN, columns] = NODATA
        no_radar = frame.drop(columns=[column for column in frame if str(column).startswith("S1-")])
        no_radar.to_parquet(folder / "optical.parquet")
        frame.to_parquet(folder / "fields.parquet")
    return pd.read_parquet(folder / "fields.parquet")


def ingested(folder: Path, sensors: str, *, years: bool) -> Path:
    store = folder / "stores" / sensors
    if not (store / "manifest.json").exists():
        weather = WEATHER if "weather" in sensors else None
        group = "year" if years else "none"
        cropstar.ingest(
            folder / "fields.parquet", output=store, bands=SENSORS[sensors], context=weather, group_column=group
        )
    return store


def train(
    folder: Path, store: Path, model: str, split: dict[str, Any], own: dict[str, Any], row: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    runs = folder / "runs" / f"{row['model']}-{row['sensors']}-{row['part']}-{row['seed']}".replace(" ", "-")
    shutil.rmtree(runs, ignore_errors=True)
    run = cropstar.train(store=store, model=model, seed=row["seed"], settings={**split, **own}, runs=runs)
    figures = run.metrics["parcel"]
    yield {**row, "accuracy": figures["overall_accuracy"], "macro_f1": figures["macro_f1"]}
    if row["sensors"] == "S2+S1" and model not in ("rf", "hgb"):
        answers = runs / "without.csv"
        cropstar.predict(folder / "optical.parquet", model=run, output=answers, overwrite=True)
        said = pd.read_csv(answers, dtype={"class": str, "declared": str, "id": str}).set_index("id")
        said = said.loc[fields_of(store, split, row["seed"])["test"]]
        known = said["class"].fillna("none")  # a field without any optical date has no class: wrong
        yield {**row, "sensors": "S2+S1 without S1", **scores(said["declared"], known)}


def forest(frame: pd.DataFrame, store: Path, split: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """What a user would write in ten lines: every column interpolated to the days that training fields have."""
    parts = fields_of(store, split, row["seed"])
    known, asked = [*parts["train"], *parts["validation"]], parts["test"]
    bands = [("S1-SIGMA0-" if band in RADAR else "S2-L2A-") + band for band in SENSORS[row["sensors"]]]
    bands += WEATHER if "weather" in row["sensors"] else []
    first = pd.to_datetime(frame["start_date"]).groupby(frame["sample_id"]).transform("first")
    frame = frame.assign(since=(frame["timestamp"] - first).dt.days, sample_id=frame["sample_id"].astype(str))
    days = np.unique(frame["since"][frame["sample_id"].isin(known)])

    def filled(field: pd.DataFrame) -> np.ndarray[Any, Any]:
        columns = []
        for band in bands:
            valid = (field[band] != NODATA).to_numpy()
            line = np.interp(days, field["since"][valid], field[band][valid]) if valid.any() else np.zeros(len(days))
            columns.append(line)
        return np.concatenate(columns)

    groups = frame.sort_values("since").groupby("sample_id")
    features = {key: filled(field) for key, field in groups}
    labels = {key: str(field["ewoc_code"].iloc[0]) for key, field in groups}
    model = RandomForestClassifier(300, random_state=row["seed"])
    model.fit([features[key] for key in known], [labels[key] for key in known])
    return {**row, **scores([labels[key] for key in asked], model.predict([features[key] for key in asked]))}


def fields_of(folder: Path, split: dict[str, Any], seed: int) -> dict[str, list[str]]:
    """The ids of the fields of each part."""
    named = {name.partition(".")[2]: value for name, value in split.items()}
    config = TrainConfig.model_validate({"store": folder, "seed": seed, "split": named})
    parts: dict[str, list[str]] = {"train": [], "validation": [], "test": []}
    with Store.open(folder) as store:
        part_of = training_split(store, config).part_of
        for parcel, key in keys_of_parcels(store).items():
            if (part := part_of.get(parcel)) in parts:
                parts[part].append(key)
    return parts


def scores(labels: Any, answers: Any) -> dict[str, float]:
    return {
        "accuracy": float(accuracy_score(labels, answers)),
        "macro_f1": float(f1_score(labels, answers, average="macro")),
    }


def summarise(rows: list[dict[str, Any]]) -> None:
    """Means over parts and seeds, the standard deviation over all of them, and the mean of every seed."""
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for line in rows:
        found[line["data"], line["model"], line["sensors"]].append(line)
    print("| data | model | sensors | accuracy (deviation) | macro-F1 | trainings | by seed |")
    print("| --- | --- | --- | --- | --- | --: | --- |")
    for (data, model, sensors), own in sorted(found.items()):
        accuracy = [line["accuracy"] for line in own]
        seeds = sorted({line["seed"] for line in own})
        by_seed = [np.mean([line["accuracy"] for line in own if line["seed"] == seed]) for seed in seeds]
        print(
            f"| {data} | {model} | {sensors} | {np.mean(accuracy):.3f} ({np.std(accuracy):.3f}) "
            f"| {np.mean([line['macro_f1'] for line in own]):.3f} | {len(own)} "
            f"| {' '.join(f'{each:.3f}' for each in by_seed)} |"
        )


def say_how_early(work: Path) -> None:
    """The F1 of each crop in the course of the season, means over the runs weighted by their test fields."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for path in sorted(work.glob("*/runs/*/*/result.json")):
        model, sensors = path.parts[-3].split("-")[:2]
        found[path.parts[-5], f"{model}, {sensors}"].append(json.loads(path.read_text(encoding="utf-8")))
    for data, name in sorted(found):
        own = found[data, name]
        early = [result["earliness"] for result in own]
        days, start = early[0]["days"], early[0]["start"]
        chosen = [place for place in range(len(days)) if place % MONTHLY == 0 or place == len(days) - 1]
        labels = [f"{date(2001, 1, 1) + timedelta(days=start - 1 + days[place]):%d %b}" for place in chosen]
        print(f"\n{data}, {name}, {len(own)} runs\n\n| crop | fields | {' | '.join(labels)} |")
        print("| --- | --: |" + " --: |" * len(chosen))
        fields = np.array([each["support"] for each in early], dtype=float)  # (runs, classes)
        scores = np.nan_to_num(np.array([each["class_f1"] for each in early], dtype=float))  # (runs, classes, days)
        for number, crop in enumerate(own[0]["classes"]):
            means = (scores[:, number] * fields[:, [number]]).sum(axis=0) / max(fields[:, number].sum(), 1)
            cells = [f"{means[place]:.2f}" for place in chosen]
            print(f"| {crop['name']} | {fields[:, number].sum():.0f} | {' | '.join(cells)} |")
        total = fields.sum(axis=1)
        accuracy = (np.array([each["accuracy"] for each in early]) * total[:, None]).sum(axis=0) / total.sum()
        print(f"| accuracy | {total.sum():.0f} | {' | '.join(f'{accuracy[place]:.2f}' for place in chosen)} |")


if __name__ == "__main__":
    main()
