"""PASTIS: image series of 128 x 128 pixels with parcels, as published (PASTIS, PASTIS-R, PASTIS-HD).

    metadata.geojson                     one feature per patch: ID_PATCH, Fold, TILE, dates-S2 {index: yyyymmdd}
    DATA_S2/S2_<id>.npy                  (T, 10, 128, 128), reflectance x 10000
    DATA_S1A/S1A_<id>.npy, DATA_S1D/...  of PASTIS-R: (T, 3, 128, 128), VV, VH and their ratio in decibels, both orbits
    ANNOTATIONS/TARGET_<id>.npy          (3, 128, 128), channel 0 the class
    ANNOTATIONS/ParcelIDs_<id>.npy       (128, 128), 0 where there is no parcel

The class 19 (void) is unlabelled; the background is a class, as in published results. Radar is read where it lies
beside the optical images, each orbit as a sensor: VV and VH, from which the third channel follows. The five folds are
splits: `cropstar train --split fold1` trains on folds 1 to 3, validates on 4 and tests on 5.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import InputError
from cropstar.geo.calendar import Season, to_days
from cropstar.geo.sensors import DECIBEL_OFFSET, DECIBEL_SCALE, OPTICAL, SCALE, Sensor, decibel_counts
from cropstar.inputs import reading
from cropstar.sources.base import (
    UNPLACED,
    DatedImages,
    PatchImage,
    SampleScene,
    TileSpec,
    equal_parts,
    pack_patches,
    recipe_of,
    safe_name,
)
from cropstar.store.classes import UNLABELLED, ClassTable
from cropstar.store.fingerprint import Fingerprint
from cropstar.store.gate import read_json
from cropstar.store.tile import PatchTile

BANDS = ("B02", "B03", "B04", "B05", "B06", "B07", "B08", "B8A", "B11", "B12")
CLASSES = (
    *("background", "meadow", "soft winter wheat", "corn", "winter barley", "winter rapeseed", "spring barley"),
    *("sunflower", "grapevine", "beet", "winter triticale", "winter durum wheat", "fruits, vegetables, flowers"),
    *("potatoes", "leguminous fodder", "soybeans", "orchard", "mixed cereal", "sorghum"),
)
RADAR = ("VV", "VH")
ORBITS = {"A": "S1-ASC", "D": "S1-DESC"}  # as radar of other sources is called
VOID = 19
FOLDS = 5
RESOLUTION = 10.0
IMAGES_PER_TILE = 4
BACKGROUND_FIELD = -1  # the number of a patch's background among its parcels
METADATA = "metadata.geojson"
REMEDY = "give the folder of PASTIS with metadata.geojson, DATA_S2 and ANNOTATIONS"


@dataclass(frozen=True)
class _Patch:
    name: str
    fold: int
    dates: tuple[tuple[date, ...], ...]  # of each sensor


class PastisScene(SampleScene):
    """The patches in the order of their numbers."""

    layout = "patches"

    def __init__(self, folder: Path, patches: list[_Patch], orbits: str) -> None:
        self.name = safe_name(folder.resolve().name)
        self._folder, self._patches, self._orbits = folder, patches, orbits
        files = [file for patch in patches for file in self._files(patch)]
        for file in files:
            if not file.is_file():
                raise InputError("a file is missing", path=file, remedy=REMEDY)
        self.recipe = recipe_of([folder / METADATA, *files], {"source": "pastis", "images_per_tile": IMAGES_PER_TILE})
        self.provenance: dict[str, Any] = {"source": "pastis", "folder": folder.resolve().name}
        days = [day for patch in patches for dates in patch.dates for day in dates]
        season = Season.of([min(days), max(days)])
        radar = [Sensor(ORBITS[orbit], RADAR, DECIBEL_SCALE, DECIBEL_OFFSET) for orbit in orbits]
        sensors = [Sensor(OPTICAL, BANDS, SCALE, 0.0), *radar]
        self.fingerprint = Fingerprint.of(sensors, RESOLUTION, season, ClassTable.in_order(CLASSES))
        self.dates = sorted(set(days))

    def _files(self, patch: _Patch) -> tuple[Path, ...]:
        """Classes, parcels, and the images of each sensor."""
        labels = self._folder / "ANNOTATIONS"
        images = [self._folder / f"DATA_{name}" / f"{name}_{patch.name}.npy" for name in _data_names(self._orbits)]
        return labels / f"TARGET_{patch.name}.npy", labels / f"ParcelIDs_{patch.name}.npy", *images

    @property
    def volume(self) -> int:
        """Bytes of all values."""
        return sum(path.stat().st_size for patch in self._patches for path in self._files(patch)[2:])

    def cuts(self) -> list[tuple[int, int]]:
        return equal_parts(len(self._patches), IMAGES_PER_TILE)

    def build(self, spec: TileSpec) -> PatchTile:
        window = spec.window
        images = [self._image(patch) for patch in self._patches[window.top : window.bottom]]
        return pack_patches(self, images, window.top)

    def _image(self, patch: _Patch) -> PatchImage:
        target, parcels, data, *radar = self._files(patch)
        values = _load(data, (len(patch.dates[0]), len(BANDS), -1, -1))
        height, width = values.shape[2:]
        codes = _load(target, (-1, height, width))[0].astype(np.int64)
        fields = _load(parcels, (height, width)).astype(np.int64)
        if codes.min() < 0 or codes.max() > VOID:
            raise InputError("an unknown class", path=target, why=f"{codes.min()} to {codes.max()}", remedy=REMEDY)
        labels = np.where(codes == VOID, UNLABELLED, codes).astype(np.int16)
        fields = np.where((codes == 0) & (fields == 0), BACKGROUND_FIELD, fields)
        valid: NDArray[np.bool_] = np.any(values > 0, axis=1)
        return PatchImage(
            name=patch.name,
            transform=UNPLACED,
            days=to_days(patch.dates[0]),
            values=np.where(valid[:, None], np.clip(values, 0, None), 0).astype(np.uint16),
            valid=valid,
            labels=labels,
            fields=fields,
            keys={int(number): f"{patch.name}-{number}" for number in np.unique(fields)},
            group=f"fold{patch.fold}",
            others=tuple(
                _radar(path, dates, (height, width)) for path, dates in zip(radar, patch.dates[1:], strict=True)
            ),
        )

    def counts(self) -> dict[str, Any]:
        return {
            "images": len(self._patches),
            "splits": _fold_splits(),
        }


def open_pastis(path: Path) -> list[PastisScene]:
    """The patches of a folder as one scene."""
    orbits = "".join(orbit for orbit in ORBITS if (path / f"DATA_S1{orbit}").is_dir())
    return [PastisScene(path, _read_metadata(path / METADATA, orbits), orbits)]


def looks_like_pastis(path: Path) -> bool:
    return (path / METADATA).is_file() and (path / "DATA_S2").is_dir()


def _fold_splits() -> dict[str, dict[str, list[str]]]:
    """The published ones: three folds to learn from, the next to validate, the next to test."""
    names = [f"fold{1 + number % FOLDS}" for number in range(2 * FOLDS)]
    return {
        f"fold{first + 1}": {
            "train": names[first : first + 3],
            "validation": [names[first + 3]],
            "test": [names[first + 4]],
        }
        for first in range(FOLDS)
    }


def _data_names(orbits: str) -> list[str]:
    return ["S2", *(f"S1{orbit}" for orbit in orbits)]


def _read_metadata(path: Path, orbits: str) -> list[_Patch]:
    with reading("not PASTIS", path, REMEDY):
        patches = []
        for feature in read_json(path)["features"]:
            about = feature["properties"]
            days = []
            for name in _data_names(orbits):
                texts = about[f"dates-{name}"]
                texts = json.loads(texts) if isinstance(texts, str) else texts  # as GeoPandas writes it again
                ordered = [str(texts[key]) for key in sorted(texts, key=int)]
                days.append(tuple(date(int(text[:4]), int(text[4:6]), int(text[6:8])) for text in ordered))
            patches.append(_Patch(str(int(about["ID_PATCH"])), int(about["Fold"]), tuple(days)))
        for patch in patches:
            in_order = all(own and list(own) == sorted(own) for own in patch.dates)
            if not in_order or not 1 <= patch.fold <= FOLDS:
                raise ValueError(f"patch {patch.name} has fold {patch.fold}, or dates that are not in order")
        if not patches:
            raise ValueError("it has no patch")
    return sorted(patches, key=lambda patch: int(patch.name))


def _radar(path: Path, dates: Sequence[date], shape: tuple[int, int]) -> DatedImages:
    """VV and VH of the images of an orbit; the swath may end within a patch."""
    decibels = _load(path, (len(dates), 3, *shape))[:, :2]
    valid: NDArray[np.bool_] = np.isfinite(decibels).all(axis=1) & (decibels != 0).any(axis=1)
    return to_days(dates), np.where(valid[:, None], decibel_counts(decibels), 0).astype(np.uint16), valid


def _load(path: Path, shape: tuple[int, ...]) -> NDArray[Any]:
    """An array of a shape, in which -1 is any size."""
    with reading("a damaged patch", path):
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        fits = [wanted in (-1, size) for wanted, size in zip(shape, array.shape, strict=True)]
        if not all(fits) or array.dtype.kind not in "iuf":
            raise ValueError(f"an array of {array.dtype} and shape {array.shape}, not {shape}")
        return np.array(array)
