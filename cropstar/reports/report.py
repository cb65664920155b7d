"""The report of a training run: one HTML file that needs nothing else, readable for people who did not train."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from cropstar.errors import ArtifactError
from cropstar.reports import findings, wording
from cropstar.reports.confusion import confusion_matrix
from cropstar.reports.figures import loss_curve, score_curve
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
        amount=wording.amount,
        duration=wording.duration,
        in_hundred=wording.in_hundred,
    )
    classes = findings.tidy_classes(data["classes"])
    test = data["test"]
    rows = findings.class_rows(classes, test)
    split = findings.split_rows(classes, data["split"]["counts"])
    history, best_epoch = data["history"], data["best_epoch"]
    return environment.get_template("report.html.j2").render(
        result=data,
        classes=classes,
        rows=rows,
        extremes=findings.extremes(rows),
        few=findings.FEW,
        mistakes=findings.worst_confusions(test["parcel"]["confusion"], classes),
        split=split,
        split_totals=[sum(column) for column in zip(*(row["counts"] for row in split), strict=True)],
        facts=findings.facts(data["data"]),
        settings=findings.settings(data["model"]),
        loss=_inline(loss_curve(history, best_epoch)) if history else None,
        scores=_inline(score_curve(history, best_epoch)) if history else None,
        intervals=findings.intervals(test),
        calibration=data.get("calibration"),
        reliability=[_inline(plot) for plot in reliability_plots(data["calibration"])] if "calibration" in data else [],
        sets=data.get("sets"),
        earliness=data.get("earliness"),
        season=_inline(season_curve(data["earliness"], classes)) if "earliness" in data else None,
        matrices={level: _inline(confusion_matrix(test[level]["confusion"], classes)) for level in ("parcel", "pixel")},
    )


def _inline(svg: bytes) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg).decode("ascii")
