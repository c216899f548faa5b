"""Batch normalization as it is stored: one scale and one shift per channel.

In evaluation a normalization layer computes (x − mean) / √(var + ε) · weight + bias. Folded, its
mean is 0 and its variance 1 − ε, so that weight and bias alone say the same, and two of its four
vectors are constants, which a file does not hold. A bias of the layer before it goes into its shift
as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.utils.hooks import RemovableHandle

from tinysubnets.nn.architecture import Architecture


@dataclass(frozen=True)
class Norm:
    """A normalization layer with running statistics and a scale and a shift of its own.

    - `name`: that of the module.
    - `eps`: what is added to the variance.
    """

    name: str
    eps: float

    def of(self, leaf: str) -> str:
        """The full name of one of its tensors, such as "weight"."""
        return f"{self.name}.{leaf}" if self.name else leaf


def foldable(architecture: Architecture) -> Iterator[Norm]:
    """The layers whose statistics can go into their scale and shift: each task has all four."""
    own = {s.name for s in architecture.task_params}
    for name, module in architecture.code("eval").named_modules():
        if isinstance(module, _NormBase) and module.track_running_stats:
            norm = Norm(name, module.eps)
            leaves = ("weight", "bias", "running_mean", "running_var")
            if all(norm.of(leaf) in own for leaf in leaves):
                yield norm


def folded(architecture: Architecture, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a network with the statistics of its norms folded into scale and shift."""
    out = dict(tensors)
    for norm in foldable(architecture):
        weight, bias, mean, var = (
            tensors[norm.of(leaf)].double()
            for leaf in ("weight", "bias", "running_mean", "running_var")
        )
        scale = weight / (var + norm.eps).sqrt()
        out[norm.of("weight")] = scale.float()
        out[norm.of("bias")] = (bias - mean * scale).float()
        out[norm.of("running_mean")] = torch.zeros_like(out[norm.of("running_mean")])
        out[norm.of("running_var")] = torch.full_like(out[norm.of("running_var")], 1 - norm.eps)
    return out


@torch.no_grad()
def with_folded_biases(
    architecture: Architecture, tensors: Mapping[str, Tensor], inputs: Tensor
) -> dict[str, Tensor]:
    """The tensors with the biases of layers right before a norm moved into the norm's shift.

    - `tensors`: with folded norms.
    - `inputs`: some normalized inputs [batch, ...]. Where the network answers them differently
      afterwards, nothing is moved: a layer's output may go elsewhere as well, or a norm may have
      its channels along another axis.
    """
    out, own = dict(tensors), {s.name for s in architecture.task_params}
    norms = {norm.name: norm for norm in foldable(architecture)}
    logits, before = _layers_before(architecture, tensors, inputs, norms)
    for name, layer in before.items():
        shift, bias = norms[name].of("bias"), f"{layer}.bias"
        if bias in own and tensors[bias].shape == tensors[shift].shape:
            out[shift] = tensors[shift] + tensors[norms[name].of("weight")] * tensors[bias]
            out[bias] = torch.zeros_like(tensors[bias])
    if all(out[n] is t for n, t in tensors.items()):
        return out
    others = architecture(out, inputs)
    far = (logits - others).abs().max() > 1e-4 * logits.abs().max()
    finite = torch.isfinite(logits).all() and torch.isfinite(others).all()
    return out if finite and not far else dict(tensors)


def _layers_before(
    architecture: Architecture,
    tensors: Mapping[str, Tensor],
    inputs: Tensor,
    norms: Collection[str],
) -> tuple[Tensor, dict[str, str]]:
    """The logits and, by the name of a norm, the name of the layer whose output is its input.

    Only norms and layers that are called once count.
    """
    code, calls = architecture.code("eval"), Counter[str]()
    made: list[tuple[Tensor, int, str]] = []  # outputs, kept so that no other takes their place
    found: dict[str, str] = {}

    def leave(name: str) -> Callable[..., None]:
        def note(_: nn.Module, args: Any, output: Any) -> None:
            calls[name] += 1
            if isinstance(output, Tensor):
                made.append((output, output._version, name))

        return note

    def enter(name: str) -> Callable[..., None]:
        def note(_: nn.Module, args: Any) -> None:
            calls[name] += 1
            for output, version, layer in made:
                if args and args[0] is output and output._version == version:
                    found[name] = layer

        return note

    with architecture.alone(), ExitStack() as hooks:  # hooks see the calls of all threads
        for name, module in code.named_modules():
            if name in norms:
                hooks.enter_context(module.register_forward_pre_hook(enter(name)))
            elif isinstance(module, (_ConvNd, nn.Linear)):
                hooks.enter_context(module.register_forward_hook(leave(name)))
        logits = architecture(tensors, inputs)
    return logits, {n: layer for n, layer in found.items() if calls[n] == calls[layer] == 1}


@torch.no_grad()
def unfolded(
    architecture: Architecture, tensors: Mapping[str, Tensor], inputs: Tensor
) -> dict[str, Tensor]:
    """The tensors with scales and shifts that do the same in training, on inputs like these.

    In training a norm divides by the deviation of its batch, which a folded scale does not undo. So
    the network runs once as it is stored, and what each norm is given tells mean and deviation.

    - `inputs`: normalized inputs [batch, ...], some hundreds.
    """
    norms, seen, out = list(foldable(architecture)), {}, dict(tensors)
    code = architecture.code("eval")

    def watch(norm: Norm) -> RemovableHandle:
        def look(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            x = args[0].detach().float()
            axes = [0, *range(2, x.ndim)]
            seen[norm.name] = torch.var_mean(x, axes, correction=0)

        return code.get_submodule(norm.name).register_forward_pre_hook(look)

    with ExitStack() as hooks:
        for norm in norms:
            hooks.enter_context(watch(norm))
        architecture(tensors, inputs)
    for norm in norms:
        if norm.name not in seen:  # a layer that no input reaches
            continue
        var, mean = seen[norm.name]
        scale, shift = tensors[norm.of("weight")], tensors[norm.of("bias")]
        old_mean, old_var = tensors[norm.of("running_mean")], tensors[norm.of("running_var")]
        scale = scale / (old_var + norm.eps).sqrt()  # folded: no change
        out[norm.of("weight")] = scale * (var + norm.eps).sqrt()
        out[norm.of("bias")] = shift + scale * (mean - old_mean)
        out[norm.of("running_mean")], out[norm.of("running_var")] = mean, var
    return out
