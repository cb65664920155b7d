"""Paths that users give: whether they can be read or written, and how large contents may be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cropstar.errors import CropstarError, InputError, UsageError, one_line

# A Sentinel-2 tile is 10,980 pixels per side; ten times that is not a scene but a broken header.
MAXIMUM_RASTER_SIDE = 120_000
# 100 dates of 13 bands and a mask band, several times over.
MAXIMUM_RASTER_BANDS = 10_000
# The map is one byte per pixel and 255 means nodata.
MAXIMUM_CLASSES = 255
# A configuration is a page of text.
MAXIMUM_CONFIG_BYTES = 1_000_000
# The JSON in a model file: class tables and provenance, not data.
MAXIMUM_HEADER_BYTES = 16_000_000
# A tile is made, compressed and checked in memory, by every worker; 240 pixels of 70 dates and 13 bands are a tenth.
MAXIMUM_TILE_BYTES = 2**30

GEOTIFF_ENDINGS = (".tif", ".tiff")


def is_geotiff(path: Path) -> bool:
    """By its name."""
    return path.suffix.lower() in GEOTIFF_ENDINGS


# --- paths: a pipe would be waited for without end, a device never ends


REMEDY = "check the path"


def require_file(path: Path) -> None:
    """Refuse what is not a regular file, or has a name that libraries cannot take."""
    if not path.is_file():
        why = "it is a folder" if path.is_dir() else "it is a pipe or device" if path.exists() else None
        raise InputError("no such file", path=path, why=why, remedy=REMEDY)
    require_name(path)


def require_file_or_folder(path: Path) -> None:
    """Refuse what is neither a file nor a folder; a path that does not exist is left to the caller."""
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


def require_free(output: Path, suffixes: tuple[str, ...], overwrite: bool) -> None:
    """Refuse an output of the wrong type, or one that exists, before anything is computed."""
    require_name(output)
    if output.suffix.lower() not in suffixes:
        remedy = f"give a name that ends in {' or '.join(suffixes)}"
        raise UsageError("unknown type of output file", path=output, remedy=remedy)
    if output.exists() and (not overwrite or output.is_dir()):
        raise UsageError("the output exists", path=output, remedy="choose another with -o, or give --overwrite")


@contextmanager
def reading(what: str, path: Path, remedy: str = "get the file again") -> Iterator[None]:
    """Turn any error of a library that reads a file into an InputError that says `what` is wrong."""
    try:
        yield
    except (CropstarError, MemoryError):
        raise
    except Exception as failure:
        raise InputError(what, path=path, why=one_line(failure), remedy=remedy) from None
