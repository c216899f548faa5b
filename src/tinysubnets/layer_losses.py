"""The layer-wise loss: how far compression moves the output of each layer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tinysubnets.architecture import Architecture


@contextmanager
def layer_losses(architecture: Architecture, full: dict[str, Tensor]) -> Iterator[list[Tensor]]:
    """Collect, for each layer with shared weights, the MSE to its output with full weights.

    The full side gets the compressed side's input and no gradient.
    """
    losses: list[Tensor] = []
    inside = False

    def compare(module: nn.Module, names: list[str], prefix: str) -> Any:
        weights = {n[len(prefix) :]: full[n] for n in names}

        def hook(_: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            nonlocal inside
            if inside:
                return
            inside = True
            with torch.no_grad():
                target = torch.func.functional_call(module, weights, args, kwargs)
            inside = False
            losses.append(functional.mse_loss(_first(output), _first(target)))

        return module.register_forward_hook(hook, with_kwargs=True)

    code = architecture.code("train")
    handles = [
        compare(code.get_submodule(owner), names, f"{owner}." if owner else "")
        for owner, names in architecture.layers()
    ]
    try:
        yield losses
    finally:
        for handle in handles:
            handle.remove()


def _first(output: Any) -> Tensor:
    """The first tensor of a layer's output: attention and recurrent layers give several."""
    return output if isinstance(output, Tensor) else _first(output[0])
