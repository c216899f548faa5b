"""An architecture: the user's network as code, and the names of its tensors.

The network becomes a stateless copy without values; every forward pass hands it the tensors of one
task. So one network serves any number of tasks, no layer type needs code of its own, and nothing is
ever overwritten in place.
"""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from tinysubnets.errors import ArchitectureError

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
    biases, norm scales and shifts, class tokens and the like. `head` names the layer that gives the
    logits. `shared` overrides the rule: a
    function of (name, tensor) that is asked for every parameter outside the head. `rebuild` says
    how to make the network again by name, where it comes from this package.

        >>> net = nn.Sequential()
        >>> _ = net.append(nn.Linear(4, 3)), net.add_module("fc", nn.Linear(3, 2))
        >>> [s.name for s in Architecture(net).shared]
        ['0.weight']
    """

    def __init__(
        self,
        net: nn.Module,
        head: str = "fc",
        *,
        shared: Rule | None = None,
        rebuild: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(net, nn.Module):
            raise ArchitectureError(f"a torch.nn.Module is needed, not {type(net).__name__}.")
        self.head, self.rebuild = head, None if rebuild is None else dict(rebuild)
        check_head(net, head)
        check_tensors(net)
        self.aliases = _aliases(net)
        parameters = {n: p for n, p in net.named_parameters()}
        rule = shared or is_shared
        prefix = f"{head}."
        self._check_untied_head(prefix)
        names = [n for n, p in parameters.items() if not n.startswith(prefix) and rule(n, p)]
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
        self.output = _output_layer(net, head)
        self._code = {mode: StatelessModule(net, mode) for mode in ("train", "eval", "calibrate")}

    @property
    def num_shared(self) -> int:
        """The number of shared weights, written |Θ| in the paper."""
        return sum(s.numel for s in self.shared)

    @property
    def has_running_stats(self) -> bool:
        """Whether the network normalizes by running statistics of its batches."""
        return bool(self.running_stats)

    def code(self, mode: Mode) -> nn.Module:
        """The network without values: in training, in evaluation, or estimating its statistics."""
        return self._code[mode].net

    def __call__(
        self, tensors: Mapping[str, Tensor], inputs: Tensor, mode: Mode = "eval"
    ) -> Tensor:
        """The network's output for normalized inputs with the given tensors in place."""
        return self._code[mode](tensors, inputs)

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

    def build(self, tensors: Mapping[str, Tensor]) -> nn.Module:
        """The user's own network again, in evaluation mode, holding the given tensors."""
        code = self.code("eval")
        memo: dict[int, Any] = {}
        for name, parameter in code.named_parameters():
            memo[id(parameter)] = nn.Parameter(tensors[name].detach().clone(), requires_grad=False)
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
        """Try the network on a few normalized inputs, forward and backward; explain what fails."""
        state = {n: t.detach().clone() for n, t in {**tensors, **self.constants}.items()}
        before = {n: t.clone() for n, t in state.items()}
        given = f"{inputs.dtype} inputs of shape {tuple(inputs.shape)}"
        # Forked: a trial must not move the caller's random numbers.
        with torch.random.fork_rng(devices=[]):
            try:
                with torch.no_grad():
                    output = self(state, inputs, "eval")
            except Exception as error:
                raise ArchitectureError(
                    f"the network fails on {given}: {type(error).__name__}: {error}"
                ) from error
            if not isinstance(output, Tensor) or output.shape != (len(inputs), num_classes):
                shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
                raise ArchitectureError(
                    f"the network gave {shape} for {len(inputs)} inputs; expected "
                    f"({len(inputs)}, {num_classes}). Is {self.head!r} the last layer?"
                )
            self._check_unchanged(before, state)
            self._check_backward(state, inputs, given)
        self._check_unchanged(before, state, self.running_stats)

    def _check_backward(self, state: dict[str, Tensor], inputs: Tensor, given: str) -> None:
        """Try one training step, in which activation checkpointing would show itself."""
        learned = [
            s.name for s in (*self.shared, *self.task_params) if s.name not in self.running_stats
        ]
        try:
            with torch.enable_grad():
                trial = state | {n: state[n].clone().requires_grad_() for n in learned}
                self(trial, inputs, "train").sum().backward()
        except Exception as error:
            raise ArchitectureError(
                f"the network cannot be trained on {given}: {type(error).__name__}: {error}. "
                "If it uses activation checkpointing, turn that off: checkpointing runs layers "
                "again outside the forward pass, where they hold no values."
            ) from error

    def _check_unchanged(
        self, before: Mapping[str, Tensor], after: Mapping[str, Tensor], but: tuple[str, ...] = ()
    ) -> None:
        changed = [n for n, t in before.items() if n not in but and not torch.equal(t, after[n])]
        if changed:
            raise ArchitectureError(
                f"the forward pass changes the tensors {changed}; only running statistics of "
                "normalization layers may change, and only in training."
            )

    def _check_untied_head(self, prefix: str) -> None:
        for alias, name in self.aliases.items():
            if alias.startswith(prefix) != name.startswith(prefix):
                raise ArchitectureError(
                    f"the head's {alias!r} is tied to {name!r}; a head belongs to "
                    "one task alone, so give it weights of its own."
                )


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


def _output_layer(net: nn.Module, head: str) -> tuple[str, ...]:
    """The names of the head's tensors whose first dimension counts the classes."""
    last = None
    for prefix, module in net.get_submodule(head).named_modules():
        weight = getattr(module, "weight", None)
        if isinstance(weight, Tensor) and weight.ndim >= 2:
            last = (prefix, module)
    if last is None:
        raise ArchitectureError(f"the head {head!r} has no layer with a weight matrix.")
    name = f"{head}.{last[0]}" if last[0] else head
    width = last[1].weight.shape[0]
    return tuple(
        f"{name}.{n}"
        for n, p in last[1].named_parameters(recurse=False)
        if p.ndim and p.shape[0] == width
    )


# The network without values: what a forward pass does, apart from the tensors it does it with.

Mode = Literal["train", "eval", "calibrate"]
TensorSlot = tuple[dict[str, Any], str]  # who holds a tensor, and under what name


class StatelessModule:
    """A copy of a network on the meta device, ties kept, in one of three modes.

    In training, in evaluation, or in evaluation but for normalization layers, which take and
    keep the statistics of the batch. Of several threads one computes at a time: the network has
    room for the tensors of one task.
    """

    def __init__(self, net: nn.Module, mode: Mode) -> None:
        self.__setstate__({"net": _meta_copy(net, mode)})

    def __getstate__(self) -> dict[str, Any]:
        return {"net": self.net}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.net: nn.Module = state["net"]
        self._slots = _slots(self.net)  # looked up anew: a copy may hold its tensors elsewhere
        self._lock = threading.RLock()

    def __call__(self, tensors: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """The network's output with these tensors in place, by their first names.

        Does what `torch.func.functional_call` does, a fifth of a millisecond faster: the places
        are known.
        """
        if torch.compiler.is_compiling():  # the form that a compiler knows
            return torch.func.functional_call(self.net, dict(tensors), (inputs,))
        before: list[tuple[dict[str, Any], str, Tensor]] = []
        with self._lock:
            try:
                for name, tensor in tensors.items():
                    for holder, leaf in self._slots.get(name, ()):
                        before.append((holder, leaf, holder[leaf]))
                        holder[leaf] = tensor
                output: Tensor = self.net(inputs)
            finally:
                for holder, leaf, tensor in before:
                    holder[leaf] = tensor
        return output


def _meta_copy(net: nn.Module, mode: Mode) -> nn.Module:
    """The copy of the network in its mode."""
    memo: dict[int, Any] = {}
    for parameter in net.parameters():
        memo[id(parameter)] = nn.Parameter(parameter.detach().to("meta"), requires_grad=False)
    for buffer in net.buffers():
        memo[id(buffer)] = buffer.detach().to("meta")
    code = copy.deepcopy(net, memo)
    code.train(mode == "train")
    for module in code.modules():
        if isinstance(module, _NormBase) and module.track_running_stats:
            # Nothing reads the count, and adding to it costs a launch.
            module.num_batches_tracked = None
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


# Which networks can be wrapped: checks at the door, before any of their code runs.


def check_head(net: nn.Module, head: str) -> None:
    """Refuse a head that is not there, and list the layers that could be meant."""
    modules = dict(net.named_modules())
    if head and head in modules:
        return
    candidates = [n for n, m in modules.items() if n and _has_matrix(m)]
    raise ArchitectureError(
        f"the network has no head named {head!r}. Layers that could be the head: "
        f"{', '.join(reversed(candidates)) or 'none'}. Say which: "
        "Architecture(net, head=…)."
    )


def _has_matrix(module: nn.Module) -> bool:
    return any(_is_lazy(p) or p.ndim >= 2 for p in module.parameters(recurse=False))


def check_tensors(net: nn.Module) -> None:
    """Refuse networks that keep values where they cannot be seen or are not there yet."""
    for name, tensor in [*net.named_parameters(), *net.named_buffers()]:
        if _is_lazy(tensor):
            raise ArchitectureError(f"{name!r} has no shape yet; run the lazy network once first.")
    known = {id(t) for t in [*net.parameters(), *net.buffers()]}
    for prefix, module in net.named_modules():
        for attribute, value in vars(module).items():
            if attribute in ("_parameters", "_buffers", "_modules"):
                continue
            if any(id(t) not in known for t in _tensors_in(value)):
                raise ArchitectureError(
                    f"{type(module).__name__} {prefix or '(the network)'} keeps a tensor in "
                    f"{attribute!r}, outside parameters and buffers; use register_buffer."
                )


def _is_lazy(tensor: Tensor) -> bool:
    return isinstance(tensor, (nn.UninitializedParameter, nn.UninitializedBuffer))


def _tensors_in(value: Any, depth: int = 3) -> Iterator[Tensor]:
    """The tensors in a value, and in plain containers of values."""
    if isinstance(value, Tensor):
        yield value
    elif depth and isinstance(value, (list, tuple, set, frozenset, Mapping)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors_in(item, depth - 1)
