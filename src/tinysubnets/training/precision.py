"""Devices by name; precision, threads and random numbers of a block, outside it as they were."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from tinysubnets import config, seeds
from tinysubnets.errors import SettingError

# Below this many shared weights a second thread costs more than it brings, above all on a busy
# machine.
SMALL_NETWORK = 250_000
_FLAGS_LOCK = threading.Lock()
_flags_inside: list[tuple[object, tuple[bool, ...]]] = []  # of blocks not yet left, in order
_flags_outside: tuple[bool, ...] = ()


@contextmanager
def arithmetic(precision: str, deterministic: bool = False) -> Iterator[None]:
    """Matrix products and convolutions on a GPU in this precision inside, as they were outside.

    "float32" is full float32; "tf32" rounds the factors to 10 bits of mantissa, on tensor cores,
    and so does "bfloat16" with what autocast leaves in float32. `deterministic` lets cuDNN choose
    only algorithms that give the same bits every time, and by a rule: tried for speed, another one
    might win in every run.

    The flags belong to the process, not to a thread. Where several threads are in such blocks, the
    one that was entered last decides for all of them, and when all are left the flags are as they
    were before the first. On a CPU they change nothing. A captured CUDA graph keeps the kernels
    that were chosen at its capture.
    """
    global _flags_outside
    block = object()
    is_rounded = precision != "float32"
    flags = (is_rounded, is_rounded, not deterministic, deterministic)
    with _FLAGS_LOCK:
        if not _flags_inside:
            _flags_outside = _get_flags()
        _flags_inside.append((block, flags))
        _set_flags(flags)
    try:
        yield
    finally:
        with _FLAGS_LOCK:
            _flags_inside[:] = [entry for entry in _flags_inside if entry[0] is not block]
            _set_flags(_flags_inside[-1][1] if _flags_inside else _flags_outside)


def _get_flags() -> tuple[bool, ...]:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    return matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic


def _set_flags(flags: tuple[bool, ...]) -> None:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic = flags


@contextmanager
def seeded(device: torch.device, seed: int) -> Iterator[None]:
    """The global generators of torch, numpy and Python seeded inside, and as they were outside.

    Dropout, augmentation and stochastic depth draw from them, on the CPU and on the device.
    """
    devices = [device] if device.type == "cuda" else []
    with seeds.global_generators_kept(devices):
        seeds.seed_torch_(seed, device)
        np.random.seed(seed % 2**32)
        random.seed(seed)
        yield


def fitting_threads(num_weights: int) -> int:
    """The CPU threads to train a network of so many shared weights with: one for small ones."""
    return 1 if num_weights < SMALL_NETWORK else torch.get_num_threads()


@contextmanager
def cpu_threads(count: int) -> Iterator[None]:
    """So many threads of torch on the CPU inside, as many as before outside."""
    config.check_threads(count)
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def pick_device(name: str | torch.device) -> torch.device:
    """The device of that name; "auto" means a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise SettingError(
            f"device = {name!r} is not allowed; give 'auto', 'cpu' or 'cuda'."
        ) from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SettingError("device = 'cuda', but this machine has no GPU that torch can use.")
    return device
