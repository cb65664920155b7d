"""Small files laid out as the published one: data, gt, gt_instance and cloud_cover, and a label table beside them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

HEADER = "GT,LNF_code,raw_DE,raw_ENG,1st_tier,2nd_tier,3rd_tier,4th_tier_ENG,empty"
LABELS = "\n".join(
    (
        HEADER,
        "1,501,Sommergerste,summer barley,Vegetation,Field crops,SmallGrainCereal,SummerBarley,",
        "2,505,Triticale,triticale,Vegetation,Field crops,SmallGrainCereal,Wheat,",
        '3,511,"Emmer, Einkorn","emmer, einkorn",Vegetation,Field crops,SmallGrainCereal,Wheat,',
        "4,508,Körnermais,grain maize,Vegetation,Field crops,LargeGrainCereal,Maize,",
        "5,552,Rohstoffe,regrowing ressources,Vegetation,Special crops,,,",
        "6,613,Dauerwiesen,permanent meadows,Vegetation,Grassland,Meadow,Meadow,",
        "7,594,Offene Ackerfläche,open arable land,Bare soil,,,,",
        "8,901,Wald,Forest,Vegetation,Forest,Forest,Forest,",
        "9,801,Gewächshaus,greenhouse,Infrastructure,,Greenhouse,Vegetables,",
    )
)
USED = {1: "SummerBarley", 2: "Wheat", 3: "Wheat", 4: "Maize", 6: "Meadow", 8: "Forest"}
FILE_BANDS = ("B08", "B03", "B02", "B04", "B05", "B06", "B07", "B11", "B12")


@dataclass
class Collection:
    """The arrays of a file, to be changed before they are written."""

    data: NDArray[Any]  # (N, T, H, W, 9)
    gt: NDArray[Any]  # (N, H, W, 1)
    gt_instance: NDArray[Any]  # (N, H, W, 1)
    cloud_cover: NDArray[Any]  # (N, T, H, W)

    def write(self, folder: Path, *, labels: str | None = LABELS, name: str = "ZueriCrop.hdf5") -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        if labels is not None:
            (folder / "labels.csv").write_text(labels, encoding="utf-8")
        with h5py.File(folder / name, "w") as handle:
            for key, array in vars(self).items():
                handle.create_dataset(key, data=array)
        return folder / name


def a_collection(
    images: int = 11, dates: int = 7, side: int = 24, *, codes: int = 10, seed: int = 0, kind: Any = np.int16
) -> Collection:
    """Fields are rows of eight pixels; the last field of an image goes on in the next one."""
    random = np.random.default_rng(seed)
    data = random.integers(1, 9000, (images, dates, side, side, 9)).astype(kind)
    data[:, 0, :2] = 0  # beyond the swath on the first date
    rows = np.arange(side) // 8
    strips = rows.max()
    numbers = 101 + np.arange(images)[:, None] * strips + rows  # (N, H)
    fields = np.broadcast_to(numbers[:, :, None, None], (images, side, side, 1)).astype(np.int32).copy()
    gt = (fields % codes).astype(np.int16)
    fields[:, :, 0] = 0  # a path between the fields
    gt[:, :, 0] = 0
    clouds = np.where(random.random((images, dates, side, side)) < 0.3, 1.0, 0.0).astype(np.float32)
    clouds[:, 1] = 0.05  # thin enough
    return Collection(data, gt, fields, clouds)
