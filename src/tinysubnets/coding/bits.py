"""Bits in bytes: packed booleans and codes, and Huffman streams.

Packing. A packed array is one stream of bits. Bit s of the stream is bit s mod 8, counted from the
least significant, of byte s // 8 ("little" bit order everywhere in this package). Of `count` codes
of b bits, bit j (again from the least significant) of code i is bit j * count + i of the stream:
first the lowest bits of all codes, then the next ones. A boolean is a code of one bit. The stream
ends at the next byte border; the bits left over in its last byte are zero. So the codes take
exactly ceil(count * b / 8) bytes and there is one way to write them.

Example: the 3-bit codes 1, 2, 7 have the low bits 1 0 1, the middle bits 0 1 1 and the high bits
0 0 1: the stream 101 011 001 and the bytes 0x35 0x01.

Planes of equal bits, not codes one after the other, because whole planes are shifted at once:
1 to 2 ns per code, several times less than any other layout took for short arrays.

Huffman. A Huffman stream of bytes is one raw deflate stream (RFC 1951; no zlib or gzip header, no
checksum) written with zlib's Z_HUFFMAN_ONLY strategy: only literals, a fresh Huffman table for
about every 32,000 symbols, stored blocks where a table would not pay. A reader needs any inflate
function. It must accept every valid raw deflate stream, because another zlib build may write other
bytes for the same symbols; one build always writes the same.

The table that each block carries takes 40 to 100 bytes, and a symbol never takes less than one bit;
beyond that the streams measured within 1 % of the entropy of their symbols, and inflate at 150 to
300 MB of symbols per second on one core. Reading is bounded: at most the expected number of
symbols, and one more that proves an excess, is ever decompressed.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinysubnets.errors import DamageError, SettingError

MAX_CODE_BITS = 16
RAW_DEFLATE = -15  # zlib's number for a window of 32 KiB and no header
_LARGEST_BLOCKS = 9  # zlib's "memory level", which sets how many symbols share a table
_SMALL = 1 << 17  # bits of planes so few are joined whole: fewer calls are worth more than traffic
_PLACES = (1 << np.arange(MAX_CODE_BITS, dtype=np.uint16))[:, None]
_PLACES_OF_BYTE = _PLACES[:8].astype(np.uint8)


def packed_size(count: int, bits: int = 1) -> int:
    """The bytes that `count` elements of `bits` bits take."""
    return (count * bits + 7) // 8


def pack_mask(mask: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """The booleans of a flat array, eight to a byte, to keep in memory."""
    return np.packbits(mask, bitorder="little")


def unpack_mask(packed: NDArray[np.uint8], count: int) -> NDArray[np.bool_]:
    """The `count` booleans that `pack_mask` was given."""
    return np.unpackbits(packed, count=count, bitorder="little").view(np.bool_)


def count_ones(packed: NDArray[np.uint8]) -> int:
    """How many bits of some bytes are set."""
    return int(np.bitwise_count(packed).sum(dtype=np.int64))


def pack_bits(mask: NDArray[np.bool_]) -> bytes:
    """The booleans of a flat array, eight to a byte, to write to a file."""
    return pack_mask(mask).tobytes()


def unpack_bits(data: bytes, count: int) -> NDArray[np.bool_]:
    """The `count` booleans that `pack_bits` wrote; other bytes are damage."""
    _check_stream(data, count)
    return unpack_mask(np.frombuffer(data, np.uint8), count)


def pack_codes(codes: NDArray[np.unsignedinteger], bits: int) -> bytes:
    """The codes of a flat array, `bits` bits each, 1 to 16."""
    check_codes(codes, bits)
    return np.packbits(split_planes(codes, bits), bitorder="little").tobytes()


def unpack_codes(data: bytes, bits: int, count: int) -> NDArray[np.unsignedinteger]:
    """The `count` codes that `pack_codes` wrote: uint8 up to 8 bits, else uint16."""
    _check_bits(bits)
    _check_stream(data, count, bits)
    packed = np.frombuffer(data, np.uint8)
    planes = np.unpackbits(packed, count=count * bits, bitorder="little").reshape(bits, count)
    return join_planes(planes)


def split_planes(codes: NDArray[np.integer], bits: int) -> NDArray[np.uint8]:
    """The lowest `bits` bits of some codes, one row of zeros and ones each, lowest first."""
    planes = np.empty((bits, codes.size), np.uint8)  # [bits, codes]
    for plane in range(bits):
        planes[plane] = codes >> plane & 1
    return planes


def join_planes(planes: NDArray[np.uint8], flipped: int = 0) -> NDArray[np.unsignedinteger]:
    """The codes whose bits are the rows of `planes` [bits, codes], lowest first; uint8 or uint16.

    The bits of `flipped` are flipped in every code.
    """
    if planes.size <= _SMALL:
        places: NDArray[Any] = _PLACES_OF_BYTE if len(planes) <= 8 else _PLACES
        return np.bitwise_xor.reduce(planes * places[: len(planes)], axis=0, initial=flipped)
    codes = planes[-1].astype(np.uint8 if len(planes) <= 8 else np.uint16)
    for plane in planes[-2::-1]:
        codes += codes  # a shift by one, several times faster than <<=
        codes |= plane
    codes ^= flipped
    return codes


def check_codes(codes: NDArray[np.unsignedinteger], bits: int) -> None:
    """Refuse codes that are no numbers of `bits` bits, 1 to 16."""
    _check_bits(bits)
    if codes.size and int(codes.max()) >> bits:
        raise SettingError(f"code {int(codes.max())} does not fit in {bits} bits; use more bits.")


def _check_bits(bits: int) -> None:
    if not 1 <= bits <= MAX_CODE_BITS:
        raise SettingError(f"codes of {bits} bits; allowed are 1 to {MAX_CODE_BITS}.")


def _check_stream(data: bytes, count: int, bits: int = 1) -> None:
    """Refuse a stream of the wrong length or with a bit set after its last element."""
    expected = packed_size(count, bits)
    if len(data) != expected:
        raise DamageError(
            f"{len(data)} packed bytes; {count} elements of {bits} bits take exactly {expected}."
        )
    used = count * bits % 8
    if used and data[-1] >> used:
        raise DamageError("a padding bit after the last packed element is set; it must be zero.")


def deflate(text: bytes, dictionary: bytes) -> bytes:
    """Text as a raw deflate stream that begins with a dictionary in its window."""
    coder = zlib.compressobj(
        9, zlib.DEFLATED, RAW_DEFLATE, _LARGEST_BLOCKS, zlib.Z_DEFAULT_STRATEGY, dictionary
    )
    return coder.compress(text) + coder.flush()


def inflate(stream: bytes, size: int, what: str, dictionary: bytes = b"") -> bytes:
    """The text of `size` bytes in a raw deflate stream; never more is inflated.

    - `what`: what the text is, for errors.
    - `dictionary`: the one it was deflated with.
    """
    decoder = zlib.decompressobj(RAW_DEFLATE, dictionary)
    try:
        text = decoder.decompress(stream, size + 1)
    except zlib.error as error:
        raise DamageError(f"{what} cannot be inflated: {error}.") from None
    if len(text) != size or not decoder.eof or decoder.unused_data:
        raise DamageError(f"{what} does not have its {size} bytes of text.")
    return text


def huffman_encode(symbols: bytes) -> bytes:
    """The Huffman-coded stream of some bytes."""
    coder = zlib.compressobj(9, zlib.DEFLATED, RAW_DEFLATE, _LARGEST_BLOCKS, zlib.Z_HUFFMAN_ONLY)
    return coder.compress(symbols) + coder.flush()


def huffman_decode(data: bytes, count: int) -> bytes:
    """Exactly `count` symbols from a stream that fills `data`."""
    symbols, rest = huffman_decode_prefix(data, count)
    if rest:
        raise DamageError(f"{len(rest)} bytes follow the end of a Huffman stream.")
    if len(symbols) != count:
        raise DamageError(f"a Huffman stream holds {len(symbols)} symbols, {count} were expected.")
    return symbols


def huffman_decode_prefix(data: bytes, max_count: int) -> tuple[bytes, bytes]:
    """The symbols, at most `max_count`, of the stream that `data` begins with, and the rest."""
    decoder = zlib.decompressobj(RAW_DEFLATE)
    try:
        symbols = decoder.decompress(data, max_count + 1)
    except zlib.error as error:
        raise DamageError(f"a Huffman stream is damaged: {error}.") from None
    if len(symbols) > max_count:
        raise DamageError(f"a Huffman stream holds more than the {max_count} symbols expected.")
    if not decoder.eof:
        raise DamageError("a Huffman stream ends too early.")
    return symbols, decoder.unused_data
