"""--allow-remote and --scratch: commands that take names of buckets and web servers, and work on copies of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from cropstar.errors import UsageError
from cropstar.store.remote.addresses import Remote, has_remote, is_remote, redact_all, redacted

Command = TypeVar("Command", bound=Callable[..., Any])
DELIVERY = "cropstar.delivery"
FLAG = "allow_remote"
SCRATCH = "Folder for local copies of remote files.  [default: in the temporary folder]"


class Place(click.Path):
    """A path; a remote name becomes a `Remote`, where the command takes those and the user has said so."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str) or not is_remote(value):
            return super().convert(value, param, ctx)
        return _remote(value, ctx)


PATH = Place(path_type=Path)


def _remote(text: str, context: click.Context | None) -> Remote:
    known = context.params if context is not None else {}
    if not known.get(FLAG):
        flag = "give --allow-remote, or " if FLAG in known else ""
        raise UsageError(f"{redacted(text)} is remote", remedy=f"{flag}bring it to this machine first")
    return Remote.parse(text)


def _text(text: str, *, given: Any, context: click.Context, leave: Callable[[Any, str], bool]) -> str | Remote:
    return _remote(text, context) if is_remote(text) and not leave(given, text) else text


def remote(
    *texts: str,
    output: str | None = None,
    head: str = "",
    beside: bool = False,
    written: tuple[str, ...] = (),
    leave: Callable[[Any, str], bool] = lambda _, __: False,
) -> Callable[[Command], Command]:
    """Below `speech`. All paths of a command may then be remote inputs, and so may the `texts` that are no paths.

    `output` is uploaded when the command has ended; `head` is its file that must not be there yet, where the output
    is a folder; without a name it would go `beside` the texts. What else is `written` stays on this machine. `leave`
    tells which texts are no files at all.
    """

    def decorate(command: Command) -> Command:
        @click.option("--allow-remote", is_flag=True, is_eager=True, help="Take s3://, gs:// and https:// names.")
        @click.option("--scratch", metavar="DIR", type=click.Path(path_type=Path), help=SCRATCH)
        @wraps(command)
        def working(*args: Any, allow_remote: bool, scratch: Path | None, **kwargs: Any) -> Any:
            context = click.get_current_context()
            for name in texts:
                value = kwargs[name]
                remote_of = partial(_text, given=value, context=context, leave=leave)
                kwargs[name] = tuple(map(remote_of, value)) if isinstance(value, tuple) else value and remote_of(value)
            if not any(has_remote(value) for value in kwargs.values()):
                return command(*args, **kwargs)
            for name in (name for name in written if has_remote(kwargs[name])):
                why = f"{kwargs[name]} would be written to while the command works"
                raise UsageError(f"the {name} cannot be remote", why=why, remedy="give a local one")
            sys.argv[1:] = [redact_all(word) for word in sys.argv[1:]]  # runs record their command line
            from cropstar.store.remote.transfers import scratch_folder, with_copies

            if kwargs.get("scheduler") and scratch is None:
                raise UsageError(
                    "remote names with --scheduler", remedy="give a folder that all workers see as --scratch"
                )
            place = scratch_folder(scratch)
            target = kwargs.get(output) if output else None
            if beside and target is None and any(has_remote(kwargs[name]) for name in texts):
                raise UsageError("the input is remote", why="nothing can be written beside it", remedy="give -o")
            if not isinstance(target, Remote):
                return command(*args, **with_copies(kwargs, place, texts))
            return _deliver(command, args, kwargs, str(output), head, place, texts)

        return working  # type: ignore[return-value]

    return decorate


def _deliver(
    command: Any, args: Any, kwargs: dict[str, Any], output: str, head: str, place: Path, texts: tuple[str, ...]
) -> None:
    from cropstar.store.remote.transfers import Delivery, make_and_deliver

    def make(delivery: Delivery, arguments: dict[str, Any]) -> None:
        click.get_current_context().meta[DELIVERY] = delivery
        command(*args, **arguments)

    if kwargs.get("shard") or kwargs.get("scheduler"):
        why = "several processes share what lies beside the output"
        raise UsageError("a remote output of a part", why=why, remedy="give a folder that all of them see with -o")
    make_and_deliver(make, kwargs, output, head, place, texts)


def require_free_remote(paths: list[Path]) -> None:
    """Refuse names of a remote output that are taken, once they are known."""
    delivery = click.get_current_context().meta.get(DELIVERY)
    if delivery is not None:
        delivery.require_free(paths)
