"""Print what cropstar needs beside torch, from pyproject.toml, with the extras that are named: EXTRA,EXTRA,...

For the Dockerfile: what is installed before the code is copied is not installed again when the code changes.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def requirements(project: Path, extras: list[str]) -> list[str]:
    facts = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    wanted = [*facts["dependencies"], *(line for extra in extras for line in facts["optional-dependencies"][extra])]
    return [line for line in wanted if not line.startswith("torch>")]  # the image's own choice


if __name__ == "__main__":
    print("\n".join(requirements(Path("pyproject.toml"), [name for name in sys.argv[1].split(",") if name])))
