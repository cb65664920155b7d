"""`cropstar ingest` on bad input: the files that users have in their worst hour, and what is asked of the answer."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import struct
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import rasterio
from rasterio.transform import Affine

from tests.faults.forkserver import COMPILER, NO_COMPILER, shared_server
from tests.sources.examples import dated, stacks
from tests.sources.examples.granules import write_fields
from tests.sources.examples.safe import write_product

DAYS = ("2023-05-01", "2023-06-10")
MEGABYTES = 200  # that a refusal may take beside the libraries
Answer = subprocess.CompletedProcess[str]
Build = Callable[[Path], list[str]]


def digests(folder: Path) -> dict[str, str]:
    """All that lies below a folder, by name: the content of files, what else others are."""
    found = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        is_file = stat.S_ISREG(mode) and os.access(path, os.R_OK)
        found[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest() if is_file else oct(mode)
    return found


def ingest_measured(*arguments: str | Path, cwd: Path) -> Answer:
    """`cropstar ingest`, which must end, and in bounded memory."""
    if COMPILER is None:
        pytest.skip(NO_COMPILER)
    answer = shared_server().run(["ingest", *arguments], cwd, limit=100)
    used = (answer.peak - _peak_of_libraries()) / 1e6
    assert used < MEGABYTES, f"{used:.0f} MB, {answer.stderr}"
    assert not answer.late
    return Answer(arguments, answer.code, answer.stdout, answer.stderr)


@cache
def _peak_of_libraries() -> int:
    """Which a forked process has from the start."""
    return shared_server().run(["--version"], Path.cwd()).peak


def error_line(answer: Answer, code: int, *parts: str) -> str:
    """The one line of a refusal; warnings may stand before it."""
    assert answer.returncode == code, answer.stderr
    assert "Traceback" not in answer.stderr
    *before, line = answer.stderr.splitlines()
    assert line.startswith("error: ")
    assert all(other.startswith("warning: ") for other in before), answer.stderr
    assert "; " in line  # what to do
    for part in parts:
        assert part in line
    return line


def refused(folder: Path, build: Build, code: int, *parts: str) -> str:
    """The line with which the files that `build` makes are refused; not a byte in the folder has changed.

    A good store is there under the name of the new one, which shall even replace it.
    """
    arguments = build(folder)
    before = digests(folder)
    answer = ingest_measured(*arguments, "-o", "store", "--overwrite", cwd=folder)
    line = error_line(answer, code, *parts)
    assert digests(folder) == before
    return line


@pytest.fixture
def place(small_store: Path, tmp_path: Path) -> Path:
    """A folder with a good store in it."""
    shutil.copytree(small_store, tmp_path / "store")
    (tmp_path / "store" / ".lock").touch()
    return tmp_path


# --- good files, to be spoilt

SAFE = ["safe", "--parcels", "parcels.gpkg"]
SEASON = ["season", "--parcels", "parcels.gpkg"]
STACK = ["tile.tif"]


def write_safe(folder: Path, ending: str = "jp2") -> Path:
    """Two products and parcels; the later product."""
    write_fields(folder / "parcels.gpkg", 20)
    return [write_product(folder / "safe", day=day, ending=ending) for day in DAYS][1]


def write_season(folder: Path) -> Path:
    """A folder of dated GeoTIFFs and parcels; the last file."""
    stacks.write_four_fields(folder / "parcels.gpkg")
    dated.write_season(folder / "season", compress="deflate")
    return dated.the_file(folder / "season")


def write_stack(folder: Path) -> Path:
    """One file of dates x bands and parcels."""
    stacks.write_four_fields(folder / "parcels.gpkg")
    return stacks.write_stack(folder / "tile.tif")


# --- what they are spoilt with


def vrt(target: Path | str) -> str:
    """GDAL would follow it to any file or host."""
    return (
        '<VRTDataset rasterXSize="30" rasterYSize="20"><VRTRasterBand dataType="UInt16" band="1"><SimpleSource>'
        f'<SourceFilename relativeToVRT="0">{target}</SourceFilename><SourceBand>1</SourceBand>'
        "</SimpleSource></VRTRasterBand></VRTDataset>"
    )


def huge_tiff(side: int = 10**6) -> bytes:
    """A GeoTIFF's header of some hundred bytes that claims so many pixels a side."""
    tags = {256: side, 257: side, 258: 16, 259: 1, 262: 1, 273: 8, 277: 1, 278: side, 279: 100, 339: 1}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    return struct.pack("<2sHIH", b"II", 42, 8, len(tags)) + entries + struct.pack("<I", 0)


def claim_size(jp2: Path, side: int = 10**6) -> None:
    """Write another size into both headers of a JPEG 2000 file."""
    content = bytearray(jp2.read_bytes())
    struct.pack_into(">2I", content, content.index(b"\xff\x4f\xff\x51") + 8, side, side)
    struct.pack_into(">2I", content, content.index(b"ihdr") + 4, side, side)
    jp2.write_bytes(content)


def cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def write_sparse(path: Path, bands: list[str], size: tuple[int, int], block: tuple[int, int], **profile: Any) -> None:
    """A file of some kilobytes, whatever its size and blocks, both (height, width): nothing is written in it."""
    height, width = size
    where = {"crs": "EPSG:32632", "transform": Affine(10, 0, 600_000, 0, -10, 5_400_000)}
    shape = {"height": height, "width": width, "count": len(bands), "dtype": "uint16"}
    stored = {"tiled": True, "blockysize": block[0], "blockxsize": block[1], "sparse_ok": True, "compress": "deflate"}
    with rasterio.open(path, "w", "GTiff", **where, **shape, **stored, **profile) as dataset:
        for index, name in enumerate(bands, start=1):
            dataset.set_band_description(index, name)
