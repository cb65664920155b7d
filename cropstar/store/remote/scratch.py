"""The folder for local copies of remote files."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from cropstar.errors import InputError


def scratch_folder(given: Path | None) -> Path:
    """The folder that is given, or one under the system's temporary folder that nobody else can write to.

    Its name is always the same, so that a restarted job finds what it has fetched.
    """
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        return given.resolve()
    folder = Path(tempfile.gettempdir()) / f"cropstar-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o022:
        why = "others can write to it"  # and put files where we look for our own
        raise InputError("not a safe place for copies", path=folder, why=why, remedy="give another with --scratch")
    return folder.resolve()
