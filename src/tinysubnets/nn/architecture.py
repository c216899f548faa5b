"""An architecture: the user's network as code, and the names of its tensors.

The network becomes a stateless copy without values; every forward pass hands it the tensors of one
task. So one network serves any number of tasks, no layer type needs code of its own, and nothing is
ever overwritten in place.
"""

from __future__ import annotations

import copy
import json
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils.parametrizations import _WeightNorm

from tinysubnets import seeds
from tinysubnets.errors import ArchitectureError
from tinysubnets.nn.trial import (
    PassError,
    Trial,
    check_head,
    check_network,
    find_head,
    output_layer,
)
from tinysubnets.tasks.expected import expected_inputs

Rule = Callable[[str, Tensor], bool]


@dataclass(frozen=True)
class TensorSpec:
    """The name and shape of one tensor, and the constant all its values start from, if any."""

    name: str
    shape: tuple[int, ...]
    constant: float | None = None

    @property
    def numel(self) -> int:
        """How many values the tensor holds."""
        return math.prod(self.shape)


class Architecture:
    """A network as code: what is shared between tasks, what each task keeps for itself.

    Shared are parameters with two or more dimensions outside the head; task-specific are the head,
    biases, norm scales and shifts, class tokens and the like.

    - `head`: the name of the layer that gives the logits; by default the last layer with a matrix
      in the first part of the network that has a usual name, see `trial.USUAL_HEADS`.
    - `shared`: overrides the rule: a function of (name, tensor) that is asked for every parameter
      outside the head.
    - `rebuild`: how to make the network again by name, where it comes from this package; what
      `networks.build` gives brings it along.
    - `base`: "frozen" makes the network's weights the base: tasks store only how they differ from
      it, and a model file names it instead of holding it. The weights are taken when a learner is
      made.

    `expected_inputs` are the images that a pretrained network says it was trained on.

        >>> net = nn.Sequential()
        >>> _ = net.append(nn.Linear(4, 3)), net.add_module("fc", nn.Linear(3, 2))
        >>> [s.name for s in Architecture(net).shared]
        ['0.weight']
    """

    def __init__(
        self,
        net: nn.Module,
        head: str | None = None,
        *,
        shared: Rule | None = None,
        rebuild: Mapping[str, Any] | None = None,
        base: Literal["frozen"] | None = None,
    ) -> None:
        if not isinstance(net, nn.Module):
            raise ArchitectureError(f"a torch.nn.Module is needed, not {type(net).__name__}.")
        if base not in (None, "frozen"):
            raise ArchitectureError(f"base = {base!r} is not allowed; give 'frozen' or None.")
        rebuild = _built_as(net) if rebuild is None else rebuild
        head = find_head(net) if head is None else head
        self.head, self.rebuild = head, None if rebuild is None else dict(rebuild)
        self.base, self.name = base, type(net).__name__
        self.source, self.expected_inputs = _source_of(net), expected_inputs(net)
        check_head(net, head)
        check_network(net)
        self.aliases = _aliases(net)
        parameters = {n: p for n, p in net.named_parameters()}
        rule = shared or is_shared
        self._check_untied_head()
        names = [n for n, p in parameters.items() if not self.in_head(n) and rule(n, p)]
        self.shared = tuple(_spec_of(n, parameters[n]) for n in names)
        if not self.shared:
            raise ArchitectureError(
                f"no parameter outside the head {head!r} is shared: at least one with two or more "
                "dimensions is needed (or a `shared` rule that accepts one)."
            )
        self.running_stats = tuple(_running_stats(net))
        buffers = dict(net.named_buffers())
        self.task_params = tuple(
            _spec_of(n, t)
            for n, t in [*parameters.items(), *((s, buffers[s]) for s in self.running_stats)]
            if n not in set(names)
        )
        counters = {n for n in buffers if n.endswith("num_batches_tracked")}
        self.constants = {
            n: b.detach().clone()
            for n, b in buffers.items()
            if n not in self.running_stats and n not in counters
        }
        self.pretrained = {n: t.detach() for n, t in [*parameters.items(), *buffers.items()]}
        self.output = output_layer(net, head)
        # Copies for other modes are made of this one when they are first needed.
        self._code: dict[Mode, StatelessModule] = {"train": StatelessModule(net, "train")}
        self._from_head = False  # whether passes take what reaches the head
        # The head's widths that were tried on inputs of a shape and type.
        self._tried: dict[tuple[tuple[int, ...], torch.dtype], set[int]] = {}

    def __repr__(self) -> str:
        base = ", its weights a frozen base" if self.base else ""
        return (
            f"Architecture({self.name}, head {self.head!r}, {self.num_shared:,} shared "
            f"weights{base})"
        )

    @property
    def num_shared(self) -> int:
        """The number of shared weights, written |Θ| in the paper."""
        return sum(s.numel for s in self.shared)

    @property
    def has_running_stats(self) -> bool:
        """Whether the network normalizes by running statistics of its batches."""
        return bool(self.running_stats)

    @property
    def fixed_tensors(self) -> tuple[TensorSpec, ...]:
        """Shared tensors, then task-specific ones whose shape no number of classes decides.

        A base consists of these.
        """
        own = (s for s in self.task_params if s.name not in self.output)
        return (*self.shared, *own)

    def in_head(self, name: str) -> bool:
        """Whether a tensor belongs to the head."""
        return name.startswith(f"{self.head}.")

    def code(self, mode: Mode) -> nn.Module:
        """The network without values, in one of the modes of `StatelessModule`."""
        return self._stateless(mode).net

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other threads from evaluating the network: hooks would see their calls."""
        with self._stateless("eval")._lock:
            yield

    def _stateless(self, mode: Mode) -> StatelessModule:
        if mode not in self._code:
            self._code[mode] = StatelessModule(self._code["train"].net, mode)
        return self._code[mode]

    def from_head(self) -> Architecture:
        """The same network for inputs that have come as far as its head: passes run that alone."""
        out = copy.copy(self)
        out._from_head = True
        return out

    def __call__(
        self,
        tensors: Mapping[str, Tensor],
        inputs: Tensor,
        mode: Mode = "eval",
        part: nn.Module | None = None,
    ) -> Tensor:
        """The network's output for normalized inputs with the given tensors in place.

        `part` runs only these modules of `code(mode)`.
        """
        if self._from_head and part is None:
            part = self.code(mode).get_submodule(self.head)
        return self._stateless(mode)(tensors, inputs, part)

    def head_input(self, tensors: Mapping[str, Tensor], inputs: Tensor) -> Tensor | None:
        """What reaches the head for normalized inputs [samples, ...], in evaluation.

        From this, `from_head` computes the same bits as the whole network. None where it could not:
        the head is not called exactly once with one tensor, changes that in place, or its output is
        not the network's output.
        """
        return self._stateless("eval").input_of(self.head, tensors, inputs)

    def task_param_shapes(self, num_classes: int) -> dict[str, tuple[int, ...]]:
        """The shapes of the task-specific parameters: the head has exactly the task's classes."""
        return {
            s.name: (num_classes, *s.shape[1:]) if s.name in self.output else s.shape
            for s in self.task_params
        }

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of a flat vector [..., N] of shared weights, one per tensor, by name."""
        sizes = [s.numel for s in self.shared]
        lead = flat.shape[:-1]
        return {
            s.name: part.view(*lead, *s.shape)
            for s, part in zip(self.shared, flat.split(sizes, -1), strict=True)
        }

    def layers(self) -> Iterator[tuple[str, list[str]]]:
        """The modules that own shared weights, with the names of those weights."""
        owners: dict[str, list[str]] = {}
        for s in self.shared:
            owner = s.name.rpartition(".")[0].partition(".parametrizations")[0]
            parent = owner.rpartition(".")[0]
            if isinstance(self.code("eval").get_submodule(parent), nn.MultiheadAttention):
                owner = parent  # attention reads its output projection's weight without calling it
            owners.setdefault(owner, []).append(s.name)
        yield from owners.items()

    def weight_norms(self) -> list[str]:
        """The names of shared weights that weight norm divides by the norm of their rows."""
        norms = (n for n, m in self.code("eval").named_modules() if isinstance(m, _WeightNorm))
        lists = {n.rpartition(".")[0] for n in norms}  # "0.parametrizations.weight"
        return [s.name for s in self.shared if s.name.rpartition(".")[0] in lists]

    def build(self, tensors: Mapping[str, Tensor]) -> nn.Module:
        """The user's own network again, in evaluation mode, holding the given tensors."""
        code = self.code("eval")
        memo: dict[int, Any] = {}
        with self.alone():  # during a pass it holds the tensors of the task that is computed
            for name, parameter in code.named_parameters():
                value = tensors[name].detach().clone()
                memo[id(parameter)] = nn.Parameter(value, requires_grad=False)
            for name, buffer in code.named_buffers():
                memo[id(buffer)] = tensors[name].detach().clone()
            net = copy.deepcopy(code, memo)
        for name in self.output:
            layer = net.get_submodule(name.rpartition(".")[0])
            width = tensors[name].shape[0]
            for attribute in ("out_features", "out_channels"):
                if hasattr(layer, attribute):
                    setattr(layer, attribute, width)
        return net

    def check(self, tensors: Mapping[str, Tensor], inputs: Tensor, num_classes: int) -> None:
        """Try the network on a few normalized inputs, forward and backward; explain what fails.

        Done once for inputs of a shape and type. A head of another width is only looked at.
        """
        kind = (tuple(inputs.shape), inputs.dtype)
        widths = self._tried.get(kind)
        if widths is not None and num_classes in widths:
            return
        state = {**tensors, **self.constants}
        stats = self.running_stats
        trial = Trial(state, inputs, num_classes, head=self.head, running_stats=stats)
        # A trial must not move the caller's random numbers, nor leave anything in the network.
        with seeds.global_generators_kept():
            if widths is not None:
                self._check_width(trial, lambda: trial.width(self._stateless("eval")))
            else:
                self._try(trial)
        self._tried.setdefault(kind, set()).add(num_classes)

    def _try(self, trial: Trial) -> None:
        """Passes in every mode, through copies of the network."""
        modes: tuple[Mode, ...] = ("train", "eval", "calibrate")
        code = {mode: copy.deepcopy(self._stateless(mode)) for mode in modes}
        learned = [
            s.name for s in (*self.shared, *self.task_params) if s.name not in self.running_stats
        ]
        self._check_width(trial, lambda: trial.evaluation(code["eval"]))
        trial.training(code["train"], learned, self.pretrained)
        if self.has_running_stats:
            trial.calibration(code["calibrate"])

    def _check_width(self, trial: Trial, look: Callable[[], None]) -> None:
        """A look in evaluation; where it fails by the head's new width alone, that is told."""
        try:
            look()
        except PassError as error:
            own = {s.name: s.shape for s in self.task_params if s.name in self.output}
            if trial.runs_with(self._stateless("eval"), own):
                raise ArchitectureError(
                    trial.told_of_width(self.code("eval"), own, error)
                ) from error
            raise

    def _check_untied_head(self) -> None:
        for alias, name in self.aliases.items():
            if self.in_head(alias) != self.in_head(name):
                raise ArchitectureError(
                    f"the head's {alias!r} is tied to {name!r}; a head belongs to "
                    "one task alone, so give it weights of its own."
                )


def _source_of(net: nn.Module) -> str:
    """Where a network's weights come from, as `networks.pretrained` notes it."""
    record = getattr(net, "built_as", None)
    source = record.get("source") if isinstance(record, dict) else None
    return source if isinstance(source, str) and source else "given as a module"


def _built_as(net: nn.Module) -> dict[str, Any] | None:
    """How `networks.build` made a network, where no layer of it was changed since."""
    record = getattr(net, "built_as", None)
    if not isinstance(record, dict) or record.get("shown") != repr(net):
        return None
    try:
        settings = json.loads(json.dumps(record["settings"]))
    except (TypeError, ValueError):
        return None  # a file could not hold them
    return {"network": record["network"], "settings": settings}


def is_shared(name: str, tensor: Tensor) -> bool:
    """The rule outside the head: matrices and kernels, not tokens, norms or gains."""
    return tensor.ndim >= 2 and tensor.shape[0] > 1 and math.prod(tensor.shape[1:]) > 1


def _spec_of(name: str, tensor: Tensor) -> TensorSpec:
    """The tensor's name and shape, and its constant where all its values are equal."""
    values = tensor.detach()
    constant = None
    # A bias of one element is equal to itself, yet as random as any other bias.
    least = 2 if "bias" in name.rpartition(".")[2] else 1
    if values.numel() >= least and tensor.ndim < 2 and bool((values == values.flatten()[0]).all()):
        constant = float(values.flatten()[0])
    return TensorSpec(name, tuple(tensor.shape), constant)


def _aliases(net: nn.Module) -> dict[str, str]:
    """Further names of tied parameters, each with the first name of the same parameter."""
    first: dict[int, str] = {}
    aliases = {}
    for name, parameter in net.named_parameters(remove_duplicate=False):
        if id(parameter) in first:
            aliases[name] = first[id(parameter)]
        first.setdefault(id(parameter), name)
    return aliases


def _running_stats(net: nn.Module) -> Iterator[str]:
    """The names of running means and variances of normalization layers."""
    for prefix, module in net.named_modules():
        if isinstance(module, _NormBase) and module.track_running_stats:
            for leaf in ("running_mean", "running_var"):
                yield f"{prefix}.{leaf}" if prefix else leaf


# The network without values: what a forward pass does, apart from the tensors it does it with.

Mode = Literal["train", "eval", "calibrate", "frozen"]
TensorSlot = tuple[dict[str, Any], str]  # who holds a tensor, and under what name


class StatelessModule:
    """A copy of a network on the meta device, ties kept, in one of four modes.

    - "train", "eval": as of any module.
    - "calibrate": evaluation, but normalization layers use and keep the statistics of the batch.
    - "frozen": training, but normalization layers use the statistics they are given.

    One thread computes at a time: the network has room for the tensors of one task.
    """

    def __init__(self, net: nn.Module, mode: Mode) -> None:
        self.__setstate__({"net": _meta_copy(net, mode)})

    def __getstate__(self) -> dict[str, Any]:
        return {"net": self.net}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.net: nn.Module = state["net"]
        self._slots = _slots(self.net)  # looked up anew: a copy may hold its tensors elsewhere
        self._lock = threading.RLock()

    def __call__(
        self, tensors: Mapping[str, Tensor], inputs: Tensor, part: nn.Module | None = None
    ) -> Tensor:
        """The output of the network, or of a part, with these tensors in place.

        `tensors` are by their first names. Does what `torch.func.functional_call` does, a fifth of
        a millisecond faster: the places are known.
        """
        if torch.compiler.is_compiling():  # the form that a compiler knows
            return self._call(dict(tensors), inputs, part)
        before: list[tuple[dict[str, Any], str, Tensor, Tensor]] = []
        with self._lock:
            try:
                for name, tensor in tensors.items():
                    for holder, leaf in self._slots.get(name, ()):
                        before.append((holder, leaf, holder[leaf], tensor))
                        holder[leaf] = tensor
                output: Tensor = (self.net if part is None else part)(inputs)
                assigned = [leaf for holder, leaf, _, own in before if holder[leaf] is not own]
            finally:
                for holder, leaf, tensor, _ in before:
                    holder[leaf] = tensor
        if assigned:
            raise ArchitectureError(
                f"the forward pass assigns self.{assigned[0]}, which would be lost after it: "
                "tensors of a network change by training alone. Use a normalization layer, whose "
                "running statistics belong to each task, or a local variable."
            )
        return output

    def _call(self, tensors: dict[str, Tensor], inputs: Tensor, part: nn.Module | None) -> Tensor:
        """The same by `functional_call`, which takes names as the part has them."""
        if part is None:
            return torch.func.functional_call(self.net, tensors, (inputs,))
        prefix = next(n for n, m in self.net.named_modules() if m is part) + "."
        own = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
        return torch.func.functional_call(part, own, (inputs,))

    def input_of(self, name: str, tensors: Mapping[str, Tensor], inputs: Tensor) -> Tensor | None:
        """The input [samples, ...] of a part that is called once; see `Architecture.head_input`."""
        before: list[tuple[Any, ...]] = []
        after: list[Any] = []

        def enters(_: nn.Module, args: Any, kwargs: Any) -> None:
            before.append((*args, *kwargs.values(), *map(_version, args)))

        def leaves(_: nn.Module, args: Any, output: Any) -> None:
            after.append((output, *map(_version, args)))

        part = self.net.get_submodule(name)
        with (
            self._lock,  # hooks see the calls of all threads
            part.register_forward_pre_hook(enters, with_kwargs=True),
            part.register_forward_hook(leaves),
        ):
            result = self(tensors, inputs)
        if len(after) != 1 or not len(before[0]) == len(after[0]) == 2:
            return None
        (given, version), (output, version_after) = before[0], after[0]
        # Of inference tensors nobody counts changes in place.
        if output is not result or version is None or version != version_after:
            return None
        fits = isinstance(given, Tensor) and given.is_floating_point() and given.ndim > 0
        # Shapes, not lengths: an export leaves the size of batches open.
        return given if fits and given.shape[0] == inputs.shape[0] else None


def _version(value: Any) -> int | None:
    """How often a tensor was changed in place, where that is counted."""
    return value._version if isinstance(value, Tensor) and not value.is_inference() else None


def _meta_copy(net: nn.Module, mode: Mode) -> nn.Module:
    """The copy of the network in its mode."""
    memo: dict[int, Any] = {}
    for parameter in net.parameters():
        memo[id(parameter)] = nn.Parameter(parameter.detach().to("meta"), requires_grad=False)
    for buffer in net.buffers():
        memo[id(buffer)] = buffer.detach().to("meta")
    code = copy.deepcopy(net, memo)
    code.train(mode in ("train", "frozen"))
    for module in code.modules():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            module.sparse = False  # all tasks share one vector of weights, with one gradient
        if isinstance(module, _NormBase) and module.track_running_stats:
            if isinstance(module, nn.SyncBatchNorm) and mode != "eval":
                # It insists on counting, which it does without a value; 0.1 is torch's default.
                module.momentum = 0.1 if module.momentum is None else module.momentum
            else:
                # Nothing reads the count, and adding to it costs a launch.
                module.num_batches_tracked = None
            if mode == "frozen":
                module.eval()
            if mode == "calibrate":
                module.train()
                module.momentum = 1.0  # the statistics of exactly this batch
    return code


def _slots(net: nn.Module) -> dict[str, list[TensorSlot]]:
    """Where the network holds each tensor, under its first name; tied ones in several places."""
    places: dict[str, list[TensorSlot]] = {}
    first: dict[int, str] = {}
    for prefix, module in net.named_modules():
        for holder in (module._parameters, module._buffers):
            for leaf, tensor in holder.items():
                if tensor is not None:
                    name = first.setdefault(id(tensor), f"{prefix}.{leaf}" if prefix else leaf)
                    places.setdefault(name, []).append((holder, leaf))
    return places
