"""The STAR layer: outputs and gradients of the naive reference, whatever the sizes, masks and neighbours."""

from __future__ import annotations

import os
from itertools import pairwise

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from torch import Tensor

from cropstar.models.stack import RecurrentStack
from cropstar.native.library import library, parallel_of_torch
from cropstar.native.star import BinSums, StemWindow, pack_star, run_star, star_forward, star_stack
from cropstar.native.tensors import Weights, pack_stem
from tests.native.references import OUTPUTS, in_double, make_cell, require_close, run_naively, weights_of

pytestmark = pytest.mark.usefixtures("instruction_set")
ONE_SET = settings(
    max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def inputs(batch: int, length: int, channels: int, *, seed: int = 0, share: float = 0.7) -> tuple[Tensor, Tensor]:
    """(T, B, C) and (T, B) as the stack has them: views of what has the batch first. One row is never valid."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, length, channels, generator=generator)
    valid = torch.rand(batch, length, generator=generator) < share
    valid[-1] = batch == 1
    return x.transpose(0, 1), valid.transpose(0, 1)


def gradients(
    outputs: Tensor, final: Tensor, of: list[Tensor], ways: tuple[Tensor | None, Tensor | None]
) -> tuple[Tensor, ...]:
    total = torch.zeros((), dtype=outputs.dtype)
    for tensor, way in zip((outputs, final), ways, strict=True):
        if way is not None:
            total = total + (tensor * way).sum()
    return torch.autograd.grad(total, of, allow_unused=True, materialize_grads=True)


@ONE_SET
@given(
    batch=some.integers(1, 60),
    length=some.integers(1, 7),
    channels=some.integers(1, 40),
    hidden=some.integers(1, 70),
    begins=some.booleans(),
    masked=some.booleans(),
    by=some.sampled_from(["outputs", "final", "both"]),
    seed=some.integers(0, 2**16),
)
def test_outputs_and_gradients_of_the_reference(
    batch: int, length: int, channels: int, hidden: int, begins: bool, masked: bool, by: str, seed: int
) -> None:
    cell = make_cell(channels, hidden, seed=seed)
    naive = in_double(cell)
    x, mask = inputs(batch, length, channels, seed=seed)
    valid = mask if masked else None
    initial = torch.rand(batch, hidden) * 2 - 1 if begins else None
    ways = (
        torch.randn(length, batch, hidden) if by != "final" else None,
        torch.randn(batch, hidden) if by != "outputs" else None,
    )

    given_here = [x.detach().requires_grad_(), *([initial.requires_grad_()] if initial is not None else [])]
    outputs, final = run_star(given_here[0], valid, weights_of(cell), initial)
    in_naive = [part.detach().double().requires_grad_() for part in given_here]
    expected = run_naively(naive, in_naive[0], valid, in_naive[1] if begins else None)

    assert (outputs - expected).abs().max() <= OUTPUTS
    assert torch.equal(outputs[-1], final)
    found = gradients(outputs, final, [*given_here, *weights_of(cell)], ways)
    wanted = gradients(expected, expected[-1], [*in_naive, *weights_of(naive)], ways)
    for one, other in zip(found, wanted, strict=True):
        require_close(one, other)


def test_the_size_that_is_trained() -> None:
    cell = make_cell(13, 128)
    naive = in_double(cell)
    x, valid = inputs(96, 45, 13)
    outputs, final = run_star(x, valid, weights_of(cell))
    expected = run_naively(naive, x.double(), valid)
    assert (outputs - expected).abs().max() <= OUTPUTS
    found = gradients(outputs, final, list(weights_of(cell)), (None, torch.ones(96, 128)))
    wanted = gradients(expected, expected[-1], list(weights_of(naive)), (None, torch.ones(96, 128)))
    for one, other in zip(found, wanted, strict=True):
        require_close(one, other)


def test_a_row_that_is_never_valid_keeps_its_state_to_the_bit() -> None:
    cell = make_cell(5, 19)
    x, valid = inputs(14, 6, 5)
    x[:, -1] = float("nan")  # nor does what lies under the mask matter
    initial = torch.rand(14, 19)
    outputs, final = run_star(x, valid, weights_of(cell), initial)
    assert torch.equal(outputs[:, -1], initial[-1].expand(6, -1))
    assert torch.equal(final[-1], initial[-1])
    assert outputs.isfinite().all()


def test_nan_in_a_valid_date_stays_with_its_row() -> None:
    cell = make_cell(5, 19)
    x, _ = inputs(14, 6, 5)
    x[2, 3, 1] = float("nan")
    outputs, _ = run_star(x, None, weights_of(cell))
    lost = outputs.isnan().any(dim=2)
    assert lost[2:, 3].all()
    assert int(lost.sum()) == 4


@pytest.mark.parametrize("batch", [1, 5, 12, 49, 100])
def test_neighbours_do_not_matter(batch: int) -> None:
    cell = make_cell(7, 37)
    x, valid = inputs(100, 5, 7)
    way = torch.randn(5, 100, 37)
    weights = weights_of(cell)

    def run(rows: slice) -> tuple[Tensor, Tensor]:
        chosen = x[:, rows].detach().requires_grad_()
        outputs, _ = run_star(chosen, valid[:, rows], weights)
        return outputs, torch.autograd.grad((outputs * way[:, rows]).sum(), chosen)[0]

    for whole, some_rows in zip(run(slice(None)), run(slice(100 - batch, 100)), strict=True):
        assert torch.equal(whole[:, 100 - batch :], some_rows)


@pytest.mark.usefixtures("two_threads")
def test_runs_are_the_same_to_the_bit() -> None:
    cell = make_cell(13, 64)
    x, valid = inputs(301, 12, 13)
    weights = list(weights_of(cell))

    def run() -> list[Tensor]:
        outputs, final = run_star(x, valid, Weights(*weights))
        return [outputs, *torch.autograd.grad((final**2).sum() + outputs.sum(), weights)]

    first = run()
    for _ in range(3):
        assert all(torch.equal(one, other) for one, other in zip(first, run(), strict=True))
    torch.set_num_threads(5)
    assert torch.equal(first[0], run()[0])  # outputs do not even know how many threads there are
    for one, other in zip(first[1:], run()[1:], strict=True):
        require_close(one, other.double())


@ONE_SET
@given(
    batch=some.integers(1, 110),
    length=some.integers(1, 5),
    widths=some.lists(some.integers(1, 40), min_size=2, max_size=5),
    seed=some.integers(0, 2**16),
)
def test_a_stack_equals_its_layers(batch: int, length: int, widths: list[int], seed: int) -> None:
    cells = [make_cell(*pair, seed=seed + n) for n, pair in enumerate(pairwise(widths))]
    x, valid = inputs(batch, length, widths[0], seed=seed)
    packed = [pack_star(weights_of(cell)) for cell in cells]
    with torch.no_grad():
        final, outputs, _ = star_stack(x, valid, packed, outputs=True)
        plain = RecurrentStack([in_double(cell) for cell in cells])
        days = torch.zeros(batch, length)
        expected, state = plain(x.transpose(0, 1).double(), valid.transpose(0, 1), days)
        sequence = x
        for panels in packed:
            sequence = star_forward(sequence, valid, panels).outputs
    assert outputs is not None
    assert torch.equal(outputs, sequence)
    assert (outputs - expected).abs().max() <= OUTPUTS
    for one, (other,) in zip(final, state, strict=True):
        assert (one - other).abs().max() <= OUTPUTS


def test_steps_equal_the_sequence() -> None:
    cells = [make_cell(4, 21), make_cell(21, 21, seed=1), make_cell(21, 9, seed=2)]
    packed = [pack_star(weights_of(cell)) for cell in cells]
    x, valid = inputs(50, 6, 4)
    state: list[Tensor] | None = None
    for t in range(6):
        state, *_ = star_stack(x[t : t + 1], valid[t : t + 1], packed, state)
    whole, none, _ = star_stack(x, valid, packed)
    assert none is None
    assert state is not None
    assert all(torch.equal(one, other) for one, other in zip(state, whole, strict=True))


@ONE_SET
@given(
    batch=some.integers(1, 100),
    length=some.integers(1, 6),
    widths=some.lists(some.integers(1, 40), min_size=2, max_size=3),
    taps=some.lists(some.integers(1, 5), min_size=0, max_size=2),
    bins=some.integers(1, 4),
    cut=some.integers(0, 6),
    seed=some.integers(0, 2**16),
)
def test_stems_and_sums_of_the_reference(
    batch: int, length: int, widths: list[int], taps: list[int], bins: int, cut: int, seed: int
) -> None:
    """Convolutions over the last valid dates below the layers, sums by bin above them; in one go or in two."""
    generator = torch.Generator().manual_seed(seed)
    x, valid = inputs(batch, length, 3, seed=seed)
    places = torch.randint(bins, (length, batch), generator=generator, dtype=torch.int32)
    reads = [3, *[7] * len(taps)]
    weights = [
        (torch.randn(7, own * width, generator=generator), torch.randn(7, generator=generator))
        for own, width in zip(taps, reads[:-1], strict=True)
    ]
    cells = [make_cell(*pair, seed=seed + n) for n, pair in enumerate(pairwise([reads[-1], *widths]))]
    layers = [pack_star(weights_of(cell)) for cell in cells]

    def run(
        dates: slice, state: list[Tensor] | None, windows: list[Tensor] | None, sums: list[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        stems = [
            StemWindow(pack_stem(*own), number, windows[n] if windows else None)
            for n, (own, number) in enumerate(zip(weights, taps, strict=True))
        ]
        into = BinSums(places[dates], sums)
        final, _, after = star_stack(x[dates], valid[dates], layers, state, bin_sums=into, stems=stems)
        return final, after

    def zeros() -> list[Tensor]:
        return [torch.zeros(batch, widths[-1]) for _ in range(bins)]

    whole, pieces = zeros(), zeros()
    final, after = run(slice(0, length), None, None, whole)
    state: list[Tensor] | None = None
    windows: list[Tensor] | None = None
    for dates in (slice(0, cut), slice(cut, length)):
        if len(x[dates]):
            state, windows = run(dates, state, windows, pieces)
    assert state is not None
    assert windows is not None
    for one, other in zip([*final, *after, *whole], [*state, *windows, *pieces], strict=True):
        assert torch.equal(one, other)

    exact = [in_double(cell) for cell in cells]
    for row in range(batch):
        seen = [x[t, row].double() for t in range(length) if valid[t, row]]
        for (weight, bias), number in zip(weights, taps, strict=True):
            filled = [torch.zeros_like(seen[0])] * (number - 1) + seen if seen else []
            shown = [torch.cat(filled[t : t + number]) for t in range(len(seen))]
            seen = [torch.relu(weight.double() @ each + bias.double()) for each in shown]
        expected = [torch.zeros(widths[-1], dtype=torch.float64) for _ in range(bins)]
        states = [cell.initial_state(torch.zeros(1, 1, dtype=torch.float64)) for cell in exact]
        own_places = [int(places[t, row]) for t in range(length) if valid[t, row]]
        for each, place in zip(seen, own_places, strict=True):
            value = each.unsqueeze(0)
            for depth, cell in enumerate(exact):
                states[depth] = cell.reference(value, states[depth])
                value = states[depth][0]
            expected[place] = expected[place] + value[0]
        for place in range(bins):
            assert (whole[place][row] - expected[place]).abs().max() <= length * OUTPUTS


def test_sums_without_a_place_are_refused() -> None:
    x, valid = inputs(3, 2, 4)
    packed = [pack_star(weights_of(make_cell(4, 6)))]
    for places, sums, said in (
        (torch.full((2, 3), 2, dtype=torch.int32), 2, "no sum of bin 2"),
        (torch.zeros(2, 3, dtype=torch.int64), 1, "not int32"),
        (torch.zeros(3, 2, dtype=torch.int32), 1, "bins is"),
    ):
        with pytest.raises(ValueError, match=said):
            star_stack(x, valid, packed, bin_sums=BinSums(places, [torch.zeros(3, 6)] * sums))


def test_a_second_derivative_is_refused() -> None:
    x = torch.randn(3, 2, 4, requires_grad=True)
    outputs, _ = run_star(x, None, weights_of(make_cell(4, 6)))
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(outputs.sum(), x, create_graph=True)


def test_only_what_is_wanted_gets_a_gradient() -> None:
    cell = make_cell(4, 6)
    cell.input_gate.requires_grad_(False)
    x = torch.randn(3, 2, 4)
    _, final = run_star(x, None, weights_of(cell))
    final.sum().backward()
    assert cell.input_gate.weight.grad is None
    assert cell.state_gate.weight.grad is not None
    with torch.inference_mode():
        assert not run_star(x, None, weights_of(cell))[0].requires_grad


@pytest.mark.usefixtures("two_threads")
def test_the_threads_of_torch_and_own_ones_compute_the_same() -> None:
    parallel = parallel_of_torch()
    if parallel is None:
        pytest.skip("torch has no runtime that lends its threads")
    packed = pack_star(weights_of(make_cell(13, 128)))
    x, valid = inputs(200, 10, 13)
    found = []
    try:
        for lent in (None, parallel):
            library().lend(lent)
            found.append(star_forward(x, valid, packed).outputs)
    finally:
        library().lend(parallel)
    assert torch.equal(*found)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("used", [True, False])
def test_a_forked_process_can_go_on(used: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where torch's threads were there before the first kernel was called, which then would wait for them."""
    packed = pack_star(weights_of(make_cell(13, 128)))
    x, valid = inputs(200, 10, 13)
    expected = star_forward(x, valid, packed).outputs.numpy().tobytes()
    torch.ones(400_000).tanh()
    monkeypatch.setattr(library(), "_lent", used)
    child = os.fork()
    if child == 0:  # no torch operation here: OpenMP does not survive what our threads must
        found = star_forward(x, valid, packed).outputs
        os._exit(0 if found.numpy().tobytes() == expected else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
