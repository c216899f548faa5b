"""Coding of codebook indices: packed, Huffman, or by changes, whichever is smallest.

Layout. One tag byte, then the body; `count` and the bits per code are known from elsewhere.

    tag 0  packed: the codes at `bits` bits each (see `bits` for packing and Huffman streams).
    tag 1  Huffman: one Huffman stream whose symbols are 8 // bits codes each, the first code in the
           lowest bits: symbol = c_0 + c_1 * 2^bits + ... The codes that would be missing in the
           last symbol are 0. Only for `bits` <= 8.
    tag 2  Huffman, one code per symbol. Only for `bits` <= 4; above it is the same as tag 1.
    tag 3  changes, only for `bits` = 1 and where it is known which codes follow another in the same
           kernel: the codes that do not follow one, packed; then, as `bitmask_codecs` codes it, for
           each of the others whether it differs from the code before it.

A body is never longer than the packed one, so that a reader may refuse a longer one unread. Several
codes to a symbol come closer to the entropy, one code to a symbol needs a smaller table: which one
wins depends on the number of codes. Signs of weights that one kernel has are alike, the more so
where few are kept: tag 3 took 2.0 to 3.1 bits a kernel for 4 to 5 weights of it, tag 1 half as much
again.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tinysubnets.coding.bitmask_codecs import decode_bitmask, encode_bitmask
from tinysubnets.coding.bits import (
    MAX_CODE_BITS,
    check_codes,
    huffman_decode,
    huffman_encode,
    pack_bits,
    pack_codes,
    packed_size,
    unpack_bits,
    unpack_codes,
)
from tinysubnets.errors import DamageError

_PACKED, _HUFFMAN_JOINED, _HUFFMAN_SINGLE, _CHANGES = range(4)
# The least bits of a deflate block with a table: its head and three counts 17, lengths of the code
# for lengths 15, the lengths of 258 codes 15, its end 1. One without a table is never shorter than
# packed codes.
_TABLE_BITS = 48


def encode_codes(
    codes: NDArray[np.unsignedinteger], bits: int, follows: NDArray[np.bool_] | None = None
) -> bytes:
    """The smallest code of a flat array of indices below 2^bits, `bits` from 1 to 16.

    - `follows`: which of them follow one in the same kernel, where the reader will know it.
    """
    check_codes(codes, bits)
    best, size = b"", 1 + packed_size(codes.size, bits)  # packed, which need not be made to be told
    if bits == 1 and follows is not None:
        ones = codes.astype(np.bool_)
        changes = ones[1:][follows[1:]] != ones[:-1][follows[1:]]
        body = pack_bits(ones[~follows]) + encode_bitmask(changes)
        if 1 + len(body) < size:
            best, size = bytes([_CHANGES]) + body, 1 + len(body)
    for tag in (_HUFFMAN_JOINED, _HUFFMAN_SINGLE):
        per_symbol = _codes_per_symbol(tag, bits)
        if per_symbol and _least_huffman(codes.size, per_symbol) < size:
            body = huffman_encode(_join(codes, bits, per_symbol).tobytes())
            if 1 + len(body) < size:
                best, size = bytes([tag]) + body, 1 + len(body)
    return best or bytes([_PACKED]) + pack_codes(codes, bits)


def least_bytes(count: int, bits: int) -> int:
    """What `count` codes take at the least, whatever they are, without `follows`."""
    per_symbol = _codes_per_symbol(_HUFFMAN_JOINED, bits)
    packed = 1 + packed_size(count, bits)
    return min(packed, _least_huffman(count, per_symbol)) if per_symbol else packed


def _least_huffman(count: int, per_symbol: int) -> int:
    """The least bytes of codes under a Huffman tag, where that is shorter than packed ones."""
    return 1 + packed_size(_TABLE_BITS + -(-count // per_symbol))


def decode_codes(
    data: bytes, bits: int, count: int, follows: NDArray[np.bool_] | None = None
) -> NDArray[np.unsignedinteger]:
    """The `count` indices that `encode_codes` wrote: uint8 up to 8 bits, else uint16."""
    if not 1 <= bits <= MAX_CODE_BITS:
        raise DamageError(f"codes of {bits} bits; allowed are 1 to {MAX_CODE_BITS}.")
    if not data or len(data) > 1 + packed_size(count, bits):
        raise DamageError(
            f"{len(data)} bytes of codes; {count} codes of {bits} bits take 1 to "
            f"{1 + packed_size(count, bits)}."
        )
    tag, body = data[0], data[1:]
    if tag == _PACKED:
        return unpack_codes(body, bits, count)
    if tag == _CHANGES and bits == 1 and follows is not None:
        return _follow(body, follows)
    per_symbol = _codes_per_symbol(tag, bits)
    if not per_symbol:
        raise DamageError(f"unknown coding {tag} for codes of {bits} bits.")
    decoded = huffman_decode(body, -(-count // per_symbol))
    return _split(np.frombuffer(decoded, np.uint8), bits, per_symbol, count)


def _follow(body: bytes, follows: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """The codes whose first ones and changes `encode_codes` wrote."""
    num_first = follows.size - int(np.count_nonzero(follows))
    first = unpack_bits(body[: packed_size(num_first)], num_first)
    steps = np.empty(follows.size, np.uint8)
    steps[~follows] = first
    steps[follows] = decode_bitmask(body[packed_size(num_first) :], follows.size - num_first)
    # The sum of all steps so far, less what it was before the first code of the kernel.
    sums = np.cumsum(steps, dtype=np.int64)
    start = np.maximum.accumulate(np.where(follows, 0, np.arange(follows.size)))
    return ((sums - sums[start] + steps[start]) & 1).astype(np.uint8)


def _codes_per_symbol(tag: int, bits: int) -> int:
    """How many codes one Huffman symbol holds under a tag; 0 where the two do not go together."""
    if tag == _HUFFMAN_JOINED and bits <= 8:
        return 8 // bits
    return 1 if tag == _HUFFMAN_SINGLE and bits <= 4 else 0


def _join(codes: NDArray[np.unsignedinteger], bits: int, per_symbol: int) -> NDArray[np.uint8]:
    """Bytes that hold `per_symbol` codes each, the first in the lowest bits."""
    symbols = np.zeros(-(-codes.size // per_symbol), np.uint8)
    for place in range(per_symbol):
        part = codes[place::per_symbol].astype(np.uint8)
        symbols[: part.size] |= part << (bits * place)
    return symbols


def _split(
    symbols: NDArray[np.uint8], bits: int, per_symbol: int, count: int
) -> NDArray[np.unsignedinteger]:
    """The first `count` codes that `_join` put into some bytes."""
    codes = np.empty((symbols.size, per_symbol), np.uint8)
    for place in range(per_symbol):
        codes[:, place] = symbols >> (bits * place) & ((1 << bits) - 1)
    flat = codes.reshape(-1)
    # Bits beyond the codes of a symbol, and codes beyond the last, have one allowed value: zero.
    if symbols.size and (flat[count:].any() or int(symbols.max()) >> bits * per_symbol):
        raise DamageError(f"a Huffman symbol holds more than its codes of {bits} bits.")
    return flat[:count]
