"""An ingested store in a notebook: its scenes, dates and classes, as torch samples and as xarray."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import date
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from cropstar.api.entry import only_expected_errors
from cropstar.api.keywords import AnyPath
from cropstar.errors import UsageError
from cropstar.geo.calendar import from_days
from cropstar.geo.grid import Grid, enclosing_grid
from cropstar.geo.windows import Window
from cropstar.store.classes import UNLABELLED
from cropstar.store.fingerprint import bands_present
from cropstar.store.reader import TileReader
from cropstar.store.store import Store

if TYPE_CHECKING:
    import xarray

    from cropstar.api.torch_dataset import Samples

Part = Literal["training", "validation", "test", "all"]
Unit = Literal["image", "parcel", "pixel"]


def open_store(path: AnyPath) -> StoreView:
    """Open a store that `ingest` made, and check that all of its tiles are there."""
    view = StoreView(Path(path))
    with only_expected_errors():
        assert view.store is not None
    return view


class StoreView:
    """A store, opened for reading when it is first looked into. It may be used in a `with` block."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def store(self) -> Store:
        return Store.open(self.path)

    @property
    def bands(self) -> tuple[str, ...]:
        return self.store.fingerprint.bands

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes; labels are places in this list."""
        return tuple(self.store.fingerprint.classes.names)

    @cached_property
    def scenes(self) -> Mapping[str, SceneView]:
        """The scenes by name."""
        return {name: SceneView(self, name) for name in sorted(self.store.manifest.scenes)}

    @property
    def dates(self) -> tuple[date, ...]:
        """All dates of all scenes, each once."""
        return tuple(sorted({day for scene in self.scenes.values() for day in scene.dates}))

    def as_torch(
        self,
        part: Part = "all",
        *,
        unit: Unit | None = None,
        patch: int = 48,
        split: str | None = None,
        split_by: Literal["parcel", "block", "scene", "group"] | None = None,
        seed: int = 0,
        run: AnyPath | None = None,
    ) -> Samples:
        """A torch `Dataset` of the labelled samples of one part: training, validation, test, or all.

        The unit is an image (`patch` pixels wide), a parcel (the mean of its clear pixels on every date, or a series
        of a table) or a pixel. Left out, it is what the store has: images, or the parcels of a table. Parcels are
        split by `split`, `split_by` and `seed` as in `train`, or exactly as in a `run` (its folder, or what `train`
        returned).

        A sample is a dictionary: x (T, C[, H, W]) reflectance, valid (T[, H, W]), days (T) since 1970-01-01, labels
        and parcels () or (H, W), -1 where there is none. All samples have the same length, so that torch's
        `DataLoader` can stack them: what was added is not valid.
        """
        from cropstar.api.torch_dataset import chosen_split, open_samples

        with only_expected_errors():
            chosen = chosen_split(self.store, part, split, split_by, seed, run)
            return open_samples(self.store, part, chosen, unit=unit, patch=patch)

    def close(self) -> None:
        if "store" in self.__dict__:
            self.store.close()

    def __enter__(self) -> StoreView:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    def __repr__(self) -> str:
        if not (self.path / "manifest.json").exists():
            return f"<cropstar store {self.path}, not there>"
        counts = f"{len(self.scenes)} scenes, {len(self.dates)} dates, {len(self.classes)} classes"
        return f"<cropstar store {self.path}: {counts}, bands {' '.join(self.bands)}>"


class SceneView:
    """One scene of a store: images on one grid, small images, or series."""

    def __init__(self, view: StoreView, name: str) -> None:
        self._view = view
        self.name = name

    @cached_property
    def tiles(self) -> list[TileReader]:
        store = self._view.store
        return [store.reader(entry.name) for entry in store.manifest.tiles if entry.scene == self.name]

    @property
    def layout(self) -> str:
        """What it holds: raster, patches (small images) or series."""
        return next(entry.layout for entry in self._view.store.manifest.tiles if entry.scene == self.name)

    @cached_property
    def dates(self) -> tuple[date, ...]:
        known = self._view.store.manifest.scenes[self.name].get("dates")
        if known:
            return tuple(date.fromisoformat(day) for day in known)
        return from_days(np.unique(np.concatenate([tile.observed_days for tile in self.tiles])))

    @cached_property
    def grid(self) -> Grid:
        """Coordinate system, affine transform and shape of a scene of images."""
        if self.layout != "raster":
            why = f"it holds {'series' if self.layout == 'series' else 'small images, each with its own grid'}"
            raise UsageError(
                f"the scene '{self.name}' has no grid", path=self._view.path, why=why, remedy="use as_torch()"
            )
        return self._placed[0]

    @cached_property
    def _placed(self) -> tuple[Grid, list[tuple[int, int]]]:
        return enclosing_grid([tile.grid for tile in self.tiles])

    def to_xarray(self, *, rows: slice | None = None, columns: slice | None = None) -> xarray.Dataset:
        """The scene, or some rows and columns of it, as an `xarray.Dataset` in memory.

        Variables: reflectance (time, band, y, x), NaN where masked; labels (y, x), the class number or -1; parcels
        (y, x), the parcel number or 0. The coordinate system is in the coordinate spatial_ref, where rioxarray and
        odc-geo look for it.
        """
        try:
            import xarray
        except ImportError:
            raise UsageError("xarray is not installed", remedy="pip install 'cropstar[xarray]'") from None
        with only_expected_errors():
            window = _window(self.grid, rows, columns)
            reflectance, labels, parcels = self._read(window)
        grid = self.grid.crop(window)
        names = self._view.classes
        flags = {"flag_values": list(range(len(names))), "flag_meanings": " ".join(_plain(name) for name in names)}
        a, b, c, d, e, f = grid.transform
        reference = {"crs_wkt": grid.crs, "spatial_ref": grid.crs, "GeoTransform": f"{c} {a} {b} {f} {d} {e}"}
        return xarray.Dataset(
            {
                "reflectance": (("time", "band", "y", "x"), reflectance, {"grid_mapping": "spatial_ref"}),
                "labels": (("y", "x"), labels, {"grid_mapping": "spatial_ref", "classes": list(names), **flags}),
                "parcels": (("y", "x"), parcels, {"grid_mapping": "spatial_ref"}),
            },
            {
                "time": np.array(from_days(self.tiles[0].days), dtype="datetime64[ns]"),
                "band": list(self._view.bands),
                "y": f + e * (np.arange(grid.height) + 0.5),
                "x": c + a * (np.arange(grid.width) + 0.5),
                "spatial_ref": ((), 0, reference),
            },
            {"scene": self.name, "crs": _crs_code(grid), "transform": list(grid.transform)},
        )

    def _read(self, window: Window) -> tuple[NDArray[np.float32], NDArray[np.int16], NDArray[np.int32]]:
        fingerprint = self._view.store.fingerprint
        if any(list(tile.days) != list(self.tiles[0].days) for tile in self.tiles):
            remedy = "use as_torch(), or give its images to xarray"
            raise UsageError("the tiles of the scene have different dates", path=self._view.path, remedy=remedy)
        shape = (window.height, window.width)
        reflectance = np.full((len(self.tiles[0].days), len(fingerprint.bands), *shape), np.nan, dtype=np.float32)
        labels = np.full(shape, UNLABELLED, dtype=np.int16)
        parcels = np.zeros(shape, dtype=np.int32)
        for (top, left), tile in zip(self._placed[1], self.tiles, strict=True):
            place = Window(top, left, tile.grid.height, tile.grid.width)
            first = max(top, window.top), max(left, window.left)
            height = min(place.bottom, window.bottom) - first[0]
            width = min(place.right, window.right) - first[1]
            if height <= 0 or width <= 0:
                continue
            shared = Window(*first, height, width)
            inner, inside = shared.relative_to(place), shared.relative_to(window).slices
            values = tile.values(inner).astype(np.float32) * np.float32(fingerprint.scale) + fingerprint.offset
            if fingerprint.sensors:  # each band by its own scale, and none on the dates of another sensor
                scales, offsets = (np.reshape(each, (-1, 1, 1)) for each in (fingerprint.scales, fingerprint.offsets))
                values = (tile.values(inner) * scales + offsets).astype(np.float32)
            reflectance[:, :, *inside] = np.where(tile.valid(inner)[:, None], values, np.nan)
            if fingerprint.several and tile.sensors is not None:
                absent = bands_present(fingerprint)[tile.sensors, : len(fingerprint.bands)] == 0  # (T, C)
                reflectance[absent] = np.nan
            labels[inside], parcels[inside] = tile.labels(inner), tile.parcels(inner)
        return reflectance, labels, parcels

    def __repr__(self) -> str:
        return f"<scene {self.name}: {self.layout}, {len(self.dates)} dates>"


def _window(grid: Grid, rows: slice | None, columns: slice | None) -> Window:
    spans = [range(size)[wanted or slice(None)] for size, wanted in ((grid.height, rows), (grid.width, columns))]
    if any(span.step != 1 or not len(span) for span in spans):
        why = f"the scene has {grid.height} rows and {grid.width} columns"
        raise UsageError("no such rows or columns", why=why, remedy="give slices such as slice(0, 100)")
    return Window(spans[0].start, spans[1].start, len(spans[0]), len(spans[1]))


def _crs_code(grid: Grid) -> str:
    code = grid.rasterio_crs.to_epsg() if grid.crs else None
    return f"EPSG:{code}" if code else grid.crs


def _plain(name: str) -> str:
    """A name without blanks, as CF conventions want flag meanings."""
    return "_".join(name.split())
