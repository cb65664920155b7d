"""What tests of faults share: a server that runs commands under the shim, and the commands that write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.forkserver import COMPILER, NO_COMPILER, ForkServer, shared_server
from tests.faults.writing import Case, make_case


@pytest.fixture(scope="session")
def server() -> ForkServer:
    if COMPILER is None:
        pytest.skip(NO_COMPILER)
    return shared_server()


@pytest.fixture(scope="session")
def case_of(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    """A case by its name, made once."""
    made: dict[str, Case] = {}
    folder: Path = tmp_path_factory.mktemp("cases")

    def find(name: str) -> Case:
        if name not in made:
            made[name] = make_case(name, folder, server)
        return made[name]

    return find
