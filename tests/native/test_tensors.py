"""How tensors reach the kernels: packed weights, devices, memory, and what is kept for gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cropstar.models.cells.star import StarCell
from cropstar.models.stack import RecurrentStack
from cropstar.native import available, library, star, why_not
from cropstar.native.convolution import convolution_step, pack_convolution, tiles_begin
from cropstar.native.star import pack_star, star_forward
from cropstar.native.tensors import Packing, Weights
from tests.native.references import make_cell, weights_of

needs_kernels = pytest.mark.skipif(not available(), reason=why_not())


@needs_kernels
def test_weights_packed_for_another_instruction_set_are_refused() -> None:
    names = library.library().instruction_sets()
    if len(names) < 2:
        pytest.skip("one instruction set alone")
    with library.using(names[0]):
        packed = pack_star(weights_of(make_cell(4, 6)))
    with library.using(names[1]), pytest.raises(ValueError, match=f"packed for {names[0]}"):
        star_forward(torch.zeros(3, 2, 4), None, packed)


@needs_kernels
def test_the_default_device_of_torch_does_not_matter() -> None:
    cell, image = make_cell(4, 6), make_cell(4, 6, spatial=True)
    x, pixels = torch.randn(3, 2, 4), torch.randn(1, 4, 5, 5)
    with torch.device("meta"):
        found = star_forward(x, None, pack_star(weights_of(cell))).outputs
        with tiles_begin(1, 1):
            state = convolution_step(pixels, None, pack_convolution(weights_of(image)))
    assert torch.equal(found, star_forward(x, None, pack_star(weights_of(cell))).outputs)
    assert state.device.type == "cpu"


@needs_kernels
def test_nothing_is_kept_where_no_gradient_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = []

    def noting(*arguments: Any, keep: bool = False) -> Any:
        kept.append(keep)
        return star_forward(*arguments, keep=keep)

    monkeypatch.setattr(star, "star_forward", noting)
    cell, x = make_cell(4, 6), torch.randn(3, 2, 4)
    with torch.no_grad():
        found, _ = star.run_star(x, None, weights_of(cell))
    wanted, _ = star.run_star(x, None, Weights(*(part.requires_grad_() for part in weights_of(cell))))
    assert kept == [False, True]
    assert torch.equal(found, wanted)


@needs_kernels
def test_packed_weights_are_kept_until_they_change() -> None:
    cell, packing = make_cell(4, 6), Packing()
    first = packing.of(weights_of(cell), "star")
    assert packing.of(weights_of(cell), "star") is first
    with torch.no_grad():
        cell.state_gate.weight[0, 0] += 1
    second = packing.of(weights_of(cell), "star")
    assert not torch.equal(first.memory, second.memory)
    assert packing.of(weights_of(cell), "star_backward") is not second
    cell.load_state_dict(make_cell(4, 6, seed=1).state_dict())
    assert not torch.equal(packing.of(weights_of(cell), "star").memory, second.memory)
    third = packing.of(weights_of(cell), "star")
    cell.state_gate.weight.data.mul_(2)  # which torch does not count
    assert not torch.equal(packing.of(weights_of(cell), "star").memory, third.memory)
    third = packing.of(weights_of(cell), "star")
    cell.input_value.bias = nn.Parameter(torch.ones(6))
    assert not torch.equal(packing.of(weights_of(cell), "star").memory, third.memory)


@needs_kernels
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("spatial", [False, True])
def test_weights_that_a_fused_optimiser_changed_are_packed_again(spatial: bool, dropout: float) -> None:
    """It does not count the changes that it makes."""
    torch.manual_seed(0)
    cells = [StarCell(3, 3, spatial=spatial), StarCell(3, 3, spatial=spatial)]
    stack = RecurrentStack(cells, dropout=dropout)
    stack.initialise(5.0)
    place = (4, 4) if spatial else ()
    x, valid, days = torch.randn(2, 3, 3, *place), torch.ones(2, 3, *place, dtype=torch.bool), torch.zeros(2, 3)
    optimiser = torch.optim.AdamW(stack.parameters(), lr=0.1, fused=True)

    def validate(backend: str) -> Tensor:
        for cell in cells:
            cell.backend = backend
        with torch.no_grad():
            found: Tensor = stack.eval()(x, valid, days)[0]
        return found

    for _ in range(2):
        found = validate("auto")
        assert torch.allclose(found, validate("naive"), atol=1e-5)
        validate("auto")
        stack.train()(x, valid, days)[0].sum().backward()
        optimiser.step()
    assert not torch.allclose(validate("auto"), found, atol=1e-2)


@needs_kernels
def test_a_given_state_gets_its_gradient() -> None:
    stack = RecurrentStack([StarCell(3, 5, spatial=False)]).requires_grad_(False)
    stack.initialise(5.0)
    state = torch.zeros(2, 5, requires_grad=True)
    x, valid, days = torch.randn(2, 1, 3), torch.ones(2, 1, dtype=torch.bool), torch.zeros(2, 1)
    for ((after,),) in (
        stack.advance(x, valid, days, ((state,),)),
        stack.step(x[:, 0], valid[:, 0], days[:, 0], ((state,),)),
    ):
        assert torch.autograd.grad(after.sum(), state)[0].abs().min() > 0


@needs_kernels
def test_a_result_is_not_written_over_what_it_is_computed_from() -> None:
    packed = pack_convolution(weights_of(make_cell(6, 6, spatial=True)))
    image = torch.zeros(1, 6, 4, 4).to(memory_format=torch.channels_last)
    with pytest.raises(ValueError, match="memory with x"):
        convolution_step(image, None, packed, None, image)
    with pytest.raises(ValueError, match="memory with the state"):
        convolution_step(image.clone(), None, packed, image, image)
