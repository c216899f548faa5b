"""Which networks can be learned: checks at the door, and a trial of the forward pass.

A network is kept as code, and every pass is given the tensors of one task. So a pass must depend on
nothing else that differs between tasks, processes or calls, and must not keep anything. Problems
that can be seen without running the network are refused when it is wrapped, all others before the
first task is trained; each error says where the problem is, and what to do.
"""

from __future__ import annotations

import functools
import random
import types
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from tinysubnets.errors import ArchitectureError

# What a network's own attributes are looked through for: this deep, and this many values a module.
MAX_DEPTH, MAX_VALUES = 6, 20_000
RANDOM_PASSES = 8  # in training, of a network that draws random numbers
OVERWRITTEN = "modified by an inplace operation"  # what torch says of it
MAX_CANDIDATES = 12  # layers that an error names as possible heads
MAX_SHOWN = 3  # layers that an error names as depending on the head's width
REGISTERED = ("_parameters", "_buffers", "_modules")
PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)

# What the last layer of a network, or the part it is in, is usually called; the first one counts.
USUAL_HEADS = ("fc", "_fc", "classifier", "heads.head", "heads", "head", "last_linear", "output")

# Checks at the door ------------------------------------------------------------------------------


def find_head(net: nn.Module) -> str:
    """The layer that gives the logits: the last one with a matrix in a part of a usual name.

    So of a `classifier` of several layers it is the last, and the others stay with the body. A part
    named `fc` is the head as a whole.
    """
    modules = dict(net.named_modules())
    there = [name for name in USUAL_HEADS if name in modules]
    for name in there:
        if layers := _layers(net, name):
            return name if name == "fc" else layers[-1]
    usual = f"of a usual name ({', '.join(USUAL_HEADS)})"
    if not there:
        raise ArchitectureError(f"the network has no head {usual}. {_candidates(net)}")
    raise ArchitectureError(
        f"the network has no head: {describe(modules[there[0]], there[0])} has no weight matrix, "
        f"nor has any other part {usual}. If it was built without a head, as timm does with "
        f"num_classes=0, build it with any number of classes. {_candidates(net)}"
    )


def check_head(net: nn.Module, head: str) -> None:
    """Refuse a head that is not there or holds no matrix, and list the layers that may be meant."""
    if not head or head not in dict(net.named_modules()):
        raise ArchitectureError(f"the network has no head named {head!r}. {_candidates(net)}")
    if not _layers(net, head):
        raise ArchitectureError(
            f"the head {head!r} has no layer with a weight matrix. {_candidates(net)}"
        )


def output_layer(net: nn.Module, head: str) -> tuple[str, ...]:
    """The names of the head's tensors whose first dimension counts the classes.

    - `head`: one that `check_head` lets pass.
    """
    name = _layers(net, head)[-1]
    layer: Any = net.get_submodule(name)
    width = layer.weight.shape[0]
    return tuple(
        f"{name}.{n}"
        for n, p in layer.named_parameters(recurse=False)
        if p.ndim and p.shape[0] == width
    )


def _layers(net: nn.Module, part: str) -> list[str]:
    """The layers with a weight matrix in a part of the network, which may be one itself."""
    inside = _submodule(net, part).named_modules(prefix=part)
    return [n for n, m in inside if _has_weight_matrix(m)]


def _candidates(net: nn.Module) -> str:
    found = [n for n, m in net.named_modules() if n and _has_matrix(m)]
    shown = ", ".join(reversed(found[-MAX_CANDIDATES:])) or "none"
    return (
        f"Layers that could be the head: {shown}. Say which: Architecture(net, head=…), "
        "network.head in a recipe, --head on the command line."
    )


def check_network(net: nn.Module) -> None:
    """Refuse networks that keep values where they cannot be seen, or that change them."""
    for name, tensor in [*net.named_parameters(), *net.named_buffers()]:
        if _is_lazy(tensor):
            raise ArchitectureError(f"{name!r} has no shape yet; run the lazy network once first.")
        if tensor.is_meta:
            raise ArchitectureError(
                f"{name!r} is on the meta device and has no values; give the network with its "
                "weights loaded: net.to_empty(device='cpu'), then net.load_state_dict(…)."
            )
        if tensor.layout != torch.strided:
            raise ArchitectureError(
                f"{name!r} is sparse, and masks are over weights that are held one by one; make it "
                "dense: tensor.to_dense()."
            )
    for prefix, module in net.named_modules():
        if cure := _unfit(module):
            raise ArchitectureError(f"{describe(module, prefix)} {cure}")
    known = {id(t) for t in [*net.parameters(), *net.buffers(), *net.modules()]}
    for prefix, module in net.named_modules():
        for path, value in held(module):
            if id(value) in known:
                continue
            if isinstance(value, Tensor):
                raise ArchitectureError(
                    f"{describe(module, prefix)} keeps a tensor in {path!r}, outside parameters "
                    "and buffers; use register_buffer."
                )
            if isinstance(value, nn.Module) and _has_tensors(value):
                raise ArchitectureError(
                    f"{describe(module, prefix)} keeps a {type(value).__name__} in {path!r}, where "
                    "torch does not see its weights; use nn.ModuleList or nn.ModuleDict, or make "
                    "it an attribute of its own."
                )


def _unfit(module: nn.Module) -> str | None:
    """Why a module cannot be part of a network, and what to do; None where it can."""
    if isinstance(module, torch.jit.ScriptModule):
        return "is compiled by TorchScript; give the Python network it was made from."
    if getattr(module, "max_norm", None) is not None and hasattr(module, "embedding_dim"):
        return (
            "has max_norm, by which looking a vector up shortens it in place, while learned "
            "weights never change; leave max_norm out and normalize what was looked up."
        )
    hooks = list(module._forward_pre_hooks.values())
    if isinstance(module, _SpectralNorm) or any(isinstance(h, SpectralNorm) for h in hooks):
        return (
            "is spectral norm, which keeps vectors that every training step moves; leave it out "
            "or use torch.nn.utils.parametrizations.weight_norm."
        )
    if any(isinstance(h, WeightNorm) for h in hooks):
        return (
            "has the old torch.nn.utils.weight_norm, which keeps its result as a plain attribute; "
            "use torch.nn.utils.parametrizations.weight_norm."
        )
    return None


def describe(module: nn.Module, path: str) -> str:
    """A module in words: its class and where it is."""
    return f"{type(module).__name__} {path or '(the network)'}"


def _has_matrix(module: nn.Module) -> bool:
    return any(_is_lazy(p) or p.ndim >= 2 for p in module.parameters(recurse=False))


def _has_weight_matrix(module: nn.Module) -> bool:
    """Whether a module is a layer with a weight matrix, be it made by a parametrization.

    A table of vectors is none: it takes integers, which no layer gives.
    """
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        return False
    weight = getattr(module, "weight", None)
    return isinstance(weight, Tensor) and (_is_lazy(weight) or weight.ndim >= 2)


def _has_tensors(module: nn.Module) -> bool:
    return next(module.parameters(), next(module.buffers(), None)) is not None


def _is_lazy(tensor: Tensor) -> bool:
    return isinstance(tensor, (nn.UninitializedParameter, nn.UninitializedBuffer))


# What a module holds beside its parameters, buffers and submodules -------------------------------


def held(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """The values in a module's own attributes, with the way to each: ("layers[0].scale", value).

    Containers, closures, partial functions and objects are looked into; tensors and modules are
    not.
    """
    skipped = {*REGISTERED}
    if isinstance(module, nn.RNNBase):  # the weights of the last pass, replaced by the next
        skipped |= {"_flat_weights", "_flat_weight_refs"}
    seen = {id(module)}
    count = 0
    for name, value in list(vars(module).items()):
        if name in skipped:
            continue
        for found in _values(value, name, MAX_DEPTH, seen):
            yield found
            count += 1
            if count >= MAX_VALUES:
                return


def _values(value: Any, path: str, depth: int, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """A value, or where it is a container the values in it, each with the way to it."""
    if isinstance(value, (Tensor, nn.Module, np.ndarray, *PLAIN)):
        yield path, value
        return
    if id(value) in seen or depth == 0:
        return
    seen.add(id(value))
    inside = list(_inside(value))
    if not inside:
        yield path, value
    for step, item in inside:
        yield from _values(item, f"{path}{step}", depth - 1, seen)


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    """What a value consists of, with the step that leads to each part."""
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", item) for key, item in list(value.items()))
    elif isinstance(value, (list, tuple, deque, set, frozenset)):
        yield from ((f"[{i}]", item) for i, item in enumerate(list(value)))
    elif isinstance(value, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif isinstance(value, types.MethodType):
        yield from ((".__self__", value.__self__), ("", value.__func__))
    elif isinstance(value, types.FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=False)
        for name, cell in cells:
            try:
                yield f" with {name}", cell.cell_contents
            except ValueError:  # a name that has no value yet
                continue
        yield " with defaults", value.__defaults__
    elif hasattr(value, "__dict__") and not isinstance(value, (type, types.ModuleType)):
        yield from ((f".{name}", item) for name, item in list(vars(value).items()))


Snapshot = dict[tuple[str, str], tuple[Any, Any]]  # (module, way): (what must not change, value)


def snapshot(net: nn.Module) -> Snapshot:
    """All that the modules hold, to be compared after a pass; keeps the values alive."""
    found: Snapshot = {}
    for prefix, module in net.named_modules():
        for group in REGISTERED:
            for name in getattr(module, group):
                found[prefix, name] = (group, None)
        for path, value in held(module):
            found[prefix, path] = (_mark(value), value)
    return found


def _mark(value: Any) -> Any:
    """What two looks at a value have in common exactly if it did not change."""
    if isinstance(value, Tensor):
        return id(value), None if value.is_inference() else value._version
    if isinstance(value, np.ndarray):
        return id(value), value.dtype, value.shape, hash(value.tobytes())
    if isinstance(value, PLAIN):
        return type(value), repr(value)
    return id(value)


# The trial ---------------------------------------------------------------------------------------


class Code(Protocol):
    """A network without values in one of its modes: `architecture.StatelessModule`."""

    net: nn.Module

    def __call__(self, tensors: Mapping[str, Tensor], inputs: Tensor, /) -> Any: ...


class PassError(ArchitectureError):
    """The network fails on inputs: of their shape or type, or with a head of that width."""


class Trial:
    """One network on a few inputs: passes in every mode, and what is learned from them.

    - `state`: all tensors of the network, by name.
    - `inputs`: normalized, a batch of one or two.
    - `num_classes`: how many logits there have to be.
    - `head`: the name of the head, for messages.
    - `running_stats`: names of the tensors that passes in training may change.
    """

    def __init__(
        self,
        state: Mapping[str, Tensor],
        inputs: Tensor,
        num_classes: int,
        *,
        head: str,
        running_stats: Sequence[str],
    ) -> None:
        self.state = {n: t.detach().clone() for n, t in state.items()}
        self.inputs, self.num_classes, self.head = inputs, num_classes, head
        self.running_stats = set(running_stats)
        self.given = f"{inputs.dtype} inputs of shape {tuple(inputs.shape)}"

    @torch.no_grad()
    def evaluation(self, code: Code) -> None:
        """Two passes in evaluation: they change nothing, draw nothing and give the same."""
        generators = _generators()
        first = self._pass(code, self.state, "evaluation")
        if moved := _moved(generators):
            raise ArchitectureError(
                f"{self._who_draws(code)} draws from {moved} in evaluation, so that no answer "
                "is ever the same again; draw random numbers only where self.training is set."
            )
        second = self._pass(code, self.state, "evaluation")
        if not _same(first, second):
            raise ArchitectureError(
                f"{self._who_differs(code)} gives another output for the same input when it "
                "is called again in evaluation; a pass may depend on its input and on the "
                "network's own tensors alone."
            )

    @torch.no_grad()
    def calibration(self, code: Code) -> None:
        """A pass in which normalization layers take the statistics of the batch."""
        self._pass(code, self._copied(), "estimating batch statistics")

    def training(self, code: Code, learned: Sequence[str], own: Mapping[str, Tensor]) -> None:
        """A pass in training and back; several of a network that draws its branches by chance.

        - `learned`: the names of the tensors that have gradients.
        - `own`: the tensors of the user's network, by name.
        """
        generators = _generators()
        self._train(code, learned, own)
        if _moved(generators):
            for _ in range(RANDOM_PASSES - 1):
                self._train(code, learned, own)

    @torch.enable_grad()
    def _train(self, code: Code, learned: Sequence[str], own: Mapping[str, Tensor]) -> None:
        """One pass in training and back; the arguments are those of `training`."""
        state = self._copied()
        state |= {n: state[n].requires_grad_() for n in learned}
        output = self._pass(code, state, "training")
        if not output.requires_grad:
            raise ArchitectureError(
                "no gradient reaches any weight in training; is the pass inside torch.no_grad(), "
                "or its output detached?"
            )
        for hidden in _leaves(output):
            if not any(hidden is t for t in state.values()):
                raise ArchitectureError(_stranger(hidden, own))
        try:
            output.float().sum().backward()
        except Exception as error:
            cure = (
                "If it uses activation checkpointing, turn that off: checkpointing runs layers "
                "again outside the forward pass, where they hold no values."
            )
            if OVERWRITTEN in str(error):
                cure = "Give the activation that overwrites its input inplace=False."
            raise ArchitectureError(
                f"the network cannot be trained on {self.given}: {_in_words(error)} {cure}"
            ) from error
        for name in learned:
            gradient = state[name].grad
            if gradient is not None and gradient.layout != torch.strided:
                raise ArchitectureError(
                    f"the gradient of {name!r} is sparse; look it up with sparse=False."
                )

    def width(self, code: Code) -> None:
        """One pass in evaluation with a head of another width than has been tried."""
        with torch.no_grad():
            self._check_output(self._output(code, self.state, self.inputs, "evaluation"))

    @torch.no_grad()
    def runs_with(self, code: Code, own: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether the network takes the inputs with a head of its own width.

        - `own`: the shapes of that head's tensors, by name.
        """
        state = self.state | {n: self.state[n].new_zeros(shape) for n, shape in own.items()}
        try:
            code(state, self.inputs.clone())
        except Exception:
            return False
        return True

    def told_of_width(
        self, net: nn.Module, own: Mapping[str, tuple[int, ...]], error: Exception
    ) -> str:
        """Why the network takes no head of the task's width, in words.

        - `own`: the shapes of its own head's tensors, by name.
        - `error`: how it fails.
        """
        width = next(iter(own.values()))[0]
        layers = {name.rpartition(".")[0] for name in own}
        others = [
            describe(m, n)
            for n, m in net.named_modules()
            if n not in layers
            and any(p.ndim and p.shape[0] == width for p in m.parameters(recurse=False))
        ]
        shown = f", such as {' or '.join(others[-MAX_SHOWN:])}" if others else ""
        return (
            f"the network runs with {width} outputs of its head {self.head!r} and fails with "
            f"{self.num_classes}, which the task needs: something beside the head goes by that "
            f"width{shown}. Wrap a network with a second head, or with layers behind its head, in "
            "a module whose forward gives the logits of one layer alone, or take one without. "
            f"({error.__cause__})"
        )

    def _copied(self) -> dict[str, Tensor]:
        return {n: t.clone() for n, t in self.state.items()}

    def _pass(self, code: Code, state: dict[str, Tensor], mode: str) -> Tensor:
        """One pass with all that it must not do looked for."""
        # A pass in which the tensors are leaves of a graph could not change them at all.
        before = {n: (t.detach().clone(), t._version) for n, t in state.items()}
        inputs, earlier = self.inputs.clone(), snapshot(code.net)
        version = inputs._version
        output = self._output(code, state, inputs, mode)
        self._check_output(output)
        if inputs._version != version:
            raise ArchitectureError(
                f"the pass in {mode} changes its inputs in place; give its first layer "
                "inplace=False, or begin with x = x.clone()."
            )
        self._check_kept(code.net, earlier, snapshot(code.net), mode)
        allowed = self.running_stats if mode != "evaluation" else set()
        changed = [
            n
            for n, (value, at) in before.items()
            if n not in allowed and (state[n]._version != at or not torch.equal(state[n], value))
        ]
        if changed:
            raise ArchitectureError(
                f"the pass in {mode} changes the tensors {changed}; only running statistics of "
                "normalization layers may change, and only in training."
            )
        return output

    def _output(self, code: Code, state: Mapping[str, Tensor], inputs: Tensor, mode: str) -> Any:
        try:
            return code(state, inputs)
        except ArchitectureError:
            raise
        except Exception as error:
            raise PassError(
                f"the network fails on {self.given} in {mode}: {_in_words(error)}"
            ) from error

    def _check_output(self, output: Any) -> None:
        expected = (len(self.inputs), self.num_classes)
        if not isinstance(output, Tensor):
            keys = f" with {list(output)[:8]}" if isinstance(output, Mapping) else ""
            raise ArchitectureError(
                f"the network gave a {type(output).__name__}{keys}; one tensor of logits "
                f"{expected} is needed. Wrap it in a module whose forward gives only these, as in "
                "`return self.net(x)['logits']` or `return self.net(x)[0]`, and name the head "
                f"'net.{self.head}'."
            )
        if output.shape != expected:
            raise ArchitectureError(
                f"the network gave {tuple(output.shape)} for {len(self.inputs)} inputs; expected "
                f"{expected}. Is {self.head!r} the last layer?"
            )
        if not output.is_floating_point():
            raise ArchitectureError(f"the network gave {output.dtype}; logits are floating point.")

    def _check_kept(self, net: nn.Module, before: Snapshot, after: Snapshot, mode: str) -> None:
        """Refuse a pass that keeps something in an attribute."""
        nothing = (None, None)
        for where in dict.fromkeys([*after, *before]):
            mark, value = after.get(where, nothing)
            if mark == before.get(where, nothing)[0]:
                continue
            prefix, path = where
            holder = _submodule(net, prefix)
            what = "a tensor" if isinstance(value, Tensor) else "what it holds"
            raise ArchitectureError(
                f"{describe(holder, prefix)} changes {what} in {path!r} during a pass in {mode}; "
                "the next task, and the saved model, would see it. Compute it anew in every pass, "
                "or once in __init__ (tensors by register_buffer)."
            )

    def _who_draws(self, code: Code) -> str:
        """The innermost module that moves a generator."""
        found: list[str] = []
        stack: list[Any] = []

        def enter(module: nn.Module, _: Any) -> None:
            stack.append(_generators())

        def leave(module: nn.Module, _: Any, __: Any) -> None:
            if _moved(stack.pop()):
                found.append(names[module])

        names = {m: describe(m, n) for n, m in code.net.named_modules()}
        self._watched(code, enter, leave)
        return found[0] if found else "the network"

    def _who_differs(self, code: Code) -> str:
        """The first module to finish whose output differs in a second pass, its input does not."""
        names = {m: describe(m, n) for n, m in code.net.named_modules()}
        passes: list[list[tuple[str, list[Tensor], Tensor]]] = []
        for _ in range(2):
            outputs: list[tuple[str, list[Tensor], Tensor]] = []

            def leave(module: nn.Module, given: Any, output: Any, kept: list = outputs) -> None:
                if isinstance(output, Tensor):
                    inputs = [x.clone() for x in given if isinstance(x, Tensor)]
                    kept.append((names[module], inputs, output.clone()))

            self._watched(code, lambda *_: None, leave)
            passes.append(outputs)
        for (name, given, one), (other, again, two) in zip(*passes, strict=False):
            equal = len(given) == len(again) and all(map(_same, given, again))
            if name == other and equal and not _same(one, two):
                return name
        return "the network"

    def _watched(self, code: Code, enter: Any, leave: Any) -> None:
        """A pass with functions called before and after every module."""
        with ExitStack() as hooks:
            for module in code.net.modules():
                hooks.enter_context(module.register_forward_pre_hook(enter))
                hooks.enter_context(module.register_forward_hook(leave))
            code(self.state, self.inputs.clone())


def _in_words(error: Exception) -> str:
    """An error of torch's as a sentence."""
    text = f"{type(error).__name__}: {error}".rstrip()
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _generators() -> dict[str, Any]:
    """Where the global generators stand."""
    name, keys, *rest = np.random.get_state()
    return {
        "torch's generator": torch.random.get_rng_state().numpy().tobytes(),
        "numpy's generator": (name, np.asarray(keys).tobytes(), *rest),
        "Python's generator": random.getstate(),
    }


def _moved(before: dict[str, Any]) -> str | None:
    """The generator that stands elsewhere than before."""
    return next((n for n, state in _generators().items() if state != before[n]), None)


def _same(one: Tensor, two: Tensor) -> bool:
    if one.shape != two.shape or one.dtype != two.dtype:
        return False
    return bool(((one == two) | (one.isnan() & two.isnan())).all())


def _submodule(net: nn.Module, path: str) -> nn.Module:
    return dict(net.named_modules()).get(path, net)


def _leaves(output: Tensor) -> Iterator[Tensor]:
    """The tensors that a gradient of the output would be added up in."""
    nodes, seen = [output.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(leaf := getattr(node, "variable", None), Tensor):
            yield leaf
        nodes += [following for following, _ in node.next_functions]


def _stranger(tensor: Tensor, own: Mapping[str, Tensor]) -> str:
    """The message about a weight that the pass uses and the network was not given."""
    at = tensor.data_ptr()
    name = next((n for n, t in own.items() if t.data_ptr() == at and t.shape == tensor.shape), None)
    if name is not None:
        return (
            f"the pass reaches {name!r} of the network that was wrapped, not of its copy: a lambda "
            "or an inner function keeps hold of `self`. Use a method instead."
        )
    return (
        f"the pass uses a weight of shape {tuple(tensor.shape)} that is no parameter of the "
        "network; keep the module that holds it as an attribute, or in nn.ModuleList or "
        "nn.ModuleDict."
    )
