"""From a trained task to a subnet: bit-width, post-pruning, codebooks, task-specific parameters."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tinysubnets.coding.bits import pack_mask
from tinysubnets.method.pruning import (
    Candidate,
    Pruned,
    PruningSettings,
    PruningStep,
    post_prune,
)
from tinysubnets.model.subnet import CodebookTensor, code, constant
from tinysubnets.nn.magnitude import MagnitudeModule
from tinysubnets.nn.masked import TaskModule
from tinysubnets.nn.norms import folded
from tinysubnets.training.evaluate import EvalResult, check_finite, recalibrate_batchnorm
from tinysubnets.training.loop import Training
from tinysubnets.training.stages import ChangedInputError, StagedEvaluation, stages_of

MAX_BITS = 8
TASK_PARAM_LEVELS = (4, 5, 6, 8, 16, 32)
DIFFERENCE_LEVELS = (2, 3, *TASK_PARAM_LEVELS)  # over a base, where most of it is known already


@dataclass(frozen=True)
class Compressed:
    """A trained task's mask and its own weights as codes.

    - `mask`: the blocks that the task uses.
    - `bits`: the width of a code.
    - `own`: the weights that nobody owned before, one entry per codebook.
    - `seconds`: what post-pruning took.
    """

    mask: Tensor
    bits: int
    own: tuple[CodebookTensor, ...]
    seconds: float = 0.0


@dataclass(frozen=True)
class TaskParamSettings:
    """How task-specific parameters are stored.

    - `bits`: their width; "auto" takes the narrowest form that loses at most `tolerance` of
      validation accuracy.
    - `price`: points of validation accuracy that a kilobyte must gain: above 0, "auto" takes the
      form that is worth the most at it instead.
    """

    bits: Literal["auto"] | int = 32
    tolerance: float = 0.0
    price: float = 0.0


class Compressor:
    """A trained module, and ways to measure it on validation data with other weights.

    Flat vectors hold one value per shared weight [N]; masks one per block [NB].

    - `base`: the tensors of a frozen base by name, where the task is learned over one: of its
      task-specific parameters only its own are stored, as differences to these.
    """

    def __init__(
        self, module: TaskModule, training: Training, base: Mapping[str, Tensor] | None = None
    ) -> None:
        self.module, self.training = module, training
        self.base = None if base is None else {n: t.to(module.free) for n, t in base.items()}
        self.layout = module.layout
        self.free = module.free.detach()
        self.mask = module.mask()

    def own_weights(self, mask: Tensor) -> Tensor:
        """Which weights of the flat vector the task would add to its bank."""
        return self.layout.expand(mask & ~self.module.owned)

    def owned_share(self, mask: Tensor) -> float:
        """The share of weights owned once this task is claimed."""
        return self.layout.count(mask | self.module.owned) / self.layout.num_weights

    def encode(self, mask: Tensor, bits: int) -> tuple[CodebookTensor, ...]:
        """The task's own weights as codes, one codebook per layer or one for all."""
        own = self.own_weights(mask)
        return tuple(code(self.free[i:j][own[i:j]], bits) for i, j in self.module.codebook_segments)

    def values(self, mask: Tensor, own: tuple[CodebookTensor, ...] | None) -> Tensor:
        """The flat own values under a mask, decoded or as trained."""
        if own is None:
            return self.free
        decoded = torch.cat([c.decode() for c in own]).to(self.free)
        return self.free.masked_scatter(self.own_weights(mask), decoded)

    def weights(self, mask: Tensor, own: tuple[CodebookTensor, ...] | None) -> Tensor:
        """The flat weights under a mask, with own values decoded or as trained."""
        return self.module.compose(mask, self.values(mask, own))

    def tensors(self, weights: Tensor) -> dict[str, Tensor]:
        """All tensors of the network with these shared weights and the task's own parameters."""
        return {n: t.detach() for n, t in self.module.tensors(weights).items()}

    def accuracy(self, weights: Tensor) -> float:
        """The validation accuracy with these shared weights; -∞ if logits are not finite."""
        return self.training.evaluate(self.tensors(weights)).ranked_accuracy

    def choose_bits(self, first: int, tolerance: float) -> tuple[int, tuple[CodebookTensor, ...]]:
        """The least width from `first` up that keeps accuracy within the tolerance, and the codes.

        The paper's adaptive bit-width: measured against the same subnet unquantized.
        """
        target = self.accuracy(self.weights(self.mask, None)) - tolerance
        for bits in range(first, MAX_BITS + 1):
            own = self.encode(self.mask, bits)
            if self.accuracy(self.weights(self.mask, own)) >= target:
                break
        return bits, own

    def prune(
        self,
        own: tuple[CodebookTensor, ...],
        bits: int,
        settings: PruningSettings,
        *,
        references: tuple[Tensor, ...],
        path: tuple[int | str, ...],
    ) -> Generator[PruningStep, None, Pruned]:
        """Algorithm 2 on the quantized subnet, step by step; the generator returns what is left.

        - `references`: masks that the task's own may be coded against.
        - `path`: the seed path that draws layers.
        """
        values = self.values(self.mask, own)
        measure = self._by_stages(values, settings.samples)
        measure = measure or self._as_a_whole(values, settings.samples)
        here = tuple(r.to(self.mask.device) for r in references)
        candidate = Candidate(self.mask, values, self.module.owned, bits, here)
        return (yield from post_prune(candidate, self.layout, settings, measure, path))

    def _as_a_whole(self, values: Tensor, samples: int) -> Callable[[Tensor], float]:
        """The accuracy with these own values under a mask, by a CUDA graph where it can be."""
        training, current = self.training, self.mask.clone()

        def count() -> Tensor:
            kept = self.module.compose(current, values)
            precision = training.settings.precision  # candidates are only compared
            return training.count_correct(self.tensors(kept), samples, precision)

        counts = training.captured(count)

        def measure(mask: Tensor) -> float:
            current.copy_(mask)
            return EvalResult.of(counts(), len(training.valid)).ranked_accuracy

        return measure

    def _by_stages(self, values: Tensor, samples: int) -> Callable[[Tensor], float] | None:
        """The same accuracy, with what comes before a changed layer remembered.

        None where a CUDA graph is faster, and for networks that are no chain of stages.
        """
        training, layout = self.training, self.layout
        all_tensors = self.tensors(self.module.compose(self.mask, values))
        without = self.tensors(self.module.compose(torch.zeros_like(self.mask), values))
        architecture = self.module.architecture
        stages = [] if training.can_capture else stages_of(architecture)
        if not stages or (architecture.has_running_stats and not self.module.recalibrates):
            return None
        staged = StagedEvaluation(
            architecture,
            stages,
            training.train,
            training.valid,
            samples=samples,
            precision=training.settings.precision,
        )
        # The last versions of each tensor: its part of the mask, the same as bytes, its weights.
        versions: list[list[tuple[Tensor, bytes, Tensor]]] = [[] for _ in layout.shared]

        def version(place: int, mask: Tensor) -> tuple[Tensor, bytes, Tensor]:
            known = next((v for v in versions[place] if torch.equal(v[0], mask)), None)
            if known is None:
                whole = all_tensors[layout.shared[place].name]
                lost = ~layout.blocks[place].expand(mask).view(whole.shape)
                key = pack_mask(mask.cpu().numpy()).tobytes()
                none = without[layout.shared[place].name]
                known = mask.clone(), key, torch.where(lost, none, whole)
            # Two are in use at a time: the one that is kept, and the one on trial.
            others = [v for v in versions[place] if v is not known]
            versions[place] = [*others[-1:], known]
            return known

        def measure(mask: Tensor) -> float:
            tensors, keys = dict(all_tensors), {}
            for place, (spec, (i, j)) in enumerate(
                zip(layout.shared, layout.block_segments, strict=True)
            ):
                _, keys[spec.name], tensors[spec.name] = version(place, mask[i:j])
            counts = staged.count(tensors, keys)
            return EvalResult.of(counts, len(training.valid)).ranked_accuracy

        try:
            measure(self.mask)  # remembered, so it is not lost
        except ChangedInputError:
            return None
        return measure

    def task_params(
        self, compressed: Compressed, settings: TaskParamSettings
    ) -> tuple[dict[str, CodebookTensor], float]:
        """The task-specific parameters as stored, with final statistics, and the accuracy then."""
        training, architecture = self.training, self.module.architecture
        tensors = self.tensors(self.weights(compressed.mask, compressed.own))
        named = [s.name for s in architecture.task_params]
        levels: Sequence[int] = TASK_PARAM_LEVELS
        if isinstance(self.module, MagnitudeModule) and self.module.own_params is not None:
            named = [n for n in named if n in self.module.own_params]
            levels = DIFFERENCE_LEVELS
        else:
            tensors = recalibrate_batchnorm(architecture, tensors, training.train, None)
            tensors = folded(architecture, tensors)

        def accuracy(coded: dict[str, CodebookTensor]) -> float:
            stored = tensors | self.decoded(coded, tensors)
            return training.evaluate(stored, recalibrate=False).ranked_accuracy

        return _narrowest(self.stored(named, tensors), settings, accuracy, levels)

    def stored(self, names: Sequence[str], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Parameters as they are stored: over a base, those that it has too as differences."""
        base = self.base or {}
        return {n: tensors[n] - base[n] if n in base else tensors[n] for n in names}

    def decoded(
        self, coded: Mapping[str, CodebookTensor], like: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Stored parameters as they are used, on the device of others of the same names."""
        out = {n: c.decode().reshape(like[n].shape).to(like[n]) for n, c in coded.items()}
        base = self.base or {}
        return {n: base[n] + t if n in base else t for n, t in out.items()}

    def check_finite(self, compressed: Compressed, coded: dict[str, CodebookTensor]) -> None:
        """Refuse a task that would be kept with logits that are no finite numbers.

        - `coded`: the task-specific parameters as stored.
        """
        tensors = self.tensors(self.weights(compressed.mask, compressed.own))
        stored, training = tensors | self.decoded(coded, tensors), self.training
        check_finite(self.module.architecture, stored, training.valid, training.task.name)


def _narrowest(
    tensors: dict[str, Tensor],
    settings: TaskParamSettings,
    accuracy: Callable[[dict[str, CodebookTensor]], float],
    levels: Sequence[int] = TASK_PARAM_LEVELS,
) -> tuple[dict[str, CodebookTensor], float]:
    """The narrowest stored form that loses at most the tolerance, or that of the given width."""
    if settings.bits != "auto":
        coded = {n: _smaller(t, int(settings.bits)) for n, t in tensors.items()}
        return coded, accuracy(coded)
    if settings.price > 0:
        forms = [{n: _smaller(t, level) for n, t in tensors.items()} for level in levels]
        found = [(form, accuracy(form)) for form in forms]
        return max(found, key=lambda pair: 100 * pair[1] - settings.price * _kilobytes(pair[0]))
    exact = accuracy({n: code(t.flatten(), 32) for n, t in tensors.items()})
    for level in levels:
        coded = {n: _smaller(t, level) for n, t in tensors.items()}
        reached = accuracy(coded)
        if reached >= exact - settings.tolerance:
            break
    return coded, reached


def _kilobytes(coded: Mapping[str, CodebookTensor]) -> float:
    return sum(c.size_bits for c in coded.values()) / 8000


def _smaller(tensor: Tensor, bits: int) -> CodebookTensor:
    """A tensor's codes, or its values in float16 where codes and codebook would take more."""
    first = float(tensor.flatten()[0])
    if bool((tensor == first).all()):
        return constant(first, tensor.numel())
    coded = code(tensor.flatten(), bits)
    if coded.codes is None:
        return coded
    plain = code(tensor.flatten(), 16)
    return plain if plain.size_bits <= coded.size_bits else coded
