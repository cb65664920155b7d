"""Inputs that once ended a command in another way than documented, and some rounds of each mutation.

A line of `corpus/index.tsv` names the kind of file, the stored input, the number of the file in the workshop that it
takes the place of, and the command that reads it.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from tests.faults.forkserver import COMPILER, NO_COMPILER, shared_server
from tests.fuzz.run import Findings, fuzz_once
from tests.fuzz.targets import FLIPS, TARGETS, Target, Workshop, problem_of

CORPUS = Path(__file__).with_name("corpus")
INDEX = [line.split("\t") for line in (CORPUS / "index.tsv").read_text(encoding="utf-8").splitlines()]
KINDS = {target.name: target for target in TARGETS}


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    if COMPILER is None:
        pytest.skip(NO_COMPILER)
    return Workshop(tmp_path_factory.mktemp("fuzz").resolve(), shared_server())


@pytest.mark.parametrize(("kind", "stored", "number", "command"), INDEX, ids=[row[1] for row in INDEX])
def test_what_was_found_stays_mended(kind: str, stored: str, number: str, command: str, workshop: Workshop) -> None:
    target = KINDS[kind]
    file = workshop.files(target)[int(number)]
    workshop.restore()
    shutil.copy(CORPUS / stored, workshop.place / file)
    if target.repair is not None:
        target.repair(workshop.place, workshop.place / file)
    assert problem_of(workshop.run(target, file, command), workshop) is None


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_the_good_files_are_good(target: Target, workshop: Workshop) -> None:
    """Or nothing would be learnt from the changed ones."""
    for file in workshop.files(target)[:1]:
        workshop.restore()
        answer = workshop.run(target, file, target.commands[0])
        assert answer.code == 0, answer.stderr


@pytest.mark.parametrize("target", [*TARGETS, *FLIPS], ids=lambda target: target.name)
def test_changed_files_end_as_documented(target: Target, workshop: Workshop, tmp_path: Path) -> None:
    findings = Findings(tmp_path)
    for number in range(2):
        fuzz_once(workshop, target, random.Random(f"{target.name} {number}"), findings)
    assert findings.problems == {}
