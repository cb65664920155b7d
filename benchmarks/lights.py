"""The traffic light of declared crops: the promised rate of false alarms against the observed one.

    python benchmarks/lights.py fields_2016_2017.parquet --model rf --work /tmp/lights

In each draw 70 % of the fields of one year train a model with `--folds 5`. Its other fields, and all those of the
other years, are then checked by it, with their own labels, which count as right, and with one wrong crop each, drawn at
random. A line for each pair of years and rate: how many right declarations are red, and how many wrong ones; and in how
many draws `check` itself said that the rate is not promised. Results are kept and not computed again.
"""

from __future__ import annotations

import argparse
import shutil
from collections import defaultdict
from pathlib import Path

import numpy as np
import pandas as pd
from kept_results import KeptResults

import cropstar

RATES = (0.01, 0.05, 0.1)
SHARE = 0.7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--model", default="rf")
    parser.add_argument("--recipe", default="quick")
    parser.add_argument("--draws", default="0,1,2")
    parser.add_argument("--id-column", default="field_id")
    parser.add_argument("--label", default="crop")
    parser.add_argument("--work", type=Path, required=True)
    given = parser.parse_args()
    kept = KeptResults(given.work)
    table = pd.read_parquet(given.table)
    rows = []
    for draw in map(int, given.draws.split(",")):
        for year in sorted(table.year.unique().tolist()):
            asked = {"model": given.model, "recipe": given.recipe, "draw": draw, "trained": year}
            if not kept.matching(asked):
                kept.add(*(asked | row for row in one_draw(given, table, year, draw)))
            rows += kept.matching(asked)
    groups = defaultdict(list)
    for row in rows:
        groups[row["trained"], row["checked"], row["rate"]].append(row)
    print(
        f"{'trained':<8} {'checked':<8} {'rate':>5} {'right red':>10} {'each draw':<20} {'wrong red':>10}  not promised"
    )
    for (trained, checked, rate), own in groups.items():
        each = " ".join(f"{row['red']:.3f}" for row in own)
        right, wrong = (float(np.mean([row[name] for row in own])) for name in ("red", "wrong_red"))
        said = sum(not row["promised"] for row in own)
        print(f"{trained:<8} {checked:<8} {rate:>5} {right:>10.3f} {each:<20} {wrong:>10.3f}  {said} of {len(own)}")


def one_draw(given: argparse.Namespace, table: pd.DataFrame, year: int, draw: int) -> list[dict[str, float | bool]]:
    """The observed shares of red declarations, for each year and rate."""
    random = np.random.default_rng([draw, year])
    fields = random.permutation(np.unique(table[given.id_column][table.year == year]))
    learnt = set(fields[: round(SHARE * len(fields))].tolist())
    mine = table[given.id_column].isin(learnt)
    runs = given.work / "runs"
    shutil.rmtree(runs, ignore_errors=True)
    store = ingest(given, table[mine], "store")
    run = cropstar.train(
        store=store, model=given.model, recipe=given.recipe, folds=5, seed=draw, runs=runs, settings=["split.by=parcel"]
    )
    rows = []
    for other in sorted(table.year.unique().tolist()):
        checked = table[(table.year == other) & ~mine]
        other_store = ingest(given, checked, f"store-{other}")
        wrong = given.work / "wrong.csv"
        labels = checked.drop_duplicates(given.id_column)
        names = np.unique(table[given.label])
        declared = [random.choice(names[names != label]) for label in labels[given.label]]
        pd.DataFrame({"id": labels[given.id_column], "crop": declared}).to_csv(wrong, index=False)
        for rate in RATES:
            output = given.work / "checked.csv"
            how = {"store": other_store, "false_alarms": rate, "survey": 0, "output": output, "overwrite": True}
            right = cropstar.check(run.folder, **how)
            false = cropstar.check(run.folder, **how, parcels=wrong, declared="crop")
            rows.append(
                {
                    "checked": other,
                    "rate": rate,
                    "fields": right.facts["fields"],
                    "red": right.facts["lights"]["red"] / right.facts["fields"],
                    "wrong_red": false.facts["lights"]["red"] / false.facts["fields"],
                    "promised": right.facts["promised"],
                }
            )
    return rows


def ingest(given: argparse.Namespace, table: pd.DataFrame, name: str) -> Path:
    path = given.work / f"{name}.parquet"
    table.drop(columns="year").to_parquet(path, index=False)
    return Path(cropstar.ingest(path, output=given.work / name, overwrite=True))


if __name__ == "__main__":
    main()
