"""What every recurrent cell offers to the stack."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn

from cropstar.registry import Registry

State = tuple[Tensor, ...]  # the first part is the cell's output
Projected = tuple[Tensor, ...]


class Cell(nn.Module, ABC):
    """One layer's recurrence, split into what can be computed for all dates at once and what cannot.

    Tensors are (N, C) for series and (N, C, H, W) for images.
    """

    state_parts = 1

    def __init__(self, inputs: int, hidden: int, *, spatial: bool) -> None:
        super().__init__()
        self.inputs = inputs
        self.hidden = hidden
        self.spatial = spatial

    @abstractmethod
    def initialise(self, memory: float) -> None:
        """Set new weights; gates get time scales between one date and `memory` dates."""

    @abstractmethod
    def project(self, x: Tensor) -> Projected:
        """Everything that needs no earlier state; called once for all dates."""

    @abstractmethod
    def advance(self, projected: Projected, state: State) -> State:
        """One date onwards."""

    def initial_state(self, like: Tensor) -> State:
        """Zeros for a batch shaped like one date's input."""
        zeros = like.new_zeros(like.shape[0], self.hidden, *like.shape[2:])
        return (zeros,) * self.state_parts


CELLS: Registry[type[Cell]] = Registry("cell")
