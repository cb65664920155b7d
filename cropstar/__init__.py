"""cropstar: crop maps from Sentinel-2 time series with the STAR recurrent cell.

    import cropstar

    store = cropstar.ingest("tile.tif", parcels="parcels.gpkg")
    run = cropstar.train(store=store, model="convstar")
    maps = cropstar.predict("tile.tif", model=run)

What is imported here is loaded when it is first used: `import cropstar` itself takes neither torch nor GDAL.
"""

from __future__ import annotations

from cropstar.errors import (
    ArtifactError,
    CropstarError,
    InputError,
    Interrupted,
    MismatchError,
    PartialResult,
    ResourceError,
    UsageError,
)

TYPE_CHECKING = False  # as typing has it, which takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any

    from cropstar.api.commands import (
        EvaluationResult,
        MapProduct,
        TableProduct,
        TrainingResult,
        evaluate,
        ingest,
        predict,
        train,
        update,
    )
    from cropstar.api.data import SceneView, StoreView, open_store
    from cropstar.api.label_check import LabelCheck, check
    from cropstar.api.model import CropModel, load_model

__version__ = "0.2.0"

__all__ = [
    "ArtifactError",
    "CropModel",
    "CropstarError",
    "EvaluationResult",
    "InputError",
    "Interrupted",
    "LabelCheck",
    "MapProduct",
    "MismatchError",
    "PartialResult",
    "ResourceError",
    "SceneView",
    "StoreView",
    "TableProduct",
    "TrainingResult",
    "UsageError",
    "__version__",
    "check",
    "evaluate",
    "ingest",
    "load_model",
    "open_store",
    "predict",
    "train",
    "update",
]

_MODULES = {
    **dict.fromkeys(("LabelCheck", "check"), "cropstar.api.label_check"),
    **dict.fromkeys(("CropModel", "load_model"), "cropstar.api.model"),
    **dict.fromkeys(("SceneView", "StoreView", "open_store"), "cropstar.api.data"),
    **dict.fromkeys(
        (
            *("EvaluationResult", "MapProduct", "TableProduct", "TrainingResult"),
            *("evaluate", "ingest", "predict", "train", "update"),
        ),
        "cropstar.api.commands",
    ),
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'cropstar' has no attribute '{name}'")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
