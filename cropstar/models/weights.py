"""Weights as plain arrays, in and out of a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

from cropstar.config import ModelConfig
from cropstar.errors import ArtifactError, CropstarError
from cropstar.models.contract import Classifier
from cropstar.models.ensemble import build_ensemble
from cropstar.models.registry import Shape
from cropstar.models.zoo import build_model


def weights_of(model: nn.Module) -> dict[str, NDArray[Any]]:
    return {name: tensor.detach().cpu().numpy() for name, tensor in model.state_dict().items()}


def load_weights(model: nn.Module, arrays: dict[str, NDArray[Any]], path: Path) -> None:
    try:
        model.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
    except RuntimeError as failure:
        raise ArtifactError(
            "the weights do not fit the model", path=path, why=str(failure), remedy="train again"
        ) from None


def restore_model(
    config: dict[str, Any], shape: Mapping[str, Any], arrays: dict[str, NDArray[Any]], path: Path
) -> Classifier:
    """Build the model, or the ensemble, that a file describes and give it its weights."""
    try:
        kinds = [ModelConfig.model_validate(own) for own in config.get("members", [config])]
        given = Shape.from_json(shape)
        model = build_ensemble(kinds, given) if "members" in config else build_model(kinds[0], given)
    except CropstarError:
        raise
    except (TypeError, ValueError) as failure:
        why = f"its description cannot be understood ({failure})"
        raise ArtifactError("the model file cannot be used", path=path, why=why, remedy="update cropstar") from None
    load_weights(model, arrays, path)
    return model.eval()
