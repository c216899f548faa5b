"""A bank: one complete set of values over the shared weights, with its owned set.

And the base: pretrained values that belong to nobody and that tasks may add their own to.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from tinysubnets.errors import ArchitectureError, MismatchError
from tinysubnets.nn.architecture import Architecture
from tinysubnets.nn.init import weights_hash
from tinysubnets.nn.layout import Layout

# What the values of a base can be given as: a network, its tensors by name, a file of them, or the
# name of a network that is built with them.
BaseSource = nn.Module | Architecture | Mapping[str, Tensor] | str | os.PathLike[str]


class Bank:
    """One value per shared weight, and which of them learned tasks own for ever.

    Values that nobody owns are zero; owned values never change again.

    - `layout`: the shared weights, and the blocks that a mask divides them into.
    - `values`: float32 [num_weights], by default zeros.
    - `owned`: booleans [num_blocks], by default none.
    """

    def __init__(
        self, layout: Layout, values: Tensor | None = None, owned: Tensor | None = None
    ) -> None:
        self.layout = layout
        self.values = torch.zeros(layout.num_weights) if values is None else values
        self.owned = torch.zeros(layout.num_blocks, dtype=torch.bool) if owned is None else owned

    def keep_(self, used: Tensor) -> None:
        """Free every block outside `used`, booleans [num_blocks]; values there are zero again."""
        self.values = torch.where(self.layout.expand(used), self.values, torch.zeros(()))
        self.owned = self.owned & used

    def new_blocks(self, mask: Tensor) -> Tensor:
        """The blocks of a mask that nobody owns yet."""
        return mask & ~self.owned

    def claim_(self, mask: Tensor, values: Tensor) -> None:
        """Give the mask's free blocks to a task: write their values, in order, and own them.

        - `mask`: booleans [num_blocks].
        - `values`: one per weight of the blocks that are new, in the order of the flat vector.
        """
        new = self.layout.expand(self.new_blocks(mask))
        # A new tensor, not a write in place: whoever holds the old one keeps a consistent bank.
        self.values = self.values.masked_scatter(new, values.to(self.values))
        self.owned = self.owned | mask

    def owned_share(self) -> float:
        """The share of weights that some task of the bank owns."""
        return self.layout.count(self.owned) / self.layout.num_weights

    def free_per_tensor(self) -> tuple[int, ...]:
        """How many blocks of each tensor are still free."""
        segments = self.layout.block_segments
        return tuple(j - i - int(self.owned[i:j].count_nonzero()) for i, j in segments)


@dataclass(frozen=True)
class Base:
    """Pretrained weights that tasks start from and that no task owns.

    - `name`, `source`: what they are called, and where they come from.
    - `sha256`: of names, types, shapes and values, as `nn.init.weights_hash` computes it.
    - `values`: all shared tensors and the task-specific ones whose shape does not depend on the
      task's classes, float32 by name; None where they are not at hand.
    - `embedded`: whether a saved model holds the values, or only names them.
    """

    name: str
    source: str
    sha256: str
    values: Mapping[str, Tensor] | None = None
    embedded: bool = False

    @classmethod
    def of(cls, architecture: Architecture) -> Base:
        """The weights of the network that was wrapped, as they are now."""
        rebuild = architecture.rebuild or {}
        name = str(rebuild.get("network") or architecture.name)
        values = base_values(architecture, architecture.pretrained)
        return cls(name, architecture.source, weights_hash(values), values)

    def filled(self, values: Mapping[str, Tensor], whose: str) -> Base:
        """The same base with values, which are refused where they are not its own.

        - `values`: as `base_values` gives them.
        - `whose`: what they are the weights of, for the error.
        """
        found = weights_hash(values)
        if found != self.sha256:
            raise MismatchError(
                f"{whose} has other weights than the base {self.name!r} ({self.source}) that the "
                f"model was learned over:\n  the base  {self.sha256}\n  given     {found}\nGive "
                "the network with its pretrained weights, or a file of them: load(…, base=…), or "
                "--base and --weights on the command line."
            )
        return replace(self, values=values)


def base_values(architecture: Architecture, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a base, copied in float32, so that training the network changes none.

    - `tensors`: all those of a network, by name.
    """
    missing = [s.name for s in architecture.fixed_tensors if s.name not in tensors]
    other = [
        f"{s.name} {tuple(tensors[s.name].shape)} instead of {s.shape}"
        for s in architecture.fixed_tensors
        if s.name in tensors and tuple(tensors[s.name].shape) != s.shape
    ]
    types = [
        f"{s.name} {tensors[s.name].dtype}"
        for s in architecture.fixed_tensors
        if s.name in tensors and not tensors[s.name].is_floating_point()
    ]
    kinds = (("lack", missing), ("are of other shapes:", other), ("are of other types:", types))
    for what, names in kinds:
        if names:
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            raise MismatchError(
                f"these weights are not those of the network, they {what} "
                f"{', '.join(names[:5])}{more}."
            )
    return {
        s.name: tensors[s.name].detach().float().cpu().clone() for s in architecture.fixed_tensors
    }


def check_base(architecture: Architecture) -> None:
    """Refuse weights that cannot be a base: only finite numbers that float32 holds exactly."""
    for spec in architecture.fixed_tensors:
        tensor = architecture.pretrained[spec.name]
        if tensor.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            raise ArchitectureError(
                f"{spec.name!r} of the base is of type {tensor.dtype}, and a base is kept in "
                "float32; convert the network first: net.float()."
            )
        if not bool(torch.isfinite(tensor).all()):
            raise ArchitectureError(
                f"{spec.name!r} of the base is not finite everywhere; look at the weights that "
                "were loaded."
            )
        is_variance = spec.name in architecture.running_stats and spec.name.endswith("running_var")
        if is_variance and bool((tensor < 0).any()):
            raise ArchitectureError(
                f"{spec.name!r} of the base has variances below 0; look at the weights that were "
                "loaded."
            )
