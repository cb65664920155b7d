"""`cropstar train --model auto`: candidates compared by cross-validation within the training part, the best trained.

<run>/candidates/<name>/fold-1/scores.safetensors   what a candidate said of the fields of a fold: not computed again
<run>/candidates/<name>/skipped.json                how long one would have taken that did not fit the budget

Every fold is a small run of its own: a share of the fields that are not in the fold chooses the epoch, as validation
does, unless the candidate would be cross-fitted: that one learns from all of them. The fold is looked at once. The test
part is in none of them. Cheaper candidates come first; one that would take longer than what is left of the budget is
skipped as soon as that shows.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.config import AUTO, CONVOLUTIONAL, FITTED, ModelConfig, TrainConfig, dump_config
from cropstar.datasets.fields import Fields
from cropstar.datasets.samples import Prepared
from cropstar.datasets.splits import Split
from cropstar.errors import InputError, UsageError
from cropstar.models.calibration import fit_temperature, softmax
from cropstar.models.contract import Classifier
from cropstar.models.zoo import load_weights, name_ensemble, weights_of
from cropstar.runtime import event, logger
from cropstar.store.files import write_json
from cropstar.store.gate import read_json
from cropstar.store.model_file import read_tensors, write_tensors
from cropstar.store.store import Store
from cropstar.training.accuracy import Collectors, evaluate
from cropstar.training.ensembles import keeping_last_epoch
from cropstar.training.fitting import ForestTeacher, fit_model, require_fittable, settings_for
from cropstar.training.metrics import ScoreSample, macro_f1, overall_accuracy
from cropstar.training.recipes import fill, look_at
from cropstar.training.runs import Run
from cropstar.training.setup import Setup
from cropstar.training.trainer import Budget, Progress, Task
from cropstar.training.tuning import silenced

# Cheapest first.
OF_SERIES = ("rf", "hgb", "tempcnn", "ltae", "star", "transformer", "bistar")
OF_IMAGES = ("rf", "hgb", "star", "convstar")
FOLDS = 3
VALIDATION = 0.15  # of the fields that are not in a fold
BUDGET = 10.0  # minutes


class TooSlow(Exception):
    """A candidate would take longer than what is left of the budget."""

    def __init__(self, needs: float) -> None:
        self.needs = needs  # seconds, over all folds


@dataclass(frozen=True)
class FoldScores:
    """Scores of a candidate on the fields of one fold: at most 32 pixels of each."""

    scores: NDArray[np.float32]
    labels: NDArray[np.int64]
    parcels: NDArray[np.int64]

    def figures(self, probabilities: NDArray[Any] | None = None) -> tuple[float, float]:
        """Macro-F1 and overall accuracy, of other probabilities than its own where they are given."""
        answers = (self.scores if probabilities is None else probabilities).argmax(axis=1)
        classes = self.scores.shape[1]
        matrix = np.bincount(self.labels * classes + answers, minlength=classes**2).reshape(classes, classes)
        return macro_f1(matrix) or 0.0, overall_accuracy(matrix) or 0.0


@dataclass(frozen=True)
class Candidate:
    """A model that was compared, with its figures fold by fold, or why it was not."""

    config: TrainConfig
    name: str
    seconds: float = 0.0
    fold_scores: tuple[FoldScores, ...] = ()
    figures: tuple[tuple[float, float], ...] = ()  # macro-F1 and accuracy
    skipped: str | None = None

    @property
    def score(self) -> float:
        return float(np.mean([f1 for f1, _ in self.figures]))

    def to_json(self, *, chosen: bool) -> dict[str, Any]:
        f1, accuracy = np.array(self.figures or [(np.nan, np.nan)]).T
        known = bool(self.figures)
        return {
            "name": self.name,
            "macro_f1": float(f1.mean()) if known else None,
            "macro_f1_spread": float(f1.std(ddof=1)) if len(self.figures) > 1 else None,
            "overall_accuracy": float(accuracy.mean()) if known else None,
            "seconds": round(self.seconds, 1),
            "chosen": chosen,
            "skipped": self.skipped,
        }


@dataclass(frozen=True)
class Selection:
    """The configuration of the winner, and the table of the candidates for the report."""

    config: TrainConfig
    facts: dict[str, Any]


def candidate_config(config: TrainConfig, store: Store, split: Split, name: str) -> TrainConfig:
    """The configuration that `--model NAME` would have: what was given, the rest by the recipe."""
    given = config.model_dump(exclude_unset=True, exclude={"ensemble", "beside", "refit"})
    own = TrainConfig.model_validate({**given, "model": {"name": name}})
    own, _ = fill(own, look_at(store, own, split))
    return settings_for(own)


def require_selectable(config: TrainConfig, store: Store, split: Split) -> None:
    """Refuse settings that `auto` cannot be combined with, before a run is made."""
    usual = ModelConfig(name=AUTO)
    for key, value in config.model:
        if value != getattr(usual, key):
            why = "auto chooses the model and its settings"
            raise UsageError(f"'{AUTO}' does not use model.{key}", why=why, remedy="leave it out, or name a model")
    for key in ("beside", "distil"):
        if getattr(config, key):
            raise UsageError(f"'{AUTO}' does not use {key}", remedy="leave it out, or name a model")
    counts = split.counts(len(store.fingerprint.classes))
    known = np.sum([counts["train"], counts["validation"]], axis=0)
    if np.count_nonzero(known) < 2:
        why = "all training parcels are of one class"
        raise UsageError("no models to compare", path=store.folder, why=why, remedy="label parcels of another class")


def select(
    config: TrainConfig,
    setup: Setup,
    split: Split,
    run: Run,
    *,
    minutes: float | None = None,
    checkpoint_seconds: float = 30.0,
) -> Selection:
    """Compare the candidates within a budget of minutes, over all restarts; a tie goes to the cheaper one."""
    minutes = BUDGET if minutes is None else minutes
    splits = list(comparison_folds(config, setup, split))
    names = OF_IMAGES if setup.target == "pixel" else OF_SERIES
    comparison = _Comparison(setup, splits, run.folder / "candidates", checkpoint_seconds)
    event(f"comparing {', '.join(names)} in {len(splits)} folds, at most {minutes:g} min", budget=minutes)
    rows: list[Candidate] = []
    left, least = minutes * 60 - comparison.lost(), None
    for name in names:
        own = candidate_config(config, setup.store, split, name)
        row, needs = comparison.compare(own, name, left)
        left -= row.seconds
        rows.append(row)
        if needs is not None:
            least = min(needs, least or needs)
        _log(row)
    finished = [row for row in rows if row.figures]
    if not finished:
        shutil.rmtree(comparison.folder, ignore_errors=True)
        if least is None:
            raise UsageError("no candidate can be trained", why=rows[0].skipped, remedy="name a model with --model")
        why = f"the cheapest candidate needs about {max(least / 60, 0.1):.1f} min"
        raise UsageError(f"a budget of {minutes:g} min is too small", why=why, remedy="give more with --budget")
    pair = _mean_of_two(finished)
    if pair is not None:
        rows.append(pair)
        finished.append(pair)
        _log(pair)
    best = max(finished, key=lambda row: (round(row.score, 3), -row.seconds))
    event(f"chosen: {best.name}", model=best.name)
    table = [row.to_json(chosen=row is best) for row in rows]
    facts = {"folds": len(splits), "budget_minutes": minutes, "candidates": table}
    trees = any(own.name in FITTED for own in (best.config.model, *best.config.beside))
    if config.refit and trees:
        logger.info("no refit: trees learn from validation already, or would not be calibrated")
    kept = {"ensemble": config.ensemble, "refit": config.refit and not trees}
    return Selection(best.config.model_copy(update=kept), facts)


@dataclass(frozen=True)
class _Comparison:
    """Compares candidates on the same folds."""

    setup: Setup
    splits: Sequence[Split]
    folder: Path
    checkpoint_seconds: float

    def lost(self) -> float:
        """Seconds that earlier starts spent on candidates which did not fit."""
        return sum(float(_read_json(path).get("lost", 0)) for path in self.folder.glob("*/skipped.json"))

    def compare(self, config: TrainConfig, name: str, left: float) -> tuple[Candidate, float | None]:
        """Train a candidate in all folds within a budget of seconds; if it does not fit, say how many it needs."""
        folder, started = self.folder / name, time.monotonic()
        before = _read_json(folder / "skipped.json").get("needs", 0.0)
        try:
            if before > left:
                raise TooSlow(before)
            (folder / "skipped.json").unlink(missing_ok=True)
            self.setup.require(config, self.setup.build(config))
            require_fittable(config)
            fold_scores, seconds = [], 0.0
            for fold in range(len(self.splits)):
                each, spent = self._fold(config, folder / f"fold-{fold + 1}", fold, left - seconds)
                fold_scores.append(each)
                seconds += spent
                if fold + 1 < len(self.splits) and seconds / (fold + 1) * len(self.splits) > left:
                    raise TooSlow(seconds / (fold + 1) * len(self.splits))
        except TooSlow as slow:
            lost = time.monotonic() - started
            write_json(folder / "skipped.json", {"needs": slow.needs, "lost": lost})
            why = f"would take about {round(slow.needs, 1):g} s, {round(max(left, 0), 1):g} s were left"
            return Candidate(config, name, lost, skipped=why), slow.needs
        except UsageError as refusal:
            return Candidate(config, name, skipped=str(refusal)), None
        return Candidate(config, name, seconds, tuple(fold_scores), tuple(each.figures() for each in fold_scores)), None

    def _fold(self, config: TrainConfig, folder: Path, fold: int, left: float) -> tuple[FoldScores, float]:
        """Scores of a candidate on a fold, and the seconds it took; read back if an earlier start has them."""
        file = folder / "scores.safetensors"
        if file.exists():
            header, arrays = read_tensors(file, "scores")
            if header.get("config") == dump_config(config):
                return FoldScores(**arrays), float(header["seconds"])
        started, classes = time.monotonic(), self.setup.classes
        model = self.setup.build(config)
        split = self.splits[fold].with_validation() if config.cross_fit else self.splits[fold]
        parts, _ = self.setup.open(split, config, model)
        forest = ForestTeacher.of(config, self.setup.target, self.setup.shape(config))
        if forest is not None:
            parts["train"] = forest.teach(parts["train"], split, config)
        with silenced():
            progress = self._train(config, model, parts, folder, (left, len(self.splits) - fold, started))
            sample = ScoreSample(classes)
            evaluate(model, parts["test"], classes, self.setup.device, Collectors(sample))
        scores = FoldScores(*sample.arrays())
        seconds = max(time.monotonic() - started, progress.seconds)
        write_tensors(file, "scores", {"seconds": seconds, "config": dump_config(config)}, vars(scores))
        for rest in folder.iterdir():
            if rest != file:
                shutil.rmtree(rest) if rest.is_dir() else rest.unlink()
        return scores, seconds

    def _train(
        self,
        config: TrainConfig,
        model: Classifier,
        parts: dict[str, Prepared],
        folder: Path,
        time_left: tuple[float, int, float],
    ) -> Progress:
        """To the best epoch. `time_left`: seconds, for so many folds, since when; TooSlow when they do not suffice."""
        left, folds, started = time_left
        best = folder / "best.safetensors"
        seen: list[tuple[float, float]] = []  # shares that were done, and when

        def check(done: float) -> None:
            """Extrapolate from the speed after the first look: before it, files were read and so on."""
            now = time.monotonic()
            needs = now - started
            if seen and done > seen[0][0]:
                needs = now - started + (now - seen[0][1]) / (done - seen[0][0]) * (1 - done)
            if needs * folds > left:
                raise TooSlow(needs * folds)
            seen.append((done, now))

        def ended(_: Classifier, progress: Progress) -> None:
            raise TooSlow((time.monotonic() - started) * config.epochs * task.batches / max(progress.step, 1) * folds)

        def after_epoch(progress: Progress) -> None:
            # Patience may end a training much earlier: so long as it may, only what is spent counts.
            check(1.0 if config.patience is not None else progress.epoch / config.epochs)

        config = keeping_last_epoch(config) if config.cross_fit else config
        task = Task(
            config,
            Run(folder),
            model,
            parts["train"],
            parts["validation"],
            self.setup.classes,
            self.setup.device,
            self.checkpoint_seconds,
            lineages=self.setup.lineages,
            after_epoch=after_epoch,
            budget=Budget(max(left, 0.01) / folds, ended),
            refit_of=Progress(best_epoch=config.epochs) if config.cross_fit else None,
        )

        def save(now: Classifier, _: Progress) -> None:
            write_tensors(best, "weights", {}, weights_of(now))

        progress = fit_model(task, save, parts["validation"], calibrated=False, on_share=check).progress
        load_weights(model, read_tensors(best, "weights")[1], best)
        return progress


def comparison_folds(config: TrainConfig, setup: Setup, split: Split) -> Iterator[Split]:
    """Splits whose test part is a fold of the training part; whole groups where the split holds groups out."""
    fields = Fields.of(setup.store, dated=setup.target == "date")
    for inner in setup.folds(split, config, FOLDS):
        training = [
            field
            for field, pieces in fields.pieces.items()
            if any(inner.part_of.get(parcel) == "train" for parcel in pieces)
        ]
        if len(training) < 2:
            raise InputError(
                "too few parcels to compare models", path=setup.store.folder, remedy="name one with --model"
            )
        drawn = fields.share(config.seed, training, VALIDATION) or training[:1]
        held = {parcel for field in drawn for parcel in fields.pieces[field]}
        part_of = {
            parcel: "test" if part == "validation" else "validation" if parcel in held else "train"
            for parcel, part in inner.part_of.items()
        }
        yield Split(part_of, inner.label_of, inner.about)


def _mean_of_two(finished: Sequence[Candidate]) -> Candidate | None:
    """The mean of the calibrated probabilities of the best two that read the same, None where there are no two."""
    best = sorted(finished, key=lambda row: (-round(row.score, 3), row.seconds))
    reads = [bool(CONVOLUTIONAL.match(row.name)) for row in best]
    places = [place for place in range(1, len(best)) if reads[place] == reads[0]]
    if not places:
        return None
    pair = (best[0], best[places[0]])
    alike = all(
        np.array_equal(one.labels, other.labels) and np.array_equal(one.parcels, other.parcels)
        for one, other in zip(pair[0].fold_scores, pair[1].fold_scores, strict=True)
    )
    if not alike:
        return None
    temperatures = [
        fit_temperature(
            np.concatenate([each.scores for each in row.fold_scores]),
            np.concatenate([each.labels for each in row.fold_scores]),
        )[0]
        for row in pair
    ]
    figures = []
    for folds in zip(pair[0].fold_scores, pair[1].fold_scores, strict=True):
        both = [softmax(each.scores, temperature) for each, temperature in zip(folds, temperatures, strict=True)]
        figures.append(folds[0].figures(both[0] + both[1]))
    # The settings of a network hold for both; trees have no use for them.
    first, second = sorted(pair, key=lambda row: row.name in FITTED)
    config = first.config.model_copy(update={"beside": [second.config.model]})
    name = name_ensemble([first.config.model, second.config.model])
    return Candidate(config, name, pair[0].seconds + pair[1].seconds, figures=tuple(figures))


def _log(row: Candidate) -> None:
    if row.skipped is not None:
        event(f"  {row.name:<18} skipped: {row.skipped}", **row.to_json(chosen=False))
        return
    facts = row.to_json(chosen=False)
    spread = "" if facts["macro_f1_spread"] is None else f" \u00b1 {facts['macro_f1_spread']:.3f}"
    event(
        f"  {row.name:<18} macro-F1 {facts['macro_f1']:.3f}{spread}  accuracy {facts['overall_accuracy']:.3f}  "
        f"({row.seconds:.0f} s)",
        **facts,
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
