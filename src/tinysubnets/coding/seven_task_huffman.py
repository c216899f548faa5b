"""The paper's mask coding, for comparison: Huffman codes over the bits of seven tasks at a time.

Layout. Masks go in groups of seven in order, the last group may be smaller. A group of g masks is

1. a table: the code lengths of the symbols 0 to 2^g - 1 as 2^g packed codes of 6 bits (`packing`),
   0 for a symbol that does not occur;
2. the length of part 3 in bytes, 4 bytes, little-endian;
3. for each weight in order the code of its symbol, whose bit j is the weight's bit in the j-th mask
   of the group. Codes are canonical: symbols ordered by length, then by value, have rising codes;
   the most significant bit of a code comes first. The bits are in the bit order of `packing`, and
   zero bits fill the last byte. A symbol that is alone has the code 0 of one bit.

Nothing in the package stores masks like this; the sizes that we compare with are real ones.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tinysubnets.coding.bits import pack_codes, packed_size, unpack_codes
from tinysubnets.errors import DamageError, SettingError

__all__ = ["code_lengths", "decode_seven_tasks", "encode_seven_tasks", "seven_tasks_size"]

GROUP = 7
_LENGTH_BITS = 6
_MAX_LENGTH = 57  # what fits in a window of 8 bytes at any bit; no mask is long enough for more
_WINDOW_CHUNK = 1 << 16


def seven_tasks_size(masks: Sequence[NDArray[np.bool_]]) -> int:
    """The bytes that `encode_seven_tasks` takes, without encoding."""
    total = 0
    for symbols, tasks in _groups(masks):
        counts = np.bincount(symbols, minlength=1 << tasks)
        payload_bits = int((counts * code_lengths(counts)).sum())
        total += packed_size(1 << tasks, _LENGTH_BITS) + 4 + packed_size(payload_bits)
    return total


def encode_seven_tasks(masks: Sequence[NDArray[np.bool_]]) -> bytes:
    """The code of some masks of equal length, flat, in the order of their tasks."""
    parts = []
    for symbols, tasks in _groups(masks):
        lengths = code_lengths(np.bincount(symbols, minlength=1 << tasks))
        payload = _encode_symbols(symbols, lengths)
        parts += [pack_codes(lengths, _LENGTH_BITS), len(payload).to_bytes(4, "little"), payload]
    return b"".join(parts)


def decode_seven_tasks(data: bytes, num_tasks: int, count: int) -> list[NDArray[np.bool_]]:
    """The `num_tasks` masks of `count` weights each that `encode_seven_tasks` wrote."""
    masks: list[NDArray[np.bool_]] = []
    for first in range(0, num_tasks, GROUP):
        tasks = min(GROUP, num_tasks - first)
        table_size = packed_size(1 << tasks, _LENGTH_BITS)
        header, data = data[: table_size + 4], data[table_size + 4 :]
        if len(header) != table_size + 4:
            raise DamageError("the table of a group of seven tasks is cut off.")
        lengths = unpack_codes(header[:table_size], _LENGTH_BITS, 1 << tasks)
        size = int.from_bytes(header[table_size:], "little")
        if size > len(data):
            raise DamageError(f"a group of seven tasks says {size} bytes; {len(data)} follow.")
        symbols = _decode_symbols(data[:size], lengths.astype(np.uint8), count)
        data = data[size:]
        masks += [(symbols >> task & 1).view(np.bool_) for task in range(tasks)]
    if data:
        raise DamageError(f"{len(data)} bytes follow the last group of seven tasks.")
    return masks


def code_lengths(counts: NDArray[np.int64]) -> NDArray[np.uint8]:
    """The lengths in bits of a Huffman code for symbols that occur `counts` times."""
    lengths = np.zeros(counts.size, np.uint8)
    present = np.flatnonzero(counts)
    if present.size == 1:
        lengths[present] = 1
    heap = [(int(counts[symbol]), int(symbol), [int(symbol)]) for symbol in present]
    heapq.heapify(heap)
    while len(heap) > 1:
        count, tie, members = heapq.heappop(heap)
        other_count, _, other_members = heapq.heappop(heap)
        members = members + other_members
        lengths[members] += 1
        heapq.heappush(heap, (count + other_count, tie, members))
    return lengths


def _groups(masks: Sequence[NDArray[np.bool_]]) -> list[tuple[NDArray[np.uint8], int]]:
    """The symbols of each group of seven masks, and the number of masks in it."""
    if len({mask.shape for mask in masks}) > 1:
        raise SettingError(f"masks of different shapes: {sorted({m.shape for m in masks})}.")
    groups = []
    for first in range(0, len(masks), GROUP):
        group = masks[first : first + GROUP]
        symbols = np.zeros(group[0].size, np.uint8)
        for task, mask in enumerate(group):
            symbols |= mask.astype(np.uint8) << task
        groups.append((symbols, len(group)))
    return groups


def _canonical(lengths: NDArray[np.uint8]) -> tuple[NDArray[np.intp], NDArray[np.uint64]]:
    """The symbols in canonical order, and their codes moved to the top of 64 bits."""
    order = np.lexsort((np.arange(lengths.size), lengths))
    order = order[lengths[order] > 0]
    sizes = np.uint64(1) << (64 - lengths[order].astype(np.uint64))
    return order, np.cumsum(sizes, dtype=np.uint64) - sizes


def _encode_symbols(symbols: NDArray[np.uint8], lengths: NDArray[np.uint8]) -> bytes:
    order, starts = _canonical(lengths)
    codes = np.zeros(lengths.size, np.uint64)
    codes[order] = starts
    widths = lengths[symbols].astype(np.int64)
    ends = np.cumsum(widths)
    bits = np.zeros(int(ends[-1]) if ends.size else 0, np.uint8)
    for place in range(int(lengths.max(initial=0))):
        long = widths > place
        values = codes[symbols[long]] >> np.uint64(63 - place) & np.uint64(1)
        bits[ends[long] - widths[long] + place] = values
    return np.packbits(bits, bitorder="little").tobytes()


def _decode_symbols(data: bytes, lengths: NDArray[np.uint8], count: int) -> NDArray[np.uint8]:
    if not count:
        if data or lengths.any():
            raise DamageError("a group of seven tasks holds codes for masks without weights.")
        return np.zeros(0, np.uint8)
    _check_table(lengths)
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    at_bit = _symbol_at_each_bit(bits, lengths)
    steps = lengths[at_bit].tobytes()
    places, place = array("q"), 0
    while len(places) < count and place < len(steps):
        places.append(place)
        place += steps[place]
    if len(places) < count:
        raise DamageError(f"a group of seven tasks holds {len(places)} codes, not {count}.")
    alone = np.count_nonzero(lengths) == 1
    if packed_size(place) != len(data) or bits[place:].any() or (alone and bits.any()):
        raise DamageError("a group of seven tasks has bits left over after its last code.")
    return at_bit[np.frombuffer(places, np.int64)]


def _check_table(lengths: NDArray[np.uint8]) -> None:
    """Refuse code lengths that are not those of a complete Huffman code."""
    present = [int(length) for length in lengths if length]
    if present == [1]:
        return
    whole = 1 << _MAX_LENGTH
    if max(present, default=0) > _MAX_LENGTH or sum(whole >> size for size in present) != whole:
        raise DamageError("a table of code lengths is not that of a Huffman code.")


def _symbol_at_each_bit(bits: NDArray[np.uint8], lengths: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The symbol whose code begins at each bit of a stream, were one to begin there."""
    order, starts = _canonical(lengths)
    symbols = order.astype(np.uint8)
    stream = np.concatenate([np.packbits(bits), np.zeros(8, np.uint8)])
    found = np.empty((bits.size // 8, 8), np.uint8)
    for first in range(0, len(found), _WINDOW_CHUNK):
        size = min(_WINDOW_CHUNK, len(found) - first)
        windows = np.zeros(size, np.uint64)
        for byte in range(8):
            windows = windows << np.uint64(8) | stream[first + byte : first + byte + size]
        for bit in range(8):
            shifted = windows << np.uint64(bit)
            index = np.searchsorted(starts, shifted, side="right") - 1
            found[first : first + size, bit] = symbols[index]
    return found.reshape(-1)
