"""The module that is trained: free values, scores and task-specific parameters of one task.

The effective weight is mask ⊙ where(owned, bank value, Q(free value)), built inside the forward
pass. Owned values are buffers, not parameters: no optimizer can move them. Shapes: [N] is the flat
vector of all shared weights, [blocks] that of their mask blocks; see `layout`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_map

from tinysubnets.errors import ArchitectureError
from tinysubnets.nn.architecture import Architecture, Mode
from tinysubnets.nn.codebook import (
    LookupTable,
    has_codebook_kernels,
    lookup_table,
    nearest_centroid,
    update_codebooks,
)
from tinysubnets.nn.init import InitialState
from tinysubnets.nn.layout import Layout
from tinysubnets.nn.topk import kernels_for, top_k_segments
from tinysubnets.nn.uncompiled import uncompiled

TINY = torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class Compression:
    """How a task's weights are selected and quantized while it is trained.

    - `keep`: how many blocks of each shared tensor the mask holds.
    - `bits`: the width of a code, 2**bits centroids per codebook; 32 means no quantization.
    - `share`: whether weights that earlier tasks own may be selected.
    - `scope`: a codebook per "layer" or one for the whole "task".
    - `layer_loss_weight`: the weight λ of the layer-wise loss; 0 leaves it out.
    - `layer_loss`: its form, see `layer_losses`.
    - `in_place`: whether own values are overwritten by centroids at every update of the codebooks,
      and trained as floats in between; else they are rounded in every step.
    """

    keep: tuple[int, ...]
    bits: int = 4
    share: bool = True
    scope: Literal["layer", "task"] = "layer"
    layer_loss_weight: float = 0.0
    layer_loss: Literal["both", "commit"] = "both"
    in_place: bool = False


def codebook_segments(
    layout: Layout, scope: Literal["layer", "task"]
) -> tuple[tuple[int, int], ...]:
    """Start and stop of the parts of the flat vector [N] that have a codebook each."""
    return layout.segments if scope == "layer" else ((0, layout.num_weights),)


class EffectiveWeights(torch.autograd.Function):
    """Mask times values, with gradients straight through the mask and the quantization.

    Forward: the value where the mask is set, else 0. Backward, with g the gradient of the effective
    weight: g for free values that are kept, 0 for owned ones; sign(score) · Σ g · value for the
    score of a block, kept or not, the sum over its weights. That is the gradient of
    mask + |s| − stop(|s|) times Q(w) + w − stop(w), where stop lets no gradient through. Without
    the absolute value negative scores would move away from what the loss asks for.

    `free`, `owned` and `values` are [N], `scores` and `mask` [blocks]. `free` is there for its
    gradient alone: `values` are the bank's or the quantized free ones.
    """

    @staticmethod
    def forward(
        ctx: Any,
        free: Tensor,
        scores: Tensor,
        layout: Layout,
        mask: Tensor,
        owned: Tensor,
        values: Tensor,
    ) -> Tensor:
        kept = layout.expand(mask)
        ctx.layout = layout
        ctx.save_for_backward(scores, kept, owned, values)
        return torch.where(kept, values, 0.0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        scores, kept, owned, values = ctx.saved_tensors
        to_free = torch.where(kept & ~owned, gradient, 0.0)
        to_scores = ctx.layout.sum(gradient * values) * torch.sign(scores)
        return to_free, to_scores, None, None, None, None


class TaskModule(nn.Module):
    """One task in training over a bank: what the optimizer and the compiler see.

    `bank_values` [N] and `owned` [blocks] are those of the bank, `start` what training begins with.
    Parameters are the free values [N], of which those at owned places are never used, the scores
    [blocks] and the task-specific parameters.
    """

    # `mode`: how the network computes in training. `recalibrates`: whether normalization statistics
    # are estimated anew before the network is measured; those of a frozen base are not.
    mode: Mode = "train"
    recalibrates = True
    lr_factors: Mapping[str, float] = MappingProxyType({})  # of the learning rate, by group

    # Not part of the state: given, or made anew from what is.
    bank_values: Tensor  # [N]
    owned: Tensor  # bool [blocks]
    owned_weights: Tensor  # bool [N]
    lookup_low: Tensor  # [codebooks], as the next: see `codebook.LookupTable`
    lookup_rate: Tensor
    lookup_centroids: Tensor  # [codebooks, steps]
    # Part of the state.
    centroids: Tensor  # [codebooks, 2**bits]; zeros before the first fit
    last_thresholds: Tensor  # [tensors]: where the next top-k begins to search; changes no result

    def __init__(
        self,
        architecture: Architecture,
        layout: Layout,
        bank_values: Tensor,
        owned: Tensor,
        start: InitialState,
        compression: Compression,
    ) -> None:
        super().__init__()
        self.architecture, self.layout, self.compression = architecture, layout, compression
        self.free = nn.Parameter(start.free.clone())
        self.scores = nn.Parameter(start.scores.clone())
        self.names = [n for n in start.task_params if n not in architecture.running_stats]
        self.task_params = nn.ParameterList(
            [nn.Parameter(start.task_params[n].clone()) for n in self.names]
        )
        self.running_stats = nn.ParameterList(
            [
                nn.Parameter(start.task_params[n].clone(), requires_grad=False)
                for n in architecture.running_stats
            ]
        )
        self.constant_names = list(architecture.constants)
        for i, name in enumerate(self.constant_names):
            self.register_buffer(
                f"constant_{i}", architecture.constants[name].clone(), persistent=False
            )
        self.register_buffer("bank_values", bank_values, persistent=False)
        self.register_buffer("owned", owned, persistent=False)
        self.register_buffer("owned_weights", layout.expand(owned), persistent=False)
        num_centroids = 2**compression.bits if compression.bits < 32 else 1
        self.codebook_segments = codebook_segments(layout, compression.scope)
        self.register_buffer("centroids", torch.zeros(len(self.codebook_segments), num_centroids))
        self.register_buffer("last_thresholds", torch.zeros(len(layout.block_segments)))
        for name, tensor in lookup_table(self.centroids)._asdict().items():
            self.register_buffer(f"lookup_{name}", tensor, persistent=False)
        self.register_load_state_dict_post_hook(lambda module, _: module._follow_centroids_())
        self.bounds = [  # of the top-k: first block, the one behind the last, how many to keep
            (i, j, k) for (i, j), k in zip(layout.block_segments, compression.keep, strict=True)
        ]
        self.codebooks_fitted = False  # whether the next fit has centroids to begin with
        self.has_owned = bool(owned.any())

    @cached_property
    def is_free(self) -> Tensor:
        """float32 [N]: 1 where nobody owns a weight, else 0."""
        return (~self.owned_weights).float()

    @uncompiled  # a search of its own; a compiler would only unroll it
    @torch.no_grad()
    def mask(self) -> Tensor:
        """The mask of the current scores, bool [blocks]: exactly k blocks of each tensor.

        Those of the largest |score|, ties to the lower index.
        """
        allowed = None if self.compression.share else ~self.owned
        scores, last = self.scores.detach(), self.last_thresholds
        kernels = kernels_for(scores)
        if kernels is not None:  # it takes signed scores, and updates the thresholds itself
            return kernels.top_k_magnitudes(scores, self.bounds, allowed, last)[0]
        mask, thresholds = top_k_segments(scores.abs(), self.bounds, last, allowed)
        last.copy_(thresholds)
        return mask

    @property
    def settled(self) -> bool:
        """Whether mask and values are already of the kind they will be stored as: they always are.

        Only then can an epoch be the best one.
        """
        return True

    @torch.no_grad()
    def update_codebooks_(self, share: float = 1.0) -> None:
        """Fit the training codebooks anew to the task's own kept weights.

        Not to zeros, which the mask supplies, nor to owned values, which stay as they are.

        - `share`: that of all steps which is done, 0 to 1.
        """
        if not self.has_codebooks:
            return
        own = self.layout.expand(self.mask() > self.owned)  # one launch for mask & ~owned
        previous = self.centroids if self.codebooks_fitted else None
        k = self.centroids.shape[-1]
        self.centroids.copy_(
            update_codebooks(self.free.detach(), own, self.codebook_segments, k, previous)
        )
        self.codebooks_fitted = True
        self.update_lookup_table_()
        if self.compression.in_place:
            near = nearest_centroid(self.free, self.lookup, self.codebook_segments)
            self.free.copy_(torch.where(own, near, self.free))

    def trained_codebooks(self, bits: int) -> tuple[Tensor, ...] | None:
        """The sorted centroids that are to be stored with codes of so many bits, per codebook.

        None where they are fitted anew to the final values.
        """
        return None

    @property
    def has_codebooks(self) -> bool:
        """Whether `update_codebooks_` does anything."""
        return self.compression.bits < 32

    @property
    def rounds_in_steps(self) -> bool:
        """Whether every step sees free values rounded to centroids."""
        return self.has_codebooks and not self.compression.in_place

    @property
    def can_capture_codebooks(self) -> bool:
        """Whether a CUDA graph can hold `update_codebooks_`."""
        return has_codebook_kernels(self.free, self.centroids.shape[-1])

    @property
    def lookup(self) -> LookupTable:
        """The table by which free values are rounded to the centroids."""
        return LookupTable(self.lookup_low, self.lookup_rate, self.lookup_centroids)

    @torch.no_grad()
    def update_lookup_table_(self) -> None:
        """Bring the lookup table in line with the centroids."""
        kernels = kernels_for(self.centroids)
        if kernels is not None and self.has_codebooks:
            kernels.lookup_table_(self.centroids, *self.lookup)
            return
        for table, tensor in zip(self.lookup, lookup_table(self.centroids), strict=True):
            table.copy_(tensor)

    def _follow_centroids_(self) -> None:
        """Bring what is not part of the state in line with centroids that were loaded."""
        self.codebooks_fitted = bool(self.centroids.any())  # before the first fit all are zero
        self.update_lookup_table_()

    @torch.no_grad()
    def quantized(self) -> Tensor:
        """Q(free) [N]: the nearest centroid of each free value; itself where it is not rounded."""
        if not self.rounds_in_steps:
            return self.free.detach()
        return nearest_centroid(self.free, self.lookup, self.codebook_segments)

    def effective(self, mask: Tensor | None = None) -> Tensor:
        """The effective weights [N] that training differentiates through.

        On a GPU in one pass each way, where every weight is a block of its own.
        """
        mask = self.mask() if mask is None else mask
        if self.free.is_cuda and self.layout.is_identity:
            return self._fused(mask)
        return self._plain(mask)

    def _plain(self, mask: Tensor) -> Tensor:
        return EffectiveWeights.apply(
            self.free, self.scores, self.layout, mask, self.owned_weights, self.values()
        )

    @uncompiled  # a kernel already
    def _fused(self, mask: Tensor) -> Tensor:
        kernels = kernels_for(self.free)
        if kernels is None:
            return self._plain(mask)
        return kernels.FusedWeights.apply(
            self.free, self.scores, mask, self.owned_weights, self.bank_values,
            self.lookup if self.rounds_in_steps else None, self.codebook_segments,
        )  # fmt: skip

    @torch.no_grad()
    def values(self) -> Tensor:
        """The value of each weight before the mask [N]: the bank's where owned, else Q(free)."""
        near = self.quantized()
        if near.device.type != "cpu" or torch.compiler.is_compiling():
            return torch.where(self.owned_weights, self.bank_values, near)
        # Values that nobody owns are 0 in a bank: a sum says the same, three times as fast.
        return torch.addcmul(self.bank_values, near, self.is_free) if self.has_owned else near

    def tensors(self, weights: Tensor) -> dict[str, Tensor]:
        """All tensors of the network by name, with the given shared weights [N]."""
        out = self.architecture.split(weights) | dict(
            zip(self.names, self.task_params, strict=True)
        )
        out |= dict(zip(self.architecture.running_stats, self.running_stats, strict=True))
        return out | self.constants()

    def constants(self) -> dict[str, Tensor]:
        """The network's constant buffers, on the module's device."""
        return {n: getattr(self, f"constant_{i}") for i, n in enumerate(self.constant_names)}

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """The parameters that training moves, by kind: "scores" have a rate of their own."""
        return {"free": [self.free], "scores": [self.scores], "task_params": list(self.task_params)}

    def eval_tensors(self) -> dict[str, Tensor]:
        """All tensors of the network as it would be used now."""
        return {n: t.detach() for n, t in self.tensors(self.final_weights()).items()}

    def forward(
        self, inputs: Tensor, labels: Tensor | None = None, class_weights: Tensor | None = None
    ) -> Tensor:
        """The logits of normalized inputs [batch, ...] or, with labels [batch], the loss.

        The training loop calls nothing else for its gradients, so that a wrapper around the module
        sees every step. `class_weights` [classes] weigh the cross-entropy.
        """
        return self.logits(inputs) if labels is None else self.loss(inputs, labels, class_weights)

    def logits(self, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        """The logits [batch, classes] of normalized inputs, in training mode.

        `mask` is that of the current scores, where it is known already.
        """
        return self.architecture(self.tensors(self.effective(mask)), inputs, self.mode)

    def loss(self, inputs: Tensor, labels: Tensor, class_weights: Tensor | None = None) -> Tensor:
        """Cross-entropy, plus λ times how far compression moves the output of each layer."""
        mask = self.mask()
        if self.compression.layer_loss_weight == 0:
            return functional.cross_entropy(self.logits(inputs, mask), labels, class_weights)
        full = torch.where(self.owned_weights, self.bank_values, self.free)
        commits = self.compression.layer_loss == "commit"
        if commits:  # never to what the task does not use
            full = torch.where(self.layout.expand(mask), full, 0.0)
        with layer_losses(self.architecture, self.architecture.split(full), commits) as losses:
            loss = functional.cross_entropy(self.logits(inputs, mask), labels, class_weights)
        return loss + self.compression.layer_loss_weight * sum(losses)

    @torch.no_grad()
    def final_weights(self, mask: Tensor | None = None) -> Tensor:
        """The weights [N] of the task as it is evaluated: exact zeros outside the mask."""
        return self.compose(self.mask() if mask is None else mask, self.quantized())

    def compose(self, mask: Tensor, own: Tensor) -> Tensor:
        """The weights [N] under a mask: the bank's values where owned, else own ones [N]."""
        values = torch.where(self.owned_weights, self.bank_values, own)
        return torch.where(self.layout.expand(mask), values, 0.0)


@contextmanager
def layer_losses(
    architecture: Architecture, full: dict[str, Tensor], commits: bool = False
) -> Iterator[list[Tensor]]:
    """The layer-wise loss: how far compression moves the output of each layer.

    Inside, a forward pass of the network adds to the list, for each layer with shared weights, the
    mean squared error between its output and that with `full` weights, by name. The full side gets
    the compressed side's input.

    - `commits`: False lets gradients through on both sides, as the paper does. True lets them
      through to the full weights alone, over the mean square of the compressed output: free values
      are drawn to what they are rounded to, and nothing else moves. (With gradients on the
      compressed side alone the loss diverges: free values outside the mask, the target, never
      move, and those inside run after it.)
    """
    losses: list[Tensor] = []
    inside = False  # a layer that is called for its full output calls layers, which do not count

    def compare(owner: str, names: list[str]) -> None:
        """Add a loss whenever the layer `owner`, with the shared weights `names`, is called."""
        module, prefix = code.get_submodule(owner), f"{owner}." if owner else ""
        weights = {n[len(prefix) :]: full[n] for n in names}
        before: list[int] = []

        def enter(_: nn.Module, args: Any) -> None:
            before[:] = _versions(args)

        def leave(_: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            nonlocal inside
            if inside:
                return
            if before != _versions(args):
                raise ArchitectureError(
                    f"the layer {owner or '(the network)'} overwrites its own input, which the "
                    "layer-wise loss needs again; use inplace=False there, or set "
                    "layer_loss_weight to 0."
                )
            # A copy: an activation that follows may overwrite the output in place.
            compressed, used = _first(output).clone(), weights
            if commits:
                args, kwargs = tree_map(_detached, (args, kwargs))
                own = {n: t.detach() for n, t in module.named_parameters() if n not in weights}
                compressed, used = compressed.detach(), own | weights
            inside = True
            target = torch.func.functional_call(module, used, args, kwargs)
            inside = False
            loss = functional.mse_loss(compressed, _first(target))
            if commits:
                loss = loss / compressed.square().mean().clamp_min(TINY)
            losses.append(loss)

        hooks.enter_context(module.register_forward_hook(leave, with_kwargs=True))
        hooks.enter_context(module.register_forward_pre_hook(enter))

    code = architecture.code("train")
    with ExitStack() as hooks:
        for owner, names in architecture.layers():
            compare(owner, names)
        yield losses


def _versions(args: Any) -> list[int]:
    """How often each tensor was changed in place; nothing for a compiler, which sees no such."""
    if torch.compiler.is_compiling():
        return []
    return [a._version for a in args if isinstance(a, Tensor)]


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _first(output: Any) -> Tensor:
    """The first tensor of a layer's output: attention and recurrent layers give several."""
    if isinstance(output, Tensor):
        return output
    return _first(next(iter(output.values() if isinstance(output, Mapping) else output)))
