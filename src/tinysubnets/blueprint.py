"""A network without values: what a forward pass does, apart from the tensors it does it with."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

Mode = Literal["train", "eval", "calibrate"]
Place = tuple[dict[str, Any], str, Tensor]  # who holds a tensor, under what name, and an empty one


class Blueprint:
    """A copy of a network on the meta device, ties kept, in one of three modes.

    In training, in evaluation, or in evaluation but for normalisation layers, which take and
    keep the statistics of the batch.
    """

    def __init__(self, net: nn.Module, mode: Mode) -> None:
        self.net = _hollow(net, mode)
        self._places = _places(self.net)

    def __call__(self, tensors: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """The network's output with these tensors in place, by their first names.

        Does what `torch.func.functional_call` does, a fifth of a millisecond faster: the places
        are known.
        """
        if torch.compiler.is_compiling():  # the form that a compiler knows
            return torch.func.functional_call(self.net, dict(tensors), (inputs,))
        try:
            for name, tensor in tensors.items():
                for holder, leaf, _ in self._places.get(name, ()):
                    holder[leaf] = tensor
            output: Tensor = self.net(inputs)
        finally:
            for places in self._places.values():
                for holder, leaf, empty in places:
                    holder[leaf] = empty
        return output


def _hollow(net: nn.Module, mode: Mode) -> nn.Module:
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
            module.num_batches_tracked = (
                None  # nothing reads the count, and adding to it costs a launch
            )
            if mode == "calibrate":
                module.train()
                module.momentum = 1.0  # the statistics of exactly this batch
    return code


def _places(net: nn.Module) -> dict[str, list[Place]]:
    """Where the network holds each tensor, under its first name; tied ones in several places."""
    places: dict[str, list[Place]] = {}
    first: dict[int, str] = {}
    for prefix, module in net.named_modules():
        for holder in (module._parameters, module._buffers):
            for leaf, tensor in holder.items():
                if tensor is not None:
                    name = first.setdefault(id(tensor), f"{prefix}.{leaf}" if prefix else leaf)
                    places.setdefault(name, []).append((holder, leaf, tensor))
    return places
