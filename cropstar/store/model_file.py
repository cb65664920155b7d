"""The model file: weights and all that is needed to use them rightly, in one safetensors file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cropstar.errors import ArtifactError
from cropstar.store.fingerprint import Fingerprint
from cropstar.store.normalisation import Normalisation
from cropstar.store.tensors import Tensors, read_tensors, write_tensors

KIND = "model"


@dataclass(frozen=True)
class ModelCard:
    """What a model file says of itself beside its weights."""

    model: dict[str, Any]  # the model's section of the configuration
    shape: dict[str, Any]  # bands, classes, dates of a season
    fingerprint: Fingerprint
    normalisation: Normalisation
    provenance: dict[str, Any]
    calibration: dict[str, Any] | None = None  # what makes scores into confidence; None of a model still in training


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
    return write_tensors(path, KIND, header, tensors)


def read_model(path: Path) -> tuple[ModelCard, Tensors, str]:
    """The card, the weights, and the digest that identifies the model."""
    header, tensors = read_tensors(path, KIND)
    return _card(header, path), tensors, str(header["digest"])


def _card(header: dict[str, Any], path: Path) -> ModelCard:
    try:
        return ModelCard(
            dict(header["model"]),
            dict(header["shape"]),
            Fingerprint.from_json(header["fingerprint"], path),
            Normalisation.from_json(header["normalisation"]),
            dict(header["provenance"]),
            header.get("calibration"),
        )
    except (KeyError, TypeError, ValueError) as failure:
        why = f"its header cannot be understood ({failure})"
        raise ArtifactError("the model file cannot be used", path=path, why=why, remedy="train again") from None
