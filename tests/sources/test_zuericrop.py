"""ZueriCrop: values, fields, classes, folds; bad files."""

from __future__ import annotations

import pickle
from datetime import date
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cropstar.errors import CropstarError, InputError, UsageError
from cropstar.geo.calendar import from_days
from cropstar.geo.windows import Window
from cropstar.sources.ingest import ingest
from cropstar.sources.zuericrop import (
    ZueriCropOptions,
    fold_of,
    looks_like_zuericrop,
    open_zuericrop,
    read_labels,
    spread_dates,
)
from cropstar.store.classes import UNLABELLED
from cropstar.store.store import Store
from tests.sources.examples.zuericrop import FILE_BANDS, HEADER, LABELS, USED, Collection, a_collection

WHOLE = Window(0, 0, 24, 24)


def stored(path: Path, folder: Path, **options: Any) -> Store:
    ingest(open_zuericrop(path, ZueriCropOptions(**options)), folder)
    return Store.open(folder)


def require_equal(store: Store, collection: Collection, limit: float = 0.1) -> int:
    """Every image of a store against the arrays; answers how many there were."""
    names, count = store.fingerprint.classes.names, 0
    for _, reader in store.readers():
        for image in reader.images:
            index = int(image.name)  # type: ignore[attr-defined]
            data = collection.data[index]
            valid = (collection.cloud_cover[index] <= limit) & (data != 0).any(axis=-1)
            assert np.array_equal(image.valid(WHOLE), valid)
            stored_values = image.values(WHOLE)
            for place, band in enumerate(store.fingerprint.bands):
                expected = np.where(valid, data[..., FILE_BANDS.index(band)], 0)
                assert np.array_equal(stored_values[:, place], expected)
            labels, codes = image.labels(), collection.gt[index, ..., 0]
            for code in np.unique(codes):
                found = set(labels[codes == code].tolist())
                assert found == {names.index(USED[code]) if code in USED else UNLABELLED}
            fields, parcels = collection.gt_instance[index, ..., 0], image.parcels()
            assert np.array_equal(parcels != 0, (fields != 0) & (labels != UNLABELLED))
            for number, key in zip(image.table.numbers, image.table.keys, strict=True):
                assert set(fields[parcels == number].tolist()) == {int(key)}
            count += 1
    return count


def test_a_file_becomes_a_store(tmp_path: Path) -> None:
    collection = a_collection()
    collection.write(tmp_path / "data")
    assert looks_like_zuericrop(tmp_path / "data")
    store = stored(tmp_path / "data", tmp_path / "store", images_per_tile=4)
    assert [entry.layout for entry in store.manifest.tiles] == ["patches"] * 3
    assert require_equal(store, collection) == 11
    fingerprint = store.fingerprint
    assert fingerprint.bands == ("B02", "B03", "B04", "B05", "B06", "B07", "B08", "B11", "B12")
    assert (fingerprint.scale, fingerprint.offset, fingerprint.resolution) == (1e-4, 0.0, 10.0)
    image = next(store.readers())[1].images[0]
    assert (image.grid.crs, image.grid.transform) == ("", (10.0, 0.0, 0.0, 0.0, -10.0, 0.0))
    store.close()


def test_a_field_in_two_images_keeps_one_key(tmp_path: Path) -> None:
    collection = a_collection(images=3, codes=3)
    store = stored(collection.write(tmp_path / "data"), tmp_path / "store", images_per_tile=2)
    tables = [reader.table for _, reader in store.readers()]
    keys = [key for table in tables for key in table.keys]
    numbers = [int(number) for table in tables for number in table.numbers]
    assert len(set(numbers)) == len(numbers) == len(keys)
    labelled = collection.gt != 0
    assert set(keys) == {str(number) for number in np.unique(collection.gt_instance[labelled])}
    assert len(set(keys)) < len(keys)
    assert store.manifest.scenes["ZueriCrop"]["parcels"] == len(set(keys))
    store.close()


def test_the_hierarchy_is_kept_and_its_levels_can_be_chosen(tmp_path: Path) -> None:
    path = a_collection(images=5).write(tmp_path)
    fine, middle, coarse = (
        open_zuericrop(path, ZueriCropOptions(level=level))[0].fingerprint.classes for level in (3, 2, 1)
    )
    assert {entry.name: entry.lineage for entry in fine} == {
        "Forest": ("Forest", "Forest"),
        "Maize": ("Field crops", "LargeGrainCereal"),
        "Meadow": ("Grassland", "Meadow"),
        "SummerBarley": ("Field crops", "SmallGrainCereal"),
        "Wheat": ("Field crops", "SmallGrainCereal"),
    }
    assert {entry.name: entry.lineage for entry in middle} == {
        "Forest": ("Forest",),
        "LargeGrainCereal": ("Field crops",),
        "Meadow": ("Grassland",),
        "SmallGrainCereal": ("Field crops",),
    }
    assert [(entry.name, entry.lineage) for entry in coarse] == [("Field crops", ()), ("Forest", ()), ("Grassland", ())]
    assert (fine.levels, middle.levels, coarse.levels) == (3, 2, 1)


def test_the_published_label_table(real_data: Path, tmp_path: Path) -> None:
    collection = a_collection(images=5, codes=125)
    path = collection.write(tmp_path, labels=None)
    labels = real_data / "zuericrop" / "labels.csv"
    scenes = [open_zuericrop(path, ZueriCropOptions(labels=labels, level=level))[0] for level in (1, 2, 3)]
    assert [len(scene.fingerprint.classes) for scene in scenes] == [5, 16, 48]
    assert [read_labels(labels, level).codes for level in (1, 2, 3)] == [80, 80, 80]
    fine = scenes[2].fingerprint.classes
    assert fine[fine.number_of("Sugar_beets")].lineage == ("Field crops", "BroadLeafRowCrop")
    for depth, scene in enumerate(scenes[:2]):
        assert {entry.lineage[depth] for entry in fine} == set(scene.fingerprint.classes.names)
    # The 124 codes, those without a class included, have a row each; all of them may stand in a file.
    collection.gt.flat[:125] = np.arange(125)
    assert stored(collection.write(tmp_path, labels=None), tmp_path / "store", labels=labels).manifest.tiles


def test_folds_are_contiguous_fifths(tmp_path: Path) -> None:
    store = stored(a_collection(images=11).write(tmp_path / "data"), tmp_path / "store", images_per_tile=3)
    groups = {}
    for _, reader in store.readers():
        for image in reader.images:
            groups[int(image.name)] = set(image.table.groups or [])  # type: ignore[attr-defined]
    expected = ["fold1"] * 2 + ["fold2"] * 2 + ["fold3"] * 2 + ["fold4"] * 2 + ["fold5"] * 3
    assert all(found <= {wanted} for found, wanted in zip((groups[n] for n in range(11)), expected, strict=True))
    splits = store.manifest.scenes["ZueriCrop"]["splits"]
    assert sorted(splits) == [f"fold{fold}" for fold in range(1, 6)]
    assert splits["fold2"] == {"train": ["fold1", "fold3", "fold4", "fold5"], "validation": [], "test": ["fold2"]}
    store.close()


@given(st.integers(1, 40_000))
def test_folds_differ_by_one_image_at_most(images: int) -> None:
    edges = [images * fold // 5 for fold in range(6)]
    sizes = np.diff(edges)
    assert sizes.max() - sizes.min() <= 1
    for index in {0, images // 2, images - 1}:
        fold = int(fold_of(index, images)[-1])
        assert edges[fold - 1] <= index < edges[fold]


@given(st.integers(1, 365), st.integers(2015, 2100))
def test_assumed_dates_ascend_through_the_whole_year(count: int, year: int) -> None:
    dates = spread_dates(count, year, Path("file.hdf5"))
    assert len(set(dates)) == count
    assert dates == sorted(dates)
    assert {day.year for day in dates} == {year}
    if count > 1:
        assert (dates[0], dates[-1]) == (date(year, 1, 1), date(year, 12, 31))


def test_dates_are_assumed_aloud_or_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = a_collection(images=2, dates=142).write(tmp_path)
    with caplog.at_level("WARNING", logger="cropstar"):
        assumed = open_zuericrop(path)[0]
    assert "has no dates" in caplog.text
    assert "--dates" in caplog.text
    assert assumed.fingerprint.season.length == 364
    assert assumed.fingerprint.season.covers(date(2022, 7, 1))
    caplog.clear()
    listed = [day.isoformat() for day in from_days(range(18_000, 18_284, 2))]
    for text in ("\n".join(listed), "\r\n".join(day.replace("-", "") for day in listed) + "\r\n\r\n"):
        (tmp_path / "dates.txt").write_text(text)
        scene = open_zuericrop(path, ZueriCropOptions(dates=tmp_path / "dates.txt"))[0]
        assert scene.describe()["dates"] == listed
        assert not scene.describe()["dates_assumed"]
        assert scene.recipe != assumed.recipe
    assert "has no dates" not in caplog.text
    tile = scene.build(scene.tile_specs()[0])
    assert [day.isoformat() for day in from_days(tile.days[0])] == listed


@pytest.mark.parametrize("kind", [np.int16, np.uint16, np.float32, np.float64])
def test_numbers_of_any_kind(kind: Any, tmp_path: Path) -> None:
    collection = a_collection(images=3, kind=kind)
    collection.gt, collection.gt_instance = collection.gt.astype(kind), collection.gt_instance.astype(kind)
    store = stored(collection.write(tmp_path / "data"), tmp_path / "store")
    assert require_equal(store, collection) == 3
    store.close()


def test_what_is_no_digital_number_is_not_valid(tmp_path: Path) -> None:
    collection = a_collection(images=2, kind=np.float32)
    collection.cloud_cover[:] = 0
    collection.cloud_cover[0, 3, 9, 9] = np.nan
    collection.data[0, 2, 5, 5, 3] = np.nan
    collection.data[0, 2, 6, 6, 0] = -1
    collection.data[0, 2, 7, 7, 8] = 70_000
    scene = open_zuericrop(collection.write(tmp_path))[0]
    tile = scene.build(scene.tile_specs()[0])
    assert not tile.valid[0, 2, [5, 6, 7], [5, 6, 7]].any()
    assert not tile.valid[0, 3, 9, 9]
    assert not tile.values[0, 2, :, [5, 6, 7], [5, 6, 7]].any()
    assert tile.valid[0, 2, 8:].all()


def test_the_cloud_limit_and_the_bands_are_chosen(tmp_path: Path) -> None:
    collection = a_collection(images=4)
    path = collection.write(tmp_path / "data")
    strict = stored(path, tmp_path / "strict", cloud_limit=0.01, bands=("B08", "B04"))
    assert strict.fingerprint.bands == ("B04", "B08")
    assert require_equal(strict, collection, 0.01) == 4
    lenient = stored(path, tmp_path / "lenient", cloud_limit=1.0)
    assert require_equal(lenient, collection, 1.0) == 4
    assert strict.manifest.tiles[0].recipe != lenient.manifest.tiles[0].recipe
    for store in (strict, lenient):
        store.close()


def test_a_scene_travels_to_other_processes(tmp_path: Path) -> None:
    scene = open_zuericrop(a_collection(images=5).write(tmp_path))[0]
    tile = scene.build(scene.tile_specs()[0])
    again = pickle.loads(pickle.dumps(scene))
    twin = again.build(again.tile_specs()[0])
    for name, array in tile.arrays().items():
        assert np.array_equal(array, twin.arrays()[name]), name
    assert (twin.table.keys, twin.recipe, twin.scene) == (tile.table.keys, tile.recipe, tile.scene)


def test_a_second_ingest_has_nothing_to_do(tmp_path: Path) -> None:
    path = a_collection().write(tmp_path / "data")
    first = ingest(open_zuericrop(path), tmp_path / "store")
    again = ingest(open_zuericrop(path), tmp_path / "store")
    assert (first.written, first.kept, again.written, again.kept) == (1, 0, 0, 1)


def test_only_slices_are_read(tmp_path: Path) -> None:
    """A file that claims thousands of images, of which HDF5 stores only those written."""
    path = tmp_path / "ZueriCrop.hdf5"
    small = a_collection(images=2, dates=142).write(tmp_path)
    with h5py.File(small, "r") as handle:
        parts = {name: handle[name][()] for name in handle}
    with h5py.File(path, "w") as handle:
        for name, array in parts.items():
            chunk = (1, *array.shape[1:])
            grown = handle.create_dataset(name, (28_000, *array.shape[1:]), array.dtype, chunks=chunk)
            grown[:2] = array
    scene = open_zuericrop(path)[0]
    assert scene.describe()["images"] == 28_000
    assert len(scene.tile_specs()) == 875
    tile = scene.build(scene.tile_specs()[0])
    assert tile.valid[:2].any()
    assert not tile.valid[2:].any()


@pytest.mark.parametrize(
    "wrong",
    [{"level": 4}, {"cloud_limit": -1.0}, {"year": 1999}, {"images_per_tile": 0}, {"bands": ("B8A",)}, {"bands": ()}],
)
def test_options_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        ZueriCropOptions(**wrong)


# --- Bad input


def build_all(path: Path, **options: Any) -> None:
    for scene in open_zuericrop(path, ZueriCropOptions(**options)):
        for piece in scene.tile_specs():
            scene.build(piece)


def refusal(path: Path, **options: Any) -> str:
    with pytest.raises(CropstarError) as caught:
        build_all(path, **options)
    assert isinstance(caught.value, (InputError, UsageError))
    assert "\n" not in str(caught.value)
    assert str(path.parent) in str(caught.value)
    return str(caught.value)


def change(path: Path, **arrays: Any) -> None:
    with h5py.File(path, "a") as handle:
        for name, array in arrays.items():
            del handle[name]
            if array is not None:
                handle.create_dataset(name, data=array)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_truncated(share: float, tmp_path: Path) -> None:
    path = a_collection(images=3).write(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    assert "damaged hdf5 file" in refusal(path)
    assert not looks_like_zuericrop(path)
    assert "damaged hdf5 file" in refusal(tmp_path)


def test_not_hdf5_at_all(tmp_path: Path) -> None:
    path = a_collection(images=1).write(tmp_path)
    path.write_text("<!DOCTYPE html><html><body>Sign in to download</body></html>")
    assert "damaged hdf5 file" in refusal(path)
    assert not looks_like_zuericrop(tmp_path)


def test_bytes_flipped_inside_compressed_chunks(tmp_path: Path) -> None:
    path = a_collection(images=2).write(tmp_path)
    with h5py.File(path, "r") as handle:
        data = handle["data"][()]
    with h5py.File(path, "a") as handle:
        del handle["data"]
        made = handle.create_dataset("data", data=data, chunks=(1, 7, 24, 24, 9), compression="gzip", fletcher32=True)
        place = made.id.get_chunk_info(1).byte_offset
    with path.open("r+b") as handle:
        handle.seek(place + 100)
        handle.write(b"\xff" * 50)
    assert "damaged hdf5 file" in refusal(path)


@pytest.mark.parametrize("name", ["data", "gt", "gt_instance", "cloud_cover"])
def test_a_dataset_is_missing(name: str, tmp_path: Path) -> None:
    path = a_collection(images=2).write(tmp_path)
    change(path, **{name: None})
    assert f"no dataset '{name}'" in refusal(path)
    assert not looks_like_zuericrop(path)


@pytest.mark.parametrize("name", ["gt", "gt_instance", "cloud_cover"])
def test_shapes_disagree(name: str, tmp_path: Path) -> None:
    collection = a_collection(images=3)
    path = collection.write(tmp_path)
    change(path, **{name: getattr(collection, name)[:2]})
    message = refusal(path)
    assert "datasets of different shapes" in message
    assert f"'{name}' is (2, " in message


@pytest.mark.parametrize("shape", [(3, 7, 24, 24, 4), (3, 7, 24, 9), (0, 7, 24, 24, 9)])
def test_data_of_another_shape(shape: tuple[int, ...], tmp_path: Path) -> None:
    path = a_collection(images=3).write(tmp_path)
    change(path, data=np.zeros(shape, dtype=np.int16))
    assert f"'data' is {shape}, not images x dates" in refusal(path)


def test_wrong_kinds_of_values(tmp_path: Path) -> None:
    collection = a_collection(images=2)
    path = collection.write(tmp_path)
    change(path, gt=np.full(collection.gt.shape, b"wheat"))
    assert "damaged hdf5 file" in refusal(path)
    change(path, gt=collection.gt + 0.5)
    assert "'gt' holds fractions" in refusal(path)
    change(path, gt=collection.gt, data=collection.data * 1e-4)
    assert "as reflectance is" in refusal(path)


def test_datasets_that_lie_in_other_files(tmp_path: Path) -> None:
    collection = a_collection(images=2)
    path, other = collection.write(tmp_path), collection.write(tmp_path, name="other.h5")
    with h5py.File(path, "a") as handle:
        del handle["gt"]
        handle["gt"] = h5py.ExternalLink(other.name, "gt")
    assert "'gt' is a link to another place" in refusal(path)
    with h5py.File(path, "a") as handle:
        del handle["gt"]
        layout = h5py.VirtualLayout(collection.gt.shape, np.int16)
        layout[...] = h5py.VirtualSource(str(other), "gt", collection.gt.shape)
        handle.create_virtual_dataset("gt", layout)
    assert "a virtual data set, which reads other files" in refusal(path)


def test_codes_without_a_row(tmp_path: Path) -> None:
    collection = a_collection(images=3)
    for code in (10, 32_000, -1):
        collection.gt[1, 4, 4, 0] = code
        message = refusal(collection.write(tmp_path))
        assert f"image 1 has the code {code}, which has no row in labels.csv" in message


def test_nothing_labelled(tmp_path: Path) -> None:
    collection = a_collection(images=2)
    collection.gt[:] = 7
    assert "nothing is labelled" in refusal(collection.write(tmp_path))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "not a table"),
        ("<html><body>Sign in</body></html>", "no column 1st_tier, 2nd_tier, 3rd_tier, 4th_tier"),
        (LABELS.replace("3rd_tier", "third"), "no column 3rd_tier"),
        (LABELS.replace("\n2,", "\nx,"), "not a label table"),
        (LABELS.replace("\n2,", "\n1,"), "the column GT has no codes, each once"),
        (HEADER + "\n", "the column GT has no codes, each once"),
        (LABELS.replace("Vegetation", "Plants"), "no row has Vegetation"),
        (LABELS.replace("SmallGrainCereal,SummerBarley", ",SummerBarley"), "'SummerBarley' has no class in 3rd_tier"),
        (LABELS.replace("LargeGrainCereal,Maize", "LargeGrainCereal,Wheat"), "'Wheat' is under 'SmallGrainCereal'"),
        (LABELS.replace("Grassland,Meadow", "Grassland,Forest"), "'Forest' is under 'Grassland' and 'Forest'"),
    ],
)
def test_label_tables(text: str, expected: str, tmp_path: Path) -> None:
    path = a_collection(images=1).write(tmp_path, labels=text)
    assert expected in refusal(path)


def test_a_label_table_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    path = a_collection(images=1).write(tmp_path, labels=None)
    assert not looks_like_zuericrop(tmp_path)
    assert looks_like_zuericrop(path)
    assert "no label table" in refusal(path)
    (tmp_path / "labels.csv").write_bytes(LABELS.encode("latin-1"))
    assert "not a text in UTF-8" in refusal(path)
    (tmp_path / "labels.csv").write_bytes(b"x" * 2_000_000)
    assert "not a label table" in refusal(path)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["2019-01-01"] * 7, "a date appears twice"),
        ([f"2019-01-{day:02d}" for day in (1, 2, 3, 5, 4, 6, 7)], "not in order"),
        ([f"2019-01-{day:02d}" for day in range(1, 7)], "6 for 7 acquisitions"),
        ([], "the list is empty"),
        (["yesterday"], "'yesterday'"),
        (["2019-01-01", "2019-02-30"], "'2019-02-30'"),
    ],
)
def test_lists_of_dates(lines: list[str], expected: str, tmp_path: Path) -> None:
    path = a_collection(images=1).write(tmp_path)
    (tmp_path / "dates.txt").write_text("\n".join(lines))
    assert expected in refusal(path, dates=tmp_path / "dates.txt")


def test_lists_of_dates_that_are_no_text(tmp_path: Path) -> None:
    path = a_collection(images=1).write(tmp_path)
    assert "no such file" in refusal(path, dates=tmp_path / "nowhere.txt")
    assert "not a text in UTF-8" in refusal(path, dates=path)


def test_which_file(tmp_path: Path) -> None:
    assert "no such file or folder" in refusal(tmp_path / "nowhere.hdf5")
    assert "it holds no .hdf5 file" in refusal(tmp_path)
    collection = a_collection(images=1)
    collection.write(tmp_path)
    collection.write(tmp_path, name="copy.h5")
    assert "it holds ZueriCrop.hdf5, copy.h5" in refusal(tmp_path)


def test_bands_in_any_spelling() -> None:
    assert ZueriCropOptions(bands=("b8", "B4", "B011")).chosen_bands == ("B04", "B08", "B11")
    assert ZueriCropOptions(bands=("B8",)).to_json() == ZueriCropOptions(bands=("B08",)).to_json()
    with pytest.raises(UsageError, match="unknown band 'B8A'"):
        ZueriCropOptions(bands=("B08A",))
    with pytest.raises(UsageError, match="bands must be given once each"):
        ZueriCropOptions(bands=("B4", "B04"))
