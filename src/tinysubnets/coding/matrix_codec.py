"""Coding of a boolean matrix whose rows and columns differ in how many ones they hold.

Inputs that matter have weights in most rows, others in none; some rows have many, others few. An
arithmetic coder learns both on the way: columns by the ones that they have had in earlier rows, a
row by those that it has had so far.

Layout. A matrix of R rows and C columns, at least one of each, is a varint k, the number of its
ones; where k > 0 then a byte q and a byte a, neither of them 0, and a stream of symbols to the end.

Rows come one after the other. In each, column i weighs w_i = q + 16 times its ones in earlier rows;
X_i is w_0 + ... + w_{i-1}, and rho = max(1, a X_C R // k). A symbol tells where the next one of the
row is, from place p on (0, or the one behind the last one), C if there is no other. With n ones in
the row so far, the chance that p to i - 1 hold none is

    S_i = ((rho + X_p) / (rho + X_i)) ^ (a + n),

which is what ones that come at random have, in proportion to the weights and at a rate of the row's
own, whose expectation a counts as ones that were seen before. In numbers: S_i is 2^32 to begin
with; for each bit of a + n, the lowest first, S_i = S_i u >> 32 where the bit is set and then
u = u u >> 32, with u = ((rho + X_p) << 32) // (rho + X_i) at first. The symbol i takes the
numbers from b_i to below b_{i+1} of 2^24, where

    b_i = ((2^32 - S_i) (2^24 - 1 - C + p) >> 32) + i - p, and b_{C+1} = 2^24.

There is no symbol where p = C, and none behind the k-th one.

The coder has a number `low`, 0 at first, and a `range`, 2^48. A symbol from b to below b + s makes
`unit` = range >> 24, low += unit b and range = unit s; then, as long as range is at most 2^40, the
topmost of the 48 bits of low leave as a byte, and both are shifted by 8 (a carry goes to the bytes
that have left). In the end come the fewest bytes, 0 to 6, that make a number from low to below
low + range. The stream has no zero bytes at its end; a reader takes those that are missing for 0,
reads six bytes to begin with, and all of them in the end.

To bound a reader's time, R + k is at most 4 times the bytes of the code, plus 64, and for all
matrices of a mask together R + k is at most 2^13 and R C at most 2^20.

Measured: masks of permuted MNIST (784-160-24, 2.6 % of the weights, of a bank of its own) take 7 %
less than by the other codecs, 6 % less than the entropy of each tensor's density. A symbol decodes
in 3 to 4 microseconds, 3,500 ones of such a mask in 10 ms; others take a thousandth of that.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tinysubnets.coding.byte_io import Reader, Writer
from tinysubnets.errors import DamageError

MAX_SYMBOLS, MAX_PLACES = 1 << 13, 1 << 20  # of all matrices of a mask
_SEEN = 16  # what a one adds to the weight of its column
_ONE_BITS, _TOTAL_BITS = 32, 24  # of chances in fixed point, and of what symbols share
_ONE, _TOTAL = 1 << _ONE_BITS, 1 << _TOTAL_BITS
_TOP, _LOW = 1 << 48, 1 << 40
_WEIGHTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 255)  # tried for q
_SURENESS = (1, 2, 3, 4, 6, 8, 16, 32, 64, 255)  # tried for a

Places = NDArray[np.int64]


def fits(rows: int, columns: int, ones: int, size: int, symbols: int = MAX_SYMBOLS) -> bool:
    """Whether a code of `size` bytes may be that of such a matrix.

    - `symbols`: what is left of those that a mask may have.
    """
    within = rows + ones <= symbols and rows * columns <= MAX_PLACES
    return within and rows + ones <= 4 * size + 64


def is_uneven(rows: int, columns: int, places: Places) -> bool:
    """Whether rows and columns differ by enough that telling so may pay: a quick look."""
    if not places.size:
        return False
    gain = -1.5 * (rows + columns)  # what chance alone makes of them, and what learning costs
    for count, where in ((rows, places // columns), (columns, places % columns)):
        found = np.bincount(where, minlength=count)
        found = found[found > 0]
        gain += float((found * np.log2(found * (count / places.size))).sum())
    return gain > 0.2 * places.size


def encode_matrix(
    places: Places, rows: int, columns: int, symbols: int = MAX_SYMBOLS
) -> bytes | None:
    """The code of a matrix; None where `fits` refuses it.

    - `places`: those of its ones, sorted, row by row.
    """
    out, ones = Writer(), places.size
    out.varint(ones)
    if not fits(rows, columns, ones, MAX_SYMBOLS, symbols):
        return None
    if ones:
        least, sureness = _fitted(places, rows, columns)
        out.raw(bytes([least, sureness]))
        coder = _Encoder()
        starts = np.searchsorted(places, np.arange(rows + 1) * columns).tolist()
        for number, row in enumerate(_rows(rows, columns, ones, least, sureness)):
            here = (places[starts[number] : starts[number + 1]] - number * columns).tolist()
            row.ones += here
            start = 0
            for seen, place in enumerate(here):
                coder.put(*row.interval(start, place, seen))
                start = place + 1
            if starts[number + 1] == ones:
                break
            if start < columns:
                coder.put(*row.interval(start, columns, len(here)))
        out.raw(coder.bytes())
    data = out.bytes()
    return data if fits(rows, columns, ones, len(data)) else None


def decode_matrix(data: bytes, rows: int, columns: int, symbols: int = MAX_SYMBOLS) -> Places:
    """The places of the ones of a matrix that `encode_matrix` wrote, sorted, row by row."""
    reader = Reader(data, "a mask by matrix")
    ones = reader.varint(rows * columns)
    if not fits(rows, columns, ones, len(data), symbols):
        raise reader.damage(f"{ones} ones of a matrix of {rows} x {columns} in {len(data)} bytes.")
    found: list[int] = []
    if ones:
        least, sureness = reader.byte(), reader.byte()
        if not least or not sureness:
            raise reader.damage("a weight of 0.")
        coder = _Decoder(reader.rest())
        for number, row in enumerate(_rows(rows, columns, ones, least, sureness)):
            start = 0
            while start < columns and len(found) + len(row.ones) < ones:
                place, low, size = row.find(start, coder.target(), len(row.ones))
                coder.take(low, size)
                if place == columns:
                    break
                row.ones.append(place)
                start = place + 1
            found += [number * columns + place for place in row.ones]
            if len(found) == ones:
                break
        else:
            raise reader.damage("fewer ones than told.")
        coder.finish()
    else:
        reader.done()
    return np.array(found, np.int64)


class _Row:
    """The chances of the places of one row.

    - `sums`: X_0 to X_C.
    - `rate`: rho.
    - `sureness`: a.

    `ones` are the places of its ones, for whoever walks the rows to fill in.
    """

    def __init__(self, sums: list[int], rate: int, sureness: int) -> None:
        self.sums, self.rate, self.sureness = sums, rate, sureness
        self.columns = len(sums) - 1
        self.ones: list[int] = []

    def below(self, start: int, place: int, seen: int) -> int:
        """b_i: the numbers of all symbols before a place."""
        base = ((self.rate + self.sums[start]) << _ONE_BITS) // (self.rate + self.sums[place])
        chance, exponent = _ONE, self.sureness + seen
        while exponent:
            if exponent & 1:
                chance = chance * base >> _ONE_BITS
            base = base * base >> _ONE_BITS
            exponent >>= 1
        free = _TOTAL - 1 - self.columns + start
        return ((_ONE - chance) * free >> _ONE_BITS) + place - start

    def interval(self, start: int, place: int, seen: int) -> tuple[int, int]:
        """Where the numbers of a symbol begin, and how many they are."""
        low = self.below(start, place, seen)
        above = _TOTAL if place == self.columns else self.below(start, place + 1, seen)
        return low, above - low

    def find(self, start: int, target: int, seen: int) -> tuple[int, int, int]:
        """The symbol that a number belongs to, and its interval."""
        # A guess by floating point, which is right or one off unless someone wants it not to be.
        here, exponent = self.rate + self.sums[start], self.sureness + seen
        reached = here * (1 - target / _TOTAL) ** (-1 / exponent) - self.rate
        place = max(start, bisect_right(self.sums, reached, start) - 1)
        low, size = self.interval(start, place, seen)
        if not low <= target < low + size:
            places = range(start, self.columns + 1)
            place = bisect_right(places, target, key=lambda i: self.below(start, i, seen))
            place += start - 1
            low, size = self.interval(start, place, seen)
        return place, low, size


def _rows(rows: int, columns: int, ones: int, least: int, sureness: int) -> Iterator[_Row]:
    """The rows of a matrix, each with what the ones of those before it tell."""
    weights = np.full(columns, least, np.int64)
    sums = np.zeros(columns + 1, np.int64)
    for _ in range(rows):
        np.cumsum(weights, out=sums[1:])
        rate = max(1, sureness * int(sums[-1]) * rows // ones)
        row = _Row(sums.tolist(), rate, sureness)
        yield row
        weights[row.ones] += _SEEN


def _fitted(places: Places, rows: int, columns: int) -> tuple[int, int]:
    """The q and a that promise the shortest code, by the likelihood of ones in continuous time."""
    ones = places.size
    row, column = places // columns, places % columns
    order = np.argsort(column, kind="stable")
    sorted_columns = column[order]
    seen = np.arange(ones) - np.searchsorted(sorted_columns, sorted_columns)  # in earlier rows
    per_row = np.bincount(row, minlength=rows)
    before = np.cumsum(per_row) - per_row
    times = np.bincount(seen)
    counts, repeated = np.unique(per_row, return_counts=True)

    def likelihood(least: int, sureness: int) -> float:
        weight = _SEEN * before + least * columns
        rate = np.maximum(1, sureness * weight * rows // ones)
        powers = sureness * np.log(rate) - (sureness + per_row) * np.log(rate + weight)
        gammas = [math.lgamma(sureness + n) - math.lgamma(sureness) for n in counts.tolist()]
        chosen = times * np.log(_SEEN * np.arange(times.size) + least)
        return float(powers.sum() + chosen.sum() + np.dot(repeated, gammas))

    least = max(_WEIGHTS, key=lambda q: likelihood(q, 4))
    sureness = max(_SURENESS, key=lambda a: likelihood(least, a))
    return max(_WEIGHTS, key=lambda q: likelihood(q, sureness)), sureness


class _Encoder:
    """Symbols by their shares of a range, which becomes smaller with each."""

    def __init__(self) -> None:
        self.out = bytearray()
        self.low, self.range = 0, _TOP

    def put(self, low: int, size: int) -> None:
        """Write a symbol that has `size` of all numbers, from `low` on."""
        unit = self.range >> _TOTAL_BITS
        self._set_low(self.low + unit * low)
        self.range = unit * size
        while self.range <= _LOW:
            self.out.append(self.low >> 40)
            self.low = self.low << 8 & _TOP - 1
            self.range <<= 8

    def _set_low(self, low: int) -> None:
        self.low = low & _TOP - 1
        if low >= _TOP:
            place = len(self.out) - 1
            while self.out[place] == 255:
                self.out[place] = 0
                place -= 1
            self.out[place] += 1

    def bytes(self) -> bytes:
        """All bytes, with those that tell the last symbols."""
        for count in range(7):
            step = 1 << 48 - 8 * count
            last = -(-self.low // step) * step
            if last < self.low + self.range:
                break
        self._set_low(last)
        self.out += self.low.to_bytes(6, "big")[:count]
        return bytes(self.out).rstrip(b"\0")


class _Decoder:
    """The symbols that `_Encoder` wrote."""

    def __init__(self, data: bytes) -> None:
        if data[-1:] == b"\0":
            raise DamageError("an arithmetic code ends with a zero byte.")
        self.data, self.used = data, 6
        self.code, self.range = int.from_bytes(data[:6].ljust(6, b"\0"), "big"), _TOP
        self.unit = 0

    def target(self) -> int:
        """A number of the next symbol."""
        self.unit = self.range >> _TOTAL_BITS
        return min(self.code // self.unit, _TOTAL - 1)

    def take(self, low: int, size: int) -> None:
        """Go on behind a symbol."""
        self.code -= self.unit * low
        self.range = self.unit * size
        if self.code >= self.range:
            raise DamageError("an arithmetic code that no symbol has.")
        while self.range <= _LOW:
            byte = self.data[self.used] if self.used < len(self.data) else 0
            self.code, self.range = self.code << 8 | byte, self.range << 8
            self.used += 1

    def finish(self) -> None:
        """Refuse bytes that no symbol needed."""
        if self.used < len(self.data):
            raise DamageError(f"{len(self.data) - self.used} bytes follow an arithmetic code.")
