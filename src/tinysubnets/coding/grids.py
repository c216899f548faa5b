"""Coding of numbers on a grid: floats of few bits, with steps of one size below a floor.

Grid. A grid has m bits of mantissa, 0 to 10, and a floor E, -128 to 127. A number on it is an
integer s, its sign that of the number, its magnitude c = |s| standing for

    c * 2^(E - m)                                          where c < 2^m,
    (2^m + c mod 2^m) * 2^(E - m + c // 2^m - 1)           else.

So c counts the numbers of the grid from 0 on; from 2^E on they are floats with m bits of mantissa,
below they are equally far apart. A grid whose floor is below all values rounds them by a share of
themselves, one whose floor is above rounds them all to steps of one size.

Layout of some integers s, whose count is known from elsewhere. With a shift r each magnitude is a
symbol c >> r and a remainder c mod 2^r:

1. one byte: bits 0-3 are r; bit 4 is 1 where there are signs; bits 5-7 are w - 1, with w the bits
   of a symbol, 1 to 8;
2. a length as a varint, and so many bytes that code the symbols (`codes`, w bits each);
3. the remainders packed at r bits (`bits`); nothing where r = 0;
4. where there are signs, one bit for each s that is not 0, packed: 1 where it is negative.

Magnitudes are few and small where numbers are coarse or differences from others: the symbols take
what their entropy says, the rest stays as it is. A larger r keeps the Huffman table short. Measured
on 688 scales and 688 shifts of a residual network with 3 and 4 bits of mantissa: 7 % above the
entropy, for a table of some 30 bytes each.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tinysubnets.coding.bits import pack_bits, pack_codes, packed_size, unpack_bits, unpack_codes
from tinysubnets.coding.byte_io import Reader, Writer, varint_bytes
from tinysubnets.coding.codes import decode_codes, encode_codes, least_bytes
from tinysubnets.errors import DamageError, SettingError

MAX_MANTISSA = 10
MIN_FLOOR, MAX_FLOOR = -128, 127
_MAX_EXPONENT = 128  # numbers are below 2 to this, so that they are finite in float32
_MAX_SHIFT = 15
_SYMBOL_BITS = 8
_SHIFTS_TRIED = 8  # from the least that is possible on


class Grid(NamedTuple):
    """The numbers that values are rounded to: m bits of mantissa, and the exponent of the floor."""

    mantissa: int
    floor: int


def check_grid(grid: Grid) -> None:
    """Refuse what is no grid."""
    if not (0 <= grid.mantissa <= MAX_MANTISSA and MIN_FLOOR <= grid.floor <= MAX_FLOOR):
        raise SettingError(
            f"a grid of {grid.mantissa} bits above 2^{grid.floor}; allowed are 0 to {MAX_MANTISSA} "
            f"bits, and floors of 2^{MIN_FLOOR} to 2^{MAX_FLOOR}."
        )


def round_to_grid(values: NDArray[np.floating], grid: Grid) -> NDArray[np.int64]:
    """The integers of the numbers of a grid that are nearest to some finite float32 values.

    Of two that are equally near, the one with the even magnitude.
    """
    sizes = np.abs(values.astype(np.float64))
    exponents = np.frexp(sizes)[1].astype(np.int64) - 1  # 2^e <= size < 2^(e + 1)
    exponents = np.where(sizes > 0, np.maximum(exponents, grid.floor), grid.floor)
    counts = np.rint(np.ldexp(sizes, grid.mantissa - exponents)).astype(np.int64)
    magnitudes = ((exponents - grid.floor) << grid.mantissa) + counts
    # What rounding would lift beyond float32 stays the largest number there is.
    largest = ((_MAX_EXPONENT - grid.floor + 1) << grid.mantissa) - 1
    magnitudes = np.minimum(magnitudes, largest)
    return np.where(values < 0, -magnitudes, magnitudes)


def grid_values(integers: NDArray[np.int64], grid: Grid) -> NDArray[np.float32]:
    """The numbers of a grid that some integers stand for; ones beyond float32 are damage."""
    sizes = np.abs(integers)
    octaves = sizes >> grid.mantissa
    if integers.size and int(octaves.max()) > _MAX_EXPONENT - grid.floor:
        raise DamageError("a number on a grid is too large for float32.")
    fractions = sizes - (octaves << grid.mantissa)
    counts = np.where(octaves > 0, fractions + (1 << grid.mantissa), fractions)
    powers = grid.floor - grid.mantissa + np.maximum(octaves - 1, 0)
    values = np.ldexp(counts.astype(np.float64), powers)
    return np.where(integers < 0, -values, values).astype(np.float32)


def encode_integers(integers: NDArray[np.int64]) -> bytes:
    """The smallest code of a flat array of integers, each below 2^23 in size."""
    sizes = np.abs(integers)
    largest = int(sizes.max()) if sizes.size else 0
    least = max(0, largest.bit_length() - _SYMBOL_BITS)
    if least > _MAX_SHIFT:
        raise SettingError(f"an integer of size {largest} is too large to be coded.")
    most = min(_MAX_SHIFT, max(least, min(largest.bit_length(), least + _SHIFTS_TRIED)))
    best: tuple[int, int, bytes] | None = None  # bytes with remainders, shift, symbols
    for shift in range(least, most + 1):
        width, remainders = _width(largest, shift), packed_size(sizes.size, shift)
        if best is not None and best[0] <= _in_block(least_bytes(sizes.size, width)) + remainders:
            continue
        symbols = encode_codes((sizes >> shift).astype(np.uint8), width)
        total = _in_block(len(symbols)) + remainders
        if best is None or total < best[0]:
            best = total, shift, symbols
    assert best is not None
    _, shift, symbols = best
    negative = integers[sizes > 0] < 0
    signed = bool(negative.any())
    out = Writer()
    out.byte(shift | signed << 4 | _width(largest, shift) - 1 << 5)
    out.block(symbols)
    if shift:
        out.raw(pack_codes((sizes & ((1 << shift) - 1)).astype(np.uint16), shift))
    if signed:
        out.raw(pack_bits(negative))
    return out.bytes()


def _width(largest: int, shift: int) -> int:
    """The bits of the symbols of integers up to a size."""
    return max(1, (largest >> shift).bit_length())


def _in_block(size: int) -> int:
    """What so many bytes take behind their length."""
    return size + varint_bytes(size)


def decode_integers(data: Reader, count: int) -> NDArray[np.int64]:
    """The `count` integers that `encode_integers` wrote at this place."""
    first = data.byte()
    shift, signed, width = first & 15, bool(first & 16), 1 + (first >> 5)
    sizes = decode_codes(data.block(), width, count).astype(np.int64) << shift
    if shift:
        remainders = data.raw(packed_size(count, shift))
        sizes += unpack_codes(remainders, shift, count)
    if signed:
        filled = sizes > 0
        signs = unpack_bits(data.raw(packed_size(int(filled.sum()))), int(filled.sum()))
        sizes[filled] *= 1 - 2 * signs.astype(np.int64)
    return sizes
