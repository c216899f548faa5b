"""The memory section of a task: what tells it from others, and how far the earlier ones were."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tinysubnets.artifact.wire import Reader, Writer
from tinysubnets.divergence import Statistics

Memory = Statistics | Tensor | None
NOTHING, GAUSSIAN, HISTOGRAM, SAMPLES = range(4)
MAX_DIMENSIONS = 8
DTYPES = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
    "bool": torch.bool,
    "u8": torch.uint8,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
}


def write_memory(
    memory: Memory, divergences: Mapping[str, float], numbers: Mapping[str, int]
) -> bytes:
    """The section: the memory, then pairs of an earlier task's number and the divergence."""
    if memory is None and not divergences:
        return b""
    out = Writer()
    if memory is None:
        out.byte(NOTHING)
    elif isinstance(memory, Tensor):
        out.byte(SAMPLES)
        out.byte(list(DTYPES.values()).index(memory.dtype))
        out.byte(memory.ndim)
        for size in memory.shape:
            out.varint(size)
        out.raw(raw_bytes(memory))
    else:
        _write_statistics(out, memory)
    for name, value in divergences.items():
        out.varint(numbers[name])
        out.floats(torch.tensor([value]), 32)
    return out.bytes()


def read_memory(data: Reader, earlier: Sequence[str]) -> tuple[Memory, dict[str, float]]:
    """A task's memory, and its divergences from earlier tasks by name."""
    if not data.data:
        return None, {}
    kind = data.byte()
    memory: Memory = None
    if kind == SAMPLES:
        memory = _read_samples(data)
    elif kind in (GAUSSIAN, HISTOGRAM):
        memory = _read_statistics(data, "gaussian" if kind == GAUSSIAN else "histogram")
    elif kind != NOTHING:
        raise data.damage(f"unknown kind {kind} of memory.")
    divergences: dict[str, float] = {}
    while data.position < len(data.data):
        task = data.varint(len(earlier) - 1)
        divergences[earlier[task]] = float(data.floats(1, 32))
    return memory, divergences


def raw_bytes(tensor: Tensor) -> bytes:
    """A tensor's values in order, little-endian."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()


def read_raw(data: Reader, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    """The next values of a section as a tensor."""
    raw = bytearray(data.raw(math.prod(shape) * dtype.itemsize))
    if dtype == torch.bool and any(b > 1 for b in raw):
        raise data.damage("a truth value other than 0 and 1.")
    if not raw:
        return torch.empty(tuple(shape), dtype=dtype)
    return torch.frombuffer(raw, dtype=torch.uint8).view(dtype).reshape(tuple(shape))


def _write_statistics(out: Writer, memory: Statistics) -> None:
    out.byte(GAUSSIAN if memory.kind == "gaussian" else HISTOGRAM)
    out.varint(memory.count)
    out.raw(np.array([memory.floor], "<f8").tobytes())
    out.varint(len(memory.mean))
    for part in (memory.mean, memory.variance):
        if part is not None:
            exact = torch.equal(part.half().float(), part)
            out.byte(0 if exact else 1)
            out.floats(part, 16 if exact else 32)


def _read_statistics(data: Reader, kind: Literal["gaussian", "histogram"]) -> Statistics:
    count = data.varint(1 << 40)
    floor = float(np.frombuffer(data.raw(8), "<f8")[0])
    size = data.varint(len(data.data))
    mean = _read_floats(data, size)
    return Statistics(
        kind, mean, _read_floats(data, size) if kind == "gaussian" else None, floor, count
    )


def _read_floats(data: Reader, count: int) -> Tensor:
    wide = data.byte()
    if wide > 1:
        raise data.damage(f"unknown width {wide} of numbers.")
    return data.floats(count, 32 if wide else 16)


def _read_samples(data: Reader) -> Tensor:
    types = list(DTYPES.values())
    number, dimensions = data.byte(), data.byte()
    if number >= len(types) or dimensions > MAX_DIMENSIONS:
        raise data.damage("samples of an unknown type.")
    shape = [data.varint(1 << 31) for _ in range(dimensions)]
    return read_raw(data, types[number], shape)
