"""`cropstar export`: a model file as ONNX, with what is needed to feed it rightly in its metadata."""

from __future__ import annotations

import json
from pathlib import Path

from cropstar import __version__
from cropstar.config import RegularConfig
from cropstar.datasets.transforms import count_periods
from cropstar.errors import UsageError
from cropstar.models.export import export_forward, export_step
from cropstar.models.zoo import restore_model
from cropstar.prediction.predictor import temperature_of
from cropstar.runtime import event
from cropstar.store.files import atomic_path
from cropstar.store.model_file import ModelCard, read_model


def export_model(path: Path, output: Path, *, dates: int | None = None, overwrite: bool = False) -> list[Path]:
    """Write the model as `output`, and beside it its step where it has one; returns what was written."""
    stepping = output.with_name(f"{output.stem}-step{output.suffix}")
    if output.suffix.lower() != ".onnx":
        raise UsageError("unknown type of output file", path=output, remedy="give a name that ends in .onnx")
    for target in (output, stepping):
        if target.exists() and (not overwrite or target.is_dir()):
            raise UsageError("the output exists", path=target, remedy="choose another name, or give --overwrite")
    card, weights, digest = read_model(path)
    model = restore_model(card.model, card.shape, weights, path)
    metadata = describe(card, digest, path)
    bands = len(card.fingerprint.bands)
    contents = {output: export_forward(model, bands, dates or _length(card), metadata)}
    if model.streaming:
        contents[stepping] = export_step(model, bands, metadata)
    for target, content in contents.items():
        with atomic_path(target) as partial:
            partial.write_bytes(content)
        event(f"onnx    {target}", onnx=str(target))
    if not model.streaming:
        stepping.unlink(missing_ok=True)  # of another model; --overwrite was given
    return list(contents)


def describe(card: ModelCard, digest: str, path: Path) -> dict[str, str]:
    """Texts for the file: `x` is (reflectance - mean) / deviation of the bands in this order."""
    fingerprint = card.fingerprint.to_json()
    facts = {
        "bands": fingerprint["bands"],
        "classes": fingerprint["classes"],
        "season": fingerprint["season"],
        "resolution": fingerprint["resolution"],
        "normalisation": card.normalisation.to_json(),
        "regular": card.provenance.get("regular", {}),
        "temperature": temperature_of(card, path),
    }
    texts = {f"cropstar.{name}": json.dumps(fact, sort_keys=True, ensure_ascii=False) for name, fact in facts.items()}
    note = (
        "x is (reflectance - mean) / deviation, bands in the order given; valid is false under cloud and nodata; "
        "days are days since 1970-01-01; probabilities are softmax(scores / temperature)"
    )
    return {**texts, "cropstar.version": __version__, "cropstar.model": digest, "cropstar.usage": note}


def _length(card: ModelCard) -> int:
    """How many dates the model was trained to see."""
    every = RegularConfig.model_validate(card.provenance.get("regular", {})).every
    return int(card.shape["length"]) if every is None else count_periods(card.fingerprint.season, every)
