"""Does a survey of the fields that `cropstar check` proposes teach more than one of as many fields drawn at random?

    python benchmarks/survey.py fields_2016_2017.parquet --model rf --work /tmp/survey
    python benchmarks/survey.py fields_2016_2017.parquet --model star --draws 0,1,2,3,4 --work /tmp/survey

In each draw a third of the fields is the test part. A model learns from some of the others (`--start`), and ranks the
rest by its probabilities, as `cropstar check` does. It then learns anew from these fields and the first of the ranking,
or as many others at random (`--add`). A line a draw: accuracy / macro-F1 on the test fields, with the first fields
alone, with those surveyed and with those drawn. Every line is kept in `results.jsonl` and not computed again.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from kept_results import KeptResults

import cropstar
from cropstar.training.label_noise import FieldProbabilities, choose_survey

WAYS = ("survey", "random")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--model", default="rf")
    parser.add_argument("--recipe", default="quick")
    parser.add_argument("--draws", default="0,1,2,3,4")
    parser.add_argument("--start", type=int, default=60)
    parser.add_argument("--add", type=int, default=60)
    parser.add_argument("--id-column", default="field_id")
    parser.add_argument("--label", default="crop")
    parser.add_argument("--work", type=Path, required=True)
    given = parser.parse_args()
    kept = KeptResults(given.work)
    rows = []
    for draw in map(int, given.draws.split(",")):
        asked = {"table": given.table.name, "draw": draw}
        asked |= {name: getattr(given, name) for name in ("model", "recipe", "start", "add")}
        if not kept.matching(asked):
            kept.add(asked | one_draw(given, draw))
        row = kept.matching(asked)[0]
        rows.append(row)
        print(f"draw {draw}  " + "  ".join(f"{way} {_figures([row], way)}" for way in ("first", *WAYS)), flush=True)
    print("mean    " + "  ".join(f"{way} {_figures(rows, way)}" for way in ("first", *WAYS)))


def _figures(rows: Sequence[dict[str, list[float]]], way: str) -> str:
    accuracy, macro_f1 = np.mean([row[way] for row in rows], axis=0)
    return f"{accuracy:.3f} / {macro_f1:.3f}"


def one_draw(given: argparse.Namespace, draw: int) -> dict[str, list[float]]:
    """Accuracy and macro-F1 after each way to choose fields."""
    table = pd.read_parquet(given.table).drop(columns="year", errors="ignore")
    order = np.random.default_rng(draw).permutation(np.unique(table[given.id_column]))
    test, rest = order[: len(order) // 3], order[len(order) // 3 :]
    first, others = rest[: given.start], rest[given.start :]
    model, figures = trained(given, table, first, test)
    found = {"first": figures}
    pool = given.work / "pool.parquet"
    table[table[given.id_column].isin(others)].to_parquet(pool, index=False)
    answers = given.work / "pool-classes.csv"
    cropstar.predict(pool, output=answers, model=model, overwrite=True)
    names, likely = probabilities(answers)
    fields = FieldProbabilities([("", 0)] * len(names), likely.argmax(axis=1), likely, np.zeros(len(names), dtype=bool))
    chosen = {
        "survey": names[choose_survey(fields, None, given.add)],
        "random": np.random.default_rng([draw, 1]).permutation(others)[: given.add],
    }
    for way in WAYS:
        found[way] = trained(given, table, np.concatenate([first, chosen[way]]), test)[1]
    return found


def trained(
    given: argparse.Namespace, table: pd.DataFrame, learnt: np.ndarray, test: np.ndarray
) -> tuple[Path, list[float]]:
    """A model that learnt from these fields, and its figures on the test fields."""
    part = dict.fromkeys(learnt, "learnt") | dict.fromkeys(test, "test")
    own = table.assign(group=table[given.id_column].map(part)).dropna(subset="group")
    path = given.work / "fields.parquet"
    own.to_parquet(path, index=False)
    store = cropstar.ingest(path, output=given.work / "store", overwrite=True)
    settings = {"split.by": "group", "split.train": ["learnt"], "split.test": ["test"]}
    run = cropstar.train(
        store=store,
        model=given.model,
        recipe=given.recipe,
        settings=settings,
        runs=given.work / "runs",
        fresh=True,
    )
    return run.model, [run.metrics["parcel"]["overall_accuracy"], run.metrics["parcel"]["macro_f1"]]


def probabilities(table: Path) -> tuple[np.ndarray, np.ndarray]:
    """Names of fields, and the probability of every class."""
    frame = pd.read_csv(table, dtype={0: str})
    columns = [name for name in frame.columns if name.startswith("p_")]
    return frame.iloc[:, 0].to_numpy(), frame[columns].to_numpy(dtype=np.float64)


if __name__ == "__main__":
    main()
