"""Bad input: one line each, with the file and the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from cropstar.errors import CropstarError, InputError, UsageError
from cropstar.sources.zuericrop import ZueriCropOptions, looks_like_zuericrop, open_zuericrop
from tests.sources.examples.zuericrop import HEADER, LABELS, a_collection


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
    assert "'gt' holds |S5, not numbers" in refusal(path)
    change(path, gt=collection.gt + 0.5)
    assert "'gt' holds fractions" in refusal(path)
    change(path, gt=collection.gt, data=collection.data * 1e-4)
    assert "as reflectance is" in refusal(path)


def test_headers_that_would_take_all_memory(tmp_path: Path) -> None:
    path = a_collection(images=2).write(tmp_path)
    shape = (2, 100_000, 2_000, 2_000, 9)
    with h5py.File(path, "a") as handle:
        for name, wanted in (("data", shape), ("gt", (2, 2000, 2000, 1)), ("gt_instance", (2, 2000, 2000, 1))):
            del handle[name]
            handle.create_dataset(name, wanted, np.int16, chunks=(1,) * len(wanted))
        del handle["cloud_cover"]
        handle.create_dataset("cloud_cover", shape[:-1], np.float32, chunks=(1,) * 4)
    assert "too large to be read" in refusal(path)


def test_datasets_that_lie_in_other_files(tmp_path: Path) -> None:
    collection = a_collection(images=2)
    path, other = collection.write(tmp_path), collection.write(tmp_path, name="other.h5")
    with h5py.File(path, "a") as handle:
        del handle["gt"]
        handle["gt"] = h5py.ExternalLink(other.name, "gt")
    assert "'gt' is no dataset of this file" in refusal(path)
    with h5py.File(path, "a") as handle:
        del handle["gt"]
        layout = h5py.VirtualLayout(collection.gt.shape, np.int16)
        layout[...] = h5py.VirtualSource(str(other), "gt", collection.gt.shape)
        handle.create_virtual_dataset("gt", layout)
    assert "'gt' is no dataset of this file" in refusal(path)


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
        (LABELS.replace("\n2,", "\nx,"), "'x' in the column GT is no code"),
        (LABELS.replace("\n2,", "\n1,"), "the code 1 stands twice"),
        (HEADER + "\n", "it has no row"),
        (LABELS.replace("Vegetation", "Plants"), "no row has Vegetation"),
        (LABELS.replace("SmallGrainCereal,SummerBarley", ",SummerBarley"), "'SummerBarley' has no class in 3rd_tier"),
        (LABELS.replace("LargeGrainCereal,Maize", "LargeGrainCereal,Wheat"), "'Wheat' stands under 'SmallGrainCereal'"),
        (LABELS.replace("Grassland,Meadow", "Grassland,Forest"), "'Forest' stands under 'Grassland' and 'Forest'"),
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
        (["2019-01-01"] * 7, "2019-01-01 follows 2019-01-01"),
        ([f"2019-01-{day:02d}" for day in (1, 2, 3, 5, 4, 6, 7)], "2019-01-04 follows 2019-01-05"),
        ([f"2019-01-{day:02d}" for day in range(1, 7)], "6 for 7 acquisitions"),
        ([], "0 for 7 acquisitions"),
        (["yesterday"], "entry 1 is 'yesterday'"),
        (["2019-01-01", "2019-02-30"], "entry 2 is '2019-02-30'"),
    ],
)
def test_lists_of_dates(lines: list[str], expected: str, tmp_path: Path) -> None:
    path = a_collection(images=1).write(tmp_path)
    (tmp_path / "dates.txt").write_text("\n".join(lines))
    assert expected in refusal(path, dates=tmp_path / "dates.txt")


def test_lists_of_dates_that_are_no_text(tmp_path: Path) -> None:
    path = a_collection(images=1).write(tmp_path)
    assert "no list of dates" in refusal(path, dates=tmp_path / "nowhere.txt")
    assert "no text in UTF-8" in refusal(path, dates=path)


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
    with pytest.raises(UsageError, match="every band once"):
        ZueriCropOptions(bands=("B4", "B04"))
