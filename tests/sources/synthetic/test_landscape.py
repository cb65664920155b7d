"""Fields and weather of the embedded scene: true enough to farmland to be worth learning from."""

from __future__ import annotations

from datetime import date
from itertools import pairwise

import numpy as np
import pytest
from shapely.geometry import box

from cropstar.sources.synthetic import SceneOptions, SyntheticScene
from cropstar.sources.synthetic.landscape import BANDS, CROPS, FEWEST_PARCELS, assign_crops, make_landscape
from cropstar.sources.synthetic.reflectance import make_surface
from cropstar.sources.synthetic.scene import acquisition_dates, acquisitions, cloud_shares, dates_with_edge, make_sky

CLEAR, SHADOW, CLOUDS = (4, 5, 6), 3, (8, 9, 10)


# --- landscape


@pytest.mark.parametrize("size", [64, 97, 400])
def test_parcels_lie_apart_inside_the_grid(size: int) -> None:
    landscape = make_landscape(SceneOptions(seed=5, size=size))
    parcels = landscape.parcels
    assert parcels["parcel_id"].is_unique
    assert parcels.geometry.is_valid.all()
    assert set(parcels.geom_type) == {"Polygon"}
    assert parcels.within(box(*landscape.grid.bounds)).all()
    assert parcels.geometry.union_all().area == pytest.approx(parcels.area.sum(), rel=1e-9)
    assert parcels.area.between(5_000, 150_000).all()


def test_the_full_scene_has_all_crops_in_unequal_numbers() -> None:
    parcels = make_landscape(SceneOptions()).parcels
    counts = parcels["crop"].value_counts()
    assert 250 <= len(parcels) <= 350
    assert len(counts) == len(CROPS) >= 9
    assert counts.min() >= 15
    assert counts.max() < 5 * counts.min()


def test_fields_lie_in_many_directions() -> None:
    parcels = make_landscape(SceneOptions()).parcels
    boxes = parcels.geometry.envelope.area
    assert (parcels.area / boxes < 0.8).mean() > 0.2  # an axis-aligned field would fill its box


@pytest.mark.parametrize("parcels", [0, 1, 2, 5, 9, 17, 40, 300])
def test_crops_come_several_times_each(parcels: int) -> None:
    crops = assign_crops(np.random.default_rng(0), parcels)
    assert len(crops) == parcels
    if parcels >= 2 * FEWEST_PARCELS:
        assert min(crops.count(name) for name in set(crops)) >= FEWEST_PARCELS


def test_truth_matches_the_parcels(scene: SyntheticScene) -> None:
    crop_of = dict(zip(scene.parcels["parcel_id"], scene.parcels["crop"], strict=True))
    assert set(np.unique(scene.parcel_ids)) == {0, *crop_of}
    for parcel_id, crop in crop_of.items():
        numbers = np.unique(scene.classes[scene.parcel_ids == parcel_id])
        assert [scene.class_names[number - 1] for number in numbers] == [crop]
    assert (scene.classes == 0).mean() > 0.05  # tracks, woods and water carry no label


# --- weather


@pytest.mark.parametrize("count", [3, 4, 24, 40])
def test_dates_are_irregular_and_rising(count: int) -> None:
    options = SceneOptions(dates=count)
    dates = acquisition_dates(options)
    gaps = {(later - earlier).days for earlier, later in pairwise(dates)}
    assert len(dates) == count
    assert min(gaps) >= 3
    assert len(gaps) > 1
    assert options.start < dates[0]
    assert dates[-1] <= date(2023, 10, 31)


def test_cloud_shares_vary_around_a_quarter() -> None:
    shares = cloud_shares(SceneOptions())
    assert shares.min() == 0.0
    assert 0.7 < shares.max() <= 0.85
    assert 0.22 < shares.mean() < 0.32


def test_clouds_move_between_dates(season: SyntheticScene) -> None:
    clouds = np.isin(season.classification, CLOUDS).reshape(len(season.dates), -1)
    partly = clouds[(clouds.mean(axis=1) > 0.1) & (clouds.mean(axis=1) < 0.6)].astype(float)
    assert len(partly) > 4
    likeness = np.corrcoef(partly)[np.triu_indices(len(partly), 1)]
    assert np.abs(likeness).mean() < 0.35


def test_shadows_are_clouds_moved_away_from_the_sun(season: SyntheticScene) -> None:
    options = season.options
    checked = 0
    for index, share in enumerate(cloud_shares(options)):
        if share < 0.05:
            continue
        sky = make_sky(options, index, 180.0)
        rows, columns = sky.offset
        assert rows < 0  # the sun stands in the south-east, shadows fall to the north-west
        assert columns < 0
        np.testing.assert_array_equal(sky.shadow[:rows, :columns], sky.cloud[-rows:, -columns:])
        checked += 1
    assert checked > 10
    assert (season.classification == SHADOW).any(axis=(1, 2)).sum() > len(season.dates) / 2


def test_shadows_are_dark_and_clouds_bright(season: SyntheticScene) -> None:
    infrared = season.values[:, BANDS.index("B08")].astype(float)
    codes = season.classification
    clear = infrared[np.isin(codes, CLEAR)].mean()
    assert infrared[codes == SHADOW].mean() < 0.75 * clear
    assert infrared[codes == 9].mean() > 1.5 * clear


def test_beyond_the_swath_there_is_nothing(scene: SyntheticScene) -> None:
    edges = dates_with_edge(scene.options)
    assert 0 < len(edges) < len(scene.dates)
    for index in range(len(scene.dates)):
        unseen = scene.classification[index] == 0
        assert unseen.any() == (index in edges)
        assert unseen.mean() < 0.6
        assert (scene.values[index][:, unseen] == 0).all()
        assert (scene.values[index][:, ~unseen] > 0).all()


def test_the_classification_knows_only_real_codes(season: SyntheticScene) -> None:
    assert set(np.unique(season.classification)) <= {0, 3, 4, 5, 6, 7, 8, 9, 10}


def test_the_classification_misses_a_little() -> None:
    options = SceneOptions(seed=1, size=96, dates=12)
    surface = make_surface(options, make_landscape(options))
    missed = [
        ((one.sky.cloud > 0.02) & np.isin(one.classification, CLEAR)).mean() for one in acquisitions(options, surface)
    ]
    assert 0.0005 < np.mean(missed) < 0.05
