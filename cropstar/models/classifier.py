"""The recurrent classifier: day channels, stem, recurrent stack, pooling and head."""

from __future__ import annotations

import torch
from torch import Tensor

from cropstar.models.cells.cell import State
from cropstar.models.contract import Classifier, ModelState
from cropstar.models.encoding import is_complete, most_valid, with_days
from cropstar.models.heads import Head
from cropstar.models.pooling import LastState, SeasonState
from cropstar.models.stack import BidirectionalStack, RecurrentStack, StackState
from cropstar.models.stem import Stem, valid_first
from cropstar.native.tensors import is_traced

ROWS = 1024  # series whose features are read at once: those of many bins stay in the cache


class RecurrentClassifier(Classifier):
    """Scores from the pooled states of the last layer.

    The streaming state has an entry for the stem's buffers (where there is a stem), one per layer, and one for the
    pooled sums (where the pooling has any).
    """

    def __init__(
        self,
        stack: RecurrentStack | BidirectionalStack,
        head: Head,
        day_encoding: str,
        pool: LastState | None = None,
        thermal: int | None = None,
        stem: Stem | None = None,
    ) -> None:
        super().__init__()
        self.stem = stem
        self.stack = stack
        self.pool = pool or LastState()
        self.head = head
        self.day_encoding = day_encoding
        self.thermal = thermal
        self.spatial = stack.layers()[0].spatial
        self.streaming = stack.streaming
        self.makes_maps = head.makes_maps

    def radius(self, length: int) -> int:
        return self.stack.radius(length) + self.head.radius if self.spatial and self.makes_maps else 0

    def forward(self, x: Tensor, valid: Tensor, days: Tensor) -> Tensor:
        x, valid, days, in_front = self._observed(x, valid, days)
        outputs, state = self.stack(self._entering(x, valid, days, in_front=in_front), valid, days)
        return self._scores(self.pool.features(outputs, state[-1][0], valid, days))

    def by_date(self, x: Tensor, valid: Tensor, days: Tensor) -> Tensor:
        if not self.streaming:
            return super().by_date(x, valid, days)
        outputs, _ = self.stack(self._entering(x, valid, days), valid, days)
        features = self.pool.by_date(outputs, valid, days)
        scores = self._scores(features.flatten(0, 1))  # (T*B, K, ...)
        dated: Tensor = scores.unflatten(0, outputs.shape[:2])
        return dated.transpose(0, 1)

    def step(self, x: Tensor, valid: Tensor, days: Tensor, state: ModelState | None) -> ModelState:
        """x (B, C[, H, W]), valid (B[, H, W]), days (B,)."""
        if not isinstance(self.stack, RecurrentStack):
            return super().step(x, valid, days, state)
        if not self.spatial and not is_traced():  # by one way alone: another one has other last bits
            return self.advance(x.unsqueeze(1), valid.unsqueeze(1), days.unsqueeze(1), state)
        stem, layers, pooled = self._apart(state)
        prepared = self.prepare(x.unsqueeze(1), valid.unsqueeze(1), days.unsqueeze(1)).squeeze(1)
        if self.stem is not None:
            prepared, stem = self.stem.step(prepared, valid, stem)
        layers = self.stack.step(prepared, valid, days, layers)
        if self.pool.keeps_state:
            pooled = self.pool.add(pooled, layers[-1][0], valid, days)
        return self._together(stem, layers, pooled)

    def advance(self, x: Tensor, valid: Tensor, days: Tensor, state: ModelState | None = None) -> ModelState:
        """Whole sequences of series go to the stack at once; of images only one date is held at a time."""
        if self.spatial or not isinstance(self.stack, RecurrentStack):
            return super().advance(x, valid, days, state)
        stem, layers, pooled = self._apart(state)
        prepared = self.prepare(x, valid, days)
        known = self._by_kernel(prepared, valid, days, stem, layers, pooled)
        if known is not None:
            return known
        if self.stem is not None:
            prepared, stem = self.stem.follow(prepared, valid, stem)
        if not self.pool.keeps_state:
            return self._together(stem, self.stack.advance(prepared, valid, days, layers), pooled)
        outputs, layers = self.stack.follow(prepared, valid, days, layers)
        for t in range(x.shape[1]):
            pooled = self.pool.add(pooled, outputs[t], valid[:, t], days[:, t])
        return self._together(stem, layers, pooled)

    def _by_kernel(
        self,
        x: Tensor,
        valid: Tensor,
        days: Tensor,
        stem: State | None,
        layers: StackState | None,
        pooled: State | None,
    ) -> ModelState | None:
        """Stem, layers and sums of bins in one go, date after date; None where there is no kernel for that."""
        assert isinstance(self.stack, RecurrentStack)
        windows = [] if self.stem is None else self.stem.windows(x, stem)
        season = self.pool if isinstance(self.pool, SeasonState) else None
        if windows is None or (self.pool.keeps_state and season is None) or is_traced():
            return None
        sums, counts = None, None
        if season is not None:
            sums, counts = season.places(pooled, x.new_empty(len(x), self.stack.width), valid, days)
        found = self.stack.by_kernel(x, valid, layers, windows, sums)
        if found is None:
            return None
        after, buffers = found
        if sums is not None and counts is not None:
            pooled = (*sums.sums, counts)
        return self._together(buffers if self.stem is not None else None, after, pooled)

    def classify(self, state: ModelState) -> Tensor:
        _, layers, pooled = self._apart(state)
        assert layers is not None
        last = layers[-1][0]
        if pooled is None or self.spatial or len(last) <= ROWS or is_traced():
            return self._scores(self.pool.read(pooled or (), last))
        chunks = zip(*(part.split(ROWS) for part in (last, *pooled)), strict=True)
        return torch.cat([self._scores(self.pool.read(tuple(sums), own)) for own, *sums in chunks])

    def may_round(self, state: ModelState) -> list[bool]:
        parts = super().may_round(state)
        return [*parts[:-1], False] if self.pool.keeps_state else parts  # counts are the last of pooled parts

    def hidden(self, state: ModelState) -> list[Tensor]:
        """The output of each layer (B, H, ...) in a streaming state."""
        _, layers, _ = self._apart(state)
        assert layers is not None
        return [layer[0] for layer in layers]

    def initial_state(self, like: Tensor) -> ModelState:
        """The state before the first date, for a batch shaped like one date's input."""
        layers = tuple(cell.initial_state(like) for cell in self.stack.layers())
        stem = None if self.stem is None else self.stem.initial_state(self._channels(like))
        return self._together(stem, layers, self.pool.initial_state(layers[-1][0]) or None)

    def _apart(self, state: ModelState | None) -> tuple[State | None, StackState | None, State | None]:
        """The parts of a state that belong to the stem, the layers and the pooling."""
        if state is None:
            return None, None, None
        first, last = int(self.stem is not None), len(state) - int(self.pool.keeps_state)
        return (state[0] if first else None), state[first:last], (state[last] if last < len(state) else None)

    def _together(self, stem: State | None, layers: StackState, pooled: State | None) -> ModelState:
        return (*(() if stem is None else (stem,)), *layers, *(() if pooled is None else (pooled,)))

    def _scores(self, features: Tensor) -> Tensor:
        scores: Tensor = self.head(features)
        return scores

    def _observed(self, x: Tensor, valid: Tensor, days: Tensor) -> tuple[Tensor, Tensor, Tensor, bool]:
        """Series for a stem: their valid observations moved to the front, where masked dates are then left out.

        A masked date changes no state, so that nothing is lost; the stem has no more sorting to do.
        """
        if self.stem is None or self.spatial or is_traced() or is_complete(valid):
            return x, valid, days, False
        order = valid_first(valid)[:, : most_valid(valid)]
        if isinstance(self.pool, SeasonState) and self.pool.beyond_a_year:
            return x, valid, days, False  # whose bins count from the first date, valid or not
        return (
            x.gather(1, order.unsqueeze(2).expand(-1, -1, x.shape[2])),
            valid.gather(1, order),
            days.gather(1, order),
            True,
        )

    def _entering(self, x: Tensor, valid: Tensor, days: Tensor, *, in_front: bool = False) -> Tensor:
        """The input of the lowest recurrent layer for all dates."""
        prepared = self.prepare(x, valid, days)
        return prepared if self.stem is None else self.stem(prepared, valid, in_front=in_front)

    def prepare(self, x: Tensor, valid: Tensor, days: Tensor) -> Tensor:
        """Day channels, and zeros under the mask: neighbours of a cloudy pixel must not see the cloud.

        A masked pixel then looks to a convolution just like one beyond the raster's edge.
        """
        x = with_days(x, days, self.day_encoding, self.thermal)
        return torch.where(valid.unsqueeze(2), x, x.new_zeros(()))

    def _channels(self, like: Tensor) -> Tensor:
        """A tensor with as many channels as the stem reads, shaped like one date's input otherwise."""
        assert self.stem is not None
        return like.new_zeros(like.shape[0], self.stem.parts()[0].inputs, *like.shape[2:])
