"""A progress bar with rate and time left on a terminal; silent where nobody looks."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from cropstar.logs import logger

Item = TypeVar("Item")


def progress_bar(total: int, label: str, unit: str, *, scale: bool = False) -> Any:
    """A tqdm bar; drawn only on a terminal and unless --quiet or --log-json were given."""
    from tqdm import tqdm

    plain_terminal = sys.stderr.isatty() and logger.isEnabledFor(logging.INFO) and not getattr(logger, "as_json", False)
    return tqdm(
        total=total, desc=label, unit=unit, unit_scale=scale, disable=not plain_terminal, leave=False, file=sys.stderr
    )


def track(items: Iterable[Item], total: int, label: str, unit: str) -> Iterator[Item]:
    with progress_bar(total, label, unit) as bar:
        for item in items:
            yield item
            bar.update()
