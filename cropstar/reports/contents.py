"""Contents of stores, tiles and model files: facts for `cropstar inspect`, and the summary at the end of ingest."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import ArtifactError, CropstarError, InputError
from cropstar.geo.calendar import from_days
from cropstar.geo.grid import Grid, enclosing_grid, hectares_per_pixel
from cropstar.geo.raster import GDAL_ERRORS, open_raster, rasterio_window
from cropstar.geo.windows import split
from cropstar.reports.results import RESULT, unit_of
from cropstar.reports.wording import areas, pixel_side, plural, printable, shares
from cropstar.runtime import event, logger, track
from cropstar.store.classes import MASKED, NODATA, UNKNOWN
from cropstar.store.fingerprint import Fingerprint
from cropstar.store.gate import open_hdf5, read_json
from cropstar.store.model_file import read_model
from cropstar.store.reader import UNREADABLE, TileReader
from cropstar.store.store import MANIFEST, Store
from cropstar.store.tile import REMEDY, ParcelTable, read_attribute

MODEL = "model.safetensors"
ACCEPTED = (
    "give a store's folder, a tile or a state (.h5), a model file (.safetensors), a run's folder, a raster (.tif) "
    "or a folder of images"
)
SEASON = {"card", "state"}  # what the file of a state has and a tile has not


@dataclass(frozen=True)
class StoredTile:
    """One tile with what its store knows of it."""

    name: str
    scene: str
    bytes: int
    recipe: str
    reader: TileReader


@dataclass(frozen=True)
class TileSet:
    """The tiles of a store, or a single one."""

    path: Path
    kind: str
    fingerprint: Fingerprint
    tiles: list[StoredTile]
    provenance: dict[str, dict[str, Any]]  # by scene

    @property
    def scenes(self) -> list[str]:
        return sorted({tile.scene for tile in self.tiles})

    def of_scene(self, scene: str) -> list[StoredTile]:
        return [tile for tile in self.tiles if tile.scene == scene]


def kind_of(path: Path) -> str:
    """store, tile, season, model, run or raster; whatever else is refused with a word on what is taken."""
    if path.is_dir():
        if (path / MANIFEST).exists():
            return "store"
        if (path / MODEL).exists():
            return "run"
        unfinished = (path / "config.yaml").exists()
        if not unfinished and _has_images(path):
            return "raster"
        why = "an unfinished run has no model yet" if unfinished else "neither a store, a run nor images"
        raise InputError("nothing to inspect", path=path, why=why, remedy=ACCEPTED)
    kind = {".h5": "tile", ".safetensors": "model", ".tif": "raster", ".tiff": "raster"}.get(path.suffix.lower())
    if not path.exists():
        raise InputError("nothing to inspect", path=path, why="there is no such file or folder", remedy=ACCEPTED)
    if kind is None:
        raise InputError("nothing to inspect", path=path, why="a file of unknown kind", remedy=ACCEPTED)
    return "season" if kind == "tile" and _is_season(path) else kind


def _has_images(folder: Path) -> bool:
    from cropstar.sources.catalogue import guess_source

    try:
        return guess_source(folder) in ("sentinel2", "stack", "cube")
    except CropstarError:
        return False


def _is_season(path: Path) -> bool:
    try:
        with open_hdf5(path) as handle:
            return set(handle) >= SEASON
    except UNREADABLE:  # reading it as a tile gives the reason
        return False


@contextmanager
def open_tile_set(path: Path, kind: str) -> Iterator[TileSet]:
    """A store or a tile, opened for reading and closed afterwards."""
    if kind == "store":
        with Store.open(path) as store:
            tiles = [
                StoredTile(entry.name, entry.scene, entry.bytes, entry.recipe, reader)
                for entry, reader in store.readers()
            ]
            yield TileSet(path, kind, store.fingerprint, tiles, store.manifest.scenes)
    else:
        with closing(TileReader(path)) as reader:
            recipe = _recipe(path)
            tile = StoredTile(path.stem, reader.scene, path.stat().st_size, recipe, reader)
            yield TileSet(path, kind, reader.fingerprint, [tile], {reader.scene: reader.provenance})


def tile_set_facts(tile_set: TileSet) -> dict[str, Any]:
    """Scenes, dates with their clear share, and the class table with its counts."""
    layouts = sorted({tile.reader.layout for tile in tile_set.tiles})
    readers = [tile.reader for tile in tile_set.tiles]
    dates, classes = count_tiles(readers, tile_set.fingerprint)
    labelled = _labelled_dates(readers, len(classes))
    if labelled is not None:
        classes = [{**row, "dates": count} for row, count in zip(classes, labelled, strict=True)]
    seen = sum(row["observations"] for row in dates)
    return {
        "kind": tile_set.kind,
        "path": str(tile_set.path),
        "layout": " and ".join(layouts),
        "bytes": sum(tile.bytes for tile in tile_set.tiles),
        "tiles": len(tile_set.tiles),
        **_fingerprint_facts(tile_set.fingerprint),
        "scenes": [_scene_facts(tile_set, scene) for scene in tile_set.scenes],
        "dates": dates,
        "clear": sum(row["clear"] * row["observations"] for row in dates) / seen if seen else None,
        "classes": classes,
    }


def _labelled_dates(readers: Sequence[TileReader], classes: int) -> list[int] | None:
    """The number of labelled dates of each class; None where only whole series have one."""
    counts, labelled = np.zeros(classes, dtype=np.int64), False
    for reader in readers:
        labels = reader.date_labels if reader.layout == "series" else None
        if labels is not None:
            labelled = True
            counts += np.bincount(labels[labels >= 0], minlength=classes)
            reader.close()
    return counts.tolist() if labelled and counts.any() else None


def model_facts(path: Path, kind: str) -> dict[str, Any]:
    """The card of a model whose checksum was verified, and the test figures of a finished run."""
    file = path / MODEL if kind == "run" else path
    card, tensors, digest = read_model(file)
    facts = {
        "kind": kind,
        "path": str(path),
        "bytes": file.stat().st_size,
        "model": card.model,
        "shape": card.shape,
        "parameters": sum(int(array.size) for array in tensors.values()),
        **_fingerprint_facts(card.fingerprint),
        "classes": card.fingerprint.classes.to_json(),
        "normalisation": card.normalisation.to_json(),
        "provenance": card.provenance,
        "digest": digest,
    }
    if kind == "run" and (path / RESULT).exists():
        facts["test"] = _test_facts(path / RESULT)
    return facts


def crs_name(wkt: str) -> str:
    """'WGS 84 / UTM zone 32N (EPSG:32632)', as far as the coordinate system tells."""
    from rasterio.crs import CRS
    from rasterio.errors import CRSError

    match = re.match(r'\s*\w+\["([^"]+)"', wkt)
    name = match[1] if match else ""
    try:
        code = CRS.from_wkt(wkt).to_epsg() if wkt else None
    except CRSError:
        code = None
    if code:
        return f"{name} (EPSG:{code})" if name else f"EPSG:{code}"
    return name or "no coordinate system"


def _fingerprint_facts(fingerprint: Fingerprint) -> dict[str, Any]:
    facts = fingerprint.to_json()
    del facts["classes"]
    return facts


def _scene_facts(tile_set: TileSet, scene: str) -> dict[str, Any]:
    tiles = tile_set.of_scene(scene)
    facts: dict[str, Any] = {
        "name": scene,
        "layout": tiles[0].reader.layout,
        "tiles": len(tiles),
        "bytes": sum(tile.bytes for tile in tiles),
        "recipe": tiles[0].recipe,
    }
    days = np.unique(np.concatenate([tile.reader.observed_days for tile in tiles]))
    facts["dates"] = [day.isoformat() for day in from_days(days)]
    if facts["layout"] == "raster":
        grid, _ = enclosing_grid([tile.reader.grid for tile in tiles])
        facts |= {"shape": [grid.height, grid.width], "crs": crs_name(grid.crs), "bounds": list(grid.bounds)}
    if facts["layout"] == "patches":
        images = sum(len(tile.reader.lengths) for tile in tiles)
        shape, crs = tiles[0].reader.shape, tiles[0].reader.crs
        facts |= {"images": images, "shape": list(shape), "crs": crs_name(crs)}
    recorded = tile_set.provenance.get(scene, {})
    return {**facts, "provenance": {key: recorded[key] for key in recorded if key not in ("grid", "dates")}}


def _recipe(path: Path) -> str:
    try:
        with open_hdf5(path) as handle:
            return read_attribute(handle, "recipe")
    except UNREADABLE as failure:
        raise ArtifactError("a tile cannot be read", path=path, why=str(failure), remedy=REMEDY) from None


def _test_facts(path: Path) -> dict[str, Any]:
    """Figures of the test by unit: pixels or dates, where there are any, and parcels."""
    try:
        result = read_json(path)
        test = result["test"]
        unit = unit_of(test) if "unit" in test or "confusion" in test["pixel"] else "pixel"
        levels = {unit: test["pixel"]} if unit != "parcel" else {}
        return {
            "parcels": int(sum(result["split"]["counts"]["test"])),
            "unit": unit,
            **{
                level: {name: figures[name] for name in ("overall_accuracy", "macro_f1")}
                for level, figures in {**levels, "parcel": test["parcel"]}.items()
            },
        }
    except (ValueError, KeyError, TypeError, AttributeError) as failure:
        why = f"{type(failure).__name__}: {failure}"
        raise ArtifactError("the result cannot be read", path=path, why=why, remedy="train again") from None


# --- counts

BLOCK = 480  # pixels a side that are read at once: ten chunks, so that a tile of any size fits into memory

Counts = NDArray[np.int64]


def count_tiles(
    readers: Sequence[TileReader], fingerprint: Fingerprint
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The share of clear observations on each date, and the class table with the parcels, pixels and hectares of each
    class, or its samples where there are no images. Every tile is opened once: a store has thousands."""
    clear: Counter[int] = Counter()
    seen: Counter[int] = Counter()
    pixels = np.zeros(len(fingerprint.classes), dtype=np.int64)
    hectares: NDArray[np.float64] = np.zeros(len(fingerprint.classes))
    tables = []
    for reader in track(readers, len(readers), "count", "tile"):
        days, good, everything = _count_observations(reader)
        clear.update(dict(zip(days.tolist(), good.tolist(), strict=True)))
        seen.update(dict(zip(days.tolist(), everything.tolist(), strict=True)))
        if reader.layout != "series" and len(reader.images):
            share = hectares_per_pixel(reader.images[0].grid, fingerprint.resolution)
            counts = _count_pixels(reader, len(fingerprint.classes))
            pixels += counts
            hectares += counts * (np.nan if share is None else share)
        tables.append(reader.table)
        reader.close()  # the more files are open, the longer HDF5 takes to close one
    known = sorted(seen)
    dates = [
        {"date": date.isoformat(), "clear": clear[day] / max(seen[day], 1), "observations": seen[day]}
        for day, date in zip(known, from_days(known), strict=True)
    ]
    parcels = _count_parcels(readers, tables, len(fingerprint.classes))
    if readers and all(reader.layout == "series" for reader in readers):
        return dates, _class_rows(fingerprint, samples=parcels)
    areas = [round(float(area), 4) if np.isfinite(area) else None for area in hectares]
    return dates, _class_rows(fingerprint, parcels=parcels, pixels=pixels, hectares=areas)


def _class_rows(fingerprint: Fingerprint, **columns: Counts | list[float | None]) -> list[dict[str, Any]]:
    """The class table with more columns."""
    plain = {name: column if isinstance(column, list) else column.tolist() for name, column in columns.items()}
    return [
        {**entry, **{name: column[place] for name, column in plain.items()}}
        for place, entry in enumerate(fingerprint.classes.to_json())
    ]


def _count_observations(reader: TileReader) -> tuple[NDArray[np.int32], Counts, Counts]:
    """The dates of a tile, and on each of them the valid observations and all."""
    days = reader.observed_days
    if reader.layout == "series":
        places = np.searchsorted(days, reader.days)
        good = np.bincount(places, weights=reader.whole_mask(), minlength=len(days)).astype(np.int64)
        return days, good, np.bincount(places, minlength=len(days))
    good, seen = np.zeros(len(days), dtype=np.int64), np.zeros(len(days), dtype=np.int64)
    height, width = reader.shape
    for image in reader.images:
        places = np.searchsorted(days, image.days)
        np.add.at(seen, places, height * width)
        for window in split((height, width), BLOCK):
            np.add.at(good, places, image.valid(window).sum(axis=(1, 2)))
    return days, good, seen


def _count_pixels(reader: TileReader, classes: int) -> Counts:
    # Small images are read all at once, large ones in windows.
    windows = [None] if reader.layout == "patches" else list(split(reader.shape, 4 * BLOCK))
    counts = np.zeros(classes, dtype=np.int64)
    for window in windows:
        labels = reader.labels(window)
        counts += np.bincount(labels[labels >= 0], minlength=classes)
    return counts


def _count_parcels(readers: Sequence[TileReader], tables: Sequence[ParcelTable], classes: int) -> Counts:
    """Parcels of each class, each once, also where it lies in several tiles or images."""
    parcels = np.zeros(classes, dtype=np.int64)
    for scene, kind in sorted({(reader.scene, reader.layout) for reader in readers}):
        own = [place for place, reader in enumerate(readers) if (reader.scene, reader.layout) == (scene, kind)]
        numbers = np.concatenate([tables[place].numbers for place in own])
        labels = np.concatenate([tables[place].labels for place in own])
        known = (numbers != 0) & (labels >= 0)
        names = _field_names([readers[place] for place in own]) if kind == "patches" else numbers
        _, first = np.unique(names[known], return_index=True)
        parcels += np.bincount(labels[known][first], minlength=classes)
    return parcels


def _field_names(readers: Sequence[TileReader]) -> NDArray[Any]:
    """A name for each field in a collection of images: parts in several images under one key are one field,
    several under one key in one image are several."""
    names = []
    for reader in readers:
        pixels = reader.shape[0] * reader.shape[1]  # an image's numbers follow each other
        before: Counter[tuple[int, str]] = Counter()
        for number, key in zip(reader.table.numbers, reader.table.keys, strict=True):
            place = (int(number) - 1) // pixels, key
            names.append(f"{key} {before[place]}")
            before[place] += 1
    return np.array(names)


# --- summary of ingest


def summarise(folder: Path) -> None:
    """Say what a store holds: parcels, pixels and hectares of images, samples of tables."""
    with Store.open(folder) as store:
        dates, rows = count_tiles(store.tiles, store.fingerprint)
        images = sum(len(reader.images) for reader in store.tiles if reader.layout == "patches")
        tiles, bands = len(store.manifest.tiles), " ".join(store.fingerprint.bands)
        samples = sum(len(reader.table.numbers) for reader in store.tiles if reader.layout == "series")
    series = any("samples" in row for row in rows)
    what = "samples" if series else "parcels"
    present = [row for row in rows if row[what] or row.get("pixels")]
    width = max((len(row["name"]) for row in present), default=0)
    for row in present:
        logger.info("  %-*s %s", width, row["name"], _counts_text(row))
    if len(present) < len(rows):
        logger.info("  and %s without %s", plural(len(rows) - len(present), "class", "classes"), what)
    total = samples or sum(row[what] for row in rows)
    seen = sum(row["observations"] for row in dates)
    clear = sum(row["clear"] * row["observations"] for row in dates) / max(seen, 1)
    holds = [plural(tiles, "tile"), *([plural(images, "image")] if images else []), plural(total, what[:-1])]
    span = f"{plural(len(dates), 'date')} from {dates[0]['date']} to {dates[-1]['date']}"
    word = "valid" if series else "clear"
    event(
        f"{', '.join(holds)}, {span}, bands {bands}, {clear:.0%} of the observations {word}",
        tiles=tiles,
        dates=len(dates),
        **{what: total},
    )


def _counts_text(row: dict[str, Any]) -> str:
    if "samples" in row:
        return f"{row['samples']:7d} sample{'' if row['samples'] == 1 else 's'}"
    area = "" if row["hectares"] is None else f" {row['hectares']:8.1f} ha"
    return f"{row['parcels']:5d} parcel{' ' if row['parcels'] == 1 else 's'} {row['pixels']:8d} pixels{area}"


# --- Rasters: maps, states and images

BLOCK = 2048
MOST_BANDS = 12  # that are named one by one


def raster_facts(path: Path) -> dict[str, Any]:
    """The facts of a raster or a folder of images; for a map also the number of pixels of each class."""
    if path.is_dir():
        return _folder_facts(path)
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
    side = pixel_side(facts["resolution"])
    lines.append(f"  grid        {width} x {height} pixels of {side}, {printable(str(facts['crs']))}")
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
    names = {int(match[1]): text for name, text in tags.items() if (match := re.fullmatch(r"CLASS_(\d{1,3})", name))}
    return {number: name for number, name in sorted(names.items()) if number < NODATA}


def _classes(dataset: Any, grid: Grid, names: dict[int, str], path: Path) -> list[dict[str, Any]]:
    counts = np.zeros(256, dtype=np.int64)
    try:
        for window in split(grid.shape, BLOCK):
            values = dataset.read(1, window=rasterio_window(window))
            counts += np.bincount(values.ravel(), minlength=256)
    except GDAL_ERRORS as failure:
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
    """The facts in the tags of a map made by cropstar."""
    named = {"model": "MODEL", "version": "VERSION", "smoothing": "SMOOTHING", "accuracy": "ACCURACY"}
    facts: dict[str, Any] = {key: tags[f"CROPSTAR_{tag}"] for key, tag in named.items() if f"CROPSTAR_{tag}" in tags}
    facts["dates"] = tags.get("CROPSTAR_DATES", "").split()
    caveats = [*tags.get("CROPSTAR_CAVEATS", "").split(" | "), tags.get("CROPSTAR_NOTE", "")]
    facts["caveats"] = [each for each in caveats if each]
    return facts


def _folder_facts(path: Path) -> dict[str, Any]:
    """Grid, dates and bands of Sentinel-2 products, dated GeoTIFFs or cubes of one place."""
    from cropstar.sources.catalogue import open_raster_series

    series = open_raster_series(path, (), {})
    try:
        grid, dates = series.grid, [day.isoformat() for day in series.dates]
        words = f"{plural(len(dates), 'date')} from {dates[0]} to {dates[-1]}: {' '.join(dates)}"
        return {
            **{"kind": "raster", "what": "images", "path": str(path), "shape": [grid.height, grid.width]},
            **{"crs": crs_name(grid.crs), "resolution": grid.resolution, "bounds": list(grid.bounds)},
            **{"bands": list(series.bands), "dtype": "each date", "series": words, "dates": dates},
        }
    finally:
        series.close()


def _images(path: Path) -> dict[str, Any]:
    """The dates and bands of the file, or why it cannot be mapped."""
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
