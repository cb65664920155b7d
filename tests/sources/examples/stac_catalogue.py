"""STAC items of band files, as catalogues write them, and small granules to make such files of."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from rasterio.warp import transform_bounds

from cropstar.geo.windows import Window
from cropstar.sources.base import Observations
from cropstar.sources.stac import StacOptions, StacSeries, open_stac
from tests.sources.examples.safe import CORNER, Pixels, some_pixels, write_band
from tests.sources.examples.stac_api import COLLECTION, Api, Json

AREA = (10.0, 48.0, 11.0, 49.0)  # all of the small granules
OPTIONS: dict[str, Any] = {
    "collection": COLLECTION,
    "bbox": AREA,
    "start": date(2023, 3, 1),
    "end": date(2023, 10, 31),
}


def item_of(
    api: Api, identifier: str, moment: str, files: Mapping[str, Path], properties: Mapping[str, Any] | None = None
) -> Json:
    """An item with the projection extension; keys of the assets are the keys of the files."""
    assets: Json = {}
    boxes = []
    for key, path in files.items():
        with rasterio.open(path) as dataset:
            boxes.append(transform_bounds(dataset.crs, "EPSG:4326", *dataset.bounds))
            assets[key] = {
                "href": api.share(path),
                "type": "image/jp2" if path.suffix == ".jp2" else "image/tiff; application=geotiff",
                "roles": ["data"],
                "proj:shape": list(dataset.shape),
                "proj:transform": list(dataset.transform)[:6],
            }
            code = dataset.crs.to_epsg()
    left, bottom, right, top = boxes[0]
    ring = [[left, bottom], [right, bottom], [right, top], [left, top], [left, bottom]]
    return {
        "type": "Feature",
        "stac_version": "1.0.0",
        "stac_extensions": ["https://stac-extensions.github.io/projection/v1.1.0/schema.json"],
        "id": identifier,
        "collection": COLLECTION,
        "bbox": [left, bottom, right, top],
        "geometry": {"type": "Polygon", "coordinates": [ring]},
        "properties": {"datetime": moment, "proj:epsg": code, **(properties or {})},
        "links": [{"rel": "self", "href": f"{api.address}/collections/{COLLECTION}/items/{identifier}"}],
        "assets": assets,
    }


def add_granule(
    api: Api,
    folder: Path,
    day: str = "2023-05-01",
    pixels: Mapping[str, Pixels] | None = None,
    *,
    name: str = "granule",
    corner: tuple[float, float] = CORNER,
    epsg: int = 32632,
    properties: Mapping[str, Any] | None = None,
) -> Json:
    """Write a small granule, share it and list it; a baseline is said unless properties say something else."""
    pixels = pixels or {band: some_pixels(band) for band in ("B02", "B05", "SCL")}
    place = folder / f"{name}-{day}-{len(api.items)}"
    files = {
        band: write_band(place / f"{band}.tif", data, 10 if band == "B02" else 20, epsg=epsg, corner=corner)
        for band, data in pixels.items()
    }
    said = properties or {"s2:processing_baseline": "02.08"}
    api.items.append(item_of(api, f"{name}-{day}-{len(api.items)}", f"{day}T10:30:00Z", files, said))
    return api.items[-1]


def open_one(api: Api, **changes: Any) -> StacSeries:
    (series,) = open_stac(api.address, StacOptions(**{**OPTIONS, **changes}))
    return series


def read_all(series: StacSeries) -> Observations:
    return series.read(Window(0, 0, *series.grid.shape))


def constant(band: str, value: int) -> Pixels:
    return np.full_like(some_pixels(band), value)
