"""Opening HDF5 files that come from outside: all that they hold must lie in the file itself.

HDF5 can send a reader elsewhere: by soft and external links, by data sets whose bytes are in another file, and by
virtual ones that are put together from others. A store or state that was passed on could so read any file of its user.
"""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import h5py

MOST_OBJECTS = 10_000


def open_hdf5(path: Path, **how: Any) -> h5py.File:
    """Open a file for reading once it is known to refer to nothing but itself; a ValueError says what does."""
    if not stat.S_ISREG(path.stat().st_mode):  # a pipe would be waited for
        raise ValueError("it is not a regular file")
    file = h5py.File(path, "r", **how)
    try:
        _require_own(file)
    except SystemError:  # of h5py, whose walk meets damage that HDF5 reports
        file.close()
        raise ValueError("its structure is damaged") from None
    except BaseException:
        file.close()
        raise
    return file


def require_plain(dataset: h5py.h5d.DatasetID) -> None:
    """Refuse a data set whose bytes are not in its own file."""
    if (problem := _elsewhere(dataset)) is not None:
        raise ValueError(problem)


def _elsewhere(dataset: h5py.h5d.DatasetID) -> str | None:
    how = dataset.get_create_plist()
    if how.get_layout() == h5py.h5d.VIRTUAL:
        return "it has a virtual data set, which reads other files"
    return "it has a data set whose bytes lie in another file" if how.get_external_count() else None


def _require_own(file: h5py.File) -> None:
    seen = 0

    def look(name: bytes, info: Any) -> str | None:
        """What is wrong, which ends the walk: h5py loses exceptions on the way through HDF5."""
        nonlocal seen
        seen += 1
        if seen > MOST_OBJECTS:
            return f"it holds more than {MOST_OBJECTS:,} objects"
        if info.type != h5py.h5l.TYPE_HARD:
            return f"'{name.decode('utf-8', 'replace')[:50]}' is a link to another place"
        found = h5py.h5o.open(file.id, name)
        return _elsewhere(found) if isinstance(found, h5py.h5d.DatasetID) else None

    problem = file.id.links.visit(look, info=True)
    if problem is not None:
        raise ValueError(problem)
