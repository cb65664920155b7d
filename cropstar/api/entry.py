"""Shared by all functions of the API: progress bars, remote names, errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

from cropstar.api.keywords import AnyPath, full_signature
from cropstar.errors import UsageError, expected_error
from cropstar.runtime import showing_progress
from cropstar.store.remote.addresses import Remote, has_remote, is_remote, redact_all, redacted
from cropstar.store.remote.transfers import Delivery, make_and_deliver, scratch_folder, with_copies

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_delivery: ContextVar[Delivery | None] = ContextVar("delivery", default=None)


class Entry:
    """A decorator of the API's functions. It handles the keywords `progress`, `allow_remote` and `scratch`.

    `inputs` name the arguments that may be remote: the function gets local copies of them. `written` name those that
    must be local. `output` names the one that is uploaded when the function has ended: `head` is the file in it that
    must not be there yet, where it is a folder, and `uploaded` makes the function's result. Without an output the
    function would write `beside` its first input. `is_address` tells which inputs are not files at all.
    """

    def __init__(
        self,
        *inputs: str,
        written: tuple[str, ...] = (),
        output: str | None = None,
        head: str = "",
        beside: bool = False,
        uploaded: Callable[[Path], Any] | None = None,
        is_address: Callable[[Mapping[str, Any], str], bool] = lambda _, __: False,
    ) -> None:
        self.inputs, self.written = inputs, written
        self.output, self.head, self.beside, self.uploaded = output, head, beside, uploaded
        self.is_address = is_address

    def __call__(self, function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        signature = full_signature(function)
        several = next((name for name in signature.parameters if name in ("raster", "new")), None)

        @wraps(function)
        def entered(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            given = dict(bound.arguments)
            given |= given.pop("options", {})  # of a function that takes **options
            if several is not None:
                given[several] = paths(given[several])
            with only_expected_errors(), showing_progress(given["progress"]):
                return self._run(cast("Callable[..., Result]", function), given)

        entered.__signature__ = signature  # type: ignore[attr-defined]
        return entered

    def _run(self, function: Callable[..., Result], given: dict[str, Any]) -> Result:
        allowed, scratch = given["allow_remote"], given["scratch"]
        if not allowed:
            os.environ["PROJ_NETWORK"] = "OFF"  # or coordinate systems could have grids fetched
        first = self.inputs[0]
        for name in (*self.inputs, *self.written, *([self.output] if self.output else [])):
            value = given[name]
            if isinstance(value, tuple):
                given[name] = tuple(self._remote(each, given, allowed) for each in value)
            else:
                given[name] = self._remote(value, given, allowed)
        if not any(has_remote(value) for value in given.values()):
            return function(**given)
        for name in (name for name in self.written if has_remote(given[name])):
            why = f"{given[name]} would be written to while the command runs"
            raise UsageError(f"the {name} cannot be remote", why=why, remedy="give a local path")
        sys.argv[1:] = [redact_all(word) for word in sys.argv[1:]]  # runs record their command line
        if given.get("scheduler") and scratch is None:
            raise UsageError("remote names with --scheduler", remedy="give a folder that all workers see as --scratch")
        place = scratch_folder(None if scratch is None else Path(scratch))
        target = given[self.output] if self.output else None
        if self.beside and target is None and has_remote(given[first]):
            raise UsageError("the input is remote", why="nothing can be written beside it", remedy="give -o")
        if not isinstance(target, Remote):
            return function(**with_copies(given, place))
        return self._deliver(function, given, place, target)

    def _remote(self, value: Any, given: Mapping[str, Any], allowed: bool) -> Any:
        if value == "":  # as a path it would be the current folder
            raise UsageError("an empty path", remedy="give a path, or leave it out")
        if not isinstance(value, str) or not is_remote(value) or self.is_address(given, value):
            return value
        if not allowed:
            remedy = "give --allow-remote, or copy it to this machine first"
            raise UsageError(f"{redacted(value)} is remote", remedy=remedy)
        return Remote.parse(value)

    def _deliver(self, function: Callable[..., Result], given: dict[str, Any], place: Path, target: Remote) -> Result:
        assert self.output is not None
        assert self.uploaded is not None
        if given.get("shard") or given.get("scheduler"):
            why = "several processes share what lies beside the output"
            remedy = "give a folder that all of them see with -o"
            raise UsageError("a remote output with --shard or --scheduler", why=why, remedy=remedy)

        def make(delivery: Delivery, arguments: dict[str, Any]) -> None:
            token = _delivery.set(delivery)
            try:
                function(**arguments, **own)
            finally:
                _delivery.reset(token)

        own = {name: given[name] for name in ("progress", "allow_remote", "scratch")}
        job = {name: value for name, value in given.items() if name not in own}  # which may differ between restarts
        make_and_deliver(make, job, self.output, self.head, place)
        return cast("Result", self.uploaded(Path(target.name)))


def paths(given: AnyPath | Sequence[AnyPath]) -> tuple[AnyPath, ...]:
    """One path or several, as several."""
    return (given,) if isinstance(given, (str, os.PathLike)) else tuple(given)


def require_free_remote(paths: list[Path]) -> None:
    """Refuse names of a remote output that exist, once they are known."""
    delivery = _delivery.get()
    if delivery is not None:
        delivery.require_free(paths)


@contextmanager
def only_expected_errors() -> Iterator[None]:
    """Turn errors of the system or torch (disk full, out of memory, missing file) into errors of cropstar."""
    try:
        yield
    except Exception as failure:
        error = expected_error(failure)
        if error is None or error is failure:
            raise
        raise error from failure
