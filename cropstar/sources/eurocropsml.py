"""EuroCropsML: a folder of `<NUTS>_<parcel>_<hcat>.npz`, each with `data` (T,13), `dates` and the parcel's centre.

Values are those of Sentinel-2 L1C, reflectance x 10000. Classes are HCAT codes; groups are countries. Its lists of
few-shot splits are not read.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import InputError
from cropstar.geo.sensors import SENTINEL2
from cropstar.inputs import reading
from cropstar.sources.sample_files import Rows, SampleFile, SampleFilesScene

NAME = re.compile(r"(?P<region>[A-Z]{2}[A-Z0-9]{0,3})_(?P<parcel>[^_]+(?:_[^_]+)*)_(?P<crop>\d{6,12})\.npz", re.ASCII)
REMEDY = "give the folder of .npz files that the package eurocropsml writes"


def open_eurocropsml(path: Path) -> list[SampleFilesScene]:
    """All series of a folder as one scene."""
    samples = []
    for file in sorted(path.rglob("*.npz")):
        if match := NAME.fullmatch(file.name):
            samples.append(SampleFile(file, file.stem, match["crop"], match["region"][:2]))
    if not samples:
        why = "no file is called <NUTS>_<parcel>_<hcat>.npz"
        raise InputError("not EuroCropsML", path=path, why=why, remedy=REMEDY)
    return [SampleFilesScene(path, "eurocropsml", samples, SENTINEL2, read_parcel)]


def looks_like_eurocropsml(path: Path) -> bool:
    """Whether a folder, or one below it, has files of such names."""
    return path.is_dir() and any(
        NAME.fullmatch(file.name) for place in ("", "*/") for file in path.glob(f"{place}*.npz")
    )


def read_parcel(path: Path) -> Rows:
    """Dates, values and where there are any: a date of zeros was not seen."""
    with reading("a damaged series", path, REMEDY):
        with np.load(path, allow_pickle=False) as content:
            values: NDArray[Any] = np.asarray(content["data"], dtype=np.float64)
            days = content["dates"].astype("datetime64[D]").astype(np.int32)
        if values.shape != (len(days), len(SENTINEL2)):
            raise ValueError(f"data of shape {values.shape} for {len(days)} dates and {len(SENTINEL2)} bands")
    seen = np.isfinite(values).all(axis=1) & (values >= 0).all(axis=1) & (values != 0).any(axis=1)
    return days, values, seen
