"""Wrong labels: how many of them are found, and what `--clean` gains.

A tenth of the labels is swapped, at random or, harder, for the crop that the fields look most like (to a forest that
learnt the right labels). Each field is then judged by a model that never saw it (`cross_fit`, and the test part by the
finished model).

    pip install cleanlab
    cropstar ingest            # makes the demonstration scene in data/demo
    python benchmarks/labels.py --table fields_2016_2017.parquet --scene data/demo --models rf,star --work /tmp/labels

A line a case, a mean over the draws: of the ranking, precision of the first tenth (where it equals recall) and the area
under the ROC curve, beside cleanlab's default ranking of the same probabilities; number, precision and recall of the
suspects, and of cleanlab's default filter; the accuracy on the test fields, against their right labels, before and
after `--clean`. A table is taken year by year. Results are kept in the work folder and not computed again.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import geopandas
import numpy as np
import pandas as pd
from cleanlab.filter import find_label_issues
from cleanlab.rank import get_label_quality_scores
from kept_results import KeptResults
from sklearn.metrics import roc_auc_score

import cropstar
from cropstar.store.store import Store
from cropstar.training.check import keys_of_parcels
from cropstar.training.label_noise import FieldProbabilities, find_suspects, suspicion

SHARE = 0.1
FOLDS = 3
WAYS = ("random", "look-alikes")


class Data:
    """Labelled fields, of a table or a scene, that can be ingested with other labels."""

    def __init__(self, name: str, frame: Any, key: str, label: str, scene: Path | None = None) -> None:
        self.name, self.frame, self.key, self.label, self.scene = name, frame, key, label, scene
        self.labels: dict[str, str] = frame.drop_duplicates(key).astype({key: str}).set_index(key)[label].to_dict()

    def ingest(self, labels: Mapping[str, str], work: Path) -> Path:
        frame = self.frame.assign(**{self.label: self.frame[self.key].astype(str).map(labels)})
        if self.scene is None:
            table = work / "fields.parquet"
            frame.to_parquet(table, index=False)
            return Path(cropstar.ingest(table, output=work / "store", overwrite=True))
        parcels = work / "parcels.gpkg"
        frame.to_file(parcels)
        tile = self.scene / "tile.tif"
        return Path(cropstar.ingest(tile, parcels=parcels, output=work / "store", overwrite=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--scene", type=Path, help="a folder with tile.tif and parcels.gpkg")
    parser.add_argument("--models", default="rf,star")
    parser.add_argument("--recipe", default="quick")
    parser.add_argument("--draws", default="0,1,2")
    parser.add_argument("--work", type=Path, required=True)
    given = parser.parse_args()
    kept = KeptResults(given.work)
    print("P and AUC of the ranking, those of cleanlab; suspects; cleanlab's filter; accuracy before and after --clean")
    for data in data_sets(given):
        for way in WAYS:
            for model in given.models.split(","):
                rows = []
                for draw in map(int, given.draws.split(",")):
                    asked = {"data": data.name, "way": way, "model": model, "recipe": given.recipe, "draw": draw}
                    if not kept.matching(asked):
                        kept.add(asked | one_case(data, way, model, given.recipe, draw, given.work))
                    rows += kept.matching(asked)[:1]
                print(_line(rows), flush=True)


def data_sets(given: argparse.Namespace) -> Iterator[Data]:
    if given.table is not None:
        for year, frame in pd.read_parquet(given.table).groupby("year"):
            yield Data(f"{given.table.stem} {year}", frame.drop(columns="year"), "field_id", "crop")
    if given.scene is not None:
        parcels = geopandas.read_file(given.scene / "parcels.gpkg")
        yield Data("scene", parcels, "parcel_id", "crop", given.scene)


def _line(rows: Sequence[Mapping[str, Any]]) -> str:
    figures = [name for name, value in rows[0].items() if isinstance(value, int | float)]
    mean = {name: float(np.mean([row[name] for row in rows])) for name in figures}
    changes = " ".join(f"{row['after'] - row['before']:+.3f}" for row in rows)
    return (
        f"{rows[0]['data']:<22} {rows[0]['way']:<12} {rows[0]['model']:<5} "
        f"{mean['p']:.3f} {mean['auc']:.3f}  {mean['cleanlab_p']:.3f} {mean['cleanlab_auc']:.3f}  "
        f"{mean['suspects']:4.0f} {mean['suspects_p']:.2f} {mean['suspects_r']:.2f}  "
        f"{mean['filter']:4.0f} {mean['filter_p']:.2f} {mean['filter_r']:.2f}  "
        f"{mean['before']:.3f} -> {mean['after']:.3f} ({changes})"
    )


def one_case(data: Data, way: str, model: str, recipe: str, draw: int, work: Path) -> dict[str, float]:
    """The figures of one draw of wrong labels."""
    wrong_labels = swapped(data, way, draw, work)
    store = data.ingest(wrong_labels, work)
    keys, likely, labels, tested, names = judged(store, model, recipe, draw, work, clean=False)
    truth = np.array([names.index(data.labels[key]) for key in keys])
    wrong = labels != truth
    fields = FieldProbabilities([("", 0)] * len(keys), labels, likely, ~tested)
    ours, theirs = suspicion(fields), -get_label_quality_scores(labels, likely, method="self_confidence")
    suspects = np.zeros(len(keys), dtype=bool)
    suspects[[suspect.place for suspect in find_suspects(fields)]] = True
    issues = find_label_issues(labels, likely)
    cleaned = judged(store, model, recipe, draw, work, clean=True)
    assert cleaned[0] == keys
    return {
        "p": _first(ours, wrong),
        "auc": float(roc_auc_score(wrong, ours)),
        "cleanlab_p": _first(theirs, wrong),
        "cleanlab_auc": float(roc_auc_score(wrong, theirs)),
        **_counted("suspects", suspects, wrong),
        **_counted("filter", issues, wrong),
        "before": float((likely.argmax(axis=1) == truth)[tested].mean()),
        "after": float((cleaned[1].argmax(axis=1) == truth)[tested].mean()),
        "tested": int(tested.sum()),
    }


def _first(scores: np.ndarray, wrong: np.ndarray) -> float:
    return float(wrong[np.argsort(-scores, kind="stable")[: int(wrong.sum())]].mean())


def _counted(name: str, found: np.ndarray, wrong: np.ndarray) -> dict[str, float]:
    both = int((found & wrong).sum())
    return {name: int(found.sum()), f"{name}_p": both / max(int(found.sum()), 1), f"{name}_r": both / int(wrong.sum())}


def judged(
    store: Path, model: str, recipe: str, seed: int, work: Path, *, clean: bool
) -> tuple[list[str], np.ndarray, np.ndarray, np.ndarray, list[str]]:
    """Keys, probabilities and labels of all fields, those of the test part, and the names of the classes."""
    runs = work / "runs"
    shutil.rmtree(runs, ignore_errors=True)
    with Store.open(store) as opened:
        names, key_of = opened.fingerprint.classes.names, keys_of_parcels(opened)
        images = any(reader.images for reader in opened.tiles)
    run = cropstar.train(
        store=store,
        model=model,
        recipe=recipe,  # type: ignore[arg-type]
        target="parcel" if images else None,  # as `cropstar check` trains
        seed=seed,
        clean=clean,
        settings={"cross_fit": FOLDS},
        runs=runs,
    )
    fields = FieldProbabilities.read(run.folder / "out-of-fold.safetensors", names)
    order = np.argsort([key_of[parcel] for parcel in fields.parcels])
    fields = fields.rows(order)
    return [key_of[each] for each in fields.parcels], fields.probabilities, fields.labels, ~fields.in_folds, list(names)


def swapped(data: Data, way: str, draw: int, work: Path) -> dict[str, str]:
    """The labels with a tenth of them wrong."""
    random = np.random.default_rng([draw, WAYS.index(way)])
    names = sorted(set(data.labels.values()))
    alike = look_alikes(data, work) if way == "look-alikes" else {}
    labels = dict(data.labels)
    for key in random.permutation(sorted(labels))[: round(SHARE * len(labels))].tolist():
        others = [name for name in names if name != labels[key]]
        labels[key] = alike.get(labels[key]) or others[random.integers(len(others))]
    return labels


def look_alikes(data: Data, work: Path) -> dict[str, str]:
    """For each crop the other one that a forest finds most probable for its fields, out of fold."""
    file = work / f"look-alikes-{data.name}.json"
    if not file.exists():
        store = data.ingest(data.labels, work)
        _, likely, labels, _, names = judged(store, "rf", "quick", 0, work, clean=False)
        means = np.array([likely[labels == number].mean(axis=0) for number in range(len(names))])
        np.fill_diagonal(means, 0)
        file.write_text(json.dumps({names[own]: names[other] for own, other in enumerate(means.argmax(axis=1))}))
    found: dict[str, str] = json.loads(file.read_text())
    return found


if __name__ == "__main__":
    main()
