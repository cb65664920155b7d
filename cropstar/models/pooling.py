"""Pooling of the states of all dates: the last one, their mean, or their means in bins of the season.

Each is a running sum over valid dates, so it is part of a streaming model's state. `season` averages the states within
bins of the season, by date; a dense layer over the bins then knows *when* a state was reached, which a mean forgets and
a last state may no longer remember. A bin without a valid date has the mean of the season so far: irregular dates and
clouds then look like an ordinary bin, not like a missing one.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cropstar.models.cells.cell import State
from cropstar.models.encoding import bins_in_use
from cropstar.native import available
from cropstar.native.star import BinSums
from cropstar.native.summaries import season_means
from cropstar.native.tensors import fits

YEAR = 365.25
NO_DAY = -1e6  # before the first date of a series
BINS = 12  # of a season, where the configuration names no number


class LastState(nn.Module):
    """The state after the last valid date."""

    keeps_state = False

    def features(self, outputs: Tensor, last: Tensor, valid: Tensor, days: Tensor) -> Tensor:
        """(B, H, ...) of outputs (T, B, H, ...), the state after the last date, valid (B, T, ...) and days (B, T)."""
        return last

    def by_date(self, outputs: Tensor, valid: Tensor, days: Tensor) -> Tensor:
        """The features as they were after every date, (T, B, F, ...)."""
        return outputs

    def add(self, state: State | None, output: Tensor, valid: Tensor, days: Tensor) -> State:
        """The sums after one more date: output (B, H, ...), valid (B, ...), days (B,)."""
        return ()

    def read(self, state: State, last: Tensor) -> Tensor:
        """The features of a state."""
        return last

    def initial_state(self, output: Tensor) -> State:
        return ()

    def widened(self, width: int) -> int:
        """The number of feature channels, for states of this many channels."""
        return width


class MeanState(LastState):
    """The mean of the states of all valid dates."""

    keeps_state = True

    def features(self, outputs: Tensor, last: Tensor, valid: Tensor, days: Tensor) -> Tensor:
        weight = _weights(valid, outputs)
        return (outputs * weight).sum(dim=0) / weight.sum(dim=0).clamp(min=1)

    def by_date(self, outputs: Tensor, valid: Tensor, days: Tensor) -> Tensor:
        weight = _weights(valid, outputs)
        return (outputs * weight).cumsum(dim=0) / weight.cumsum(dim=0).clamp(min=1)

    def add(self, state: State | None, output: Tensor, valid: Tensor, days: Tensor) -> State:
        weight = valid.unsqueeze(1).to(output.dtype)
        total, count = self.initial_state(output) if state is None else state
        return total + output * weight, count + weight

    def read(self, state: State, last: Tensor) -> Tensor:
        total, count = state
        return total / count.clamp(min=1)

    def initial_state(self, output: Tensor) -> State:
        return torch.zeros_like(output), torch.zeros_like(output[:, :1])


class SeasonState(LastState):
    """The means of the states within bins of the season, side by side.

    Its state is one tensor per bin, and the counts of all: a date changes only the tensor of its own bin. Series longer
    than a year have some days of the year twice: their bins count from the beginning of the series, which is one more
    channel beside the counts.
    """

    keeps_state = True
    by_kernel = True  # where there is one; see models/backends.py

    def __init__(self, start: int, length: int, bins: int = BINS) -> None:
        super().__init__()
        self.start, self.length, self.bins = start, max(length, 1), bins
        self.beyond_a_year = self.length > YEAR

    def bin_of(self, days: Tensor, first: Tensor | None = None) -> Tensor:
        """The bin of each day; days a little before or after the season belong to the first or last.

        `first`, of series longer than a year: the first day of the series that each day belongs to.
        """
        rest = YEAR if self.beyond_a_year else YEAR - self.length
        counted = days if first is None or not self.beyond_a_year else first
        counted = counted.to(torch.float64)
        since = torch.remainder(counted - (self.start - 1) + rest / 2, YEAR) - rest / 2 + (days - counted)
        place = torch.floor(since * self.bins / (self.length + 1))
        return place.clamp(0, self.bins - 1).to(torch.int64)

    def features(self, outputs: Tensor, last: Tensor, valid: Tensor, days: Tensor) -> Tensor:
        bins = self.bin_of(days, days[:, :1])
        space = outputs.shape[3:]
        if not space and self.by_kernel and available() and fits(outputs):
            places = bins.to(torch.int32).transpose(0, 1)
            return season_means(outputs, places, valid.transpose(0, 1), self.bins).flatten(1)
        chosen = nn.functional.one_hot(bins, self.bins).to(outputs.dtype)  # (B, T, n)
        if space:
            seen = valid.flatten(2).to(outputs.dtype)  # (B, T, P)
            counts = torch.einsum("btn,btp->bnp", chosen, seen).unflatten(2, space).unsqueeze(2)
            sums = torch.einsum("btn,tbf->bnf", chosen, (outputs * _weights(valid, outputs)).flatten(2))
            sums = sums.unflatten(2, outputs.shape[2:])
        else:
            chosen = chosen * valid.unsqueeze(2)
            counts = chosen.sum(dim=1).unsqueeze(2)
            sums = torch.bmm(chosen.transpose(1, 2), outputs.transpose(0, 1))
        return self._means(sums, counts)

    def by_date(self, outputs: Tensor, valid: Tensor, days: Tensor) -> Tensor:
        state: State | None = None
        pooled = []
        for t in range(outputs.shape[0]):
            state = self.add(state, outputs[t], valid[:, t], days[:, t])
            pooled.append(self.read(state, outputs[t]))
        return torch.stack(pooled)

    def add(self, state: State | None, output: Tensor, valid: Tensor, days: Tensor) -> State:
        *sums, counts = self.initial_state(output) if state is None else state
        space = (1,) * (output.dim() - 2)
        first = None
        if self.beyond_a_year:
            counts, beginning = counts[:, : self.bins], counts[:, self.bins :]
            today = days.to(output.dtype).reshape(-1, 1, *space).expand_as(beginning)
            beginning = torch.where(beginning == NO_DAY, today, beginning)
            first = beginning.flatten(1)[:, 0]
        chosen = nn.functional.one_hot(self.bin_of(days, first), self.bins)  # (B, n)
        seen = valid.unsqueeze(1).to(output.dtype)
        touched = bins_in_use(chosen)
        for number in range(self.bins):
            if touched[number]:
                inside = chosen[:, number].reshape(-1, 1, *space).to(output.dtype)
                sums[number] = sums[number] + output * (seen * inside)
        counts = counts + chosen.reshape(-1, self.bins, *space).to(output.dtype) * seen
        return (*sums, torch.cat([counts, beginning], dim=1) if self.beyond_a_year else counts)

    def places(self, state: State | None, output: Tensor, valid: Tensor, days: Tensor) -> tuple[BinSums, Tensor]:
        """Where the states of many dates of series belong, and the counts after them.

        valid and days (B, T); `output` (B, H) is shaped like the states. The sums that dates belong to are new ones,
        to be added to; the others are those of the state.
        """
        *sums, counts = self.initial_state(output) if state is None else state
        if days.stride(0) == 0:  # all series have the same dates, as in a map
            days = days[:1]
        if self.beyond_a_year:
            beginning = counts[:, self.bins :]
            beginning = torch.where(beginning == NO_DAY, days[:, :1].to(output.dtype), beginning)
            bins = self.bin_of(days, beginning)
        else:
            bins = self.bin_of(days)
        seen = valid.to(output.dtype)
        chosen = nn.functional.one_hot(bins, self.bins).to(output.dtype)  # (B or 1, T, n)
        added = seen @ chosen[0] if len(chosen) == 1 else torch.einsum("bt,btn->bn", seen, chosen)
        counts = counts[:, : self.bins] + added
        if state is not None:
            touched = set(bins.unique().tolist())
            sums = [part.clone() if number in touched else part for number, part in enumerate(sums)]
        places = bins.to(torch.int32).expand(len(valid), -1).transpose(0, 1)
        return BinSums(places, sums), torch.cat([counts, beginning], dim=1) if self.beyond_a_year else counts

    def read(self, state: State, last: Tensor) -> Tensor:
        *sums, counts = state
        counts = counts[:, : self.bins]
        return self._means(torch.stack(sums, dim=1), counts.unsqueeze(2))

    def initial_state(self, output: Tensor) -> State:
        counts = output.new_zeros(output.shape[0], self.bins + self.beyond_a_year, *output.shape[2:])
        if self.beyond_a_year:
            counts[:, self.bins :] = NO_DAY
        return (*(torch.zeros_like(output) for _ in range(self.bins)), counts)

    def widened(self, width: int) -> int:
        return self.bins * width

    def _means(self, sums: Tensor, counts: Tensor) -> Tensor:
        """The bins side by side, (B, n * H, ...), of sums (B, n, H, ...) and counts (B, n, 1, ...)."""
        total = sums.sum(dim=1, keepdim=True) / counts.sum(dim=1, keepdim=True).clamp(min=1)
        return torch.where(counts > 0, sums / counts.clamp(min=1), total).flatten(1, 2)


def _weights(valid: Tensor, outputs: Tensor) -> Tensor:
    """(B, T, ...) as (T, B, 1, ...) of the outputs' kind."""
    return valid.transpose(0, 1).unsqueeze(2).to(outputs.dtype)
