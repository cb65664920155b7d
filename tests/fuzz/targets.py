"""What is fuzzed: files of all kinds that commands read, in a small workshop where all of them belong together."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import geopandas
import numpy as np
import rasterio
import xarray

from cropstar.sources.synthetic import SceneOptions, write_scene
from tests.faults.forkserver import Answer, ForkServer, Watch
from tests.faults.writing import INGEST, PREDICT, UPDATE
from tests.fuzz.mutations import (
    Mutation,
    change_bytes,
    change_checkpoint,
    change_hdf5,
    change_json,
    change_manifest,
    change_member,
    change_model,
    change_season,
    change_sqlite,
    change_text,
    change_tiff,
    change_xml,
    either,
    flip_a_bit,
)
from tests.prediction.making import untrained
from tests.prediction.seasons import cut
from tests.sources.examples.safe import write_product, zip_product
from tests.sources.examples.tables import a_frame, as_csv, as_parquet

MOST_MEMORY = 1_500_000_000
LIMIT = 60  # seconds: nothing here takes more than some
OUT = "out"  # all that commands write goes there

MAP = "predict early.tif --model model.safetensors -o out/map.tif --window 16"
OF_STORE = (
    "inspect store",
    "inspect store --verify",
    "predict store --model whole.safetensors -o out --window 16",
    "train --store store --model star --layers 1 --hidden 4 --epochs 1 --runs out/runs --set split.validation=0.3",
)


@dataclass(frozen=True)
class Target:
    """Files of one kind, how they are changed, and the commands that read them."""

    name: str
    files: tuple[str, ...]  # patterns below the workshop
    mutate: Mutation
    commands: tuple[str, ...]  # {} is the file
    repair: Callable[[Path, Path], None] | None = None  # makes what refers to the file fit again, as an attacker would


def fit_manifest(workshop: Path, file: Path) -> None:
    """The tile's size as it is now; without a checksum, as in older stores."""
    path = workshop / "store" / "manifest.json"
    content = json.loads(path.read_text())
    del content["checksum"]
    for entry in content["tiles"]:
        if entry["name"] == file.stem:
            entry["bytes"] = file.stat().st_size
    path.write_text(json.dumps(content))


RUN = "star-1x4-001"
PARCELS = ("ingest whole.tif --parcels {} -o out/store --workers 1", MAP + " --parcels {}")
TABLE = ("ingest table {} -o out/store --workers 1",)
SAFE = ("ingest sentinel2 {} --parcels parcels.gpkg -o out/store --workers 1",)

TARGETS = (
    Target("tile", ("store/tiles/*.h5",), either(change_hdf5, change_hdf5, change_bytes), OF_STORE, fit_manifest),
    Target("manifest", ("store/manifest.json",), either(change_manifest, change_manifest, change_bytes), OF_STORE),
    Target("model", ("model.safetensors",), either(change_model, change_model, change_bytes), (MAP, "inspect {}")),
    Target(
        "season",
        ("maps/season.h5",),
        either(change_season, change_season, change_bytes),
        (UPDATE, UPDATE + " -o out/map.tif", "inspect {}"),
    ),
    Target("safe", ("safe/*.SAFE/*.xml", "safe/*.SAFE/GRANULE/*/*/*/*.jp2"), either(change_bytes, change_xml), SAFE),
    Target("archive", ("archive/*.zip",), either(change_bytes, change_member), SAFE),
    Target(
        "geotiff",
        ("early.tif", "whole.tif"),
        either(change_bytes, change_tiff),
        ("ingest {} --parcels parcels.gpkg -o out/store --workers 1", MAP.replace("early.tif", "{}")),
    ),
    Target("geopackage", ("parcels.gpkg",), either(change_bytes, change_sqlite), PARCELS),
    Target("shapefile", ("shape/*",), change_bytes, tuple(each.replace("{}", "shape/parcels.shp") for each in PARCELS)),
    Target("flatgeobuf", ("parcels.fgb",), change_bytes, PARCELS),
    Target("geojson", ("parcels.geojson",), either(change_bytes, change_json, change_text), PARCELS),
    Target("geoparquet", ("parcels.parquet",), change_bytes, PARCELS),
    Target("points", ("points.csv",), either(change_bytes, change_text), PARCELS[:1]),
    Target(
        "label raster",
        ("labels.tif",),
        either(change_bytes, change_tiff),
        ("ingest whole.tif --parcels {} -o out/store --workers 1", MAP + " --mask {}"),
    ),
    Target(
        "cube",
        ("cube.nc",),
        either(change_hdf5, change_bytes),
        ("ingest cube {} --parcels parcels.gpkg -o out/store --workers 1", "inspect {}"),
    ),
    Target(
        "run",
        ("runs/*/result.json", "runs/*/config.yaml", "runs/*/data.json"),
        either(change_bytes, change_text),
        (f"compare runs/{RUN}", f"inspect runs/{RUN}", f"evaluate runs/{RUN}", f"train --resume runs/{RUN}"),
    ),
    Target(
        "checkpoint",
        ("cut/*/checkpoints/*.safetensors",),
        either(change_checkpoint, change_checkpoint, change_bytes),
        (f"train --resume cut/{RUN}",),
    ),
    Target(
        "unfinished run",
        ("cut/*/config.yaml", "cut/*/data.json", "cut/*/metrics.jsonl", "cut/*/diagnosis.jsonl"),
        either(change_text, change_text, change_bytes),
        (f"train --resume cut/{RUN}", f"inspect cut/{RUN}", f"compare cut/{RUN}"),
    ),
    Target("csv", ("table.csv",), either(change_bytes, change_text), TABLE),
    Target("parquet", ("table.parquet",), change_bytes, TABLE),
    Target(
        "config",
        ("config.yaml",),
        either(change_bytes, change_text, change_text),
        ("train --store store --config {} --runs out/runs --print-config",),
    ),
    Target(
        "classes",
        ("classes.yaml",),
        either(change_bytes, change_text, change_text),
        ("ingest whole.tif --parcels parcels.gpkg --classes {} -o out/store --workers 1",),
    ),
)
# Single bits of files of ours: what is wrong is noticed, or it does not matter.
FLIPS = (
    Target("flipped tile", ("store/tiles/*.h5",), flip_a_bit, OF_STORE[2:3]),
    Target("flipped manifest", ("store/manifest.json",), flip_a_bit, OF_STORE[2:3]),
    Target("flipped model", ("model.safetensors",), flip_a_bit, (MAP,)),
    Target("flipped season", ("maps/season.h5",), flip_a_bit, (UPDATE,)),
)

CONFIG = """store: store
model: {name: star, layers: 2, hidden: 16}
optimiser: {learning_rate: 0.001}
split: {by: parcel, validation: 0.2, test: 0.3}
epochs: 3
seed: 0
"""
CLASSES = """cereals: [winter wheat, winter barley]
maize: {labels: [maize, grain maize], colour: "#e67e22"}
drop: [unknown]
others: keep
"""


class Workshop:
    """A folder with one good file of each kind; a copy of it is what commands work in."""

    def __init__(self, folder: Path, server: ForkServer) -> None:
        self.good, self.place, self.server = folder / "good", folder / "place", server
        self.place.mkdir(parents=True)  # a state remembers where its map is: all is made where commands will find it
        tile, parcels = write_scene(folder, SceneOptions(size=32, dates=3))
        size = {"width": 16, "blockxsize": 16, "blockysize": 16}
        for stem, dates in {"whole": slice(0, 3), "early": slice(0, 2), "late": slice(2, 3)}.items():
            cut(tile, self.place / f"{stem}.tif", dates, **size)
        untrained(self.place / "model.safetensors", self.place / "early.tif", layers=1, hidden=4)
        untrained(self.place / "whole.safetensors", self.place / "whole.tif", layers=1, hidden=4)
        shutil.move(parcels, self.place / "parcels.gpkg")
        frame = geopandas.read_file(self.place / "parcels.gpkg")
        (self.place / "shape").mkdir()
        for name in ("shape/parcels.shp", "parcels.fgb", "parcels.geojson"):
            frame.to_file(self.place / name)
        frame.to_parquet(self.place / "parcels.parquet")
        as_csv(a_frame(), self.place / "table")
        as_parquet(a_frame(), self.place / "table")
        (self.place / "archive").mkdir()
        zip_product(
            write_product(self.place / "safe", corner=(612_000.0, 5_412_000.0)), self.place / "archive" / "product.zip"
        )
        (self.place / "config.yaml").write_text(CONFIG)
        (self.place / "classes.yaml").write_text(CLASSES)
        self._write_points(frame)
        self._write_labels()
        self._write_cube()
        for command in (f"{INGEST} --tile-size 16", PREDICT, OF_STORE[3].replace("out/runs", "runs")):
            answer = server.run(command.split(), self.place)
            assert answer.code == 0, answer.stderr
        self._cut_off_a_run()
        shutil.move(self.place, self.good)
        self.restore()

    def _write_points(self, parcels: geopandas.GeoDataFrame) -> None:
        inside = parcels.representative_point().to_crs("EPSG:4326")
        table = parcels.drop(columns="geometry").assign(longitude=inside.x, latitude=inside.y)
        table.to_csv(self.place / "points.csv", index=False)

    def _cut_off_a_run(self) -> None:
        """Two epochs of a run of three, with all that may be read when it goes on."""
        command = OF_STORE[3].replace("out/runs", "cut").replace("--epochs 1", "--epochs 3 --diagnose")
        answer = self.server.run(command.split(), self.place)
        assert answer.code == 0, answer.stderr
        run = self.place / "cut" / RUN
        (run / "result.json").unlink()
        for newest in sorted((run / "checkpoints").iterdir())[1:]:
            newest.unlink()

    def _write_labels(self) -> None:
        with rasterio.open(self.place / "whole.tif") as scene:
            profile = {**scene.profile, "count": 1, "dtype": "uint8", "nodata": 0}
        codes = np.arange(32 * 16, dtype=np.uint8).reshape(32, 16) // 64 % 3
        with rasterio.open(self.place / "labels.tif", "w", **profile) as labels:
            labels.write(codes, 1)

    def _write_cube(self) -> None:
        with rasterio.open(self.place / "whole.tif") as scene:
            place, wkt, values = scene.transform, scene.crs.to_wkt(), scene.read((1, 2, 3))
        coordinates = {
            "t": np.array(["2023-04-10", "2023-07-13", "2023-10-24"], dtype="datetime64[ns]"),
            "y": place.f + place.e * (np.arange(values.shape[1]) + 0.5),
            "x": place.c + place.a * (np.arange(values.shape[2]) + 0.5),
            "spatial_ref": ((), 0, {"crs_wkt": wkt}),
        }
        bands = dict.fromkeys(("B02", "B04"), (("t", "y", "x"), values))
        xarray.Dataset(bands, coordinates).to_netcdf(self.place / "cube.nc", engine="h5netcdf")

    def restore(self) -> None:
        shutil.rmtree(self.place, ignore_errors=True)
        shutil.copytree(self.good, self.place)
        (self.place / OUT).mkdir()

    def files(self, target: Target) -> list[str]:
        found = [path for pattern in target.files for path in self.good.glob(pattern)]
        return sorted(str(path.relative_to(self.good)) for path in found)

    def mutate(self, target: Target, file: str, dice: random.Random) -> None:
        target.mutate(self.place / file, dice)
        if target.repair is not None:
            target.repair(self.place, self.place / file)

    def run(self, target: Target, file: str, command: str) -> Answer:
        folder = next((part for part in ("safe", "archive") if file.startswith(part + "/")), file)
        return self.server.run(command.replace("{}", folder).split(), self.place, watch=self._watch(), limit=LIMIT)

    def _watch(self) -> Watch:
        return Watch(self.place, ())

    def strays(self) -> list[str]:
        """Files that a command wrote where nobody told it to; the map of a season and a run that goes on are told."""
        known = {str(path.relative_to(self.good)) for path in self.good.rglob("*")}
        found = {str(path.relative_to(self.place)) for path in self.place.rglob("*")}
        return sorted(name for name in found - known if not name.startswith((OUT, "maps/", "cut/")))


def problem_of(answer: Answer, workshop: Workshop) -> str | None:
    """What is wrong with the way a command ended."""
    if (problem := answer.problem()) is not None:
        return problem
    if answer.peak > MOST_MEMORY:
        return f"{answer.peak / 1e9:.1f} GB of memory"
    return f"a file in a place of its own: {strays[0]}" if (strays := workshop.strays()) else None
