"""What the user asked ingest for, and what of it a source can use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cropstar.errors import UsageError
from cropstar.geo.paths import require_file_or_folder

OPTIONS = {"start": "from", "end": "to"}  # where the command line has another word


@dataclass(frozen=True)
class Request:
    """Whatever is left out has its default; an option that is no use to the source is refused."""

    path: Path | None
    parcels: Path | None = None
    label_column: str | None = None
    tile_size: int | None = None
    seed: int | None = None
    special: Mapping[str, Any] = field(default_factory=dict)  # options of some sources only, where they were given
    url: str | None = None  # in place of a path

    def take(self, source: str, *names: str) -> dict[str, Any]:
        """The special options of a source; others are refused."""
        common = ("parcels", "label_column", "tile_size", "seed")
        given = {name for name in common if getattr(self, name) is not None}
        for name in (*(name for name in common if name in given), *self.special):
            if name not in names:
                option = f"--{OPTIONS.get(name, name).replace('_', '-')}"
                raise UsageError(f"{option} is not for the source '{source}'", remedy="see 'cropstar ingest --help'")
        return dict(self.special)

    def need_path(self, source: str, example: str) -> Path:
        if self.path is None:
            raise UsageError(f"the source '{source}' needs a path", remedy=f"cropstar ingest {source} {example}")
        require_file_or_folder(self.path)
        return self.path
