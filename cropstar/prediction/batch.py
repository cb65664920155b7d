"""Several maps in one go: one input that cannot be mapped does not keep the others from it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cropstar.errors import CropstarError, Interrupted, PartialResult, ResourceError, UsageError, from_os_error
from cropstar.prediction.inputs import MapInput
from cropstar.prediction.options import MapResult, PredictOptions
from cropstar.prediction.predict import predict, predictor_of
from cropstar.runtime import event, logger


class Batch:
    """What became of the inputs so far."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._results: list[MapResult] = []
        self._failures: list[CropstarError] = []

    def done(self, result: MapResult) -> None:
        self._results.append(result)
        if result.finished:
            event(f"map     {result.raster}", map=str(result.raster))
            event(f"picture {result.picture}", picture=str(result.picture))

    def failed(self, failure: CropstarError | OSError, turn: int) -> None:
        """Goes on, unless it concerns all inputs."""
        error = from_os_error(failure) if isinstance(failure, OSError) else failure
        if self._count == 1 or isinstance(error, (Interrupted, ResourceError)):
            raise failure
        if isinstance(error, UsageError) and not self._results and not self._failures and turn == 0:
            raise failure  # the options themselves, most likely
        logger.warning("%s", error)
        self._failures.append(error)

    def conclude(self) -> list[MapResult]:
        if self._failures and not self._results:
            raise self._failures[0]
        if self._failures:
            first = self._failures[0]
            why = f"{len(self._failures)} of {self._count} inputs could not be mapped, first: {first.what}"
            remedy = "mend them and run the same command again"
            raise PartialResult("not all maps were made", path=first.path, why=why, remedy=remedy)
        return self._results


def predict_all(inputs: Sequence[MapInput], outputs: Sequence[Path], options: PredictOptions) -> list[MapResult]:
    """A map of every input. A wrong option or a full disk concerns all of them and ends it at once."""
    batch = Batch(len(inputs))
    if options.cluster is not None:
        from cropstar.prediction.cluster import predict_on_cluster

        predict_on_cluster(inputs, outputs, options, options.cluster, batch)
        return batch.conclude()
    predictor = predictor_of(options)
    for turn, (source, output) in enumerate(zip(inputs, outputs, strict=True)):
        try:
            result = predict(source, output, options, predictor=predictor, turn=turn)
        except (CropstarError, OSError) as failure:
            batch.failed(failure, turn)
            continue
        batch.done(result)
    return batch.conclude()
