"""Remote outputs: made in a scratch folder, and uploaded when they are finished, what the others belong to last.

<scratch>/outputs/<digest>/<name>       the map and what stands beside it, or a folder of them, or a store
<scratch>/outputs/<digest>/.finished    all of it is there: a job that is killed while it uploads only uploads again
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cropstar.errors import PartialResult, UsageError
from cropstar.logs import event
from cropstar.progress import progress_bar
from cropstar.store.atomic import locked, write_text
from cropstar.store.remote.addresses import Remote, digest
from cropstar.store.remote.connection import connect, one_line_errors
from cropstar.store.remote.copies import with_copies
from cropstar.store.store import MANIFEST

OUTPUTS, FINISHED = "outputs", ".finished"
MAPS = (".tif", ".tiff")
REMEDY = "choose another with -o, or give --overwrite"


@dataclass(frozen=True)
class Delivery:
    """An output on its way to a remote name. A name that ends in .tif is a file, any other a folder."""

    remote: Remote
    folder: Path
    overwrite: bool

    @classmethod
    @contextmanager
    def opened(cls, remote: Remote, scratch: Path, signature: str, *, overwrite: bool) -> Iterator[Delivery]:
        """Held by one process; its place is made. Jobs of another `signature` have a place of their own."""
        delivery = cls(remote, scratch / OUTPUTS / f"{digest(remote.key)}-{signature}", overwrite)
        with locked(delivery.folder, "the output"):
            if not delivery.is_file:
                delivery.local.mkdir(exist_ok=True)
            yield delivery

    @property
    def is_file(self) -> bool:
        return Path(self.remote.name).suffix.lower() in MAPS

    @property
    def local(self) -> Path:
        """Where it is made."""
        return self.folder / self.remote.name

    @property
    def is_finished(self) -> bool:
        """Whether the very same job was done with everything but the upload."""
        return (self.folder / FINISHED).exists()

    def require_free(self, paths: Sequence[Path]) -> None:
        """Refuse, before anything is computed, names that are taken; `paths` are the local ones."""
        if not self.overwrite:
            self._refuse_taken(connect(self.remote), paths)

    def deliver(self) -> None:
        """Upload all files; after that nothing of them is left here."""
        system = connect(self.remote)
        files = self._files()
        if not self.is_finished:
            if not self.overwrite:
                self._refuse_taken(system, files)
            write_text(self.folder / FINISHED, "")
        with progress_bar(sum(path.stat().st_size for path in files), "upload", "B", scale=True) as bar:
            for path in files:
                with one_line_errors(self.remote):
                    system.put_file(str(path), self._address(path))
                bar.update(path.stat().st_size)
        event(f"uploaded {self.remote}: {len(files)} files", remote=str(self.remote), files=len(files))
        (self.folder / FINISHED).unlink()
        for path in self.folder.iterdir():  # all but the lock, which is held
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != ".lock":
                path.unlink()

    def _refuse_taken(self, system: Any, paths: Sequence[Path]) -> None:
        for path in paths:
            address = self._address(path)
            with one_line_errors(self.remote):
                taken = system.exists(address)
            if taken:
                raise UsageError("the output exists", path=address, remedy=REMEDY)

    def _files(self) -> list[Path]:
        """All that was made, but no work in progress. What readers look for first comes last."""
        root = self.folder if self.is_file else self.local
        found = [path for path in sorted(root.rglob("*")) if path.is_file() and not _is_hidden(path.relative_to(root))]
        if not found:
            raise UsageError("nothing was made", path=str(self.remote), remedy="look at what was said before")
        names = {str(path) for path in found}
        return sorted(found, key=lambda path: path.name == MANIFEST or f"{path}.aux.xml" in names)

    def _address(self, path: Path) -> str:
        url = self.remote.url.rstrip("/")
        if self.is_file:
            return f"{url.rpartition('/')[0]}/{path.relative_to(self.folder).as_posix()}"
        return f"{url}/{path.relative_to(self.local).as_posix()}"


def make_and_deliver(
    make: Callable[[Delivery, dict[str, Any]], None],
    arguments: dict[str, Any],
    output: str,
    head: str,
    scratch: Path,
    texts: tuple[str, ...],
) -> None:
    """Have a command make its output here and upload it; a job that was stopped in the upload is not done again."""
    remote, overwrite = Remote.parse(arguments[output].url, written=True), bool(arguments["overwrite"])
    begun = any((scratch / OUTPUTS).glob(f"{digest(remote.key)}-*/{FINISHED}"))
    asked = Delivery(remote, scratch, overwrite)
    early = [asked.local / head] if asked.is_file or head else []
    if not begun:  # before anything is fetched
        asked.require_free(early)
    copies = with_copies({name: value for name, value in arguments.items() if name != output}, scratch, texts)
    signature = digest(*(f"{name}={value}" for name, value in sorted(copies.items())))
    with Delivery.opened(remote, scratch, signature, overwrite=overwrite) as delivery:
        if not delivery.is_finished:
            delivery.require_free([delivery.local / head] if early else [])
            try:  # what is here is ours to replace
                make(delivery, {**copies, output: delivery.local, "overwrite": True})
            except PartialResult:
                delivery.deliver()
                raise
        delivery.deliver()


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)
