"""What the program says: plain lines for people, one JSON object a line for batch jobs.

Messages go to stderr; what another program may read (`--print-config`, `inspect --json`) goes to stdout.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from datetime import UTC, datetime

from cropstar.errors import harmless

logger = logging.getLogger("cropstar")


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        return json.dumps(line, ensure_ascii=False, default=str)


class PlainFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        prefix = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        return prefix + harmless(record.getMessage())


class BarFriendlyHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes above a progress bar instead of through it."""

    def emit(self, record: logging.LogRecord) -> None:
        bars = sys.modules.get("tqdm")
        if bars is None:
            super().emit(record)
        else:
            bars.tqdm.write(self.format(record), file=sys.stderr)


def set_up(*, quiet: bool = False, verbose: bool = False, as_json: bool = False) -> None:
    """Decide how much is said and in which form."""
    handler = BarFriendlyHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else PlainFormatter())
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(logging.WARNING if quiet else logging.DEBUG if verbose else logging.INFO)
    logger.as_json = as_json  # type: ignore[attr-defined]
    warnings.showwarning = _note_warning


def _note_warning(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    """Libraries warn developers in several lines; users see it with --verbose, in one."""
    logger.debug("%s: %s", category.__name__, " ".join(str(message).split()))


def event(message: str, **fields: object) -> None:
    """An information line whose facts are also fields of the JSON log."""
    logger.info(message, extra={"fields": fields})
