"""Coding of one flat boolean array, the smallest of raw, byte-Huffman, gap-Huffman and Rice.

Layout. One tag byte, then the body; the number of places is known from elsewhere. In the tag

    bits 0-2  the codec: 0 raw, 1 byte-Huffman, 2 gap-Huffman, 3 Rice; 4 to 6 belong to `masks`,
              7 is free;
    bit 3     1 where the array was inverted before coding, as gap-Huffman and Rice do, and have
              to do, where more than half of it are ones; 0 in other codecs;
    bits 4-7  the shift k of the gaps of gap-Huffman and Rice; 0 in other codecs.

A body is never longer than the raw one, so that a reader may refuse a longer one unread. Packing,
the order of bits and Huffman streams are those of `bits`.

Raw is the array packed at one bit. Byte-Huffman is one Huffman stream of the bytes of raw.

The other two code the positions p_0 < p_1 < ... of the ones by their gaps g_0 = p_0 and
g_i = p_i - p_{i-1} - 1. With the shift k each gap is a quotient q = g >> k and a remainder
r = g mod 2^k.

Gap-Huffman is

1. one Huffman stream of the quotients, one symbol each where q < 255; a larger q is q // 255
   symbols 255 followed by the symbol q mod 255. The last symbol is never 255;
2. straight after the end of that stream, at a byte border, the remainders packed at k bits; nothing
   where k = 0.

The number of gaps is the number of symbols below 255. With k = 0 this is plain Huffman coding of
gaps; a larger k keeps the table small where gaps are long.

Rice, after Golomb and Rice, is one stream of bits:

1. the unary plane: for each gap q zero bits, then a one bit;
2. the remainder planes: the k lowest bits of all gaps as packing orders them, first bit 0 of every
   gap, then bit 1 of every gap, and so on;
3. one bit that is one, then the zero bits (0 to 7) that fill the last byte.

The number of gaps m is not written. Let T be the index of the last one bit of the stream, the one
of part 3, and e_i the index of its i-th one bit, i from 1. Then m is the only number with
e_m + 1 + m * k = T, because the left side grows with m; m = 0 where T = 0. Planes instead of whole
codes in a row let a reader find all quotients at once: q_1 + ... + q_i = e_i + 1 - i.

Example: positions 3, 4, 9 with k = 1 have gaps 3, 0, 4, quotients 1, 0, 2, remainders 1, 0, 0: the
bits 01 1 001, 1 0 0, 1 and 000000, and so the bytes 0x66 0x02.

Measured on random arrays on one core of a server: size over the first-order entropy, and MB of
packed array decoded per second, with the XOR that follows.

    density          0.001  0.01  0.03  0.05   0.1  0.15   0.2   0.3   0.4  0.45   0.5
    50,000 places, %  +2.4  +0.4  +2.1  +1.1  +1.5  +0.8  +2.3  +2.0  +1.3  +0.7  +0.0
    11 million, %     +0.5  +0.4  +0.6  +0.8  +0.9  +0.7  +1.6  +0.8  +0.6  +0.5  +0.0
    50,000, MB/s       390   320   260   225   170   138   120   230   235   840  1200
    11 million, MB/s  2500  1230   480   350   190   185   220   215   260   280  2530

Over several draws the worst is +2.9 %, at 50,000 places of density 0.21; at 50 ones in 50,000
places, 71 bytes, it is sometimes one byte more than 3 %.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tinysubnets.coding.bits import (
    huffman_decode,
    huffman_decode_prefix,
    huffman_encode,
    join_planes,
    pack_bits,
    packed_size,
    split_planes,
    unpack_bits,
    unpack_codes,
)
from tinysubnets.errors import DamageError

RAW, BYTE_HUFFMAN, GAP_HUFFMAN, RICE = range(4)
MAX_SHIFT = 15  # what four bits of the tag hold
CHUNK = 1 << 15  # positions are decoded in pieces that stay in the cache; twice as fast, and lean
_ESCAPE = 255
_TABLE_BITS_PER_SYMBOL = 5  # what a distinct symbol adds to the table of a deflate block, roughly
_CODEC = 7  # the bits of the tag that name the codec
_INVERTED = 8
# A decoded position takes 4 ns in Rice and 6 ns in gap-Huffman. In arrays with more than one in
# eight that is slower than byte-Huffman, and with more than one in five near 100 MB of packed array
# per second. So a slower codec has to save this share of the bytes there to be worth it; it does so
# only in arrays too short for the table of byte-Huffman.
_DENSE, _VERY_DENSE = 1 / 8, 0.21
_WORTH = 0.98
_WORTH_RICE = 0.997  # up to _VERY_DENSE: there masks of 50,000 places else come to 3.1 % too much


def encode_bitmask(mask: NDArray[np.bool_]) -> bytes:
    """The smallest code of a flat boolean array."""
    packed = pack_bits(mask)
    best = min(bytes([RAW]) + packed, bytes([BYTE_HUFFMAN]) + huffman_encode(packed), key=len)
    ones = int(np.count_nonzero(mask))
    inverted = 2 * ones > mask.size
    gaps = gaps_of(np.flatnonzero(~mask if inverted else mask))
    gap_shift, rice_shift = best_gap_shift(gaps), best_rice_shift(gaps)
    flag = _INVERTED * inverted
    rice = bytes([RICE | flag | rice_shift << 4]) + rice_encode(gaps, rice_shift)
    gap = bytes([GAP_HUFFMAN | flag | gap_shift << 4]) + gap_huffman_encode(gaps, gap_shift)
    if gaps.size <= _DENSE * mask.size:
        return min(best, rice, gap, key=len)
    worth = _WORTH_RICE if gaps.size <= _VERY_DENSE * mask.size else _WORTH
    best = rice if len(rice) < worth * len(best) else best
    return gap if len(gap) < _WORTH * len(best) else best


def decode_bitmask(data: bytes, count: int) -> NDArray[np.bool_]:
    """The boolean array of `count` places that `encode_bitmask` wrote."""
    codec, inverted, body = _open(data, count)
    if codec == RAW:
        return unpack_bits(body, count)
    if codec == BYTE_HUFFMAN:
        return unpack_bits(huffman_decode(body, packed_size(count)), count)
    mask = (np.ones if inverted else np.zeros)(count, np.bool_)
    for positions in _positions(data, count):
        mask[positions] = not inverted
    return mask


def bitmask_or_positions(data: bytes, count: int) -> NDArray[Any]:
    """What `decode_bitmask` gives, or the sorted positions of its ones, whichever is faster.

    The type of the array tells which: booleans [count], or int64 positions.
    """
    codec, inverted, _ = _open(data, count)
    if inverted or codec not in (GAP_HUFFMAN, RICE):
        return decode_bitmask(data, count)
    pieces = list(_positions(data, count))
    return pieces[0] if len(pieces) == 1 else np.concatenate([np.empty(0, np.int64), *pieces])


def position_chunks(data: bytes, count: int) -> Iterator[NDArray[np.int64]]:
    """The sorted positions of the ones, in chunks that stay in the cache."""
    codec, inverted, _ = _open(data, count)
    if inverted or codec not in (GAP_HUFFMAN, RICE):
        return iter([decode_bitmask(data, count).nonzero()[0]])
    return _positions(data, count)


def _open(data: bytes, count: int) -> tuple[int, bool, bytes]:
    """Codec, inversion and body of a coded array, checked as far as the tag goes."""
    if not data or len(data) > 1 + packed_size(count):
        raise DamageError(
            f"{len(data)} bytes of mask; {count} places take 1 to {1 + packed_size(count)}."
        )
    codec = data[0] & _CODEC
    if codec > RICE or (codec in (RAW, BYTE_HUFFMAN) and data[0] > codec):
        raise DamageError(f"unknown mask coding {data[0]}.")
    return codec, bool(data[0] & _INVERTED), data[1:]


def _positions(data: bytes, count: int) -> Iterator[NDArray[np.int64]]:
    """The positions that a gap codec wrote, in sorted pieces, each checked against `count`."""
    shift, body = data[0] >> 4, data[1:]
    by_rice = data[0] & _CODEC == RICE
    pieces = rice_decode(body, shift) if by_rice else gap_huffman_decode(body, shift, count)
    total = 0
    for positions in pieces:
        total += positions.size
        if positions[-1] >= count:
            raise DamageError(f"a gap leads to place {positions[-1]} of a mask of {count}.")
        if 2 * total > count:
            raise DamageError("most places of a mask are coded by gaps; it had to be inverted.")
        yield positions


# Gap-Huffman.


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


# Rice.


def rice_size(gaps: NDArray[np.int64], shift: int) -> int:
    """The bytes that `rice_encode` takes."""
    return (int((gaps >> shift).sum()) + gaps.size * (shift + 1)) // 8 + 1


def best_rice_shift(gaps: NDArray[np.int64]) -> int:
    """The shift of the smallest code; the smaller one of two that are equal."""
    if not gaps.size:
        return 0
    # The best shift is near log2 of the mean gap, less where the gaps are of very mixed sizes.
    top = min(int(gaps.mean()).bit_length(), MAX_SHIFT)
    return min(range(max(top - 4, 0), top + 1), key=lambda shift: rice_size(gaps, shift))


def rice_encode(gaps: NDArray[np.int64], shift: int) -> bytes:
    """The Golomb-Rice code of some gaps."""
    ends = np.cumsum((gaps >> shift) + 1)
    unary_bits = int(ends[-1]) if gaps.size else 0
    end = unary_bits + gaps.size * shift
    bits = np.zeros(end + 1, np.uint8)
    bits[ends - 1] = 1
    bits[unary_bits:end] = split_planes(gaps, shift).reshape(-1)
    bits[end] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def rice_decode(data: bytes, shift: int) -> Iterator[NDArray[np.int64]]:
    """The positions whose gaps `rice_encode` wrote, in sorted pieces.

    There are fewer of them than the data has bits; that they fit a mask is left to the caller.
    """
    if not data or not data[-1]:
        raise DamageError("a Rice stream lacks the one bit that ends it.")
    end = 8 * len(data) - 9 + data[-1].bit_length()
    if not end:
        return
    count = _count_gaps(data, shift, end)
    unary_bits = end - count * shift
    bits = np.unpackbits(np.frombuffer(data, np.uint8), count=end, bitorder="little")
    unary = bits[:unary_bits].view(np.bool_)
    # With e_i from 0, position i is (e_i << k) + s - ((s - r_0) + ... + (s - r_i)), s = 2^k - 1.
    largest = (1 << shift) - 1
    lacking = join_planes(bits[unary_bits:].reshape(shift, count), largest)
    total, used = -largest, 0
    for start in range(0, unary_bits, CHUNK):
        ends = unary[start : start + CHUNK].nonzero()[0]
        if not ends.size:
            continue
        sums = lacking[used : used + ends.size].astype(np.int64)
        sums[0] += total - (start << shift)
        np.add.accumulate(sums, out=sums)
        total, used = int(sums[-1]) + (start << shift), used + ends.size
        ends <<= shift
        ends -= sums
        yield ends


def _count_gaps(data: bytes, shift: int, end: int) -> int:
    """The number of gaps m of a Rice stream: its m-th one bit, plus m * shift bits, reach `end`."""
    # That bit is in one of the bytes from `last` to below `above`, with `count` ones before `last`.
    # Halving, and counting only what lies between, is sooner done than a running count of all.
    last, above, count = 0, len(data), 0
    while above - last > 1:
        middle = (last + above) // 2
        ones = count + int.from_bytes(data[last:middle], "little").bit_count()
        if 8 * middle + ones * shift < end:
            last, count = middle, ones
        else:
            above = middle
    for bit in range(8):
        if data[last] >> bit & 1:
            count += 1
            if 8 * last + bit + 1 + count * shift == end:
                return count
    raise DamageError("the planes of a Rice stream do not fit its length.")
