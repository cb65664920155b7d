"""Stopping politely: SIGINT and SIGTERM ask, the work saves itself and ends."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from cropstar.errors import Interrupted


class StopRequest:
    """Set by the first signal; the loop looks at it between two steps."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __bool__(self) -> bool:
        return self.signal is not None


@contextmanager
def stop_on_request() -> Iterator[StopRequest]:
    """Within, a first SIGINT or SIGTERM only sets the request; a second one acts as it would outside."""
    request = StopRequest()
    handled = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in handled}

    def note(number: int, _: FrameType | None) -> None:
        request.signal = number
        for each, handler in before.items():
            signal.signal(each, handler)

    for number in handled:
        signal.signal(number, note)
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def raise_on_termination() -> None:
    """Turn SIGTERM into an exception, so that temporary files are removed on the way out."""

    def stop(number: int, _: FrameType | None) -> None:
        raise Interrupted(number, "what was finished is kept")

    signal.signal(signal.SIGTERM, stop)
