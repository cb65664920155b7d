"""The interface of both engines, and errors that can be sent between processes."""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Protocol, Self

from cropstar.errors import CropstarError, ResourceError, expected_error

Answer = Any  # what a task returned, or the CropstarError that it raised


class PoolTask(Protocol):
    """A piece of work that can be pickled. It may run twice, if a worker dies, and must give the same result."""

    def run(self, shared: Any) -> Any:
        """Run the task; `shared` is the value given to `share`."""


class WorkerPool(ABC):
    """`with pool: for task, answer in pool.run(tasks): ...`; answers come in any order."""

    one_disk: ClassVar[bool]  # whether workers see the local disk of this machine
    killed: bool = False  # whether workers were ended in the middle of their work

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        """Ends what was started."""

    @property
    @abstractmethod
    def threads(self) -> int:
        """How many tasks are done at the same time."""

    @abstractmethod
    def share(self, content: Any) -> None:
        """Send a value that all tasks need, once; call it before the first task."""

    @abstractmethod
    def submit(self, task: PoolTask) -> None:
        """Add a task while answers are being read."""

    @abstractmethod
    def answers(self, tasks: Iterable[PoolTask], *, volume: int | None = None) -> Iterator[tuple[PoolTask, Answer]]:
        """Every task with its answer, which is the error of a task that failed.

        `volume` is how many bytes the tasks read, where that is known: little is not worth starting workers for.
        """

    def run(self, tasks: Iterable[PoolTask], *, volume: int | None = None) -> Iterator[tuple[PoolTask, Any]]:
        """The same; the first error is raised."""
        for task, answer in self.answers(tasks, volume=volume):
            if isinstance(answer, CropstarError):
                raise answer
            yield task, answer


@dataclass(frozen=True)
class ClientToken:
    """A file that a client keeps where its workers write.

    A worker that does not see it looks at another file system, or its client is gone; either way it must not write.
    """

    path: Path
    what: str  # is made there
    folder: Path

    def require_seen(self) -> None:
        if not self.path.exists():
            why = "a worker does not see what the client wrote there"
            remedy = "run workers where the same folders are mounted under the same names"
            raise ResourceError(f"the folder of {self.what} is not shared", path=self.folder, why=why, remedy=remedy)

    @contextmanager
    def present(self) -> Iterator[None]:
        """Create the token; when the context ends, workers skip the tasks that are left."""
        self.path.touch()
        try:
            yield
        finally:
            self.path.unlink(missing_ok=True)


def as_cropstar_error(failure: Exception, remedy: str) -> CropstarError:
    """A failure as one of ours, with the traceback that --debug shows; `remedy` is for a lack of memory."""
    if isinstance(failure, MemoryError):
        error: CropstarError | None = ResourceError("out of memory", why=str(failure) or None, remedy=remedy)
    else:
        error = expected_error(failure)
    if error is None:
        why = f"{type(failure).__name__}: {failure}"
        error = CropstarError("internal error", why=why, remedy="run again with --debug and report the traceback")
    error.add_note(f"In a worker:\n{''.join(traceback.format_exception(failure))}")
    return error
