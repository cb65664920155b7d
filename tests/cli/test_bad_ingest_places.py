"""Parcels, tables, options, odd files and names that cannot be ingested: one line, no waiting, nothing lost."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest
from shapely.geometry import Polygon, box

from tests.cli.refusing import (
    SEASON,
    STACK,
    Build,
    digests,
    error_line,
    ingest_measured,
    place,
    refused,
    write_season,
    write_stack,
)
from tests.examples import a_grid
from tests.sources.examples import stacks

__all__ = ["place"]  # a fixture


def bow_tie() -> Polygon:
    left, _, _, top = a_grid().bounds
    return Polygon([(left + 10, top - 10), (left + 60, top - 60), (left + 60, top - 10), (left + 10, top - 60)])


def test_parcels_that_can_be_helped(tmp_path: Path) -> None:
    """A bow tie is repaired; no geometry, an empty one and one in Africa are left out. All of it is said."""
    write_stack(tmp_path)
    shapes = [bow_tie(), stacks.square(1, 8, 5), None, Polygon(), box(0, 0, 100, 100)]
    stacks.write_parcels(tmp_path / "parcels.gpkg", shapes, ["wheat", "maize", "wheat", "maize", "wheat"])
    answer = ingest_measured(*STACK, "-o", "store", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    (repaired,) = [line for line in answer.stderr.splitlines() if "repaired" in line]
    assert repaired.startswith("parcels.gpkg: 1 parcel")
    assert "parcels not used: 2 without a geometry, 1 beside the scene" in answer.stderr
    assert answer.stderr.splitlines()[-1] == "store store: 1 tile written, 0 kept"


def only(*shapes: Polygon | None) -> Build:
    def build(folder: Path) -> list[str]:
        write_stack(folder)
        stacks.write_parcels(folder / "parcels.gpkg", shapes, ["wheat"] * len(shapes))
        return STACK

    return build


def label_not_in_the_table(folder: Path) -> list[str]:
    write_stack(folder)
    (folder / "classes.yaml").write_text("cereals: [wheat]\n")
    return [*STACK, "--classes", "classes.yaml"]


def too_many_classes(folder: Path) -> list[str]:
    write_stack(folder)
    names = [f"crop {number}" for number in range(256)]
    stacks.write_parcels(folder / "parcels.gpkg", [stacks.square(1, 1, 5)] * len(names), names)
    return STACK


def shapefile_with_a_pipe(folder: Path) -> list[str]:
    write_stack(folder)
    stacks.write_four_fields(folder / "fields.shp")
    (folder / "fields.dbf").unlink()
    os.mkfifo(folder / "fields.dbf")
    return [*STACK, "--parcels", "fields.shp"]


def parcels_called(name: str) -> Build:
    def build(folder: Path) -> list[str]:
        write_stack(folder)
        (folder / "parcels.gpkg").rename(folder / name)
        return STACK

    return build


@pytest.mark.parametrize(
    ("build", "parts"),
    [
        (only(None, Polygon()), ("parcels.gpkg", "2 without a geometry", "same place")),
        (only(box(0, 0, 100, 100)), ("parcels.gpkg", "1 beside the scene", "same place")),
        (label_not_in_the_table, ("'maize' is not in the class table in classes.yaml", "2 parcels", "others: drop")),
        (too_many_classes, ("too many classes in parcels.gpkg", "256 different values in column 'crop'", "--classes")),
        (shapefile_with_a_pipe, (": fields.dbf", "a pipe or device", "check the path")),
        (parcels_called("new!.gpkg"), ("in new!.gpkg", "its name", "rename")),
    ],
)
def test_parcels(place: Path, build: Build, parts: tuple[str, ...]) -> None:
    refused(place, build, 3, *parts)


# --- tables


def noise(folder: Path) -> list[str]:
    (folder / "fields.csv").write_bytes(random.Random(1).randbytes(5000))
    return ["fields.csv"]


def noise_called_parquet(folder: Path) -> list[str]:
    (folder / "fields.parquet").write_bytes(b"PAR1" + random.Random(1).randbytes(5000))
    return ["fields.parquet"]


@pytest.mark.parametrize(
    ("build", "parts"),
    [
        (noise, ("not a table in fields.csv", "CSV or Parquet")),
        (noise_called_parquet, ("damaged Parquet file in fields.parquet", "get the file again")),
    ],
)
def test_tables(place: Path, build: Build, parts: tuple[str, ...]) -> None:
    refused(place, build, 3, *parts)


# --- places and names that are not files


def folder_called_tif(folder: Path) -> list[str]:
    (folder / "x.tif").mkdir()
    return ["x.tif"]


def pipe(folder: Path) -> list[str]:
    os.mkfifo(folder / "tile.tif")
    return STACK


def pipe_among_records(folder: Path) -> list[str]:
    (folder / "tum").mkdir()
    os.mkfifo(folder / "tum" / "1.tfrecord")
    return ["tum", "tum", "--year", "2016"]


def pipe_among_dates(folder: Path) -> list[str]:
    band = write_season(folder)
    band.unlink()
    os.mkfifo(band)
    return SEASON


def link_to_itself(folder: Path) -> list[str]:
    (folder / "tile.tif").symlink_to("tile.tif")
    return STACK


def called(name: str) -> Build:
    def build(folder: Path) -> list[str]:
        (folder / name).write_text("no raster")
        return [name]

    return build


@pytest.mark.parametrize(
    ("build", "code", "parts"),
    [
        (folder_called_tif, 3, ("in x.tif", "dated .tif files")),
        (pipe, 3, ("in tile.tif", "a pipe or device")),
        (pipe_among_records, 3, ("tum/1.tfrecord", "a pipe or device")),
        (pipe_among_dates, 3, ("B08_2018-04-01.tif", "a pipe or device")),
        (link_to_itself, 3, ("no such file: tile.tif", "check the path")),
        (called("tile\nerror: two.tif"), 3, ("in tile error: two.tif", "not a GeoTIFF")),
        (called(os.fsdecode(b"tile\xff.tif")), 3, (r"in tile\udcff.tif", "not UTF-8", "rename")),
        (lambda _: [""], 2, ("an argument is empty", "give a value")),
    ],
)
def test_odd_places(place: Path, build: Build, code: int, parts: tuple[str, ...]) -> None:
    refused(place, build, code, *parts)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_a_file_that_may_not_be_read(place: Path) -> None:
    def build(folder: Path) -> list[str]:
        write_stack(folder).chmod(0)
        return STACK

    refused(place, build, 3, "tile.tif", "ermission denied")


# --- options and outputs


def test_no_workers(place: Path) -> None:
    before = digests(place)
    answer = ingest_measured("tile.tif", "--workers", "0", "-o", "store", cwd=place)
    error_line(answer, 2, "'--workers'", "0 is not in the range", "cropstar ingest --help")
    assert digests(place) == before


def test_an_output_that_is_a_file(tmp_path: Path) -> None:
    write_stack(tmp_path)
    (tmp_path / "mine").write_text("precious")
    before = digests(tmp_path)
    error_line(
        ingest_measured(*STACK, "-o", "mine/store", "--overwrite", cwd=tmp_path),
        2,
        "not a store in mine:",
        "not a folder",
        "-o",
    )
    assert digests(tmp_path) == before


def test_a_store_of_a_newer_format(place: Path) -> None:
    write_stack(place)
    manifest = place / "store" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": 99}))
    before = digests(place)
    answer = ingest_measured(*STACK, "-o", "store", "--overwrite", cwd=place)
    error_line(answer, 4, "newer format in store/manifest.json", "format 99", "update cropstar")
    assert digests(place) == before


def test_a_store_whose_manifest_is_a_pipe(place: Path) -> None:
    write_stack(place)
    (place / "store" / "manifest.json").unlink()
    os.mkfifo(place / "store" / "manifest.json")
    before = digests(place)
    answer = ingest_measured(*STACK, "-o", "store", cwd=place)
    error_line(answer, 2, "not a store in store/manifest.json", "-o")
    assert digests(place) == before
