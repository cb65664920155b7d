"""What comes from outside is checked before anything is made of it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cropstar.errors import ArtifactError
from cropstar.store.fingerprint import Fingerprint
from cropstar.store.gate import GridRow, checked, inside, open_hdf5, parse_json, plain_name, read_json
from cropstar.store.model_file import read_model, write_model
from cropstar.store.store import MANIFEST, Store
from tests.examples import UTM, a_fingerprint, a_raster_tile, store_of
from tests.store.test_model_file import CARD, WEIGHTS


@pytest.mark.parametrize(
    "text",
    ["NaN", "-Infinity", "1e999", "9" * 400, "[" * 100_000, '{"a": Infinity}', "{", "\ufeff{}"],
    ids=["nan", "infinity", "too large", "digits", "deep", "inner", "cut", "mark"],
)
def test_json_with_bounds(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (each says something else)
        parse_json(text)


@given(st.recursive(st.integers(-(2**63), 2**63) | st.text() | st.none(), lambda inner: st.lists(inner, max_size=3)))
def test_ordinary_json_comes_back(data: Any) -> None:
    assert parse_json(json.dumps(data)) == data


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="not a regular file"):
        read_json(tmp_path / "pipe")
    os.mkfifo(tmp_path / MANIFEST)
    with pytest.raises(ArtifactError, match="the manifest cannot be read"):
        Store.open(tmp_path)


@given(st.text(min_size=1, max_size=30))
def test_a_plain_name_stays_in_its_folder(name: str) -> None:
    folder = Path("/somewhere/store")
    try:
        plain_name(name)
    except ValueError:
        return
    assert Path(os.path.normpath(folder / name)).parent == folder


def test_hdf5_files_lead_nowhere(tmp_path: Path) -> None:
    other, path = tmp_path / "other.h5", tmp_path / "file.h5"
    with h5py.File(other, "w") as file:
        file["array"] = [1, 2]
    ways: dict[str, Callable[[h5py.File], object]] = {
        "is a link": lambda file: file.create_group("inner").__setitem__("soft", h5py.SoftLink("/array")),
        "'away' is a link": lambda file: file.__setitem__("away", h5py.ExternalLink(str(other), "array")),
        "bytes lie in another file": lambda file: file.create_dataset("raw", (2,), "i8", external=str(other)),
    }
    for why, plant in ways.items():
        with h5py.File(path, "w") as file:
            file["array"] = [3, 4]
            file["same"] = file["array"]
        with open_hdf5(path) as file:
            assert file["same"][:].tolist() == [3, 4]
        with h5py.File(path, "r+") as file:
            plant(file)
        with pytest.raises(ValueError, match=why):
            open_hdf5(path)


def test_paths_inside(tmp_path: Path) -> None:
    assert inside(tmp_path, tmp_path / "a" / "b") == tmp_path / "a" / "b"
    (tmp_path / "link").symlink_to("/etc")
    for outside in (tmp_path / ".." / "x", Path("/etc/passwd"), tmp_path / "link" / "passwd"):
        with pytest.raises(ValueError, match="outside"):
            inside(tmp_path, outside)


EDITS: dict[str, Callable[[dict[str, Any]], object]] = {
    "scene elsewhere": lambda data: data["tiles"][0].update(scene="../../outside"),
    "absolute scene": lambda data: data["tiles"][0].update(scene="/abs/x"),
    "tile elsewhere": lambda data: data["tiles"][0].update(name="../tile-0"),
    "scene of the list elsewhere": lambda data: data["scenes"].update({"a/b": {}}),
    "scale of 400 digits": lambda data: data["fingerprint"].update(scale=10**400),
    "class number": lambda data: data["fingerprint"]["classes"][0].update(number=10**9),
    "classes with a gap": lambda data: data["fingerprint"]["classes"].pop(0),
    "colour": lambda data: data["fingerprint"]["classes"][0].update(colour="\x1b[31m"),
    "bands twice": lambda data: data["fingerprint"].update(bands=["B01", "B01"]),
    "negative size": lambda data: data["tiles"][0].update(bytes=-1),
    "layout": lambda data: data["tiles"][0].update(layout="cube"),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS.keys())
def test_a_hostile_manifest_is_one_line(edit: Callable[[dict[str, Any]], object], tmp_path: Path) -> None:
    store = store_of(tmp_path / "store", {"tile-0": a_raster_tile((2, 2, 8, 8))})
    path = store / MANIFEST
    data = json.loads(path.read_text(encoding="utf-8"))
    del data["checksum"]  # an attacker would make it right
    edit(data)
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(ArtifactError, match="cannot be read") as caught:
        Store.open(store)
    assert caught.value.exit_code == 4
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"transform": [10.0, 0.0, 0.0, 0.0, "\x1b[31m", 0.0]},
        {"transform": [0.0] * 6},
        {"transform": [1.0] * 5},
        {"transform": [10.0, 0.0, 1e300, 0.0, -10.0, 0.0]},
        {"shape": [8, 8, 8]},
        {"shape": [8.5, 8]},
        {"shape": [-1, 8]},
        {"crs": 3},
    ],
)
def test_a_hostile_grid(change: dict[str, Any]) -> None:
    good = {"crs": UTM, "transform": [10.0, 0.0, 0.0, 0.0, -10.0, 0.0], "shape": [8, 8]}
    checked(GridRow, good)
    with pytest.raises(ValueError, match=rf"{next(iter(change))}|no area"):
        checked(GridRow, good | change)


@pytest.mark.parametrize(
    "change",
    [
        {"shape": {"bands": 3, "classes": 2, "length": 9}},
        {"shape": {"bands": 2, "classes": 9, "length": 9}},
        {"shape": {"bands": 2, "classes": 2, "length": 10**9}},
        {"shape": 3.0},
        {"provenance": {"scenes": [1, 2]}},
        {"provenance": {"regular": {"every": "often"}}},
        {"calibration": {"temperature": 1.0}},
    ],
)
def test_a_hostile_card_is_one_line(change: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_model(path, type(CARD)(**{**vars(CARD), **change}), WEIGHTS)
    with pytest.raises(ArtifactError, match="the model file cannot be used") as caught:
        read_model(path)
    assert len(str(caught.value).splitlines()) == 1


def test_a_fingerprint_comes_back() -> None:
    whole = a_fingerprint()
    assert Fingerprint.from_json(parse_json(whole.dumps()), Path("store")) == whole
