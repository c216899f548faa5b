"""A task whose mask holds the largest of its own values, pruned gradually while it is trained.

The effective weight is reference + mask ⊙ Q(own value), where the reference is an earlier task's
weights, a pretrained base, or nothing. So a task stores only where and how it differs. Shapes: [N]
is the flat vector of all shared weights, [blocks] that of their mask blocks; see `layout`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tinysubnets.nn.architecture import Architecture
from tinysubnets.nn.init import InitialState
from tinysubnets.nn.layout import Layout
from tinysubnets.nn.masked import Compression, TaskModule
from tinysubnets.nn.uncompiled import uncompiled

PRUNED_BY = 0.4  # of all steps: then the density is the one asked for
QUANTIZED_FROM = 0.5  # of all steps: values train freely before, and as they are stored afterwards


@dataclass(frozen=True)
class MagnitudePruning:
    """How own values are chosen and quantized while a task is trained.

    - `density`: the share of blocks that the mask holds in the end; 0 keeps the reference as it is.
    - `density_exponent`: above 0 small tensors are denser: what counts as large in a tensor grows
      with its size to this power.
    - `bits`: the width of a code, from 1 on: two centroids, as a rule one of either sign; 32 means
      no quantization.
    - `scope`: a codebook per "layer" or one for the whole "task".
    - `first`: the share that the mask holds in the beginning.
    """

    density: float
    density_exponent: float = 0.0
    bits: int = 1
    scope: Literal["layer", "task"] = "layer"
    first: float = 1.0


class StraightThrough(torch.autograd.Function):
    """The second argument, with the gradient of the first: pruned values are trained on too."""

    @staticmethod
    def forward(ctx: Any, free: Tensor, used: Tensor) -> Tensor:
        return used.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class MagnitudeModule(TaskModule):
    """One task in training over a reference: what the optimizer and the compiler see.

    The mask is that of the largest own values, in units of their tensor's deviation, over the whole
    network, so that each tensor finds its own density. The share kept falls to `density` by a cubic
    within the first `PRUNED_BY` of all steps. Values outside the mask get gradients too,
    and may return.

    - `start`: its `free` values are where own values start from, 0 for a difference; no scores.
    - `reference`: the weights [N] that own values are added to; None for zeros.
    - `pruning`: how many are kept, and in how many bits.
    - `own_params`: over a frozen base, the names of the task-specific parameters that the task has
      for itself. All others stay as they start, and norms use the statistics they start with, in
      training too. None means that all are the task's own.
    """

    reference: Tensor  # [N]; not part of the state
    limits: Tensor  # [tensors]: the least magnitude of a block that the mask holds
    is_quantized: Tensor  # bool []: whether values are rounded already
    # Not part of the state, as `reference`.
    tensor_of_block: Tensor  # int64 [blocks]
    leniency: Tensor  # [tensors]: in what units of its deviation a tensor's values are measured
    block_sizes: Tensor  # [blocks]

    def __init__(
        self,
        architecture: Architecture,
        layout: Layout,
        start: InitialState,
        reference: Tensor | None,
        pruning: MagnitudePruning,
        own_params: Collection[str] | None = None,
    ) -> None:
        nothing = torch.zeros(layout.num_weights)
        unowned = torch.zeros(layout.num_blocks, dtype=torch.bool)
        compression = Compression((0,) * len(layout.segments), pruning.bits, scope=pruning.scope)
        start = InitialState(torch.zeros(0), start.free, start.task_params)
        super().__init__(architecture, layout, nothing, unowned, start, compression)
        self.pruning = pruning
        self.register_buffer(
            "reference", nothing if reference is None else reference, persistent=False
        )
        self.register_buffer("limits", torch.zeros(len(layout.segments)))
        self.register_buffer("is_quantized", torch.zeros((), dtype=torch.bool))
        counts = torch.tensor([j - i for i, j in layout.block_segments])
        places = torch.repeat_interleave(torch.arange(len(counts)), counts)
        self.register_buffer("tensor_of_block", places, persistent=False)
        sizes = counts / counts.max()
        self.register_buffer("leniency", sizes**pruning.density_exponent, persistent=False)
        self.register_buffer("block_sizes", layout.block_sizes.float(), persistent=False)
        self.share_done = 0.0  # of all steps, when codebooks were last updated
        self.own_params = None if own_params is None else frozenset(own_params)
        if self.own_params is not None:
            below = not all(map(architecture.in_head, self.own_params))
            # Below a head that is trained alone nothing is to differ from step to step.
            self.mode = "frozen" if below or pruning.density > 0 else "eval"
            self.recalibrates = False
            for name, parameter in zip(self.names, self.task_params, strict=True):
                parameter.requires_grad_(name in self.own_params)
        self.free.requires_grad_(pruning.density > 0)

    @property
    def settled(self) -> bool:
        """Whether mask and values are already what they will be stored as."""
        return self.share_done >= QUANTIZED_FROM or self.pruning.density == 0

    @property
    def can_capture_codebooks(self) -> bool:
        """Never: how many blocks are kept changes from update to update."""
        return False

    @property
    def has_codebooks(self) -> bool:
        """Whether `update_codebooks_` does anything: it sets what the mask holds."""
        return True

    @torch.no_grad()
    def magnitudes(self) -> Tensor:
        """How large the own values of each block are [blocks]: the root of their mean square."""
        if self.layout.is_identity:
            return self.free.detach().abs()
        return (self.layout.sum(self.free.detach().square()) / self.block_sizes).sqrt()

    @uncompiled
    @torch.no_grad()
    def mask(self) -> Tensor:
        """The blocks whose own values are large enough, bool [blocks]."""
        if self.pruning.density == 0:
            return self.owned  # nothing
        return self.magnitudes() >= self.limits[self.tensor_of_block]

    @torch.no_grad()
    def update_codebooks_(self, share: float = 1.0) -> None:
        """Prune down to the density of this moment and, later on, fit the codebooks anew.

        - `share`: that of all steps which is done, 0 to 1.
        """
        self.share_done = share
        final = self.pruning.density
        if final > 0:
            first = max(final, self.pruning.first)
            self._limit_(final + (first - final) * max(0.0, 1 - share / PRUNED_BY) ** 3)
        if self.pruning.bits < 32 and self.settled and final > 0:
            super().update_codebooks_()
            self.is_quantized.fill_(True)

    def trained_codebooks(self, bits: int) -> tuple[Tensor, ...] | None:
        """Those of training: another fit to the values that were rounded is another network."""
        if bits != self.pruning.bits or not bool(self.is_quantized):
            return None
        return tuple(centroids.cpu().unique() for centroids in self.centroids)

    def _limit_(self, density: float) -> None:
        """Set each tensor's limit so that the mask holds this share of all blocks."""
        whole = (self.reference + self.free.detach()).square()
        deviation = torch.stack([whole[i:j].mean() for i, j in self.layout.segments]).sqrt()
        unit = deviation.clamp_min(1e-12) * self.leniency
        relative = self.magnitudes() / unit[self.tensor_of_block]
        keep = max(1, round(density * len(relative)))
        if relative.is_cuda:  # a selection runs on one of its many processors
            limit = relative.sort().values[-keep]
        else:
            limit = relative.kthvalue(len(relative) - keep + 1).values
        self.limits.copy_(limit * unit)

    @torch.no_grad()
    def own_values(self) -> Tensor:
        """The own value of each weight before the mask [N], rounded where the time has come."""
        free = self.free.detach()
        if self.pruning.bits >= 32:
            return free
        return torch.where(self.is_quantized, self.quantized(), free)

    def effective(self, mask: Tensor | None = None) -> Tensor:
        """The effective weights [N] that training differentiates through."""
        if self.pruning.density == 0:
            return self.reference  # no gradient is computed that nobody needs
        return StraightThrough.apply(self.free, self.final_weights(mask))

    @torch.no_grad()
    def final_weights(self, mask: Tensor | None = None) -> Tensor:
        """The weights [N] of the task as it is evaluated."""
        if self.pruning.density == 0 and mask is None:
            return self.reference
        return self.compose(self.mask() if mask is None else mask, self.own_values())

    def compose(self, mask: Tensor, own: Tensor) -> Tensor:
        """The weights [N] under a mask: own values are added where it is set."""
        return torch.where(self.layout.expand(mask), self.reference + own, self.reference)

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """The parameters that training moves: norms and biases are never decayed."""
        free = [] if self.pruning.density == 0 else [self.free]
        out: dict[str, list[nn.Parameter]] = {"free": free, "matrices": [], "vectors": []}
        for parameter in (p for p in self.task_params if p.requires_grad):
            out["matrices" if parameter.ndim > 1 else "vectors"].append(parameter)
        return out
