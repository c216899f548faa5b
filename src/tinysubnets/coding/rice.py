"""Golomb-Rice coding of the gaps between sorted positions.

Layout. Positions p_0 < p_1 < ... give gaps g_0 = p_0 and g_i = p_i - p_{i-1} - 1. With the shift k
each gap is a quotient q = g >> k and a remainder r = g mod 2^k. One stream of bits, in the bit
order of `packing`, holds in this order

1. the unary plane: for each gap q zero bits, then a one bit;
2. the remainder planes: the k lowest bits of all gaps as `packing` orders them, first bit 0 of
   every gap, then bit 1 of every gap, and so on;
3. one bit that is one, then the zero bits (0 to 7) that fill the last byte.

The number of gaps m is not written. Let T be the index of the last one bit of the stream, the one
of part 3, and e_i the index of its i-th one bit, i from 1. Then m is the only number with
e_m + 1 + m * k = T, because the left side grows with m; m = 0 where T = 0. Planes instead of whole
codes in a row let a reader find all quotients at once: q_1 + ... + q_i = e_i + 1 - i.

Example: positions 3, 4, 9 with k = 1 have gaps 3, 0, 4, quotients 1, 0, 2, remainders 1, 0, 0: the
bits 01 1 001, 1 0 0, 1 and 000000, and so the bytes 0x66 0x02.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tinysubnets.coding.gaps import CHUNK, MAX_SHIFT
from tinysubnets.coding.packing import join_planes, split_planes
from tinysubnets.errors import DamageError

__all__ = ["best_rice_shift", "rice_decode", "rice_encode", "rice_size"]


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
