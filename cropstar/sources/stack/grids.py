"""Whether files lie on one grid, and in words how they do not."""

from __future__ import annotations

from pathlib import Path

from cropstar.errors import InputError
from cropstar.geo.alignment import TOLERANCE, Alignment, NotAligned, crs_difference
from cropstar.geo.grid import Grid

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


def grid_difference(own: Grid, other: Grid) -> str | None:
    """How one grid differs from another, or nothing."""
    if difference := crs_difference(own, other):
        return difference
    if own.shape != other.shape:
        return f"{own.width} x {own.height} pixels instead of {other.width} x {other.height}"
    unit = _unit(other)
    sizes = zip(own.transform, other.transform, strict=True)
    a, b, right, d, e, up = (mine - its for mine, its in sizes)
    pixel = other.resolution
    if max(map(abs, (a, b, d, e))) * max(own.shape) > TOLERANCE * pixel:
        mine, its = _pixel(own), _pixel(other)
        return f"pixels of {mine} {unit} instead of {its}" if mine != its else "another rotation or orientation"
    if max(abs(right), abs(up)) <= TOLERANCE * pixel:
        return None
    pixels = f"{right / pixel + 0.0:.4g} x {up / pixel + 0.0:.4g} pixels"
    return f"a shift of {right + 0.0:.6g} x {up + 0.0:.6g} {unit} ({pixels}) instead of the same corner"


def _pixel(grid: Grid) -> str:
    return f"{abs(grid.transform[0]):g} x {abs(grid.transform[4]):g}"


def _unit(grid: Grid) -> str:
    crs = grid.rasterio_crs
    if not crs.is_projected:
        return "degrees"
    return "m" if crs.linear_units in ("metre", "meter", "m") else str(crs.linear_units)
