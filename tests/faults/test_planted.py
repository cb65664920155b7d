"""Links, pipes and devices where commands write: a sample of what `python -m tests.faults.planted` tries."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.forkserver import ForkServer
from tests.faults.planted import plants, problem_with
from tests.faults.writing import Case

# That each of these stood: a marker was made through a link, a pipe was waited for, tiles were written elsewhere.
KNOWN = {
    "predict": [("assembling", "link to nothing"), ("assembling", "hard link"), ("draft-map.tif.aux.xml", "pipe")],
    "update": [("map.tif", "pipe"), ("map.tif.aux.xml", "pipe")],
    "ingest-again": [("tiles", "link to a folder")],
}


@pytest.mark.parametrize("name", KNOWN)
def test_nothing_that_was_planted_is_followed(
    name: str, case_of: Callable[[str], Case], server: ForkServer, tmp_path: Path
) -> None:
    case = case_of(name)
    everything = list(plants(case, server, tmp_path))
    known = [each for each in everything if (Path(each[0]).name, each[1]) in KNOWN[name]]
    assert len(known) == len(KNOWN[name])
    for path, kind in dict.fromkeys([*known, *everything[::23]]):
        problem = problem_with(case, path, kind, server, tmp_path)
        assert problem is None, f"{kind} at {path}: {problem}"
