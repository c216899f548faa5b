"""Devices by name; precision and random numbers of a block of code, outside it as they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from tinysubnets.errors import SettingError


@contextmanager
def arithmetic(precision: str, deterministic: bool = False) -> Iterator[None]:
    """Matrix products and convolutions on a GPU in this precision inside, as they were outside.

    "float32" is full float32; "tf32" rounds the factors to 10 bits of mantissa, on tensor cores,
    and so does "bfloat16" with what autocast leaves in float32. `deterministic` lets cuDNN choose
    only algorithms that give the same bits every time, and by a rule: tried for speed, another one
    might win in every run.

    The flags belong to the process, not to a thread: whatever other threads compute meanwhile is
    computed so too, and two such blocks at the same time in different threads may leave each
    other's flags behind. A captured CUDA graph keeps the kernels that were chosen at its capture.
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = (matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic)
    matmul.allow_tf32 = cudnn.allow_tf32 = precision != "float32"
    cudnn.benchmark, cudnn.deterministic = not deterministic, deterministic
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic = before


@contextmanager
def seeded(device: torch.device, seed: int) -> Iterator[None]:
    """The global generators of torch seeded inside, and as they were outside.

    Dropout and augmentation draw from them, on the CPU and on the device. Python's and numpy's are
    not touched.
    """
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


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
