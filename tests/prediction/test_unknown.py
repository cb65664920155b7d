"""Unknown pixels: the same in windows, updates and shards, counted, coloured, and refused where nobody learnt them."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import geopandas
import numpy as np
import pyogrio
import pytest
import rasterio
import torch

from cropstar.errors import UsageError
from cropstar.geo.windows import Window
from cropstar.models.novelty import ClassDistances, NoveltyScale
from cropstar.prediction.job import predict
from cropstar.prediction.layers import Smoothing
from cropstar.prediction.request import MapRequest, Shard
from cropstar.store.classes import MASKED, NODATA, UNKNOWN
from cropstar.store.model_file import read_model, write_model
from cropstar.training.accuracy import choose_days
from tests.prediction.making import untrained
from tests.prediction.novel import teach_ordinary
from tests.prediction.seasons import cut, pixels, take_in


@pytest.fixture(scope="module")
def parts(small_scene: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, tile = tmp_path_factory.mktemp("parts"), small_scene / "tile.tif"
    dates = {"first": slice(0, 4), "late": slice(4, 6), "all": slice(0, 6)}
    return {name: cut(tile, folder / f"{name}.tif", some, height=52, width=41) for name, some in dates.items()}


@pytest.fixture(scope="module", params=["convstar", "star"])
def model(request: pytest.FixtureRequest, parts: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = untrained(tmp_path_factory.mktemp("model") / "model", parts["all"], request.param, seed=2)
    return teach_ordinary(path, parts["all"])


def test_unknown_is_the_same_in_windows_and_after_updates(model: Path, parts: dict[str, Path], tmp_path: Path) -> None:
    options = MapRequest(model=model, device="cpu", picture=False, unknown=0.2)
    result = predict(parts["all"], tmp_path / "whole.tif", options.replace(window=64))
    whole = pixels(tmp_path / "whole.tif")[0]
    assert 0.05 < (whole == UNKNOWN).mean() < 0.6
    assert result.unknown == (whole == UNKNOWN).sum()
    predict(parts["all"], tmp_path / "parts.tif", options.replace(window=17))
    np.testing.assert_array_equal(pixels(tmp_path / "parts.tif")[0], whole)
    # Without --unknown the classes of what is known are the same.
    predict(parts["all"], tmp_path / "plain.tif", options.replace(unknown=None))
    plain = pixels(tmp_path / "plain.tif")[0]
    np.testing.assert_array_equal(whole[whole != UNKNOWN], plain[whole != UNKNOWN])
    # A state remembers the option; a map after all dates is that of a full run.
    state = tmp_path / "season.h5"
    predict(parts["first"], tmp_path / "map.tif", options.replace(state=state))
    early = pixels(tmp_path / "map.tif")[0]
    assert take_in(state, parts["late"]).unknown > 0
    late = pixels(tmp_path / "map.tif")[0]
    assert (late != whole).mean() < 0.002
    assert (early != late).any()


def test_shards_put_the_same_map_together(model: Path, parts: dict[str, Path], tmp_path: Path) -> None:
    options = MapRequest(model=model, device="cpu", picture=False, unknown=0.2, window=24)
    predict(parts["all"], tmp_path / "one.tif", options)
    for number in range(3):
        predict(parts["all"], tmp_path / "three.tif", options.replace(shard=Shard(number, 3)))
    np.testing.assert_array_equal(pixels(tmp_path / "one.tif"), pixels(tmp_path / "three.tif"))


def test_rates_are_in_order_and_a_stage_is_that_of_the_date(
    model: Path, parts: dict[str, Path], tmp_path: Path
) -> None:
    counts = []
    for rate in (0.05, 0.2, 0.5):
        options = MapRequest(model=model, device="cpu", picture=False, unknown=rate, overwrite=True)
        counts.append(predict(parts["all"], tmp_path / "map.tif", options).unknown)
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]
    card, _, _ = read_model(model)
    assert card.calibration is not None
    scale = NoveltyScale.from_card(card.calibration["unknown"], card.novelty)
    assert [scale.stage_at(day) for day in (0, 60, 10_000)] == [0, 0, 1]


def test_distances_equal_a_naive_reference_in_any_company() -> None:
    random = np.random.default_rng(0)
    features = random.normal(size=(50, 7, 3, 4)).astype(np.float32)
    distances = ClassDistances(random.normal(size=(4, 5)), random.normal(size=(5, 7)))
    found = distances.of([torch.from_numpy(features[:, :3]), torch.from_numpy(features[:, 3:])]).numpy()
    naive = [
        [
            [
                min(np.linalg.norm(distances.whitening @ sample[:, r, c] - mean) for mean in distances.means)
                for c in range(4)
            ]
            for r in range(3)
        ]
        for sample in features.astype(np.float64)
    ]
    np.testing.assert_allclose(found, naive, rtol=1e-10)
    alone = distances.of([torch.from_numpy(features[7:8])]).numpy()
    np.testing.assert_allclose(found[7:8], alone, rtol=1e-12)


def test_stages_are_the_dates_of_the_training() -> None:
    dates = np.array([0, 16, 32, 88, 92, 231])
    assert choose_days(dates, 231) == (0, 16, 32, 88, 92, 231)
    assert choose_days(np.array([-4, 16, 240]), 231) == (0, 16, 231)
    many = choose_days(np.arange(0, 230, 3), 231)  # too many: about every tenth day, on dates all the same
    assert 20 < len(many) <= 40
    assert set(many) - {231} <= set(range(0, 230, 3))
    assert many[-1] == 231


def test_too_many_unknown_parcels_are_a_warning(
    model: Path, parts: dict[str, Path], small_scene: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    card, weights, _ = read_model(model)
    assert card.calibration is not None
    strict = dict(card.calibration["unknown"])
    strict["stages"] = [{**row, "limits": [0.0] * len(row["limits"])} for row in strict["stages"]]
    broken = tmp_path / "model"
    write_model(broken, replace(card, calibration={**card.calibration, "unknown": strict}), weights)
    options = MapRequest(model=model, device="cpu", unknown=0.05, parcels=small_scene / "parcels.gpkg")
    with caplog.at_level(logging.WARNING):
        predict(parts["all"], tmp_path / "map.tif", options)
        assert "are unknown (" not in caplog.text
        predict(parts["all"], tmp_path / "broken.tif", options.replace(model=broken))
    assert "where --unknown 0.05 allows for 5 %: either so many are of another crop" in caplog.text
    notes = pyogrio.read_info(tmp_path / "map-parcels.gpkg")["layer_metadata"]
    assert "no test figures are known" in notes["CROPSTAR_CAVEATS"]
    assert notes["DESCRIPTION"] == notes["CROPSTAR_CAVEATS"]


def test_a_day_with_too_few_fields_is_refused_and_others_are_not(
    model: Path, parts: dict[str, Path], tmp_path: Path
) -> None:
    card, weights, _ = read_model(model)
    assert card.calibration is not None
    said = dict(card.calibration["unknown"])
    first, last = said["stages"]
    said["stages"] = [{**first, "limits": [*[None] * (len(first["limits"]) - 1), first["limits"][-1]]}, last]
    write_model(tmp_path / "model", replace(card, calibration={**card.calibration, "unknown": said}), weights)
    options = MapRequest(model=tmp_path / "model", device="cpu", picture=False, unknown=0.1)
    predict(parts["all"], tmp_path / "late.tif", options)
    with pytest.raises(UsageError, match=r"cannot be guaranteed.*clear by day 50 of the season; give a rate of 0.5 or"):
        predict(cut(parts["all"], tmp_path / "early.tif", slice(0, 1)), tmp_path / "map.tif", options)


def test_least_confidence_and_smoothing(model: Path, parts: dict[str, Path], tmp_path: Path) -> None:
    options = MapRequest(model=model, device="cpu", picture=False, layers=("probabilities", "confidence"))
    predict(parts["all"], tmp_path / "plain.tif", options)
    shares = pixels(tmp_path / "plain-probabilities.tif").astype(float) / 10_000
    seen = pixels(tmp_path / "plain.tif")[0] != NODATA
    bound = float(np.median(shares.max(axis=0)[seen])) + 3e-5
    result = predict(parts["all"], tmp_path / "map.tif", options.replace(min_confidence=bound))
    found = pixels(tmp_path / "map.tif")[0]
    sure = np.abs(shares.max(axis=0) - bound) > 1e-4
    np.testing.assert_array_equal((found == UNKNOWN)[seen & sure], (shares.max(axis=0) < bound)[seen & sure])
    assert result.unknown == (found == UNKNOWN).sum()
    # What is unknown has a confidence still, that of the class which it is least unlike.
    np.testing.assert_array_equal(pixels(tmp_path / "map-confidence.tif"), pixels(tmp_path / "plain-confidence.tif"))
    for method in ("majority", "bayesian"):
        smooth = options.replace(min_confidence=bound, smoothing=Smoothing(method=method, window=3), overwrite=True)
        predict(parts["all"], tmp_path / "smooth.tif", smooth)
        smoothed = pixels(tmp_path / "smooth.tif")[0]
        np.testing.assert_array_equal(smoothed == UNKNOWN, found == UNKNOWN)
        assert set(np.unique(smoothed)) <= set(range(4)) | {UNKNOWN, NODATA}


def test_names_colours_and_parcels_of_the_unknown(
    model: Path, parts: dict[str, Path], small_scene: Path, tmp_path: Path
) -> None:
    options = MapRequest(
        model=model, device="cpu", min_confidence=0.999, parcels=small_scene / "parcels.gpkg", page=True
    )
    predict(parts["all"], tmp_path / "map.tif", options)
    with rasterio.open(tmp_path / "map.tif") as dataset:
        assert dataset.tags(1)["CLASS_254"] == "unknown"
        assert dataset.colormap(1)[UNKNOWN][:3] == (0x55, 0x55, 0x5C)
    assert 'value="254"' in (tmp_path / "map.qml").read_text()
    found = geopandas.read_file(tmp_path / "map-parcels.gpkg")
    assert (found["mapped"].dropna() == "unknown").all()
    assert found["second"].notna().any()
    assert "unknown" in (tmp_path / "map-parcels.qml").read_text()
    assert '"254": {' in (tmp_path / "map.html").read_text()


def test_what_cannot_be_told_is_refused(parts: dict[str, Path], model: Path, tmp_path: Path) -> None:
    older = untrained(tmp_path / "older", parts["all"])
    with pytest.raises(UsageError, match=r"no statistics to tell what is unknown.*train it again"):
        predict(parts["all"], tmp_path / "map.tif", MapRequest(model=older, device="cpu", unknown=0.05))
    request = MapRequest(model=model, device="cpu", unknown=0.05, stable_confidence=0.5)
    with pytest.raises(UsageError, match="--every-date with --unknown"):
        predict(parts["all"], tmp_path / "map.tif", request)
    with pytest.raises(UsageError, match="--only-parcels without --parcels"):
        predict(parts["all"], tmp_path / "map.tif", MapRequest(model=model, device="cpu", only_parcels=True))
    assert not (tmp_path / "map.tif").exists()


def test_maps_of_every_date_keep_to_the_mask(
    model: Path, parts: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with rasterio.open(parts["all"]) as dataset:
        profile = {**dataset.profile, "count": 1, "dtype": "uint8", "nodata": None, "scales": None}
        inside = np.zeros(dataset.shape, dtype=np.uint8)
    inside[10:30, 5:25] = 1
    for name in ("interleave", "photometric", "scales"):
        profile.pop(name, None)
    with rasterio.open(tmp_path / "mask.tif", "w", **profile) as dataset:
        dataset.write(inside, 1)
    options = MapRequest(
        model=model, device="cpu", mask=tmp_path / "mask.tif", picture=False, stable_confidence=0.3, window=23
    )
    with caplog.at_level(logging.INFO):
        result = predict(parts["all"], tmp_path / "map.tif", options)
    for path in (tmp_path / "map.tif", *tmp_path.glob("map-2*.tif")):
        np.testing.assert_array_equal(pixels(path)[0] == MASKED, inside == 0)
    assert result.masked == (inside == 0).sum()
    assert Window(0, 0, *inside.shape).height == 52
