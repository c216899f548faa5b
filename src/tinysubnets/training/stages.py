"""Evaluation stage by stage: what a changed layer leaves as it was is not computed again.

Post-pruning measures a network dozens of times, each time with a few weights of one layer gone. The
layers before that one answer as they did before; so their outputs are remembered. It works
for chains, that is for `nn.Sequential` with anything inside; other networks are measured as a
whole, by `evaluate.count_correct`.

Large linear layers of which little is kept are multiplied as sparse matrices on a CPU: of 2048 x
2048 weights at 2.5 % in a sixteenth of the time. Their sums round differently in the last bits.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _NormBase

from tinysubnets.nn.architecture import Architecture, Mode
from tinysubnets.tasks.loader import Chunks, DeviceLoader
from tinysubnets.training.evaluate import EVAL_BATCH, count_answers, pooled_stats
from tinysubnets.training.precision import arithmetic

REMEMBERED_BYTES = 1 << 29  # of stages' outputs; the least recently used are forgotten first
SPARSE_FROM, SPARSE_BELOW = 1 << 18, 0.1  # weights of a sparse matrix, and the share that is kept


@dataclass(frozen=True)
class Stage:
    """A part of a chain: it begins with a module that holds shared weights, but for the first.

    - `parts`: the stage's modules in the two modes of evaluation.
    - `shared`: the names of the shared weights inside.
    - `running_stats`: the names of its running means and variances.
    - `matrices`: the names of shared weights that may be given as sparse matrices.
    """

    parts: Mapping[Mode, nn.Module]
    shared: tuple[str, ...]
    running_stats: tuple[str, ...]
    matrices: tuple[str, ...]


def stages_of(architecture: Architecture) -> list[Stage]:
    """The network as a chain of stages; empty where it is none, or cannot be told apart."""
    flat = {m: list(_links(architecture.code(m), "")) for m in ("eval", "calibrate")}
    links = flat["eval"]
    with_tensors = [id(m) for _, m in links if any(True for _ in _tensor_names(m))]
    # A tensor that two places share would have to be followed from one stage to the other.
    if len(links) < 2 or architecture.aliases or len(set(with_tensors)) < len(with_tensors):
        return []
    shared, stats = {s.name for s in architecture.shared}, set(architecture.running_stats)
    names = [[f"{path}.{n}" for n in _tensor_names(m)] for path, m in links]
    starts = [i for i, own in enumerate(names) if shared & set(own)]
    starts[0] = 0  # what comes before the first shared weights belongs to them
    stages = []
    for start, stop in zip(starts, [*starts[1:], len(links)], strict=True):
        own = [n for part in names[start:stop] for n in part]
        linear = {f"{path}.weight" for path, m in links[start:stop] if _is_linear(m)}
        parts: dict[Mode, nn.Module] = {}
        for mode in ("eval", "calibrate"):
            part = nn.Sequential(*_lean([m for _, m in flat[mode][start:stop]]))
            part.training = False  # of the container; its modules keep their modes
            parts[mode] = part
        stages.append(
            Stage(
                parts,
                tuple(n for n in own if n in shared),
                tuple(n for n in own if n in stats),
                tuple(n for n in own if n in shared & linear),
            )
        )
    return stages


def _lean(modules: list[nn.Module]) -> Iterator[nn.Module]:
    """The modules, with each ReLU behind a BatchNorm in place: fresh memory costs as much again.

    Linear layers take sparse weights as well.
    """
    for before, module in pairwise([None, *modules]):
        assert module is not None
        if isinstance(before, _NormBase) and type(module) is nn.ReLU:
            yield nn.ReLU(inplace=True)
        else:
            yield _Linear(module) if _is_linear(module) else module


def _is_linear(module: nn.Module) -> bool:
    plain = type(module) is nn.Linear
    return plain and not module._forward_hooks and not module._forward_pre_hooks


class _Linear(nn.Module):
    """A linear layer whose weight may be a sparse matrix."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        layer = self.layer
        assert isinstance(layer, nn.Linear)
        weight, bias = layer.weight, layer.bias
        if weight.layout is torch.strided:
            outputs: Tensor = layer(x)
            return outputs
        if not x.sum().isfinite():  # a weight of 0 makes NaN of infinity, and a sparse one nothing
            return functional.linear(x, weight.to_dense(), bias)
        output = (weight @ x.flatten(0, -2).t()).t()
        output = (output if bias is None else output + bias).contiguous()
        return output.unflatten(0, x.shape[:-1])


@dataclass(frozen=True)
class SparseMatrix:
    """A matrix of which little is kept, from which more can be dropped.

    - `whole`: it as a sparse matrix.
    - `places`: where its values stand in the flat matrix, int64 [values].
    """

    whole: Tensor
    places: Tensor

    @classmethod
    def of(cls, weight: Tensor) -> SparseMatrix | None:
        """The matrix; None where it is not worth it, or not possible on this machine."""
        can = weight.device.type == "cpu" and torch.backends.mkl.is_available()
        if not can or weight.ndim != 2 or weight.numel() < SPARSE_FROM:
            return None
        if int(weight.count_nonzero()) > SPARSE_BELOW * weight.numel():
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that such matrices are in beta state
            whole = weight.detach().to_sparse_csr()
        return cls(whole, weight.flatten().nonzero().flatten())

    def without(self, lost: Tensor) -> Tensor:
        """The sparse matrix with zeros where weights are lost, bool [rows, columns]."""
        values = self.whole.values().masked_fill(lost.flatten()[self.places], 0.0)
        rows, columns = self.whole.crow_indices(), self.whole.col_indices()
        return torch.sparse_csr_tensor(
            rows, columns, values, self.whole.shape, check_invariants=False
        )


def _links(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    """The modules of a chain in the order they are called in, with their paths."""
    plain = isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward
    if not plain or module._forward_hooks or module._forward_pre_hooks:
        yield path, module
        return
    for name, child in module._modules.items():
        assert child is not None
        yield from _links(child, f"{path}.{name}" if path else name)


def _tensor_names(module: nn.Module) -> Iterator[str]:
    yield from (n for n, _ in module.named_parameters())
    yield from (n for n, _ in module.named_buffers())


@dataclass(frozen=True)
class _Output:
    """What a stage gave: for training batches with their own statistics, and for validation.

    `number` names it, so that the next stage's outputs can say what they came from.
    """

    number: int
    train: list[Any] = field(default_factory=list)
    valid: list[Any] = field(default_factory=list)

    def tensors(self) -> list[Tensor]:
        """All tensors that are remembered of it."""
        return [t for t in (*self.train, *self.valid) if isinstance(t, Tensor)]

    @property
    def size_bytes(self) -> int:
        """The bytes of these tensors."""
        return sum(t.numel() * t.element_size() for t in self.tensors())


class StagedEvaluation:
    """The correct answers of a chain on validation data, for many versions of its shared weights.

    - `stages`: those of `stages_of`.
    - `train`, `valid`: what BatchNorm statistics are estimated on, and what is measured.
    - `samples`: how many training samples the statistics are estimated on.
    - `precision`: that of `arithmetic`.
    - `remembered_bytes`: how much of earlier passes is kept.

    It computes what `recalibrate_batchnorm` and `count_correct` do. Images always have their
    channels last in memory, so that sums may round differently in the last bits.
    """

    def __init__(
        self,
        architecture: Architecture,
        stages: list[Stage],
        train: Chunks,
        valid: DeviceLoader,
        *,
        samples: int,
        precision: str,
        remembered_bytes: int = REMEMBERED_BYTES,
    ) -> None:
        self.architecture, self.stages, self.precision = architecture, stages, precision
        self.remembered_bytes = remembered_bytes
        batches = list(valid.chunks(EVAL_BATCH))
        self.labels = [labels for _, labels in batches]
        first = _Output(0, [], [_channels_last(inputs) for inputs, _ in batches])
        if architecture.has_running_stats:
            for inputs, _ in train.chunks(EVAL_BATCH, samples):
                first.train.append(_channels_last(inputs))
        self.sizes = [len(inputs) for inputs in first.train]  # samples of each training batch
        self.first = first
        self._number = 0
        self._outputs: dict[tuple[int, tuple[bytes, ...]], _Output] = {}  # oldest use first
        self.num_computed = 0  # stages that were computed, not remembered

    @torch.no_grad()
    def count(self, tensors: Mapping[str, Tensor], keys: Mapping[str, bytes]) -> Tensor:
        """The number of correct answers and the sum of losses, float64 [2].

        - `tensors`: all tensors of the network, by name; only shared ones may ever differ.
        - `keys`: by the name of a shared tensor, what tells its versions apart.
        """
        output = self.first
        for stage in self.stages:
            key = (output.number, tuple(keys[n] for n in stage.shared))
            known = self._outputs.pop(key, None)
            if known is None:
                known = self._compute(stage, tensors, output)
            self._outputs[key] = known  # now the one used last
            output = known
        self._forget()
        counts = torch.zeros(2, dtype=torch.float64, device=self.labels[0].device)
        for logits, labels in zip(output.valid, self.labels, strict=True):
            counts += count_answers(logits.float(), labels)
        return counts

    def _compute(self, stage: Stage, tensors: Mapping[str, Tensor], given: _Output) -> _Output:
        self._number += 1
        self.num_computed += 1
        before = [t._version for t in given.tensors()]  # counts writes in place
        out, found = _Output(self._number), []
        with arithmetic(self.precision, deterministic=True):
            for inputs, size in zip(given.train, self.sizes, strict=True):
                own = {n: tensors[n].clone() for n in stage.running_stats}
                out.train.append(self._run(stage, "calibrate", {**tensors, **own}, inputs))
                found.append((size, own))
            if found and stage.running_stats:
                tensors = {**tensors, **pooled_stats(found)}
            out.valid.extend(self._run(stage, "eval", tensors, x) for x in given.valid)
        if before != [t._version for t in given.tensors()]:
            raise ChangedInputError
        return out

    def _run(self, stage: Stage, mode: Mode, tensors: Mapping[str, Tensor], inputs: Any) -> Any:
        return self.architecture(tensors, inputs, mode, stage.parts[mode])

    def _forget(self) -> None:
        """Forget what was not used for longest, until the rest fits."""
        held = sum(o.size_bytes for o in self._outputs.values())
        while held > self.remembered_bytes and self._outputs:
            held -= self._outputs.pop(next(iter(self._outputs))).size_bytes


def _channels_last(inputs: Tensor) -> Tensor:
    """Images with their channels last in memory: pooling on a CPU is up to ten times faster."""
    if inputs.ndim != 4:
        return inputs
    return inputs.contiguous(memory_format=torch.channels_last)


class ChangedInputError(RuntimeError):
    """A stage wrote into its input in place, so that nothing can be remembered of it."""
