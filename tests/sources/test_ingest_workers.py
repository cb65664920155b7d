"""Ingest by several processes and through a scratch file: the same bytes, the same errors, the same log."""

from __future__ import annotations

import multiprocessing
import os
import shutil
from pathlib import Path

import pytest

from cropstar.errors import CropstarError, InputError, ResourceError
from cropstar.logs import logger
from cropstar.sources import decoding, workers
from cropstar.sources.catalogue import SOURCES
from cropstar.sources.ingest import IngestResult, ingest
from cropstar.sources.jobs import Make
from cropstar.sources.request import Request
from cropstar.sources.scene import RasterScene
from cropstar.sources.workers import Crew, default_workers
from cropstar.store.store import MANIFEST, TILES
from tests.sources.granules import write_granule
from tests.sources.sentinel2.safe import band_file


@pytest.fixture(scope="module")
def granule(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_granule(tmp_path_factory.mktemp("granule"))


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers also for what would be done sooner without them."""
    monkeypatch.setattr(workers, "FEWEST_JOBS", 1)
    monkeypatch.setattr(workers, "SMALLEST_VOLUME", 1)


def scenes_of(folder: Path) -> list[RasterScene]:
    scenes = SOURCES["sentinel2"](Request(folder, folder / "parcels.gpkg", tile_size=48))
    return [scene for scene in scenes if isinstance(scene, RasterScene)]


def run(folder: Path, store: Path, count: int = 1) -> IngestResult:
    scenes = scenes_of(folder)
    try:
        return ingest(scenes, store, workers=count)
    finally:
        for scene in scenes:
            scene.close()


def content(store: Path) -> dict[str, bytes]:
    """Every file but the lock, hidden ones too."""
    return {path.name: path.read_bytes() for path in store.rglob("*") if path.is_file() and path.name != ".lock"}


@pytest.fixture(scope="module")
def plain(granule: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The store as one process makes it that reads every tile from the files."""
    store = tmp_path_factory.mktemp("plain") / "store"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RasterScene, "decoding", None)
        assert run(granule, store).written == 25
    return content(store)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many workers were started each time."""
    numbers: list[int] = []
    start = Crew._start

    def counted(crew: Crew) -> bool:
        before, answer = len(crew._workers), start(crew)
        if len(crew._workers) > before:
            numbers.append(len(crew._workers))
        return answer

    monkeypatch.setattr(Crew, "_start", counted)
    return numbers


# --- the same bytes


@pytest.mark.parametrize("count", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("limit", [2**40, 100_000])
@pytest.mark.usefixtures("eager")
def test_bytes_do_not_depend_on_workers_or_cells(
    granule: Path,
    plain: dict[str, bytes],
    started: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    limit: int,
) -> None:
    monkeypatch.setattr(decoding, "MAXIMUM_SCRATCH_BYTES", limit)
    result = run(granule, tmp_path / "store", count)
    assert (result.written, result.kept) == (25, 0)
    assert content(tmp_path / "store") == plain
    assert started == ([count] if count > 1 else [])


@pytest.mark.usefixtures("eager")
def test_a_rerun_makes_only_what_is_missing(granule: Path, plain: dict[str, bytes], tmp_path: Path) -> None:
    store = tmp_path / "store"
    run(granule, store)
    tiles = sorted((store / TILES).iterdir())
    tiles[3].unlink()
    tiles[7].write_bytes(tiles[7].read_bytes()[:-50])
    untouched = {path: path.stat().st_ino for path in tiles if path not in (tiles[3], tiles[7])}
    result = run(granule, store, 2)
    assert (result.written, result.kept) == (2, 23)
    assert content(store) == plain
    assert {path: path.stat().st_ino for path in untouched} == untouched


def test_little_work_stays_in_this_process(granule: Path, started: list[int], tmp_path: Path) -> None:
    run(granule, tmp_path / "store", 4)
    assert started == []


@pytest.mark.usefixtures("eager")
def test_a_scene_that_cannot_be_sent_is_built_here(
    granule: Path, plain: dict[str, bytes], tmp_path: Path, started: list[int]
) -> None:
    scenes = scenes_of(granule)
    scenes[0].anchor = lambda: None  # type: ignore[attr-defined]
    ingest(scenes, tmp_path / "store", workers=2)
    scenes[0].close()
    assert started == []
    assert content(tmp_path / "store") == plain


# --- what goes wrong


@pytest.mark.usefixtures("eager")
def test_an_error_in_a_worker_is_the_error(granule: Path, tmp_path: Path) -> None:
    """A band that was cut off after it was opened: what, where, why and what to do come through."""
    broken = Path(shutil.copytree(granule, tmp_path / "broken"))
    scenes = scenes_of(broken)
    scenes[0].close()
    cut = band_file(sorted(broken.glob("*N0509*20230401T140000.SAFE"))[0], "B05", "tif")
    cut.write_bytes(cut.read_bytes()[:-5000])
    failures = []
    for count in (1, 2):
        with pytest.raises(InputError) as caught:
            ingest(scenes, tmp_path / f"store{count}", workers=count)
        failures.append((str(caught.value), caught.value.exit_code, type(caught.value)))
        assert not (tmp_path / f"store{count}" / MANIFEST).exists()
        assert not list((tmp_path / f"store{count}").rglob("*.partial"))
    assert failures[0] == failures[1]
    assert str(cut) in failures[0][0]
    assert "In a worker" in "".join(caught.value.__notes__)  # which --debug shows


@pytest.mark.usefixtures("eager")
def test_warnings_of_workers_come_out_here(granule: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    scenes = scenes_of(granule)
    caplog.clear()
    with Crew(scenes, tmp_path, 2) as crew, caplog.at_level("INFO", logger="cropstar"):
        crew._start()
        assert len(list(crew._share([Warn(0), Warn(0)]))) == 2  # type: ignore[list-item]
    assert [record.getMessage() for record in caplog.records] == ["100 % of 3 words from elsewhere"] * 2
    assert [record.fields for record in caplog.records] == [{"words": 3}] * 2  # type: ignore[attr-defined]


class Warn:
    """A job that only says something."""

    def __init__(self, scene: int) -> None:
        self.scene = scene

    def do(self, scenes: object, folder: Path) -> bool:
        logger.debug("not asked for")
        logger.warning("%d %% of %s", 100, "3 words from elsewhere", extra={"fields": {"words": 3}})
        return True


class Raise:
    """A job that fails."""

    def __init__(self, kind: str) -> None:
        self.scene, self.kind = 0, kind

    def do(self, scenes: object, folder: Path) -> bool:
        if self.kind == "die":
            os._exit(7)
        raise {"memory": MemoryError(), "disk": OSError(28, "No space left", "f.h5"), "bug": KeyError("x")}[self.kind]


@pytest.mark.parametrize(
    ("kind", "code", "line"),
    [
        ("memory", 6, "out of memory; use --workers 1 or more memory"),
        ("disk", 6, "cannot write in f.h5: No space left; free some disk space and run again"),
        ("bug", 1, "internal error: KeyError: 'x'; run again with --debug and report the traceback"),
        ("die", 1, "a worker could not go on: it ended with code 7; run again with --workers 1 to see why"),
    ],
)
def test_every_failure_is_one_line_with_its_code(
    granule: Path, tmp_path: Path, kind: str, code: int, line: str
) -> None:
    scenes = scenes_of(granule)
    with Crew(scenes, tmp_path, 2) as crew:
        crew._start()
        with pytest.raises(CropstarError) as caught:
            list(crew._share([Raise(kind)]))  # type: ignore[list-item]
    scenes[0].close()
    assert (str(caught.value), caught.value.exit_code) == (line, code)


def kill_one_of_two(scenes: list[RasterScene], folder: Path) -> None:
    with Crew(scenes, folder, 2) as crew:
        crew._start()
        victim, _ = crew._workers.values()
        for number, _ in enumerate(crew._share([Make(0, piece, None) for piece in scenes[0].pieces()])):
            if number == 3:
                victim.kill()


def test_a_killed_worker_is_a_lack_of_memory(granule: Path, tmp_path: Path) -> None:
    scenes = scenes_of(granule)
    with pytest.raises(ResourceError, match="a worker was killed: signal 9") as caught:
        kill_one_of_two(scenes, tmp_path)
    scenes[0].close()
    assert caught.value.exit_code == 6
    assert "--workers 1 or more memory" in str(caught.value)
    assert not multiprocessing.active_children()
    assert not list(tmp_path.rglob("*.partial"))


# --- how many


def test_workers_by_default_are_the_processors_allowed() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert default_workers() == 1
    finally:
        os.sched_setaffinity(0, before)
    assert default_workers() == min(len(before), 8)
