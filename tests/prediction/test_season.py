"""The state of a season: what a file holds, maps of every date, and updates that equal a full run."""

from __future__ import annotations

import json
import shutil
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import rasterio
import torch
from hypothesis import given
from hypothesis import strategies as some

from cropstar.errors import (
    ArtifactError,
    CropstarError,
    InputError,
    MismatchError,
    ResourceError,
    UsageError,
    from_os_error,
)
from cropstar.geo.windows import Window, split
from cropstar.prediction.job import bytes_beside, predict
from cropstar.prediction.layers import BY_DATE, EARLIEST, ClassHistory, Smoothing
from cropstar.prediction.predictor import Predictor, advance, layout_of, plan_windows
from cropstar.prediction.request import MapInput, MapRequest, UpdateRequest
from cropstar.prediction.season import SeasonReader, update
from cropstar.sources.stack import StackSeries
from cropstar.store.classes import NODATA
from tests.prediction.making import untrained
from tests.prediction.seasons import cut, pixels, take_in, whole_state
from tests.prediction.test_outputs import largest_file

CPU = torch.device("cpu")
MODELS: list[tuple[str, dict[str, Any]]] = [
    ("star", {}),
    ("convstar", {}),
    ("convgru", {}),
    ("convlstm", {}),
    ("star", {"pool": "mean"}),
    ("convstar", {"pool": "mean"}),
]
WITH_DATES: dict[str, Any] = {"layers": ("valid-dates",), "picture": False}


@pytest.fixture(scope="module")
def parts(small_scene: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """52 x 41 pixels: the first four dates, the fifth, the sixth, and all of them."""
    folder, tile = tmp_path_factory.mktemp("parts"), small_scene / "tile.tif"
    dates = {"first": slice(0, 4), "fifth": slice(4, 5), "sixth": slice(5, 6), "late": slice(4, 6), "all": slice(0, 6)}
    return {name: cut(tile, folder / f"{name}.tif", some, height=52, width=41) for name, some in dates.items()}


@pytest.fixture(scope="module")
def convstar(parts: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return untrained(tmp_path_factory.mktemp("model") / "model", parts["all"])


@pytest.mark.parametrize(("name", "settings"), MODELS, ids=[f"{n} {'-'.join(s.values())}".strip() for n, s in MODELS])
def test_updates_equal_the_full_run(
    name: str, settings: dict[str, Any], parts: dict[str, Path], tmp_path: Path
) -> None:
    model = untrained(tmp_path / "model", parts["all"], name, seed=2, **settings)  # of several classes
    options = MapRequest(model=model, device="cpu", window=32, **WITH_DATES)
    full, state, output = tmp_path / "full.h5", tmp_path / "season.h5", tmp_path / "map.tif"
    predict(parts["all"], tmp_path / "full.tif", options.replace(state=full, window=29))
    predict(parts["first"], output, options.replace(state=state))
    first = pixels(output)

    predictor = Predictor(model, CPU)
    series, rest = StackSeries(parts["all"]), StackSeries(parts["late"])
    whole, _ = predictor.probabilities(series, Window(0, 0, 52, 41))
    reader = SeasonReader(state)
    for window in split((52, 41), 29):
        outer = window.expand(predictor.halo(rest), (52, 41))
        found = advance(predictor, rest, window, predictor.read(rest, window), earlier=reader.read(outer))
        np.testing.assert_allclose(found.probabilities, whole[:, *window.slices], rtol=0, atol=1e-5)
    reader.close()

    take_in(state, parts["fifth"], **WITH_DATES, window=16)
    take_in(state, parts["sixth"], **WITH_DATES, window=40)
    after, counts, dates = whole_state(state)
    expected, expected_counts, expected_dates = whole_state(full)
    for one, other in zip(after, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(counts, expected_counts)
    assert dates == expected_dates
    clear = np.diff(np.sort(whole, axis=0)[-2:], axis=0)[0] > 2e-5
    assert clear.mean() > 0.99
    np.testing.assert_array_equal(pixels(output)[0][clear], pixels(tmp_path / "full.tif")[0][clear])
    assert (pixels(output) != first).any()
    np.testing.assert_array_equal(pixels(tmp_path / "map-valid-dates.tif"), pixels(tmp_path / "full-valid-dates.tif"))


def test_several_images_at_once(convstar: Path, parts: dict[str, Path], tmp_path: Path) -> None:
    """In whatever order they are given."""
    for name in ("one", "two"):
        options = MapRequest(model=convstar, device="cpu", **WITH_DATES, state=tmp_path / f"{name}.h5")
        predict(parts["first"], tmp_path / f"{name}.tif", options)
    take_in(tmp_path / "one.h5", parts["sixth"], parts["fifth"], **WITH_DATES)
    take_in(tmp_path / "two.h5", parts["late"], **WITH_DATES)
    (one, counts, dates), (two, other_counts, other_dates) = (whole_state(tmp_path / f"{n}.h5") for n in ("one", "two"))
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
    assert np.array_equal(counts, other_counts)
    assert dates == other_dates


def test_the_state_leaves_the_map_as_it_is(convstar: Path, parts: dict[str, Path], tmp_path: Path) -> None:
    options = MapRequest(model=convstar, device="cpu", window=32, picture=False)
    predict(parts["all"], tmp_path / "plain.tif", options)
    predict(parts["all"], tmp_path / "stateful.tif", options.replace(state=tmp_path / "season.h5"))
    np.testing.assert_array_equal(pixels(tmp_path / "plain.tif"), pixels(tmp_path / "stateful.tif"))
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(("name", "settings"), MODELS, ids=[f"{n} {'-'.join(s.values())}".strip() for n, s in MODELS])
def test_a_state_of_half_the_bytes(name: str, settings: dict[str, Any], parts: dict[str, Path], tmp_path: Path) -> None:
    """Each update rounds once more; what comes of it stays as near as float16 can tell. Counts have every digit."""
    model = untrained(tmp_path / "model", parts["all"], name, seed=2, **settings)
    options = MapRequest(model=model, device="cpu", window=32, picture=False)
    full, state = tmp_path / "full.h5", tmp_path / "season.h5"
    predict(parts["all"], tmp_path / "full.tif", options.replace(state=full))
    predict(parts["first"], tmp_path / "map.tif", options.replace(state=state, state_precision="float16"))
    take_in(state, parts["fifth"], picture=False)
    take_in(state, parts["sixth"], picture=False, window=24)
    (after, counts, _), (expected, expected_counts, _) = whole_state(state), whole_state(full)
    assert state.stat().st_size < 0.7 * full.stat().st_size  # ten channels, and ten bytes of counts and checksums
    np.testing.assert_array_equal(counts, expected_counts)
    for one, other in zip(after, expected, strict=True):
        assert one.dtype == (np.float32 if one.shape[2] == 1 else np.float16)
        np.testing.assert_allclose(one, other, rtol=2e-3, atol=2e-3)
    same = pixels(tmp_path / "map.tif") == pixels(tmp_path / "full.tif")
    assert same.mean() > 0.99  # of an untrained model, whose classes are nearly equal everywhere


def test_an_update_changes_the_precision(convstar: Path, parts: dict[str, Path], tmp_path: Path) -> None:
    state = tmp_path / "season.h5"
    predict(parts["first"], tmp_path / "map.tif", MapRequest(model=convstar, device="cpu", picture=False, state=state))
    exact = whole_state(state)[0]
    take_in(state, parts["fifth"], picture=False, state_precision="float16")
    assert {part.dtype for part in whole_state(state)[0]} == {np.dtype(np.float16)}
    take_in(state, parts["sixth"], picture=False, state_precision="float32")
    assert {part.dtype for part in whole_state(state)[0]} == {part.dtype for part in exact} == {np.dtype(np.float32)}
    options = MapRequest(model=convstar, device="cpu", state_precision="float16")
    with pytest.raises(UsageError, match="--state-precision without --state"):
        predict(parts["first"], tmp_path / "other.tif", options)


def test_a_changed_byte_of_a_short_state(convstar: Path, parts: dict[str, Path], tmp_path: Path) -> None:
    state = tmp_path / "season.h5"
    options = MapRequest(model=convstar, device="cpu", picture=False, state=state, state_precision="float16")
    predict(parts["first"], tmp_path / "map.tif", options)
    with h5py.File(state) as handle:
        place = handle["state/1/0"].id.get_offset() + handle["state/1/0"].nbytes // 2
    damaged = bytearray(state.read_bytes())
    damaged[place] ^= 4
    state.write_bytes(damaged)
    with pytest.raises(ArtifactError, match="checksum"):
        take_in(state, parts["fifth"], picture=False)


class Breaking(Predictor):
    """Fails at the n-th window, as a killed process would."""

    left = 3

    def images_by_date(self, *arguments: Any, **settings: Any) -> Any:
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        return super().images_by_date(*arguments, **settings)


def test_a_killed_prediction_goes_on_to_the_same_state(convstar: Path, parts: dict[str, Path], tmp_path: Path) -> None:
    options = MapRequest(model=convstar, device="cpu", window=32, picture=False, state=tmp_path / "season.h5")
    predict(parts["first"], tmp_path / "map.tif", options)
    whole = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for path in tmp_path.iterdir():
        path.unlink()
    with pytest.raises(KeyboardInterrupt):
        predict(parts["first"], tmp_path / "map.tif", options, predictor=Breaking(convstar, CPU))
    (folder,) = tmp_path.iterdir()
    assert len(list(folder.glob("*.state"))) == 3
    predict(parts["first"], tmp_path / "map.tif", options)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == whole


def test_a_map_that_waits_for_its_state_is_not_done(convstar: Path, parts: dict[str, Path], tmp_path: Path) -> None:
    """Killed between the two names, with --overwrite: the state that lies there is the one from before."""
    output, state = tmp_path / "map.tif", tmp_path / "season.h5"
    options = MapRequest(model=convstar, device="cpu", window=32, picture=False, state=state, overwrite=True)
    predict(parts["first"], output, options.model_copy(update={"model": untrained(tmp_path / "a", parts["first"])}))
    before = state.read_bytes()
    predict(parts["first"], output, options)
    whole = state.read_bytes()
    assert whole != before
    for left, made_again in ((whole, False), (before, True)):
        state.write_bytes(left)
        (tmp_path / ".map.tif.lock").touch()
        map_before = output.stat().st_ino
        predict(parts["first"], output, options)
        assert state.read_bytes() == whole
        assert (output.stat().st_ino != map_before) == made_again


@pytest.mark.parametrize(
    ("name", "provenance", "reason"),
    [("ltae", None, "reads the whole season at once"), ("star", {"regular": {"every": 10}}, "averages dates over")],
)
@pytest.mark.parametrize("option", ["--state", "--every-date"])
def test_models_without_a_state(
    option: str, name: str, provenance: dict[str, Any] | None, reason: str, parts: dict[str, Path], tmp_path: Path
) -> None:
    model = untrained(tmp_path / "model", parts["all"], name, provenance=provenance)
    options = MapRequest(model=model, device="cpu")
    chosen = (
        options.replace(state=tmp_path / "season.h5") if option == "--state" else options.replace(stable_confidence=0.5)
    )
    with pytest.raises(UsageError, match=f"{option} does not apply to this model.*{reason}"):
        predict(parts["all"], tmp_path / "map.tif", chosen)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_state_wants_the_exact_margin(convstar: Path, parts: dict[str, Path], tmp_path: Path) -> None:
    options = MapRequest(model=convstar, device="cpu", halo=2, state=tmp_path / "season.h5")
    with pytest.raises(UsageError, match="leave --halo out"):
        predict(parts["all"], tmp_path / "map.tif", options)


def test_what_waits_to_be_written_counts_as_memory(convstar: Path, parts: dict[str, Path], tmp_path: Path) -> None:
    predictor, series = Predictor(convstar, CPU), StackSeries(parts["all"])
    request = MapRequest(model=convstar, stable_confidence=0.5, state=tmp_path / "season.h5")
    layout = layout_of(predictor.model, len(series.bands))
    beside = bytes_beside(request, layout, len(series.dates))
    series.close()
    assert beside >= 3 * (4 * 2 * 5 + 6)  # two layers of five channels and six classes, three windows
    least = plan_windows(predictor, series, 10**12, 40, None).bytes
    with pytest.raises(ResourceError, match="not enough"):
        plan_windows(predictor, series, least, 40, None, beside=beside)


def test_a_state_that_exists(convstar: Path, parts: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "season.h5").write_text("mine")
    options = MapRequest(model=convstar, device="cpu", state=tmp_path / "season.h5")
    with pytest.raises(UsageError, match="the output exists"):
        predict(parts["all"], tmp_path / "map.tif", options)
    assert (tmp_path / "season.h5").read_text() == "mine"


# --- every date


CPU = torch.device("cpu")
SURE = 0.3  # of four classes, to a model that was never trained
EVERY_DATE: dict[str, Any] = {"picture": False, "stable_confidence": SURE}


@pytest.mark.parametrize(("name", "pool"), [("convstar", "last"), ("convgru", "mean"), ("star", "last")])
def test_each_date_has_the_map_of_the_season_until_then(
    name: str, pool: str, small_scene: Path, tmp_path: Path
) -> None:
    tile = cut(small_scene / "tile.tif", tmp_path / "tile.tif", slice(0, 5), height=50, width=40)
    model = untrained(tmp_path / "model", tile, name, seed=2, pool=pool)
    predict(tile, tmp_path / "map.tif", MapRequest(model=model, device="cpu", window=17, **EVERY_DATE))
    predictor = Predictor(model, CPU)
    series = StackSeries(tile)
    history = ClassHistory(Window(0, 0, 50, 40), series.dates, SURE)
    unclear = np.zeros((50, 40), dtype=bool)
    for number, day in enumerate(series.dates):
        part = StackSeries(cut(tile, tmp_path / "part.tif", slice(0, number + 1)))
        whole, seen = predictor.probabilities(part, Window(0, 0, 50, 40))
        part.close()
        history.add(number, slice(0, 2000), whole.reshape(len(whole), -1), seen.ravel())
        near = np.diff(np.sort(whole, axis=0)[-2:], axis=0)[0] < 2e-5
        unclear |= near | (np.abs(whole.max(axis=0) - SURE) < 2e-5)
        found = pixels(tmp_path / f"map-{day}.tif")[0]
        expected = np.where(seen, whole.argmax(axis=0), NODATA)
        np.testing.assert_array_equal(found[~near], expected[~near])
    series.close()
    assert unclear.mean() < 0.01
    earliest = pixels(tmp_path / "map-earliest.tif")[0]
    np.testing.assert_array_equal(earliest[~unclear], history.layers()[EARLIEST][0][~unclear])
    assert len(np.unique(earliest)) > 1
    np.testing.assert_array_equal(pixels(tmp_path / f"map-{series.dates[-1]}.tif"), pixels(tmp_path / "map.tif"))
    with rasterio.open(tmp_path / "map-earliest.tif") as dataset:
        assert (dataset.dtypes, dataset.nodata) == (("uint16",), 0)
        assert dataset.tags()["CROPSTAR_CONFIDENCE"] == "0.3"
    with rasterio.open(tmp_path / f"map-{series.dates[1]}.tif") as dataset:
        assert dataset.tags()["CROPSTAR_DATES"].split() == [day.isoformat() for day in series.dates[:2]]
        assert dataset.colormap(1)
    assert (tmp_path / f"map-{series.dates[1]}.tif.aux.xml").exists()


@given(data=some.data(), dates=some.integers(1, 6), confidence=some.sampled_from([0.0, 0.4, 0.6, 1.0]))
def test_the_earliest_day_by_its_definition(data: some.DataObject, dates: int, confidence: float) -> None:
    """The first date from which on all dates have the last class, sure and seen."""
    days = [date(2023, 3, 1) + timedelta(days=9 * number) for number in range(dates)]
    steps = some.tuples(some.integers(0, 2), some.sampled_from([0.35, 0.5, 0.7, 1.0]))
    chosen = data.draw(some.lists(steps, min_size=dates, max_size=dates))
    first_seen = data.draw(some.integers(0, dates))
    history = ClassHistory(Window(0, 0, 1, 1), days, confidence)
    for number, (best, likely) in enumerate(chosen):
        probabilities = np.full((3, 1), (1 - likely) / 2, dtype=np.float32)
        probabilities[best] = likely
        history.add(number, slice(0, 1), probabilities, np.array([number >= first_seen]))

    def lasts(start: int) -> bool:
        rest = chosen[start:]
        return start >= first_seen and all(b == rest[-1][0] and np.float32(p) >= confidence for b, p in rest)

    expected = next((days[start].timetuple().tm_yday for start in range(dates) if lasts(start)), 0)
    layers = history.layers()
    assert layers[EARLIEST].tolist() == [[[expected]]]
    assert layers[BY_DATE].ravel().tolist() == [
        best if number >= first_seen else NODATA for number, (best, _) in enumerate(chosen)
    ]


def test_files_that_exist_and_options_that_exclude(small_scene: Path, tmp_path: Path) -> None:
    tile = cut(small_scene / "tile.tif", tmp_path / "tile.tif", slice(0, 2), height=30, width=30)
    model = untrained(tmp_path / "model", tile)
    series = StackSeries(tile)
    series.close()
    (tmp_path / f"map-{series.dates[0]}.tif").write_text("mine")
    options = MapRequest(model=model, device="cpu", **EVERY_DATE)
    with pytest.raises(UsageError, match="the output exists"):
        predict(tile, tmp_path / "map.tif", options)
    assert (tmp_path / f"map-{series.dates[0]}.tif").read_text() == "mine"
    with pytest.raises(UsageError, match="--every-date with --smooth"):
        predict(tile, tmp_path / "m.tif", options.replace(smoothing=Smoothing(method="majority")))


# --- updates


CPU = torch.device("cpu")
PLAIN: dict[str, Any] = {"picture": False}


@pytest.fixture(scope="module")
def finished(small_scene: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder: tile.tif with four dates, its model, map and state."""
    folder = tmp_path_factory.mktemp("finished")
    tile = cut(small_scene / "tile.tif", folder / "tile.tif", slice(0, 4), height=50, width=40)
    model = untrained(folder / "model", small_scene / "tile.tif")
    predict(tile, folder / "map.tif", MapRequest(model=model, device="cpu", **PLAIN, state=folder / "season.h5"))
    return folder


@pytest.fixture
def season(finished: Path, tmp_path: Path) -> Path:
    """The state in a folder of its own; it still knows the map in the folder where it was made."""
    return Path(shutil.copy(finished / "season.h5", tmp_path / "season.h5"))


@pytest.fixture(scope="module")
def new(small_scene: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("new")
    return cut(small_scene / "tile.tif", folder / "new.tif", slice(4, 5), height=50, width=40)


def assert_untouched(season: Path, finished: Path) -> None:
    assert season.read_bytes() == (finished / "season.h5").read_bytes()
    assert not list(season.parent.glob(".*"))


@pytest.mark.parametrize(
    ("changes", "dates", "kind", "reason"),
    [
        ({"height": 48}, slice(4, 5), MismatchError, "not the grid of the state"),
        ({"crs": "EPSG:32633"}, slice(4, 5), MismatchError, "not the grid of the state"),
        ({"without": "B08"}, slice(4, 5), MismatchError, "B08"),
        ({}, slice(3, 4), MismatchError, "is not after"),
        ({}, slice(3, 5), MismatchError, "is not after"),
        ({}, slice(0, 1), MismatchError, "is not after"),
    ],
    ids=["shape", "crs", "bands", "same date", "one date too many", "older"],
)
def test_images_that_do_not_go_on(
    changes: dict[str, Any],
    dates: slice,
    kind: type[CropstarError],
    reason: str,
    season: Path,
    finished: Path,
    small_scene: Path,
    tmp_path: Path,
) -> None:
    (tmp_path / "in").mkdir()
    image = cut(small_scene / "tile.tif", tmp_path / "in" / "new.tif", dates, **{"height": 50, "width": 40, **changes})
    with pytest.raises(kind) as caught:
        take_in(season, image, output=tmp_path / "map.tif")
    assert reason in str(caught.value)
    assert "new.tif" in str(caught.value)
    assert_untouched(season, finished)
    assert not (tmp_path / "map.tif").exists()


def test_a_truncated_image(season: Path, finished: Path, new: Path, tmp_path: Path) -> None:
    whole = new.read_bytes()
    (tmp_path / "new.tif").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError):
        take_in(season, tmp_path / "new.tif", output=tmp_path / "map.tif", **PLAIN)
    assert_untouched(season, finished)
    assert not list(tmp_path.glob("map*"))


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_truncated_state(share: float, season: Path, new: Path) -> None:
    whole = season.read_bytes()
    season.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ArtifactError, match="cannot be used"):
        take_in(season, new, output=season.with_name("map.tif"))


@pytest.mark.parametrize("name", ["state/0/0", "state/1/0", "valid_dates", "checks"])
def test_a_changed_byte_is_noticed(season: Path, new: Path, name: str) -> None:
    with h5py.File(season) as handle:
        place = handle[name].id.get_offset() + handle[name].nbytes // 2
    damaged = bytearray(season.read_bytes())
    damaged[place] ^= 4
    season.write_bytes(damaged)
    with pytest.raises(ArtifactError, match="cannot be used"):
        take_in(season, new, output=season.with_name("map.tif"), **PLAIN)
    assert season.read_bytes() == damaged


def test_another_kind_of_file(tmp_path: Path, new: Path) -> None:
    with h5py.File(tmp_path / "season.h5", "w") as handle:
        handle["values"] = np.zeros(3)
    with pytest.raises(ArtifactError, match="cannot be used"):
        take_in(tmp_path / "season.h5", new)
    with pytest.raises(InputError, match="no such state"):
        take_in(tmp_path / "nowhere.h5", new)


@pytest.mark.parametrize("largest", [300, 5_000, 60_000])
def test_a_full_disk_keeps_the_old_state(largest: int, season: Path, finished: Path, new: Path) -> None:
    """HDF5 itself may crash there."""
    assert season.stat().st_size > largest
    with largest_file(largest), pytest.raises((CropstarError, OSError)) as caught:
        take_in(season, new, output=season.with_name("map.tif"), **PLAIN)
    failure = caught.value
    assert (from_os_error(failure) if isinstance(failure, OSError) else failure).exit_code == 6  # type: ignore[attr-defined]
    assert_untouched(season, finished)
    assert not season.with_name("map.tif").exists()
    take_in(season, new, output=season.with_name("map.tif"), **PLAIN)
    assert len(whole_state(season)[2]) == 5


def test_a_map_that_exists(season: Path, finished: Path, new: Path, tmp_path: Path) -> None:
    other = Path(shutil.copy(finished / "map.tif", tmp_path / "other.tif"))
    with pytest.raises(UsageError, match="the output exists"):
        take_in(season, new, output=other, **PLAIN)
    assert_untouched(season, finished)
    take_in(season, new, output=other, **PLAIN, overwrite=True)
    with rasterio.open(other) as dataset:
        assert len(dataset.tags()["CROPSTAR_DATES"].split()) == 5
    reader = SeasonReader(season)
    reader.close()
    assert reader.card.map == other


def test_nothing_is_written_over_what_is_read(season: Path, finished: Path, new: Path) -> None:
    before = new.read_bytes()
    with pytest.raises(UsageError, match="the output is the input"):
        take_in(season, new, output=new, overwrite=True)
    options = MapRequest(model=finished / "model", device="cpu", state=finished / "tile.tif", overwrite=True)
    with pytest.raises(UsageError, match="the output is the input"):
        predict(finished / "tile.tif", season.with_name("map.tif"), options)
    for name in ("m.tif", "m.png"):
        with pytest.raises(UsageError, match="map and its state have the same name"):
            predict(new, season.with_name("m.tif"), options.replace(state=season.with_name(name)))
    assert new.read_bytes() == before
    assert_untouched(season, finished)


def test_a_card_that_lies(season: Path, new: Path) -> None:
    """Arrays of another shape than is said, dates in disorder, classes that are not those of the model."""
    with h5py.File(season) as handle:
        text = handle["card"][()].tobytes().decode()
    said = json.loads(text)
    lies: list[dict[str, Any]] = [{"layout": [[5], [7]]}, {"dates": said["dates"][::-1]}, {"dates": []}]
    classes = said["fingerprint"]["classes"]
    named = [{**each, "name": other["name"]} for each, other in zip(classes, classes[::-1], strict=True)]
    lies.append({"fingerprint": {**said["fingerprint"], "classes": named}})
    for change in lies:
        with h5py.File(season, "r+") as handle:
            del handle["card"]
            handle["card"] = np.frombuffer(json.dumps({**said, **change}).encode(), dtype=np.uint8)
        with pytest.raises(ArtifactError, match="cannot be used"):
            take_in(season, new, output=season.with_name("map.tif"))


def test_the_map_of_the_season_is_replaced_without_asking_and_no_other(
    finished: Path, new: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "copy"
    folder.mkdir()
    options = MapRequest(model=finished / "model", device="cpu", **PLAIN, state=folder / "season.h5")
    predict(finished / "tile.tif", folder / "map.tif", options)
    old = (folder / "season.h5").read_bytes()
    take_in(folder / "season.h5", new, **PLAIN)
    made = pixels(folder / "map.tif")
    # As if the process had been killed before the state got its name: the same command makes the same map.
    (folder / "season.h5").write_bytes(old)
    take_in(folder / "season.h5", new, **PLAIN)
    assert np.array_equal(pixels(folder / "map.tif"), made)
    # Made of other dates: not ours.
    (folder / "season.h5").write_bytes(old)
    with rasterio.open(folder / "map.tif", "r+", IGNORE_COG_LAYOUT_BREAK="YES") as dataset:
        dataset.update_tags(CROPSTAR_DATES="2001-01-01")
    with pytest.raises(UsageError, match="the output exists"):
        take_in(folder / "season.h5", new, **PLAIN)


def test_another_model(season: Path, finished: Path, new: Path, small_scene: Path, tmp_path: Path) -> None:
    other = untrained(tmp_path / "other", small_scene / "tile.tif", seed=1)
    with pytest.raises(MismatchError, match="not the model of the state"):
        take_in(season, new, model=other, output=tmp_path / "map.tif")
    moved = Path(shutil.copy(finished / "model", tmp_path / "moved"))
    take_in(season, new, model=moved, output=tmp_path / "map.tif", **PLAIN)
    moved.unlink()
    with pytest.raises(ArtifactError, match="give --model"):
        take_in(season, new)


# --- real products


CPU = torch.device("cpu")
PRODUCTS: dict[str, Any] = {"layers": ("probabilities",), "picture": False}
DATES = ["2018-01-23", "2018-01-28", "2018-04-18"]


def test_one_product_more(real_data: Path, small_scene: Path, tmp_path: Path) -> None:
    folder = real_data / "sentinel2-t31tej" / "safe"
    products = [next(folder.glob(f"*_{day.replace('-', '')}T*.SAFE")) for day in DATES]
    for name, chosen in {"early": products[:2], "all": products}.items():
        (tmp_path / name).mkdir()
        for product in chosen:
            (tmp_path / name / product.name).symlink_to(product)
    model = untrained(tmp_path / "model", small_scene / "tile.tif", seed=2)
    options = MapRequest(model=model, device="cpu", **PRODUCTS, any_dates=True)
    predict(tmp_path / "all", tmp_path / "full.tif", options)
    state = tmp_path / "season.h5"
    predict(tmp_path / "early", tmp_path / "map.tif", options.replace(state=state))
    update(state, [MapInput(products[2])], UpdateRequest(device="cpu", **PRODUCTS, any_dates=True))
    assert whole_state(state)[2] == DATES
    one, other = (pixels(tmp_path / f"{name}-probabilities.tif").astype(int) for name in ("map", "full"))
    assert np.abs(one - other).max() <= 1  # steps of 0.0001, rounded
    assert np.mean(pixels(tmp_path / "map.tif") == pixels(tmp_path / "full.tif")) > 0.999
