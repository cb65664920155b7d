"""Model files and checkpoints: named arrays and a JSON header in one safetensors file. No pickle anywhere.

A model file holds the weights and everything that is needed to use them.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from cropstar.config import RegularConfig
from cropstar.errors import ArtifactError
from cropstar.inputs import MAXIMUM_HEADER_BYTES
from cropstar.store.files import atomic_path
from cropstar.store.fingerprint import Fingerprint, Normalisation
from cropstar.store.gate import CardRow, checked, parse_json

KIND = "model"
NOVELTY = "novelty."  # the names of arrays that are not weights begin so
HEADER_KEY = "cropstar"  # one key only: safetensors does not keep the order of several
Tensors = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class ModelCard:
    """The description of a model in its file, beside the weights."""

    model: dict[str, Any]  # the model's section of the configuration
    shape: dict[str, Any]  # bands, classes, dates of a season
    fingerprint: Fingerprint
    normalisation: Normalisation
    provenance: dict[str, Any]
    calibration: dict[str, Any] | None = None  # what makes scores into confidence; None of a model still in training
    # Arrays beside the weights that tell what is unknown, see models/novelty.py; empty in older files.
    novelty: dict[str, NDArray[Any]] = field(default_factory=dict, compare=False)

    @property
    def regular(self) -> RegularConfig:
        """The dates that the model reads: those of the images, or regular ones."""
        return RegularConfig.model_validate(self.provenance.get("regular", {}))


def write_model(path: Path, card: ModelCard, tensors: Tensors) -> str:
    """Write the file and return the digest that identifies the model."""
    header = {
        "model": card.model,
        "shape": card.shape,
        "fingerprint": card.fingerprint.to_json(),
        "normalisation": card.normalisation.to_json(),
        "provenance": card.provenance,
        **({} if card.calibration is None else {"calibration": card.calibration}),
    }
    return write_tensors(path, KIND, header, {**tensors, **{NOVELTY + name: own for name, own in card.novelty.items()}})


def read_model(path: Path) -> tuple[ModelCard, Tensors, str]:
    """The card, the weights, and the digest that identifies the model."""
    header, tensors = read_tensors(path, KIND)
    novelty = {name.removeprefix(NOVELTY): tensors.pop(name) for name in list(tensors) if name.startswith(NOVELTY)}
    return replace(_card(header, path), novelty=novelty), tensors, str(header["digest"])


def _card(header: dict[str, Any], path: Path) -> ModelCard:
    try:
        row = checked(CardRow, header)
    except ValueError as failure:
        why = f"its header cannot be understood ({failure})"
        raise ArtifactError("the model file cannot be used", path=path, why=why, remedy="train again") from None
    card = ModelCard(
        row.model,
        header["shape"],
        Fingerprint.from_json(row.fingerprint, path),
        Normalisation(tuple(row.normalisation.mean), tuple(row.normalisation.deviation)),
        header["provenance"],
        row.calibration,
    )
    lists = (card.fingerprint.bands, card.normalisation.mean, card.normalisation.deviation)
    sensors = tuple(row.shape.sensors or ())  # of several each has a channel more, which tells whose date it is
    sizes = {len(each) + len(sensors) for each in lists}, row.shape.classes, sensors
    fingerprint = card.fingerprint
    if sizes != ({row.shape.bands}, len(fingerprint.classes), fingerprint.sensor_sizes or ()):
        why = "its bands and classes are not those of its weights"
        raise ArtifactError("the model file cannot be used", path=path, why=why, remedy="train again")
    return card


# --- safetensors files with a header of ours, checked by digest


def write_tensors(path: Path, kind: str, header: dict[str, Any], tensors: Tensors) -> str:
    """Write the file atomically and return the digest of its content."""
    arrays = {name: np.asarray(array, order="C") for name, array in tensors.items()}
    plain = json.loads(_header_text({**header, "kind": kind}))  # as it will be read: keys are text, tuples are lists
    digest = content_digest(plain, arrays)
    with atomic_path(path) as partial:
        partial.write_bytes(save(arrays, metadata={HEADER_KEY: _header_text({**plain, "digest": digest})}))
    return digest


def read_tensors(path: Path, kind: str) -> tuple[dict[str, Any], Tensors]:
    """Header and arrays, after checking that the file is of that kind and holds what was written."""
    header = read_header(path, kind)
    try:
        with safe_open(path, framework="numpy") as handle:
            tensors = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118 (not a mapping)
        digest = content_digest(header, tensors)
    except (SafetensorError, OSError, TypeError, ValueError) as failure:  # TypeError: a kind that NumPy has not
        raise _unreadable(path, kind, str(failure)) from None
    if digest != header.get("digest"):
        raise _unreadable(path, kind, "its content does not match its checksum")
    return header, tensors


def read_header(path: Path, kind: str) -> dict[str, Any]:
    """The JSON header alone, without loading the arrays."""
    if not path.is_file():
        raise ArtifactError(f"no {kind} file", path=path, remedy="train one with 'cropstar train', or check the path")
    with path.open("rb") as handle:
        start = handle.read(8)
    # The first eight bytes are the header's length: a pickle or a text file claims a huge one.
    if len(start) < 8 or struct.unpack("<Q", start)[0] > MAXIMUM_HEADER_BYTES:
        raise _unreadable(path, kind, "it is not a safetensors file")
    try:
        with safe_open(path, framework="numpy") as handle:
            header: dict[str, Any] = parse_json((handle.metadata() or {})[HEADER_KEY])
            found = header["kind"]
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as failure:
        raise _unreadable(path, kind, f"no header of cropstar can be read ({failure})") from None
    if found != kind:
        raise ArtifactError(f"not a {kind} file", path=path, why=f"it is a {found} file", remedy=f"give a {kind} file")
    return header


def _header_text(header: dict[str, Any]) -> str:
    return json.dumps(header, sort_keys=True, ensure_ascii=False, allow_nan=False)


def content_digest(header: dict[str, Any], tensors: Tensors) -> str:
    digest = hashlib.blake2b(digest_size=16)
    digest.update(_header_text({name: value for name, value in header.items() if name != "digest"}).encode())
    for name in sorted(tensors):
        array = tensors[name]
        digest.update(f"{name}:{array.dtype}:{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _unreadable(path: Path, kind: str, why: str) -> ArtifactError:
    return ArtifactError(f"the {kind} file cannot be used", path=path, why=why, remedy="use another or train again")
