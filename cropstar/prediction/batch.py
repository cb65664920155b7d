"""Several maps in one go: one input that cannot be mapped does not keep the others from it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cropstar.errors import CropstarError, Interrupted, PartialResult, ResourceError, UsageError, from_os_error
from cropstar.logs import event, logger
from cropstar.prediction.inputs import MapInput
from cropstar.prediction.predict import MapResult, PredictOptions, predict
from cropstar.prediction.predictor import Predictor


def predict_all(inputs: Sequence[MapInput], outputs: Sequence[Path], options: PredictOptions) -> list[MapResult]:
    """A map of every input. A wrong option or a full disk concerns all of them and ends it at once."""
    predictor = Predictor(options.model, options.device, margin=options.halo)
    results: list[MapResult] = []
    failures: list[CropstarError] = []
    for turn, (source, output) in enumerate(zip(inputs, outputs, strict=True)):
        try:
            result = predict(source, output, options, predictor=predictor, turn=turn)
        except (CropstarError, OSError) as failure:
            error = from_os_error(failure) if isinstance(failure, OSError) else failure
            if len(inputs) == 1 or isinstance(error, (Interrupted, ResourceError)):
                raise
            if isinstance(error, UsageError) and not results and not failures and turn == 0:
                raise  # the options themselves, most likely
            logger.warning("%s", error)
            failures.append(error)
            continue
        results.append(result)
        if result.finished:
            event(f"map     {result.raster}", map=str(result.raster))
            event(f"picture {result.picture}", picture=str(result.picture))
    if failures and not results:
        raise failures[0]
    if failures:
        why = f"{len(failures)} of {len(inputs)} inputs could not be mapped, first: {failures[0].what}"
        raise PartialResult(
            "not all maps were made", path=failures[0].path, why=why, remedy="mend them and run the same command again"
        )
    return results
