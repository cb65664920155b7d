"""Models as ONNX, for programs without PyTorch: the whole season at once, or one date after the other.

    forward   x (B, T, C[, H, W]), valid (B, T[, H, W]), days (B, T)                      -> scores
    step      x (B, C[, H, W]), valid (B[, H, W]), days (B,), state_0, state_1, ...       -> scores, next_0, next_1, ...

Batch and image size are free. The number of dates of `forward` is fixed, since its loop over dates is written out: a
shorter season is filled up with dates that are not valid, which change nothing. Every export is compared with the
model by onnxruntime, at another size than it was made with, before anybody gets it.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cropstar.errors import ArtifactError, UsageError
from cropstar.models.classifier import RecurrentClassifier
from cropstar.models.contract import Classifier, ModelState
from cropstar.models.zoo import Ensemble
from cropstar.native.tensors import is_traced

Arrays = dict[str, NDArray[Any]]
OPSET = 17
TOLERANCE = 1e-4  # of scores, which are some units large
FIRST_DAY = 19_000
INPUTS = ("x", "valid", "days")


def export_forward(model: Classifier, bands: int, dates: int, metadata: Mapping[str, str]) -> bytes:
    """The ONNX file of a model for seasons of up to `dates` dates; shorter ones are padded with invalid dates."""
    if not is_recurrent(model):
        why = "others gather the valid dates first, and their number differs from pixel to pixel"
        raise UsageError("only recurrent models can be written as ONNX", why=why, remedy="train one, such as star")
    axes = _free_axes(model, dated=True)
    example = _season(model, bands, dates, batch=2, height=6, width=7, seed=0)
    content = _convert(model, example, list(INPUTS), ["scores"], axes)
    content = _describe(content, {**metadata, "cropstar.kind": "forward", "cropstar.dates": str(dates)})
    inputs = _season(model, bands, dates, batch=3, height=11, width=9, seed=1)
    with torch.inference_mode():
        wanted = model(*inputs)
    exported = _run(content, {name: part.numpy() for name, part in zip(INPUTS, inputs, strict=True)})
    _require_same(exported["scores"], wanted)
    return content


def export_step(model: Classifier, bands: int, metadata: Mapping[str, str]) -> bytes:
    """The file's content of a model that takes one date and its state; `metadata` in it tell how a state begins."""
    if not is_recurrent(model) or not model.streaming:
        raise UsageError("this model has no step", why="it reads all dates at once", remedy="export its forward alone")
    stepping = _Stepping(model).eval()  # the exporter sets a model back to the mode that it finds at the top
    x, valid, days = _season(model, bands, 1, batch=2, height=6, width=7, seed=0)
    state = initial_state(model, x[:, 0])
    names = [f"state_{place}" for place in range(len(_flat(state)))]
    following = [f"next_{place}" for place in range(len(names))]
    axes = _free_axes(model, dated=False)
    space = {0: "batch", 2: "height", 3: "width"} if model.spatial else {0: "batch"}
    axes |= dict.fromkeys((*names, *following), space)
    example = (x[:, 0], valid[:, 0], days[:, 0], *_flat(state))
    content = _convert(stepping, example, [*INPUTS, *names], ["scores", *following], axes)
    begins = [
        {"name": name, "channels": part.shape[1], "value": "nan" if bool(part.isnan().all()) else "0"}
        for name, part in zip(names, _flat(state), strict=True)
    ]
    content = _describe(content, {**metadata, "cropstar.kind": "step", "cropstar.state": json.dumps(begins)})
    _check_steps(model, content, names, bands)
    return content


def is_recurrent(model: Classifier) -> bool:
    """A recurrent stack, or an ensemble of nothing else."""
    members = model.classifiers if isinstance(model, Ensemble) else [model]
    return all(isinstance(each, RecurrentClassifier) for each in members)


def initial_state(model: Classifier, like: Tensor) -> ModelState:
    """The state before the first date, for a batch of the shape of one date's input."""
    if isinstance(model, Ensemble):
        return tuple(layer for each in model.classifiers for layer in initial_state(each, like))
    assert isinstance(model, RecurrentClassifier)
    return model.initial_state(like)


class _Stepping(nn.Module):
    """`step` and `classify` as one call whose state is a flat list of tensors."""

    def __init__(self, model: Classifier) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, valid: Tensor, days: Tensor, *parts: Tensor) -> tuple[Tensor, ...]:
        rest = iter(parts)
        pattern = initial_state(self.model, x)
        state = tuple(tuple(next(rest) for _ in layer) for layer in pattern)
        after = self.model.step(x, valid, days, state)
        return (self.model.classify(after), *_flat(after))


def _check_steps(model: Classifier, content: bytes, names: Sequence[str], bands: int) -> None:
    """Three dates in both worlds, each with the state that it made itself."""
    x, valid, days = _season(model, bands, 3, batch=3, height=11, width=9, seed=1)
    state: ModelState | None = None
    held = [part.numpy() for part in _flat(initial_state(model, x[:, 0]))]
    for t in range(3):
        date = (x[:, t], valid[:, t], days[:, t])
        with torch.inference_mode():
            state = model.step(*date, state)
            wanted = model.classify(state)
        feeds = dict(zip(INPUTS, (part.numpy() for part in date), strict=True)) | dict(zip(names, held, strict=True))
        exported = _run(content, feeds)
        held = [exported[f"next_{place}"] for place in range(len(names))]
        _require_same(exported["scores"], wanted)
        for mine, theirs in zip(held, _flat(state), strict=True):
            _require_same(mine, theirs)


def _convert(
    model: nn.Module, example: tuple[Tensor, ...], names: list[str], results: list[str], axes: dict[str, dict[int, str]]
) -> bytes:
    try:
        # By tracing (dynamo=False): the models ask masks whether they are complete, which torch.export cannot follow.
        # The trace takes the answer of the example, in which no date is complete: the answer that holds always.
        with TemporaryDirectory() as folder, warnings.catch_warnings(), _translations(), torch.inference_mode():
            warnings.simplefilter("ignore")
            path = Path(folder) / "model.onnx"
            torch.onnx.export(
                model,
                example,
                path,
                input_names=names,
                output_names=results,
                dynamic_axes=axes,
                opset_version=OPSET,
                dynamo=False,
            )
            return path.read_bytes()
    except (torch.onnx.OnnxExporterError, RuntimeError, TypeError, NotImplementedError) as failure:
        why = str(failure).strip().partition("\n")[0]
        raise UsageError("this model cannot be written as ONNX", why=why, remedy="use cropstar predict") from None


@contextmanager
def _translations() -> Iterator[None]:
    """Operators that the exporter does not know by itself."""
    from torch.onnx import utils as symbolic

    def expm1(graph: Any, x: Any) -> Any:
        return graph.op("Sub", graph.op("Exp", x), graph.op("Constant", value_t=torch.tensor(1.0)))

    symbolic.register_custom_op_symbolic("aten::expm1", expm1, OPSET)
    try:
        yield
    finally:
        symbolic.unregister_custom_op_symbolic("aten::expm1", OPSET)


def _describe(content: bytes, metadata: Mapping[str, str]) -> bytes:
    """The file with what a user must know in its metadata."""
    onnx = _library("onnx")
    graph = onnx.load_model_from_string(content)
    onnx.helper.set_model_props(graph, dict(sorted(metadata.items())))
    graph.producer_name = "cropstar"
    onnx.checker.check_model(graph)
    return bytes(graph.SerializeToString(deterministic=True))


def _run(content: bytes, feeds: Arrays) -> Arrays:
    runtime = _library("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    known = {each.name for each in session.get_inputs()}  # what a model does not look at is not an input of its graph
    results = session.run(None, {name: values for name, values in feeds.items() if name in known})
    return {each.name: values for each, values in zip(session.get_outputs(), results, strict=True)}


def _require_same(found: NDArray[Any], wanted: Tensor) -> None:
    expected = wanted.numpy()
    if found.shape == expected.shape and np.allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
        return
    why = f"shapes {found.shape} and {expected.shape}"
    if found.shape == expected.shape:
        why = f"by up to {np.abs(found - expected).max():.2g}"
    raise ArtifactError("the exported model differs from the model", why=why, remedy="use it with cropstar predict")


def _season(
    model: Classifier, bands: int, dates: int, *, batch: int, height: int, width: int, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Noise with clouds; the first sample has a masked pixel on every date, so that none is complete."""
    random = torch.Generator().manual_seed(seed)
    space = (height, width) if model.spatial else ()
    x = torch.randn(batch, dates, bands, *space, generator=random)
    valid = torch.rand(batch, dates, *space, generator=random) < 0.7
    valid[0, ..., 0] = False
    if not model.spatial:
        valid[0] = False
    days = FIRST_DAY + 7 * torch.arange(dates).expand(batch, -1) + torch.arange(batch).unsqueeze(1)
    return x, valid, days


def _free_axes(model: Classifier, *, dated: bool) -> dict[str, dict[int, str]]:
    axes = {name: {0: "batch"} for name in (*INPUTS, "scores")}
    if model.spatial:
        first = 3 if dated else 2
        axes["x"] |= {first: "height", first + 1: "width"}
        axes["valid"] |= {first - 1: "height", first: "width"}
        if model.makes_maps:
            axes["scores"] |= {2: "height", 3: "width"}
    return axes


def _flat(state: ModelState) -> list[Tensor]:
    return [part for layer in state for part in layer]


def _library(name: str) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError:
        remedy = "install it with: pip install 'cropstar[onnx]'"
        raise UsageError(f"ONNX files need {name}", remedy=remedy) from None


# --- a model whose steps onnxruntime computes; scores of a state stay with PyTorch


class OnnxSteps(Classifier):
    """`step` by onnxruntime, and all that follows from it. Without gradients."""

    streaming = True

    def __init__(self, model: Classifier, bands: int) -> None:
        super().__init__()
        self.model = model
        self.spatial = model.spatial
        self.makes_maps = model.makes_maps
        content = _without_scores(export_step(model, bands, {}))
        runtime = _library("onnxruntime")
        options = runtime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = torch.get_num_threads()
        # Threads that wait in a loop for more would take the processors from those that read and write.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        self._known = {each.name for each in self._session.get_inputs()}

    def radius(self, length: int) -> int:
        return self.model.radius(length)

    @torch.inference_mode()
    def forward(self, x: Tensor, valid: Tensor, days: Tensor) -> Tensor:
        return self.classify(self.advance(x, valid, days))

    @torch.inference_mode()
    def by_date(self, x: Tensor, valid: Tensor, days: Tensor) -> Tensor:
        scores, state = [], None
        for t in range(x.shape[1]):
            state = self.step(x[:, t], valid[:, t], days[:, t], state)
            scores.append(self.classify(state))
        return torch.stack(scores, dim=1)

    def step(self, x: Tensor, valid: Tensor, days: Tensor, state: ModelState | None) -> ModelState:
        if is_traced():  # a counter of operations wants to see some
            return self.model.step(x, valid, days, state)
        before = initial_state(self.model, x) if state is None else state
        parts = [part for layer in before for part in layer]
        names = [*INPUTS, *(f"state_{place}" for place in range(len(parts)))]
        tensors = (x.float(), valid, days.long(), *parts)
        feeds = {
            name: tensor.detach().numpy() for name, tensor in zip(names, tensors, strict=True) if name in self._known
        }
        found: Iterator[Tensor] = (torch.from_numpy(part) for part in self._session.run(None, feeds))
        return tuple(tuple(next(found) for _ in layer) for layer in before)

    def may_round(self, state: ModelState) -> list[bool]:
        return self.model.may_round(state)

    def classify(self, state: ModelState) -> Tensor:
        return self.model.classify(state)


def _without_scores(content: bytes) -> bytes:
    """The graph without the head, which a map asks after the last date alone."""
    onnx = _library("onnx")
    graph = onnx.load_model_from_string(content)
    kept = [each for each in graph.graph.output if each.name != "scores"]
    del graph.graph.output[:]
    graph.graph.output.extend(kept)
    return bytes(graph.SerializeToString())
