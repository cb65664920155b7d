"""Contents of rasters for `cropstar inspect`: maps with their classes and test figures, layers, and images."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from rasterio.errors import RasterioError

from cropstar.errors import CropstarError, InputError
from cropstar.geo.grid import Grid, hectares_per_pixel
from cropstar.geo.raster import open_raster, rasterio_window
from cropstar.geo.windows import split
from cropstar.reports.contents import crs_name
from cropstar.reports.wording import areas, plural, printable, shares
from cropstar.store.classes import MASKED, NODATA, UNKNOWN

RASTERS = (".tif", ".tiff")
BLOCK = 2048
MOST_BANDS = 12  # that are named one by one


def raster_facts(path: Path) -> dict[str, Any]:
    """What a raster says of itself; of a map also how many pixels each class has."""
    with open_raster(path) as dataset:
        grid, tags = Grid.of(dataset), dataset.tags()
        facts: dict[str, Any] = {
            "kind": "raster",
            "path": str(path),
            "bytes": path.stat().st_size,
            "shape": [grid.height, grid.width],
            "crs": crs_name(grid.crs),
            "resolution": grid.resolution,
            "bounds": list(grid.bounds),
            "bands": [text or "" for text in dataset.descriptions],
            "dtype": dataset.dtypes[0],
            "nodata": dataset.nodata,
        }
        names = _class_names(dataset.tags(1))
        if names and dataset.dtypes[0] == "uint8":
            facts |= {"what": "map", "classes": _classes(dataset, grid, names, path), **_said(tags)}
        elif "CROPSTAR_LAYER" in tags:
            facts |= {"what": "layer", "meaning": tags["CROPSTAR_LAYER"], **_said(tags)}
        else:
            facts |= {"what": "images", **_images(path)}
    return facts


def raster_lines(facts: dict[str, Any]) -> list[str]:
    """The facts for people."""
    height, width = facts["shape"]
    what = {"map": "a map", "layer": "a layer of a map", "images": "images"}[facts["what"]]
    lines = [f"{printable(Path(facts['path']).name)}  {what}", ""]
    lines.append(f"  grid        {width} x {height} pixels of {facts['resolution']:g}, {printable(str(facts['crs']))}")
    if facts["what"] == "images":
        bands = facts["bands"]
        shown = ", ".join(printable(name) for name in bands[:MOST_BANDS] if name)
        more = f", ... {len(bands)} in all" if len(bands) > MOST_BANDS else ""
        lines.append(f"  bands       {len(bands)} of {facts['dtype']}" + (f": {shown}{more}" if shown else ""))
        lines += [f"  dates       {facts['series']}"] if facts.get("series") else []
        lines += [f"  note        {printable(facts['problem'])}"] if facts.get("problem") else []
        return lines
    lines += [f"  shows       {printable(facts['meaning'])}"] if facts["what"] == "layer" else []
    if dates := facts.get("dates"):
        lines.append(f"  dates       {plural(len(dates), 'date')}, {dates[0]} to {dates[-1]}")
    for name, key in (("model", "model"), ("version", "version"), ("smoothing", "smoothing"), ("tested", "accuracy")):
        lines += [f"  {name:<11} {printable(facts[key])}"] if facts.get(key) else []
    lines += [f"  caveat      {printable(each)}" for each in facts.get("caveats", ())]
    if facts["what"] == "map":
        lines += ["", *_class_lines(facts["classes"])]
    return lines


def _class_lines(rows: list[dict[str, Any]]) -> list[str]:
    mapped = sum(row["pixels"] for row in rows if row["number"] not in (NODATA, MASKED)) or 1
    share_texts = shares([row["pixels"] / mapped for row in rows])
    with_areas = all(row["hectares"] is not None for row in rows)
    area_texts = areas([row["hectares"] for row in rows]) if with_areas else [f"{row['pixels']:,}" for row in rows]
    width = max(len(printable(row["name"])) for row in rows)
    head = f"  {'class':<{width}}  {'hectares' if with_areas else 'pixels':>12}  {'%':>6}"
    return [
        head,
        *(
            f"  {printable(row['name']):<{width}}  {area:>12}  {'' if row['number'] in (NODATA, MASKED) else share:>6}"
            for row, area, share in zip(rows, area_texts, share_texts, strict=True)
        ),
    ]


def _class_names(tags: dict[str, str]) -> dict[int, str]:
    found = {int(match[1]): text for name, text in tags.items() if (match := re.fullmatch(r"CLASS_(\d{1,3})", name))}
    return {number: name for number, name in sorted(found.items()) if number < NODATA}


def _classes(dataset: Any, grid: Grid, names: dict[int, str], path: Path) -> list[dict[str, Any]]:
    counts = np.zeros(256, dtype=np.int64)
    try:
        for window in split(grid.shape, BLOCK):
            values = dataset.read(1, window=rasterio_window(window))
            counts += np.bincount(values.ravel(), minlength=256)
    except RasterioError as failure:
        raise InputError("unreadable raster", path=path, why=str(failure), remedy="make the map again") from None
    hectares = hectares_per_pixel(grid)
    known = names | ({NODATA: "no data"} if counts[NODATA] else {})
    known |= {int(value): f"value {value}" for value in np.flatnonzero(counts) if int(value) not in known}
    rows = [
        {
            "number": number,
            "name": name,
            "pixels": int(counts[number]),
            "hectares": None if hectares is None else float(counts[number] * hectares),
        }
        for number, name in known.items()
        if counts[number]
    ]
    return sorted(rows, key=lambda row: (row["number"] in (NODATA, MASKED, UNKNOWN), -row["pixels"]))


def _said(tags: dict[str, str]) -> dict[str, Any]:
    """What the tags of a map of ours say."""
    named = {"model": "MODEL", "version": "VERSION", "smoothing": "SMOOTHING", "accuracy": "ACCURACY"}
    said: dict[str, Any] = {key: tags[f"CROPSTAR_{tag}"] for key, tag in named.items() if f"CROPSTAR_{tag}" in tags}
    said["dates"] = tags.get("CROPSTAR_DATES", "").split()
    said["caveats"] = [each for each in tags.get("CROPSTAR_CAVEATS", "").split(" | ") if each]
    return said


def _images(path: Path) -> dict[str, Any]:
    """Dates and bands, where the file tells them; else why it cannot be mapped as it is."""
    from cropstar.sources.stack import StackSeries

    try:
        series = StackSeries(path)
    except CropstarError as failure:
        return {"problem": f"{failure.what}: {failure.why}" if failure.why else failure.what}
    try:
        dates = [day.isoformat() for day in series.dates]
        words = f"{plural(len(dates), 'date')} from {dates[0]} to {dates[-1]}, bands {', '.join(series.bands)}"
        return {"series": words, "dates": dates, "of_each_date": list(series.bands)}
    finally:
        series.close()
