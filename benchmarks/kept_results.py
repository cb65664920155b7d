"""Results that are kept line by line in a work folder: what was measured once is not measured again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class KeptResults:
    """The rows of `results.jsonl` in a folder, which is made."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "results.jsonl"
        lines = self._file.read_text(encoding="utf-8").splitlines() if self._file.exists() else []
        self.rows: list[dict[str, Any]] = [json.loads(line) for line in lines]

    def matching(self, key: dict[str, Any]) -> list[dict[str, Any]]:
        """The rows that hold all that the key does."""
        return [row for row in self.rows if key.items() <= row.items()]

    def add(self, *rows: dict[str, Any]) -> None:
        self.rows += rows
        with self._file.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
