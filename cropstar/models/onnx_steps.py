"""A model whose steps onnxruntime computes; scores of a state stay with PyTorch."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from cropstar.models.contract import Classifier, ModelState
from cropstar.models.export import INPUTS, _library, export_step, initial_state
from cropstar.native.tensors import watched


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
        if watched():  # a counter of operations wants to see some
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
