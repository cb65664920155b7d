"""How tensors are handed to the kernels: what fits, weights in panels, pointers, gradients of a layer."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

from cropstar.native.library import StarWeights, library, using


class Weights(NamedTuple):
    """Of one STAR layer: (H, C), (H,), (H, C), (H,), (H, H); of ConvSTAR (H, C, 3, 3) and so on."""

    value_weight: Tensor  # W_z
    value_bias: Tensor  # b_z
    gate_weight: Tensor  # W_x
    gate_bias: Tensor  # b_k
    state_weight: Tensor  # W_h


@dataclass(frozen=True)
class Packed:
    """The weights of one layer in the panels of one instruction set."""

    memory: Tensor
    inputs: int
    hidden: int
    instruction_set: str

    def pointer(self) -> int:
        if self.instruction_set != library().instruction_set:
            raise ValueError(f"the weights were packed for {self.instruction_set}")
        return self.memory.data_ptr()


def fits(x: Tensor, *others: Tensor) -> bool:
    """Whether the kernels can compute with these tensors: float32 on the processor, and really there."""
    ready = x.numel() > 0 and all(
        type(tensor) in (Tensor, nn.Parameter) and tensor.device.type == "cpu" and tensor.dtype == torch.float32
        for tensor in (x, *others)
    )
    return ready and not is_traced() and not torch.is_autocast_enabled("cpu")


def is_traced() -> bool:
    """Whether tensors stand for others, under tracing, `vmap` or a counter of operations: kernels would not be seen."""
    return (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or torch._C._functorch.peek_interpreter_stack() is not None
        or _get_current_dispatch_mode() is not None
    )


def autocasting(device: str) -> bool:
    """Whether torch chooses types by itself; some kinds of devices do not know the question."""
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def gradients_wanted(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def pack(weights: Weights, kind: str) -> Packed:
    """`kind`: "star", "star_backward" or "convolution", for the calls of that name."""
    hidden, inputs = weights.value_weight.shape[:2]
    require_fit(weights.value_weight, *weights[1:])
    expected = {
        "value_bias": (hidden,),
        "gate_weight": tuple(weights.value_weight.shape),
        "gate_bias": (hidden,),
        "state_weight": (hidden, hidden, *weights.value_weight.shape[2:]),
    }
    for name, shape in expected.items():
        require_shape(name, getattr(weights, name), shape)
    whole = {name: part.detach().contiguous() for name, part in weights._asdict().items()}
    task = StarWeights(inputs, hidden, **{name: part.data_ptr() for name, part in whole.items()})
    head, _, tail = kind.partition("_")
    suffix = f"_{tail}" if tail else ""
    used = library()
    memory = torch.empty(used(f"{head}_packed{suffix}", inputs, hidden), dtype=torch.float32, device="cpu")
    used(f"{head}_pack{suffix}", ctypes.byref(task), memory.data_ptr())
    return Packed(memory, inputs, hidden, used.instruction_set)


def pack_stem(weight: Tensor, bias: Tensor) -> Packed:
    """The weights (outputs, taps * inputs) of a convolution in time, for `star_stack`."""
    require_fit(weight, bias)
    outputs, inputs = weight.shape
    require_shape("bias", bias, (outputs,))
    weight, bias = weight.detach().contiguous(), bias.detach().contiguous()
    task = StarWeights(inputs, outputs, value_weight=weight.data_ptr(), value_bias=bias.data_ptr())
    used = library()
    memory = torch.empty(used("stem_packed", inputs, outputs), dtype=torch.float32, device="cpu")
    used("stem_pack", ctypes.byref(task), memory.data_ptr())
    return Packed(memory, inputs, outputs, used.instruction_set)


class Packing:
    """A cache of packed weights, valid until the weights change: for inference, date after date.

    They are compared with a copy: torch's count of changes misses those of fused optimisers and of `.data`.
    """

    def __init__(self) -> None:
        self._kept: tuple[tuple[str, str], tuple[Tensor, ...], Packed] | None = None

    def of(self, weights: Weights, kind: str) -> Packed:
        now = (kind, library().instruction_set)
        if self._kept is not None:
            then, copies, packed = self._kept
            if then == now and all(map(torch.equal, weights, copies)):
                return packed
        packed = pack(weights, kind)
        self._kept = now, tuple(part.detach().clone() for part in weights), packed
        return packed

    def __reduce__(self) -> tuple[type[Packing], tuple[()]]:
        """A copy of a model packs its own weights."""
        return Packing, ()


def require_fit(x: Tensor, *others: Tensor) -> None:
    for tensor in (x, *others):
        if tensor.dtype != torch.float32 or tensor.device.type != "cpu":
            raise ValueError(f"the kernels take float32 on the processor, not {tensor.dtype} on {tensor.device}")


def require_shape(name: str, tensor: Tensor, shape: Iterable[int]) -> None:
    if tuple(tensor.shape) != tuple(shape):
        raise ValueError(f"{name} is {tuple(tensor.shape)}, not {tuple(shape)}")


def mask_bytes(valid: Tensor | None, shape: Iterable[int]) -> Tensor | None:
    """A mask as bytes, without a copy; None where every date is valid."""
    if valid is None:
        return None
    require_shape("valid", valid, shape)
    if valid.dtype != torch.bool or valid.device.type != "cpu":
        raise ValueError(f"valid is {valid.dtype} on {valid.device}, not bool on the processor")
    return valid.view(torch.uint8)


def inner_contiguous(tensor: Tensor) -> Tensor:
    """The tensor with its last axis in one piece; other axes may have any stride."""
    return tensor if tensor.shape[-1] == 1 or tensor.stride(-1) == 1 else tensor.contiguous()


def pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def strides(tensor: Tensor | None, count: int) -> tuple[int, ...]:
    """The strides of the first axes, in elements; zeros for None."""
    return (0,) * count if tensor is None else tensor.stride()[:count]


def refuse_second_derivative() -> None:
    """With create_graph=True, better no answer than one without its graph."""
    if torch.is_grad_enabled():
        raise RuntimeError("this layer has no second derivative; choose the backend naive")


# --- a layer over all dates, with its gradients


class Forward(NamedTuple):
    """The states of all dates, and what the backward pass needs of them; undefined under the mask."""

    outputs: Tensor
    gate: Tensor | None
    value: Tensor | None


class Gradients(NamedTuple):
    x: Tensor | None
    initial: Tensor | None
    weights: Weights

    @classmethod
    def empty(cls, x: Tensor, weights: Weights, *, x_wanted: bool, initial_wanted: bool) -> Gradients:
        """Memory for the gradients of a layer that read x, dates first and channels last."""
        own = x.new_empty(x.shape) if x_wanted else None
        initial = x.new_empty(*x.shape[1:-1], len(weights.value_bias)) if initial_wanted else None
        return cls(own, initial, Weights(*(x.new_empty(part.shape) for part in weights)))

    def addresses(self) -> dict[str, int]:
        """Where those of the weights go."""
        return {f"{name}_gradient": part.data_ptr() for name, part in self.weights._asdict().items()}


def given_gradients(
    outputs: Tensor | None, final: Tensor | None, shape: Sequence[int]
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of the outputs, of this shape, and of the last state, as the kernels read them."""
    for name, gradient, expected in (("outputs_gradient", outputs, shape), ("final_gradient", final, shape[1:])):
        if gradient is not None:
            require_fit(gradient)
            require_shape(name, gradient, expected)
    return None if outputs is None else inner_contiguous(outputs), None if final is None else final.contiguous()


class Kernels(NamedTuple):
    """The two passes of one kind of layer, with the arguments of `star_forward` and `star_backward`."""

    forward: Callable[..., Forward]
    backward: Callable[..., Gradients]


def run_layer(
    kernels: Kernels, x: Tensor, valid: Tensor | None, weights: Weights, initial: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The states of all dates and the last one; with gradients where they are wanted."""
    if gradients_wanted(x, *weights, *(() if initial is None else (initial,))):
        outputs, final = _Layer.apply(kernels, x, valid, initial, *weights)  # type: ignore[no-untyped-call]
        return outputs, final
    outputs = kernels.forward(x, valid, weights, initial, keep=False).outputs
    return outputs, outputs[-1].clone()


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        kernels: Kernels,
        x: Tensor,
        valid: Tensor | None,
        initial: Tensor | None,
        *parts: Tensor,
    ) -> tuple[Tensor, Tensor]:
        computed = kernels.forward(x, valid, Weights(*parts), initial, keep=True)
        ctx.save_for_backward(x, valid, initial, *parts, *computed)  # type: ignore[arg-type]
        ctx.set_materialize_grads(False)
        ctx.kernels, ctx.instruction_set = kernels, library().instruction_set  # type: ignore[attr-defined]
        return computed.outputs, computed.outputs[-1].clone()

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, outputs_gradient: Tensor | None, final_gradient: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        if outputs_gradient is None and final_gradient is None:
            return (None,) * 9
        x, valid, initial, *rest = ctx.saved_tensors  # type: ignore[attr-defined]
        _, x_wanted, _, initial_wanted, *wanted = ctx.needs_input_grad  # type: ignore[attr-defined]
        with using(ctx.instruction_set):  # type: ignore[attr-defined]
            gradients = ctx.kernels.backward(  # type: ignore[attr-defined]
                *(x, valid, Weights(*rest[:5]), initial, Forward(*rest[5:]), outputs_gradient, final_gradient),
                x_wanted=x_wanted,
                initial_wanted=initial_wanted,
            )
        parts = (part if needed else None for part, needed in zip(gradients.weights, wanted, strict=True))
        return (None, gradients.x, None, gradients.initial, *parts)
