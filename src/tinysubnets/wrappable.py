"""Which networks can be wrapped: checks at the door, before any of their code runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from tinysubnets.errors import ArchitectureError


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
