"""Whether a path can be read at all: a pipe would be waited for without end, a device never ends."""

from __future__ import annotations

from pathlib import Path

from cropstar.errors import InputError

REMEDY = "check the path"


def require_file(path: Path) -> None:
    """Refuse what is no regular file, or has a name that libraries cannot take."""
    if not path.is_file():
        why = "it is a folder" if path.is_dir() else "it is a pipe or device" if path.exists() else None
        raise InputError("no such file", path=path, why=why, remedy=REMEDY)
    require_name(path)


def require_file_or_folder(path: Path) -> None:
    """Likewise, where a folder will do; what is missing is left to those who know what it should have been."""
    if path.exists() and not path.is_file() and not path.is_dir():
        why = "it is a pipe or device"
        raise InputError("neither a file nor a folder", path=path, why=why, remedy="give a file or folder on a disk")
    require_name(path)


def require_name(path: Path) -> None:
    """GDAL takes names in UTF-8 alone, and so does the manifest."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        shown = str(path).encode(errors="backslashreplace").decode()
        raise InputError("a name that is not UTF-8", path=shown, remedy="rename the file or folder") from None
