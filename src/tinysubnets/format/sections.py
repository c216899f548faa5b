"""The sections of a model file, each written and read here: values, masks, task memory, records.

Values. The codes and codebooks of a task's own shared weights are a section each; a task-specific
parameter has both in one. A form byte says how a list of values is stored: bits 1-5 hold the width
of a code, 0 where the values stand as themselves; bit 0 is set where centroids or values take 32
bits instead of 16. A codebook follows its form byte: the number of centroids less one as a varint,
and the centroids. Codes stand behind their length; values that stand as themselves have none.

Mask. The reference as a varint (see `model.subnet`); for one made of first scores the seed, eight
bytes, and for each shared tensor the least magnitude of a score in the reference, four bytes; then
the code (`coding.masks`).

Memory. What tells a task from later ones.

Routing. Numbers that tell a task's inputs from others without its name, by theirs.

Records. The learner's settings and what is known of each task, as deflated JSON.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from tinysubnets.coding.bits import MAX_CODE_BITS, RAW_DEFLATE
from tinysubnets.coding.byte_io import Reader, Writer
from tinysubnets.coding.codes import decode_codes, encode_codes
from tinysubnets.errors import ArtifactError, DamageError
from tinysubnets.format.container import canonical, parse
from tinysubnets.model.mask_references import MAX_MAGNITUDE
from tinysubnets.model.subnet import FREE_SCORES, SCORES, CodebookTensor, CodedMask, Subnet
from tinysubnets.tasks.divergence import InputStatistics

Memory = InputStatistics | Tensor | None

MAX_REFERENCE = 1 << 20  # of a mask: far more than a bank has tasks
NOTHING, GAUSSIAN, HISTOGRAM, SAMPLES = range(4)  # kinds of memory
MAX_DIMENSIONS = 8
MAX_ROUTING, MAX_ROUTING_NAME = 16, 64  # vectors of a task, and bytes of the name of one
MAX_ROUTING_BITS, ROUTING_PER_BYTE = 8, 64  # of a code; values that a byte of the section may hold
DTYPES = {  # by their names in the config; a memory section has the place in this list
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
_RECORD_TYPES: Mapping[str, Any] = {
    "accuracy": (int, float),
    "owned": (int, float),
    "reason": str,
    "nearest": (int, str),  # a number; in format 1 a name
}


# Values.


def write_own(own: Sequence[CodebookTensor]) -> tuple[bytes, bytes]:
    """The codes and the codebooks of a task's own shared weights, a section each."""
    codes, books = Writer(), Writer()
    for coded in own:
        write_form(books, coded)
        write_codes(codes, coded)
    if not any(len(c) for c in own):  # a task that adds nothing stores nothing
        return b"", b""
    return codes.bytes(), books.bytes()


def read_own(data: tuple[bytes, bytes], counts: Sequence[int]) -> tuple[CodebookTensor, ...]:
    """The own weights of a task, `counts` of them per codebook."""
    if not any(counts):
        if data[0] or data[1]:
            raise DamageError("codes for a task that owns no weight.")
        return (CodebookTensor(torch.zeros(0)),) * len(counts)
    codes, books = Reader(data[0], "codes"), Reader(data[1], "codebooks")
    out = [read_codes(codes, read_form(books), count) for count in counts]
    codes.done()
    books.done()
    return tuple(out)


def write_tensor(out: Writer, coded: CodebookTensor) -> None:
    """A task-specific parameter: its form, its centroids, its codes or values."""
    write_form(out, coded)
    write_codes(out, coded)


def read_tensor(data: Reader, count: int) -> CodebookTensor:
    """A task-specific parameter of `count` values."""
    return read_codes(data, read_form(data), count)


def write_form(out: Writer, coded: CodebookTensor) -> None:
    """The form byte, and for codes the number of centroids less one and the centroids."""
    width = 0 if coded.codes is None else coded.bits
    if coded.codes is not None and not 1 <= len(coded.values) <= 2**width <= 2**MAX_CODE_BITS:
        raise ArtifactError(f"{len(coded.values)} centroids for codes of {width} bits.")
    out.byte(width << 1 | (coded.value_bits == 32))
    if width:
        out.varint(len(coded.values) - 1)
        out.floats(coded.values, coded.value_bits)


def read_form(data: Reader) -> tuple[int, int, torch.Tensor | None]:
    """The width of codes (0 for none), the bits of a value, and the centroids of a codebook."""
    form = data.byte()
    width, bits = form >> 1, 32 if form & 1 else 16
    if width > MAX_CODE_BITS:
        raise data.damage(f"codes of {width} bits; at most {MAX_CODE_BITS} are allowed.")
    centroids = data.floats(1 + data.varint(2**width - 1), bits) if width else None
    return width, bits, centroids


def write_codes(out: Writer, coded: CodebookTensor) -> None:
    """The codes behind their length, or the values themselves."""
    if coded.codes is None:
        out.floats(coded.values, coded.value_bits)
    else:
        out.block(encode_codes(coded.codes.numpy(), coded.bits))


def read_codes(
    data: Reader, form: tuple[int, int, torch.Tensor | None], count: int
) -> CodebookTensor:
    """`count` values of a form that was read before."""
    width, bits, centroids = form
    if centroids is None:
        return CodebookTensor(data.floats(count, bits))
    codes = decode_codes(data.block(), width, count)
    if count and int(codes.max()) >= len(centroids):
        raise data.damage(f"code {int(codes.max())} of a codebook with {len(centroids)} centroids.")
    kind = np.uint8 if width <= 8 else np.int32
    return CodebookTensor(centroids, torch.from_numpy(codes.astype(kind, copy=False)), width)


# Mask.


def write_coded_mask(coded: CodedMask) -> bytes:
    """The section: the reference, what regenerates the reference, and the code."""
    out = Writer()
    out.varint(coded.reference)
    if coded.reference in (SCORES, FREE_SCORES):
        out.raw(coded.seed.to_bytes(8, "little"))
        for magnitude in coded.magnitudes:
            out.raw(magnitude.to_bytes(4, "little"))
    out.raw(coded.data)
    return out.bytes()


def read_coded_mask(data: Reader, num_tensors: int) -> CodedMask:
    """A mask that is still coded."""
    kind = data.varint(MAX_REFERENCE)
    if kind not in (SCORES, FREE_SCORES):
        return CodedMask(kind, data.rest())
    seed = int.from_bytes(data.raw(8), "little")
    magnitudes = tuple(int.from_bytes(data.raw(4), "little") for _ in range(num_tensors))
    if max(magnitudes) > MAX_MAGNITUDE + 1:
        raise data.damage("a score larger than any there is.")
    return CodedMask(kind, data.rest(), seed, magnitudes)


# Memory.


def write_memory(memory: Memory) -> bytes:
    """The section of a task's memory; nothing where there is none."""
    if memory is None:
        return b""
    out = Writer()
    if isinstance(memory, Tensor):
        out.byte(SAMPLES)
        out.byte(list(DTYPES.values()).index(memory.dtype))
        out.byte(memory.ndim)
        for size in memory.shape:
            out.varint(size)
        out.raw(raw_bytes(memory))
    else:
        _write_statistics(out, memory)
    return out.bytes()


def read_memory(data: Reader, num_divergences: int | None) -> Memory:
    """A task's memory.

    In format 1 divergences from `num_divergences` earlier tasks may follow, which the memories
    themselves give; they are read over. None where there are none, as in format 2.
    """
    if not data.data:
        return None
    kind = data.byte()
    memory: Memory = None
    if kind == SAMPLES:
        memory = _read_samples(data)
    elif kind in (GAUSSIAN, HISTOGRAM):
        memory = _read_statistics(data, "gaussian" if kind == GAUSSIAN else "histogram")
    elif kind != NOTHING or num_divergences is None:
        raise data.damage(f"unknown kind {kind} of memory.")
    while num_divergences is not None and data.position < len(data.data):
        data.varint(num_divergences - 1)
        data.raw(4)
    data.done()
    return memory


# Routing.


def write_routing(routing: Mapping[str, Tensor]) -> bytes:
    """The section: how many vectors there are, then by name each one's name, length and values."""
    if not routing:
        return b""
    if len(routing) > MAX_ROUTING:
        raise ArtifactError(f"routing: {len(routing)} vectors; at most {MAX_ROUTING} are allowed.")
    out = Writer()
    out.varint(len(routing))
    for name, values in sorted(routing.items()):
        if values.ndim != 1 or not len(values) or not bool(torch.isfinite(values).all()):
            raise ArtifactError(f"routing: {name!r} is not a vector of finite numbers.")
        if not name or len(name.encode()) > MAX_ROUTING_NAME:
            raise ArtifactError(f"routing: {name!r} is no name of 1 to {MAX_ROUTING_NAME} bytes.")
        out.block(name.encode())
        out.varint(len(values))
        write_tensor(out, _smallest(values))
    return out.bytes()


def _smallest(values: Tensor) -> CodebookTensor:
    """Values as codes where few of them differ and that is smaller; in no form do they change."""
    plain = CodebookTensor(values.detach().float().cpu())
    distinct, codes = plain.values.unique(return_inverse=True)
    width = max(1, (len(distinct) - 1).bit_length())
    if width > MAX_ROUTING_BITS or len(distinct) < 2:
        return plain
    coded = CodebookTensor(distinct, codes.to(torch.uint8), width)
    return coded if coded.size_bits < plain.size_bits else plain


def read_routing(data: Reader) -> dict[str, Tensor]:
    """The vectors of a task's routing, by name."""
    out: dict[str, Tensor] = {}
    if not data.data:
        return out
    last = b""
    for _ in range(data.varint(MAX_ROUTING)):
        name = data.block()
        if not last < name or len(name) > MAX_ROUTING_NAME:
            raise data.damage("names that are not in order, or too long.")
        last = name
        # A code takes a good part of a bit at least.
        values = read_tensor(data, data.varint(ROUTING_PER_BYTE * len(data.data))).decode()
        if not len(values) or not bool(torch.isfinite(values).all()):
            raise data.damage("an empty vector, or a number that is not finite.")
        try:
            out[name.decode()] = values
        except UnicodeDecodeError:
            raise data.damage("a name that is no text.") from None
    if not out:
        raise data.damage("an empty table.")
    data.done()
    return out


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


def _write_statistics(out: Writer, memory: InputStatistics) -> None:
    out.byte(GAUSSIAN if memory.kind == "gaussian" else HISTOGRAM)
    out.varint(memory.count)
    out.raw(np.array([memory.floor], "<f8").tobytes())
    out.varint(len(memory.mean))
    for part in (memory.mean, memory.variance):
        if part is not None:
            exact = torch.equal(part.half().float(), part)
            out.byte(0 if exact else 1)
            out.floats(part, 16 if exact else 32)


def _read_statistics(data: Reader, kind: Literal["gaussian", "histogram"]) -> InputStatistics:
    count = data.varint(1 << 40)
    floor = float(np.frombuffer(data.raw(8), "<f8")[0])
    size = data.varint(len(data.data))
    mean = _read_floats(data, size)
    return InputStatistics(
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


# Records.


def max_text_bytes(num_tasks: int) -> int:
    """The most text that the records of so many tasks may hold."""
    return (1 << 16) + (num_tasks << 13)


def write_records(settings: Mapping[str, Any], subnets: Sequence[Subnet]) -> bytes:
    """The section: the length of the text, then the text as one raw deflate stream."""
    numbers = {s.name: s.number for s in subnets if s.name}
    tasks = [_record(s, numbers) for s in subnets]
    text = canonical({"settings": settings, "tasks": tasks}).encode()
    if len(text) > max_text_bytes(len(tasks)):
        raise ArtifactError(f"settings and reasons take {len(text)} bytes; shorten them.")
    coder = zlib.compressobj(9, zlib.DEFLATED, RAW_DEFLATE)
    out = Writer()
    out.varint(len(text))
    out.raw(coder.compress(text) + coder.flush())
    return out.bytes()


def read_records(data: Reader, num_tasks: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The settings, and one record per task; at most the expected text is decompressed."""
    size = data.varint(max_text_bytes(num_tasks))
    decoder = zlib.decompressobj(RAW_DEFLATE)
    try:
        text = decoder.decompress(data.rest(), size + 1)
    except zlib.error as error:
        raise data.damage(f"{error}.") from None
    if len(text) != size or not decoder.eof or decoder.unused_data:
        raise data.damage(f"{size} bytes of text were expected.")
    value = parse(text, "text of the records")
    settings = value.get("settings") if isinstance(value, dict) else None
    tasks = value.get("tasks") if isinstance(value, dict) else None
    if not isinstance(settings, dict) or not isinstance(tasks, list):
        raise data.damage("settings and tasks are missing.")
    if len(tasks) != num_tasks or not all(map(_is_record, tasks)):
        raise data.damage("not one valid record per task.")
    return settings, tasks


def _record(subnet: Subnet, numbers: Mapping[str, int]) -> dict[str, Any]:
    record: dict[str, Any] = {}
    if not math.isnan(subnet.valid_accuracy):
        record["accuracy"] = subnet.valid_accuracy
    if not math.isnan(subnet.owned_before_pruning):
        record["owned"] = subnet.owned_before_pruning
    if subnet.decision is not None:
        record["reason"] = subnet.decision.reason
        if (nearest := subnet.decision.nearest) is not None:
            record["nearest"] = numbers[nearest]
    return record


def _is_record(value: Any) -> bool:
    return isinstance(value, dict) and all(
        k in _RECORD_TYPES and isinstance(v, _RECORD_TYPES[k]) and not isinstance(v, bool)
        for k, v in value.items()
    )
