"""What a prediction is asked for, what of it is refused at once, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cropstar.cluster import ClusterChoice
from cropstar.errors import UsageError
from cropstar.prediction.blocks import folders_beside
from cropstar.prediction.inputs import MapInput
from cropstar.prediction.planning import MEMORY, parse_memory
from cropstar.prediction.shards import Shard
from cropstar.prediction.wanted import Files, Wanted


@dataclass(frozen=True)
class PredictOptions:
    model: Path
    device: torch.device
    window: int | None = None  # pixels a side; None takes what the memory allows
    any_dates: bool = False
    overwrite: bool = False
    memory: int = parse_memory(MEMORY)
    halo: int | None = None  # a margin below the model's own: faster, and not exact
    shard: Shard | None = None
    wanted: Wanted = field(default_factory=Wanted)
    given: Mapping[str, Any] = field(default_factory=dict)  # how the input is to be read
    state: Path | None = None  # where the hidden state after the last date goes
    cluster: ClusterChoice | None = None  # whose workers compute the blocks
    backend: str = "auto"  # see models/backends.py
    half: bool = False  # products in half precision

    @property
    def shared(self) -> bool:
        """Whether it is one call of several for the same maps: those that are there already are done."""
        return self.shard is not None or self.cluster is not None


@dataclass(frozen=True)
class MapResult:
    raster: Path
    picture: Path
    pixels: NDArray[np.int64]  # of each class
    unseen: int  # pixels without a valid date
    finished: bool = True  # false while other shards have blocks to do


def require_place(source: MapInput, output: Path, options: PredictOptions) -> None:
    """What can be refused before the model and the series are opened."""
    files = Files(output, options.wanted, state=options.state)
    require_apart([output, *([options.state] if options.state else [])], [source.path])
    # Blocks beside it may be those of this job, killed while it put the map together: `run` looks at it again.
    files.require_ready(overwrite=options.overwrite or bool(folders_beside(output)) or options.shared)


def require_apart(outputs: Sequence[Path], inputs: Sequence[Path]) -> None:
    """Refuse to write over what is read, and two things to one place."""
    for path in outputs:
        if path.exists() and any(other.exists() and path.samefile(other) for other in inputs):
            raise UsageError("the output is the input", path=path, remedy="choose another output with -o")
    if len({path.resolve() for path in outputs}) < len(outputs):
        raise UsageError("map and state have one name", path=outputs[0], remedy="give each its own")


def require_half_possible(options: PredictOptions) -> None:
    if options.half and (options.state is not None or options.wanted.stable is not None):
        why = "later updates start from the state, which must be exact"
        raise UsageError("--half with --state or --every-date", why=why, remedy="leave one of them out")
    if options.half and options.backend in ("native", "onnx"):
        why = "it computes in float32"
        raise UsageError(f"--half with --backend {options.backend}", why=why, remedy="leave one of them out")
