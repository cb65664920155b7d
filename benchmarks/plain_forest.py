"""What scikit-learn alone makes of a table of fields: one year to train, the other to test, dates x bands as they are.

    python benchmarks/plain_forest.py fields_2016_2017.parquet

The rival that a user would write in ten lines, for docs/results.md: the whole training year, no tuning, three seeds.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier

NAMES = ["field_id", "date", "crop", "year"]


def features(table: pd.DataFrame) -> tuple[NDArray[np.float64], NDArray[np.object_], NDArray[np.int64]]:
    """(fields, dates x bands), crops and years. The n-th date of one year stands beside that of the other."""
    table = table.sort_values(["field_id", "date"])
    fields = [rows for _, rows in table.groupby("field_id", sort=True)]
    length = min(map(len, fields))
    bands = [column for column in table.columns if column not in NAMES]
    values = np.stack([rows[bands].to_numpy(dtype=float)[:length].ravel() for rows in fields])
    firsts = pd.concat([rows.iloc[:1] for rows in fields])
    return values, firsts["crop"].to_numpy(dtype=object), firsts["year"].to_numpy(dtype=np.int64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--trees", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    values, crops, years = features(pd.read_parquet(arguments.table))
    means = []
    for seed in range(arguments.seeds):
        accuracies = []
        for tested in sorted(set(years), reverse=True):
            held_out = years == tested
            forest = RandomForestClassifier(arguments.trees, random_state=seed, n_jobs=-1)
            forest.fit(values[~held_out], crops[~held_out])
            accuracies.append(float(forest.score(values[held_out], crops[held_out])))
            print(f"seed {seed}, tested on {tested}: {accuracies[-1]:.4f}")
        means.append(np.mean(accuracies))
    print(f"mean {np.mean(means):.4f}, spread of the seeds {np.std(means, ddof=1):.4f}")


if __name__ == "__main__":
    main()
