"""The report of a training run: one HTML file that needs nothing else, readable for people who did not train."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from cropstar.errors import ArtifactError
from cropstar.reports import findings, wording
from cropstar.reports.area_table import area_table
from cropstar.reports.coarser import Coarser, coarser_levels
from cropstar.reports.confusion import confusion_matrix
from cropstar.reports.error_map import error_map
from cropstar.reports.figures import loss_curve, score_curve
from cropstar.reports.judged import tables, words_of
from cropstar.reports.reliability import reliability_plots
from cropstar.reports.season_curve import season_curve
from cropstar.store.atomic import write_text

PARTS = frozenset(
    ("version", "run", "command", "classes", "data", "split", "model", "config", "history", "best_epoch", "test")
) | {"throughput"}


def write_report(path: Path, data: dict[str, Any]) -> None:
    """Render a training result (the content of result.json); the same result gives the same bytes."""
    missing = sorted(PARTS - data.keys())
    if missing:
        raise ArtifactError(
            "cannot write the report",
            path=path,
            why=f"the training result lacks {', '.join(missing)}",
            remedy="train again with this version",
        )
    html = _render(data)
    # A command line may hold file names that are not UTF-8; a report must be all the same.
    write_text(path, html.encode("utf-8", "replace").decode("utf-8"))


def _render(data: dict[str, Any]) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("cropstar.reports"),
        autoescape=True,  # names come from files of other people
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        percent=wording.percent,
        score=wording.score,
        count=wording.count,
        capitalize_first=lambda text: text[:1].upper() + text[1:],
    )
    classes = findings.tidy_classes(data["classes"])
    by_pixel = data["split"]["by"] == "pixel"
    shown = tables(data["test"], split_by_pixel=by_pixel)
    rows = findings.class_rows(classes, shown)
    split = findings.split_rows(classes, data["split"]["counts"])
    history, best_epoch = data["history"], data["best_epoch"]
    calibration, sets, earliness = (data.get(key) for key in ("calibration", "sets", "earliness"))
    return environment.get_template("report.html.j2").render(
        result=data,
        words=words_of(data),
        kind="Evaluation" if data.get("judged") else "Training report",
        classes=classes,
        tables=shown,
        intervals=[findings.interval_words(table.figures) for table in shown],
        rows=rows,
        extremes=findings.extremes(rows),
        few=findings.FEW,
        mistakes=findings.worst_confusions(shown[0].figures["confusion"], classes),
        matrices=[_inline(confusion_matrix(table.figures["confusion"], classes)) for table in shown],
        levels=[(level, _level_matrix(level)) for level in coarser_levels(data["test"], split_by_pixel=by_pixel)],
        split=split,
        split_totals=[sum(column) for column in zip(*(row["counts"] for row in split), strict=True)],
        facts=findings.facts(data["data"]),
        settings=findings.settings(data["model"]),
        costs=findings.costs(data),
        loss=_inline(loss_curve(history, best_epoch)) if history else None,
        scores=_inline(score_curve(history, best_epoch)) if history else None,
        calibration=calibration,
        reliability=[_inline(plot) for plot in reliability_plots(calibration)] if calibration else [],
        sets=sets,
        promise=sets.get((data.get("judged") or {}).get("part", "test")) if sets else None,
        earliness=earliness,
        season=_inline(season_curve(earliness, classes)) if earliness else None,
        areas=area_table(data["areas"], classes) if data.get("areas") else None,
        errors=data.get("errors"),
        error_maps=[(scene, _inline(error_map(scene))) for scene in (data.get("errors") or {}).get("scenes", [])],
    )


def _level_matrix(level: Coarser) -> str:
    return _inline(confusion_matrix(level.tables[0].figures["confusion"], level.classes))


def evaluation_report(path: Path, result: dict[str, Any], facts: dict[str, Any]) -> None:
    """The report of a run with what `cropstar evaluate` found in the place of its test."""
    same = all(facts["figures"][key] == result["test"][key] for key in ("parcel", "pixel"))
    judged = {"part": facts["part"], "store": facts["store"], "parcels": facts["parcels"]}
    changes = {
        "test": facts["figures"],
        "earliness": result.get("earliness") if same else None,  # of the test of the training
        "judged": None if same else {**judged, "seen": facts["seen_in_training"]},
        "split": {**result["split"], "by": facts["split"]["by"]}
        if facts["split"]["by"] == "pixel"
        else result["split"],
        **{key: facts[key] for key in ("calibration", "sets", "areas", "errors")},
    }
    write_report(path, {**result, **changes})


def _inline(svg: bytes) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg).decode("ascii")
