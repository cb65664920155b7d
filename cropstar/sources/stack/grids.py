"""Whether files lie on one grid, and in words how they do not."""

from __future__ import annotations

from pathlib import Path

from cropstar.errors import InputError
from cropstar.geo.grid import Grid
from cropstar.geo.resampling import Alignment, NotAligned, grid_difference

REMEDY = "bring all files to one grid, for example with gdalwarp -t_srs, -tr and -te"


def require_same(path: Path, own: Grid, other: Grid, like: Path) -> None:
    """Refuse a file that does not lie as another one does."""
    if own == other:
        return
    if difference := grid_difference(own, other):
        why = f"{difference} as {like.name} has"
        raise InputError("files on different grids", path=path, why=why, remedy=REMEDY)


def align(path: Path, own: Grid, grid: Grid, like: Path) -> Alignment:
    """How a file lies on the grid: the same, or with pixels of which each covers a whole number of the grid's."""
    try:
        if own.resolution / grid.resolution < 1.5:
            if difference := grid_difference(own, grid):
                raise NotAligned(f"{difference} as {like.name} has")
            return Alignment(1, 0, 0, grid.height, grid.width)
        return Alignment.of(own, grid)
    except NotAligned as failure:
        raise InputError("a file does not fit the grid", path=path, why=str(failure), remedy=REMEDY) from None
