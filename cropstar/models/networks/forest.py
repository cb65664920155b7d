"""`rf`: a random forest on gap-filled series, the baseline to beat.

Every band is filled linearly to a day in ten of the season, from the valid dates alone; with each day goes the distance
to the nearest valid date. The trees are scikit-learn's, 300 of them; a trained forest is asked with numpy alone.

It has no weights that a gradient could change: it is grown, not trained in epochs. Its scores are logarithms of
probabilities, so that their softmax gives the probabilities back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cropstar.config import ModelConfig
from cropstar.errors import UsageError
from cropstar.models.contract import Classifier
from cropstar.models.networks.forest_features import DayGrid, features_of
from cropstar.models.networks.forest_trees import Trees
from cropstar.models.networks.options import refuse_others
from cropstar.models.registry import Shape

NAME = "rf"
SERIES_AT_ONCE = 2048
LEAST = 1e-7  # instead of a probability of zero, whose logarithm is no number to calculate with
TREES = "trees."
NAMES = ("season", "means", *(f"{TREES}{name}" for name in Trees.__dataclass_fields__))


class Forest(Classifier):
    """Its state is not made of parameters but of arrays whose sizes only the grown forest knows."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.bands, self.classes = shape.bands, shape.classes
        self._grown: tuple[DayGrid, NDArray[np.float32], Trees] | None = None

    def become(self, grid: DayGrid, means: NDArray[np.float32], trees: Trees) -> None:
        """Take over a grown forest; a ValueError says why it cannot be used."""
        problem = grid.problem()
        if problem is None and (means.dtype != np.float32 or means.shape != (len(grid.offsets) * self.bands,)):
            problem = f"its means are not those of {self.bands} bands and {len(grid.offsets)} days"
        if problem is None and not np.isfinite(means).all():
            problem = "one of its means is no number"
        problem = problem or trees.problem(grid.features(self.bands), self.classes)
        if problem is not None:
            raise ValueError(problem)
        self._grown = grid, means, trees

    def forward(self, x: Tensor, valid: Tensor, days: Tensor) -> Tensor:
        values, clear = x.detach().cpu().numpy().astype(np.float32, copy=False), valid.cpu().numpy()
        dates = days.cpu().numpy().astype(np.int64)
        scores = np.empty((len(values), self.classes), dtype=np.float32)
        for start in range(0, len(values), SERIES_AT_ONCE):
            some = slice(start, start + SERIES_AT_ONCE)
            scores[some] = np.log(np.maximum(self.probabilities(values[some], clear[some], dates[some]), LEAST))
        return torch.from_numpy(scores).to(x.device)

    def probabilities(
        self, x: NDArray[np.float32], valid: NDArray[np.bool_], days: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        if self._grown is None:
            raise RuntimeError("the forest is not grown yet")
        grid, means, trees = self._grown
        return trees.probabilities(features_of(x, valid, days, grid, means))

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        if self._grown is None:
            return
        grid, means, trees = self._grown
        arrays = {"season": np.array([grid.start, grid.length, grid.every], dtype=np.int64), "means": means}
        arrays |= {f"{TREES}{name}": array for name, array in trees.arrays().items()}
        destination |= {f"{prefix}{name}": torch.from_numpy(array) for name, array in arrays.items()}

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Sizes are those of the file; what does not make a forest is among the errors of `load_state_dict`."""
        wanted = [f"{prefix}{name}" for name in NAMES]
        missing = [name for name in wanted if name not in state_dict]
        missing_keys += missing
        unexpected_keys += [name for name in state_dict if name.startswith(prefix) and name not in wanted]
        if missing:
            return
        season, means, *trees = (state_dict[name].detach().cpu().numpy() for name in wanted)
        if season.shape != (3,) or season.dtype != np.int64:
            error_msgs.append("its season cannot be read")
            return
        try:
            self.become(DayGrid(*season.tolist()), means, Trees(*trees))
        except ValueError as failure:
            error_msgs.append(str(failure))


def build(config: ModelConfig, shape: Shape) -> Forest:
    refuse_others(config)
    if config.day_encoding == "thermal":
        raise UsageError(
            f"'{NAME}' has no use for model.day_encoding thermal",
            why="degree-days are a band to it like any other",
            remedy="leave it out",
        )
    return Forest(shape)
