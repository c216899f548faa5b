"""Data-parallel training: one training in several processes, each on a part of every batch.

    torchrun --nproc-per-node 4 -m tinysubnets run split-cifar100     # or: tsn run --processes 4 …

    with process_group("cuda"):      # in every process
        learner.learn(task)          # trains by DistributedDataParallel

All processes hold the same module, draw the same batches and step by the same gradients. Whatever
else learning decides (codebooks, masks, the best epoch, bit-width, post-pruning, the claim) each
process computes for itself from that equal state; `check_same` compares what came out after every
task. The process of rank 0 is called the first: it alone writes files and shows progress.

Two things are each process's own: what dropout draws, and the statistics of BatchNorm in training,
which are those of its part of a batch. The statistics that a task is used with are estimated anew
from its training data, and so are the same everywhere.

Without `process_group` every function here is that of one process alone.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tinysubnets import seeds
from tinysubnets.errors import RunError, SettingError, TinySubNetsError

T = TypeVar("T")

ERROR_SECONDS = 5  # how long a process that failed waits to hear whether the others did too


@dataclass(frozen=True)
class Group:
    """The processes of one training, seen from one of them.

    - `rank`, `size`: this process's number, from 0, and how many there are.
    - `backend`: what gradients travel by, "nccl" or "gloo".
    - `messages`: by which the processes agree on plain data; gloo, so that no GPU is needed.
    - `errors`: the same for processes that failed, which are not waited for.
    """

    rank: int
    size: int
    backend: str
    messages: Any
    errors: Any


_group: Group | None = None


@contextmanager
def process_group(device: str | torch.device = "auto") -> Iterator[None]:
    """Train in several processes inside, where torchrun or `tsn run --processes` started this one.

    A process group of torch's that the caller has made is used as it is.

    - `device`: where to train. Every process on a machine has a GPU of its own as its current
      device, where there are enough; else they share them, and gradients travel over the host.
    """
    global _group
    if not is_launched() or _group is not None:
        yield
        return
    was_made = dist.is_initialized()
    _group = _joined(torch.device("cuda" if device == "auto" else device))
    try:
        with warnings.catch_warnings():
            # Gradients are gathered on the stream that a CUDA graph needs, see `parallel`.
            warnings.filterwarnings("ignore", "The AccumulateGrad node's stream does not match")
            yield
    except TinySubNetsError as error:
        if _said_by_the_first(str(error)):
            raise SystemExit(2) from None
        raise
    finally:
        _group = None
        if not was_made:
            dist.destroy_process_group()


def is_launched() -> bool:
    """Whether this process was started as one of several (or one) of a training."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def is_active() -> bool:
    """Whether training goes on in a process group."""
    return _group is not None


def is_first() -> bool:
    """Whether this process is the one that writes and speaks; true for one process alone."""
    return _group is None or _group.rank == 0


def num_processes() -> int:
    """How many processes train together."""
    return 1 if _group is None else _group.size


def backend() -> str:
    """What gradients travel by: "nccl", "gloo", or "" in one process alone."""
    return "" if _group is None else _group.backend


def slower_because(device: torch.device) -> str | None:
    """What a user should know of how these processes work together; None: nothing."""
    if _group is None or device.type != "cuda" or _group.backend == "nccl":
        return None
    return (
        f"{_group.size} processes share {torch.cuda.device_count()} GPU(s), or NCCL is missing: "
        "gradients travel over the host by gloo, and steps are not captured as CUDA graphs. One "
        "process per GPU is faster."
    )


def _joined(device: torch.device) -> Group:
    """Meet the other processes."""
    backend, gpus = "gloo", torch.cuda.device_count() if device.type == "cuda" else 0
    if gpus:
        local = int(os.environ.get("LOCAL_RANK", os.environ["RANK"]))
        torch.cuda.set_device(local % gpus)
        # NCCL takes one process per GPU.
        is_enough = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"])) <= gpus
        backend = "nccl" if is_enough and dist.is_nccl_available() else "gloo"
    with _peers():
        if dist.is_initialized():
            backend = dist.get_backend()
        else:
            dist.init_process_group(backend)
        messages = dist.new_group(backend="gloo")
        errors = dist.new_group(backend="gloo", timeout=timedelta(seconds=ERROR_SECONDS))
    return Group(dist.get_rank(), dist.get_world_size(), backend, messages, errors)


# --------------------------------------------------------------------------------------------------
# What processes tell each other


def from_first(make: Callable[[], T]) -> T:
    """What `make` gives in the first process, in all of them; an error there is raised in all."""
    if _group is None:
        return make()
    box: list[Any] = [None]
    if is_first():
        try:
            box = [(make(), None)]
        except TinySubNetsError as error:
            box = [(None, error)]
    with _peers():
        dist.broadcast_object_list(box, src=0, group=_group.messages)
    value, failed = box[0]
    if failed is not None:
        raise failed
    return value


def any_of(value: bool) -> bool:
    """Whether it is true in any process."""
    if _group is None:
        return value
    flag = torch.tensor([value], dtype=torch.uint8)
    with _peers():
        dist.all_reduce(flag, dist.ReduceOp.MAX, group=_group.messages)
    return bool(flag)


def mean(value: float) -> float:
    """The mean of a number over all processes, the same to the bit in each."""
    if _group is None:
        return value
    total = torch.tensor([value], dtype=torch.float64)
    with _peers():
        dist.all_reduce(total, group=_group.messages)
    return float(total) / _group.size


def check_same(what: str, *values: object) -> None:
    """Refuse to go on where processes have come to different values; `what` says of what."""
    if _group is None:
        return
    found: list[Any] = [None] * _group.size
    with _peers():
        dist.all_gather_object(found, values, group=_group.messages)
    other = [rank for rank, theirs in enumerate(found) if theirs != found[0]]
    if other:
        raise RunError(
            f"{what} came out differently in process {other[0]} and in process 0: "
            f"{found[other[0]]} and {found[0]}. Processes of one training need the same hardware, "
            "versions and threads; on GPUs set training.deterministic=true."
        )


@contextmanager
def _peers() -> Iterator[None]:
    """Say plainly where another process is gone."""
    try:
        yield
    except RuntimeError as error:
        if is_lost(error):
            raise lost() from error
        raise


def is_lost(error: BaseException) -> bool:
    """Whether an error of torch means that another process does not answer any more."""
    if isinstance(error, dist.DistError):
        return True
    return bool(re.search(r"gloo/|Connection (closed|reset) by peer|Broken pipe", str(error)))


def lost() -> RunError:
    """The error of a process that was left by another."""
    here = "" if _group is None else f"process {_group.rank} of {_group.size}: "
    return RunError(
        f"{here}another process of this training has ended or does not answer, so this one ends "
        "too. What was saved is not lost: go on with tsn resume, by any number of processes."
    )


def _said_by_the_first(message: str) -> bool:
    """Whether this process may end silently, because the first one fails with the same words."""
    assert _group is not None
    said: list[Any] = [None] * _group.size
    try:
        dist.all_gather_object(said, message, group=_group.errors)
    except RuntimeError:  # others did not fail, or are gone
        return False
    return not is_first() and said[0] == message


# --------------------------------------------------------------------------------------------------
# One step


def parallel(module: nn.Module) -> nn.Module:
    """The module in a DistributedDataParallel, which averages gradients over the processes.

    Buffers, the bank among them, never travel: they are equal already.
    """
    is_cuda = next(module.parameters()).is_cuda
    # A CUDA graph can hold its steps only if it was made on another stream than the default one.
    stream = torch.cuda.Stream() if is_cuda else None
    with warnings.catch_warnings(), torch.cuda.stream(stream):
        # Newer versions of torch call the argument otherwise, and send buffers once at least.
        warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
        with _peers():
            return nn.parallel.DistributedDataParallel(module, broadcast_buffers=False)


class _ReachesAll(torch.autograd.Function):
    """The loss itself, with a path to every parameter, along which no gradient comes.

    A network may leave layers out at random. DistributedDataParallel waits for the gradients of all
    parameters, and takes one that does not come for 0.
    """

    @staticmethod
    def forward(ctx: Any, loss: Tensor, *parameters: Tensor) -> Tensor:
        ctx.num_parameters = len(parameters)
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return gradient, *[None] * ctx.num_parameters


class LossOf(nn.Module):
    """A module whose output is the loss of another: what DistributedDataParallel wraps.

    So a compiled loss is compiled as a whole, without the wrapper's communication in it.

    - `loss`: a function of the module, inputs, labels and class weights.
    """

    def __init__(self, module: nn.Module, loss: Callable[..., Tensor]) -> None:
        super().__init__()
        self.module, self.loss = module, loss

    def forward(self, inputs: Tensor, labels: Tensor, class_weights: Tensor | None) -> Tensor:
        """The loss on these samples."""
        loss = self.loss(self.module, inputs, labels, class_weights)
        return _ReachesAll.apply(loss, *(p for p in self.module.parameters() if p.requires_grad))


def part_of(labels: Tensor, class_weights: Tensor | None) -> tuple[slice, Tensor | float]:
    """Which samples of a batch this process takes, and by what its mean loss is multiplied.

    The mean over processes of the losses so multiplied is the loss of the whole batch, also where
    parts are unequal or classes have weights. A process without a sample of its own takes another's
    times 0, because all of them must communicate.

    - `labels`: of the whole batch [batch].
    - `class_weights`: [classes], by which the loss weighs samples.
    """
    assert _group is not None
    rank, size, count = _group.rank, _group.size, len(labels)
    part = slice(count * rank // size, count * (rank + 1) // size)
    if part.start == part.stop:
        return slice(0, 1), 0.0
    if class_weights is None:
        return part, size * (part.stop - part.start) / count
    weights = class_weights[labels]
    return part, size * weights[part].sum() / weights.sum()


class RankNoise:
    """Random numbers of this process's own, for what it draws in a forward pass, such as dropout.

    Outside, the generator is where it was, equal in all processes: batches, augmentation and
    replayed samples are drawn there. Python's and numpy's generators are the same in all processes.
    """

    def __init__(self, device: torch.device) -> None:
        self.own = torch.Generator(device)
        self.shared: Any = None
        is_cuda = device.type == "cuda"
        if is_cuda:
            torch.cuda.init()
        self.generator = (
            torch.cuda.default_generators[torch.cuda.current_device()]
            if is_cuda
            else torch.default_generator
        )
        self.is_cuda = is_cuda

    def seed_(self, *path: int | str) -> None:
        """Begin the numbers of a path, such as an epoch's, in this process."""
        rank = 0 if _group is None else _group.rank
        self.own.manual_seed(seeds.key(*path, "rank", rank) >> 1)

    def __enter__(self) -> None:
        if self.is_cuda:  # the two states change places, which a CUDA graph can hold
            self.shared = self.generator.graphsafe_get_state()
            self.generator.graphsafe_set_state(self.own)
        else:
            self.shared = self.generator.get_state()
            self.generator.set_state(self.own.get_state())

    def __exit__(self, *_: object) -> None:
        if self.is_cuda:
            self.generator.graphsafe_set_state(self.shared)
        else:
            self.own.set_state(self.generator.get_state())
            self.generator.set_state(self.shared)


def check_batch(batch_size: int, has_batchnorm: bool) -> None:
    """Refuse more processes than a batch has samples for.

    - `has_batchnorm`: whether statistics of each part are needed, which one sample has none of.
    """
    if _group is None:
        return
    least = _group.size * (2 if has_batchnorm else 1)
    if batch_size < least:
        why = " and two for each are needed by its batch normalization" if has_batchnorm else ""
        raise SettingError(
            f"{_group.size} processes, but batches of {batch_size} samples{why}; use fewer "
            "processes, or a larger training.batch_size."
        )
