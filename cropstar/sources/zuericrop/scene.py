"""The scene of ZueriCrop: all images of the file, packed into tiles a few at a time."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import InputError
from cropstar.geo.calendar import Season, to_days
from cropstar.geo.sensors import SCALE
from cropstar.geo.windows import Window
from cropstar.logs import event
from cropstar.sources.base import PatchImage, TileSpec, Transform, pack_patches, recipe_of, safe_name
from cropstar.sources.zuericrop.classes import LabelTable, read_labels
from cropstar.sources.zuericrop.dates import read_dates, spread_dates
from cropstar.sources.zuericrop.files import (
    LABELS,
    Shape,
    batches,
    check_shape,
    find_file,
    reading,
    whole_numbers,
)
from cropstar.sources.zuericrop.options import FILE_BANDS, ZueriCropOptions, fold_of, fold_splits
from cropstar.store.classes import UNLABELLED
from cropstar.store.fingerprint import Fingerprint
from cropstar.store.tile import PatchTile

RESOLUTION = 10.0
NOWHERE: Transform = (RESOLUTION, 0.0, 0.0, 0.0, -RESOLUTION, 0.0)  # the file does not say where its images lie
LARGEST = np.iinfo(np.uint16).max
REFLECTANCE = 10.0  # fractions that never exceed it are reflectance already, not ten thousand times as much


class ZueriCropScene:
    """Images in the order of the file; ids of fields run through all of it, so a field may lie in several images."""

    layout = "patches"

    def __init__(self, path: Path, labels: LabelTable, options: ZueriCropOptions) -> None:
        self.name = safe_name(path.stem)
        self._path, self._labels, self._options = path, labels, options
        with reading(path) as datasets:
            self._shape = check_shape(datasets, path)
            self._dates = _choose_dates(self._shape, path, options)
            _require_scaled(datasets["data"], path)
            self.labelled, self.fields = self._look_through(datasets)
        if not self.labelled.any():
            why = f"none of {self._shape.images} images has a pixel of one of {labels.codes} codes"
            raise InputError("nothing is labelled", path=path, why=why, remedy=f"check {labels.path.name}")
        self.provenance: dict[str, Any] = {
            "source": "zuericrop",
            "file": path.name,
            "labels": labels.path.name,
            "level": options.level,
            "dates_assumed": options.dates is None,
        }
        settings = {"name": self.name, "dates": [day.isoformat() for day in self._dates], **options.to_json()}
        self.recipe = recipe_of([path, labels.path], settings)
        season = Season.of(self._dates)
        self.fingerprint = Fingerprint(options.chosen_bands, SCALE, 0.0, RESOLUTION, season, labels.classes)

    def _look_through(self, datasets: dict[str, Any]) -> tuple[NDArray[np.int64], int]:
        """The labelled pixels of each class and the number of labelled fields; every code has its row."""
        pixels = np.zeros(len(self._labels.classes), dtype=np.int64)
        fields: set[int] = set()
        for start, codes in batches(datasets["gt"], 0, self._shape.images):
            labels = self._classify(codes, start)
            pixels += np.bincount(labels[labels != UNLABELLED], minlength=len(pixels))
            for first, part in batches(datasets["gt_instance"], start, start + len(codes)):
                known = labels[first - start : first - start + len(part)] != UNLABELLED
                numbers = whole_numbers(part[..., 0], "gt_instance", self._path)
                fields.update(np.unique(numbers[known]).tolist())
        return pixels, len(fields - {0})

    def _classify(self, values: NDArray[Any], first: int) -> NDArray[np.int16]:
        """(n, H, W, 1) codes as (n, H, W) classes."""
        codes = whole_numbers(values[..., 0], "gt", self._path)
        table = self._labels
        inside = (codes >= 0) & (codes < len(table.known))
        strange = ~inside | ~table.known[np.where(inside, codes, 0)]
        if strange.any():
            image = first + int(np.argwhere(strange)[0][0])
            why = f"image {image} has the code {codes[strange][0]}, which has no row in {table.path.name}"
            raise InputError("an unknown code", path=self._path, why=why, remedy="take the label table of this file")
        return table.numbers[codes]

    @property
    def volume(self) -> int:
        """Bytes of all values."""
        shape = self._shape
        return 2 * shape.images * shape.dates * shape.height * shape.width * len(self.fingerprint.bands)

    def tile_specs(self) -> list[TileSpec]:
        """Each window counts images downwards; it is one wide."""
        size, total = self._options.images_per_tile, self._shape.images
        return [
            TileSpec(f"{self.name}-{self.recipe[:8]}-n{start:07d}", Window(start, 0, min(size, total - start), 1))
            for start in range(0, total, size)
        ]

    def build(self, piece: TileSpec) -> PatchTile:
        window = piece.window
        with reading(self._path) as datasets:
            labels = self._classify(datasets["gt"][window.top : window.bottom], window.top)
            fields = datasets["gt_instance"][window.top : window.bottom][..., 0]
            fields = whole_numbers(fields, "gt_instance", self._path)
            images = []
            for start, values in batches(datasets["data"], window.top, window.bottom):
                clouds = datasets["cloud_cover"][start : start + len(values)]
                for place in range(len(values)):
                    index = start + place
                    own = index - window.top
                    images.append(self._image(index, values[place], clouds[place], labels[own], fields[own]))
        return pack_patches(
            images,
            window.top,
            scene=self.name,
            recipe=self.recipe,
            fingerprint=self.fingerprint,
            crs="",
            provenance=self.provenance,
        )

    def _image(
        self,
        index: int,
        values: NDArray[Any],
        clouds: NDArray[Any],
        labels: NDArray[np.int16],
        fields: NDArray[np.int64],
    ) -> PatchImage:
        """From (T, H, W, 9) to (T, C, H, W); clouds, empty pixels and what is no digital number are not valid."""
        good = ((values >= 0) & (values <= LARGEST)).all(axis=-1)  # false where it is not a number, too
        valid = good & (values != 0).any(axis=-1) & (clouds <= self._options.cloud_limit)
        places = [FILE_BANDS.index(band) for band in self._options.chosen_bands]
        kept = np.where(valid[..., None], values[..., places], 0)
        return PatchImage(
            name=f"{index:05d}",
            transform=NOWHERE,
            days=to_days(self._dates),
            values=np.rint(kept).astype(np.uint16).transpose(0, 3, 1, 2),
            valid=valid,
            labels=labels,
            fields=fields,
            keys={int(number): str(number) for number in np.unique(fields)},
            group=fold_of(index, self._shape.images),
        )

    def describe(self) -> dict[str, Any]:
        """What the manifest says of the scene."""
        return {
            "recipe": self.recipe,
            "dates": [day.isoformat() for day in self._dates],
            "images": self._shape.images,
            "parcels": self.fields,
            "splits": fold_splits(),
            **self.provenance,
        }

    def close(self) -> None:
        """No file stays open between pieces."""


def open_zuericrop(path: Path, options: ZueriCropOptions | None = None) -> list[ZueriCropScene]:
    """The scene of a file, or of the one in a folder."""
    options = options or ZueriCropOptions()
    file = find_file(path)
    labels = read_labels(options.labels or file.parent / LABELS, options.level)
    scene = ZueriCropScene(file, labels, options)
    about, pixels = scene.describe(), scene.labelled
    event(
        f"{scene.name}: {about['images']} images of {len(about['dates'])} dates, {scene.fields} fields, "
        f"{(pixels > 0).sum()} of {len(pixels)} classes ({labels.codes} codes)",
        images=about["images"],
        parcels=scene.fields,
        classes=int((pixels > 0).sum()),
    )
    return [scene]


def _choose_dates(shape: Shape, path: Path, options: ZueriCropOptions) -> list[date]:
    if options.dates is not None:
        return read_dates(options.dates, shape.dates)
    return spread_dates(shape.dates, options.year, path)


def _require_scaled(dataset: Any, path: Path) -> None:
    """Fractions may be digital numbers, but not reflectance: rounded, that would be nothing but zeros and ones."""
    if dataset.dtype.kind != "f":
        return
    some = sorted({0, dataset.shape[0] // 2, dataset.shape[0] - 1})
    largest = max(float(np.nanmax(dataset[index], initial=0.0)) for index in some)
    if 0 < largest <= REFLECTANCE:
        why = f"'data' is at most {largest:g}, as reflectance is"
        raise InputError("values of another scale", path=path, why=why, remedy="multiply them by 10,000")
