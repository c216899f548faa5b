"""Portable random numbers: splitmix64 over a path of names and integers.

Initial scores, free values and splits must be the same on every machine and for ever, so they are
made of 64-bit integer arithmetic alone: no libm, no library generator whose stream may change.

    seeds.uniform(4, seed, "scores", bank, task, "conv1.weight")   # four numbers in [0, 1)
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_CHUNK = 1 << 15  # a chunk of 64-bit words and its temporaries stay in cache


def key(*parts: int | str) -> int:
    """The 64-bit key of a path such as (seed, "scores", bank, task, name).

    Integers count modulo 2**64, strings by their UTF-8 bytes. A part's kind and length enter the
    key, so ("ab", "c"), ("a", "bc"), (1,) and ("1",) all differ.
    """
    state = 0
    for part in parts:
        if isinstance(part, str):
            data = part.encode("utf-8")
            words = [2, len(data)]
            words += [int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8)]
        else:
            words = [1, int(part)]
        for word in words:
            state = _mix((state + GOLDEN) ^ _mix(word + GOLDEN))
    return state


def splitmix64(seed: int, count: int, start: int = 0) -> np.ndarray:
    """Outputs number `start` to `start + count - 1` of the splitmix64 generator, as uint64."""
    words = np.arange(start + 1, start + count + 1, dtype=np.uint64)
    words *= np.uint64(GOLDEN)
    words += np.uint64(seed & _MASK)
    words ^= words >> np.uint64(30)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words


def uniform(count: int, *parts: int | str) -> np.ndarray:
    """Float32 numbers in [0, 1), multiples of 2**-24: the top 24 bits of each splitmix64 output."""
    seed = key(*parts)
    out = np.empty(count, dtype=np.float32)
    for start in range(0, count, _CHUNK):
        stop = min(start + _CHUNK, count)
        out[start:stop] = splitmix64(seed, stop - start, start) >> np.uint64(40)
    out *= np.float32(2.0**-24)
    return out


def generator(device: torch.device | str, *parts: int | str) -> torch.Generator:
    """A torch generator on `device`, seeded by the low 63 bits of the path's key.

    For what needs no portability between devices (dropout, augmentation).
    """
    import torch

    return torch.Generator(device=device).manual_seed(key(*parts) & (_MASK >> 1))


def seed_torch_(seed: int, device: torch.device | None = None) -> None:
    """Seed torch's global generators: that of the CPU, and that of a device.

    `torch.manual_seed` does so for all devices, but in some versions loads the compiler, seconds.
    """
    import torch

    if device is not None and device.type not in ("cpu", "cuda"):
        torch.manual_seed(seed)
        return
    torch.default_generator.manual_seed(seed)
    if device is not None and device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)


@contextmanager
def global_generators_kept(devices: Sequence[torch.device] = ()) -> Iterator[None]:
    """The global generators of torch, numpy and Python inside, and as they were outside.

    - `devices`: GPUs whose generators are kept too.
    """
    import torch

    numpy_state, python_state = np.random.get_state(), random.getstate()
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)


def _mix(word: int) -> int:
    """The output function of splitmix64 on one word."""
    word &= _MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK
    return word ^ (word >> 31)
