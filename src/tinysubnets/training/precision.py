"""Devices by name; random numbers and arithmetic of a block of code, outside it as they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from tinysubnets.errors import SettingError


@contextmanager
def arithmetic(precision: str, deterministic: bool = False) -> Iterator[None]:
    """Matrix products in the precision asked for inside, and as they were outside."""
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
    """The global generators seeded inside, and as they were outside: dropout draws from them."""
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
