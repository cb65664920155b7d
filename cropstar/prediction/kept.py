"""What a prediction keeps of a window beside its map: the state, and the classes of every date."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cropstar.errors import ArtifactError, UsageError
from cropstar.geo.windows import Window
from cropstar.prediction.every_date import DATED
from cropstar.prediction.pipeline import AHEAD
from cropstar.prediction.predictor import Predictor
from cropstar.prediction.season import Advanced, Layout, layout_of, require_streaming
from cropstar.prediction.season_card import SeasonCard, state_bytes
from cropstar.prediction.season_file import SeasonWriter
from cropstar.prediction.wanted import Wanted
from cropstar.sources.base import Series
from cropstar.store.files import atomic_path

WRITTEN = AHEAD + 2  # windows at a time: computed, waiting and being written
COUNTS = "counts"
ENDING = ".state"  # not that of a block


@dataclass(frozen=True)
class Kept:
    stable: float | None
    layout: Layout | None  # of the state, where it is kept

    @classmethod
    def of(cls, wanted: Wanted, state: Path | None, predictor: Predictor) -> Kept:
        """Refuses models that cannot, before the input is opened."""
        if wanted.stable is not None:
            require_streaming(predictor, "--every-date")
            if wanted.smoothing is not None:
                why = "maps of single dates are not smoothed"
                raise UsageError("--every-date with --smooth", why=why, remedy="leave one of them out")
        if state is None:
            return cls(wanted.stable, None)
        require_streaming(predictor, "--state")
        return cls(wanted.stable, layout_of(predictor.model, len(predictor.card.fingerprint.bands)))

    def require_exact(self, predictor: Predictor, series: Series) -> None:
        """A state with seams would carry them through the season."""
        if self.layout is not None and predictor.halo(series) < predictor.exact_halo(series):
            why = f"a state needs the exact margin of {predictor.exact_halo(series)} pixels"
            raise UsageError("--state with a smaller --halo", why=why, remedy="leave --halo out")

    @property
    def nothing(self) -> bool:
        return self.stable is None and self.layout is None

    @property
    def names(self) -> list[str]:
        """What tells blocks apart."""
        dated = [] if self.stable is None else [f"{DATED} {self.stable!r}"]
        return dated + ([] if self.layout is None else ["state"])

    def bytes_per_pixel(self, dates: int) -> int:
        classes = 0 if self.stable is None else (dates + 2) * WRITTEN + 2 * dates  # and the counts of valid dates
        return classes + (0 if self.layout is None else state_bytes(self.layout) * WRITTEN)


def new_card(predictor: Predictor, series: Series, output: Path, given: Mapping[str, Any]) -> SeasonCard:
    """What a state says of itself after a first prediction."""
    return SeasonCard(
        predictor.digest,
        predictor.path.resolve(),
        predictor.card.fingerprint,
        series.grid,
        series.dates,
        layout_of(predictor.model, len(predictor.card.fingerprint.bands)),
        predictor.model.spatial,
        output.resolve(),
        series.scale,
        series.offset,
        {"clear": list(given["clear"])} if "clear" in given else {},
    )


class StateBlocks:
    """The states of finished blocks, until all of them are there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, window: Window, found: Advanced) -> None:
        arrays = {str(number): part for number, part in enumerate(found.state)}
        # Two workers of a cluster may come to the same block: each writes a file of its own.
        with atomic_path(self._path(window), flush=False) as partial, partial.open("wb") as handle:
            np.savez(handle, **{COUNTS: found.counts}, **arrays)  # type: ignore[arg-type]  # of numpy's stubs

    def gather(self, windows: Sequence[Window], writer: SeasonWriter) -> None:
        """All of them into one file. One that is damaged goes with its block, so that the next run makes both anew."""
        for window in windows:
            path = self._path(window)
            try:
                with np.load(path, allow_pickle=False) as found:
                    parts = [found[str(number)] for number in range(len(found.files) - 1)]
                    counts = found[COUNTS]
                if counts.shape != (window.height, window.width):
                    raise ValueError("a state of another shape")
            except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as failure:
                path.with_suffix(".npz").unlink(missing_ok=True)
                path.unlink(missing_ok=True)
                remedy = "run the same command again: it makes the block anew"
                raise ArtifactError("a finished block is damaged", path=path, why=str(failure), remedy=remedy) from None
            writer.write(window, counts, parts)

    def _path(self, window: Window) -> Path:
        return self._folder / f"{window.top:08d}-{window.left:08d}{ENDING}"
