"""A bank: one complete set of values over the shared weights, with its owned set.

And the base: pretrained values that belong to nobody and that tasks may add their own to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tinysubnets.nn.layout import Layout


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
        return float(self.layout.block_sizes[self.owned].sum()) / self.layout.num_weights

    def free_per_tensor(self) -> tuple[int, ...]:
        """How many blocks of each tensor are still free."""
        return tuple(int((~self.owned[i:j]).sum()) for i, j in self.layout.block_segments)


@dataclass(frozen=True)
class Base:
    """Pretrained weights that tasks start from and that no task owns.

    - `name`, `source`: what they are called, and where they come from.
    - `sha256`: of names and values, as `nn.init.weights_hash` computes it.
    - `values`: all shared tensors and the task-specific ones whose shape does not depend on the
      task's classes, by name; None where they are not at hand.
    - `embedded`: whether a saved model holds the values, or only names them.
    """

    name: str
    source: str
    sha256: str
    values: Mapping[str, Tensor] | None = None
    embedded: bool = False
