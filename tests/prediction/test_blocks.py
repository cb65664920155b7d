"""Finished blocks: resumed, shared, never of another model; and room on the disk for them."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from datetime import date
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
import torch

from cropstar.errors import ArtifactError, InputError, ResourceError, UsageError
from cropstar.geo.windows import Window
from cropstar.prediction import blocks
from cropstar.prediction.blocks import BlockFolder, BlockResult, DiskNeed, disk_needs, require_disk_space
from cropstar.prediction.job import predict
from cropstar.prediction.layers import Smoothing
from cropstar.prediction.predictor import Answer, Predictor, WindowResult
from cropstar.prediction.request import MapFiles, MapOptions, MapRequest, Shard
from cropstar.sources.base import Observations, Series
from cropstar.store.files import locked
from tests.examples import a_grid
from tests.prediction.making import untrained
from tests.prediction.maps import a_landscape, write

CPU = torch.device("cpu")
WINDOWS = 9  # of 40 pixels in the small scene of 96


class Breaking(Predictor):
    """Fails at the n-th window, as a killed process would; counts the windows that it computes."""

    def __init__(self, path: Path, *, after: int = 1000) -> None:
        super().__init__(path, CPU)
        self.after = after
        self.computed: list[Window] = []

    def answer(self, series: Series, window: Window, observations: Observations) -> Answer:
        if len(self.computed) == self.after:
            raise KeyboardInterrupt
        self.computed.append(window)
        return super().answer(series, window, observations)


@pytest.fixture(scope="module")
def model(small_scene: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return untrained(tmp_path_factory.mktemp("model") / "model.safetensors", small_scene / "tile.tif")


@pytest.fixture(scope="module")
def options(model: Path) -> MapRequest:
    return MapRequest(model=model, device="cpu", window=40)


@pytest.fixture(scope="module")
def unbroken(options: MapRequest, small_scene: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    output = tmp_path_factory.mktemp("unbroken") / "map.tif"
    predict(small_scene / "tile.tif", output, options)
    return contents(output.parent)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def break_off(tile: Path, output: Path, options: MapRequest, after: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        predict(tile, output, options, predictor=Breaking(options.model, after=after))


def test_it_goes_on_from_finished_blocks(
    options: MapRequest, small_scene: Path, tmp_path: Path, unbroken: dict[str, bytes]
) -> None:
    tile, output = small_scene / "tile.tif", tmp_path / "map.tif"
    break_off(tile, output, options, after=4)
    assert not output.exists()
    rest = Breaking(options.model)
    predict(tile, output, options, predictor=rest)
    assert len(rest.computed) == WINDOWS - 4
    assert contents(tmp_path) == unbroken
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []


def test_blocks_of_another_model_or_input_are_never_reused(
    options: MapRequest, small_scene: Path, tmp_path: Path
) -> None:
    tile, output = tmp_path / "tile.tif", tmp_path / "map.tif"
    shutil.copy(small_scene / "tile.tif", tile)
    other = untrained(tmp_path / "other.safetensors", tile, seed=1)
    break_off(tile, output, options, after=4)
    break_off(tile, output, options.replace(model=other), after=WINDOWS - 1)
    os.utime(tile, (1, 1))  # touched: it may be another image now
    fresh = Breaking(options.model)
    predict(tile, output, options, predictor=fresh)
    assert len(fresh.computed) == WINDOWS
    assert not list(tmp_path.glob(".*"))  # what the others left for this map is gone with it


def test_a_map_that_was_being_put_together_is_ours_to_replace(
    options: MapRequest,
    small_scene: Path,
    tmp_path: Path,
    unbroken: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tile, output = small_scene / "tile.tif", tmp_path / "map.tif"
    with monkeypatch.context() as patched:
        patched.setattr(BlockFolder, "remove", lambda _: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            predict(tile, output, options)
    assert output.exists()
    rest = Breaking(options.model)
    predict(tile, output, options, predictor=rest)
    assert rest.computed == []
    assert contents(tmp_path) == unbroken


def test_an_old_map_is_not_replaced_because_blocks_lie_beside_it(
    options: MapRequest, small_scene: Path, tmp_path: Path
) -> None:
    tile, output = small_scene / "tile.tif", tmp_path / "map.tif"
    output.write_text("precious")
    break_off(tile, output, options.replace(overwrite=True), after=2)
    with pytest.raises(UsageError, match="the output exists"):
        predict(tile, output, options)
    assert output.read_text() == "precious"


def test_a_damaged_block_is_told_and_made_anew(
    options: MapRequest, small_scene: Path, tmp_path: Path, unbroken: dict[str, bytes]
) -> None:
    tile, output = small_scene / "tile.tif", tmp_path / "map.tif"
    break_off(tile, output, options, after=4)
    block = sorted(tmp_path.glob(".*.blocks/*.npz"))[1]
    block.write_bytes(block.read_bytes()[:-30])
    with pytest.raises(ArtifactError, match="block is damaged"):
        predict(tile, output, options)
    predict(tile, output, options)
    assert contents(tmp_path) == unbroken


def test_shards_cover_all_and_the_last_one_assembles(
    options: MapRequest, small_scene: Path, tmp_path: Path, unbroken: dict[str, bytes]
) -> None:
    tile, output = small_scene / "tile.tif", tmp_path / "map.tif"
    computed: list[Window] = []
    for number in (2, 0, 1):
        worker = Breaking(options.model)
        result = predict(tile, output, options.replace(shard=Shard(number, 3)), predictor=worker)
        computed += worker.computed
        assert result.finished == output.exists() == (number == 1)
    assert len(computed) == len(set(computed)) == WINDOWS
    assert contents(tmp_path) == unbroken
    again = Breaking(options.model)  # a scheduler that starts a shard once more
    assert predict(tile, output, options.replace(shard=Shard(0, 3)), predictor=again).finished
    assert again.computed == []


def test_a_call_without_a_shard_does_the_rest(
    options: MapRequest, small_scene: Path, tmp_path: Path, unbroken: dict[str, bytes]
) -> None:
    tile, output = small_scene / "tile.tif", tmp_path / "map.tif"
    predict(tile, output, options.replace(shard=Shard(0, 3)))
    rest = Breaking(options.model)
    predict(tile, output, options, predictor=rest)
    assert len(rest.computed) == WINDOWS - 3
    assert contents(tmp_path) == unbroken


def test_two_at_once_are_refused(options: MapRequest, small_scene: Path, tmp_path: Path) -> None:
    tile, output = small_scene / "tile.tif", tmp_path / "map.tif"
    break_off(tile, output, options, after=1)
    (work,) = tmp_path.glob(".*.blocks")
    with locked(work, "it"), pytest.raises(ArtifactError, match="the prediction is locked"):
        predict(tile, output, options)


def test_a_damaged_input_loses_no_finished_block(options: MapRequest, small_scene: Path, tmp_path: Path) -> None:
    class Damaged(Breaking):
        def read(self, series: Series, window: Window) -> Observations:
            if window.top:
                raise InputError("damaged raster")
            return super().read(series, window)

    with pytest.raises(InputError, match="damaged"):
        predict(small_scene / "tile.tif", tmp_path / "map.tif", options, predictor=Damaged(options.model))
    assert len(list(tmp_path.glob(".*.blocks/*.npz"))) == 3


def test_blocks_come_back_as_they_were(tmp_path: Path) -> None:
    folder = BlockFolder(tmp_path / "map.tif", "key")
    window = Window(3, 4, 5, 6)
    classes = np.arange(30, dtype=np.uint8).reshape(5, 6)
    folder.write(BlockResult(window, classes, {"valid-dates": classes[None].astype(np.uint16)}))
    (found,) = folder.read([window], {"valid-dates": (1, np.dtype(np.uint16))})
    np.testing.assert_array_equal(found.classes, classes)
    assert found.layers["valid-dates"].dtype == np.uint16
    assert folder.missing([window, Window(0, 0, 5, 6)]) == [Window(0, 0, 5, 6)]


# --- damage, links, and two at once


def test_no_flipped_bit_of_a_block_is_taken_for_data(tmp_path: Path) -> None:
    folder = BlockFolder(tmp_path / "map.tif", "key")
    window, rng = Window(3, 4, 20, 30), np.random.default_rng(0)
    classes = rng.integers(0, 9, (20, 30), dtype=np.uint8)
    dates = rng.integers(0, 9, (1, 20, 30), dtype=np.uint16)
    part = rng.normal(size=(20, 30, 4)).astype(np.float32)
    layers, layout = {"valid-dates": (1, np.dtype(np.uint16))}, ((4,),)
    state = WindowResult(np.zeros((9, 20, 30), np.float32), dates[0], [part])
    block = BlockResult(window, classes, {"valid-dates": dates})
    folder.write(block, state)
    whole = {path: path.read_bytes() for path in (folder.path(window), folder.state_path(window))}
    noticed = 0
    for path, content in whole.items():
        for place in rng.integers(0, 8 * len(content), 150):
            changed = bytearray(content)
            changed[place // 8] ^= 1 << (place % 8)
            path.write_bytes(changed)
            try:
                (found,) = folder.read([window], layers)
                ((_, counts, parts),) = folder.read_states([window], layout)
            except ArtifactError:
                noticed += 1
                for each, good in whole.items():
                    assert not each.exists()  # both are made anew
                    each.write_bytes(good)
            else:  # a date or a number of version in the zip file, which nobody reads
                np.testing.assert_array_equal(found.classes, classes)
                np.testing.assert_array_equal(found.layers["valid-dates"], dates)
                np.testing.assert_array_equal(counts, dates[0])
                np.testing.assert_array_equal(parts[0], part)
        path.write_bytes(content)
    assert noticed > 200


@pytest.mark.parametrize(
    "arrays",
    [
        {"classes": np.zeros((5, 5), np.uint8)},  # a layer is missing
        {"classes": np.zeros((5, 6), np.uint8), "layer:valid-dates": np.zeros((1, 5, 5), np.uint16)},
        {"classes": np.zeros((5, 5), np.int64), "layer:valid-dates": np.zeros((1, 5, 5), np.uint16)},
        {"classes": np.zeros((5, 5), np.uint8), "layer:valid-dates": np.zeros((1, 5, 5), ">u2")},
        {"classes": np.zeros((5, 5), np.uint8), "layer:valid-dates": np.zeros((2000, 5, 5), np.uint16), "more": 1},
    ],
)
def test_a_block_of_other_arrays_is_damaged(arrays: dict[str, object], tmp_path: Path) -> None:
    folder, window = BlockFolder(tmp_path / "map.tif", "key"), Window(0, 0, 5, 5)
    folder.folder.mkdir()
    np.savez(folder.path(window), **arrays)  # type: ignore[arg-type]
    with pytest.raises(ArtifactError, match="block is damaged"):
        list(folder.read([window], {"valid-dates": (1, np.dtype(np.uint16))}))


def test_a_machine_that_fails_damages_no_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, window = BlockFolder(tmp_path / "map.tif", "key"), Window(0, 0, 5, 5)
    folder.write(BlockResult(window, np.zeros((5, 5), np.uint8)))

    def no_more_files(*_: object) -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patched:
        patched.setattr(blocks, "_regular", no_more_files)
        with pytest.raises(ResourceError, match=r"Too many open files.*ulimit"):
            list(folder.read([window], {}))
    assert len(list(folder.read([window], {}))) == 1


def test_a_link_in_place_of_the_work_folder_is_refused(options: MapRequest, small_scene: Path, tmp_path: Path) -> None:
    tile, output = small_scene / "tile.tif", tmp_path / "maps" / "map.tif"
    break_off(tile, output, options, after=1)
    (work,) = output.parent.glob(".*.blocks")
    shutil.rmtree(work)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "precious").write_text("mine")
    work.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ArtifactError, match="leads elsewhere"):
        predict(tile, output, options)
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["precious"]
    work.unlink()
    (output.parent / ".map.tif.lock").symlink_to(tmp_path / "elsewhere" / "lock")
    with pytest.raises(ArtifactError, match="leads elsewhere"):
        predict(tile, output, options)
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["precious"]


def test_drafts_are_not_written_through_links(
    options: MapRequest, small_scene: Path, tmp_path: Path, unbroken: dict[str, bytes]
) -> None:
    tile, output = small_scene / "tile.tif", tmp_path / "maps" / "map.tif"
    break_off(tile, output, options, after=1)
    (work,) = output.parent.glob(".*.blocks")
    (tmp_path / "precious.tif").write_text("mine")
    (work / "draft-map.tif").symlink_to(tmp_path / "precious.tif")
    predict(tile, output, options)
    assert (tmp_path / "precious.tif").read_text() == "mine"
    assert contents(output.parent) == unbroken


@pytest.mark.parametrize("others", [{"layers": ("confidence",)}, {"smoothing": Smoothing(method="majority")}])
def test_two_with_other_options_are_refused(
    others: dict[str, object], options: MapRequest, small_scene: Path, tmp_path: Path, unbroken: dict[str, bytes]
) -> None:
    tile, output = small_scene / "tile.tif", tmp_path / "map.tif"

    class Rival(Breaking):
        def read(self, series: Series, window: Window) -> Observations:
            if window.top == window.left == 0:
                with pytest.raises(ArtifactError, match="the output is locked"):
                    predict(tile, output, options.replace(overwrite=True, **others))
            return super().read(series, window)

    predict(tile, output, options, predictor=Rival(options.model))
    assert contents(tmp_path) == unbroken  # neither a lock nor files of the other


def test_the_bytes_of_a_map_do_not_depend_on_times(
    options: MapRequest, small_scene: Path, tmp_path: Path, unbroken: dict[str, bytes]
) -> None:
    tile = Path(shutil.copy(small_scene / "tile.tif", tmp_path / "tile.tif"))
    os.utime(tile, (10**9, 10**9))
    predict(tile, tmp_path / "maps" / "map.tif", options)
    assert contents(tmp_path / "maps") == unbroken


@pytest.mark.parametrize("left", ["lock", "assembling"])
def test_who_was_killed_at_the_very_end_is_done(
    left: str, options: MapRequest, small_scene: Path, tmp_path: Path, unbroken: dict[str, bytes]
) -> None:
    tile, output = small_scene / "tile.tif", tmp_path / "map.tif"
    break_off(tile, output, options, after=1)
    (work,) = tmp_path.glob(".*.blocks")
    predict(tile, output, options)
    with pytest.raises(UsageError, match="the output exists"):  # an ordinary second call
        predict(tile, output, options)
    if left == "lock":  # as a killed process leaves them
        (tmp_path / ".map.tif.lock").touch()
    else:
        work.mkdir()
        (work / "assembling").touch()
    again = Breaking(options.model)
    assert predict(tile, output, options, predictor=again).finished
    assert again.computed == []
    assert contents(tmp_path) == unbroken
    assert not list(tmp_path.glob(".*"))
    (tmp_path / ".map.tif.lock").touch()
    with pytest.raises(UsageError, match="the output exists"):  # other options: not the map that this call makes
        predict(tile, output, options.replace(smoothing=Smoothing(method="majority")))


# --- room on the disk


LAYOUT = ((32,),) * 4
LAYERS = ("confidence", "probabilities", "valid-dates")


def files(folder: Path, **wanted: object) -> MapFiles:
    return MapFiles(folder / "map.tif", MapOptions(**wanted))  # type: ignore[arg-type]


def test_more_is_asked_for_more(tmp_path: Path) -> None:
    grid = a_grid(1000, 1000)
    plain = disk_needs(files(tmp_path), grid, 9)
    layers = disk_needs(files(tmp_path, layers=LAYERS), grid, 9)
    smooth = disk_needs(files(tmp_path, layers=LAYERS, smoothing=Smoothing(method="bayesian")), grid, 9)
    dated = MapFiles(tmp_path / "map.tif", MapOptions(), dates=(date(2023, 5, 1),) * 20)
    figures = [each[0].most for each in (plain, disk_needs(dated, grid, 9), smooth)]
    assert figures == sorted(figures)
    assert plain[0].most < layers[0].most < smooth[0].most
    assert all(0 < need.least <= need.most for need in (*plain, *layers, *smooth))


def test_a_state_is_counted_with_its_blocks(tmp_path: Path) -> None:
    grid, state = a_grid(100, 100), tmp_path / "states" / "season.h5"
    of_map, of_state = disk_needs(MapFiles(tmp_path / "map.tif", MapOptions(), state=state), grid, 9, layout=LAYOUT)
    size = 100 * 100 * (4 * 4 * 32 + 2)
    assert of_map.least > size
    assert (of_state.place, of_state.most) == (state.parent, size)
    assert size / 2 <= of_state.least <= size
    straight = disk_needs(files(tmp_path), grid, 9, layout=LAYOUT, state=state, in_blocks=False)
    assert straight[0].most < size < straight[1].most + 1


@pytest.mark.parametrize("layers", [(), LAYERS])
def test_true_files_lie_between_least_and_most(tmp_path: Path, layers: tuple[str, ...]) -> None:
    landscape = a_landscape(300, 400)
    write(tmp_path, landscape, MapOptions(layers=layers, picture=False))
    taken = sum(path.stat().st_size for path in tmp_path.glob("*.tif"))
    (need,) = disk_needs(files(tmp_path, layers=layers), landscape.grid, 4)
    assert taken <= need.most
    assert taken * 3 > need.least  # drafts and blocks were there as well, and are gone


def test_no_disk_has_room_for_this(tmp_path: Path) -> None:
    grid = a_grid(120_000, 120_000)
    wide = ((4096,),) * 8
    needs = disk_needs(
        MapFiles(tmp_path / "new" / "map.tif", MapOptions(), state=tmp_path / "s.h5"), grid, 9, layout=wide
    )
    with pytest.raises(ResourceError) as caught:
        require_disk_space(needs)
    assert caught.value.exit_code == 6
    assert "GB are needed and" in str(caught.value)
    assert "free some disk space" in str(caught.value)
    assert not (tmp_path / "new").exists()


def test_what_is_there_already_needs_no_room(tmp_path: Path) -> None:
    work = tmp_path / "work" / "deep"
    work.mkdir(parents=True)
    (work / "block.npz").write_bytes(bytes(np.zeros(600, dtype=np.uint8)))
    needs = [DiskNeed(tmp_path, 700, 700), DiskNeed(tmp_path, 300, 300)]
    require_disk_space(needs, work=tmp_path / "work", free_at=lambda _: 400)
    with pytest.raises(ResourceError):
        require_disk_space(needs, work=tmp_path / "work", free_at=lambda _: 399)
    with pytest.raises(ResourceError):
        require_disk_space(needs, free_at=lambda _: 999)


def test_what_may_not_fit_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="cropstar"):
        require_disk_space([DiskNeed(tmp_path, 10, 1000)], free_at=lambda _: 1000)
        assert not caplog.records
        require_disk_space([DiskNeed(tmp_path, 10, 1000)], free_at=lambda _: 999)
    assert "may become too small" in caplog.text


def test_the_mark_of_assembling_is_on_the_disk_before_the_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a loss of power could leave a map that the next run takes for another's."""
    flushed: list[bool] = []
    monkeypatch.setattr(blocks, "flush_to_disk", lambda folder: flushed.append((folder / blocks.ASSEMBLING).exists()))
    folder = blocks.BlockFolder(tmp_path / "map.tif", "key")
    folder.folder.mkdir()
    folder.begin_assembling()
    assert flushed == [True]
