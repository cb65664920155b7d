"""Arguments of a command with local copies in the place of remote names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cropstar.errors import UsageError
from cropstar.store.remote.addresses import Remote
from cropstar.store.remote.fetching import fetch


def with_copies(arguments: Mapping[str, Any], scratch: Path, texts: tuple[str, ...] = ()) -> dict[str, Any]:
    """A pattern among several becomes all that fits it. Those called `texts` stay texts."""
    found: dict[str, Any] = {}
    for name, value in arguments.items():
        several = isinstance(value, tuple)
        copies = [copy for each in (value if several else (value,)) for copy in _copies(each, scratch, name in texts)]
        if not several and len(copies) > 1:
            raise UsageError(f"a pattern where one {name} is meant", path=str(value), remedy="give one file or folder")
        found[name] = tuple(copies) if several else copies[0]
    return found


def _copies(value: Any, scratch: Path, as_text: bool) -> list[Any]:
    if not isinstance(value, Remote):
        return [value]
    return [str(path) if as_text else path for path in fetch(value, scratch)]
