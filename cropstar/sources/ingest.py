"""From sources to a store: tiles are written atomically, the manifest last; a rerun does only what is missing."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cropstar.errors import CropstarError, InputError, UsageError
from cropstar.execution.dask import worker_folder
from cropstar.execution.local import LocalPool
from cropstar.execution.pool import ClientToken, WorkerPool
from cropstar.runtime import logger, progress_bar
from cropstar.sources.base import RasterScene, Scene, TileSpec
from cropstar.sources.decoding import DecodedSeries, Scratch, around, decoded_bytes, scratch_bytes, scratch_file
from cropstar.store.files import PARTIAL, sweep
from cropstar.store.fingerprint import Fingerprint
from cropstar.store.gate import FingerprintRow, ManifestRow, checked
from cropstar.store.store import MANIFEST, TILES, Manifest, TileEntry, read_manifest, tile_path, write_manifest, writing
from cropstar.store.tile import flush_tiles, is_whole, write_tile

LOCK = ".lock"
TILE_NAME = re.compile(r"-[0-9a-f]{8}-(y\d+-x\d+|n\d+)$")  # recipe and place: only ingest names files so


@dataclass(frozen=True)
class IngestResult:
    folder: Path
    written: int
    kept: int


def ingest(
    scenes: Sequence[Scene],
    folder: Path,
    *,
    overwrite: bool = False,
    workers: int = 1,
    cluster: WorkerPool | None = None,
) -> IngestResult:
    """Add scenes to a store. Existing tiles are not touched before the new manifest is written.

    The bytes are the same for any number of workers, also for those of a cluster.
    """
    _require_store_or_new(folder)
    pool = LocalPool(workers) if cluster is None else cluster
    shared = SceneTasks.of(scenes, folder, pool)
    with writing(folder):
        before = read_manifest(folder)
        fingerprint = _require_same_kind(scenes, before, folder, overwrite)
        _require_storable(scenes, fingerprint)
        entries = {} if before is None or overwrite else {entry.name: entry for entry in before.tiles}
        described: dict[str, dict[str, Any]] = {} if before is None or overwrite else dict(before.scenes)
        counts = []
        with swept_when_killed(pool, folder), pool, shared.client_present():
            for number, scene in enumerate(scenes):
                counts.append(_make_scene(pool, number, scene, folder))
                for spec in scene.tile_specs():
                    size = tile_path(folder, spec.name).stat().st_size
                    entries[spec.name] = TileEntry(spec.name, scene.name, scene.layout, size, scene.recipe)
                described[scene.name] = scene.describe()
        flush_tiles(tile_path(folder, spec.name) for scene in scenes for spec in scene.tile_specs())
        write_manifest(folder, Manifest(fingerprint, tuple(sorted(entries.values())), described))
        _remove_unlisted(folder, set(entries))
    return IngestResult(folder, sum(written for written, _ in counts), sum(kept for _, kept in counts))


def _require_same_kind(scenes: Sequence[Scene], before: Manifest | None, folder: Path, overwrite: bool) -> Fingerprint:
    """All scenes of a store have the same bands, scale and classes; the season grows to cover them."""
    known = None if before is None or overwrite else before
    names = [scene.name for scene in scenes]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(
                f"two scenes are called '{name}'", path=folder, remedy="rename one, or ingest them separately"
            )
    fingerprint = known.fingerprint if known else scenes[0].fingerprint
    for scene in scenes:
        fingerprint.require_same(
            scene.fingerprint,
            f"the scene '{scene.name}' does not fit the store",
            folder,
            "choose another store with -o, or replace this one with --overwrite",
        )
        fingerprint = fingerprint.with_season(fingerprint.season.merge(scene.fingerprint.season))
        if known and known.scenes.get(scene.name, {}).get("recipe", scene.recipe) != scene.recipe:
            raise UsageError(
                f"a scene '{scene.name}' of other content or options is in the store",
                path=folder,
                remedy="choose another store with -o, or replace this one with --overwrite",
            )
    return fingerprint


def _require_storable(scenes: Sequence[Scene], fingerprint: Fingerprint) -> None:
    """Refuse names that readers of the store would refuse, before a tile is made."""
    rows = [
        asdict(TileEntry(spec.name, scene.name, scene.layout, 0, scene.recipe))
        for scene in scenes
        for spec in scene.tile_specs()
    ]
    try:
        checked(FingerprintRow, fingerprint.to_json())
        checked(
            ManifestRow, {"format": 0, "fingerprint": {}, "tiles": rows, "scenes": {each.name: {} for each in scenes}}
        )
    except ValueError as failure:
        remedy = "give classes, bands and files shorter names, or map labels to classes with --classes"
        raise InputError("cannot be stored", why=str(failure), remedy=remedy) from None


def _remove_unlisted(folder: Path, names: set[str]) -> None:
    for path in (folder / TILES).glob("*.h5"):
        if path.stem not in names and TILE_NAME.search(path.stem):
            path.unlink()


def _require_store_or_new(folder: Path) -> None:
    """Refuse an output that is not a folder, or a folder with other files."""
    known = {MANIFEST, LOCK}
    for place in (folder, *folder.parents):
        if (place.exists() or place.is_symlink()) and not place.is_dir():
            why = "it is not a folder"
            raise UsageError("not a store", path=place, why=why, remedy="choose a new folder with -o")
    for place in (folder / name for name in known):
        if place.exists() and not place.is_file():  # a pipe would be waited for without end
            raise UsageError("not a store", path=place, why="it is not a file", remedy="choose a new folder with -o")
    if folder.is_dir() and any(folder.iterdir()) and not known & {entry.name for entry in folder.iterdir()}:
        raise UsageError(
            "not a store", path=folder, why="it contains other files", remedy="choose a new folder with -o"
        )


# --- Tiles of one scene
#
# A store is the same to the byte whoever made its tiles, and a run that was stopped can go on either way. Workers of
# this machine share one large scratch file. Workers on other machines get parts of a scene instead, each decoded into a
# file on the worker's own disk: nothing decoded crosses the network, and when a worker dies another one continues its
# part from the tiles that are there. Tiles go into the store's folder, which all machines share: what is finished
# survives worker, scheduler and client, and no pixel passes through the scheduler.

PART_BYTES = 2**30  # of a part's scratch file at most: every thread of a worker has one
PARTS_PER_THREAD = 3  # a thread, of a scene large enough: the last ones end at about the same time
NO_CLUSTER = "leave --scheduler out"


def _make_scene(pool: WorkerPool, number: int, scene: Scene, folder: Path) -> tuple[int, int]:
    """Make what is missing of the scene with that number; how many tiles were written and kept."""
    specs = scene.tile_specs()
    with progress_bar(len(specs), f"ingest {scene.name}", "tile") as bar:
        # One listing: a network file system caches for a while that a file does not exist.
        present = {path.stem for path in (folder / TILES).glob("*.h5")}
        whole: set[str] = set()
        checks = [CheckTile(number, spec) for spec in specs if spec.name in present]
        for check, good in pool.run(checks, volume=scene.volume):
            assert isinstance(check, CheckTile)
            if good:
                whole.add(check.spec.name)
                bar.update()
            else:
                path = tile_path(folder, check.spec.name)
                logger.warning("the tile %s was damaged and is made again", path)
        missing = [spec for spec in specs if spec.name not in whole]
        for done in _make_tiles(pool, number, scene, missing, folder):
            bar.update(done)
    return len(missing), len(whole)


def _make_tiles(pool: WorkerPool, number: int, scene: Scene, specs: Sequence[TileSpec], folder: Path) -> Iterator[int]:
    """Make tiles of the scene with that number; how many, whenever some are done."""
    if not isinstance(scene, RasterScene) or scene.decoding is None:
        yield from (1 for _ in pool.run([MakeTile(number, spec, None) for spec in specs], volume=scene.volume))
    elif not pool.one_disk:
        for part, _ in pool.run([MakePart(number, cell) for cell in parts_of(scene, specs, pool.threads)]):
            assert isinstance(part, MakePart)
            yield len(part.specs)
    else:
        for cell in scene.cells(specs, scratch_bytes(folder)):
            window = around([spec.window for spec in cell])
            with scratch_file(folder / TILES, scene.decoding, window) as scratch:
                _decode(pool, number, scene, scratch)
                tasks = [MakeTile(number, spec, scratch) for spec in cell]
                yield from (1 for _ in pool.run(tasks, volume=scene.volume))


def parts_of(scene: RasterScene, specs: Sequence[TileSpec], threads: int) -> list[tuple[TileSpec, ...]]:
    """Neighbouring tiles, for workers that each decode into a file of their own."""
    if scene.decoding is None or not specs:
        return []
    whole = decoded_bytes(scene.decoding.decoded_places(around([spec.window for spec in specs])))
    return [tuple(cell) for cell in scene.cells(specs, min(PART_BYTES, whole // (threads * PARTS_PER_THREAD)))]


def _decode(pool: WorkerPool, number: int, scene: RasterScene, scratch: Scratch) -> None:
    """All layers that are needed: of a chain only the first, where there is nothing to be seen in it."""
    assert scene.decoding is not None
    chains = scene.decoding.decoding_chains()
    with progress_bar(sum(map(len, chains)), f"decode {scene.name}", "file") as bar:
        seen = set()
        first = [DecodeLayer(number, chain[0], scratch) for chain in chains]
        for task, found in pool.run(first, volume=scene.volume):
            bar.update()
            if found and isinstance(task, DecodeLayer):
                seen.add(task.layer)
        rest = [layer for chain in chains if chain[0] in seen for layer in chain[1:]]
        for _ in pool.run([DecodeLayer(number, layer, scratch) for layer in rest], volume=scene.volume):
            bar.update()


@contextmanager
def swept_when_killed(pool: WorkerPool, folder: Path) -> Iterator[None]:
    """Remove what workers of this machine were writing when they were ended."""
    try:
        yield
    finally:
        if pool.killed:
            sweep(folder / TILES)


# --- Tasks


@dataclass(frozen=True)
class SceneTasks:
    """The scenes and the folder that all tasks of an ingest share."""

    scenes: Sequence[Scene | None]
    folder: Path  # of the store
    client: ClientToken | None = None  # for workers of other machines

    @classmethod
    def of(cls, scenes: Sequence[Scene], folder: Path, pool: WorkerPool) -> SceneTasks:
        """Give them to the pool; scenes that cannot be sent to another machine are refused."""
        if pool.one_disk:
            shared = cls(scenes, folder)
            pool.share(shared)
            return shared
        for scene in scenes:
            if not scene.volume:
                why = "it is held in memory, and its tiles are made quickly"
                raise UsageError(
                    f"the scene '{scene.name}' cannot be ingested on a cluster", why=why, remedy=NO_CLUSTER
                )
        whole = folder.absolute()
        # It is named as a partial file: the next writer to the store removes what a killed client left.
        token = ClientToken(whole / f".client-{secrets.token_hex(8)}{PARTIAL}", "the store", whole)
        shared = cls(scenes, whole, token)
        try:
            pool.share(shared)
        except CropstarError:
            raise
        except Exception as failure:  # something in a scene, told in many ways
            why = f"it cannot be sent ({type(failure).__name__}: {failure})"
            what = f"the scene '{scenes[0].name}' cannot be ingested on a cluster"
            raise UsageError(what, why=why, remedy=NO_CLUSTER) from None
        return shared

    def __getstate__(self) -> dict[str, Any]:
        """Scenes in memory are not sent to workers: their tiles are made in this process."""
        return {**self.__dict__, "scenes": [scene if scene and scene.volume else None for scene in self.scenes]}

    def scene(self, number: int) -> Scene:
        scene = self.scenes[number]
        assert scene is not None, "a scene that lies in memory is not sent to workers"
        return scene

    def raster(self, number: int) -> tuple[RasterScene, DecodedSeries]:
        scene = self.scene(number)
        assert isinstance(scene, RasterScene)
        assert scene.decoding is not None
        return scene, scene.decoding

    def client_present(self) -> AbstractContextManager[None]:
        return nullcontext() if self.client is None else self.client.present()

    def require_client(self) -> None:
        """Before anything is written."""
        if self.client is not None:
            self.client.require_seen()

    def close(self) -> None:
        for scene in self.scenes:
            if scene is not None:
                scene.close()


@dataclass(frozen=True)
class CheckTile:
    """Whether a tile is on the disk as it was written."""

    scene: int  # its place in the list that ingest was given
    spec: TileSpec

    def run(self, shared: SceneTasks) -> bool:
        shared.require_client()
        return is_whole(tile_path(shared.folder, self.spec.name), shared.scene(self.scene).recipe)


@dataclass(frozen=True)
class DecodeLayer:
    """One layer of a raster scene into the scratch file; the answer says whether it holds anything."""

    scene: int
    layer: int
    scratch: Scratch

    def run(self, shared: SceneTasks) -> bool:
        _, series = shared.raster(self.scene)
        with _with_file_name(self.scratch.path):
            return series.decode(self.layer, self.scratch)


@dataclass(frozen=True)
class MakeTile:
    """One tile, built and written."""

    scene: int
    spec: TileSpec
    scratch: Scratch | None

    def run(self, shared: SceneTasks) -> bool:
        shared.require_client()
        scene = shared.scene(self.scene)
        if isinstance(scene, RasterScene) and scene.decoding is not None:
            scene.decoding.read_from(self.scratch)
        path, tile = tile_path(shared.folder, self.spec.name), scene.build(self.spec)
        with _with_file_name(path):
            write_tile(path, tile)
        if shared.client is not None:
            # Here, since on some file systems the client cannot: what another machine holds back is not its to flush.
            flush_tiles([path])
        return True


@dataclass(frozen=True)
class MakePart:
    """Neighbouring tiles with a scratch file of their own: for workers of other machines, which share no local disk."""

    scene: int
    specs: tuple[TileSpec, ...]

    def run(self, shared: SceneTasks) -> bool:
        shared.require_client()
        self.make(shared, worker_folder())
        return True

    def make(self, shared: SceneTasks, place: Path) -> None:
        """Make the missing tiles of this part; the scratch file is in `place`."""
        _, series = shared.raster(self.scene)
        missing = [spec for spec in self.specs if not CheckTile(self.scene, spec).run(shared)]
        if not missing:
            return
        window = around([spec.window for spec in missing])
        with TemporaryDirectory(dir=place) as own, scratch_file(Path(own), series, window) as scratch:
            for chain in series.decoding_chains():
                for layer in chain:
                    shared.require_client()
                    if not DecodeLayer(self.scene, layer, scratch).run(shared) and layer == chain[0]:
                        break
            for spec in missing:
                MakeTile(self.scene, spec, scratch).run(shared)


@contextmanager
def _with_file_name(path: Path) -> Iterator[None]:
    """A write that finds no room does not say by itself where."""
    try:
        yield
    except OSError as failure:
        failure.filename = failure.filename or str(path)
        raise
