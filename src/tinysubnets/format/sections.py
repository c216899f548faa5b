"""The sections of a model file, each written and read here: values, masks, task memory.

Values. The codes and codebooks of a task's own shared weights are a section each; a task-specific
parameter has both in one. A form byte says how a list of values is stored: bits 1-5 hold the width
of a code, 0 where the values stand as themselves; bit 0 is set where centroids or values take 32
bits instead of 16. A codebook follows its form byte: the number of centroids less one as a varint,
and the centroids. Codes stand behind their length; values that stand as themselves have none.

Where all codebooks of a task's own shared weights are full and of one width, they have one form:
then follow a bit for each that says whether its centroids take 32 bits, if any do, and the
centroids; and the codes of all are one list.

Values on a grid, of task-specific parameters alone, have a form byte of 64, or of 65 where they are
coded as differences from those of another task; then the bits of mantissa, the floor plus 128, and
the integers (`coding.grids`). Tensors of one kind, that is of one last name, come together, and are
one list of values where all of them are on one grid.

The factors of a difference of low rank (`nn.low_rank`) are written as such tensors too, in the
section of codes: all ups are of one kind, all downs of another.

Mask. The reference as a varint (see `model.subnet`); for one made of first scores the seed, eight
bytes, and for each shared tensor the least magnitude of a score in the reference, four bytes; then
the code (`coding.masks`).

Memory. What tells a task from later ones.

Routing. Numbers that tell a task's inputs from others without its name, by theirs.

Records. In format 1, the learner's settings and what is known of each task, as deflated JSON.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tinysubnets.coding.bits import (
    MAX_CODE_BITS,
    inflate,
    pack_bits,
    packed_size,
    unpack_bits,
)
from tinysubnets.coding.byte_io import Reader, Writer
from tinysubnets.coding.codes import decode_codes, encode_codes, least_bytes
from tinysubnets.coding.grids import (
    MAX_FLOOR,
    MAX_MANTISSA,
    MIN_FLOOR,
    Grid,
    decode_integers,
    encode_integers,
    grid_values,
    round_to_grid,
)
from tinysubnets.errors import ArtifactError, DamageError
from tinysubnets.format.container import parse
from tinysubnets.model.mask_references import MAX_MAGNITUDE
from tinysubnets.model.subnet import FREE_SCORES, SCORES, CodebookTensor, CodedMask
from tinysubnets.nn.layout import Layout
from tinysubnets.nn.low_rank import Factors
from tinysubnets.tasks.divergence import InputStatistics

Memory = InputStatistics | Tensor | None

EACH, ALIKE = range(2)  # codebooks: each with a form of its own, or one for all
GRID, DIFFERENCE = 64, 65  # forms of values on a grid: as they are, and against another task's
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
RECORD_TYPES: Mapping[str, Any] = {  # what is known of a task beside its tensors
    "accuracy": (int, float),
    "owned": (int, float),
    "reason": str,
    "nearest": (int, str),  # a number; in format 1 a name
}


# Values.


def write_own(
    own: Sequence[CodebookTensor], follows: NDArray[np.bool_] | None = None
) -> tuple[bytes, bytes]:
    """The codes and the codebooks of a task's own shared weights, a section each.

    - `follows`: which of these weights are in the kernel of the one before; for codes of one bit.
    """
    if not any(len(c) for c in own):  # a task that adds nothing stores nothing
        return b"", b""
    codes, books = Writer(), Writer()
    books.byte(EACH)
    for coded in own:
        write_form(books, coded)
        write_codes(codes, coded)
    candidates = [(codes.bytes(), books.bytes())]
    if (alike := _alike(own)) is not None:
        candidates.append(_write_alike(alike, follows))
    return min(candidates, key=lambda sections: sum(map(len, sections)))


def _alike(own: Sequence[CodebookTensor]) -> list[CodebookTensor] | None:
    """The own weights that are not empty, with full codebooks of one width; None if they differ.

    Weights without a codebook, because there are fewer than centroids, get one here.
    """
    widths = {c.bits for c in own if c.codes is not None}
    if len(widths) != 1 or max(widths) > 8:
        return None
    width, out = widths.pop(), []
    for coded in own:
        if coded.codes is None and len(coded) <= 2**width:
            out.append(_with_codebook(coded, width))
        elif coded.codes is not None and len(coded) > 2**width == len(coded.values):
            out.append(coded)
        else:
            return None
    for coded, other in zip(out, own, strict=True):  # a codebook may lose the sign of a zero
        if coded is not other and raw_bytes(coded.decode()) != raw_bytes(other.values):
            return None
    return [coded for coded in out if len(coded)]


def _with_codebook(coded: CodebookTensor, width: int) -> CodebookTensor:
    """Few values as codes of a full codebook, whose last centroid is repeated."""
    if not len(coded):
        return coded
    values, codes = torch.unique(coded.values, return_inverse=True)
    last = values[-1:].expand(2**width - len(values))
    return CodebookTensor(torch.cat([values, last]), codes.to(torch.uint8), width)


def _write_alike(
    own: Sequence[CodebookTensor], follows: NDArray[np.bool_] | None
) -> tuple[bytes, bytes]:
    """The codes of all codebooks as one list, and the codebooks without a form each."""
    books, width = Writer(), own[0].bits
    wide = np.array([c.value_bits == 32 for c in own])
    books.byte(ALIKE)
    books.byte(width << 1 | bool(wide.any()))
    if wide.any():
        books.raw(pack_bits(wide))
    for coded in own:
        books.floats(coded.values, coded.value_bits)
    codes = np.concatenate([c.codes.numpy() for c in own if c.codes is not None])
    return encode_codes(codes, width, follows), books.bytes()


def read_own(
    data: tuple[bytes, bytes],
    counts: Sequence[int],
    layout: Layout,
    positions: NDArray[np.integer],
) -> tuple[CodebookTensor, ...]:
    """The own weights of a task, `counts` of them per codebook; see `write_own`.

    - `positions`: where these weights stand in the flat vector of the layout.
    """
    if not any(counts):
        return _none(data, len(counts))
    books = Reader(data[1], "codebooks")
    kind = books.byte()
    if kind == EACH:
        return read_first_own((data[0], books.rest()), counts)
    if kind != ALIKE:
        raise books.damage(f"unknown order {kind} of codebooks.")
    return _read_alike(data[0], books, counts, layout, positions)


def _read_alike(
    data: bytes,
    books: Reader,
    counts: Sequence[int],
    layout: Layout,
    positions: NDArray[np.integer],
) -> tuple[CodebookTensor, ...]:
    """What `_write_alike` wrote; the arguments are those of `read_own`."""
    form = books.byte()
    width, filled = form >> 1, len(counts) - counts.count(0)
    if not 1 <= width <= MAX_CODE_BITS:
        raise books.damage(f"codes of {width} bits; allowed are 1 to {MAX_CODE_BITS}.")
    follows = layout.follows_in_kernel(positions) if width == 1 else None
    codes = decode_codes(data, width, sum(counts), follows)
    codes = codes.astype(np.uint8 if width <= 8 else np.int32, copy=False)
    wide = np.zeros(filled, np.bool_)
    if form & 1:
        wide = unpack_bits(books.raw(packed_size(filled)), filled)
    widths = iter(np.where(wide, 32, 16).tolist())
    out, start = [], 0
    for count in counts:
        if not count:
            out.append(CodebookTensor(torch.zeros(0)))
            continue
        centroids = books.floats(2**width, next(widths))
        own = torch.from_numpy(codes[start : start + count].copy())
        coded = CodebookTensor(centroids, own, width)
        out.append(coded if count > 2**width else CodebookTensor(coded.decode()))
        start += count
    books.done()
    return tuple(out)


def _none(data: tuple[bytes, bytes], num: int) -> tuple[CodebookTensor, ...]:
    """What a task without own weights has of `num` codebooks: nothing, and no bytes."""
    if data[0] or data[1]:
        raise DamageError("codes for a task that owns no weight.")
    return (CodebookTensor(torch.zeros(0)),) * num


def read_first_own(data: tuple[bytes, bytes], counts: Sequence[int]) -> tuple[CodebookTensor, ...]:
    """Own weights each of whose codebooks has a form of its own, as in format 1."""
    if not any(counts):
        return _none(data, len(counts))
    codes, books = Reader(data[0], "codes"), Reader(data[1], "codebooks")
    out = [read_codes(codes, read_form(books), count) for count in counts]
    codes.done()
    books.done()
    return tuple(out)


def write_factors(own: Sequence[CodebookTensor], factors: Factors) -> bytes:
    """The factors of a difference of low rank, in the place of codes; as tensors of two kinds."""
    out = Writer()
    write_tensors(out, dict(zip(factors.sizes, own, strict=True)), None)
    return out.bytes()


def read_factors(data: Reader, factors: Factors) -> tuple[CodebookTensor, ...]:
    """The factors of a difference of low rank; see `write_factors`."""
    found = read_tensors(data, factors.sizes, None)
    data.done()
    return tuple(found.values())


def write_tensors(
    out: Writer,
    tensors: Mapping[str, CodebookTensor],
    reference: Mapping[str, CodebookTensor] | None,
) -> None:
    """Task-specific parameters by name, kind after kind.

    - `reference`: those of another task that the reader will have; None where it has none.
    """
    for names in kinds_of(tensors):
        together = len({tensors[n].grid for n in names} - {None}) == 1
        together = together and all(tensors[n].grid is not None for n in names)
        if len(names) > 1:
            out.byte(together)
        for group in [names] if together else [[n] for n in names]:
            _write_list(out, [tensors[n] for n in group], _joined(reference, group))


def read_tensors(
    data: Reader, counts: Mapping[str, int], reference: Mapping[str, CodebookTensor] | None
) -> dict[str, CodebookTensor]:
    """Task-specific parameters, with so many values each; see `write_tensors`."""
    found: dict[str, CodebookTensor] = {}
    for names in kinds_of(counts):
        together = data.byte() if len(names) > 1 else 0
        if together > 1:
            raise data.damage(f"unknown order {together} of tensors.")
        for group in [names] if together else [[n] for n in names]:
            sizes = [counts[n] for n in group]
            one = _read_list(data, sum(sizes), _joined(reference, group))
            if len(group) > 1 and one.grid is None:
                raise data.damage("tensors that come together are not on a grid.")
            parts = [one] if len(group) == 1 else _split(one, sizes)
            found |= zip(group, parts, strict=True)
    return {name: found[name] for name in counts}


def kinds_of(names: Iterable[str]) -> list[list[str]]:
    """Names of tensors in groups of equal last parts, such as "weight", in order."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.rpartition(".")[2], []).append(name)
    return list(groups.values())


def _split(coded: CodebookTensor, sizes: Sequence[int]) -> list[CodebookTensor]:
    """Values on a grid as several lists of the given lengths."""
    return [CodebookTensor(part.clone(), grid=coded.grid) for part in coded.values.split(sizes)]


def _joined(reference: Mapping[str, CodebookTensor] | None, names: Sequence[str]) -> Tensor | None:
    """The values of another task's tensors, one after the other; None if it has not all of them."""
    if reference is None or not all(n in reference for n in names):
        return None
    return torch.cat([reference[n].decode() for n in names])


def read_first_tensors(data: Reader, counts: Mapping[str, int]) -> dict[str, CodebookTensor]:
    """Task-specific parameters as format 1 has them, one after the other."""
    return {name: read_codes(data, read_form(data), count) for name, count in counts.items()}


def _write_list(out: Writer, parts: Sequence[CodebookTensor], reference: Tensor | None) -> None:
    """The values of some tensors on one grid, or of one tensor in any form."""
    grid = parts[0].grid
    if grid is None:
        write_form(out, parts[0])
        write_codes(out, parts[0])
        return
    integers = round_to_grid(torch.cat([p.values for p in parts]).numpy(), grid)
    form, data = GRID, encode_integers(integers)
    if _fits(reference, len(integers)):
        assert reference is not None
        other = encode_integers(integers - round_to_grid(reference.numpy(), grid))
        if len(other) < len(data):
            form, data = DIFFERENCE, other
    for value in (form, grid.mantissa, grid.floor - MIN_FLOOR):
        out.byte(value)
    out.raw(data)


def _fits(reference: Tensor | None, count: int) -> bool:
    """Whether so many values can be coded as differences from those of another task."""
    return reference is not None and len(reference) == count and bool(reference.isfinite().all())


def _read_list(data: Reader, count: int, reference: Tensor | None) -> CodebookTensor:
    """A list of `count` values in any form."""
    if data.peek() not in (GRID, DIFFERENCE):
        return read_codes(data, read_form(data), count)
    form, grid = data.byte(), Grid(data.byte(), data.byte() + MIN_FLOOR)
    if grid.mantissa > MAX_MANTISSA:
        raise data.damage(f"a grid of {grid.mantissa} bits; at most {MAX_MANTISSA} are allowed.")
    integers = decode_integers(data, count)
    if form == DIFFERENCE:
        if not _fits(reference, count):
            raise data.damage("differences from values that are not there.")
        assert reference is not None
        integers += round_to_grid(reference.numpy(), grid)
    return CodebookTensor(torch.from_numpy(grid_values(integers, grid)), grid=grid)


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
        out.raw(_smallest(values))
    return out.bytes()


def _smallest(values: Tensor) -> bytes:
    """Values in the smallest lossless form: as they are, as codes of few values, or on a grid."""
    plain = CodebookTensor(values.detach().float().cpu())
    best = _written(plain)
    distinct, codes = plain.values.unique(return_inverse=True)
    width = max(1, (len(distinct) - 1).bit_length())
    if width <= MAX_ROUTING_BITS and len(distinct) >= 2:
        least = len(distinct) * plain.value_bits // 8 + least_bytes(len(codes), width)
        if least < len(best):
            form = CodebookTensor(distinct, codes.to(torch.uint8), width)
            best = min(best, _written(form), key=len)
    grid = _grid_of(plain.values.numpy())
    if grid is not None:
        best = min(best, _written(CodebookTensor(plain.values, grid=grid)), key=len)
    return best


def _written(form: CodebookTensor) -> bytes:
    out = Writer()
    _write_list(out, [form], None)
    return out.bytes()


def _grid_of(values: NDArray[np.float32]) -> Grid | None:
    """The grid of steps of one size that values are on; None where there is none of few bits."""
    mantissas, exponents = np.frexp(values[values != 0].astype(np.float64))
    if not len(mantissas):
        return None
    # Of a mantissa as an integer of 24 bits, how many of the last ones are 0.
    integers = np.abs(mantissas * 2**24).astype(np.int64)
    zeros = np.log2(integers & -integers).astype(np.int64)
    step, top = int((exponents - 24 + zeros).min()), int(exponents.max()) - 1
    mantissa = max(top - step, 0)
    if mantissa > MAX_MANTISSA or not MIN_FLOOR <= step + mantissa <= MAX_FLOOR:
        return None
    return Grid(mantissa, step + mantissa)


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
        count = data.varint(ROUTING_PER_BYTE * len(data.data))
        values = _read_list(data, count, None).decode()
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


# Records of format 1.


def max_text_bytes(num_tasks: int) -> int:
    """The most text that the records of so many tasks may hold."""
    return (1 << 16) + (num_tasks << 13)


def read_records(data: Reader, num_tasks: int) -> tuple[dict[str, Any], list[Mapping[str, Any]]]:
    """The settings, and one record per task; at most the expected text is decompressed."""
    size = data.varint(max_text_bytes(num_tasks))
    text = inflate(data.rest(), size, data.where)
    value = parse(text, "text of the records")
    settings = value.get("settings") if isinstance(value, dict) else None
    tasks = value.get("tasks") if isinstance(value, dict) else None
    if not isinstance(settings, dict) or not isinstance(tasks, list):
        raise data.damage("settings and tasks are missing.")
    if len(tasks) != num_tasks or not all(map(is_record, tasks)):
        raise data.damage("not one valid record per task.")
    return settings, tasks


def is_record(value: Any) -> bool:
    """Whether plain data can be what is known of a task: its accuracy, and why its bank is its."""
    return isinstance(value, dict) and all(
        k in RECORD_TYPES and isinstance(v, RECORD_TYPES[k]) and not isinstance(v, bool)
        for k, v in value.items()
    )
