"""Model files: all that is needed to use the weights rightly, refused when a single bit is not as written."""

from __future__ import annotations

import pickle
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from cropstar.errors import ArtifactError
from cropstar.store.fingerprint import Normalisation
from cropstar.store.model_file import (
    HEADER_KEY,
    ModelCard,
    Tensors,
    read_header,
    read_model,
    read_tensors,
    write_model,
    write_tensors,
)
from tests.examples import a_fingerprint

CARD = ModelCard(
    {"name": "star", "layers": 2, "hidden": 3},
    {"bands": 2, "classes": 2, "length": 9},
    a_fingerprint(),
    Normalisation((0.1, 0.3), (0.02, 0.05)),
    {"seed": 1, "scenes": {"Äcker": "0123"}},
)
WEIGHTS: Tensors = {
    "stack.0.weight": np.arange(12, dtype=np.float32).reshape(4, 3),
    "stack.0.bias": np.array([1.5], dtype=np.float32),
    "steps": np.array(7, dtype=np.int64),
    "flags": np.array([True, False]),
    "nothing": np.zeros((0, 3), dtype=np.float16),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    write_model(path, CARD, WEIGHTS)
    return path


def same(one: Tensors, two: Tensors) -> bool:
    return one.keys() == two.keys() and all(
        one[name].dtype == two[name].dtype and np.array_equal(one[name], two[name]) for name in one
    )


def test_what_is_written_is_read(model: Path) -> None:
    card, weights, digest = read_model(model)
    assert card == CARD
    assert same(weights, WEIGHTS)
    assert write_model(model, card, weights) == digest
    assert [path.name for path in model.parent.iterdir()] == ["model.safetensors"]


def test_numbers_of_a_kind_that_numpy_has_not(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_model(path, CARD, {"weight": np.ones((2, 2), np.float16)})
    data = path.read_bytes()
    end = 8 + struct.unpack("<Q", data[:8])[0]
    header = data[8:end].replace(b'"F16"', b'"BF16"')
    path.write_bytes(struct.pack("<Q", len(header)) + header + data[end:])
    with pytest.raises(ArtifactError, match="the model file cannot be used"):  # its kind, or its checksum
        read_model(path)


def test_equal_models_are_equal_bytes(model: Path) -> None:
    before = model.read_bytes()
    write_model(model, CARD, dict(reversed(WEIGHTS.items())))
    assert model.read_bytes() == before


def test_the_digest_tells_models_apart(model: Path) -> None:
    _, weights, digest = read_model(model)
    others = [
        (CARD, weights | {"steps": np.array(8, dtype=np.int64)}),
        (CARD, weights | {"steps": np.array(7, dtype=np.int32)}),
        (replace(CARD, normalisation=Normalisation((0.1, 0.4), (0.02, 0.05))), weights),
        (replace(CARD, fingerprint=a_fingerprint(("B08", "B04"))), weights),
    ]
    assert len({digest, *(write_model(model, card, arrays) for card, arrays in others)}) == len(others) + 1


names = st.text(min_size=1, max_size=12).filter(lambda name: name != "__metadata__")
values = st.recursive(
    st.one_of(
        *(st.none(), st.booleans(), st.integers(-(2**63), 2**63), st.text()),
        st.floats(allow_nan=False, allow_infinity=False),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(names.filter(lambda name: name not in ("kind", "digest")), values, max_size=4))
def test_any_header_comes_back(folder: Path, header: dict[str, Any]) -> None:
    path = folder / "any.safetensors"
    digest = write_tensors(path, "checkpoint", header, WEIGHTS)
    read, weights = read_tensors(path, "checkpoint")
    assert read == {**header, "kind": "checkpoint", "digest": digest}
    assert same(weights, WEIGHTS)


def test_numbers_as_keys_are_text_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "file.safetensors"
    write_tensors(path, "checkpoint", {"ranks": {2: (1, 2), 10: "b"}}, {})
    assert read_tensors(path, "checkpoint")[0]["ranks"] == {"2": [1, 2], "10": "b"}


# --- damage


@given(st.data())
def test_a_flipped_bit_anywhere_is_refused(folder: Path, data: st.DataObject) -> None:
    path = folder / "flipped.safetensors"
    write_model(path, CARD, WEIGHTS)
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    with pytest.raises(ArtifactError) as caught:
        read_model(path)
    assert caught.value.exit_code == 4
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("share", [0, 0.005, 0.3, 0.9, 0.999])
def test_a_cut_model_is_refused(model: Path, share: float) -> None:
    content = model.read_bytes()
    model.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(ArtifactError, match="the model file cannot be used"):
        read_model(model)


def test_a_header_without_its_arrays_is_refused(model: Path) -> None:
    content = model.read_bytes()
    model.write_bytes(content[: 8 + struct.unpack("<Q", content[:8])[0]])
    with pytest.raises(ArtifactError, match="the model file cannot be used"):
        read_model(model)


class Trap:
    """Unpickling it would make a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_a_pickle_is_refused_and_not_run(tmp_path: Path, protocol: int) -> None:
    path, proof = tmp_path / "model.safetensors", tmp_path / "run"
    path.write_bytes(pickle.dumps(Trap(proof), protocol=protocol))
    with pytest.raises(ArtifactError, match="it is not a safetensors file"):
        read_model(path)
    assert not proof.exists()


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 7, b"\0" * 64, b"a model, honestly\n" * 9, b"PK\x03\x04" + b"\0" * 60]
)
def test_what_is_no_model(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match="the model file cannot be used"):
        read_model(path)


@pytest.mark.parametrize("text", [None, "", "no json", "[]", "3", "{}", '{"digest": "0"}'])
def test_a_safetensors_file_of_someone_else(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"weight": np.ones(3, dtype=np.float32)}, path, metadata=None if text is None else {HEADER_KEY: text})
    with pytest.raises(ArtifactError, match="no header of cropstar"):
        read_header(path, "model")


@pytest.mark.parametrize("text", ['{"kind": "model"}', '{"kind": "model", "loss": NaN}'])
def test_a_header_without_digest(tmp_path: Path, text: str) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"weight": np.ones(3, dtype=np.float32)}, path, metadata={HEADER_KEY: text})
    with pytest.raises(ArtifactError, match="the model file cannot be used"):
        read_model(path)


def test_a_checkpoint_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    write_tensors(path, "checkpoint", {}, WEIGHTS)
    with pytest.raises(ArtifactError, match="not a model file") as caught:
        read_model(path)
    assert "it is a checkpoint file" in str(caught.value)


def test_a_model_without_a_card(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_tensors(path, "model", {"model": {}}, WEIGHTS)
    with pytest.raises(ArtifactError, match="its header cannot be understood"):
        read_model(path)


def test_no_model_at_all(tmp_path: Path) -> None:
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(ArtifactError, match="no model file"):
            read_model(path)


def test_a_failed_write_keeps_the_model(model: Path) -> None:
    before = model.read_bytes()
    with pytest.raises(ValueError, match="JSON compliant"):
        write_model(model, replace(CARD, provenance={"loss": float("nan")}), WEIGHTS)
    assert model.read_bytes() == before
