"""Coding of one flat boolean array, the smallest of raw, byte-Huffman, gap-Huffman and Rice.

Layout. One tag byte, then the body; the number of places is known from elsewhere. In the tag

    bits 0-2  the codec: 0 raw, 1 byte-Huffman, 2 gap-Huffman, 3 Rice;
    bit 3     1 where the array was inverted before coding, as gap-Huffman and Rice do, and have
              to do, where more than half of it are ones; 0 in other codecs;
    bits 4-7  the shift k of the gaps of gap-Huffman and Rice; 0 in other codecs.

    raw           the array packed at one bit (`packing`).
    byte-Huffman  the bytes of raw as one Huffman stream (`huffman`).
    gap-Huffman   the positions of the ones by their gaps (`gaps`).
    Rice          the positions of the ones by their gaps (`rice`).

A body is never longer than the raw one, so that a reader may refuse a longer one unread.

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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinysubnets.coding.gaps import (
    best_gap_shift,
    gap_huffman_decode,
    gap_huffman_encode,
    gaps_of,
)
from tinysubnets.coding.huffman import huffman_decode, huffman_encode
from tinysubnets.coding.packing import pack_bits, packed_size, unpack_bits
from tinysubnets.coding.rice import best_rice_shift, rice_decode, rice_encode
from tinysubnets.errors import DamageError

__all__ = ["decode_flips", "encode_flips", "find_flips", "flip_pieces", "flips_or_positions"]

RAW, BYTE_HUFFMAN, GAP_HUFFMAN, RICE = range(4)
_CODEC = 7
_INVERTED = 8
# A decoded position takes 4 ns in Rice and 6 ns in gap-Huffman. In arrays with more than one in
# eight that is slower than byte-Huffman, and with more than one in five near 100 MB of packed array
# per second. So a slower codec has to save this share of the bytes there to be worth it; it does so
# only in arrays too short for the table of byte-Huffman.
_DENSE, _VERY_DENSE = 1 / 8, 0.21
_WORTH = 0.98
_WORTH_RICE = 0.997  # up to _VERY_DENSE: there masks of 50,000 places else come to 3.1 % too much


def encode_flips(flips: NDArray[np.bool_]) -> bytes:
    """The smallest code of a flat boolean array."""
    packed = pack_bits(flips)
    best = min(bytes([RAW]) + packed, bytes([BYTE_HUFFMAN]) + huffman_encode(packed), key=len)
    ones = int(np.count_nonzero(flips))
    inverted = 2 * ones > flips.size
    gaps = gaps_of(np.flatnonzero(~flips if inverted else flips))
    gap_shift, rice_shift = best_gap_shift(gaps), best_rice_shift(gaps)
    flag = _INVERTED * inverted
    rice = bytes([RICE | flag | rice_shift << 4]) + rice_encode(gaps, rice_shift)
    gap = bytes([GAP_HUFFMAN | flag | gap_shift << 4]) + gap_huffman_encode(gaps, gap_shift)
    if gaps.size <= _DENSE * flips.size:
        return min(best, rice, gap, key=len)
    worth = _WORTH_RICE if gaps.size <= _VERY_DENSE * flips.size else _WORTH
    best = rice if len(rice) < worth * len(best) else best
    return gap if len(gap) < _WORTH * len(best) else best


def decode_flips(data: bytes, count: int) -> NDArray[np.bool_]:
    """The boolean array of `count` places that `encode_flips` wrote."""
    codec, inverted, body = _open(data, count)
    if codec == RAW:
        return unpack_bits(body, count)
    if codec == BYTE_HUFFMAN:
        return unpack_bits(huffman_decode(body, packed_size(count)), count)
    flips = (np.ones if inverted else np.zeros)(count, np.bool_)
    for positions in _positions(data, count):
        flips[positions] = not inverted
    return flips


def find_flips(data: bytes, count: int) -> NDArray[np.int64]:
    """The sorted positions of the ones of the array that `encode_flips` wrote."""
    found = flips_or_positions(data, count)
    return found.nonzero()[0] if found.dtype == np.bool_ else found


def flips_or_positions(data: bytes, count: int) -> NDArray[Any]:
    """What `decode_flips` or what `find_flips` gives, whichever is sooner read; the type tells."""
    codec, inverted, _ = _open(data, count)
    if inverted or codec not in (GAP_HUFFMAN, RICE):
        return decode_flips(data, count)
    pieces = list(_positions(data, count))
    return pieces[0] if len(pieces) == 1 else np.concatenate([np.empty(0, np.int64), *pieces])


def flip_pieces(data: bytes, count: int) -> Iterator[NDArray[np.int64]]:
    """The positions that `find_flips` gives, in sorted pieces, so that they stay in the cache."""
    codec, inverted, _ = _open(data, count)
    if inverted or codec not in (GAP_HUFFMAN, RICE):
        return iter([decode_flips(data, count).nonzero()[0]])
    return _positions(data, count)


def _open(data: bytes, count: int) -> tuple[int, bool, bytes]:
    """Codec, inversion and body of some coded flips, checked as far as the tag goes."""
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
