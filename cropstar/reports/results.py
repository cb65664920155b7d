"""The results of finished runs, read with care: others may have edited them, or written them with another version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cropstar.errors import ArtifactError
from cropstar.reports.contents import RESULT
from cropstar.reports.report import PARTS

CONFIG = "config.yaml"
MAXIMUM_RESULT_BYTES = 256_000_000  # the parcels of each part are listed: ten bytes for each of millions


def read_result(folder: Path) -> dict[str, Any]:
    """What result.json of a run says; a run without one is not finished."""
    path = folder / RESULT
    if not path.is_file():
        if not (folder / CONFIG).exists():
            raise ArtifactError(
                "no run", path=folder, why=f"there is no {CONFIG}", remedy="give the folder of a run, as in data/runs"
            )
        raise ArtifactError(
            "the run is not finished",
            path=folder,
            why=f"there is no {RESULT}",
            remedy=f"go on with 'cropstar train --resume {folder}'",
        )
    if path.stat().st_size > MAXIMUM_RESULT_BYTES:
        raise damaged(path, "a result this large is none")
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as failure:
        raise damaged(path, str(failure)) from None
    missing = sorted(PARTS - result.keys()) if isinstance(result, dict) else sorted(PARTS)
    if missing:
        raise damaged(path, f"it lacks {', '.join(missing)}")
    assert isinstance(result, dict)
    return result


def damaged(path: Path, why: str) -> ArtifactError:
    return ArtifactError("the result cannot be read", path=path, why=why, remedy="train again with this version")
