"""From a trained task to a subnet: bit-width, post-pruning, codebooks, task-specific parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tinysubnets.coding.bits import pack_mask
from tinysubnets.coding.byte_io import Writer
from tinysubnets.coding.grids import MAX_FLOOR, MAX_MANTISSA, MIN_FLOOR, Grid
from tinysubnets.format.sections import write_tensors
from tinysubnets.method.pruning import (
    Candidate,
    Pruned,
    PruningSettings,
    PruningStep,
    post_prune,
)
from tinysubnets.model.subnet import CodebookTensor, code, constant, rounded
from tinysubnets.nn.low_rank import LowRankModule, step_of
from tinysubnets.nn.magnitude import MagnitudeModule
from tinysubnets.nn.masked import TaskModule
from tinysubnets.nn.norms import folded, with_folded_biases
from tinysubnets.tasks.rotations import ROTATIONS, joined
from tinysubnets.training.evaluate import (
    EVAL_BATCH,
    EvalResult,
    check_finite,
    recalibrate_batchnorm,
)
from tinysubnets.training.loop import Training
from tinysubnets.training.precision import arithmetic
from tinysubnets.training.stages import (
    ChangedInputError,
    SparseMatrix,
    Stage,
    StagedEvaluation,
    stages_of,
)

MAX_BITS = 8
TASK_PARAM_LEVELS = (4, 5, 6, 8, 16, 32)
DIFFERENCE_LEVELS = (2, 3, *TASK_PARAM_LEVELS)  # over a base, where most of it is known already
# Rounding turns over some of the answers that are near to ties, to the better or to the worse. What
# is lost by chance is the deviation of so many, one sample at the least.
TURNED_OVER, LOSS_TOLERANCE = 0.02, 0.01
OFFSETS = ("bias", "running_mean")  # vectors that are added, by their last names
GAIN_OCTAVES = 12  # how far below the typical gain others are still rounded by a share of them


@dataclass(frozen=True)
class Compressed:
    """A trained task's mask and its own weights as codes.

    - `mask`: the blocks that the task uses.
    - `bits`: the width of a code.
    - `own`: the weights that nobody owned before, one entry per codebook.
    - `seconds`: what post-pruning took.
    - `rank`: above 0, `own` has the factors of a difference of that rank, and the mask is empty.
    """

    mask: Tensor
    bits: int
    own: tuple[CodebookTensor, ...]
    seconds: float = 0.0
    rank: int = 0


@dataclass(frozen=True)
class TaskParamSettings:
    """How task-specific parameters are stored.

    - `bits`: how finely they are rounded. With 4 to 8 a vector keeps one bit less of mantissa:
      norms and other gains by a share of each value, biases and means not finer than the typical
      one needs; a matrix such as the head is rounded to steps of which its root mean square has
      2 to 4 at 4 bits, and twice as many for every further one. 16 is float16, 32 float32. "auto"
      takes the least of 4, 5, 6, 8, 16 and 32 that is as good as 32, see `is_as_good`.
    - `tolerance`: the validation accuracy that rounding may cost with "auto".
    - `price`: points of validation accuracy that a kilobyte must gain: above 0, "auto" takes what
      is worth the most at it instead.
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

    def encode(
        self, mask: Tensor, bits: int, whole: tuple[CodebookTensor, ...] = ()
    ) -> tuple[CodebookTensor, ...]:
        """The task's own weights as codes, one codebook per layer or one for all.

        By the codebooks that the values were trained with, where there are such, else by new ones.

        - `whole`: the codes of the mask that was trained, where they are known: they hold for all
          layers of which `mask` keeps the same.
        """
        own, segments = self.own_weights(mask), self.module.codebook_segments
        trained = self.module.trained_codebooks(bits) or (None,) * len(segments)
        before = self.own_weights(self.mask) if whole else own
        out = []
        for number, ((i, j), centroids) in enumerate(zip(segments, trained, strict=True)):
            if whole and torch.equal(own[i:j], before[i:j]):
                out.append(whole[number])
            else:
                out.append(code(self.free[i:j][own[i:j]], bits, centroids=centroids))
        return tuple(out)

    def values(self, mask: Tensor, own: tuple[CodebookTensor, ...] | None) -> Tensor:
        """The flat own values under a mask, decoded or as trained."""
        if own is None:
            return self.free
        decoded = torch.cat([c.decode() for c in own]).to(self.free)
        return self.free.masked_scatter(self.own_weights(mask), decoded)

    def weights(self, mask: Tensor, own: tuple[CodebookTensor, ...] | None) -> Tensor:
        """The flat weights under a mask, with own values decoded or as trained."""
        if isinstance(self.module, LowRankModule) and own is not None:
            return self.module.with_factors(torch.cat([c.decode() for c in own]))
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

    def factors(self) -> Compressed:
        """The factors of a difference of low rank, rounded as in training."""
        module = self.module
        assert isinstance(module, LowRankModule)
        pairs = zip(module.named_factors().values(), module.exponents(), strict=True)
        own = tuple(_rounded_factor(factor, exponent) for factor, exponent in pairs)
        return Compressed(self.mask, module.pruning.bits, own, rank=module.places.rank)

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
        sparse = self._sparse(stages, all_tensors, without)
        # The last versions of each tensor: its part of the mask, the same as bytes, its weights.
        versions: list[list[tuple[Tensor, bytes, Tensor]]] = [[] for _ in layout.shared]

        def version(place: int, mask: Tensor) -> tuple[Tensor, bytes, Tensor]:
            known = next((v for v in versions[place] if torch.equal(v[0], mask)), None)
            if known is None:
                whole = all_tensors[layout.shared[place].name]
                lost = ~layout.blocks[place].expand(mask).view(whole.shape)
                key = pack_mask(mask.cpu().numpy()).tobytes()
                few = sparse.get(layout.shared[place].name)
                if few is None:
                    none = without[layout.shared[place].name]
                    known = mask.clone(), key, torch.where(lost, none, whole)
                else:
                    known = mask.clone(), key, few.without(lost)
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

    def _sparse(
        self,
        stages: Sequence[Stage],
        tensors: Mapping[str, Tensor],
        without: Mapping[str, Tensor],
    ) -> dict[str, SparseMatrix]:
        """The large linear layers of which little is kept, and that have nothing elsewhere."""
        if self.training.settings.precision == "bfloat16":  # of products that autocast knows
            return {}
        names = [n for stage in stages for n in stage.matrices if not without[n].any()]
        found = {n: SparseMatrix.of(tensors[n]) for n in names}
        return {n: matrix for n, matrix in found.items() if matrix is not None}

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
            some, _ = next(iter(training.valid.chunks(16, 16)))
            with arithmetic("float32", deterministic=True):
                tensors = with_folded_biases(architecture, tensors, some)

        stored, added = self.stored(named, tensors), set(self.base or ())
        levels = levels if settings.bits == "auto" else (int(settings.bits),)

        def at(level: int) -> tuple[dict[str, CodebookTensor], EvalResult]:
            coded = store_task_params(stored, level, head=architecture.head, added=added)
            whole = tensors | self.decoded(coded, tensors)
            return coded, training.evaluate(whole, recalibrate=False)

        if settings.price > 0:
            forms = [at(level) for level in levels]
            coded, found = max(forms, key=lambda form: _worth(form[0], form[1], settings.price))
            return coded, found.ranked_accuracy
        exact: EvalResult | None = None
        if settings.bits == "auto":
            exact = training.evaluate(tensors, recalibrate=False)
        for level in levels:
            coded, found = at(level)
            num, tolerance = len(training.valid), settings.tolerance
            if exact is None or is_as_good(found, exact, num, tolerance):
                break
        return coded, found.ranked_accuracy

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
        stored, training = self.final(compressed, coded), self.training
        check_finite(self.module.architecture, stored, training.valid, training.task.name)

    @torch.no_grad()
    def class_accuracy(
        self, compressed: Compressed, coded: Mapping[str, CodebookTensor], passes: int
    ) -> float:
        """The share of validation images whose class is told, where rotations were learned too.

        - `passes`: how many rotations of an image answer.
        """
        stored, valid = self.final(compressed, coded), self.training.valid
        with arithmetic("float32", deterministic=True):
            chunks = valid.chunks(EVAL_BATCH)
            outputs = torch.cat([self.module.architecture(stored, inputs) for inputs, _ in chunks])
        # All images are upright first, then all are turned once, and so on.
        logits = joined(outputs.chunk(ROTATIONS)[:passes])
        return float((logits.argmax(1) == valid.labels[: len(logits)]).double().mean())

    def final(
        self, compressed: Compressed, coded: Mapping[str, CodebookTensor]
    ) -> dict[str, Tensor]:
        """All tensors of the network as the task would be kept."""
        tensors = self.tensors(self.weights(compressed.mask, compressed.own))
        return tensors | self.decoded(coded, tensors)


def is_as_good(found: EvalResult, exact: EvalResult, num: int, tolerance: float) -> bool:
    """Whether rounded parameters do as well on validation data as exact ones.

    That is: they lose at most `tolerance` of accuracy; or a few samples more than that, as chance
    has it, while the loss stays the same but for `LOSS_TOLERANCE` of it.

    - `num`: how many validation samples there are.
    """
    lost = exact.ranked_accuracy - found.ranked_accuracy - 1e-9  # a whole number of samples
    if math.isnan(lost):  # neither has finite logits
        return True
    few = max(1.0, math.sqrt(TURNED_OVER * num)) / num
    same_loss = found.loss <= (1 + LOSS_TOLERANCE) * exact.loss
    return lost <= tolerance or (lost <= tolerance + few and same_loss)


def _worth(coded: Mapping[str, CodebookTensor], found: EvalResult, price: float) -> float:
    """What a stored form is worth, in points of accuracy: what it reaches, less what it costs."""
    writer = Writer()
    # What is one number everywhere takes no bytes.
    kept = {n: c for n, c in coded.items() if c.codes is None or c.bits}
    write_tensors(writer, kept, None)
    return 100 * found.ranked_accuracy - price * len(writer.bytes()) / 1000


def store_task_params(
    tensors: Mapping[str, Tensor], bits: int, *, head: str, added: Collection[str] = ()
) -> dict[str, CodebookTensor]:
    """Task-specific parameters by name, rounded as finely as `TaskParamSettings` says.

    Vectors of one kind, such as all biases outside the head, are on one grid.

    - `head`: the name of the head's module.
    - `added`: the names of those that are added to others: of these even gains are rounded to steps
      of one size.
    """
    out: dict[str, CodebookTensor] = {}
    kinds: dict[tuple[str, bool], list[str]] = {}  # vectors by their last name, and in the head
    for name, tensor in tensors.items():
        first = float(tensor.flatten()[0])
        if bool((tensor == first).all()):
            out[name] = constant(first, tensor.numel())
        elif bits >= 16 or not bool(tensor.isfinite().all()):
            out[name] = code(tensor.flatten(), bits if bits >= 16 else 32)
        elif tensor.ndim > 1:
            out[name] = rounded(tensor.flatten(), _matrix_grid(tensor, bits))
        else:
            kind = name.rpartition(".")[2], name.startswith(f"{head}.")
            kinds.setdefault(kind, []).append(name)
    for (last, _), names in kinds.items():
        values = torch.cat([tensors[n] for n in names])
        if set(names) <= set(added):
            grid = _matrix_grid(values, bits)
        else:
            grid = _vector_grid(values, bits, last in OFFSETS)
        out |= {name: rounded(tensors[name], grid) for name in names}
    return {name: out[name] for name in tensors}


def _rounded_factor(factor: Tensor, step: int) -> CodebookTensor:
    """A factor on a grid, also one that stayed 0: nothing says elsewhere that it is constant.

    - `step`: the exponent of its steps.
    """
    if not bool(factor.isfinite().all()):
        return code(factor.flatten(), 32)
    return rounded(factor.flatten(), _even_grid(factor, step))


def _matrix_grid(values: Tensor, bits: int) -> Grid:
    """Steps of one size, by the root mean square: the best there is for a code by entropy."""
    return _even_grid(values, step_of(values, bits))


def _even_grid(values: Tensor, step: int) -> Grid:
    """Steps of one size, that of an exponent, up to the largest value."""
    largest = _exponent(float(values.abs().max()))
    mantissa = min(max(largest - step, 0), MAX_MANTISSA)
    return Grid(mantissa, _as_floor(step + mantissa))


def _vector_grid(values: Tensor, bits: int, are_offsets: bool) -> Grid:
    """Floats of few bits; for offsets, from the typical size down in steps of one size.

    A gain of a norm is as exact as it is, however small: its channel may vary much.
    """
    sizes = values.abs()[values != 0]
    typical = _exponent(float(sizes.median()))
    floor = typical if are_offsets else max(_exponent(float(sizes.min())), typical - GAIN_OCTAVES)
    return Grid(bits - 1, _as_floor(floor))


def _exponent(size: float) -> int:
    """The e with 2^e <= size < 2^(e + 1)."""
    return math.frexp(size)[1] - 1


def _as_floor(exponent: int) -> int:
    return min(max(exponent, MIN_FLOOR), MAX_FLOOR)
