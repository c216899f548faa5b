"""Gap-Huffman coding of sorted positions: Huffman-coded quotients beside plain remainders.

Layout. Positions p_0 < p_1 < ... give gaps g_0 = p_0 and g_i = p_i - p_{i-1} - 1. With the shift k
each gap is a quotient q = g >> k and a remainder r = g mod 2^k. A code is

1. one Huffman stream (`huffman`) of the quotients, one symbol each where q < 255; a larger q is
   q // 255 symbols 255 followed by the symbol q mod 255. The last symbol is never 255;
2. straight after the end of that stream, at a byte border, the remainders packed at k bits
   (`packing`); nothing where k = 0.

The number of gaps is the number of symbols below 255. With k = 0 this is plain Huffman coding of
gaps; a larger k keeps the table small where gaps are long.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tinysubnets.coding.huffman import huffman_decode_prefix, huffman_encode
from tinysubnets.coding.packing import split_planes, unpack_codes
from tinysubnets.errors import DamageError

__all__ = [
    "CHUNK",
    "MAX_SHIFT",
    "best_gap_shift",
    "gap_huffman_decode",
    "gap_huffman_encode",
    "gaps_of",
]

MAX_SHIFT = 15
CHUNK = 1 << 15  # positions are decoded in pieces that stay in the cache; twice as fast, and lean
_ESCAPE = 255
_TABLE_BITS_PER_SYMBOL = 5  # what a distinct symbol adds to the table of a deflate block, roughly


def gaps_of(positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """The number of places skipped before each of some sorted positions."""
    return np.diff(positions, prepend=-1) - 1


def best_gap_shift(gaps: NDArray[np.int64]) -> int:
    """The shift with the smallest estimate of the coded size, by the entropy of the quotients."""
    if not gaps.size:
        return 0
    top = min(int(gaps.mean()).bit_length(), MAX_SHIFT)
    return min(range(max(top - 6, 0), top + 1), key=lambda shift: _estimate_bits(gaps, shift))


def gap_huffman_encode(gaps: NDArray[np.int64], shift: int) -> bytes:
    """The gap-Huffman code of some gaps."""
    stream = huffman_encode(_symbols_of(gaps >> shift).tobytes())
    return stream + np.packbits(split_planes(gaps, shift), bitorder="little").tobytes()


def gap_huffman_decode(data: bytes, shift: int, limit: int) -> Iterator[NDArray[np.int64]]:
    """The positions whose gaps `gap_huffman_encode` wrote, in sorted pieces, none of them empty.

    There are never more than `limit` of them; that each is below `limit` is left to the caller.
    """
    # Each symbol accounts for one position or more.
    decoded, plane = huffman_decode_prefix(data, limit)
    symbols = np.frombuffer(decoded, np.uint8)
    if symbols.size and symbols[-1] == _ESCAPE:
        raise DamageError("a stream of gaps ends inside a gap.")
    escapes = decoded.count(_ESCAPE)
    remainders = _unpack_remainders(plane, shift, symbols.size - escapes)
    # The narrowest type that holds (254 << shift) + 2^shift and 255 << shift.
    narrow = np.uint8 if not shift else np.uint16 if shift <= 8 else np.uint32
    last, used = -1, 0
    for start in range(0, symbols.size, CHUNK):
        piece = symbols[start : start + CHUNK]
        steps: NDArray[Any] = np.left_shift(piece, shift, dtype=narrow)
        count, ends = piece.size, cast(Any, slice(None))  # the last symbols of the gaps
        if escapes:
            ends = np.flatnonzero(piece != _ESCAPE)
            count = ends.size
        steps[ends] += 1
        if shift:
            steps[ends] += remainders[used : used + count]
        positions = np.add.accumulate(steps, dtype=np.int64)
        positions += last
        last, used = int(positions[-1]), used + count
        if count:
            yield positions[ends]


def _symbols_of(quotients: NDArray[np.int64]) -> NDArray[np.uint8]:
    """The byte symbols of some quotients, with escapes before those of 255 and more."""
    escapes = quotients // _ESCAPE
    total = int(escapes.sum())
    if not total:
        return quotients.astype(np.uint8)
    symbols = np.full(quotients.size + total, _ESCAPE, np.uint8)
    symbols[np.cumsum(escapes + 1) - 1] = quotients - escapes * _ESCAPE
    return symbols


def _estimate_bits(gaps: NDArray[np.int64], shift: int) -> float:
    """The size of the code in bits, as the entropy says, with an allowance for the table."""
    counts = np.bincount(_symbols_of(gaps >> shift), minlength=_ESCAPE + 1)
    counts = counts[counts > 0]
    # A Huffman code spends at least one bit on every symbol, which matters for frequent escapes.
    lengths = np.maximum(np.log2(counts.sum() / counts), 1)
    table = _TABLE_BITS_PER_SYMBOL * counts.size
    return float((counts * lengths).sum()) + table + shift * gaps.size


def _unpack_remainders(plane: bytes, shift: int, count: int) -> NDArray[np.unsignedinteger]:
    """The `count` remainders of `shift` bits each; all zero where `shift` is 0."""
    if shift:
        return unpack_codes(plane, shift, count)
    if plane:
        raise DamageError(f"{len(plane)} bytes follow gaps that have no remainders.")
    return np.zeros(count, np.uint8)
