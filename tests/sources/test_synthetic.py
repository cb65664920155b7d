"""The embedded scene: the same from the same seed, and true enough to farmland to be worth learning from."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

import geopandas as gpd
import numpy as np
import pytest
import rasterio
from numpy.typing import NDArray
from rasterio.transform import from_origin
from shapely.geometry import box

from cropstar.errors import InputError, UsageError
from cropstar.sources.synthetic import Scene, SceneOptions, make_scene, write_scene
from cropstar.sources.synthetic.crops import BANDS, CROPS, FEWEST_PARCELS, assign_crops
from cropstar.sources.synthetic.landscape import make_landscape
from cropstar.sources.synthetic.noise import coarsen, smooth_field
from cropstar.sources.synthetic.phenology import draw_traits, ground_cover
from cropstar.sources.synthetic.scene import acquisitions
from cropstar.sources.synthetic.surface import make_surface, reflectance_on
from cropstar.sources.synthetic.weather import acquisition_dates, cloud_shares, dates_with_edge, make_sky

SMALL = SceneOptions(seed=3, size=64, dates=6)
CLEAR, SHADOW, CLOUDS = (4, 5, 6), 3, (8, 9, 10)


@pytest.fixture(scope="module")
def scene() -> Scene:
    return make_scene(SceneOptions(seed=2, size=97, dates=9))  # an odd size: 20 m blocks do not fit


@pytest.fixture(scope="module")
def season() -> Scene:
    return make_scene(SceneOptions(seed=1, size=200, dates=20))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_scene(tmp_path_factory.mktemp("scene"), SMALL)


def digest(*paths: Path) -> list[str]:
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]


# -- files ------------------------------------------------------------------------------------------------------------


def test_equal_options_give_equal_bytes_also_in_another_process(written: tuple[Path, Path], tmp_path: Path) -> None:
    assert digest(*write_scene(tmp_path / "here", SMALL)) == digest(*written)
    program = (
        "import sys, pathlib; from cropstar.sources.synthetic import SceneOptions, write_scene;"
        "write_scene(pathlib.Path(sys.argv[1]), SceneOptions(seed=3, size=64, dates=6))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "77", "GDAL_CACHEMAX": "4"}
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "there")], check=True, cwd=root, env=environment)
    assert digest(tmp_path / "there" / "tile.tif", tmp_path / "there" / "parcels.gpkg") == digest(*written)


def test_nothing_is_left_beside_the_two_files(written: tuple[Path, Path]) -> None:
    gpd.read_file(written[1])  # GDAL likes to drop .aux.xml files when it reads
    assert sorted(path.name for path in written[0].parent.iterdir()) == ["parcels.gpkg", "tile.tif"]


def test_the_tile_says_what_each_band_is(written: tuple[Path, Path]) -> None:
    with rasterio.open(written[0]) as tile:
        assert tile.count == 6 * (len(BANDS) + 1)
        assert tile.crs.to_epsg() == 32632
        assert tile.transform.a == 10.0
        assert set(tile.dtypes) == {"uint16"}
        assert set(tile.nodatavals) == {0.0}
        assert tile.profile["compress"] == "deflate"
        assert tile.profile["interleave"] == "band"
        stack = [(day.isoformat(), name) for day in acquisition_dates(SMALL) for name in (*BANDS, "SCL")]
        assert tile.descriptions == tuple(f"{day} {name}" for day, name in stack)
        for position, (day, name) in enumerate(stack, start=1):
            assert tile.tags(position) == {"DATE": day, "BAND": name}
            assert tile.scales[position - 1] == (1.0 if name == "SCL" else 1e-4)
            assert tile.offsets[position - 1] == 0.0
        assert tile.tags()["GENERATOR"] == "cropstar synthetic"
        assert (tile.tags()["SEED"], tile.tags()["SIZE"], tile.tags()["DATES"]) == ("3", "64", "6")


def test_the_tile_holds_the_scene(written: tuple[Path, Path]) -> None:
    scene = make_scene(SMALL)
    with rasterio.open(written[0]) as tile:
        stack = tile.read().reshape(6, len(BANDS) + 1, 64, 64)
    np.testing.assert_array_equal(stack[:, :-1], scene.values)
    np.testing.assert_array_equal(stack[:, -1], scene.classification)


def test_the_parcels_file(written: tuple[Path, Path]) -> None:
    parcels = gpd.read_file(written[1], layer="parcels")
    assert list(parcels.columns) == ["parcel_id", "crop", "geometry"]
    assert parcels.crs.to_epsg() == 32632
    assert parcels["parcel_id"].dtype.kind == "i"
    assert set(parcels["crop"]) <= {crop.name for crop in CROPS}


def test_a_rerun_leaves_the_files_alone_and_another_seed_writes_anew(tmp_path: Path) -> None:
    tile, parcels = write_scene(tmp_path, SMALL)
    before = [(path.stat().st_mtime_ns, path.stat().st_ino) for path in (tile, parcels)]
    write_scene(tmp_path, SMALL)
    assert [(path.stat().st_mtime_ns, path.stat().st_ino) for path in (tile, parcels)] == before
    old = digest(tile, parcels)
    write_scene(tmp_path, SceneOptions(seed=4, size=64, dates=6))
    new = digest(tile, parcels)
    assert new[0] != old[0]
    assert new[1] != old[1]


def test_a_lost_file_is_written_again(tmp_path: Path) -> None:
    tile, parcels = write_scene(tmp_path, SMALL)
    whole = digest(tile, parcels)
    parcels.unlink()
    assert digest(*write_scene(tmp_path, SMALL)) == whole


def test_a_stranger_is_not_overwritten(tmp_path: Path) -> None:
    profile: dict[str, Any] = {"driver": "GTiff", "height": 8, "width": 8, "count": 1, "dtype": "uint16"}
    with rasterio.open(tmp_path / "tile.tif", "w", crs="EPSG:32632", transform=from_origin(0, 0, 10, 10), **profile):
        pass
    with pytest.raises(InputError, match="will not overwrite"):
        write_scene(tmp_path, SMALL)
    (tmp_path / "tile.tif").write_bytes(b"no raster at all")
    with pytest.raises(InputError, match="will not overwrite"):
        write_scene(tmp_path, SMALL)


def test_a_full_disk_leaves_no_torn_tile(tmp_path: Path) -> None:
    program = """
import pathlib, resource, signal, sys
from cropstar.errors import ResourceError
from cropstar.sources.synthetic import SceneOptions, write_scene
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
try:
    write_scene(pathlib.Path(sys.argv[1]), SceneOptions(seed=3, size=64, dates=6))
except ResourceError as failure:
    sys.exit(str(failure))
"""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, check=False, cwd=root, capture_output=True, text=True)
    assert done.returncode == 1
    assert "not all of it reached the disk" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["parcels.gpkg"]


@pytest.mark.parametrize("wrong", [{"seed": -1}, {"size": 8}, {"size": 100_000}, {"dates": 2}, {"dates": 400}])
def test_unfit_options_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="unfit"):
        SceneOptions(**wrong)  # type: ignore[arg-type]


# -- landscape --------------------------------------------------------------------------------------------------------


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


def test_truth_matches_the_parcels(scene: Scene) -> None:
    crop_of = dict(zip(scene.parcels["parcel_id"], scene.parcels["crop"], strict=True))
    assert set(np.unique(scene.parcel_ids)) == {0, *crop_of}
    for parcel_id, crop in crop_of.items():
        numbers = np.unique(scene.classes[scene.parcel_ids == parcel_id])
        assert [scene.class_names[number - 1] for number in numbers] == [crop]
    assert (scene.classes == 0).mean() > 0.05  # tracks, woods and water carry no label


# -- weather ----------------------------------------------------------------------------------------------------------


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


def test_clouds_move_between_dates(season: Scene) -> None:
    clouds = np.isin(season.classification, CLOUDS).reshape(len(season.dates), -1)
    partly = clouds[(clouds.mean(axis=1) > 0.1) & (clouds.mean(axis=1) < 0.6)].astype(float)
    assert len(partly) > 4
    likeness = np.corrcoef(partly)[np.triu_indices(len(partly), 1)]
    assert np.abs(likeness).mean() < 0.35


def test_shadows_are_clouds_moved_away_from_the_sun(season: Scene) -> None:
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


def test_shadows_are_dark_and_clouds_bright(season: Scene) -> None:
    infrared = season.values[:, BANDS.index("B08")].astype(float)
    codes = season.classification
    clear = infrared[np.isin(codes, CLEAR)].mean()
    assert infrared[codes == SHADOW].mean() < 0.75 * clear
    assert infrared[codes == 9].mean() > 1.5 * clear


def test_beyond_the_swath_there_is_nothing(scene: Scene) -> None:
    edges = dates_with_edge(scene.options)
    assert 0 < len(edges) < len(scene.dates)
    for index in range(len(scene.dates)):
        unseen = scene.classification[index] == 0
        assert unseen.any() == (index in edges)
        assert unseen.mean() < 0.6
        assert (scene.values[index][:, unseen] == 0).all()
        assert (scene.values[index][:, ~unseen] > 0).all()


def test_the_classification_knows_only_real_codes(season: Scene) -> None:
    assert set(np.unique(season.classification)) <= {0, 3, 4, 5, 6, 7, 8, 9, 10}


def test_the_classification_misses_a_little() -> None:
    options = SceneOptions(seed=1, size=96, dates=12)
    surface = make_surface(options, make_landscape(options))
    missed = [
        ((one.sky.cloud > 0.02) & np.isin(one.classification, CLEAR)).mean() for one in acquisitions(options, surface)
    ]
    assert 0.0005 < np.mean(missed) < 0.05


# -- phenology --------------------------------------------------------------------------------------------------------


def greenness(crop_name: str, month: int, day: int) -> float:
    """The mean green cover of many fields of a crop."""
    crop = next(crop for crop in CROPS if crop.name == crop_name)
    traits = draw_traits(np.random.default_rng(0), [crop_name] * 200)
    ground = ground_cover(crop, traits, float(date(2023, month, day).timetuple().tm_yday))
    return float((ground.green + ground.flower).mean())


def test_winter_crops_are_green_in_april_and_summer_crops_in_august() -> None:
    for winter in ("rapeseed", "winter wheat", "winter barley"):
        for summer in ("maize", "soybeans", "sunflower", "sugar beet", "potatoes"):
            assert greenness(winter, 4, 20) > greenness(summer, 4, 20) + 0.4
            assert greenness(summer, 8, 1) > greenness(winter, 8, 1) + 0.4


def test_barley_ripens_before_wheat_and_beet_stays_green_longest() -> None:
    assert greenness("winter barley", 7, 1) < greenness("winter wheat", 7, 1) - 0.2
    assert greenness("sugar beet", 9, 25) > greenness("maize", 9, 25) + 0.3
    assert greenness("grassland", 3, 10) > 0.4
    assert greenness("grassland", 10, 10) > 0.4


def test_shares_of_the_ground_never_exceed_the_whole() -> None:
    for crop in CROPS:
        traits = draw_traits(np.random.default_rng(1), [crop.name] * 100)
        for day in range(60, 310, 10):
            ground = ground_cover(crop, traits, float(day))
            parts = np.stack([ground.green, ground.flower, ground.dry, ground.stubble])
            assert parts.min() >= 0.0
            assert parts.sum(axis=0).max() <= 1.0 + 1e-6


def vegetation_index(values: NDArray[np.float64]) -> NDArray[np.float64]:
    red, infrared = values[BANDS.index("B04")], values[BANDS.index("B08")]
    return np.asarray((infrared - red) / (infrared + red))


def test_rapeseed_flowers_yellow_and_headlands_are_thinner() -> None:
    options = SceneOptions(seed=1, size=200)
    surface = make_surface(options, make_landscape(options))
    names = [crop.name for crop in CROPS]
    rapeseed, wheat = (surface.classes == names.index(name) + 1 for name in ("rapeseed", "winter wheat"))
    may = reflectance_on(surface, 121.0, 0.3)
    green, blue = may[BANDS.index("B03")], may[BANDS.index("B02")]
    assert (green - blue)[rapeseed].mean() > 1.5 * (green - blue)[wheat].mean()
    inner = np.zeros_like(wheat)
    inner[2:-2, 2:-2] = True
    for rows in (-2, 0, 2):
        for columns in (-2, 0, 2):
            inner &= np.roll(surface.parcel_ids, (rows, columns), (0, 1)) == surface.parcel_ids
    index = vegetation_index(may.astype(np.float64))
    assert index[wheat & inner].mean() > index[wheat & ~inner].mean() + 0.03


def test_maize_and_wheat_as_seen_from_above(season: Scene) -> None:
    names = season.class_names
    maize, wheat = (season.classes == names.index(name) + 1 for name in ("maize", "winter wheat"))
    for day, codes, values in zip(season.dates, season.classification, season.values, strict=True):
        clear = np.isin(codes, CLEAR)
        if clear.mean() < 0.5:
            continue
        index = vegetation_index(values.astype(np.float64) + 1e-9)
        if day.month == 8:
            assert index[maize & clear].mean() > index[wheat & clear].mean() + 0.2
        if day.month in (4, 5):
            assert index[wheat & clear].mean() > index[maize & clear].mean() + 0.2


# -- noise ------------------------------------------------------------------------------------------------------------


def test_smooth_fields_are_smooth_and_standard() -> None:
    field = smooth_field(np.random.default_rng(0), (61, 90), 10.0)
    assert field.shape == (61, 90)
    assert float(field.mean()) == pytest.approx(0.0, abs=1e-5)
    assert float(field.std()) == pytest.approx(1.0, abs=1e-5)
    assert np.abs(np.diff(field, axis=0)).mean() < 0.3


def test_coarsening_keeps_block_means_and_odd_shapes() -> None:
    values = np.arange(15, dtype=np.float32).reshape(3, 5)
    coarse = coarsen(values)
    assert coarse.shape == values.shape
    np.testing.assert_allclose(coarse[:2, :2], values[:2, :2].mean())
    assert coarse[2, 4] == values[2, 4]
