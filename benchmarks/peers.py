"""What rivals make of the very fields that finished runs were trained and judged on.

    python benchmarks/peers.py data/runs/star-2x128-001 data/runs/star-2x128-002 --seeds 3

For each run its split is read from `result.json` and its series from the store; rivals learn from training and
validation fields together and are judged once on the test fields, like the run itself, whose figures stand beside
theirs. Rivals are what a user would write in ten lines: scikit-learn's random forest and HistGradientBoosting on dates
x bands as they are, or, where fields have dates of their own, filled linearly to the days that the training fields
have (at most a day in five); and aeon's QUANT, MiniRocket and MultiRocketHydra where aeon is installed. Of images,
fields are the means of their clear pixels, and with `--pixels` pixels are judged one by one.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.metrics import accuracy_score, f1_score

from cropstar.config import TrainConfig, read_config
from cropstar.datasets.samples import open_parts
from cropstar.datasets.splits import Split
from cropstar.datasets.transforms import season_starts
from cropstar.store.store import Store

LEARNT = ("train", "validation")
MOST_PIXELS = 100_000  # to learn from
MOST_DAYS = 150  # of a calendar; else a day in five


@dataclass(frozen=True)
class Series:
    x: NDArray[np.float32]  # (N,T,C)
    valid: NDArray[np.bool_]  # (N,T)
    since: NDArray[np.int64]  # (N,T): days since the start of the season
    labels: NDArray[np.int64]


Rival = Callable[[NDArray[np.float32], NDArray[np.int64], NDArray[np.float32], int], NDArray[np.int64]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--pixels", action="store_true", help="judge pixels of images, not parcels")
    parser.add_argument("--only", help="rivals by name, with commas between")
    arguments = parser.parse_args()
    chosen = arguments.only.split(",") if arguments.only else None
    gathered: dict[str, list[tuple[float, float]]] = {}
    for run in arguments.runs:
        result = json.loads((run / "result.json").read_text(encoding="utf-8"))
        kind = "pixel" if arguments.pixels else "parcel"
        own = result["test"][kind]
        print(f"{run.name}: {result['model']['name']} {own['overall_accuracy']:.4f} / {own['macro_f1']:.4f} by {kind}")
        gathered.setdefault("the runs", []).append((own["overall_accuracy"], own["macro_f1"]))
        learnt, tested = split_of(run, result, pixels=arguments.pixels)
        tables = on_one_calendar(learnt, tested)
        for name, rival in rivals():
            if chosen is not None and name not in chosen:
                continue
            for seed in range(arguments.seeds):
                started = time.monotonic()
                answers = rival(tables[0], learnt.labels, tables[1], seed)
                figures = (
                    float(accuracy_score(tested.labels, answers)),
                    float(f1_score(tested.labels, answers, average="macro")),
                )
                gathered.setdefault(name, []).append(figures)
                seconds = time.monotonic() - started
                print(f"  {name:<11} seed {seed}: {figures[0]:.4f} / {figures[1]:.4f}  ({seconds:.0f} s)", flush=True)
    print("accuracy / macro-F1, means:")
    for name, each in gathered.items():
        means, spreads = np.mean(each, axis=0), np.std(each, axis=0, ddof=1 if len(each) > 1 else 0)
        print(f"  {name:<11} {means[0]:.4f} / {means[1]:.4f}  (spread {spreads[0]:.4f} / {spreads[1]:.4f})")


def rivals() -> Iterator[tuple[str, Rival]]:
    """Tables are (N, days, bands)."""

    def flat(make: Callable[[int], Any]) -> Rival:
        def answer(
            known: NDArray[np.float32], labels: NDArray[np.int64], asked: NDArray[np.float32], seed: int
        ) -> NDArray[np.int64]:
            model = make(seed).fit(known.reshape(len(known), -1), labels)
            found: NDArray[np.int64] = model.predict(asked.reshape(len(asked), -1))
            return found

        return answer

    yield "RF", flat(lambda seed: RandomForestClassifier(300, random_state=seed, n_jobs=-1))
    yield "HGB", flat(lambda seed: HistGradientBoostingClassifier(random_state=seed))
    if importlib.util.find_spec("aeon") is not None:
        yield "QUANT", _of_aeon("aeon.classification.interval_based", "QUANTClassifier")
        yield "MiniRocket", _of_aeon("aeon.classification.convolution_based", "MiniRocketClassifier")
        yield "MultiRocketHydra", _of_aeon("aeon.classification.convolution_based", "MultiRocketHydraClassifier")


def _of_aeon(module: str, name: str) -> Rival:
    def answer(
        known: NDArray[np.float32], labels: NDArray[np.int64], asked: NDArray[np.float32], seed: int
    ) -> NDArray[np.int64]:
        make = getattr(importlib.import_module(module), name)
        model = make(random_state=seed).fit(np.moveaxis(known, 1, 2), labels)
        return np.asarray(model.predict(np.moveaxis(asked, 1, 2)), dtype=np.int64)

    return answer


def split_of(run: Path, result: dict[str, Any], *, pixels: bool) -> tuple[Series, Series]:
    """What a run learnt from, and what it was judged on."""
    given = read_config(run / "config.yaml")
    kept = {key: given[key] for key in ("store", "split", "seed", "target", "patch") if key in given}
    config = TrainConfig.model_validate({**kept, "model": {"name": "rf"}})
    with Store.open(config.store) as store:
        images = "series" not in store.manifest.layouts
        if images:
            config = config.model_copy(update={"target": "pixel" if pixels else "parcel"})
        elif pixels:
            raise SystemExit(f"{run}: the store holds series, which have no pixels")
        listed = result["split"].get("parcels")
        if listed is None:
            raise SystemExit(f"{run}: a split by pixel has no list of parcels")
        part_of = {
            (scene, int(number)): part
            for part, scenes in listed.items()
            for scene, numbers in scenes.items()
            for number in numbers
        }
        labels = {
            (reader.scene, int(number)): int(label)
            for _, reader in store.readers()
            for number, label in zip(reader.table.numbers, reader.table.labels, strict=True)
        }
        split = Split(part_of, {parcel: labels[parcel] for parcel in part_of})
        parts, _ = open_parts(store, split, config, spatial=False)
        known = joined([series for part in LEARNT for series in read(parts[part], store)])
        if pixels and len(known.labels) > MOST_PIXELS:
            rows = np.random.default_rng(0).choice(len(known.labels), MOST_PIXELS, replace=False)
            known = Series(*(column[rows] for column in vars(known).values()))
        return known, joined(list(read(parts["test"], store)))


def read(part: Any, store: Store) -> Iterator[Series]:
    """Series with a clear date, batch by batch."""
    for start in range(0, len(part), part.batch_size):
        batch = part.batch(list(range(start, min(start + part.batch_size, len(part))))).as_series()
        seen = batch.valid.any(dim=1).numpy()
        if seen.any():
            days = batch.days.numpy()[seen]
            since = days - season_starts(days, store.fingerprint.season)[:, None]
            yield Series(batch.x.numpy()[seen], batch.valid.numpy()[seen], since, batch.labels.numpy()[seen])


def joined(pieces: list[Series]) -> Series:
    """Batches of several lengths as one; what is added is not valid."""
    longest = max(piece.valid.shape[1] for piece in pieces)

    def longer(array: NDArray[Any]) -> NDArray[Any]:
        missing = longest - array.shape[1]
        return np.pad(array, [(0, 0), (0, missing), *[(0, 0)] * (array.ndim - 2)]) if missing else array

    columns = [(longer(each.x), longer(each.valid), longer(each.since), each.labels) for each in pieces]
    return Series(*(np.concatenate(column) for column in zip(*columns, strict=True)))


def on_one_calendar(learnt: Series, tested: Series) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(N, days, bands): dates as they are where every field has all of them, else lines between clear dates."""
    if learnt.valid.all() and tested.valid.all() and learnt.x.shape[1] == tested.x.shape[1]:
        return learnt.x, tested.x  # the n-th date of one year stands beside that of the other
    days = np.unique(learnt.since[learnt.valid])
    if len(days) > MOST_DAYS:
        days = np.arange(days[0], days[-1] + 1, 5)
    return filled(learnt, days), filled(tested, days)


def filled(series: Series, days: NDArray[np.int64]) -> NDArray[np.float32]:
    table = np.empty((len(series.labels), len(days), series.x.shape[2]), dtype=np.float32)
    for row, (x, valid, since) in enumerate(zip(series.x, series.valid, series.since, strict=True)):
        order = np.argsort(since[valid], kind="stable")
        for band in range(x.shape[1]):
            table[row, :, band] = np.interp(days, since[valid][order], x[valid][order, band])
    return table


if __name__ == "__main__":
    main()
