"""One image more gives what a full run gives, in every window; and what is refused leaves the state as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cropstar.errors import ResourceError, UsageError
from cropstar.geo.windows import Window, split
from cropstar.prediction.job import bytes_beside, predict
from cropstar.prediction.predictor import Predictor, advance, layout_of, plan_windows
from cropstar.prediction.request import MapRequest
from cropstar.prediction.season import SeasonReader
from cropstar.sources.stack import StackSeries
from tests.prediction.making import untrained
from tests.prediction.seasons import cut, pixels, take_in, whole_state

CPU = torch.device("cpu")
MODELS: list[tuple[str, dict[str, Any]]] = [
    ("star", {}),
    ("convstar", {}),
    ("convgru", {}),
    ("convlstm", {}),
    ("star", {"pool": "mean"}),
    ("convstar", {"pool": "mean"}),
]
PLAIN: dict[str, Any] = {"layers": ("valid-dates",), "picture": False}


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
    options = MapRequest(model=model, device="cpu", window=32, **PLAIN)
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

    take_in(state, parts["fifth"], **PLAIN, window=16)
    take_in(state, parts["sixth"], **PLAIN, window=40)
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
        options = MapRequest(model=convstar, device="cpu", **PLAIN, state=tmp_path / f"{name}.h5")
        predict(parts["first"], tmp_path / f"{name}.tif", options)
    take_in(tmp_path / "one.h5", parts["sixth"], parts["fifth"], **PLAIN)
    take_in(tmp_path / "two.h5", parts["late"], **PLAIN)
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


@pytest.mark.parametrize(
    ("name", "provenance", "reason"),
    [("ltae", None, "sees the season at once"), ("star", {"regular": {"every": 10}}, "regular")],
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
    with pytest.raises(UsageError, match=f"{option} is not for this model.*{reason}"):
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
