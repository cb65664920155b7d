"""Every registered cell: gradients, odd sizes, own orthogonal products, padding, and how far it looks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from cropstar.models import cells
from cropstar.models.cells.cell import CELLS, Cell, CellOptions
from cropstar.models.stack import RecurrentStack
from tests.models.references import run_reference

EVERY_CELL = pytest.mark.parametrize("name", sorted(CELLS))
BOTH_KINDS = pytest.mark.parametrize("spatial", [False, True], ids=["series", "images"])


def make(
    name: str, inputs: int, hidden: int, *, spatial: bool = False, memory: float = 20, variant: str = "paper"
) -> Cell:
    torch.manual_seed(0)
    cell = CELLS[name](inputs, hidden, spatial=spatial, options=CellOptions(variant)).double()
    cell.initialise(memory)
    return cell


def products_of(cell: Cell) -> list[nn.Linear | nn.Conv2d]:
    return [module for module in cell.modules() if isinstance(module, nn.Linear | nn.Conv2d)]


def one_date(cell: Cell, x: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
    return cell.advance(cell.project(x), state)


def test_the_package_registers_every_cell_file() -> None:
    assert set(cells.__all__) == set(CELLS)


@EVERY_CELL
@BOTH_KINDS
def test_gradients_equal_finite_differences(name: str, spatial: bool) -> None:
    """Of input, state and every parameter, in double."""
    cell = make(name, 2, 2, spatial=spatial)
    space = (2, 3) if spatial else ()
    generator = torch.Generator().manual_seed(3)

    def some(channels: int) -> Tensor:
        return torch.randn(1, channels, *space, dtype=torch.float64, generator=generator, requires_grad=True)

    names = [label for label, _ in cell.named_parameters()]
    state = [some(2) for _ in range(cell.state_parts)]

    def function(x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        before, weights = rest[: cell.state_parts], rest[cell.state_parts :]
        layer = Whole(cell)
        named = {f"cell.{label}": weight for label, weight in zip(names, weights, strict=True)}
        result: tuple[Tensor, ...] = torch.func.functional_call(layer, named, (x, *before))
        return result

    weights = [weight.detach().clone().requires_grad_() for weight in cell.parameters()]
    assert torch.autograd.gradcheck(function, (some(2), *state, *weights))


class Whole(nn.Module):
    """One date of a cell as one call, so that its weights can be exchanged."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        return one_date(self.cell, x, *state)


@EVERY_CELL
@BOTH_KINDS
@pytest.mark.parametrize(
    ("batch", "length", "inputs", "hidden", "size"),
    [(1, 1, 1, 1, 1), (1, 9, 3, 1, 2), (3, 1, 1, 4, 1), (2, 17, 5, 3, 3)],
)
def test_odd_sizes_equal_the_reference(
    name: str, spatial: bool, batch: int, length: int, inputs: int, hidden: int, size: int
) -> None:
    """Also the published `squeeze()` that breaks at batch 1: no axis may vanish."""
    for variant in CELLS[name].variants:
        cell = make(name, inputs, hidden, spatial=spatial, variant=variant)
        space = (size, size + 2) if spatial else ()
        x = torch.randn(batch, length, inputs, *space, dtype=torch.float64)
        valid = torch.rand(batch, length, *space) > 0.3
        fast, state = RecurrentStack([cell])(x, valid, torch.zeros(batch, length))
        naive, last = run_reference(cell, x, valid)
        assert fast.shape == (length, batch, hidden, *space)
        torch.testing.assert_close(fast, naive, rtol=0, atol=1e-12)
        for quick, slow in zip(state[0], last, strict=True):
            torch.testing.assert_close(quick, slow, rtol=0, atol=1e-12)


@EVERY_CELL
@BOTH_KINDS
def test_each_product_is_orthogonal_by_itself(name: str, spatial: bool) -> None:
    """A concatenation made orthogonal would leave every block with singular values below one."""
    products = products_of(make(name, 8, 8, spatial=spatial))
    assert products
    for layer in products:
        singular = torch.linalg.svdvals(layer.weight.detach().flatten(1))
        torch.testing.assert_close(singular, torch.ones_like(singular), rtol=0, atol=1e-10)
        assert layer.weight.shape[:2] == (8, 8)
    stacked = torch.cat([layer.weight.detach().flatten(1) for layer in products])
    if len(products) > 1 and not spatial:
        assert float(torch.linalg.svdvals(stacked).max()) > 1.05  # as one kernel they are not


@EVERY_CELL
def test_initialisation_depends_on_the_seed_alone(name: str) -> None:
    first, second = make(name, 4, 6), make(name, 4, 6)
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)


@EVERY_CELL
def test_layers_do_not_share_a_cell(name: str) -> None:
    cell = make(name, 4, 4)
    with pytest.raises(ValueError, match="own"):
        RecurrentStack([cell, cell])


@EVERY_CELL
def test_padded_frames_do_not_enter_the_state(name: str) -> None:
    """A short series padded in a batch ends with the state that it has alone, whatever the padding holds."""
    cell = make(name, 3, 4)
    stack = RecurrentStack([cell])
    x = torch.randn(1, 5, 3, dtype=torch.float64)
    _, alone = stack(x, torch.ones(1, 5, dtype=torch.bool), torch.zeros(1, 5))
    padded = torch.cat([x, 100 * torch.ones(1, 4, 3, dtype=torch.float64)], dim=1)
    valid = torch.arange(9).unsqueeze(0) < 5
    _, among = stack(padded, valid, torch.zeros(1, 9))
    _, entered = stack(padded, torch.ones_like(valid), torch.zeros(1, 9))
    for expected, got, wrong in zip(alone[0], among[0], entered[0], strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)
        assert not torch.allclose(wrong, expected, atol=1e-3)


@pytest.mark.parametrize(("name", "variant"), [(name, each) for name in sorted(CELLS) for each in CELLS[name].variants])
def test_reach_is_how_far_one_date_looks(name: str, variant: str) -> None:
    """A pixel `input_reach` away is seen, and one further is not; the state alike. Prediction's margins rest on it."""
    cell = make(name, 3, 4, spatial=True, variant=variant)
    size, middle = 9, 4
    x = torch.randn(1, 3, size, size, dtype=torch.float64, requires_grad=True)
    state = [torch.rand(1, 4, size, size, dtype=torch.float64, requires_grad=True) for _ in range(cell.state_parts)]
    one_date(cell, x, *state)[0][0, :, middle, middle].sum().backward()

    def furthest(tensor: Tensor) -> int:
        assert tensor.grad is not None
        return int((tensor.grad.abs().sum(dim=(0, 1)).nonzero() - middle).abs().max())

    assert furthest(x) == cell.input_reach
    assert max(furthest(part) for part in state) == cell.state_reach
