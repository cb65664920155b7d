"""The table of defaults: `cropstar train` over real data sets, folds and seeds, beside rivals on the same fields.

    python benchmarks/defaults.py --data ../shared/data --work data/defaults
    python benchmarks/defaults.py ... --sets worldcereal-2022,fra-lpis --seeds 0,1 --peers RF,HGB
    python benchmarks/defaults.py ... --variant 'bistar=--model bistar' --variant 'student=--distil {bistar}'
    python benchmarks/defaults.py --store data/stores/mine --group 2022 --group 2023 --work data/defaults

Without `--variant` the models are those that a data set names, with no option but `--model` and the split. Variants
have names and options of their own; `{bistar}` is the run of that variant with the same part held out and the same
seed. Stores are ingested once; every run is a line of `results.jsonl` in the work folder and is not repeated, so that
the command can be cut off and given again. Rivals (benchmarks/peers.py) learn from the training and validation fields
of a run, and are judged on its test fields. The table has accuracy / macro-F1 by field: means over parts (folds,
directions) and seeds, and the accuracy of each seed. `--store` measures a store of one's own: five folds, or one run
per group.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shlex
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from kept_results import KeptResults
from peers import on_one_calendar, rivals, split_of

FOLDS = 5
ENOUGH = 15  # fields of a crop, to be among the classes of WorldCereal
KINDS = ("parcel", "pixel")


@dataclass(frozen=True)
class DataSet:
    """A store, how it comes about, and the parts that are each held out once."""

    name: str
    prepare: Callable[[Path, Path], list[str]]  # of the data and a scratch folder: the arguments of `cropstar ingest`
    parts: dict[str, list[str]]  # options of `cropstar train`
    models: tuple[str, ...] = ("star",)
    store: Path | None = None  # that is there already


def folds(count: int = FOLDS) -> dict[str, list[str]]:
    return {
        f"fold {number}": ["--set", f"split.folds={count}", "--set", f"split.fold={number}"]
        for number in range(1, count + 1)
    }


def groups(*names: str) -> dict[str, list[str]]:
    return {f"test {name}": ["--split-by", "group", "--set", f"split.test={json.dumps([name])}"] for name in names}


def bavaria(data: Path, _: Path) -> list[str]:
    return [str(data / "bavaria" / "fields_2016_2017.parquet")]


def few_of_bavaria(fields: int, draws: int, again: int = 0) -> Callable[[Path, Path], list[str]]:
    """Fields of each crop dealt out at random to so many draws, so many to each; the rest belongs to none.

    `again`: dealt out another time, where the fields are too few for more draws.
    """

    def prepare(data: Path, scratch: Path) -> list[str]:
        table = pd.read_parquet(data / "bavaria" / "fields_2016_2017.parquet").drop(columns="year")
        names = table.drop_duplicates("field_id").sample(frac=1, random_state=fields + again)
        place = names.groupby("crop").cumcount() // fields + 1
        draw_of = dict(zip(names.field_id, place.where(place <= draws, 0), strict=True))
        path = scratch / f"bavaria-{fields}-{again}.parquet"
        table.assign(group=table.field_id.map(draw_of).astype(str)).to_parquet(path, index=False)
        return [str(path)]

    return prepare


def one_draw(draws: int, *, rest: bool = True) -> dict[str, list[str]]:
    """One draw to learn from, all others and the rest, if there is one, to test."""
    names = [str(number) for number in range(draws + 1)]
    return {
        f"draw {own}": [
            *("--split-by", "group", "--set", f"split.train={json.dumps([own])}"),
            *("--set", f"split.test={json.dumps([name for name in names[not rest :] if name != own])}"),
        ]
        for own in names[1:]
    }


def fra_lpis(data: Path, _: Path) -> list[str]:
    return [str(data / "fra-lpis" / "parcels_2023_dekads.parquet")]


def t31tej(data: Path, _: Path) -> list[str]:
    folder = data / "sentinel2-t31tej"
    parcels = folder / "parcels" / "france_data_2018.shp"
    return [str(folder / "safe"), "--parcels", str(parcels), "--label-column", "EC_hcat_n"]


def ucr_crop(data: Path, scratch: Path) -> list[str]:
    for part in ("TRAIN", "TEST"):
        with (
            gzip.open(data / "ucr-crop" / f"Crop_{part}.tsv.gz") as packed,
            (scratch / f"Crop_{part}.tsv").open("wb") as plain,
        ):
            shutil.copyfileobj(packed, plain)
    return [str(scratch / "Crop_TRAIN.tsv")]


def worldcereal(*years: int) -> Callable[[Path, Path], list[str]]:
    """Sentinel-2 bands of the crops that have fields enough, in every one of the years."""

    def prepare(data: Path, scratch: Path) -> list[str]:
        files = {2022: "france_2022_months", 2023: "france_2023_dekads"}
        tables = []
        for year in years:
            table = pd.read_parquet(data / "worldcereal" / f"{files[year]}.geoparquet")
            counts = table.groupby("ewoc_code").sample_id.nunique()
            table = table[table.ewoc_code.isin(counts[counts >= ENOUGH].index)]
            bands = [name for name in map(str, table) if name.startswith("S2-L2A-") and name != "S2-L2A-B8A"]
            table = table[["sample_id", "timestamp", "ewoc_code", *bands]].sort_values(["sample_id", "timestamp"])
            names = {"timestamp": "date", "ewoc_code": "crop", **{band: band[7:] for band in bands}}
            tables.append(table.rename(columns=names).astype({"crop": str}).assign(year=year))
        shared = set.intersection(*(set(table.crop) for table in tables))
        table = pd.concat([table[table.crop.isin(shared)] for table in tables])
        if len(years) == 1:
            table = table.drop(columns="year")
        path = scratch / f"worldcereal-{'-'.join(map(str, years))}.parquet"
        table.to_parquet(path, index=False)
        return [str(path), "--nodata", "65535"]

    return prepare


SETS = {
    each.name: each
    for each in (
        DataSet("bavaria-years", bavaria, groups("2017", "2016")),
        DataSet("bavaria-folds", bavaria, folds()),
        DataSet("bavaria-5", few_of_bavaria(5, 5), one_draw(5), ("star", "auto")),
        DataSet("bavaria-20", few_of_bavaria(20, 5), one_draw(5), ("star", "auto")),
        *(
            DataSet(f"bavaria-100{name}", few_of_bavaria(100, 2, again), one_draw(2, rest=False), ("star", "auto"))
            for again, name in enumerate(("", "-b", "-c"))
        ),
        DataSet("fra-lpis", fra_lpis, folds()),
        DataSet("worldcereal-2022", worldcereal(2022), folds()),
        DataSet("worldcereal-2023", worldcereal(2023), folds()),
        DataSet("worldcereal-years", worldcereal(2022, 2023), groups("2023", "2022")),
        DataSet("t31tej", t31tej, folds(), ("star", "convstar", "rf")),
        DataSet("ucr-crop", ucr_crop, {"published": ["--split", "published"]}),
    )
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--work", type=Path, default=Path("data/defaults"))
    parser.add_argument("--sets", help=f"with commas between; default: all of {', '.join(SETS)}")
    parser.add_argument("--store", type=Path, help="a store of one's own, instead of --sets")
    parser.add_argument("--group", action="append", default=[], help="of --store: a group to hold out")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--variant", action="append", default=[], metavar="NAME=OPTIONS")
    parser.add_argument("--peers", default="RF", help="rivals on the same fields, with commas between; '' for none")
    parser.add_argument("--table", action="store_true", help="print what is known, and run nothing")
    arguments = parser.parse_args()
    chosen = [SETS[name] for name in (arguments.sets or ",".join(SETS)).split(",")]
    if arguments.store is not None:
        parts = groups(*arguments.group) if arguments.group else folds()
        chosen = [DataSet(arguments.store.name, lambda *_: [], parts, store=arguments.store)]
    variants = dict(variant.split("=", 1) for variant in arguments.variant)
    kept = KeptResults(arguments.work)
    if not arguments.table:
        peers = [name for name in arguments.peers.split(",") if name]
        for seed in map(int, arguments.seeds.split(",")):
            for data_set in chosen:
                own = variants or {model: f"--model {model}" for model in data_set.models}
                measure(data_set, own, peers, seed, arguments.data, arguments.work, kept)
    print_table(kept.rows, [data_set.name for data_set in chosen])


def measure(
    data_set: DataSet, variants: dict[str, str], peers: list[str], seed: int, data: Path, work: Path, kept: KeptResults
) -> None:
    store = data_set.store or ingested(data_set, data, work)
    for part, split in data_set.parts.items():
        run: Path | None = None
        same = {"set": data_set.name, "part": part, "seed": seed}
        for name, options in variants.items():
            key = {**same, "model": name}
            if not kept.matching(key):
                started = time.monotonic()
                runs = work / "runs" / data_set.name / name.replace("/", "-")
                others = {each["model"]: each.get("run", "") for each in kept.matching(same)}
                given = ["--store", str(store), *shlex.split(options.format(**others)), *split, "--seed", str(seed)]
                run = train([*given, "--runs", str(runs), "--quiet"], runs)
                result = json.loads((run / "result.json").read_text(encoding="utf-8"))
                row = {**key, "options": options, "run": str(run), "seconds": round(time.monotonic() - started)}
                for kind in KINDS:
                    if (figures := result["test"].get(kind)) is not None:
                        row[kind] = [figures["overall_accuracy"], figures["macro_f1"]]
                row["out_of_fold"] = result.get("cross_fit", {}).get("overall_accuracy")
                row["chosen"] = result["model"]["name"]
                add(kept, row)
            run = Path(kept.matching(key)[0]["run"])
        for peer in peers:
            key = {**same, "model": peer}
            if run is not None and not kept.matching(key):
                add(kept, {**key, **judged(run, peer, seed)})


def add(kept: KeptResults, row: dict[str, Any]) -> None:
    kept.add(row)
    found = [f"{kind} {row[kind][0]:.3f} / {row[kind][1]:.3f}" for kind in KINDS if kind in row]
    print(row["set"], row["part"], f"seed {row['seed']}", row["model"], *found, f"{row['seconds']} s", flush=True)


def ingested(data_set: DataSet, data: Path, work: Path) -> Path:
    scratch = work / "tables"
    scratch.mkdir(parents=True, exist_ok=True)
    name = data_set.name.removesuffix("-folds")
    store = work / "stores" / name
    if not (store / "manifest.json").exists():
        command = ["ingest", *data_set.prepare(data, scratch), "-o", str(store), "--quiet"]
        subprocess.run([sys.executable, "-m", "cropstar", *command], check=True)
    return store


def train(options: Sequence[str], runs: Path) -> Path:
    """The folder of a finished run; one that was cut off is resumed by the same command."""
    before = set(finished(runs))
    subprocess.run([sys.executable, "-m", "cropstar", "train", *options], check=True)
    new = set(finished(runs)) - before
    if len(new) != 1:
        raise SystemExit(f"{len(new)} new runs in {runs}: the run was there before, and not in results.jsonl")
    return new.pop()


def finished(runs: Path) -> Iterator[Path]:
    return (path.parent for path in runs.glob("*/result.json"))


def judged(run: Path, peer: str, seed: int) -> dict[str, Any]:
    """A rival on the fields of a run."""
    started = time.monotonic()
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    learnt, tested = split_of(run, result, pixels=False)
    known, asked = on_one_calendar(learnt, tested)
    answer = dict(rivals())[peer]
    found = answer(known, learnt.labels, asked, seed)
    return {"parcel": scores(tested.labels, found), "seconds": round(time.monotonic() - started)}


def scores(labels: np.ndarray[Any, Any], answers: np.ndarray[Any, Any]) -> list[float]:
    from sklearn.metrics import accuracy_score, f1_score

    return [float(accuracy_score(labels, answers)), float(f1_score(labels, answers, average="macro"))]


def print_table(results: list[dict[str, Any]], sets: Sequence[str]) -> None:
    print("\n| data | model | runs | accuracy / macro-F1 by field | seeds | by pixel | seconds |")
    print("| --- | --- | --: | --: | --- | --: | --: |")
    for name in sets:
        rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in results:
            if row["set"] == name:
                rows[row["model"]].append(row)
        for model, own in rows.items():
            by_seed = defaultdict(list)
            for row in own:
                by_seed[row["seed"]].append(row["parcel"])
            means = np.array([np.mean(each, axis=0) for each in by_seed.values()])
            pixels = [row["pixel"] for row in own if "pixel" in row and row["pixel"] != row["parcel"]]
            cells = [
                name,
                f"`{model}`",
                str(len(own)),
                "{:.3f} / {:.3f}".format(*means.mean(axis=0)),
                " ".join(f"{accuracy:.3f}" for accuracy, _ in means),
                "{:.3f} / {:.3f}".format(*np.mean(pixels, axis=0)) if pixels else "",
                f"{np.mean([row['seconds'] for row in own]):.0f}",
            ]
            print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
