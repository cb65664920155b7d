"""Room on the disk: asked for before anything is computed, refused in one line where it cannot be enough."""

from __future__ import annotations

import logging
from datetime import date
from pathlib import Path

import numpy as np
import pytest

from cropstar.errors import ResourceError
from cropstar.prediction.blocks import DiskNeed, disk_needs, require_disk_space
from cropstar.prediction.layers import Smoothing
from cropstar.prediction.request import MapFiles, MapOptions
from tests.examples import a_grid
from tests.prediction.maps import a_landscape, write

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
